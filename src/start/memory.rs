//! How much memory there is, and how much a process holds. Reads `/proc`; `limit_of` and `default_limit_bytes` are pure.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

const MIB: u64 = 1024 * 1024;

/// Of the machine's or the container's memory zygotes may hold one part in so many, if nobody says otherwise.
const SHARE: u64 = 8;

/// And so much at least, and at most.
const LIMIT_MIN_BYTES: u64 = 128 * MIB;
const LIMIT_MAX_BYTES: u64 = 1024 * MIB;

/// Where nobody tells how much memory there is.
const LIMIT_UNKNOWN_BYTES: u64 = 256 * MIB;

/// What zygotes and the workers that they forked ahead may hold, of `memory_bytes` in all.
pub fn default_limit_bytes(memory_bytes: Option<u64>) -> u64 {
    memory_bytes.map_or(LIMIT_UNKNOWN_BYTES, |bytes| (bytes / SHARE).clamp(LIMIT_MIN_BYTES, LIMIT_MAX_BYTES))
}

/// The memory of the machine, or of the container where that may have less, bytes; none where nobody tells. Blocks, some ten system
/// calls.
///
/// # Errors
///
/// It could not be read, though it is told.
pub fn machine_bytes() -> io::Result<Option<u64>> {
    let text = |name: &str| told(Path::new("/proc").join(name));
    let Some(machine) = kib_of(&text("meminfo")?, "MemTotal:") else { return Ok(None) };
    let mut least = machine;
    for file in limit_files(&text("self/cgroup")?, &text("self/mountinfo")?) {
        least = least.min(limit_of(&told(file)?).unwrap_or(u64::MAX));
    }
    Ok(Some(least))
}

/// What a file says; nothing where it is not there, or not for this process to read.
fn told(file: PathBuf) -> io::Result<String> {
    match fs::read_to_string(file) {
        Err(error) if crate::sys::is_passing(&error) => Err(error),
        found => Ok(found.unwrap_or_default()),
    }
}

/// The files that say what the control groups of this process, of both versions, may hold; from the inside to the outside.
fn limit_files(cgroup: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in mountinfo.lines() {
        let Some((front, back)) = line.split_once(" - ") else { continue };
        let mut words = front.split(' ');
        let (Some(root), Some(place)) = (words.nth(3), words.next()) else { continue };
        let mut back = back.split(' ');
        let (kind, options) = (back.next().unwrap_or_default(), back.nth(1).unwrap_or_default());
        let has_memory = options.split(',').any(|option| option == "memory");
        let (file, group) = match kind {
            "cgroup2" => ("memory.max", cgroup.lines().find_map(|line| line.strip_prefix("0::"))),
            "cgroup" if has_memory => ("memory.limit_in_bytes", cgroup.lines().find_map(of_memory)),
            _ => continue,
        };
        let Some(below) =
            group.and_then(|group| PathBuf::from(group).strip_prefix(root).ok().map(PathBuf::from))
        else {
            // The group is of another namespace: what is mounted is this process's all the same.
            files.push(PathBuf::from(place).join(file));
            continue;
        };
        files.extend(below.ancestors().map(|folder| PathBuf::from(place).join(folder).join(file)));
    }
    files
}

/// The group in a line of `/proc/self/cgroup`, if it is that of version 1's memory controller.
fn of_memory(line: &str) -> Option<&str> {
    let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
    controllers.split(',').any(|controller| controller == "memory").then_some(group)
}

/// What such a file says; none for no limit.
fn limit_of(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// What a process holds that others do not hold as well, bytes: what is shared counts as its part of it. Where the kernel does not
/// let the host see that: all that it has in memory alone. Takes the kernel a millisecond or so.
#[cfg(target_os = "linux")]
pub(super) fn held_bytes(pid: u32) -> u64 {
    let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let held = kib_of(&text("smaps_rollup"), "Pss:").or_else(|| kib_of(&text("status"), "RssAnon:"));
    held.unwrap_or(0)
}

/// What a forked worker holds that its zygote does not, bytes; none where the kernel does not let the host see that.
#[cfg(target_os = "linux")]
pub(super) fn private_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    Some(kib_of(&text, "Private_Clean:")? + kib_of(&text, "Private_Dirty:")?)
}

/// A line of KiB, in bytes.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zygotes_get_a_share_within_bounds() {
        let mib = |memory_mib: u64| default_limit_bytes(Some(memory_mib * MIB)) / MIB;
        assert_eq!([256, 1024, 4096, 16_384, 1 << 30].map(mib), [128, 128, 512, 1024, 1024]);
        assert_eq!(default_limit_bytes(None), LIMIT_UNKNOWN_BYTES);
    }

    #[test]
    fn limits_of_containers_are_found_in_both_versions() {
        let files = |cgroup, mountinfo| {
            limit_files(cgroup, mountinfo).iter().map(|file| file.display().to_string()).collect::<Vec<_>>()
        };
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(
            files("0::/a/b\n", v2),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(
            files("0::/../x\n", "30 23 0:26 /docker/y /sys/fs/cgroup ro - cgroup2 cgroup rw"),
            ["/sys/fs/cgroup/memory.max"]
        );
        let v1 = "35 31 0:32 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n36 31 0:33 / /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids";
        assert_eq!(
            files("8:pids:/docker/x\n4:memory:/docker/x\n", v1),
            ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert!(files("nonsense", "nonsense").is_empty());
        assert_eq!((limit_of("max\n"), limit_of("536870912\n")), (None, Some(536_870_912)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_and_this_process_have_memory() {
        let (machine, own) = (machine_bytes().unwrap().unwrap(), held_bytes(std::process::id()));
        assert!(own > 100_000 && machine > own, "{own} of {machine}");
        let private = private_bytes(std::process::id()).unwrap();
        assert!(private > 100_000 && private <= machine, "{private}");
        assert_eq!((held_bytes(u32::MAX), private_bytes(u32::MAX)), (0, None));
    }
}
