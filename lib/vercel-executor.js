'use strict';

// `VercelSandboxExecutor`, the original's third class: one per full configuration, over the provider `vercel`.

const { callSite } = require('./errors.js');
const { log } = require('./logger.js');
const { companions, watched } = require('./native-executor.js');
const { providerFields, read } = require('./options.js');
const { providerOf } = require('./providers.js');
const { deadlineOf } = require('./shutdown.js');

const NAME = 'VercelSandboxExecutor';
/** Configurations that are remembered; the one not used for longest is forgotten, its sandboxes end in their time. */
const INSTANCES_LIMIT = 1_000;
/** Lines of output that an answer has. */
const LOGS_LIMIT_LINES = 1_000;

class VercelSandboxExecutor {
  /** By digest: a token is not kept as a key. */
  static #instances = new Map();
  #config = { __proto__: null };
  /** What is wrong with the configuration: constructors never throw, calls tell it. */
  #problem;
  #executor;

  static getInstance(config) {
    const key = digestOf(config);
    const instances = VercelSandboxExecutor.#instances;
    const known = instances.get(key) ?? new VercelSandboxExecutor(config);
    // What cannot be told apart is not shared; its calls say what is wrong with it.
    if (key === undefined) return known;
    // The last is the one used last.
    instances.delete(key);
    instances.set(key, known);
    if (instances.size > INSTANCES_LIMIT) instances.delete(instances.keys().next().value);
    return known;
  }

  constructor(config, options) {
    try {
      this.#config = providerFields('vercel', config);
    } catch (error) {
      this.#problem = error;
    }
    // Now, not while importing: as in the factory.
    const { ProviderExecutor } = require('./provider-executor.js');
    this.#executor = new ProviderExecutor('vercel', providerOf('vercel'), options);
    const { teamId, projectId } = this.#config;
    log(NAME, 'info', { teamId, projectId }, 'VercelSandboxExecutor initialized with pooling');
  }

  async executeFunctionTool(functionId, args, toolConfig, call) {
    const began = performance.now();
    const lines = new Lines();
    let isOver = false;
    const site = callSite(VercelSandboxExecutor.prototype.executeFunctionTool);
    const answer = { success: false };
    try {
      answer.result = await watched('vercel', functionId, site, (observer) => {
        const given = companions(call);
        const onLogs = (chunk) => {
          // What comes after the answer is not the answer's.
          if (!isOver) lines.add(chunk);
          given.onLogs?.(chunk);
        };
        const config = this.#configFor(toolConfig);
        return this.#executor.run(
          functionId,
          args,
          toolConfig,
          config,
          { __proto__: null, ...given, onLogs },
          observer
        );
      });
      answer.success = true;
    } catch (error) {
      answer.error = error.message;
    }
    isOver = true;
    return { ...answer, logs: lines.all(), executionTime: Math.round(performance.now() - began) };
  }

  async cleanup(options) {
    await this.#executor.cleanup(deadlineOf('cleanup()', options));
  }

  /** The account is this executor's, whatever the tool says; runtime, time and size are the tool's, where it has any. */
  #configFor(toolConfig) {
    if (this.#problem) throw this.#problem;
    const given = providerFields('vercel', read('sandboxConfig', toolConfig ?? {}, 'sandboxConfig'));
    const config = { __proto__: null, ...this.#config };
    if (given.provider !== 'vercel') return config;
    for (const name of ['runtime', 'timeout', 'vcpus']) if (given[name] !== undefined) config[name] = given[name];
    return config;
  }
}

/** What tells configurations apart; nothing for what is no plain configuration. */
function digestOf(config) {
  try {
    const { createHash } = require('node:crypto');
    const sorted = Object.entries(providerFields('vercel', config)).sort(([a], [b]) => (a < b ? -1 : 1));
    return createHash('sha256').update(JSON.stringify(sorted)).digest('hex');
  } catch {
    return undefined;
  }
}

/** The last lines that a function printed, in the order of their ends; each is of one stream. */
class Lines {
  #ended = [];
  /** What may go on, by stream. */
  #open = { __proto__: null, stdout: '', stderr: '' };

  add({ stream, text }) {
    const [first, ...rest] = text.split('\n');
    this.#open[stream] += first;
    for (const line of rest) {
      this.#ended.push(this.#open[stream]);
      this.#open[stream] = line;
    }
    if (this.#ended.length > LOGS_LIMIT_LINES) this.#ended.splice(0, this.#ended.length - LOGS_LIMIT_LINES);
  }

  all() {
    const { stdout, stderr } = this.#open;
    return [...this.#ended, ...[stdout, stderr].filter((line) => line !== '')].slice(-LOGS_LIMIT_LINES);
  }
}

exports.VercelSandboxExecutor = VercelSandboxExecutor;
