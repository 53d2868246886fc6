// What an attempt has at hand inside a tool: raw system calls, through a program that it writes into its own folder.
//
// The text of this function is put in front of an attempt's, so it uses nothing from outside of it. The suite itself uses
// it as a module, to start servers under a filter of its own.

export function kit() {
  const fs = require('node:fs');
  const { spawnSync } = require('node:child_process');

  const NUMBERS = {
    x64: {
      write: 1,
      fcntl: 72,
      ioctl: 16,
      socketpair: 53,
      socket: 41,
      connect: 42,
      sendto: 44,
      sendmsg: 46,
      setsockopt: 54,
      bind: 49,
      listen: 50,
      exit_group: 231,
      execve: 59,
      ptrace: 101,
      process_vm_readv: 310,
      process_vm_writev: 311,
      mount: 165,
      unshare: 272,
      setns: 308,
      bpf: 321,
      keyctl: 250,
      add_key: 248,
      request_key: 249,
      perf_event_open: 298,
      userfaultfd: 323,
      io_uring_setup: 425,
      init_module: 175,
      finit_module: 313,
      delete_module: 176,
      pidfd_open: 434,
      pidfd_getfd: 438,
      pidfd_send_signal: 424,
      shmget: 29,
      shmctl: 31,
      msgget: 68,
      semget: 64,
      prctl: 157,
      seccomp: 317,
      landlock_create_ruleset: 444,
      clone3: 435,
      open_by_handle_at: 304,
      prlimit64: 302,
      sched_setaffinity: 203,
      setpriority: 141,
      ioprio_set: 251,
      chroot: 161,
      pivot_root: 155,
      kcmp: 312,
      syslog: 103,
      sethostname: 170,
      adjtimex: 159,
      mknodat: 259,
      fanotify_init: 300,
      fsopen: 430,
      open_tree: 428,
      mq_open: 240,
      mq_unlink: 241,
      memfd_create: 319,
      pipe2: 293,
      rt_sigqueueinfo: 129,
      tgkill: 234,
      reboot: 169,
      swapoff: 168,
      setresuid: 117,
      migrate_pages: 256,
      process_madvise: 440,
      clone: 56,
      quotactl: 179,
      name_to_handle_at: 303,
      io_setup: 206,
      madvise: 28,
      close: 3,
      fallocate: 285,
      mmap: 9,
      writev: 20,
      nanosleep: 35,
      fsetxattr: 190,
      personality: 135,
      memfd_secret: 447,
      inotify_init1: 294,
      open: 2,
    },
    arm64: {
      write: 64,
      fcntl: 25,
      ioctl: 29,
      socketpair: 199,
      socket: 198,
      connect: 203,
      sendto: 206,
      sendmsg: 211,
      setsockopt: 208,
      bind: 200,
      listen: 201,
      exit_group: 94,
      execve: 221,
      ptrace: 117,
      process_vm_readv: 270,
      process_vm_writev: 271,
      mount: 40,
      unshare: 97,
      setns: 268,
      bpf: 280,
      keyctl: 219,
      add_key: 217,
      request_key: 218,
      perf_event_open: 241,
      userfaultfd: 282,
      io_uring_setup: 425,
      init_module: 105,
      finit_module: 273,
      delete_module: 106,
      pidfd_open: 434,
      pidfd_getfd: 438,
      pidfd_send_signal: 424,
      shmget: 194,
      shmctl: 195,
      msgget: 186,
      semget: 190,
      prctl: 167,
      seccomp: 277,
      landlock_create_ruleset: 444,
      clone3: 435,
      open_by_handle_at: 265,
      prlimit64: 261,
      sched_setaffinity: 122,
      setpriority: 140,
      ioprio_set: 30,
      chroot: 51,
      pivot_root: 41,
      kcmp: 272,
      syslog: 116,
      sethostname: 161,
      adjtimex: 171,
      mknodat: 33,
      fanotify_init: 262,
      fsopen: 430,
      open_tree: 428,
      mq_open: 180,
      mq_unlink: 181,
      memfd_create: 279,
      pipe2: 59,
      rt_sigqueueinfo: 138,
      tgkill: 131,
      reboot: 142,
      swapoff: 225,
      setresuid: 147,
      migrate_pages: 238,
      process_madvise: 440,
      clone: 220,
      quotactl: 60,
      name_to_handle_at: 264,
      io_setup: 0,
      fsetxattr: 7,
      personality: 92,
      memfd_secret: 447,
      inotify_init1: 26,
    },
  };

  const word = (value) => {
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64LE(BigInt.asIntN(64, BigInt(value)));
    return bytes;
  };
  const half = (value) => {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(value >>> 0);
    return bytes;
  };

  /** How a machine loads an argument, makes the call and keeps what it gives; every step has a length of its own. */
  const MACHINES = {
    x64: {
      elf: 62,
      // rdi, rsi, rdx, r10, r8, r9
      load: (at, value) =>
        Buffer.concat([Buffer.from(['48bf', '48be', '48ba', '49ba', '49b8', '49b9'][at], 'hex'), word(value)]),
      follow: (at) => Buffer.from(['488b3f', '488b36', '488b12', '4d8b12', '4d8b00', '4d8b09'][at], 'hex'),
      call: (number) => Buffer.concat([Buffer.from('48b8', 'hex'), word(number), Buffer.from('0f05', 'hex')]),
      keep: (address) => Buffer.concat([Buffer.from('48a3', 'hex'), word(address)]),
      // The 32-bit way in: ebx, ecx, edx, esi, edi
      load32: (at, value) =>
        Buffer.concat([Buffer.from(['48bb', '48b9', '48ba', '48be', '48bf'][at], 'hex'), word(value)]),
      call32: (number) => Buffer.concat([Buffer.from('48b8', 'hex'), word(number), Buffer.from('cd80', 'hex')]),
    },
    arm64: {
      elf: 183,
      // movz and three movk
      load: (at, value) =>
        Buffer.concat(
          [0, 1, 2, 3].map((part) => {
            const bits = Number((BigInt.asUintN(64, BigInt(value)) >> BigInt(16 * part)) & 0xffffn);
            return half((part === 0 ? 0xd2800000 : 0xf2800000) + part * 0x200000 + bits * 32 + at);
          })
        ),
      follow: (at) => half(0xf9400000 + at * 32 + at),
      call: (number) => Buffer.concat([MACHINES.arm64.load(8, number), half(0xd4000001)]),
      keep: (address) => Buffer.concat([MACHINES.arm64.load(9, address), half(0xf9000120)]),
    },
  };

  const BASE = 0x400000;
  const HEADERS_BYTES = 64 + 56;

  /**
   * A static program that makes the calls in turn and prints what they gave, 8 bytes each; one that succeeds in `execve` is
   * another program from then on. An argument is a number, a text (its address; ends in a zero byte), a Buffer (its
   * address), `{ result }` (what an earlier call gave), `{ words }` (the address of such values in a row), or
   * `{ wordAt: Buffer }` (the word that a call before this one wrote there).
   */
  function program(calls, arch = process.arch) {
    const machine = MACHINES[arch];
    const data = [];
    let dataBytes = 0;
    const placed = new Map();
    const place = (bytes) => {
      if (!placed.has(bytes)) {
        placed.set(bytes, dataBytes);
        const padding = Buffer.alloc(8 + (-bytes.length & 7));
        data.push(bytes, padding);
        dataBytes += bytes.length + padding.length;
      }
      return placed.get(bytes);
    };
    const results = Buffer.alloc(8 * calls.length);
    const all = [...calls, ['write', 1, results, results.length], ['exit_group', 0]];

    const build = (dataAt) => {
      const address = (bytes) => dataAt + place(bytes);
      const numberOf = (argument) => {
        if (typeof argument === 'string') return address(textOf(argument));
        if (Buffer.isBuffer(argument)) return address(argument);
        return argument?.words ? address(rowOf(argument, numberOf)) : argument;
      };
      /** Where the value lies that an argument is only known to have when the program runs. */
      const laterOf = (argument) => {
        if (argument?.result !== undefined) return address(results) + 8 * argument.result;
        return argument?.wordAt && address(argument.wordAt);
      };
      const loading = (argument, at, load) => {
        const later = laterOf(argument);
        return later === undefined ? [load(at, numberOf(argument))] : [load(at, later), machine.follow(at)];
      };
      const wayOf = (name) => {
        // The 32-bit way in has numbers of its own.
        const [, narrow] = /^i386:(\d+)$/.exec(name) ?? [];
        if (narrow) return { load: machine.load32, call: machine.call32(narrow) };
        if (NUMBERS[arch][name] === undefined) throw new Error(`no number for ${name}`);
        return { load: machine.load, call: machine.call(NUMBERS[arch][name]) };
      };
      const calling = ([name, ...args]) => {
        const { load, call } = wayOf(name);
        return [...args.flatMap((argument, at) => loading(argument, at, load)), call];
      };
      return Buffer.concat(
        all.flatMap((call, index) => [
          ...calling(call),
          ...(index < calls.length ? [machine.keep(address(results) + 8 * index)] : []),
        ])
      );
    };

    const texts = new Map();
    const textOf = (text) => {
      if (!texts.has(text)) texts.set(text, Buffer.from(`${text}\0`));
      return texts.get(text);
    };
    const rows = new Map();
    const rowOf = (argument, numberOf) => {
      if (!rows.has(argument)) rows.set(argument, Buffer.alloc(8 * argument.words.length));
      const bytes = rows.get(argument);
      argument.words.forEach((value, at) => {
        word(numberOf(value)).copy(bytes, 8 * at);
      });
      return bytes;
    };

    // Once for the lengths and the places, once with them known.
    const codeBytes = build(0).length;
    const code = build(BASE + HEADERS_BYTES + codeBytes);
    const image = Buffer.concat([code, ...data]);

    const header = Buffer.alloc(HEADERS_BYTES);
    Buffer.from('7f454c46020101', 'hex').copy(header);
    header.writeUInt16LE(2, 16);
    header.writeUInt16LE(machine.elf, 18);
    header.writeUInt32LE(1, 20);
    word(BASE + HEADERS_BYTES).copy(header, 24);
    word(64).copy(header, 32);
    header.writeUInt16LE(64, 52);
    header.writeUInt16LE(56, 54);
    header.writeUInt16LE(1, 56);
    header.writeUInt32LE(1, 64);
    header.writeUInt32LE(7, 68);
    word(BASE).copy(header, 80);
    word(BASE).copy(header, 88);
    word(HEADERS_BYTES + image.length).copy(header, 96);
    word(HEADERS_BYTES + image.length).copy(header, 104);
    word(0x1000).copy(header, 112);
    return Buffer.concat([header, image]);
  }

  let made = 0;
  /** Makes the calls in a child; gives their results, negative ones as the kernel gives them. */
  function syscalls(calls) {
    const file = `${process.cwd()}/calls-${process.pid}-${made++}`;
    fs.writeFileSync(file, program(calls), { mode: 0o700 });
    const { error, signal, stdout } = spawnSync(file, [], { timeout: 10_000 });
    if (error) throw error;
    if (signal) return { killed: signal };
    return calls.map((_, at) => Number(stdout.readBigInt64LE(8 * at)));
  }

  /**
   * A shared library (x64) that, when it is loaded, opens a file for reading and writes what the kernel said, 4 bytes, to
   * another.
   */
  function addon(file, told) {
    const code = Buffer.from(
      [
        '488d3d00000000', // lea rdi, [file]
        '31f6b8020000000f05', // open(file, O_RDONLY)
        '890500000000', // mov [result], eax
        '488d3d00000000', // lea rdi, [told]
        'be41000000ba80010000b8020000000f05', // open(told, O_CREAT | O_WRONLY, 0600)
        '89c7488d3500000000', // mov edi, eax; lea rsi, [result]
        'ba04000000b8010000000f05', // write(.., result, 4)
        '31c0c3',
      ].join(''),
      'hex'
    );
    const codeAt = 64 + 2 * 56;
    const fileAt = codeAt + code.length;
    const toldAt = fileAt + Buffer.byteLength(file) + 1;
    const resultAt = toldAt + Buffer.byteLength(told) + 1;
    // The end of each instruction is what its distance counts from.
    for (const [end, target] of [
      [7, fileAt],
      [22, resultAt],
      [29, toldAt],
      [55, resultAt],
    ]) {
      code.writeInt32LE(target - (codeAt + end), end - 4);
    }
    const dynamicAt = (resultAt + 4 + 7) & ~7;
    // DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_INIT, DT_NULL; the tables are empty.
    const dynamic = Buffer.concat([5, dynamicAt + 96, 6, dynamicAt + 96, 10, 1, 11, 24, 12, codeAt, 0, 0].map(word));
    const total = dynamicAt + dynamic.length + 32;
    const header = Buffer.alloc(codeAt);
    Buffer.from('7f454c46020101', 'hex').copy(header);
    header.writeUInt16LE(3, 16);
    header.writeUInt16LE(62, 18);
    header.writeUInt32LE(1, 20);
    word(64).copy(header, 32);
    header.writeUInt16LE(64, 52);
    header.writeUInt16LE(56, 54);
    header.writeUInt16LE(2, 56);
    for (const [at, type, offset, size] of [
      [64, 1, 0, total],
      [120, 2, dynamicAt, dynamic.length],
    ]) {
      header.writeUInt32LE(type, at);
      header.writeUInt32LE(7, at + 4);
      for (const [field, value] of [
        [8, offset],
        [16, offset],
        [24, offset],
        [32, size],
        [40, size],
        [48, type === 1 ? 0x1000 : 8],
      ]) {
        word(value).copy(header, at + field);
      }
    }
    const file0 = Buffer.alloc(total);
    header.copy(file0);
    code.copy(file0, codeAt);
    file0.write(`${file}\0${told}\0`, fileAt);
    dynamic.copy(file0, dynamicAt);
    return file0;
  }

  /** What `act` gives for each of the values: `{ value, gave }` or `{ value, failed }`. */
  function each(values, act) {
    return values.map((value) => {
      try {
        return { value, gave: act(value) ?? null };
      } catch (error) {
        return { value, failed: String(error?.code ?? error) };
      }
    });
  }

  /** A frame as workers send it. */
  function frame(type, payload) {
    const body = Buffer.from(payload);
    return Buffer.concat([half(body.length), Buffer.from([type]), body]);
  }

  /** An address of IPv4 as the kernel has it; without a family, `AF_UNSPEC`. */
  function address(host, port, family = 2) {
    return Buffer.from([family, 0, port >> 8, port & 255, ...host.split('.').map(Number), 0, 0, 0, 0, 0, 0, 0, 0]);
  }

  /** What a program in Python prints; it has `sys.argv[1]` and so on. */
  function python(text, ...args) {
    const given = ['-c', text, ...args.map(String)];
    const { error, status, stdout, stderr } = spawnSync('/usr/bin/python3', given, { timeout: 60_000 });
    if (error) throw error;
    if (status !== 0) throw new Error(String(stderr).slice(-400));
    return String(stdout).trim();
  }

  /** How a connection by Node ends: the code of its error, or that it was made. */
  function outcomeOf(port, host) {
    return new Promise((done) => {
      const socket = require('node:net').connect({ port, host });
      socket.on('error', (error) => done(error.code));
      socket.on('connect', () => done(socket.destroy() && 'connected'));
    });
  }

  /** What there is of others in a folder, by its list, by numbers as names, and by being watched. */
  function found(place, own) {
    const fs = require('node:fs');
    const attempt = (act) => {
      try {
        return act();
      } catch {
        return undefined;
      }
    };
    const numbers = Array.from({ length: 64 }, (_, number) => String(number));
    const listed = attempt(() => fs.readdirSync(place)) ?? [];
    const inside = numbers.flatMap(
      (name) => attempt(() => fs.readdirSync(`${place}/${name}`).map((one) => `${name}/${one}`)) ?? []
    );
    const folders = [...new Set([...numbers, ...listed, ...inside])].map((name) => `${place}/${name}`);
    const run = own && require('node:path').dirname(own);
    const isOwn = (folder) => run !== '' && `${folder}/`.startsWith(`${run}/`);
    const others = folders.filter((folder) => !isOwn(folder) && fs.existsSync(`${folder}/work`));
    const watched = folders.filter((folder) => attempt(() => fs.watch(folder).close() ?? true));
    return [...others, ...watched.filter((folder) => !isOwn(folder))];
  }

  return { program, syscalls, addon, each, found, frame, address, python, outcomeOf };
}
