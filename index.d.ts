/**
 * Runs function tools - small JavaScript or TypeScript functions - each in a fresh process, for a Node server.
 *
 * This file is the reference of the package: every option with its default, its range and its variable stands here.
 *
 * Nothing here throws while it is imported, constructed or fetched by `getInstance()`; a call never throws
 * synchronously. Whatever is wrong is the rejection of a call, a {@link SandboxError}.
 */

/** `AbortSignal` as the program's own types have it, those of Node or of the DOM; what counts of it where it has neither. */
type Signal = typeof globalThis extends { AbortSignal: { prototype: infer Own } }
  ? Own
  : {
      readonly aborted: boolean;
      readonly reason: unknown;
      addEventListener(type: 'abort', listener: () => void, options?: { once?: boolean }): void;
      removeEventListener(type: 'abort', listener: () => void): void;
    };

/* ------------------------------------------------------------------ what a call is given: the original's types */

/** Runs the function on this machine. */
export interface NativeSandboxConfig {
  provider: 'native';
  /** `'typescript'` takes annotated code; the name `node22` is historical, the Node that runs tools is `nodePath`. */
  runtime: 'node22' | 'typescript';
  /** Milliseconds the function may take; absent or 0: {@link ExecutorOptions.timeoutMs}. A negative value is `INVALID_CONFIG`. */
  timeout?: number;
  /**
   * How many calls of this size may run at once in the process: each distinct value has a queue with that many permits.
   * Default 1; less than 1 is 1. It is not a limit on processor time.
   */
  vcpus?: number;
}

/**
 * Runs the function in a Vercel Sandbox, through the installed package `@vercel/sandbox` (0.0.24, or 1.10 and later), which is
 * loaded at the first call. See `docs/PROVIDERS.md`.
 */
export interface VercelSandboxConfig {
  provider: 'vercel';
  /** Both run on the service's `node22`; TypeScript is transformed before it is sent. */
  runtime: 'node22' | 'typescript';
  /** As of {@link NativeSandboxConfig}. */
  timeout?: number;
  /** Processors of the sandbox; absent: the service's default. */
  vcpus?: number;
  teamId: string;
  projectId: string;
  token: string;
}

export type SandboxConfig = NativeSandboxConfig | VercelSandboxConfig;

/**
 * Providers that the host registers, by name, with the fields that their configurations have besides; empty until the host says so:
 *
 * ```ts
 * declare module 'native-sandbox-executor' {
 *   interface CustomProviders {
 *     docker: { image: string };
 *   }
 * }
 * ```
 */
// biome-ignore lint/suspicious/noEmptyInterface: hosts add to it
export interface CustomProviders {}

/** Runs the function by one of the {@link CustomProviders}. */
export type CustomSandboxConfig = {
  [Name in keyof CustomProviders]: Omit<ProviderSandboxFields, 'provider'> & CustomProviders[Name] & { provider: Name };
}[keyof CustomProviders];

/** What the configurations of all registered providers have. */
interface ProviderSandboxFields {
  provider: string;
  runtime?: 'node22' | 'typescript';
  /** As of {@link NativeSandboxConfig}. */
  timeout?: number;
  vcpus?: number;
}

/**
 * The configuration of a call as a registered provider gets it; see {@link registerProvider}. Further fields, such as credentials, are the
 * provider's. They tell sandboxes apart, so they have to be plain values, as JSON carries them: functions and objects of classes are
 * `INVALID_CONFIG`.
 */
export interface ProviderSandboxConfig extends ProviderSandboxFields {
  [field: string]: unknown;
}

/** A function tool. */
export interface FunctionToolConfig {
  name?: string;
  description: string;
  inputSchema: Record<string, unknown>;
  /**
   * Source text of one function. It is called with the arguments as its one parameter; what it returns, or what the
   * promise that it returns resolves to, is the result. `require` and `import()` both work in it.
   */
  executeCode: string;
  /** npm packages, name to range (or tag). They are installed once per distinct set and shared by all calls. */
  dependencies: Record<string, string>;
  sandboxConfig?: SandboxConfig | CustomSandboxConfig;
}

/** The answer of {@link VercelSandboxExecutor}. */
export interface ExecutionResult {
  success: boolean;
  /** What the function returned, by itself. */
  result?: unknown;
  /** The message of what would be a rejection elsewhere. */
  error?: string;
  /** The lines that the function printed; of more than 1000 the last ones. */
  logs?: string[];
  /** Milliseconds of the whole call. */
  executionTime?: number;
}

/* ------------------------------------------------------------------ what a call may be given besides */

/** A piece of what the function printed. */
export interface LogChunk {
  stream: 'stdout' | 'stderr';
  /** Whole characters: a character that straddles two chunks of the pipe is not split. */
  text: string;
}

/** What a call took, and how it ended. Further fields may be added. */
export interface CallUsage {
  /** Milliseconds from the call until nothing of it was left; what the function left running counts. */
  durationMs: number;
  /**
   * Milliseconds of processor time, user and system together, of the call's process, with all its threads, and of those processes below it
   * that it waited for; of all of its processes where calls have control groups. A booted worker's boot counts (some 40 ms), what happened in a zygote before the fork does not. Measured by
   * the kernel; in a provider's sandbox by the process itself when it ends. Absent where nobody measured it: on Windows, where no
   * process ran, where a provider's run was killed.
   */
  cpuMs?: number;
  /**
   * Bytes of memory that the call's process, or one below it that it waited for, had at once, at most: the peak of its resident set. What a forked
   * worker shares with its zygote counts, the zygote's own peak does not. Measured, and absent, as `cpuMs`.
   */
  maxRssBytes?: number;
  /**
   * Bytes of memory that all processes of the call held together, at most; what is cached of files and what the kernel holds for them
   * counts, what is shared with a zygote does not. Present where calls have control groups (`controlGroup` of {@link isolationReport}),
   * on Linux 5.19 and newer.
   */
  memoryPeakBytes?: number;
  /** Bytes of stdout, stderr and the result's JSON text together. Absent where no process ran. */
  outputBytes?: number;
  /**
   * Where the call connected to, or would have. Absent where it made no connection, and where the layer `networkRules` of
   * {@link isolationReport} is not in force.
   */
  network?: NetworkUsage;
  /** Where the worker came from. Absent where none was started, and for providers. */
  rung?: 'zygote' | 'standby' | 'spawn';
  phases: CallPhases;
  exit: CallExit;
}

/** The connections of a call. */
export interface NetworkUsage {
  /** Up to 100 places, each with the number of times. */
  places: Array<{
    /** The name that the address was given for, or the address; the name that was asked for. */
    host: string;
    /** Absent of a look-up that was refused. */
    port?: number;
    /** Why it was refused, or, under `audit`, would have been. Absent where it was allowed. */
    refused?: string;
    count: number;
    /**
     * Bytes that these connections carried, as TCP carries them: with TLS and HTTP, without headers of packets, and each byte once however often it
     * was sent. At least this many; the end of a stream may count as one. Absent where the kernel does not say, where the
     * connections were refused, and where the executor and the call have no rules (`'open'`).
     */
    sentBytes?: number;
    /** See `sentBytes`. */
    receivedBytes?: number;
  }>;
  /** Connections to places beyond those. */
  more: number;
}

