// Checked by `tsc`, never run: the public types are what callers of the original, and of this package, rely on.

import {
  type CallMessage,
  type CallOptions,
  type CustomSandboxConfig,
  type ErrorMessage,
  type ExecutionResult,
  type ExecutorMetrics,
  type ExecutorOptions,
  type FunctionToolConfig,
  gracefulShutdown,
  type IsolationReport,
  type isolationReport,
  NativeSandboxExecutor,
  type Provider,
  type ProviderSandbox,
  registerProvider,
  type SandboxConfig,
  SandboxError,
  type SandboxErrorCode,
  type SandboxErrorPhase,
  SandboxExecutorFactory,
  type SandboxMessage,
  type StepMessage,
  setLogger,
  shutdown,
  type UsageMessage,
  type VercelSandboxConfig,
  VercelSandboxExecutor,
} from 'native-sandbox-executor';
import { type ConformanceTest, conformanceTests } from 'native-sandbox-executor/conformance';
import type { SwapReport, swapReport } from 'native-sandbox-executor/register';

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<_Answer extends true>(): void {}

// The original's types, spelled out.
same<Same<SandboxConfig['provider'], 'native' | 'vercel'>>();
same<Same<SandboxConfig['runtime'], 'node22' | 'typescript'>>();
same<Same<SandboxConfig['timeout'], number | undefined>>();
same<
  Same<
    keyof FunctionToolConfig,
    'name' | 'description' | 'inputSchema' | 'executeCode' | 'dependencies' | 'sandboxConfig'
  >
>();
same<Same<FunctionToolConfig['inputSchema'], Record<string, unknown>>>();
same<Same<FunctionToolConfig['dependencies'], Record<string, string>>>();
same<
  Same<keyof VercelSandboxConfig, 'provider' | 'runtime' | 'timeout' | 'vcpus' | 'teamId' | 'projectId' | 'token'>
>();
same<Same<keyof ExecutionResult, 'success' | 'result' | 'error' | 'logs' | 'executionTime'>>();

// The original's calls compile unchanged.
const config: FunctionToolConfig = {
  description: 'adds',
  inputSchema: {},
  executeCode: '({ a, b }) => a + b',
  dependencies: {},
  sandboxConfig: { provider: 'native', runtime: 'node22', timeout: 1000, vcpus: 2 },
};
const factory: SandboxExecutorFactory = SandboxExecutorFactory.getInstance();
same<Same<ReturnType<typeof factory.executeFunctionTool>, Promise<unknown>>>();
same<Same<ReturnType<typeof factory.cleanup>, Promise<void>>>();
const args: Record<string, unknown> = { a: 1 };
export const answer: Promise<unknown> = factory.executeFunctionTool('add', args, config);
export const session: SandboxExecutorFactory = SandboxExecutorFactory.getForSession('s');
export const closed: Promise<void> = SandboxExecutorFactory.cleanupSession('s');

// Ours besides.
const options: ExecutorOptions = { timeoutMs: 1, isolation: { require: 'confined' }, env: ['LANG', 'APP_*'] };
SandboxExecutorFactory.configure(options);
const native = new NativeSandboxExecutor({
  installScripts: ['sharp'],
  network: 'none',
  runFolders: 'disk',
  env: 'inherit',
});
same<Same<ReturnType<typeof NativeSandboxExecutor.getInstance>, NativeSandboxExecutor>>();
const stats = native.getExecutionStats();
same<Same<keyof typeof stats, `vcpu_${number}`>>();
export const free: number | undefined = stats.vcpu_4?.availablePermits;
same<Same<ReturnType<typeof native.getMetrics>, ExecutorMetrics>>();
const call: CallOptions = {
  signal: new AbortController().signal,
  onLogs: ({ stream, text }) => `${stream}${text.length}`,
  onUsage: ({ cpuMs, phases, exit }) => [cpuMs?.toFixed(), phases.runMs?.toFixed(), exit.reason satisfies string],
};
export const abortable: Promise<unknown> = native.executeFunctionTool('add', args, config, call);
const vercel = VercelSandboxExecutor.getInstance({
  provider: 'vercel',
  runtime: 'node22',
  teamId: 't',
  projectId: 'p',
  token: 'k',
});
export const unwrapped: Promise<ExecutionResult> = vercel.executeFunctionTool('add', args, config);
same<Same<ReturnType<typeof isolationReport>, Promise<IsolationReport>>>();

const error = new SandboxError('late', { code: 'TIMEOUT', phase: 'run' });
export const asError: Error = error;
same<Same<typeof error.code, SandboxErrorCode>>();
same<Same<typeof error.phase, SandboxErrorPhase>>();
same<Same<typeof error.name, 'SandboxError'>>();

setLogger(null);
setLogger({ debug() {}, info() {}, warn() {}, error() {} });
setLogger((name) => ({ debug: () => name, info() {}, warn() {}, error() {} }));

same<Same<ReturnType<typeof swapReport>, SwapReport>>();
same<Same<SwapReport['hook'], 'registerHooks' | 'register' | 'off' | 'none'>>();

