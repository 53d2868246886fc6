'use strict';

// The spans of a call, through the optional peer `@opentelemetry/api`: there are some when the host has registered a tracer
// provider there, and then without being asked for. Names and attributes stand in `docs/OPERATING.md`.

const { version } = require('../package.json');
const { textOf } = require('./errors.js');
const { orUndefined } = require('./intrinsics.js');
const { CORE_NAME } = require('./logger.js');

/** In a variable, so that no bundler looks for it. */
const API = '@opentelemetry/api';
const OWN = 'native_sandbox_executor';

/** The API; `null` where it is not installed. Looked for at the first call. */
let api;

/** The tracer of the provider that the host has registered; nothing where it has not. */
function tracer() {
  if (api === undefined) api = orUndefined(() => require(API)) ?? null;
  if (api === null) return undefined;
  // Of a provider by itself; of the API's proxy only where there is one behind it.
  const provider = api.trace.getTracerProvider();
  if (typeof provider.getDelegateTracer === 'function') return provider.getDelegateTracer(CORE_NAME, version);
  return provider.getTracer(CORE_NAME, version);
}

/**
 * The spans of a call that begins now, as a child of what is active in the caller; nothing where nobody records it.
 * @param {unknown} toolId
 * @param {string} provider
 */
function spansOf(toolId, provider) {
  // A tracer is the host's: what it throws is no call's affair.
  return orUndefined(() => {
    const found = tracer();
    if (!found) return undefined;
    const spans = new CallSpans(found, textOf(toolId), provider);
    return spans.isRecording() ? spans : undefined;
  });
}

class CallSpans {
  #tracer;
  #beganMs = performance.timeOrigin + performance.now();
  #context;
  #call;
  #step;
  /** The step `run` ends with what it used, which is known later. */
  #run;

  constructor(found, toolId, provider) {
    this.#tracer = found;
    this.#call = found.startSpan('sandbox.call', {
      kind: api.SpanKind.INTERNAL,
      startTime: this.#beganMs,
      attributes: { 'code.function.name': toolId, [`${OWN}.provider`]: provider },
    });
    this.#context = api.trace.setSpan(api.context.active(), this.#call);
  }

  isRecording() {
    return this.#call.isRecording();
  }

  /** Runs `act` as what the call does. */
  active(act) {
    return api.context.with(this.#context, act);
  }

  /** @param {{ step: string, atMs: number, rung?: string }} mark */
  begin({ step, atMs, rung }) {
    const attributes = rung === undefined ? {} : { [`${OWN}.rung`]: rung };
    const options = { kind: api.SpanKind.INTERNAL, startTime: this.#at(atMs), attributes };
    this.#step = this.#tracer.startSpan(`sandbox.${step}`, options, this.#context);
  }

  /** Ends the step that is under way. */
  end(step, atMs, reused, error) {
    const span = this.#step;
    if (!span) return;
    this.#step = undefined;
    if (reused !== undefined) span.setAttribute(`${OWN}.sandbox.reused`, reused);
    if (error) fail(span, error, this.#at(atMs));
    if (step !== 'run') return span.end(this.#at(atMs));
    this.#run = { span, atMs };
  }

  /** The call is answered. */
  settle(durationMs, error) {
    if (error) {
      fail(this.#call, error, this.#at(durationMs));
      this.#call.setAttribute(`${OWN}.error.phase`, error.phase);
    }
    this.#call.end(this.#at(durationMs));
  }

  /** Nothing of the call is left, and it is answered. */
  use(usage) {
    if (!this.#run) return;
    const { cpuMs, maxRssBytes, outputBytes, exit } = usage;
    const { span, atMs } = this.#run;
    this.#run = undefined;
    const facts = {
      'process.exit.code': exit.code,
      [`${OWN}.exit.reason`]: exit.reason,
      [`${OWN}.exit.signal`]: exit.signal,
      [`${OWN}.cpu_ms`]: cpuMs,
      [`${OWN}.max_rss_bytes`]: maxRssBytes,
      [`${OWN}.output_bytes`]: outputBytes,
    };
    for (const [name, value] of Object.entries(facts)) if (value != null) span.setAttribute(name, value);
    span.end(this.#at(atMs));
  }

  #at(ms) {
    return this.#beganMs + ms;
  }
}

/** Without the error's text: it may hold what the function threw or printed. */
function fail(span, { name, code }, at) {
  span.setAttribute('error.type', code);
  span.setStatus({ code: api.SpanStatusCode.ERROR, message: code });
  span.addEvent('exception', { 'exception.type': name }, at);
}

exports.spansOf = spansOf;
