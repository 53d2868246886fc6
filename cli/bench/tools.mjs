// The function tools that are measured, each with the check of its answer: a wrong answer is no measurement.
//
// All are block-bodied arrows, the one form that the original runs too.

/** Exact versions, so that two runs months apart load the same code. */
const PACKAGES = { lodash: '4.18.1', zod: '4.6.7', axios: '1.21.1' };

const CPU_ROUNDS = 200_000_000;
const ALLOCATION_ROUNDS = 60;

/** As a bundle is: much that few calls run. */
const BUNDLE_FUNCTIONS = 500;
const oneOfMany = (at) => `
  function helper${at}(a, b) {
    const found = { a, b, n: ${at} };
    if (a > b) return Object.keys(found).map((key) => found[key] + ${at});
    for (let i = 0; i < 10; i++) found['k' + i] = a * i;
    return JSON.stringify(found);
  }`;

const plusOne = (args, answer) => answer === args.n + 1;

export const TOOLS = {
  trivial: {
    code: '({ n }) => { return n + 1; }',
    right: plusOne,
  },
  packages: {
    code: `({ n }) => {
      const _ = require('lodash');
      const { z } = require('zod');
      const axios = require('axios');
      const Order = z.object({ id: z.number().int(), items: z.array(z.object({ price: z.number() })) });
      const order = Order.parse({ id: n, items: [{ price: n }, { price: 2 }] });
      const url = axios.getUri({ url: '/orders', params: { id: order.id } });
      return { total: _.sumBy(order.items, 'price'), url };
    }`,
    dependencies: PACKAGES,
    right: ({ n }, answer) => answer?.total === n + 2 && answer.url === `/orders?id=${n}`,
  },
  fetching: {
    code: `async ({ n, url }) => {
      const response = await fetch(url + '?n=' + n);
      return (await response.json()).n + 1;
    }`,
    right: plusOne,
  },
  /** Connects, one after the other or all at once, and says how long each took. */
  connecting: {
    code: `async ({ n, port, connections, atOnce }) => {
      const { connect } = require('node:net');
      const one = () => new Promise((done, fail) => {
        const socket = connect(port, '127.0.0.1', () => { socket.resetAndDestroy(); done(); });
        socket.on('error', fail);
      });
      const began = performance.now();
      if (atOnce) await Promise.all(Array.from({ length: connections }, one));
      else for (let i = 0; i < connections; i++) await one();
      return { n: n + 1, ms: (performance.now() - began) / connections };
    }`,
    right: ({ n }, answer) => answer?.n === n + 1 && answer.ms > 0,
  },
  // In flight for a while, so that its memory can be looked at.
  waiting: {
    code: `async ({ n, holdMs }) => {
      await new Promise((done) => setTimeout(done, holdMs));
      return n + 1;
    }`,
    right: plusOne,
  },
  fetchedAndWaiting: {
    code: `async ({ n, url, holdMs }) => {
      const response = await fetch(url + '?n=' + n);
      const answer = (await response.json()).n + 1;
      await new Promise((done) => setTimeout(done, holdMs));
      return answer;
    }`,
    right: plusOne,
  },
  /** Calls a function of its host again and again. */
  conversing: {
    code: `async ({ n, rounds }, { host }) => {
      let at = n;
      for (let round = 0; round < rounds; round++) at = await host.next(at);
      return at;
    }`,
    right: ({ n, rounds }, answer) => answer === n + rounds,
  },
  /** Of 116 kB. */
  bundle: {
    code: `({ n }) => {${Array.from({ length: BUNDLE_FUNCTIONS }, (_, at) => oneOfMany(at)).join('')}
      return helper1(n + 1, 0)[0];
    }`,
    right: ({ n }, answer) => answer === n + 2,
  },
  // The two below time themselves, from inside: what is asked is how fast code runs, not how fast it starts.
  computing: {
    code: `({ n, rounds }) => {
      const began = performance.now();
      let state = n | 1;
      let checksum = 0;
      for (let round = 0; round < rounds; round++) {
        state = (Math.imul(state, 1664525) + 1013904223) | 0;
        checksum = (checksum + (state >>> 16) % 1009) | 0;
      }
      return { checksum, ms: performance.now() - began };
    }`,
    args: { rounds: CPU_ROUNDS },
    right: timedItself,
  },
  allocating: {
    code: `({ n, rounds }) => {
      const began = performance.now();
      let checksum = n;
      for (let round = 0; round < rounds; round++) {
        const rows = Array.from({ length: 4000 }, (_, id) => ({ id, key: 'k' + ((id * 7919 + round) % 4000), tags: [id, round] }));
        rows.sort((one, other) => (one.key < other.key ? -1 : one.key > other.key ? 1 : 0));
        const copy = JSON.parse(JSON.stringify(rows));
        const byKey = new Map(copy.map((row) => [row.key, row]));
        checksum = (checksum * 31 + byKey.get('k' + round).id + copy[round].tags[0]) | 0;
      }
      return { checksum, ms: performance.now() - began };
    }`,
    args: { rounds: ALLOCATION_ROUNDS },
    right: timedItself,
  },
};

function timedItself(_args, answer) {
  return Number.isInteger(answer?.checksum) && answer.ms > 0;
}

/**
 * A tool as executors take it.
 * @param {string} name one of `TOOLS`
 * @param {{ vcpus?: number, dependencies?: Record<string, string>, variant?: number }} over texts of two variants are two texts
 */
export function configOf(name, { vcpus = 4, dependencies, variant } = {}) {
  const { code, dependencies: own = {} } = TOOLS[name];
  return {
    description: `bench: ${name}`,
    inputSchema: {},
    executeCode: variant === undefined ? code : `${code}\n// ${variant}`,
    dependencies: dependencies ?? own,
    sandboxConfig: { provider: 'native', runtime: 'node22', timeout: 60_000, vcpus },
  };
}
