// What a call costs without this package: a Node of its own, spawned for it, that nothing keeps apart from anything. It has the
// surface of an executor, as far as a bench needs it.

import { spawn } from 'node:child_process';

class PlainNode {
  /** Runs `executeCode` by `node -e`; its result comes back on stdout. */
  executeFunctionTool(_id, args, { executeCode }) {
    const script = `process.stdout.write(JSON.stringify((${executeCode})(${JSON.stringify(args)})))`;
    return new Promise((settle, fail) => {
      const child = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
      let text = '';
      child.stdout.setEncoding('utf8').on('data', (part) => {
        text += part;
      });
      child.on('error', fail);
      child.on('close', (code) => (code === 0 ? settle(JSON.parse(text)) : fail(new Error(`node ended with ${code}`))));
    });
  }
}

const plain = new PlainNode();

export const SandboxExecutorFactory = { getInstance: () => plain };
