//! Where things are that a confined Node needs, and what of the host's it must not see. Pure but for [`mapped_libraries`].

use std::path::{Path, PathBuf};

/// Programs and libraries of the system. Not `/usr` and `/opt` whole: servers are installed there, with their secrets.
pub(super) const PROGRAMS: &[&str] = &[
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/usr/libexec",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/nix/store",
    "/gnu/store",
];

/// What programs read: headers, time zones, certificates, names of hosts, users and services, facts of the machine. Of
/// `/etc` what stands here only; certificates without the folders of private keys beside them.
pub(super) const DATA: &[&str] = &[
    "/usr/include",
    "/usr/share",
    "/usr/local/include",
    "/usr/local/share",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
    "/var/lib/ca-certificates",
    "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/version",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/random",
    "/sys/devices/system",
    "/sys/kernel/mm/transparent_hugepage",
];

/// Devices that are no one's.
pub(super) const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Where terminals are; only for a process that has its own.
pub(super) const TERMINALS: &str = "/dev/pts";

/// Folders at the top that are never taken whole: one shows processes, and one is each call's own.
pub(super) const NOT_WIDENED: [&str; 2] = ["/proc", "/tmp"];

/// What belongs to a Node installation, beside its program.
pub(super) fn of_node(node: &Path) -> Vec<PathBuf> {
    let prefix = node.ancestors().nth(2).filter(|prefix| *prefix != Path::new("/"));
    let parts = ["lib/node_modules/npm", "lib/node_modules/corepack", "include/node"];
    let parts = prefix.into_iter().flat_map(|prefix| parts.map(|part| prefix.join(part)));
    std::iter::once(node.to_path_buf()).chain(parts).collect()
}

/// Whether a path is at or below one of these.
pub(super) fn is_below(path: &Path, folders: &[&str]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

/// Shared libraries of this very process that are in no folder of the system's: those of a Node in a place of its own. Of
/// no use where tools run another Node.
#[cfg(target_os = "linux")]
pub(super) fn mapped_libraries() -> std::io::Result<Vec<PathBuf>> {
    let mut found = libraries_in(&std::fs::read_to_string("/proc/self/maps")?);
    found.sort();
    found.dedup();
    Ok(found)
}

/// The sixth column of each executable mapping, where it names a library: not an addon of the host's.
#[cfg(target_os = "linux")]
fn libraries_in(maps: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let mut columns = line.splitn(6, ' ');
        let is_code = columns.nth(1).is_some_and(|rights| rights.contains('x'));
        let path = PathBuf::from(columns.nth(3)?.trim_start());
        let name = path.file_name()?.to_str()?;
        let is_library = name.contains(".so.") || path.extension().is_some_and(|ending| ending == "so");
        (is_code && is_library && path.is_absolute() && !is_below(&path, PROGRAMS)).then_some(path)
    };
    maps.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_brings_its_own_npm_and_headers_but_not_its_neighbours() {
        let of = |node: &str| {
            of_node(Path::new(node)).iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            of("/opt/node/bin/node"),
            [
                "/opt/node/bin/node",
                "/opt/node/lib/node_modules/npm",
                "/opt/node/lib/node_modules/corepack",
                "/opt/node/include/node"
            ]
        );
        assert_eq!(of("/bin/node"), ["/bin/node"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn libraries_are_found_in_a_map_of_memory() {
        let maps = "7f0-7f1 r-xp 00000000 fe:00 12                     /opt/node/lib/libnode.so.127\n\
            7f1-7f2 r--p 00000000 fe:00 13                     /opt/node/lib/libdata.so\n\
            7f2-7f3 r-xp 00000000 fe:00 14                     /usr/lib/libc.so.6\n\
            7f3-7f4 r-xp 00000000 fe:00 15                     /srv/app/a.node\n\
            7f4-7f5 r-xp 00000000 00:00 0                      [vdso]\n7f5-7f6 rwxp 00000000 00:00 0 \n";
        assert_eq!(libraries_in(maps), [PathBuf::from("/opt/node/lib/libnode.so.127")]);
    }
}
