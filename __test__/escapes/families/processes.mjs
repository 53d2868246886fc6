// Signalling, tracing, debugging and slowing down what is not the call's: the host, what starts calls, other calls.

const from = 'confined';

const harm =
  (...names) =>
  (_outcome, stage) =>
    stage.harm(...names);
/** Errors by which the kernel says that a process is out of reach, or that there is no such call. */
const REFUSED = [1, 3, 13, 38];
/** That the call at this place was answered by something else than a refusal. */
const reached =
  (at = 0, ...more) =>
  ({ value }) =>
    Array.isArray(value) &&
    value.some(({ gave }) => Array.isArray(gave) && ![...REFUSED, ...more].includes(-gave[at])) &&
    'the process is within reach';

/** That one of several signals was not refused. */
const wasSent = ({ value }) => Array.isArray(value) && value.some(({ failed }) => failed === undefined);

export default [
  {
    id: 'processes/kill-sibling',
    what: 'kills another call',
    layer: 'signals',
    uses: ['sibling'],
    attempt: (world, { each }) => each(world.siblingPids, (pid) => process.kill(pid, 'SIGKILL')),
    escaped: harm('sibling'),
  },
  {
    id: 'processes/kill-stranger',
    what: "kills another tenant's call",
    layer: 'signals',
    uses: ['stranger'],
    attempt: (world, { each }) => each(world.strangerPids, (pid) => process.kill(pid, 'SIGKILL')),
    escaped: harm('stranger'),
  },
  {
    id: 'processes/see-neighbour',
    what: 'finds out that another call without packages is there',
    from: 'isolated',
    layer: 'pidNamespace',
    uses: ['neighbour'],
    attempt: (world, { each }) => each(world.neighbourPids, (pid) => process.kill(pid, 0)),
    // What may not be signalled, but is there, answers otherwise.
    escaped: ({ value }) => value?.some(({ failed }) => failed !== 'ESRCH') && 'the process is seen',
  },
  {
    id: 'processes/kill-neighbour',
    what: 'kills another call without packages',
    layer: ['signals', 'pidNamespace'],
    uses: ['neighbour'],
    attempt: (world, { each }) => each(world.neighbourPids, (pid) => process.kill(pid, 'SIGKILL')),
    escaped: harm('neighbour'),
  },
  {
    id: 'processes/kill-everybody',
    what: 'kills all that it can reach at once',
    layer: ['signals', 'pidNamespace'],
    uses: ['neighbour'],
    attempt: () => process.kill(-1, 'SIGKILL'),
    // Outside, that would be everybody.
    control: (world, { each }) => each(world.neighbourPids, (pid) => process.kill(pid, 'SIGKILL')),
    escaped: harm('neighbour', 'host', 'launcher'),
  },
  {
    id: 'processes/trace-neighbour',
    what: 'traces another call without packages',
    layer: ['systemCalls', 'pidNamespace'],
    uses: ['neighbour'],
    attempt: (world, { each, syscalls }) =>
      each(world.neighbourPids, (pid) => syscalls([['ptrace', 0x4206, pid, 0, 0]])),
    escaped: reached(),
  },
  {
    id: 'processes/stop-sibling',
    what: 'stops another call',
    layer: 'signals',
    uses: ['sibling'],
    attempt: (world, { each }) => each(world.siblingPids, (pid) => process.kill(pid, 'SIGSTOP')),
    escaped: harm('sibling'),
  },
  {
    id: 'processes/kill-by-thread',
    what: 'kills another call from a thread of its own',
    layer: 'signals',
    uses: ['sibling'],
    attempt: (world) =>
      new Promise((done, fail) => {
        const code =
          'for (const pid of require("worker_threads").workerData) try { process.kill(pid, "SIGKILL"); } catch {}';
        const { Worker } = require('node:worker_threads');
        const pids = world.siblingPids;
        new Worker(code, { eval: true, workerData: pids }).on('exit', done).on('error', fail);
      }),
    escaped: harm('sibling'),
  },
  {
    id: 'processes/kill-zygote',
    what: 'kills the processes that calls are forked from',
    layer: 'signals',
    attempt: (world, { each }) => each(world.zygotePids, (pid) => process.kill(pid, 'SIGKILL')),
    // A zygote may also end because it is replaced.
    escaped: (outcome, stage) => wasSent(outcome) && stage.harm('zygote'),
    needs: ({ rung }) => rung && rung !== 'zygote' && 'there are none on this rung',
  },
  {
    id: 'processes/kill-launcher',
    what: 'kills the process that starts all others',
    layer: 'signals',
    attempt: (world, { each }) => each(world.launcherPids, (pid) => process.kill(pid, 'SIGKILL')),
    escaped: harm('launcher'),
  },
  {
    id: 'processes/stop-launcher',
    what: 'stops the process that starts all others',
    layer: 'signals',
    attempt: (world, { each }) => each(world.launcherPids, (pid) => process.kill(pid, 'SIGSTOP')),
    escaped: harm('launcher'),
  },
  {
    id: 'processes/debug-host',
    what: 'has the host open its debugger',
    layer: 'signals',
    attempt: async (world, { each }) => {
      const told = each(world.hostPids, (pid) => process.kill(pid, 'SIGUSR1'));
      await new Promise((done) => setTimeout(done, 300));
      return told;
    },
    escaped: (_outcome, stage) =>
      stage.lasts(() => !stage.harm('host')).then((unharmed) => !unharmed && stage.harm('host')),
    // Nothing announces that nothing happens: a shorter look than for what has to end.
    patienceMs: 500,
  },
  {
    id: 'processes/debug-sibling',
    what: 'has another call open its debugger',
    layer: 'signals',
    uses: ['sibling'],
    attempt: async (world, { each }) => {
      const told = each(world.siblingPids, (pid) => process.kill(pid, 'SIGUSR1'));
      await new Promise((done) => setTimeout(done, 300));
      return told;
    },
    escaped: (_outcome, stage) =>
      stage.lasts(() => !stage.harm('sibling')).then((unharmed) => !unharmed && stage.harm('sibling')),
    patienceMs: 500,
  },
  {
    id: 'processes/signal-by-pidfd',
    what: 'signals the host through a process descriptor',
    layer: 'signals',
    // Signal 0 asks whether one could.
    attempt: (world, { each, syscalls }) =>
      each(world.hostPids, (pid) =>
        syscalls([
          ['pidfd_open', pid, 0],
          ['pidfd_send_signal', { result: 0 }, 0, 0, 0],
        ])
      ),
    // Of a descriptor that could not be had, the kernel says that it is none.
    escaped: reached(1, 9),
  },
  {
    id: 'processes/signal-by-thread-id',
    what: 'signals the host by the number of its thread',
    layer: 'signals',
    attempt: (world, { each, syscalls }) => each(world.hostPids, (pid) => syscalls([['tgkill', pid, pid, 0]])),
    escaped: reached(),
  },
  {
    id: 'processes/signal-by-descriptor-owner',
    what: 'has the kernel signal the host when a pipe of its own is written to',
    layer: 'signals',
    // pipe2(O_NONBLOCK), F_SETOWN, F_SETSIG SIGUSR1, F_SETFL O_ASYNC, write
    attempt: async (world, { each, syscalls }) => {
      const ends = Buffer.alloc(8);
      const told = each(world.hostPids, (pid) =>
        syscalls([
          ['pipe2', ends, 0o4000],
          ['fcntl', { wordAt: ends }, 8, pid],
          ['fcntl', { wordAt: ends }, 10, 10],
          ['fcntl', { wordAt: ends }, 4, 0o20000],
          // The writing end is the next number.
          ['write', 4, 'x', 1],
        ])
      );
      await new Promise((done) => setTimeout(done, 300));
      return told;
    },
    escaped: (_outcome, stage) =>
      stage.lasts(() => !stage.harm('host')).then((unharmed) => !unharmed && stage.harm('host')),
    patienceMs: 500,
  },
  {
    id: 'processes/trace-host',
    what: 'attaches to the host as its tracer',
    layer: 'systemCalls',
    // PTRACE_SEIZE: the tracer's end lets go again, without a stop.
    attempt: (world, { each, syscalls }) => each(world.hostPids, (pid) => syscalls([['ptrace', 0x4206, pid, 0, 0]])),
    escaped: reached(),
  },
  {
    id: 'processes/trace-sibling',
    what: 'attaches to another call as its tracer',
    layer: 'systemCalls',
    uses: ['sibling'],
    attempt: (world, { each, syscalls }) => each(world.siblingPids, (pid) => syscalls([['ptrace', 0x4206, pid, 0, 0]])),
    escaped: reached(),
  },
  {
    id: 'processes/trace-zygote',
    what: 'attaches to what calls are forked from',
    layer: 'systemCalls',
    attempt: (world, { each, syscalls }) =>
      each([...world.zygotePids, ...world.launcherPids], (pid) => syscalls([['ptrace', 0x4206, pid, 0, 0]])),
    escaped: reached(),
  },
  {
    id: 'processes/read-memory',
    what: "reads the host's memory",
    layer: 'systemCalls',
    // Of an address that is not mapped: who may not read at all is told so before.
    attempt: (world, { each, syscalls }) =>
      each(world.hostPids, (pid) =>
        syscalls([['process_vm_readv', pid, { words: [Buffer.alloc(8), 8] }, 1, { words: [8, 8] }, 1, 0]])
      ),
    escaped: reached(),
  },
  {
    id: 'processes/write-memory',
    what: "writes another call's memory",
    layer: 'systemCalls',
    uses: ['sibling'],
    attempt: (world, { each, syscalls }) =>
      each(world.siblingPids, (pid) =>
        syscalls([['process_vm_writev', pid, { words: [Buffer.alloc(8), 8] }, 1, { words: [8, 8] }, 1, 0]])
      ),
    escaped: reached(),
  },
  {
    id: 'processes/take-descriptor',
    what: "takes a descriptor of the host's",
    layer: 'systemCalls',
    attempt: (world, { each, syscalls }) =>
      each(world.hostPids, (pid) =>
        syscalls([
          ['pidfd_open', pid, 0],
          ['pidfd_getfd', { result: 0 }, world.fd, 0],
        ])
      ),
    escaped: reached(1, 9),
  },
  {
    id: 'processes/take-channel',
    what: 'takes the channel of another call, to answer in its place',
    layer: 'systemCalls',
    uses: ['sibling'],
    attempt: (world, { each, frame, syscalls }) => {
      const forged = frame(18, '"forged"');
      return each(world.siblingPids, (pid) =>
        syscalls([
          ['pidfd_open', pid, 0],
          ['pidfd_getfd', { result: 0 }, 3, 0],
          ['write', { result: 1 }, forged, forged.length],
        ])
      );
    },
    escaped: (_outcome, stage) => stage.settleAll(),
  },
  {
    id: 'processes/compare-resources',
    what: 'compares what it and the host have, a way to learn kernel addresses',
    layer: 'systemCalls',
    attempt: (world, { each, syscalls }) => each(world.hostPids, (pid) => syscalls([['kcmp', pid, pid, 1, 0, 0]])),
    escaped: reached(),
  },
  {
    id: 'processes/limit-host',
    what: "changes the host's resource limits",
    layer: 'systemCalls',
    // RLIMIT_CORE, to what it is
    attempt: (world, { each, syscalls }) => {
      const limit = Buffer.alloc(16);
      return each(world.hostPids, (pid) =>
        syscalls([
          ['prlimit64', pid, 4, 0, limit],
          ['prlimit64', pid, 4, limit, 0],
        ])
      );
    },
    escaped: reached(1),
  },
  {
    id: 'processes/pin-host',
    what: 'says which processor the host may run on',
    layer: 'systemCalls',
    // A mask of no processors: refused as a value only where the process is within reach.
    attempt: (world, { each, syscalls }) =>
      each(world.hostPids, (pid) => syscalls([['sched_setaffinity', pid, 8, Buffer.alloc(8)]])),
    escaped: reached(),
  },
  {
    id: 'processes/slow-host',
    what: 'lowers the priority of the host',
    layer: 'systemCalls',
    // To what it is.
    attempt: (world, { each, syscalls }) =>
      each(world.hostPids, (pid) => syscalls([['setpriority', 0, pid, require('node:os').getPriority(pid)]])),
    escaped: reached(),
  },
  {
    id: 'processes/slow-user',
    what: 'lowers the priority of all processes of the user, the host among them',
    layer: 'systemCalls',
    needs: ({ root }) => root && "the kernel's own threads are root's",
    // PRIO_USER, the caller's, to what it is
    attempt: (_world, { each, syscalls }) =>
      each([0], () => syscalls([['setpriority', 2, 0, require('node:os').getPriority()]])),
    escaped: reached(),
  },
  {
    id: 'processes/io-priority-of-user',
    what: 'changes the priority at the disks of all processes of the user',
    layer: 'systemCalls',
    needs: ({ root }) => root && "the kernel's own threads are root's",
    // IOPRIO_WHO_USER, class none
    attempt: (_world, { each, syscalls }) => each([process.getuid()], (uid) => syscalls([['ioprio_set', 3, uid, 0]])),
    escaped: reached(),
  },
  {
    id: 'processes/io-priority-of-host',
    what: "changes the host's priority at its disks",
    layer: 'systemCalls',
    // IOPRIO_WHO_PROCESS, class none
    attempt: (world, { each, syscalls }) => each(world.hostPids, (pid) => syscalls([['ioprio_set', 1, pid, 0]])),
    escaped: reached(),
  },
].map((one) => ({ from, ...one }));
