// Connecting where the option `network` does not allow it. All addresses are this machine's own: outside, each attempt reaches the kernel,
// which connects or says that nobody listens; inside, the host says no before any packet.

const from = 'confined';
const layer = 'networkRules';

/** Nothing of this machine's. */
const INTERNET = { network: 'internet' };
/** One port that nobody listens at, so that there is something to hide behind. */
const ONE_PORT = { network: { allow: ['127.0.0.1:9'] } };

/** Why the address never came to the kernel: the host, the filter, or whoever looks up names. */
const REFUSED = ['EACCES', 'EPERM', 'ENOTFOUND', 'EAI_AGAIN'];
const isThrough = (code) => typeof code === 'string' && !REFUSED.includes(code);
const through = ({ value }) => isThrough(value) && `the kernel was asked: ${value}`;
/** Of raw calls: the one at this place was answered by something else than EPERM, EACCES, ENOSYS or EOPNOTSUPP. */
const answered =
  (at) =>
  ({ value }) =>
    Array.isArray(value) && ![1, 13, 38, 95].includes(-value[at]) && `the kernel answers ${value[at]}`;
const done =
  (at) =>
  ({ value }) =>
    Array.isArray(value) && value[at] >= 0 && `the kernel answers ${value[at]}`;
/** Without such sockets, or without the right to have one outside either. */
const noSuchSocket = ({ value }) => value?.[0] < 0 && `there are no such sockets here: ${value[0]}`;
const rootOnly = ({ root }) => !root && 'only root can anywhere';
const withPython = ({ exists }) => !exists('/usr/bin/python3') && 'there is no Python';

/** The ways to write an address of this machine, by what they are. */
const FORMS = {
  'egress/address': '127.0.0.1',
  'egress/another-address': '127.8.9.10',
  'egress/short-form': '127.1',
  'egress/decimal-form': '2130706433',
  'egress/hexadecimal-form': '0x7f000001',
  'egress/octal-form': '0177.0.0.1',
  'egress/zero': '0.0.0.0',
  'egress/zero-of-ipv6': '::',
  'egress/loopback-of-ipv6': '::1',
  'egress/mapped-address': '::ffff:127.0.0.1',
  'egress/mapped-address-in-hexadecimal': '::ffff:7f00:1',
  'egress/compatible-address': '::127.0.0.1',
  'egress/localhost': 'localhost',
};

const forms = Object.entries(FORMS).map(([id, host]) => ({
  id,
  what: `connects to ${host}`,
  options: INTERNET,
  attempt: `async (world, { outcomeOf }) => await outcomeOf(world.port, ${JSON.stringify(host)})`,
  escaped: through,
}));

/** Encrypted look-ups go past any resolver; what they need is a connection. */
const lookups = [
  ['egress/dns-over-https', 443],
  ['egress/dns-over-tls', 853],
].map(([id, port]) => ({
  id,
  what: `asks a name server at an address by port ${port}`,
  options: ONE_PORT,
  attempt: `async (world, { outcomeOf }) => await outcomeOf(${port}, '127.0.0.53')`,
  escaped: through,
}));

/** Sockets by which packets could be sent that nobody decides about. */
const kinds = [
  ['egress/raw-socket', 'ICMP by a raw socket', 2, 3, 1],
  ['egress/any-raw-socket', 'packets with headers of its own', 2, 3, 255],
  ['egress/raw-socket-of-ipv6', 'ICMP by a raw socket of IPv6', 10, 3, 58],
  ['egress/ping-socket', 'ICMP by a socket of datagrams', 2, 2, 1],
  ['egress/multipath', 'by several paths (MPTCP)', 2, 1, 262],
  ['egress/sctp', 'by SCTP', 2, 1, 132],
  ['egress/sctp-packets', 'by SCTP, one to many', 2, 5, 132],
  ['egress/udp-lite', 'by UDP-Lite', 2, 2, 136],
  ['egress/packets', 'frames of the wire', 17, 3, 0],
  ['egress/vsock', 'to the hypervisor', 40, 1, 0],
  ['egress/netlink-of-sockets', 'asks the kernel for all sockets', 16, 3, 4],
  ['egress/netlink-of-filters', 'asks the kernel for rules of its packet filter', 16, 3, 12],
  ['egress/datagrams', 'by datagrams', 2, 2, 0],
  ['egress/datagrams-of-ipv6', 'by datagrams of IPv6', 10, 2, 17],
].map(([id, what, family, kind, protocol]) => ({
  id,
  what: `sends ${what}`,
  options: ONE_PORT,
  attempt: `(world, { syscalls }) => syscalls([['socket', ${family}, ${kind}, ${protocol}]])`,
  escaped: done(0),
  lacking: noSuchSocket,
}));

