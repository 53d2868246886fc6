'use strict';

// `native-sandbox-executor/conformance`: what any provider can be held to. See `docs/PROVIDERS.md`.

exports.conformanceTests = require('./lib/conformance.js').conformanceTests;