/** How long the steps of a call took, in milliseconds; a step that the call did not get to is absent. */
export interface CallPhases {
  /** Checks, and waiting for a permit. */
  queueMs: number;
  /** Getting the sandbox: an installation, the wait for another call's, or a look (microseconds). */
  installMs?: number;
  /** Getting a worker; for a provider, sending it the job. */
  startMs?: number;
  /** The function, until it was answered. */
  runMs?: number;
  /** From the answer until nothing of the call was left. */
  endMs?: number;
}

/** How a call ended. */
export interface CallExit {
  /** `'completed'` when it resolved, else the code of its {@link SandboxError}. */
  reason: 'completed' | SandboxErrorCode;
  /** Exit code of its process, if it exited. A worker that has answered ends with 0. */
  code?: number;
  /** The signal that ended its process, if one did: one of ours too. */
  signal?: string | null;
  /** Whether something was still running when the linger was over, and had to be ended. Not told by providers. */
  leftRunning?: boolean;
}

/**
 * A function of the host that a tool may call; see {@link CallOptions.functions}. Annotate what you take: `args` is whatever JSON the tool sends, so
 * check it as you check a request from outside.
 */
export type HostFunction = (args: never, context: { signal: Signal }) => unknown;

/** A JSON Schema, as far as it matters here. */
export type JsonSchema = boolean | { [keyword: string]: unknown };

/**
 * TypeScript declarations of host functions, for prompts: `declare const host: { … }` with what a model needs to write a function that calls them.
 *
 * A schema is that of the one argument, or `{ description, inputSchema, outputSchema }`. Descriptions become comments, dotted names objects, parts that
 * schemas refer to types with names; a function without a schema takes and gives `unknown`, and so does what a declaration cannot tell. References
 * lead to places of the same schema only; nothing is read or fetched.
 *
 * @param functions As {@link CallOptions.functions}, or their names.
 * @param schemas By name of a function.
 * @throws {SandboxError} `INVALID_CONFIG`: a name that no host function can have, or a schema of a function that is not there.
 */
export function describeFunctions(
  functions: Record<string, HostFunction> | string[],
  schemas?: Record<
    string,
    JsonSchema | { description?: string; inputSchema?: JsonSchema; outputSchema?: JsonSchema } | undefined
  >
): string;

/** Limits of the conversation between a function and its host. A bad value rejects the call with `INVALID_CONFIG`. */
export interface FunctionLimits {
  /** Calls of host functions under way at once, from 1 to 1024. A further one rejects in the function. Default 64. */
  pending?: number;
  /** Calls of host functions in all, from 1 to 1000000. A further one rejects in the function. Default 1000. */
  calls?: number;
  /** Bytes of the JSON text of one argument, answer or yielded value, from 1 to 67108864. Default 1048576. */
  messageBytes?: number;
}

// @ts-ignore: where a program has no types of Node, it is `any`.
type NodeReadable = import('node:stream').Readable;

/** A `file:` URL, as `URL` of Node or of the DOM. */
export interface FileUrl {
  readonly href: string;
  readonly protocol: string;
}

/**
 * What one file of a call is a copy of. A text is written as UTF-8. `path` is a file of this machine (a `file:` URL, or a path, as
 * `node:fs` takes them), read by the host with its own rights: a regular file, and no symbolic link itself, though links may lead to
 * its folder. A stream (of Node, of the web, a `Blob`, an async generator of bytes or texts) is read once, no faster than the working folder takes it.
 */
export type FileContent =
  | string
  | ArrayBufferView
  | ArrayBuffer
  | { path: string | FileUrl }
  | { stream(): object }
  | AsyncIterable<Uint8Array | string>;

/** A file that a function hands over; see {@link CollectOptions.onFile}. */
export interface CollectedFile {
  /** Below the working folder, with `/` between its parts; checked as {@link CollectOptions} says. */
  path: string;
  /** Bytes. */
  size: number;
  /** Its bytes. Begin to read it before the promise that `onFile` returns settles; a file whose stream nobody reads is left out. */
  stream: NodeReadable;
}

/**
 * Which files of the working folder are taken when the function has returned: after its result is known, and before the promise of the call
 * settles. Nothing is taken from a function that threw.
 *
 * Regular files only; links, and what is behind them, FIFOs, sockets and devices are passed over. Modes, owners and times are not taken over.
 * A path that matches and has a control character, a part of more than 255 bytes, more than 1024 bytes or 32 levels rejects the call
 * with `FILES_FAILED`, as does what cannot be read or written; the phase is `result`: the function has run.
 */
export interface CollectOptions {
  /**
   * Patterns of paths below the working folder: `*` within a name, `**` for any folders, `?` and `[a-z]` for one character of ASCII,
   * `{csv,json}`, and `\` before a character that stands for itself. `out/**` is all that is below `out`. 1 to 100 of them.
   */
  match: string | string[];
  /**
   * The folder of this machine that gets the files, below it under the same paths; made where it is missing. Either this or `onFile`.
   *
   * A file gets its name when all are there and whole. No file is replaced, and no link in it is followed: where something has the
   * name already, the call is rejected with `FILES_FAILED`. A rejected call leaves no file. Not on Windows.
   */
  into?: string | FileUrl;
  /**
   * Called with each file instead, in the order of their paths, one after the other: the next one comes when the promise that this
   * returns has settled and the stream has ended or was destroyed. The function's process waits meanwhile, and its time counts.
   * What it throws, and an error that the stream is destroyed with, rejects the call with `FILES_FAILED` and that as the `cause`.
   */
  onFile?(file: CollectedFile): unknown;
  /** The most files, from 1 to 10000; more reject the call with `OUTPUT_LIMIT`. Default 100. */
  maxFiles?: number;
  /** The most bytes of all files together, at least 1; more reject the call with `OUTPUT_LIMIT`. Default 67108864 (64 MiB). */
  maxBytes?: number;
}

/** Limits of one call. Each may be narrower than the executor's own, not wider: that rejects with `INVALID_CONFIG`. */
export interface CallLimits {
  /** As the option `memoryMb`. Calls with a limit of their own have zygotes of their own. */
  memoryMb?: number;
  /** As the option `nativeMemoryMb`. */
  nativeMemoryMb?: number;
  /** As the option `cpuSeconds`. */
  cpuSeconds?: number;
  /** As the option `cpus`. */
  cpus?: number;
  /** As the option `openFiles`. */
  openFiles?: number;
  /** As the option `fileSizeMb`. */
  fileSizeMb?: number;
  /** As the option `diskMb`. */
  diskMb?: number;
  /** As the option `maxProcesses`. */
  maxProcesses?: number;
  /** As the option `maxOutputBytes`. */
  maxOutputBytes?: number;
}

