// Function tools as the database has them: the text of a function, and the packages that it needs.

exports.duration = {
  executeCode: `async ({ minutes }) => {
    if (minutes < 0) throw new RangeError('minutes cannot be negative');
    const ms = require('ms');
    return ms(minutes * 60000, { long: true });
  }`,
  dependencies: { ms: '2.1.3' },
};
