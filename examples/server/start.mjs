// Starts the services, then the server, in a process of its own and by the flag.

import { spawn } from 'node:child_process';
import { startDatabase, startModel } from './services.mjs';

const env = {
  ...process.env,
  DATABASE_URL: await startDatabase(),
  MODEL: 'custom/played',
  MODEL_URL: await startModel(),
  // The run API does not start without one.
  ANTHROPIC_API_KEY: 'none',
  ENVIRONMENT: 'development',
  PORT: process.env.PORT ?? '3003',
};

const flag = ['--import', 'native-sandbox-executor/register'];
const server = spawn(process.execPath, [...flag, 'server.mjs'], {
  cwd: import.meta.dirname,
  env,
  stdio: 'inherit',
});
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => server.kill(signal));
server.on('exit', (code) => process.exit(code ?? 0));