/** Optional companions of one call. What the callbacks throw is ignored. */
export interface CallOptions {
  /**
   * Ends the call: while it waits, installs or runs. The promise rejects with code `ABORTED` and the signal's reason as
   * `cause`; the processes are killed. A signal that has fired already rejects the call before anything is spent on it.
   */
  signal?: Signal;
  /**
   * Called with what the function prints, while it prints, in the order of each stream; chunks may still come shortly after the result.
   * Nothing is lost while the event loop is busy: what waits is bounded by `maxOutputBytes`, and past 4096 waiting chunks it is
   * joined by stream. The text is what the function wrote, control characters included.
   */
  onLogs?(chunk: LogChunk): void;
  /**
   * Called once when the processes of the call are gone and whoever awaits its promise has the answer; for a call that got no process too. Not
   * called where the call was refused before it was queued: bad options, a signal that had fired, a shutdown. Waiting for
   * it keeps no process alive.
   */
  onUsage?(usage: CallUsage): void;
  /**
   * Variables of this call, over those of the executor. For secrets: they travel on the call's own channel, reach no other call, no zygote
   * and no command line, and values of eight characters and more are replaced by `[redacted]` in the error, its tails and the log. That is a
   * help, no promise: a function can print a secret in another form. `TMPDIR`, `TMP` and `TEMP` are the call's own. At most 256 KiB in
   * all. A package that reads one of them while it is loaded finds the call's: such a call loads its packages itself. A provider's function gets them with its job, in a file that is removed before it begins.
   */
  env?: Record<string, string>;
  /**
   * Functions of the host that the tool may call, by name; a dot makes objects (`'crm.find'` is `host.crm.find`). The tool gets them in its second
   * parameter: `async (args, { host }) => (await host.lookup({ id: args.id })).name`.
   *
   * Arguments and results travel as JSON, many at once. What a host function throws is an `Error` with its name and message in the tool, and nothing
   * else of it. `signal` fires when the call has ended; what is answered after that is dropped. A host function may call
   * `executeFunctionTool` itself: such a call runs on the permit of the call that waits for it, one at a time, at most 8 deep. Not
   * for providers. See docs/CODE-MODE.md.
   */
  functions?: Record<string, HostFunction>;
  /** Limits of `functions` and `onYield`. */
  functionLimits?: FunctionLimits;
  /**
   * Called with each value that the tool hands to `progress`, which it gets in its second parameter: `async (args, { progress }) => { progress({ done: 1, of: 3 }); … }`.
   * In order; a value may still come shortly after the result. Where the host is late, the oldest of more than 64 waiting values are dropped. A value has at most 64 KiB as JSON. Not for providers.
   */
  onProgress?(progress: unknown): void;
  /**
   * Called with each value that a tool yields which is an `async function*`; its return value is the result of the call. The next value is handed
   * over when the promise that this returns has settled, and the tool waits when 16 values are under way. The result comes when all
   * values were taken. Without it a generator is refused with `INVALID_SOURCE`. Not for providers.
   */
  onYield?(value: unknown): unknown;
  /** Limits of this call alone. Not for providers. */
  limits?: CallLimits;
  /**
   * Files that are in the working folder before the function starts, by their path in it (`'in/data.csv'`): relative, with `/` between its
   * parts, without `.` and `..`; at most 1024 bytes, 32 levels and 10000 files. They count to `diskMb`, and the time that they take to the
   * timeout. At most one piece of them is in the host's memory; bytes that are given must not change before the call is settled.
   *
   * A bad name or content, and a `path` that cannot be read, reject with `INVALID_CONFIG` before anything is spent. A source that fails
   * later, a stream's error included, rejects with `FILES_FAILED` (phase `start`; a stream's error is the `cause`), one that leaves no room
   * with `DISK_LIMIT`: in both cases nothing of the function has run. However the call ends, streams that were not read to their ends are
   * destroyed. By a provider: at most 64 MiB in all, held in the host's memory until they are sent. See docs/FILES.md.
   */
  files?: Record<string, FileContent>;
  /**
   * Files of the working folder that are taken when the function has returned. An aborted call leaves nothing of them, and a stream that is
   * being handed over fails. Not for providers. See docs/FILES.md.
   */
  collect?: CollectOptions;
  /**
   * What this call may connect to, of what the executor's `network` allows: both have to allow a connection, so this can only be
   * narrower. `'none'` closes all connections of the call. Not for providers. See docs/NETWORK.md.
   */
  network?: NetworkPreset | NetworkRules;
}

/* ------------------------------------------------------------------ options */

/** How strictly a function is kept apart from the machine; each tier includes the ones before it. */
export type IsolationTier = 'base' | 'confined' | 'isolated';

/**
 * `'open'`: all that the host reaches, but for link-local addresses and the metadata services of clouds, which are closed where the
 * layer `metadataAddresses` is in force. `'internet'`: public addresses over TCP only, no loopback, no private network. `'none'`: nothing,
 * loopback included.
 */
export type NetworkPreset = 'open' | 'internet' | 'none';

/**
 * Rules about connections. A rule is a host (`'api.example.com'`), a wildcard for all names below one (`'*.example.org'`), an address or a
 * block of addresses (`'10.1.0.0/16'`, `'[2001:db8::]/32'`), each with `:port` or `:first-last` where not all ports are meant. A name opens
 * public addresses only, whatever it leads to: a private one needs a rule with the address; `'localhost'` is this machine. At most
 * 1000 rules in a list.
 */
export interface NetworkRules {
  /** What is allowed beside `allow`. Default: nothing where there is an `allow`, else `'open'`. */
  preset?: 'open' | 'internet';
  /** Allowed. */
  allow?: string[];
  /** Refused, whatever else is said. */
  deny?: string[];
  /** Refuse nothing, but tell what would be refused: in the log, and in {@link CallUsage.network}. Default `false`. */
  audit?: boolean;
}

/** What a tool may name as a dependency; what that depends on itself is not restricted. */
export interface DependencyPolicy {
  /** Packages: exact names, or beginnings that end in `*` (`@acme/*`, `react-*`). Default: any. */
  allow?: string[];
  /**
   * Kinds of spec that are accepted beside versions, ranges and tags of the registry: a git repository, a tarball's
   * address, an absolute path on this machine, `npm:other@range`. Default: none.
   */
  specs?: Array<'git' | 'url' | 'file' | 'alias'>;
  /** Days since its publication that a version must have to be installed, from 0 to 36500. Default 0. */
  minReleaseAgeDays?: number;
}

/**
 * Settings of an executor. Every one has a variable that counts where the option is absent; an empty variable means the
 * default. Variables are read at the first call, so a server may load its `.env` after importing this package. Those that
 * name proxies (`HTTP_PROXY` and its like) are read for each call.
 *
 * A bad value rejects the calls with `INVALID_CONFIG` naming the option or the variable, and is logged.
 */
