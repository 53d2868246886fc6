// 1,500 mixed calls of many callers: every promise settles once, with its own answer; afterwards nothing is left. `npm run soak` is the
// long one.

import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { test } from 'node:test';
import { ownWorld } from './helpers.mjs';
import { Load, packagesOf } from './load.mjs';
import { useRegistry } from './registry.mjs';

const CALLS = process.env.NSE_TEST_FULL ? 10_000 : 1500;
const CALLERS = 64;
const SETS = 5;

test('many callers', { timeout: 1_200_000 }, async (t) => {
  const world = ownWorld();
  // Waiting behind 63 others on a slow machine is not what is tested here.
  process.env.AGENTS_FUNCTION_TOOL_SANDBOX_QUEUE_WAIT_TIMEOUT_MS = '600000';
  const registry = await useRegistry(packagesOf(SETS));
  const { perSecond } = await new Load({ world, calls: CALLS, callers: CALLERS, sets: SETS }).run();
  t.diagnostic(`${Math.round(perSecond)} calls a second`);
  assert.ok(readdirSync(world.tmp).length <= 1, 'at most the store');
  await registry.close();
});
