// Doors of the kernel that no tool needs, each tried by a program of raw system calls that the tool writes itself. What is
// asked of the kernel is harmless or impossible: what counts is whether the kernel thought about it. No call may rely on one
// before it for its harmlessness: refused a namespace of its own, root would mount in that of the machine.

const from = 'confined';
const layer = 'systemCalls';

/** EPERM, EACCES, ENOSYS: refused, or no such call. */
const REFUSED = [1, 13, 38];
/** That the call at this place was answered by something else than a refusal. */
const answered =
  (at = 0, ...more) =>
  ({ value }) =>
    Array.isArray(value) && ![...REFUSED, ...more].includes(-value[at]) && `the kernel answers ${value[at]}`;
const namespaces = ({ refused }) => refused === 'namespaces' && 'the server itself is refused them';
/** EPROTOTYPE and its kin, EAFNOSUPPORT: the kernel has none. */
const NO_SUCH_SOCKET = [91, 92, 93, 94, 97];
const noSuchSocket = ({ value }) => [13, ...NO_SUCH_SOCKET].includes(-value?.[0]) && 'there are no such sockets here';
const rootOnly = ({ root }) => !root && 'only root can anywhere';

export default [
  {
    id: 'syscalls/user-namespace',
    needs: namespaces,
    what: 'makes a user namespace, where it would be root',
    attempt: (_world, { syscalls }) => syscalls([['unshare', 0x10000000]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/mount-namespace',
    needs: namespaces,
    what: 'makes user and mount namespaces, where it may mount',
    // A file system of a kind that there is not.
    attempt: (_world, { syscalls }) =>
      syscalls([
        ['unshare', 0x10020000],
        ['mount', 'none', '.', 'no-such-kind', 0, 0],
      ]),
    escaped: answered(1),
  },
  {
    id: 'syscalls/clone-namespace',
    needs: namespaces,
    what: 'makes a user namespace by way of clone3',
    // clone3 without an exit signal, and a size that no kernel knows: E2BIG or EINVAL from a kernel that looks.
    attempt: (_world, { syscalls }) => syscalls([['clone3', { words: [0x10000000, 0, 0, 0, 17, 0, 0, 0] }, 7]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/enter-namespace',
    needs: namespaces,
    what: 'enters a namespace',
    attempt: (_world, { syscalls }) =>
      syscalls([
        ['open', '/proc/self/ns/user', 0],
        ['setns', { result: 0 }, 0x10000000],
      ]),
    escaped: answered(1),
    arch: 'x64',
  },
  {
    id: 'syscalls/mount',
    what: 'mounts a file system',
    needs: rootOnly,
    // Of a kind that there is not.
    attempt: (_world, { syscalls }) => syscalls([['mount', 'none', '/', 'no-such-kind', 0, 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/new-mount-interface',
    what: 'opens a file system by the newer way to mount',
    needs: rootOnly,
    attempt: (_world, { syscalls }) => syscalls([['fsopen', 'tmpfs', 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/change-root',
    what: 'changes its root folder',
    needs: rootOnly,
    attempt: (_world, { syscalls }) => syscalls([['chroot', '.']]),
    escaped: answered(),
  },
  {
    id: 'syscalls/device-node',
    what: 'makes a device node of the first disk',
    needs: rootOnly,
    // AT_FDCWD, S_IFBLK | 0600, 254:0
    attempt: (_world, { syscalls }) => syscalls([['mknodat', -100, 'disk', 0o60600, 254 * 256]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/open-by-handle',
    what: 'opens files by handle, past all folders: the way out of early containers',
    needs: rootOnly,
    attempt: (_world, { syscalls }) =>
      syscalls([['open_by_handle_at', -100, Buffer.from([8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]), 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/load-module',
    what: 'loads a module into the kernel',
    needs: rootOnly,
    attempt: (_world, { syscalls }) => syscalls([['init_module', Buffer.alloc(8), 8, '']]),
    escaped: answered(),
  },
  {
    id: 'syscalls/bpf',
    what: 'makes a BPF map',
    // BPF_MAP_CREATE of an array: key 4, value 4, one entry
    attempt: (_world, { syscalls }) =>
      syscalls([['bpf', 0, Buffer.from([2, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0]), 16]]),
    needs: rootOnly,
    escaped: answered(),
  },
  {
    id: 'syscalls/keyring',
    what: 'reaches the keyring of its session',
    attempt: (_world, { syscalls }) => syscalls([['keyctl', 0, -3, 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/performance-events',
    what: 'opens a performance counter',
    // Of no known kind.
    attempt: (_world, { syscalls }) => syscalls([['perf_event_open', Buffer.alloc(128), 0, -1, -1, 0xffff]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/user-page-faults',
    what: 'handles page faults itself, a help in exploits of the kernel',
    // UFFD_USER_MODE_ONLY
    attempt: (_world, { syscalls }) => syscalls([['userfaultfd', 1]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/io-uring',
    what: 'has the kernel act for it through a ring, past a filter of system calls',
    attempt: (_world, { syscalls }) => syscalls([['io_uring_setup', 1, Buffer.alloc(120)]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/file-notification',
    what: 'watches a whole file system',
    needs: rootOnly,
    // FAN_CLASS_CONTENT, FAN_UNLIMITED_QUEUE
    attempt: (_world, { syscalls }) => syscalls([['fanotify_init', 0x14, 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/kernel-log',
    what: 'reads the log of the kernel',
    needs: rootOnly,
    attempt: (_world, { syscalls }) => syscalls([['syslog', 10, 0, 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/host-name',
    what: 'changes the name of the machine',
    needs: rootOnly,
    // To one that is too long.
    attempt: (_world, { syscalls }) => syscalls([['sethostname', 'x', 1000]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/clock',
    what: 'sets the clock of the machine',
    needs: rootOnly,
    // ADJ_TICK, to a length that is none.
    attempt: (_world, { syscalls }) =>
      syscalls([['adjtimex', Buffer.concat([Buffer.from([0, 0x40]), Buffer.alloc(206)])]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/restart',
    what: 'restarts the machine',
    needs: rootOnly,
    // Without the numbers that say that it is meant.
    attempt: (_world, { syscalls }) => syscalls([['reboot', 0, 0, 0, 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/raw-packets',
    what: 'opens a socket for raw packets',
    needs: rootOnly,
    attempt: (_world, { syscalls }) => syscalls([['socket', 17, 3, 0x0300]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/hypervisor-socket',
    what: 'opens a socket to the hypervisor',
    attempt: (_world, { syscalls }) => syscalls([['socket', 40, 1, 0]]),
    // EAFNOSUPPORT: the kernel has none.
    escaped: answered(0, 97),
    lacking: ({ value }) => value?.[0] === -97 && 'the kernel has no such sockets',
  },
  {
    id: 'syscalls/crypto-socket',
    what: 'opens a socket to the cryptography of the kernel',
    attempt: (_world, { syscalls }) => syscalls([['socket', 38, 5, 0]]),
    escaped: answered(0, 97),
    lacking: ({ value }) => value?.[0] === -97 && 'the kernel has no such sockets',
  },
  {
    id: 'syscalls/lease',
    what: 'takes a lease on a file, which makes others wait who open it',
    // F_SETLEASE, F_WRLCK
    attempt: (_world, { syscalls }) =>
      syscalls([
        ['memfd_create', 'leased', 0],
        ['fcntl', { result: 0 }, 1024, 1],
      ]),
    escaped: answered(1),
    lacking: ({ value }) => value?.[1] === -22 && 'the kernel gives no leases on files in memory',
  },
  {
    id: 'syscalls/news-of-a-folder',
    what: 'has the kernel signal it when a folder changes, of which each notice is a queued signal of the user',
    // O_RDONLY; F_NOTIFY, DN_ACCESS
    attempt: (_world, { syscalls }) =>
      syscalls([
        ['open', '.', 0, 0],
        ['fcntl', { result: 0 }, 1026, 1],
      ]),
    arch: 'x64',
    escaped: answered(1),
    lacking: ({ value }) => value?.[1] === -22 && 'the kernel tells of no folders by signal',
  },
  {
    id: 'syscalls/take-off-the-mark',
    what: 'changes the limit by which its launcher would know it again',
    // RLIMIT_RTTIME, of which it lowers the hard one to nothing.
    attempt: (_world, { syscalls }) => syscalls([['prlimit64', 0, 15, Buffer.alloc(16), 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/bounding-set',
    what: 'has capabilities in the set that bounds those of what it starts',
    layer: 'capabilities',
    needs: ({ root, refused }) =>
      !root && refused === 'namespaces' && 'the kernel leaves it as it is, and the report says so',
    attempt: () => /CapBnd:\s*(\w+)/.exec(require('node:fs').readFileSync('/proc/self/status', 'utf8'))[1],
    escaped: ({ value }) => /[1-9a-f]/.test(`${value}`) && `it has ${value}`,
  },
  {
    id: 'syscalls/larger-pipe',
    what: 'takes pages for pipes that are counted by user',
    attempt: (_world, { syscalls }) => {
      const ends = Buffer.alloc(8);
      // F_SETPIPE_SZ
      return syscalls([
        ['pipe2', ends, 0],
        ['fcntl', { wordAt: ends }, 1031, 131072],
      ]);
    },
    escaped: answered(1),
  },
  {
    id: 'syscalls/child-of-the-parent',
    what: 'makes a child beside itself, which no limit of its own counts',
    // CLONE_PARENT | SIGCHLD
    attempt: (_world, { syscalls }) => syscalls([['clone', 0x8011, 0, 0, 0, 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/socket-mptcp',
    what: 'opens a socket of TCP over several ways',
    attempt: (_world, { syscalls }) => syscalls([['socket', 2, 1, 262]]),
    escaped: answered(0, ...NO_SUCH_SOCKET),
    lacking: noSuchSocket,
  },
  {
    id: 'syscalls/socket-udp-lite',
    what: 'opens a socket of UDP-Lite',
    attempt: (_world, { syscalls }) => syscalls([['socket', 2, 2, 136]]),
    escaped: answered(0, ...NO_SUCH_SOCKET),
    lacking: noSuchSocket,
  },
  {
    id: 'syscalls/socket-sctp',
    what: 'opens a socket of SCTP',
    attempt: (_world, { syscalls }) => syscalls([['socket', 2, 1, 132]]),
    escaped: answered(0, ...NO_SUCH_SOCKET),
    lacking: noSuchSocket,
  },
  {
    id: 'syscalls/socket-dccp',
    what: 'opens a socket of DCCP',
    attempt: (_world, { syscalls }) => syscalls([['socket', 2, 6, 33]]),
    escaped: answered(0, ...NO_SUCH_SOCKET),
    lacking: noSuchSocket,
  },
  {
    id: 'syscalls/socket-ping',
    what: 'opens a socket of the control messages of the Internet',
    attempt: (_world, { syscalls }) => syscalls([['socket', 2, 2, 1]]),
    escaped: answered(0, ...NO_SUCH_SOCKET),
    lacking: noSuchSocket,
  },
  {
    id: 'syscalls/socket-tunnel',
    what: 'opens a socket of tunnels',
    attempt: (_world, { syscalls }) => syscalls([['socket', 2, 2, 115]]),
    escaped: answered(0, ...NO_SUCH_SOCKET),
    lacking: noSuchSocket,
  },
  {
    id: 'syscalls/socket-mptcp-of-ipv6',
    what: 'opens a socket of TCP over several ways, by IPv6',
    attempt: (_world, { syscalls }) => syscalls([['socket', 10, 0x80001, 262]]),
    escaped: answered(0, ...NO_SUCH_SOCKET),
    lacking: noSuchSocket,
  },
  {
    id: 'syscalls/asynchronous-requests',
    what: 'takes from the requests to disks that the whole machine shares',
    attempt: (_world, { syscalls }) => syscalls([['io_setup', 1, Buffer.alloc(8)]]),
    escaped: answered(),
    lacking: ({ value }) => value?.[0] === -38 && 'the kernel has no such requests',
  },
  {
    id: 'syscalls/landlock-rules',
    what: 'makes rules of Landlock, which take memory that no limit of the call counts',
    // LANDLOCK_ACCESS_FS_EXECUTE
    attempt: (_world, { syscalls }) => syscalls([['landlock_create_ruleset', { words: [1] }, 8, 0]]),
    escaped: answered(),
    lacking: ({ value }) => [-38, -95].includes(value?.[0]) && 'the kernel has no Landlock',
    arch: 'x64',
  },
  {
    id: 'syscalls/attributes',
    what: 'keeps bytes in attributes of a file, which count to no limit of the call',
    attempt: (_world, { syscalls }) => {
      require('node:fs').writeFileSync('attributed', '');
      return syscalls([
        ['open', 'attributed', 2],
        ['fsetxattr', { result: 0 }, 'user.kept', Buffer.alloc(512), 512, 0],
      ]);
    },
    // EOPNOTSUPP
    escaped: answered(1, 95),
    lacking: ({ value }) => value?.[1] === -95 && 'the file system has no attributes',
    arch: 'x64',
  },
  {
    id: 'syscalls/fixed-addresses',
    what: 'has its programs run at addresses that are no secret',
    // ADDR_NO_RANDOMIZE
    attempt: (_world, { syscalls }) => syscalls([['personality', 0x40000]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/handle-of-a-file',
    what: 'asks for the handle of a folder, by which it could be opened past all others',
    attempt: (_world, { syscalls }) => {
      const handle = Buffer.alloc(136);
      handle.writeUInt32LE(128);
      return syscalls([['name_to_handle_at', -100, '/', handle, Buffer.alloc(8), 0]]);
    },
    escaped: answered(),
    lacking: ({ value }) => value?.[0] === -95 && 'the file system has no handles',
  },
  {
    id: 'syscalls/secret-memory',
    what: 'takes memory that nobody can look at',
    attempt: (_world, { syscalls }) => syscalls([['memfd_secret', 0]]),
    escaped: answered(),
    lacking: ({ value }) => value?.[0] === -38 && 'the kernel has no such memory',
  },
  {
    id: 'syscalls/instances-of-the-user',
    what: 'takes an instance of inotify, of which the user of the server has few',
    needs: ({ root }) => root && 'functions have users of their own, whose instances are theirs',
    attempt: (_world, { syscalls }) => syscalls([['inotify_init1', 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/queued-signals',
    what: 'may queue so many signals that the server can queue none',
    from: 'base',
    layer: 'limits',
    attempt: () => /Max pending signals +(\w+)/.exec(require('node:fs').readFileSync('/proc/self/limits', 'utf8'))[1],
    escaped: ({ value }) => !(Number(value) <= 256) && `it may queue ${value}`,
  },
  {
    id: 'syscalls/unix-socket',
    what: 'makes a socket that can turn to any daemon of the machine',
    layer: 'systemCalls',
    attempt: (_world, { syscalls }) => syscalls([['socket', 1, 1, 0]]),
    escaped: answered(),
  },
  {
    id: 'syscalls/other-architecture',
    what: 'makes a user namespace by the 32-bit way into the kernel, where calls have other numbers',
    arch: 'x64',
    attempt: (_world, { syscalls }) => syscalls([['i386:310', 0x10000000]]),
    escaped: answered(),
    lacking: ({ value }) => value?.killed && 'the kernel runs no 32-bit programs',
  },
  {
    id: 'syscalls/become-root',
    what: 'becomes root again',
    layer: 'privateUser',
    needs: rootOnly,
    attempt: () => {
      process.setuid(0);
      return process.getuid();
    },
    escaped: ({ value }) => value === 0 && 'it is root',
  },
  {
    id: 'syscalls/capabilities',
    what: 'has capabilities, in force or to be had',
    layer: 'capabilities',
    needs: rootOnly,
    attempt: () =>
      require('node:fs')
        .readFileSync('/proc/self/status', 'utf8')
        .match(/^Cap(Prm|Eff|Bnd|Amb):\s+\w+/gm),
    escaped: ({ value }) => value?.some((line) => !/\s0+$/.test(line)) && value.join(', '),
  },
  {
    id: 'syscalls/new-privileges',
    what: 'gains privileges by a program that gives them',
    layer: 'noNewPrivileges',
    attempt: () => /NoNewPrivs:\s+(\d)/.exec(require('node:fs').readFileSync('/proc/self/status', 'utf8'))[1],
    escaped: ({ value }) => value === '0' && 'programs may give it privileges',
    needs: ({ noNewPrivileges }) => noNewPrivileges && 'the host itself cannot',
  },
].map((one) => ({ from, layer, ...one }));