export interface ExecutorOptions {
  /**
   * Milliseconds a function may take when its `sandboxConfig.timeout` is absent. Above 0.
   *
   * Default 30000. Variable `AGENTS_FUNCTION_TOOL_EXECUTION_TIMEOUT_MS_DEFAULT`.
   */
  timeoutMs?: number;
  /**
   * Milliseconds after its last use at which an idle sandbox is given up, and milliseconds after which ranges and tags among
   * its dependencies are resolved again: in the background, while what is installed serves.
   *
   * Default 300000 (5 min). Variable `AGENTS_FUNCTION_TOOL_SANDBOX_POOL_TTL_MS`.
   */
  poolTtlMs?: number;
  /**
   * Calls after which a sandbox is replaced by a fresh one. At least 1.
   *
   * Default 50. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_MAX_USE_COUNT`.
   */
  maxUseCount?: number;
  /**
   * Bytes that stdout, stderr and the result's JSON text of one call may have together.
   *
   * Default 1048576 (1 MiB). Variable `AGENTS_FUNCTION_TOOL_SANDBOX_MAX_OUTPUT_SIZE_BYTES`.
   */
  maxOutputBytes?: number;
  /**
   * Milliseconds a call waits for its turn before it is rejected with `QUEUE_TIMEOUT`.
   *
   * Default 30000. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_QUEUE_WAIT_TIMEOUT_MS`.
   */
  queueWaitMs?: number;
  /**
   * Milliseconds between two looks for idle sandboxes to give up.
   *
   * Default 60000. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_CLEANUP_INTERVAL_MS`.
   */
  cleanupIntervalMs?: number;
  /**
   * MiB of JavaScript heap a function may use, at least 16; beyond it the call is rejected with `MEMORY_LIMIT`.
   *
   * Default 1024. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_MEMORY_MB`.
   */
  memoryMb?: number;
  /**
   * MiB of memory outside of the heap (buffers, WebAssembly, threads, native code) that a call may use; beyond it the call is
   * rejected with `MEMORY_LIMIT`. Together with the heap: what the one leaves the other may use. The kernel limits what each
   * process allocates (`RLIMIT_DATA`; from Node 24 on with 8.5 GiB more, which worker threads reserve for code); what all
   * processes of the call really hold, page tables, shared memory and files of memory included, is looked at as `diskMb` is. Where calls have control groups (`controlGroup` of
   * {@link isolationReport}), the kernel ends all of them at `memoryMb` and this and 256 MiB together
   * (and `diskMb`, where run folders are in memory). Linux.
   *
   * Default 1024. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_NATIVE_MEMORY_MB`.
   */
  nativeMemoryMb?: number;
  /**
   * Seconds of processor time, of all threads together, that each process of a call may use; beyond it the call is rejected
   * with `CPU_LIMIT`. A booted worker's boot counts.
   *
   * Default: no limit beyond the time of the call. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_CPU_SECONDS`.
   */
  cpuSeconds?: number;
  /**
   * Processors that all processes of a call together may use at once, at least 0.01: with 0.5 they get half the time of one, and the
   * rest of the time they stand still. Needs control groups (`controlGroup` of {@link isolationReport}) with the controller `cpu`:
   * elsewhere it is not in force, which the log and the report say. `vcpus` of a tool is how many calls run at once, and limits none.
   *
   * Default: no limit; with control groups the kernel shares processors fairly between calls. Variable
   * `AGENTS_FUNCTION_TOOL_SANDBOX_CPUS`.
   */
  cpus?: number;
  /**
   * Files and sockets that each process of a call may have open, at least 64; opening one more throws `EMFILE` in the function.
   *
   * Default 4096, or what the server itself may, if that is less. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_OPEN_FILES`.
   */
  openFiles?: number;
  /**
   * MiB that one file may have; writing beyond it throws `EFBIG` in the function, and rejects with `DISK_LIMIT` if that is not
   * caught.
   *
   * Default 1024. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_FILE_SIZE_MB`.
   */
  fileSizeMb?: number;
  /**
   * MiB that working and temp folder of a call may take together, and at most 100,000 files.
   *
   * Where run folders are in memory (`runFolders`), writing beyond it throws `ENOSPC` in the function, and rejects with `DISK_LIMIT` if that
   * is not caught. On disk a call beyond it is ended and rejected with `DISK_LIMIT`; that is looked at every 100 ms or less often, so that a
   * call can write more between two looks, and what is deleted and still open, or written elsewhere, is not seen.
   *
   * Default 1024. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_DISK_MB`.
   */
  diskMb?: number;
  /**
   * Where working and temp folders of calls are. In memory, on a file system that the kernel limits, they need the layers `mountNamespace` and
   * (for forked workers) `pidNamespace`, and what functions write there takes memory, beside `memoryMb` and `nativeMemoryMb`. `'auto'`: in memory
   * if that can be had and `diskMb` is at most an eighth of the memory of the machine or container, else on the store's disk; `'memory'`:
   * whatever part `diskMb` is; `'disk'`: on the store's disk. The layer `diskQuota` of `isolationReport()` tells what came of it, and why.
   *
   * Default `'auto'`. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_RUN_FOLDERS`.
   */
  runFolders?: 'auto' | 'disk' | 'memory';
  /**
   * Processes that a call may have at once, its own included; beyond it the call is ended and rejected with `PROCESS_LIMIT`.
   * Looked at as `diskMb` is. So are their threads: 16 for each of these, and 256. Where calls have control groups, the kernel refuses
   * more. Linux.
   *
   * Default 128. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_MAX_PROCESSES`.
   */
  maxProcesses?: number;
  /**
   * Calls that may run at once in this process, whatever their `vcpus`; tools take turns. At least 1.
   *
   * Default: no limit beyond the permits. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_MAX_CONCURRENT`.
   */
  maxConcurrent?: number;
  /**
   * MiB that zygotes, and the workers that they have ready, may hold in this process; of several executors the smallest number counts.
   * Beyond it fewer workers are kept ready, then the trees' zygotes that were not used for longest end, unless they have calls that run;
   * calls of their tools start slower until there is room again. What calls themselves use does not count. 0 keeps the base zygotes only.
   *
   * Default: an eighth of the machine's or the container's memory, at least 128 and at most 1024. Variable
   * `AGENTS_FUNCTION_TOOL_SANDBOX_ZYGOTE_MEMORY_MB`.
   */
  zygoteMemoryMb?: number;
  /**
   * Milliseconds that what a function left running may go on after its result, never beyond its timeout. The permit is
   * held meanwhile. 0 ends it at once.
   *
   * Default 250. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_LINGER_MS`.
   */
  lingerMs?: number;
  /**
   * Milliseconds one installation of dependencies may take. It does not count towards the function's timeout.
   *
   * Default 50000. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_INSTALL_TIMEOUT_MS`.
   */
  installTimeoutMs?: number;
  /**
   * Whether the install scripts of dependencies run: all, none, or those of the named packages.
   *
   * Default `'run'`. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_INSTALL_SCRIPTS`: `run`, `ignore`, or names separated by commas.
   */
  installScripts?: 'run' | 'ignore' | string[];
  /**
   * Which dependencies are accepted; others are rejected with `INVALID_DEPENDENCY` before anything is installed.
   *
   * Default: ranges and tags of the registry, any name. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_DEPENDENCIES`: this object as JSON.
   */
  dependencies?: DependencyPolicy;
  /**
   * Variables of the server that functions see beside time zone, locale, proxy and certificate settings: names, or
   * prefixes ending in `*`. `'inherit'` gives them all, secrets included, as the original did.
   *
   * They are read for every call, so that a changed secret counts at once; zygotes that knew the old value serve no call with the new one. All
   * others but those that name proxies, PATH among them, are what they were at the executor's first call.
   *
   * Default: none more. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_ENV`: `inherit`, or names separated by commas.
   */
  env?: 'inherit' | string[];
  /**
   * Values for environment variables of functions that a provider runs: a function gets those whose names its code reads. Names that
   * the code reads are also lines of a file `.env` in its working folder, without a value where none is given here.
   *
   * Default: none. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_PROVIDER_ENV`: this object as JSON.
   */
  providerEnv?: Record<string, string>;
  /**
   * The isolation tier that is needed: with less, calls are rejected with `ISOLATION_UNAVAILABLE`.
   * See {@link isolationReport} for what is in force. `{ require: 'base' }` accepts to run without the launcher, and so without isolation,
   * where that cannot be run.
   *
   * Default: the best that the kernel offers. Less than that for another reason (a file of the package that cannot be run, a full
   * disk, no process left) rejects calls with `ISOLATION_UNAVAILABLE`, too. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_ISOLATION`: a tier's name.
   */
  isolation?: { require: IsolationTier };
  /**
   * What functions, packages while they load, and install scripts may connect to: a preset, or rules. Where that cannot be enforced, calls
   * are rejected with `ISOLATION_UNAVAILABLE`. A refused connection is `EACCES` in the function. See docs/NETWORK.md.
   *
   * Default `'open'`. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_NETWORK`: a preset, or the object as JSON.
   */
  network?: NetworkPreset | NetworkRules;
  /**
   * Absolute path of a control group (cgroup v2) in which those of calls are made: one that is delegated to the server's user, has the
   * controllers `memory` and `pids`, and no processes of its own. Where it cannot be used, calls are rejected with
   * `ISOLATION_UNAVAILABLE`. See "Control groups" in docs/OPERATING.md.
   *
   * Default: the server's own group or the one above it, where it is delegated; none elsewhere. Variable
   * `AGENTS_FUNCTION_TOOL_SANDBOX_CGROUP_DIR`.
   */
  cgroupDir?: string;
  /**
   * Forces a way of starting workers. A way that is not available rejects calls with `START_FAILED`.
   *
   * Default: the fastest that works; see `getMetrics().rung`. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_START`.
   */
  start?: 'zygote' | 'standby' | 'spawn';
  /**
   * Absolute path of the folder for installed dependencies and working folders; made when missing. All processes of the user
   * that name the same one share what is installed there; other users can read it, not change it. Without a backslash, outside of
   * Windows: below one Node imports no modules.
   *
   * Default: a folder of the user's below `os.tmpdir()`. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_STORE_DIR`.
   */
  storeDir?: string;
  /**
   * Folders with dependencies installed beforehand, for example into an image: each was the `storeDir` when they were. Looked
   * into first, only read, and never resolved again. What is in them serves where Node's ABI, npm's version, the registry and
   * the options on dependencies are the same as then.
   *
   * Default: none. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_BASE_STORE_DIRS`: paths separated as in `PATH`.
   */
  baseStoreDirs?: string[];
  /**
   * Bytes that installed dependencies may take on disk; the least recently used go first. Tenants have equal parts of it: who takes more
   * than that loses trees of its own. One set of dependencies alone may take no more than all of it.
   *
   * Default 2147483648 (2 GiB). Variable `AGENTS_FUNCTION_TOOL_SANDBOX_STORE_MAX_BYTES`.
   */
  storeMaxBytes?: number;
  /**
   * Separates tenants: executors with different keys share no installed dependencies.
   *
   * Default: none. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_TENANT_KEY`.
   */
  tenantKey?: string;
  /**
   * Absolute path of the Node binary that runs functions. Needed where the host is not Node itself (Electron, Bun).
   *
   * Default `process.execPath`. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_NODE_PATH`.
   */
  nodePath?: string;
  /**
   * Absolute path of npm (its executable or its `npm-cli.js`).
   *
   * Default: the npm beside the Node binary, else the one on `PATH`. Variable `AGENTS_FUNCTION_TOOL_SANDBOX_NPM_PATH`.
   */
  npmPath?: string;
}

