// Runs one use in plain Node and prints its outcome as a line of JSON.
const [, , file, args] = process.argv;
require(file)(JSON.parse(args)).then(
  (value) => tell({ value }),
  (error) => tell({ error: `${error?.stack ?? error}`.slice(0, 600) })
);

function tell(outcome) {
  process.stdout.write(`\n${JSON.stringify({ outcome })}\n`, () => process.exit(0));
}
