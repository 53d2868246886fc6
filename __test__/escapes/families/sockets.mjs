// Talking to what listens on this machine: by a path, by an abstract name, over the network.

const from = 'confined';

/** Reads what the listener at the path says; needs nothing but its argument, as it runs elsewhere by its text. */
export const readLocalSocket = (world) =>
  new Promise((done, fail) => {
    let text = '';
    require('node:net')
      .connect(world.socketPath)
      .setEncoding('utf8')
      .on('data', (more) => {
        text += more;
      })
      .on('end', () => done(text))
      .on('error', fail);
  });

export default [
  {
    id: 'sockets/by-path',
    what: 'talks to a daemon such as Docker by the path of its socket',
    layer: 'systemCalls',
    attempt: readLocalSocket,
  },
  {
    id: 'sockets/by-abstract-name',
    what: 'talks to a daemon by the abstract name of its socket',
    layer: 'systemCalls',
    attempt: (world) =>
      new Promise((done, fail) => {
        let text = '';
        require('node:net')
          .connect(`\0${world.abstractName}`)
          .setEncoding('utf8')
          .on('data', (more) => {
            text += more;
          })
          .on('end', () => done(text))
          .on('error', fail);
      }),
  },
  {
    id: 'sockets/by-http',
    what: 'sends a request to a daemon by the path of its socket',
    layer: 'systemCalls',
    attempt: (world) =>
      new Promise((done, fail) => {
        require('node:http')
          .get({ socketPath: world.socketPath, path: '/' }, () => done('answered'))
          .on('error', (error) =>
            error.code === 'HPE_INVALID_CONSTANT' ? done(error.rawPacket.toString()) : fail(error)
          );
      }),
  },
  {
    id: 'sockets/by-child',
    what: 'has a child talk to it',
    layer: 'systemCalls',
    attempt: (world) => {
      const code = 'require("net").connect(process.argv[1]).pipe(process.stdout)';
      return require('node:child_process').execFileSync(process.execPath, ['-e', code, world.socketPath]).toString();
    },
  },
  {
    id: 'sockets/through-symlink',
    what: 'talks to it through a symlink in its own folder',
    layer: 'systemCalls',
    attempt: (world) =>
      new Promise((done, fail) => {
        require('node:fs').symlinkSync(world.socketPath, 's');
        let text = '';
        require('node:net')
          .connect('s')
          .setEncoding('utf8')
          .on('data', (more) => {
            text += more;
          })
          .on('end', () => done(text))
          .on('error', fail);
      }),
  },
  {
    id: 'sockets/from-a-pair',
    what: 'turns one of a pair of datagram sockets to a path',
    layer: 'systemCalls',
    // Of a stream socket at the path the kernel says EPROTOTYPE, once it let the connection be tried.
    attempt: (world, { syscalls }) => {
      const pair = Buffer.alloc(8);
      const address = Buffer.concat([Buffer.from([1, 0]), Buffer.from(`${world.socketPath}\0`)]);
      return syscalls([
        ['socketpair', 1, 2, 0, pair],
        ['connect', { wordAt: pair }, address, address.length],
      ]);
    },
    escaped: ({ value }) =>
      Array.isArray(value) && (value[1] === 0 || value[1] === -91) && 'the socket at the path is within reach',
  },
  {
    id: 'sockets/loopback',
    what: 'talks to a server on the loopback address, where no network is to be had',
    from: 'base',
    layer: 'network',
    options: { network: 'none' },
    attempt: async (world) => await (await fetch(`http://127.0.0.1:${world.port}/secret`)).text(),
  },
  {
    id: 'sockets/loopback-by-child',
    what: 'has a child do so',
    from: 'base',
    layer: 'network',
    options: { network: 'none' },
    attempt: (world) => {
      const code = 'fetch(process.argv[1]).then((a) => a.text()).then((t) => process.stdout.write(t))';
      return require('node:child_process')
        .execFileSync(process.execPath, ['-e', code, `http://127.0.0.1:${world.port}/secret`])
        .toString();
    },
  },
  {
    id: 'sockets/metadata',
    what: 'asks the metadata service of a cloud, played by a server of the suite, where no network is to be had',
    from: 'base',
    layer: 'network',
    options: { network: 'none' },
    // The real address is never used: were it let through, it would be asked.
    attempt: (world) =>
      new Promise((done, fail) => {
        const request = {
          host: '127.0.0.1',
          port: world.port,
          path: '/latest/meta-data/iam/',
          headers: { host: '169.254.169.254' },
        };
        require('node:http')
          .get(request, (answer) => {
            let text = '';
            answer.setEncoding('utf8').on('data', (more) => {
              text += more;
            });
            answer.on('end', () => done(text));
          })
          .on('error', fail);
      }),
  },
  {
    id: 'sockets/datagram',
    what: 'sends a datagram, where no network is to be had',
    from: 'base',
    layer: 'network',
    options: { network: 'none' },
    attempt: async (world) => {
      const socket = require('node:dgram').createSocket('udp4');
      await new Promise((done, fail) =>
        socket.send('x', world.port, '127.0.0.1', (error) => (error ? fail(error) : done()))
      );
      socket.close();
      return 'sent';
    },
    escaped: ({ value }) => value === 'sent' && 'a datagram was sent',
  },
  {
    id: 'sockets/listen',
    what: 'listens on the loopback address, where no network is to be had',
    from: 'base',
    layer: 'network',
    options: { network: 'none' },
    attempt: async (world) => {
      const server = require('node:net').createServer();
      // The address of the host's own server is taken only where it is the same network.
      const taken = await new Promise((done) =>
        server.on('error', (error) => done(error.code)).listen(world.port, '127.0.0.1', done)
      );
      server.close();
      return taken;
    },
    escaped: ({ value }) => value === 'EADDRINUSE' && "it is on the host's network",
  },
].map((one) => ({ from, ...one }));
