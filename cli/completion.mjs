// Scripts that complete the command line in a shell, from what the commands say of themselves. Pure.

const PROGRAM = 'native-sandbox-executor';
/** A value that is one of some words. */
const WORDS = /^<([\w-]+(?:\|[\w-]+)+)>$/;

/**
 * @typedef {{ name: string, summary: string, options: Record<string, import('./usage.mjs').Option>, takesFile: boolean }} Command `name` has
 *   two words where it is one of several below another
 * @param {Command[]} commands @param {Record<string, string>} summaries of all first words
 */
export const SHELLS = { bash, zsh, fish };

/** What is completed after an option: some words, files, or nothing that is known. */
function valuesOf({ type, value = '' }) {
  if (type !== 'string') return undefined;
  return WORDS.exec(value)?.[1].split('|') ?? [];
}

function flags(options) {
  return Object.entries({ ...options, help: { type: 'boolean', short: 'h', text: 'show this' } });
}

/** The second words of a first one. */
function below(commands, first) {
  return commands.filter(({ name }) => name.startsWith(`${first} `)).map(({ name }) => name.split(' ')[1]);
}

function bash(commands, summaries) {
  const cases = commands.flatMap(({ name, options }) => {
    const valued = flags(options).filter(([, option]) => option.type === 'string');
    const words = valued.filter(([, option]) => valuesOf(option).length > 0);
    const files = valued.filter(([, option]) => valuesOf(option).length === 0);
    return [
      `    '${name}')`,
      '      case "$previous" in',
      ...words.map(([key, option]) => `        --${key}) words='${valuesOf(option).join(' ')}' ;;`),
      ...(files.length > 0 ? [`        ${files.map(([key]) => `--${key}`).join('|')}) return 0 ;;`] : []),
      `        *) words='${flags(options)
        .map(([key]) => `--${key}`)
        .join(' ')}' ;;`,
      '      esac',
      '      ;;',
    ];
  });
  const groups = [...new Set(commands.map(({ name }) => name.split(' ')))].filter(({ length }) => length > 1);
  const firsts = [...new Set(groups.map(([first]) => first))];
  return `# Completes ${PROGRAM} in bash: source <(${PROGRAM} completion bash)
# Where nothing is known, bash completes the names of files.
_native_sandbox_executor() {
  local current="\${COMP_WORDS[COMP_CWORD]}" previous="\${COMP_WORDS[COMP_CWORD-1]}" command="\${COMP_WORDS[1]}" words=''
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='${Object.keys(summaries).join(' ')} --help --version'
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    return 0
  fi
${firsts
  .map(
    (first) => `  if [ "$command" = '${first}' ]; then
    if [ "$COMP_CWORD" -eq 2 ]; then
      COMPREPLY=($(compgen -W '${below(commands, first).join(' ')} --help' -- "$current"))
      return 0
    fi
    command="${first} \${COMP_WORDS[2]}"
  fi`
  )
  .join('\n')}
  case "$command" in
${cases.join('\n')}
    'completion') words='${Object.keys(SHELLS).join(' ')} --help' ;;
    *) return 0 ;;
  esac
  # A word that is no option is the name of a file.
  case "$current" in
    -*) ;;
    *) if [ "$command" != completion ] && [[ "$words" == --* ]]; then return 0; fi ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _native_sandbox_executor ${PROGRAM}
`;
}

function zsh(commands, summaries) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const shown = (text) => text.replaceAll(/[\\[\]:]/g, '\\$&');
  const spec = ([key, option]) => {
    const values = valuesOf(option);
    const value =
      values === undefined
        ? ''
        : `:${shown(option.value ?? 'value')}:${values.length > 0 ? `(${values.join(' ')})` : '_files'}`;
    return quoted(`${option.multiple ? '*' : ''}--${key}[${shown(option.text)}]${value}`);
  };
  const described = (entries) => entries.map(([name, summary]) => quoted(`${name}:${shown(summary)}`)).join(' ');
  const args = ({ options, takesFile }) =>
    `_arguments ${flags(options).map(spec).join(' ')}${takesFile ? " '*:file:_files'" : ''}`;
  const single = commands.filter(({ name }) => !name.includes(' '));
  const firsts = [...new Set(commands.filter(({ name }) => name.includes(' ')).map(({ name }) => name.split(' ')[0]))];
  const grouped = firsts.map((first) => {
    const own = commands
      .filter(({ name }) => name.startsWith(`${first} `))
      .map((one) => ({ ...one, name: one.name.split(' ')[1] }));
    return `    ${first})
      shift words
      (( CURRENT-- ))
      if (( CURRENT == 2 )); then
        local -a below=(${described(own.map(({ name, summary }) => [name, summary]))})
        _describe command below
        return
      fi
      case "$words[2]" in
${own.map((one) => `        ${one.name}) shift words; (( CURRENT-- )); ${args(one)} ;;`).join('\n')}
      esac
      ;;`;
  });
  return `#compdef ${PROGRAM}
# Completes ${PROGRAM} in zsh: source <(${PROGRAM} completion zsh)
_native_sandbox_executor() {
  if (( CURRENT == 2 )); then
    local -a commands=(${described(Object.entries(summaries))})
    _describe command commands
    return
  fi
  case "$words[2]" in
${single.map((one) => `    ${one.name}) shift words; (( CURRENT-- )); ${args(one)} ;;`).join('\n')}
    completion) (( CURRENT == 3 )) && compadd ${Object.keys(SHELLS).join(' ')} ;;
${grouped.join('\n')}
  esac
}
compdef _native_sandbox_executor ${PROGRAM}
`;
}

function fish(commands, summaries) {
  const quoted = (text) => `'${text.replaceAll(/[\\']/g, '\\$&')}'`;
  const firsts = Object.entries(summaries).map(
    ([name, summary]) => `complete -c ${PROGRAM} -n __fish_use_subcommand -f -a ${name} -d ${quoted(summary)}`
  );
  const rest = commands.flatMap(({ name, summary, options }) => {
    const [first, second] = name.split(' ');
    const within = second
      ? `__fish_seen_subcommand_from ${first}; and __fish_seen_subcommand_from ${second}`
      : `__fish_seen_subcommand_from ${first}`;
    const lines = flags(options).map(([key, option]) => {
      const values = valuesOf(option);
      const value = values === undefined ? '' : values.length > 0 ? ` -x -a ${quoted(values.join(' '))}` : ' -r';
      return `complete -c ${PROGRAM} -n ${quoted(within)} -l ${key}${value} -d ${quoted(option.text)}`;
    });
    if (!second) return lines;
    const others = below(commands, first).join(' ');
    const offered = `__fish_seen_subcommand_from ${first}; and not __fish_seen_subcommand_from ${others}`;
    return [`complete -c ${PROGRAM} -n ${quoted(offered)} -f -a ${second} -d ${quoted(summary)}`, ...lines];
  });
  return `# Completes ${PROGRAM} in fish: ${PROGRAM} completion fish | source
${[...firsts, ...rest].join('\n')}
complete -c ${PROGRAM} -n '__fish_seen_subcommand_from completion' -f -a '${Object.keys(SHELLS).join(' ')}'
`;
}