/* ------------------------------------------------------------------ the executors */

/**
 * Routes calls to the provider that their configuration names. Takes the place of the original's class of that name.
 *
 * Permits, installed dependencies and warm sandboxes are one per process: it costs nothing to have many factories, and
 * worker threads share with the main thread.
 */
export class SandboxExecutorFactory {
  /** @param options Settings of this factory alone, over the configured ones, over variables, over defaults. */
  constructor(options?: ExecutorOptions);

  /**
   * Sets the options for every factory and executor of this thread that is not given its own. To be called at start-up;
   * a second call before the first function tool ran replaces the first.
   *
   * @throws {SandboxError} `INVALID_CONFIG`, synchronously, once a function tool has run: settings such as `network: 'none'`
   *   must not be dropped silently.
   */
  static configure(options: ExecutorOptions): void;

  /** The one factory of this thread. */
  static getInstance(): SandboxExecutorFactory;

  /** The factory of a session, made when there is none. */
  static getForSession(sessionId: string): SandboxExecutorFactory;

  /**
   * Cleans up and forgets the factory of a session. Does nothing for an unknown one. Calls of it that wait are rejected; for
   * those that run it waits 250 ms at most, then resolves, and they end in the background as they would have. With a
   * `deadlineMs` it waits for them, and ends what is left when that has passed.
   */
  static cleanupSession(sessionId: string, options?: CleanupOptions): Promise<void>;

  /**
   * Runs a function tool.
   *
   * @param functionId Name of the tool, for logs and errors; any string.
   * @param args Argument of the function; travels as `JSON.stringify` makes it.
   * @param config The tool and where to run it.
   * @param call Cancellation and live output.
   * @returns The function's result as JSON carries it; `undefined` for none. Rejects only with {@link SandboxError}.
   */
  executeFunctionTool(
    functionId: string,
    args: Record<string, unknown>,
    config: FunctionToolConfig,
    call?: CallOptions
  ): Promise<unknown>;

  /**
   * Prepares dependency sets, for example at boot: installs what is not in the store yet. Afterwards the first call with
   * one of these sets installs nothing. Also has its packages compiled ahead, where this is the store that they lie in: some half a second
   * for each set, once.
   *
   * @param sets Sets as tools name them: `[{ lodash: '^4' }, { zod: '3.25.0', axios: '*' }]`; `{}` is that of tools without any. At most 10000.
   * @returns Resolves when all are there. All are tried; the first failure rejects, with a {@link SandboxError} as of a call.
   */
  warm(sets: Array<Record<string, string>>): Promise<void>;

  /**
   * Rejects what waits or installs for this factory with `CLEANED_UP`, waits for what runs, and gives up idle sandboxes.
   * Installed dependencies stay in the store, for the next ones. May be called twice and while busy; the factory can be used again afterwards.
   *
   * With a deadline: see {@link CleanupOptions}.
   */
  cleanup(options?: CleanupOptions): Promise<void>;
}

/** How a cleanup ends what is under way. */
export interface CleanupOptions {
  /**
   * Milliseconds, from 0 on, that all calls may go on, those that wait or install too; what is left then is ended at once and rejected with
   * `CLEANED_UP`. Until the cleanup is done, new calls are rejected with `SHUTTING_DOWN`.
   *
   * Default: none; calls of which nothing has run are rejected at once, the others have their timeouts.
   */
  deadlineMs?: number;
}

/** The provider `native` by itself. */
export class NativeSandboxExecutor {
  /** @param options As of {@link SandboxExecutorFactory}. */
  constructor(options?: ExecutorOptions);

  /** The one native executor of this thread that factories do not use: they have their own, on the same sandboxes. */
  static getInstance(): NativeSandboxExecutor;

  /** As {@link SandboxExecutorFactory.executeFunctionTool}; `sandboxConfig` may be absent here. */
  executeFunctionTool(
    toolId: string,
    args: Record<string, unknown>,
    config: FunctionToolConfig,
    call?: CallOptions
  ): Promise<unknown>;

  /** As {@link SandboxExecutorFactory.warm}. */
  warm(sets: Array<Record<string, string>>): Promise<void>;

  /** As {@link SandboxExecutorFactory.cleanup}. */
  cleanup(options?: CleanupOptions): Promise<void>;

  /** Free permits and waiting calls per distinct `vcpus` in use so far, of the whole process. Never throws. */
  getExecutionStats(): Record<`vcpu_${number}`, { availablePermits: number; queueLength: number }>;

  /**
   * Figures about the whole process.
   * @throws {SandboxError} `ADDON_MISSING`, `INVALID_CONFIG`
   */
  getMetrics(): ExecutorMetrics;
}

/**
 * The provider `vercel` by itself. Executors with the same credentials, project, runtime and `vcpus` share sandboxes.
 */
