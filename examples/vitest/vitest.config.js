// For tests that go through the run API: its executor is replaced in every test file. Tests that import this package need no
// settings.
export default { test: { setupFiles: ['native-sandbox-executor/register'], testTimeout: 60_000 } };
