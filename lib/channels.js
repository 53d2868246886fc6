'use strict';

// What is published on `node:diagnostics_channel`, and the one question that a call costs while nobody has subscribed. What
// the messages hold stands in `index.d.ts`: no code, no arguments, no results, nothing that a function or npm wrote.

const { channel, tracingChannel } = require('node:diagnostics_channel');

const PREFIX = 'native-sandbox-executor';

const call = tracingChannel(`${PREFIX}:call`);
/** By step of a call. */
const steps = {
  __proto__: null,
  queue: tracingChannel(`${PREFIX}:queue`),
  install: tracingChannel(`${PREFIX}:install`),
  start: tracingChannel(`${PREFIX}:start`),
  run: tracingChannel(`${PREFIX}:run`),
};
const usage = channel(`${PREFIX}:usage`);
const sandbox = channel(`${PREFIX}:sandbox`);
const connection = channel(`${PREFIX}:connection`);

/** Whether anybody hears of calls. */
function isCallHeard() {
  return (
    call.hasSubscribers ||
    steps.run.hasSubscribers ||
    steps.install.hasSubscribers ||
    steps.start.hasSubscribers ||
    steps.queue.hasSubscribers ||
    usage.hasSubscribers
  );
}

/** The synchronous part of what is only known by its beginning and its end. */
function begin(tracing, message) {
  tracing.start.publish(message);
  tracing.end.publish(message);
}

/** Its end. */
function end(tracing, message) {
  if (message.error) tracing.error.publish(message);
  tracing.asyncStart.publish(message);
  tracing.asyncEnd.publish(message);
}

/** @param {() => object} message */
function tellSandbox(message) {
  if (sandbox.hasSubscribers) sandbox.publish(message());
}

/** Whether anybody hears of what the core tells without having been asked. */
function isCoreHeard() {
  return sandbox.hasSubscribers || connection.hasSubscribers;
}

/** What the core tells: of a sandbox, or of a connection that was refused. */
function tellOfCore(message) {
  const { event } = message;
  const to = event === 'created' || event === 'removed' ? sandbox : connection;
  if (to.hasSubscribers) to.publish(message);
}

exports.begin = begin;
exports.call = call;
exports.end = end;
exports.isCallHeard = isCallHeard;
exports.isCoreHeard = isCoreHeard;
exports.steps = steps;
exports.tellOfCore = tellOfCore;
exports.tellSandbox = tellSandbox;
exports.usage = usage;
