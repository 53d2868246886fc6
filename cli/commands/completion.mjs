// `completion`: a script that completes the command line in a shell.

import { SHELLS } from '../completion.mjs';
import { listed, UsageError } from '../usage.mjs';

const NAMES = Object.keys(SHELLS);

export const command = {
  name: 'completion',
  summary: 'Prints a script that completes the command line in a shell.',
  usage: [`completion <${NAMES.join('|')}>`],
  positionals: [`<${NAMES.join('|')}>`],
  options: {},
  notes: [
    'bash: source <(native-sandbox-executor completion bash), in ~/.bashrc to keep it.',
    'zsh: source <(native-sandbox-executor completion zsh), in ~/.zshrc, after compinit.',
    'fish: native-sandbox-executor completion fish > ~/.config/fish/completions/native-sandbox-executor.fish',
  ],
  run,
};

async function run(_values, [shell], terminal, { all, summaries }) {
  if (!Object.hasOwn(SHELLS, shell)) throw new UsageError(`completion is for ${listed(NAMES)}, not for ${shell}`);
  terminal.out(SHELLS[shell](await all(), summaries));
  return 0;
}
