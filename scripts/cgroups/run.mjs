// Tries control groups in a machine that has them: boots a kernel in QEMU, with this package, Node and what they need in its
// memory, and runs `guest.mjs` there, as root and as another user. Run by hand: most machines of CI delegate no groups, and without
// KVM this takes minutes.
//
//   node scripts/build.mjs && node scripts/cgroups/run.mjs --kernel /boot/vmlinuz-… [--node <binary>] [--kvm]
//
// Needs qemu-system-x86_64, a static busybox, setpriv, cpio and gzip; any distribution's kernel with cgroup v2 does, as nothing is loaded.

import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, cpSync, existsSync, mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { ROOT } from '../steps.mjs';

const { values: options } = parseArgs({
  options: {
    kernel: { type: 'string' },
    node: { type: 'string', default: process.execPath },
    kvm: { type: 'boolean' },
  },
});
if (!options.kernel) throw new Error('name a kernel: --kernel <vmlinuz>');

/** Where the package is in the guest. */
const PACKAGE = '/package';
const PARTS = ['index.js', 'lib', 'package.json', 'binding.cjs'];
const PLATFORM = ['native-sandbox-executor.linux-x64-gnu.node', 'launcher.linux-x64-gnu', 'zygote.linux-x64-gnu'];
/** Five minutes without KVM, twice. */
const LIMIT_MS = 20 * 60_000;
const DONE = 'CONTROL GROUPS DO WHAT THEY SHOULD';

const INIT = `#!/bin/busybox sh
/bin/busybox mkdir -p /new && /bin/busybox mount -t tmpfs -o size=80% tmpfs /new
for one in bin lib lib64 usr etc package node; do [ -e /$one ] && /bin/busybox cp -a /$one /new/; done
cd /new && /bin/busybox mkdir -p proc sys dev tmp run root
exec /bin/busybox switch_root /new /bin/busybox sh /etc/rc
`;

const RC = `
export PATH=/bin:/usr/bin HOME=/root
busybox mount -t proc proc /proc && busybox mount -t sysfs sysfs /sys && busybox mount -t devtmpfs dev /dev
busybox chmod 1777 /tmp && busybox mount -t cgroup2 cgroup2 /sys/fs/cgroup
cd /sys/fs/cgroup && echo "+memory +pids +cpu" > cgroup.subtree_control
run() { # <group> <user>
  busybox mkdir -p /sys/fs/cgroup/$1/server && busybox chown -R $2 /sys/fs/cgroup/$1
  busybox sh -c "echo \\$\\$ > /sys/fs/cgroup/$1/server/cgroup.procs; TMPDIR=/tmp exec /bin/setpriv --reuid=$2 --regid=$2 --clear-groups /node ${PACKAGE}/guest.mjs /sys/fs/cgroup/$1"
}
cd / && run app 0 && run other 1000 && echo "${DONE}"
busybox poweroff -f
`;

const folder = mkdtempSync(join(tmpdir(), 'nse-cgroups-'));
try {
  const root = join(folder, 'root');
  for (const dir of ['bin', 'etc', PACKAGE]) mkdirSync(join(root, dir), { recursive: true });
  const program = (name) => execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim();
  cpSync(realpathSync(program('busybox')), join(root, 'bin/busybox'));
  for (const name of ['sh', 'cat', 'sleep']) cpSync(join(root, 'bin/busybox'), join(root, 'bin', name));
  cpSync(realpathSync(program('setpriv')), join(root, 'bin/setpriv'));
  cpSync(realpathSync(options.node), join(root, 'node'));
  for (const part of [...PARTS, ...PLATFORM]) {
    if (!existsSync(join(ROOT, part))) throw new Error(`${part} is missing: run scripts/build.mjs first`);
    cpSync(join(ROOT, part), join(root, PACKAGE, part), { recursive: true });
  }
  cpSync(join(ROOT, 'scripts/cgroups/guest.mjs'), join(root, PACKAGE, 'guest.mjs'));
  for (const needed of librariesOf(['node', 'bin/setpriv', ...PLATFORM.map((part) => join(PACKAGE, part))])) {
    mkdirSync(join(root, dirname(needed)), { recursive: true });
    cpSync(realpathSync(needed), join(root, needed));
  }
  writeFileSync(join(root, 'etc/passwd'), 'root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n');
  writeFileSync(join(root, 'etc/rc'), RC);
  writeFileSync(join(root, 'init'), INIT);
  chmodSync(join(root, 'init'), 0o755);
  const image = join(folder, 'image');
  execFileSync('sh', ['-c', `cd ${root} && find . | cpio -o -H newc --quiet | gzip -1 > ${image}`]);
  const { stdout } = spawnSync(
    'qemu-system-x86_64',
    [
      ...['-m', '3072', '-smp', '2', '-nographic', '-no-reboot', '-kernel', options.kernel, '-initrd', image],
      ...['-append', 'console=ttyS0 panic=-1 quiet rdinit=/init', ...(options.kvm ? ['-enable-kvm'] : ['-cpu', 'max'])],
    ],
    { stdio: ['ignore', 'pipe', 'inherit'], encoding: 'utf8', timeout: LIMIT_MS }
  );
  console.log(stdout);
  if (!stdout.includes(DONE)) process.exitCode = 1;
} finally {
  rmSync(folder, { recursive: true, force: true });
}

/** The shared libraries of programs below `root`, by their paths here. */
function librariesOf(programs) {
  const all = programs.flatMap((one) => {
    const told = spawnSync('ldd', [join(folder, 'root', one)], { encoding: 'utf8' }).stdout;
    return [...told.matchAll(/(\/\S+) \(0x/g)].map(([, path]) => path);
  });
  return new Set(all);
}