export class VercelSandboxExecutor {
  /** @param options As of {@link SandboxExecutorFactory}. */
  constructor(config: VercelSandboxConfig, options?: ExecutorOptions);

  /** One per full configuration. */
  static getInstance(config: VercelSandboxConfig): VercelSandboxExecutor;

  /**
   * Runs a function in a sandbox of this executor's account; `timeout`, `vcpus` and `runtime` of a tool's own `sandboxConfig` for
   * `vercel` count instead of the executor's. Never rejects.
   */
  executeFunctionTool(
    functionId: string,
    args: Record<string, unknown>,
    toolConfig: FunctionToolConfig,
    call?: CallOptions
  ): Promise<ExecutionResult>;

  /** Ends what waits, waits for what runs, and stops the idle sandboxes that no other executor has used. */
  cleanup(options?: CleanupOptions): Promise<void>;
}

/* ------------------------------------------------------------------ providers */

/**
 * A place where functions run. The package does what is the same everywhere: which sandbox a call gets, how it is prepared, the
 * function's source, its result, limits, deadlines and errors. A provider only makes sandboxes.
 *
 * `docs/PROVIDERS.md` builds one step by step; `native-sandbox-executor/conformance` tests one.
 */
export interface Provider {
  /** Makes a sandbox: a Linux machine, container or folder with `node` 20.12 or newer and `npm` on its `PATH`. */
  create(request: ProviderCreateRequest): Promise<ProviderSandbox>;

  /**
   * Stops what processes of this machine left that are dead; resolves to how many sandboxes. Called once for each account and
   * process, in the background; `cleanup()` ends it by the signal, and the next call begins it again. A rejection is only logged.
   */
  reclaim?(request: {
    config: ProviderSandboxConfig;
    owner: ProviderOwner;
    /** Whether an {@link ProviderOwner.owner} is a process of this machine that is gone. */
    isDead(owner: string): boolean;
    signal: Signal;
  }): Promise<number>;
}

export interface ProviderCreateRequest {
  /** A copy of the call's `sandboxConfig`. Sandboxes are shared between calls whose configurations are equal but for `timeout`. */
  config: ProviderSandboxConfig;
  /**
   * Milliseconds that the sandbox should live from now on, its preparation included; it is stopped before when it is not needed any
   * more. One that lives so much shorter that the call's timeout does not fit in fails the call.
   */
  lifetimeMs: number;
  /** To mark the sandbox with, for {@link Provider.reclaim}. */
  owner: ProviderOwner;
  /**
   * Fires when the time for a creation, `installTimeoutMs`, is over. Not when the calls that wait are ended: what is half made may
   * be lost to everybody. A sandbox that comes when nobody waits for it is stopped.
   */
  signal: Signal;
}

/** Who made a sandbox. Both are short texts of letters, digits and `-`. */
export interface ProviderOwner {
  /** This machine, until it boots again. */
  machine: string;
  /** This process on it; begins with `machine`. */
  owner: string;
}

/** One sandbox. Commands and writes of several calls happen in it at the same time. */
export interface ProviderSandbox {
  /** For logs; unique. */
  readonly id: string;

  /**
   * Writes files, with the folders above them; what is there is replaced.
   * @param files `path` is relative to the sandbox's working folder, with `/`
   */
  writeFiles(
    files: Array<{ path: string; content: string | Uint8Array }>,
    options?: { signal?: Signal }
  ): Promise<void>;

  /**
   * Runs a command, without a shell and with an empty standard input. Resolves when it has ended, to its exit code: 128 and the
   * signal's number where a signal ended it, 127 (or a rejection) where there is no such program. By then all that it printed has been
   * handed over. Rejects when it cannot be known how it ended; it is then taken for lost, and not run again.
   */
  run(command: ProviderCommand): Promise<{ exitCode: number }>;

  /** Ends everything that runs, and the sandbox. May be called again, also because it has failed. */
  stop(options?: { signal?: Signal }): Promise<void>;

  /** Whether commands can run, as far as is known without asking anybody: it is asked before each call, and answers at once. */
  alive(): boolean;

  /**
   * Milliseconds until the sandbox ends by itself, as far as is known without asking anybody; `Infinity` if it does not. Asked before
   * each call, too.
   */
  remainingLifetimeMs(): number;
}

export interface ProviderCommand {
  /** A program on the sandbox's `PATH`. */
  command: string;
  args: string[];
  /** Relative to the sandbox's working folder. */
  cwd: string;
  /** Besides what the sandbox has; nothing of this process's environment belongs there. */
  env: Record<string, string>;
  /** Milliseconds after which the command should be killed, if that can be had; the package has deadlines of its own. */
  timeoutMs: number;
  /** To be called with what the command prints, while it runs, in order. Never throws. */
  onOutput(stream: 'stdout' | 'stderr', chunk: string | Uint8Array): void;
  /** Fires when the answer is not wanted any more: kill the command if that can be had, and settle. */
  signal?: Signal;
}

/**
 * Makes `sandboxConfig: { provider: name, … }` run functions by a provider of the host's own, in this thread. TypeScript takes the names
 * that {@link CustomProviders} has.
 *
 * @param name Lower-case letters, digits and `-`; not `native`, not `vercel`, and only once.
 * @throws {SandboxError} `INVALID_CONFIG`
 */
export function registerProvider(name: string, provider: Provider): void;

/**
 * Counters (they only grow) and gauges (what is now) of the process, by area. Each area has a fixed number of figures, or one for each
 * distinct `vcpus`, error code or step. Areas and figures may be added.
 */