/** Options of sockets that lead packets elsewhere. */
const steering = [
  ['egress/source-route', 'sends packets by way of another host', 2, 0, 4, [1, 131, 7, 4, 127, 0, 0, 2]],
  // One segment, none left.
  [
    'egress/routing-header',
    'does so by a header of IPv6',
    10,
    41,
    57,
    [0, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
  ],
  ['egress/transparent', 'takes an address that is not this machine’s', 2, 0, 19, [1, 0, 0, 0], rootOnly],
].map(([id, what, family, level, option, bytes, needs]) => ({
  id,
  what,
  options: ONE_PORT,
  ...(needs && { needs }),
  attempt: `(world, { syscalls }) => {
    const value = Buffer.from(${JSON.stringify(bytes)});
    return syscalls([['socket', ${family}, 1, 0], ['setsockopt', { result: 0 }, ${level}, ${option}, value, value.length]]);
  }`,
  escaped: done(1),
  lacking: ({ value }) => value?.[1] < 0 && `the kernel lacks it: ${value[1]}`,
}));

export default [
  ...forms,
  ...lookups,
  ...kinds,
  ...steering,
  {
    id: 'egress/fetch',
    what: 'fetches from a server of this machine',
    options: INTERNET,
    attempt: async (world) => await (await fetch(`http://127.0.0.1:${world.port}/secret`)).text(),
  },
  {
    id: 'egress/another-port',
    what: 'fetches from another port than the one that is listed',
    options: ONE_PORT,
    attempt: async (world) => await (await fetch(`http://127.0.0.1:${world.port}/secret`)).text(),
  },
  {
    id: 'egress/no-proxy',
    what: 'fetches while it asks for no proxy',
    options: ONE_PORT,
    attempt: async (world) => {
      process.env.NO_PROXY = '*';
      process.env.no_proxy = '*';
      return await (await fetch(`http://127.0.0.1:${world.port}/secret`)).text();
    },
  },
  {
    id: 'egress/raw-call',
    what: 'connects by a raw system call',
    options: ONE_PORT,
    attempt: (world, { syscalls, address }) =>
      syscalls([
        ['socket', 2, 1, 0],
        ['connect', { result: 0 }, address('127.0.0.1', world.port), 16],
      ]),
    escaped: answered(1),
  },
  {
    id: 'egress/by-the-32-bit-way',
    what: 'connects by calls of the 32-bit ABI, whose numbers mean other calls',
    options: ONE_PORT,
    arch: 'x64',
    // socket(AF_INET, SOCK_STREAM, 0)
    attempt: (_world, { syscalls }) => syscalls([['i386:359', 2, 1, 0]]),
    escaped: done(0),
    lacking: ({ value }) => !(value?.[0] >= 0) && 'the kernel has no 32-bit calls',
  },
  {
    id: 'egress/another-family',
    what: 'connects with an address of a family that the socket is not of',
    options: ONE_PORT,
    // A mapped address, at a socket of IPv4: outside EAFNOSUPPORT.
    attempt: (world, { syscalls }) => {
      const six = Buffer.alloc(28);
      six.writeUInt16LE(10);
      six.writeUInt16BE(world.port, 2);
      Buffer.from([255, 255, 127, 0, 0, 1]).copy(six, 18);
      return syscalls([
        ['socket', 2, 1, 0],
        ['connect', { result: 0 }, six, 28],
      ]);
    },
    escaped: answered(1),
  },
  {
    id: 'egress/unspecified-and-again',
    what: 'connects where it may, undoes that (AF_UNSPEC), and connects elsewhere',
    options: ONE_PORT,
    attempt: (world, { syscalls, address }) =>
      syscalls([
        ['socket', 2, 1, 0],
        ['connect', { result: 0 }, address('127.0.0.1', 9), 16],
        ['connect', { result: 0 }, address('0.0.0.0', 0, 0), 16],
        ['connect', { result: 0 }, address('127.0.0.1', world.port), 16],
      ]),
    escaped: answered(3),
  },
  {
    id: 'egress/unspecified-address',
    what: 'connects with an address and no family',
    options: ONE_PORT,
    // For `bind` that means IPv4. For `connect` it undoes a connection, and none is made.
    attempt: (world, { syscalls, address }) =>
      syscalls([
        ['socket', 2, 1, 0],
        ['connect', { result: 0 }, address('127.0.0.1', world.port, 0), 16],
        ['sendto', { result: 0 }, Buffer.from('x'), 1, 0x4000, 0, 0],
        ['connect', { result: 0 }, address('127.0.0.1', world.port), 16],
      ]),
    escaped: answered(3),
  },
  {
    id: 'egress/fast-open',
    what: 'connects by sending (MSG_FASTOPEN)',
    options: ONE_PORT,
    attempt: (world, { syscalls, address }) =>
      syscalls([
        ['socket', 2, 1, 0],
        ['sendto', { result: 0 }, Buffer.from('x'), 1, 0x20004000, address('127.0.0.1', world.port), 16],
      ]),
    escaped: answered(1),
    lacking: ({ value }) => value?.[1] === -95 && 'the machine has turned it off',
  },
  {
    id: 'egress/fast-open-by-message',
    what: 'does so by sendmsg',
    options: ONE_PORT,
    attempt: (world, { syscalls, address }) => {
      const parts = { words: [Buffer.from('x'), 1] };
      const message = { words: [address('127.0.0.1', world.port), 16, parts, 1, 0, 0, 0] };
      return syscalls([
        ['socket', 2, 1, 0],
        ['sendmsg', { result: 0 }, message, 0x20004000],
      ]);
    },
    escaped: answered(1),
    lacking: ({ value }) => value?.[1] === -95 && 'the machine has turned it off',
  },
  {
    id: 'egress/fast-open-of-connect',
    what: 'has connect wait for the first bytes (TCP_FASTOPEN_CONNECT), which go elsewhere',
    options: ONE_PORT,
    attempt: (world, { syscalls, address }) => {
      const to = address('127.0.0.1', world.port);
      return syscalls([
        ['socket', 2, 1, 0],
        ['setsockopt', { result: 0 }, 6, 30, Buffer.from([1, 0, 0, 0]), 4],
        ['sendto', { result: 0 }, Buffer.from('x'), 1, 0x4000, to, 16],
        ['connect', { result: 0 }, to, 16],
      ]);
    },
    escaped: answered(3),
  },
  {
    id: 'egress/datagram-elsewhere',
    what: 'connects a socket of datagrams where it may, and sends a message with another address',
    options: ONE_PORT,
    attempt: (world, { syscalls, address }) => {
      const parts = { words: [Buffer.from('x'), 1] };
      const message = { words: [address('127.0.0.1', world.port), 16, parts, 1, 0, 0, 0] };
      return syscalls([
        ['socket', 2, 2, 0],
        ['connect', { result: 0 }, address('127.0.0.1', 9), 16],
        ['sendmsg', { result: 0 }, message, 0x4000],
      ]);
    },
    escaped: done(2),
  },
  {
    id: 'egress/broadcast',
    what: 'sends a datagram to all of a network',
    options: ONE_PORT,
    attempt: (world, { syscalls, address }) =>
      syscalls([
        ['socket', 2, 2, 0],
        ['setsockopt', { result: 0 }, 1, 6, Buffer.from([1, 0, 0, 0]), 4],
        ['sendto', { result: 0 }, Buffer.from('x'), 1, 0x4000, address('127.255.255.255', world.port), 16],
      ]),
    escaped: done(2),
  },
  {
    id: 'egress/multicast',
    what: 'sends a datagram to a group, on the loopback interface',
    options: ONE_PORT,
    attempt: (world, { syscalls, address }) =>
      syscalls([
        ['socket', 2, 2, 0],
        ['setsockopt', { result: 0 }, 0, 32, Buffer.from([127, 0, 0, 1]), 4],
        ['sendto', { result: 0 }, Buffer.from('x'), 1, 0x4000, address('239.255.0.1', world.port), 16],
      ]),
    escaped: done(2),
  },
  {
    id: 'egress/connects-to-a-group',
    what: 'connects to a group, and to all of a network',
    options: { network: { preset: 'internet', allow: ['127.0.0.1:9'] } },
    // The kernel knows no way there for TCP: ENETUNREACH, or EINVAL by its age.
    attempt: (world, { syscalls, address }) =>
      syscalls([
        ['socket', 2, 1, 0],
        ['connect', { result: 0 }, address('239.255.0.1', world.port), 16],
        ['connect', { result: 0 }, address('255.255.255.255', world.port), 16],
      ]),
    escaped: ({ value }) => answered(1)({ value }) || answered(2)({ value }),
  },
  {
    id: 'egress/io-uring',
    what: 'makes a queue by which calls are made that no filter sees',
    options: ONE_PORT,
    attempt: (_world, { syscalls }) => syscalls([['io_uring_setup', 1, Buffer.alloc(120)]]),
    escaped: done(0),
    lacking: ({ value }) => value?.[0] < 0 && `the machine has none: ${value[0]}`,
  },
  {
    id: 'egress/listens',
    what: 'waits for somebody to come',
    options: ONE_PORT,
    attempt: (_world, { syscalls, address }) =>
      syscalls([
        ['socket', 2, 1, 0],
        ['bind', { result: 0 }, address('127.0.0.1', 0), 16],
        ['listen', { result: 0 }, 1],
      ]),
    escaped: done(2),
  },
  {
    id: 'egress/child',
    what: 'has a child connect',
    options: ONE_PORT,
    attempt: (world) => {
      const code = 'fetch(process.argv[1]).then((a) => a.text()).then((t) => process.stdout.write(t))';
      const url = `http://127.0.0.1:${world.port}/secret`;
      return require('node:child_process').execFileSync(process.execPath, ['-e', code, url]).toString();
    },
  },
  {
    id: 'egress/orphan',
    what: 'has a grandchild connect, whose parents are gone and whose session is its own',
    options: ONE_PORT,
    attempt: async (world) => {
      const fs = require('node:fs');
      const code =
        'setTimeout(() => fetch(process.argv[1]).then((a) => a.text(), (e) => String(e.cause.code)).then((t) => { require("fs").writeFileSync("told.tmp", t); require("fs").renameSync("told.tmp", "told"); }), 300)';
      const start = `require('child_process').spawn(process.execPath, ['-e', ...process.argv.slice(1)], { detached: true, stdio: 'ignore' }).unref()`;
      const url = `http://127.0.0.1:${world.port}/secret`;
      require('node:child_process').execFileSync(process.execPath, ['-e', start, code, url]);
      for (let i = 0; i < 200 && !fs.existsSync('told'); i++) await new Promise((done) => setTimeout(done, 50));
      return fs.readFileSync('told', 'utf8');
    },
  },
  {
    id: 'egress/thread',
    what: 'has a thread of its own connect',
    options: ONE_PORT,
    attempt: (world) => {
      const { Worker } = require('node:worker_threads');
      const code = `fetch('http://127.0.0.1:${world.port}/secret').then((a) => a.text()).then((t) => require('worker_threads').parentPort.postMessage(t))`;
      return new Promise((done, fail) => new Worker(code, { eval: true }).on('message', done).on('error', fail));
    },
  },
  {
    id: 'egress/inherited-socket',
    what: 'has a child connect a socket that it was left',
    needs: withPython,
    options: ONE_PORT,
    attempt: (world, { python }) =>
      python(
        `import os, socket, sys
s = socket.socket()
r, w = os.pipe()
if os.fork() == 0:
    os.write(w, (os.strerror(s.connect_ex(('127.0.0.1', int(sys.argv[1])))) or 'none').encode())
    os._exit(0)
os.close(w)
said = os.read(r, 100).decode()
print('connected' if said == 'Success' else 'EACCES' if said == 'Permission denied' else said)`,
        world.port
      ),
    escaped: through,
  },
  {
    id: 'egress/passed-socket',
    what: 'has a child connect a socket that it was sent (SCM_RIGHTS), and uses it itself',
    needs: withPython,
    options: ONE_PORT,
    attempt: (world, { python }) =>
      python(
        `import os, socket, sys
near, far = socket.socketpair()
s = socket.socket()
if os.fork() == 0:
    _, fds, _, _ = socket.recv_fds(far, 1, 1)
    t = socket.socket(fileno=fds[0])
    t.connect_ex(('127.0.0.1', int(sys.argv[1])))
    far.send(b'x')
    os._exit(0)
socket.send_fds(near, [b'x'], [s.fileno()])
near.recv(1)
try:
    s.sendall(b'GET /secret HTTP/1.0\\r\\n\\r\\n')
    print(s.recv(10000).decode())
except OSError as e:
    print('EACCES' if not isinstance(e, ConnectionError) else e)`,
        world.port
      ),
  },
  {
    id: 'egress/hidden-memory',
    what: 'connects while nobody may look into its memory',
    needs: withPython,
    options: ONE_PORT,
    attempt: (world, { python }) =>
      python(
        `import ctypes, errno, os, socket, sys
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
print(errno.errorcode.get(socket.socket().connect_ex(('127.0.0.1', int(sys.argv[1]))), 'connected'))`,
        world.port
      ),
    escaped: through,
  },
  {
    id: 'egress/changed-address',
    what: 'has a second thread change the address while the first connects',
    needs: withPython,
    options: ONE_PORT,
    timeoutMs: 60_000,
    controlMs: 60_000,
    // Nobody listens where it may connect to, so a connection is one to elsewhere.
    attempt: (world, { python }) =>
      python(
        `import ctypes, socket, sys, threading
tries, port = 3000, int(sys.argv[1])
connect = ctypes.CDLL(None, use_errno=True).connect
good = bytes([2, 0, 0, 9, 127, 0, 0, 1]) + bytes(8)
bad = bytes([2, 0, port >> 8, port & 255, 127, 0, 0, 1]) + bytes(8)
buffer = ctypes.create_string_buffer(good, 16)
over = False
sys.setswitchinterval(1e-6)
def change():
    while not over:
        ctypes.memmove(buffer, bad, 16)
        ctypes.memmove(buffer, good, 16)
threading.Thread(target=change).start()
made = refused = 0
for _ in range(tries):
    s = socket.socket()
    if connect(s.fileno(), buffer, 16) == 0:
        made += 1
        s.setsockopt(1, 13, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        s.close()
        break
    refused += ctypes.get_errno() == 13
    s.close()
over = True
print('connected' if made else 'EACCES' if refused else 'nothing was tried')`,
        world.port
      ),
    escaped: through,
  },
  {
    id: 'egress/thousands-at-once',
    what: 'connects thousands of times at once, in the hope that one is not looked at',
    options: ONE_PORT,
    timeoutMs: 60_000,
    attempt: async (world, { outcomeOf }) => {
      const all = await Promise.all(Array.from({ length: 1500 }, () => outcomeOf(world.port, '127.0.0.1')));
      return all.find((code) => code !== 'EACCES' && code !== 'EMFILE') ?? 'EACCES';
    },
    escaped: through,
  },
  {
    id: 'egress/install-script',
    what: 'connects from an install script',
    options: ONE_PORT,
    script: async (world, { outcomeOf }) => await outcomeOf(world.port, '127.0.0.1'),
    escaped: through,
  },
  {
    id: 'egress/while-loaded',
    what: 'connects while a package is loaded',
    options: ONE_PORT,
    module: async (world, { outcomeOf }) => await outcomeOf(world.port, '127.0.0.1'),
    escaped: through,
  },
].map((one) => ({ from, layer, ...one }));