// Operating.
const metrics = native.getMetrics();
export const waiting: number | undefined = metrics.calls?.waiting;
export const failures: number | undefined = metrics.counters?.failed.TIMEOUT;
export const slow: number | undefined = metrics.durations?.run.counts.at(-1);
export const heard: CallMessage = { callId: 1, toolId: 't', provider: 'native' };
export const step: StepMessage = { ...heard, atMs: 0, rung: 'zygote' };
export const used: UsageMessage['usage']['exit'] = { reason: 'completed', code: 0 };
export const made: SandboxMessage = { event: 'created', provider: 'native', dependencyHash: 'x' };
export const drained: Promise<void> = factory.cleanup({ deadlineMs: 1 });
export const ended: Promise<void> = shutdown({ deadlineMs: 1 });
const undo = gracefulShutdown({ signals: ['SIGTERM'], before: async (signal) => void signal.length });
same<Same<ReturnType<typeof undo>, void>>();

// What must not compile.
// @ts-expect-error an error's text is told to nobody
export const quoted: ErrorMessage = { name: 'SandboxError', code: 'TIMEOUT', phase: 'run', message: 'x' };
// @ts-expect-error a provider that does not exist
export const moon: SandboxConfig = { provider: 'moon', runtime: 'node22' };
// @ts-expect-error an option that does not exist
export const misspelt: ExecutorOptions = { timeoutMS: 1 };
// @ts-expect-error a tier that does not exist
export const tier: ExecutorOptions = { isolation: { require: 'total' } };
// @ts-expect-error a code that does not exist
export const code: SandboxErrorCode = 'OOPS';
// @ts-expect-error the source text is needed
export const empty: FunctionToolConfig = { description: '', inputSchema: {}, dependencies: {} };
// @ts-expect-error a logger lacks a method
setLogger({ debug() {} });

// A provider of the host's own.
declare const sandbox: ProviderSandbox;
const provider: Provider = {
  create: async ({ config: { provider, token }, lifetimeMs, owner, signal }) => {
    void [
      provider satisfies string,
      token satisfies unknown,
      lifetimeMs satisfies number,
      owner.machine,
      signal.aborted,
    ];
    return sandbox;
  },
};
declare module 'native-sandbox-executor' {
  interface CustomProviders {
    mine: { token: string };
    plain: object;
  }
}
registerProvider('mine', provider);
export const elsewhere: Promise<unknown> = factory.executeFunctionTool('t', args, {
  ...config,
  sandboxConfig: { provider: 'mine', token: 'x' },
});
const own: CustomSandboxConfig[] = [
  { provider: 'mine', token: 'x', runtime: 'typescript', timeout: 1, vcpus: 2 },
  { provider: 'plain' },
];
export const anyOf: FunctionToolConfig[] = own.map((sandboxConfig) => ({ ...config, sandboxConfig }));
// @ts-expect-error a typing mistake is no provider of the host's own
export const mistyped: FunctionToolConfig = { ...config, sandboxConfig: { provider: 'natvie', runtime: 'node22' } };
// @ts-expect-error a provider that nobody has declared
export const undeclared: FunctionToolConfig = { ...config, sandboxConfig: { provider: 'docker', token: 'x' } };
// @ts-expect-error a field that the provider needs
export const incomplete: FunctionToolConfig = { ...config, sandboxConfig: { provider: 'mine' } };
export const unknownField: FunctionToolConfig = {
  ...config,
  // @ts-expect-error a field that it does not know
  sandboxConfig: { provider: 'mine', token: 'x', tokn: 'y' },
};
export const ofAnother: FunctionToolConfig = {
  ...config,
  // @ts-expect-error a field of another provider
  sandboxConfig: { provider: 'native', runtime: 'node22', token: 'x' },
};
export const exit: Promise<{ exitCode: number }> = sandbox.run({
  command: 'node',
  args: [],
  cwd: '.',
  env: {},
  timeoutMs: 1,
  onOutput: (stream, chunk) => void [stream satisfies 'stdout' | 'stderr', chunk satisfies string | Uint8Array],
});
export const tests: ConformanceTest[] = conformanceTests({ provider, config: { token: 'x' } });
export const talking: CallOptions = {
  env: { KEY: 'value' },
  limits: { memoryMb: 64 },
  functions: {
    'crm.find': async ({ id }: { id: string }, { signal }) => ({ id, aborted: signal.aborted }),
    now: () => Date.now(),
  },
  functionLimits: { pending: 4 },
  onProgress: (progress) => void (progress satisfies unknown),
  onYield: async (value) => void (value satisfies unknown),
};
export const filed: CallOptions = {
  files: {
    text: 'a',
    bytes: new Uint8Array(1),
    buffer: Buffer.from('a'),
    path: { path: '/a' },
    url: { path: new URL('file:///a') },
    blob: new Blob(['a']),
    web: new Blob(['a']).stream(),
    stream: process.stdin,
    own: (async function* () {
      yield 'a';
    })(),
  },
  collect: {
    match: ['out/**'],
    maxFiles: 5,
    onFile: ({ path, size, stream }) => stream.pipe(process.stdout) && [path satisfies string, size satisfies number],
  },
};
export const gathered: CallOptions = { collect: { match: '**', into: new URL('file:///a') } };
// @ts-expect-error no content
export const noContent: CallOptions = { files: { a: 5 } };
// @ts-expect-error a limit that calls do not have
export const unknownLimit: CallOptions = { limits: { memory: 5 } };