export interface ExecutorMetrics {
  /** Free permits and waiting calls per distinct `vcpus`, as of {@link NativeSandboxExecutor.getExecutionStats}. Gauges. */
  queue?: Record<`vcpu_${number}`, { availablePermits: number; queueLength: number }>;
  /** Calls that have a permit, and calls that wait for one. Gauges. Absent when the options are bad. */
  calls?: { running: number; waiting: number };
  /** Sandboxes of this machine. Gauges. Absent when the options are bad. */
  pool?: {
    /** That can be lent. */
    sandboxes: number;
    /** That are given up, and still lent. */
    retired: number;
    /** Calls that have one. */
    leases: number;
    /** That are being made: looked for in the store, or installed. */
    installing: number;
    /** Calls that wait for one of these. */
    waiting: number;
  };
  /** Processes that workers are forked from. Gauges. Absent when the options are bad. */
  zygotes?: {
    /** Up, without a tree's packages. */
    base: number;
    /** Up, with the packages of one tree. */
    dependents: number;
    booting: number;
    /** That could not be had, and are tried again later. */
    refused: number;
    /** Workers that they forked ahead of need. */
    ready: number;
  };
  /** Memory of zygotes and of the workers that they have ready. Absent when the options are bad. */
  zygoteMemory?: {
    /** What they hold, as last looked at. Gauge. */
    bytes: number;
    /** What they may hold, see `zygoteMemoryMb`; `null` before the first call. */
    limitBytes: number | null;
    /** Zygotes that ended because all together held more. Counter. */
    ended: number;
  };
  /**
   * Packages that calls load themselves, because a zygote cannot or must not, and why. A package that takes something at load that differs from
   * call to call (random bytes, the time, its process id, its folders) is one of them. At most 256. Absent when the options are bad.
   */
  notPreloaded?: Array<{ packages: string[]; reason: string }>;
  /** Connections, look-ups and the like that rules of `network` refused. Counter. Absent when the options are bad. */
  connectionsRefused?: number;
  /** Workers booted ahead of need. Gauges. Absent when the options are bad. */
  standby?: {
    /** Kinds of workers that some are kept of: one for each tree. */
    stocks: number;
    ready: number;
  };
  /** What is wrong with the options, when they are bad. */
  error?: string;
  /** Sandboxes of the providers of this thread. Gauges. */
  providers: { sandboxes: number; retired: number; creating: number; waiting: number; leases: number };
  /** Of calls of the provider `native`. Absent when the options are bad. */
  counters?: {
    succeeded: number;
    /** Rejected calls by code; a code that did not occur is absent. Calls that did not get to the core are not counted. */
    failed: Partial<Record<SandboxErrorCode, number>>;
    /** Processor time that calls used. */
    cpuMs: number;
    /** What they printed and returned. */
    outputBytes: number;
    /** Calls by where their worker came from. */
    workers: Record<'zygote' | 'standby' | 'spawn', number>;
  };
  /** How long calls of the provider `native` took, and each of their steps. Absent when the options are bad. */
  durations?: {
    /** Upper bounds of the ranges, inclusive. */
    boundsMs: number[];
    /** Until the answer. */
    call: DurationHistogram;
    queue: DurationHistogram;
    install: DurationHistogram;
    start: DurationHistogram;
    run: DurationHistogram;
  };
  /** Where the next worker will probably come from; `null` while that is not known: no way was tried. Absent when the options are bad. */
  rung?: 'zygote' | 'standby' | 'spawn' | null;
  /** Faster ways that are not used, and why. */
  rungsNotUsed?: Array<{ rung: string; reason: string }>;
  /** Why processes are started without the launcher, or calls are rejected for want of it; `null` where there is one. */
  withoutLauncher?: string | null;
  /** What is in force, without the limits, once a call was served: {@link isolationReport}. */
  isolation?: Pick<IsolationReport, 'tier' | 'layers'> | null;
  /** Installed dependencies. Absent when the options are bad. */
  store?: {
    /** The folder; `null` before the first call. */
    root: string | null;
    /** Trees in it, and the bytes that they take on disk, when this process last looked. */
    trees: number;
    bytes: number;
    /** What this process did: installations, trees found installed, trees removed for room, ranges resolved again. */
    installs: number;
    hits: number;
    evictions: number;
    renewals: number;
    /** Compile caches that this process had made of trees' packages. */
    compileCaches: number;
  };
  /** Source texts that are kept in their prepared form, and how often one of them spared the work. Absent when the options are bad. */
  sources?: {
    kept: number;
    reused: number;
    /**
     * V8's code caches of large texts: those that are kept, with their bytes; and in all, caches made, calls that were spared compiling, and
     * caches that V8 refused or that could not be made.
     */
    codeCaches: { kept: number; bytes: number; made: number; accepted: number; refused: number };
  };
  [area: string]: unknown;
}

/** Durations, counted by size. All figures are counters. */
export interface DurationHistogram {
  /** How many were in each range by itself, not in those below it as well; the last is of what is beyond all bounds. */
  counts: number[];
  count: number;
  sumMs: number;
}

/** One way in which functions are kept apart from the machine. `docs/ISOLATION.md` tells what each does. */
export interface IsolationLayer {
  name: string;
  /** The tier that it belongs to. */
  tier: IsolationTier;
  inForce: boolean;
  /** Why it is not in force, or how far it goes. */
  why?: string;
  /** What would put it into force. */
  enable?: string;
}

/** What keeps functions apart from the machine here, and what does not. Layers and further fields may be added. */
export interface IsolationReport {
  /** The best tier of which every layer that decides is in force. */
  tier: IsolationTier;
  layers: IsolationLayer[];
  /** Which limits of a call are enforced here, and by whom. */
  limits: Array<{ option: keyof ExecutorOptions; inForce: boolean; by: string }>;
  [detail: string]: unknown;
}

/**
 * What is enforced on this machine for the options of the executor that first served a call most recently, or for the
 * variables where none did; found out by trying.
 * Rejects with {@link SandboxError} `ADDON_MISSING`, `INVALID_CONFIG`, `INSTALL_FAILED` (the store's folder), `ISOLATION_UNAVAILABLE`
 * (it cannot be found out at the moment).
 */
export function isolationReport(): Promise<IsolationReport>;

/* ------------------------------------------------------------------ errors */

/** What went wrong. Codes are stable; texts are for people and models. */
export type SandboxErrorCode =
  /** An option, a variable, the tool's configuration or its arguments have a bad value. */
  | 'INVALID_CONFIG'
  /** The source text is no runnable function. */
  | 'INVALID_SOURCE'
  /** A dependency is malformed, or forbidden by the policy; or the code imports a package that is not declared. */
  | 'INVALID_DEPENDENCY'
  /** No permit came free in time, or too many calls wait already. */
  | 'QUEUE_TIMEOUT'
  /** The caller's signal fired. */
  | 'ABORTED'
  /** `cleanup()` ended the call before it ran, or at its deadline. */
  | 'CLEANED_UP'
  /** The process, or the executor, is shutting down and takes no more calls. */
  | 'SHUTTING_DOWN'
  /** npm failed. */
  | 'INSTALL_FAILED'
  /** npm did not finish in time. */
  | 'INSTALL_TIMEOUT'
  /** No worker could be started, or it was lost through no doing of the function. */
  | 'START_FAILED'
  /** The native addon could not be loaded. */
  | 'ADDON_MISSING'
  /** The required isolation is not to be had here, or it cannot be found out at the moment what there is. */
  | 'ISOLATION_UNAVAILABLE'
  /** The function did not settle in time. */
  | 'TIMEOUT'
  /** stdout, stderr and result together were too large, or the files that `collect` names. */
  | 'OUTPUT_LIMIT'
  /** The heap, the memory outside of it, or the machine's was used up; the text says which. */
  | 'MEMORY_LIMIT'
  /** The processor time was used up. */
  | 'CPU_LIMIT'
  /** Too many processes at once. */
  | 'PROCESS_LIMIT'
  /** A file, or working and temp folder together, grew too large. */
  | 'DISK_LIMIT'
  /** The function threw, or an error in it was not handled; what it threw is the `cause`. */
  | 'TOOL_ERROR'
  /** The process ended by itself before the function settled. */
  | 'EXITED'
  /** The process was killed by a signal that was not ours. */
  | 'KILLED'
  /** A file of the call could not be read or placed (phase `start`), or one of its function's not be handed over (`result`). */
  | 'FILES_FAILED'
  /** The function returned something that JSON cannot carry. */
  | 'RESULT_NOT_SERIALIZABLE'
  /** The answer was lost; the function may have run. */
  | 'OUTCOME_UNKNOWN';

/** Where in its life a call failed. */
export type SandboxErrorPhase = 'validate' | 'queue' | 'install' | 'start' | 'run' | 'result';

/**
 * An error as data: what a function threw, or an error of the host behind a {@link SandboxError}. A plain object, which
 * prints by `String`, `util.inspect`, `JSON.stringify` and loggers whatever its fields are: a field that would hide a method
 * of every object (`toString`, `constructor`, `__proto__`, `toJSON`, `then`, …) has an underscore before its name.
 */
