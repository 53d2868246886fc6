const { SandboxExecutorFactory } = require('native-sandbox-executor');
const { duration } = require('./tools.js');

const run = (tool, args) =>
  SandboxExecutorFactory.getInstance().executeFunctionTool('duration', args, {
    description: '',
    inputSchema: {},
    ...tool,
    sandboxConfig: { provider: 'native', runtime: 'node22', timeout: 10_000 },
  });

test('minutes in words, by a real package', async () => {
  expect(await run(duration, { minutes: 90 })).toBe('2 hours');
});

test('what the tool throws', async () => {
  await expect(run(duration, { minutes: -1 })).rejects.toMatchObject({
    code: 'TOOL_ERROR',
    cause: expect.objectContaining({ name: 'RangeError' }),
  });
});

test('calls at once keep their arguments', async () => {
  const answers = await Promise.all([1, 2, 3].map((minutes) => run(duration, { minutes })));
  expect(answers).toEqual(['1 minute', '2 minutes', '3 minutes']);
});
