import type { Provider } from 'native-sandbox-executor';

/** One test: rejects with an `AssertionError` that says what is wrong. */
export interface ConformanceTest {
  name: string;
  run(): Promise<void>;
}

/**
 * The tests that every {@link Provider} has to pass, for any test runner:
 *
 * ```js
 * for (const { name, run } of conformanceTests({ provider, config })) test(name, run);
 * ```
 *
 * Each makes the sandboxes that it needs and stops them. The sandboxes need Node (`node` on the `PATH`). The last tests run functions
 * through `SandboxExecutorFactory`, for which the provider is registered under a name of their own.
 */
export function conformanceTests(options: {
  provider: Provider;
  /** What `create` gets as `config`: credentials and the like. Default `{}`. */
  config?: Record<string, unknown>;
}): ConformanceTest[];