export interface ThrownError {
  /** At most 256 characters. */
  name: string;
  /** As the function wrote it, control characters included; `String(cause)` shows these as `\\uXXXX`. */
  message: string;
  /** In lines of the function's text, without control characters. */
  stack?: string;
  cause?: unknown;
  /** Of an `AggregateError`. */
  errors?: unknown[];
  /** The enumerable fields that JSON can carry. */
  [field: string]: unknown;
}

/**
 * The one error of a call. Its stack shows where the call was made. `message`, `stdout` and `stderr` have control characters
 * (all but newline and tab, and those that change the direction of text) as `\\uXXXX`.
 */
export class SandboxError extends Error {
  constructor(
    message: string,
    details: {
      code: SandboxErrorCode;
      phase: SandboxErrorPhase;
      durationMs?: number;
      stdout?: string;
      stderr?: string;
      cause?: unknown;
    }
  );
  name: 'SandboxError';
  code: SandboxErrorCode;
  phase: SandboxErrorPhase;
  /** Milliseconds from the call to its rejection. */
  durationMs: number;
  /** The end of what the function (or npm) printed, where it ran. */
  stdout?: string;
  /** The end of what the function (or npm) printed, where it ran. */
  stderr?: string;
  /**
   * What the function threw, as data: of an `Error` a {@link ThrownError}; a `null`, number, boolean or text itself; the
   * fields or the text of anything else; absent when it threw `undefined`. For `ABORTED` the signal's reason, for
   * `ADDON_MISSING`, `OUTCOME_UNKNOWN` and a provider's failures the error behind it.
   *
   * It is never an `Error`, and none of its fields is one: a server that rethrows the innermost `cause` that is an `Error`
   * keeps this error's own text, and takes no `name` that a function chose for one of its own.
   */
  cause?: unknown;
}

/* ------------------------------------------------------------------ logs */

/** A logger as pino's: fields first, then the message. */
export interface SandboxLogger {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/**
 * Sets where this package logs. Until then it logs by `getLogger` of `@inkeep/agents-core` where that optional peer is
 * installed (loaded at the first call; the run API's own copy where `native-sandbox-executor/register` swapped), else not
 * at all. Silent with `null`.
 *
 * - a logger: gets every record; where it has a `child` method, as pino's, `child({ name })` gets those of that name;
 * - a function `(name) => logger`, such as the `getLogger` of `@inkeep/agents-core`.
 *
 * The names are the original's: `SandboxExecutorFactory`, `native-sandbox-executor`, `VercelSandboxExecutor`; and
 * `ProviderSandboxExecutor` for other providers. A logger that has a `level` is only
 * given what it takes. What a logger throws is ignored.
 *
 * @throws {TypeError} when it is neither
 */
export function setLogger(logger: SandboxLogger | ((name: string) => SandboxLogger) | null): void;

/* ------------------------------------------------------------------ tracing */

/**
 * What the tracing channel `native-sandbox-executor:call` of `node:diagnostics_channel` publishes; the same object for all events of a
 * call. Messages hold no code, no arguments, no results, no environment, and no text of an error.
 */
export interface CallMessage {
  /** Of this call, in this thread. */
  callId: number;
  toolId: string;
  provider: string;
  /** Until the answer; with `error`, `asyncStart` and `asyncEnd`. */
  durationMs?: number;
  error?: ErrorMessage;
}

/** What of a {@link SandboxError} may be told to everybody. */
export interface ErrorMessage {
  name: string;
  code: SandboxErrorCode;
  phase: SandboxErrorPhase;
}

/**
 * What the tracing channels `native-sandbox-executor:queue`, `:install`, `:start` and `:run` publish: `start` and `end` when the step begins,
 * `asyncStart` and `asyncEnd` when it ends, `error` before these when the call failed in it.
 */
export interface StepMessage extends CallMessage {
  /** When the step began, since the call did. */
  atMs: number;
  /** Where the worker came from; at the end of `start`, and with `run`. */
  rung?: 'zygote' | 'standby' | 'spawn';
  /** Whether the sandbox was there already; at the end of `install`. */
  reused?: boolean;
}

/** What the channel `native-sandbox-executor:usage` publishes, once a call is answered and nothing of it is left. */
export interface UsageMessage {
  callId: number;
  toolId: string;
  provider: string;
  usage: CallUsage;
}

/**
 * What the channel `native-sandbox-executor:sandbox` publishes, from the first call after the subscription on: of the whole process for the provider
 * `native`, of this thread for others.
 */
export interface SandboxMessage {
  event: 'created' | 'removed';
  provider: string;
  /** Names the dependency set, as in the log; `native` only. */
  dependencyHash?: string;
  /** The sandbox's own name; other providers only. */
  sandbox?: string;
  /** How long it took to make; `native`, `created` only. */
  durationMs?: number;
}

/**
 * What the channel `native-sandbox-executor:connection` publishes, from the first call after the subscription on, of the whole process: a connection or
 * look-up was refused, or under `audit` would have been. Once for each place of a call, for up to 100 places; {@link CallUsage.network} has their
 * numbers.
 */
export interface ConnectionMessage {
  event: 'refused' | 'audited';
  provider: 'native';
  /** Whose it is: the id of the tool, or what else connected, such as `npm` and `an install script`. */
  caller: string;
  /** The name that the address was given for, or the address; the name that was asked for. */
  host: string;
  /** Absent of a look-up. */
  port?: number;
  /** The rule, as in the error. */
  reason: string;
}

/* ------------------------------------------------------------------ shutdown */

/** How a process ends. */
export interface ShutdownOptions {
  /** Milliseconds that calls may go on; what is left then is ended at once, and rejected with `CLEANED_UP`. From 0 on. Default 10000. */
  deadlineMs?: number;
}

/**
 * Ends the function tools of the process: from now on all calls are rejected with `SHUTTING_DOWN` (in other threads those of the provider
 * `native`), those that were taken go on until the deadline. Resolves when nothing of them is left, no process of ours runs, and idle
 * sandboxes are given up.
 */
export function shutdown(options?: ShutdownOptions): Promise<void>;

/** What {@link gracefulShutdown} does, and when. */
export interface GracefulShutdownOptions extends ShutdownOptions {
  /** Default `['SIGTERM', 'SIGINT']`. */
  signals?: string[];
  /**
   * What comes before the shutdown, such as closing the server and waiting for its requests: calls are still taken meanwhile. Its time
   * counts towards the deadline.
   */
  before?(signal: string): void | Promise<void>;
}

/**
 * Shuts down when a signal comes: `before`, then {@link shutdown}; then the process ends by that signal, unless somebody else listens
 * to it, who ends it himself. A second signal ends it at once. For the main thread: others get no signals.
 *
 * @returns Takes it back; with the last one that is taken back, calls are no longer refused either.
 * @throws {SandboxError} `INVALID_CONFIG`
 */
export function gracefulShutdown(options?: GracefulShutdownOptions): () => void;

/* ------------------------------------------------------------------ the swap */

/** What `native-sandbox-executor/register` did in this thread. */
export interface SwapReport {
  /** Whether this package has taken the place of the run API's executor: so from the first function tool on. */
  swapped: boolean;
  /**
   * How modules are hooked: with the one or the other function of `node:module`, not at all because the variable
   * `NATIVE_SANDBOX_EXECUTOR` was `off` at the start, or not at all because nobody asked for it.
   */
  hook: 'registerHooks' | 'register' | 'off' | 'none';
  /** URLs of the modules in whose place this package was given, at most 16. */
  modules: string[];
}

/** Tells whether the swap happened. Never throws. */
export function swapReport(): SwapReport;
