'use strict';

// The public surface. `exports.X = …` is what lets Node's lexer offer these names to `import { X }`: one file, one
// state, whichever way it is loaded. Nothing here touches the addon; the first call does.

exports.SandboxExecutorFactory = require('./lib/factory.js').SandboxExecutorFactory;
exports.NativeSandboxExecutor = require('./lib/native-executor.js').NativeSandboxExecutor;
exports.VercelSandboxExecutor = require('./lib/vercel-executor.js').VercelSandboxExecutor;
exports.SandboxError = require('./lib/errors.js').SandboxError;
exports.describeFunctions = require('./lib/describe.js').describeFunctions;
exports.gracefulShutdown = require('./lib/shutdown.js').gracefulShutdown;
exports.isolationReport = require('./lib/native-executor.js').isolationReport;
exports.registerProvider = require('./lib/providers.js').registerProvider;
exports.setLogger = require('./lib/logger.js').setLogger;
exports.shutdown = require('./lib/shutdown.js').shutdown;
exports.swapReport = require('./lib/swap.js').swapReport;
