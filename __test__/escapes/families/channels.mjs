// Forging what another call answers, flooding what the host reads, answers that would harm whoever takes them.

const from = 'base';
const layer = 'channels';
const tooMuch =
  (...names) =>
  ({ sizes, value }) =>
    names.reduce((sum, name) => sum + (sizes[name] ?? 0), 0) > 16e6
      ? `more than 16 MB got through`
      : typeof value === 'string' && value === 'all written' && 'the call was let go on';

export default [
  {
    id: 'channels/forge-sibling',
    what: 'writes an answer into the channel of another call',
    uses: ['sibling'],
    attempt: (world, { each, frame }) => {
      const fs = require('node:fs');
      const forge = (pid) => {
        const links = fs
          .readdirSync(`/proc/${pid}/fd`)
          .filter((fd) => Number(fd) >= 3 && Number(fd) !== world.fd)
          .map((fd) => each([fd], () => fs.readlinkSync(`/proc/${pid}/fd/${fd}`))[0]);
        // Not that by which Node wakes its own threads: to write there kills, and forges nothing.
        const own = ({ gave }) => links.filter((one) => one.gave === gave).length > 1;
        return each(
          links.filter((link) => !own(link)).map(({ value }) => `/proc/${pid}/fd/${value}`),
          (path) => {
            const opened = fs.openSync(path, fs.constants.O_WRONLY | fs.constants.O_APPEND | fs.constants.O_NONBLOCK);
            fs.writeSync(opened, frame(18, '{"answer":"forged"}'));
            fs.closeSync(opened);
            return 'written';
          }
        );
      };
      return each(world.siblingPids, forge);
    },
    // What the sibling answers in the end is judged by the suite, for every attempt that has one.
    escaped: (_outcome, stage) => stage.settleAll(),
  },
  {
    id: 'channels/forge-by-own-descriptors',
    what: 'writes an answer into every descriptor it has',
    uses: ['sibling'],
    attempt: (world, { each, frame }) => {
      const fs = require('node:fs');
      const links = fs
        .readdirSync('/proc/self/fd')
        .map(Number)
        .filter((fd) => fd > 3 && fd !== world.fd)
        .sort((a, b) => a - b)
        .map((fd) => each([fd], () => fs.readlinkSync(`/proc/self/fd/${fd}`))[0]);
      // Not what would only be the end of itself: that by which Node wakes its own threads.
      const own = ({ gave }) =>
        !gave || gave.startsWith('anon_inode') || links.filter((one) => one.gave === gave).length > 1;
      return each(
        links.filter((link) => !own(link)).map(({ value }) => value),
        (fd) => fs.writeSync(fd, frame(18, '{"answer":"forged"}'))
      );
    },
    // Outside, a process that is handed another's channel: the suite hands it on as descriptor 4.
    handsOn: 'sibling',
    escaped: (_outcome, stage) => stage.settleAll(),
  },
  {
    id: 'channels/spoil-sibling',
    what: 'writes into the pipes by which another call wakes its own threads',
    from: 'confined',
    layer: 'files',
    uses: ['sibling'],
    attempt: (world, { each }) => {
      const fs = require('node:fs');
      const spoil = (pid) =>
        each(
          fs.readdirSync(`/proc/${pid}/fd`).filter((fd) => Number(fd) > 3 && Number(fd) !== world.fd),
          (fd) => {
            const opened = fs.openSync(`/proc/${pid}/fd/${fd}`, fs.constants.O_WRONLY | fs.constants.O_NONBLOCK);
            fs.writeSync(opened, Buffer.alloc(64, 255));
            fs.closeSync(opened);
          }
        );
      return each(world.siblingPids, spoil);
    },
    escaped: (_outcome, stage) => stage.settleAll(),
  },
  {
    id: 'channels/forge-output',
    what: 'writes to the output of another call',
    from: 'confined',
    layer: 'files',
    uses: ['sibling'],
    attempt: (world, { each }) => {
      const fs = require('node:fs');
      return each(world.siblingPids, (pid) => {
        const opened = fs.openSync(`/proc/${pid}/fd/1`, fs.constants.O_WRONLY | fs.constants.O_APPEND);
        fs.writeSync(opened, `\n${world.marker}\n`);
        fs.closeSync(opened);
      });
    },
    escaped: (_outcome, stage, world) =>
      stage.victims.sibling.printed().includes(world.marker) && "another call's output was written",
  },
  {
    id: 'channels/flood-stdout',
    what: 'prints without end',
    attempt: () => {
      for (let at = 0; at < 48; at++) require('node:fs').writeSync(1, Buffer.alloc(1e6, 120));
      return 'all written';
    },
    escaped: tooMuch('stdout', 'out'),
  },
  {
    id: 'channels/flood-stderr-by-child',
    what: 'has a child print without end',
    attempt: (world) =>
      new Promise((done) => {
        const code = 'for (let at = 0; at < 48; at++) require("fs").writeSync(2, Buffer.alloc(1e6, 120))';
        require('node:child_process')
          .spawn(process.execPath, ['-e', code, world.marker], { stdio: 'inherit' })
          .on('close', (status) => done(status === 0 ? 'all written' : 'not all'));
      }),
    escaped: tooMuch('stderr', 'err'),
  },
  {
    id: 'channels/flood-channel',
    what: 'sends frames without end',
    attempt: (_world, { frame }) => {
      const report = frame(22, JSON.stringify({ text: 'x'.repeat(900_000) }));
      for (let at = 0; at < 64; at++) require('node:fs').writeSync(3, report);
      return 'all written';
    },
    // The host reads them and keeps one: what counts is what they cost it.
    escaped: ({ sizes }, stage) => (stage.real ? stage.grown(48) : sizes.answer > 48e6 && 'all of it is kept'),
  },
  {
    id: 'channels/huge-frame',
    what: 'announces a frame of four gigabytes and sends 64 MB of it',
    attempt: () => {
      const fs = require('node:fs');
      fs.writeSync(3, Buffer.from([255, 255, 255, 255, 18]));
      for (let at = 0; at < 64; at++) fs.writeSync(3, Buffer.alloc(1e6, 120));
      return 'all written';
    },
    escaped: ({ sizes }, stage) => (stage.real ? stage.grown(48) : sizes.answer > 48e6 && 'all of it is kept'),
  },
  {
    id: 'channels/many-small-frames',
    what: 'sends a million empty frames',
    attempt: (_world, { frame }) => {
      const many = Buffer.concat(Array.from({ length: 10_000 }, () => frame(16, '')));
      for (let at = 0; at < 200; at++) require('node:fs').writeSync(3, many);
      return 'all written';
    },
    escaped: ({ sizes }, stage) => (stage.real ? stage.grown(48) : sizes.answer > 8e6 && 'all of it is kept'),
  },
  {
    id: 'channels/result-with-proto',
    what: 'returns members that spoil whoever merges them',
    attempt: () => JSON.parse('{"__proto__":{"spoilt":1},"constructor":{"prototype":{"spoilt":1}}}'),
    naive: 'merge',
    escaped: (_outcome, stage) => stage.spoilt(),
  },
  {
    id: 'channels/error-with-proto',
    what: 'throws an error whose fields spoil whoever copies them',
    attempt: (_world, { frame }) => {
      // As the script of a worker would leave such fields out, the frame is written by hand.
      const fields = '{"__proto__":{"spoilt":1},"constructor":{"prototype":{"spoilt":1}},"stack":"x","toString":1}';
      require('node:fs').writeSync(
        3,
        frame(
          19,
          `{"text":"x","name":"__proto__","message":"x","fields":${fields},"cause":{"text":"y","name":"E","message":"y","fields":${fields}}}`
        )
      );
      return 'written';
    },
    control: () =>
      JSON.parse('{"__proto__":{"spoilt":1},"constructor":{"prototype":{"spoilt":1}},"stack":"x","toString":1}'),
    naive: 'merge',
    escaped: ({ error }, stage) =>
      stage.spoilt() ||
      (error?.cause !== undefined &&
        Object.getPrototypeOf(error.cause)?.spoilt !== undefined &&
        "the error's prototype is spoilt"),
  },
  {
    id: 'channels/deep-result',
    what: 'returns a value that nests 200 000 deep',
    attempt: (_world, { frame }) => {
      const text = '['.repeat(200_000) + ']'.repeat(200_000);
      require('node:fs').writeSync(3, frame(18, text));
    },
    naive: 'recurse',
    // The host is there to say so, and its next call works: the suite looks at both.
    escaped: (_outcome, stage) => stage.overflown,
  },
  {
    id: 'channels/deep-error',
    what: 'throws an error whose causes nest 50 000 deep',
    attempt: (_world, { frame }) => {
      const text = `${'{"text":"x","cause":'.repeat(20_000)}{"text":"x"}${'}'.repeat(20_000)}`;
      require('node:fs').writeSync(3, frame(19, text));
      return JSON.parse('['.repeat(100_000) + ']'.repeat(100_000)).length;
    },
    control: (_world, { frame }) => {
      require('node:fs').writeSync(
        3,
        frame(18, `${'{"text":"x","cause":'.repeat(200_000)}{"text":"x"}${'}'.repeat(200_000)}`)
      );
    },
    naive: 'recurse',
    escaped: (_outcome, stage) => stage.overflown,
  },
].map((one) => ({ from, layer, ...one }));
