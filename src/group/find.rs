//! Where groups may be made: from what the kernel tells about this process and its mounts. Pure.

use std::path::{Path, PathBuf};

/// What would help, wherever it is that groups cannot be made.
pub const ENABLE: &str = "a control group that is delegated to the server, with the server in a group below it: Delegate=yes and \
    DelegateSubgroup=server in its systemd unit (systemd 254), a writable /sys/fs/cgroup in a container; or an empty \
    delegated group named by the option cgroupDir. See \"Control groups\" in docs/OPERATING.md";

/// Why there are no groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub why: String,
    /// Whether it may pass by itself: then nothing is known, and it is looked for again.
    pub passing: bool,
}

impl Refusal {
    /// For this reason.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), passing: false }
    }

    /// For a reason that may pass.
    pub fn for_now(why: impl Into<String>) -> Self {
        Self { why: why.into(), passing: true }
    }
}

/// Controllers that a group has for its own groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Controllers {
    /// `memory`.
    pub memory: bool,
    /// `pids`.
    pub pids: bool,
    /// `cpu`.
    pub cpu: bool,
}

impl Controllers {
    /// Reads `cgroup.controllers` or `cgroup.subtree_control`.
    pub fn parse(text: &str) -> Self {
        let has = |name| text.split_ascii_whitespace().any(|word| word == name);
        Self { memory: has("memory"), pids: has("pids"), cpu: has("cpu") }
    }

    /// Whether a call can be limited.
    pub fn suffice(self) -> bool {
        self.memory && self.pids
    }

    /// What has to be written to `cgroup.subtree_control` so that these are enabled where `enabled` are, one by one.
    pub fn missing_in(self, enabled: Self) -> Vec<&'static str> {
        let pairs = [
            (self.memory, enabled.memory, "+memory"),
            (self.pids, enabled.pids, "+pids"),
            (self.cpu, enabled.cpu, "+cpu"),
        ];
        pairs.into_iter().filter(|(wanted, there, _)| *wanted && !there).map(|(.., name)| name).collect()
    }
}

/// Where this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The folder of its own group.
    pub own: PathBuf,
    /// The folder of the group above, if that shows.
    pub parent: Option<PathBuf>,
}

/// Finds the folder of this process's group; `cgroup` and `mountinfo` are those of `/proc/self`.
///
/// # Errors
///
/// Why there is none.
pub fn standing(cgroup: &str, mountinfo: &str) -> Result<Standing, Refusal> {
    let no_version_2 = || Refusal::new("there is no cgroup v2 here");
    let group = cgroup.lines().find_map(|line| line.strip_prefix("0::")).ok_or_else(no_version_2)?;
    let mounts: Vec<_> = mountinfo.lines().filter_map(mount).collect();
    if mounts.is_empty() {
        return Err(no_version_2());
    }
    let group = Path::new(group);
    // The last one covers what was mounted at the same place before.
    let own = mounts.iter().rev().find_map(|mount| {
        let below = group.strip_prefix(&mount.root).ok()?;
        let escapes = below.components().any(|part| part.as_os_str() == "..");
        (!escapes).then(|| (mount.place.join(below), below.parent().is_some()))
    });
    let Some((own, has_parent)) = own else {
        return Err(Refusal::new("the server's own control group does not show in any mounted file system"));
    };
    let parent = if has_parent { own.parent().map(Path::to_owned) } else { None };
    Ok(Standing { own, parent })
}

struct Mount {
    root: PathBuf,
    place: PathBuf,
}

/// A line of `mountinfo` (proc(5)), if it is one of cgroup v2.
fn mount(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    if back.split(' ').next()? != "cgroup2" {
        return None;
    }
    let mut words = front.split(' ');
    let (root, place) = (words.nth(3)?, words.next()?);
    Some(Mount { root: unescaped(root).into(), place: unescaped(place).into() })
}

/// Octal escapes of spaces, tabs, line ends and backslashes.
fn unescaped(word: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(word.to_owned(), |word, (code, character)| word.replace(code, character))
}

/// A group as it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing seen")]
pub struct Seen {
    /// Its folder.
    pub dir: PathBuf,
    /// It is one.
    pub is_group: bool,
    /// It is the machine's topmost: the rule that groups with limits have no processes of their own does not hold for it.
    pub is_top: bool,
    /// This process may make groups in it.
    pub is_writable: bool,
    /// What it may have enabled.
    pub controllers: Controllers,
    /// What is enabled for the groups in it.
    pub enabled: Controllers,
    /// Processes are in it, not just below.
    pub has_processes: bool,
    /// systemd says that it leaves it to whoever runs in it.
    pub is_delegated: bool,
}

/// Whether groups of calls may be made in this one. `is_managed`: systemd runs here, to whom every group belongs that it has
/// not delegated.
///
/// # Errors
///
/// Why not.
pub fn judge(seen: &Seen, is_managed: bool) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::new(why));
    let dir = seen.dir.display();
    if !seen.is_group {
        return refuse(format!("{dir} is no folder of a cgroup v2 file system"));
    }
    if !seen.controllers.suffice() {
        return refuse(format!("the control group {dir} has not the controllers memory and pids"));
    }
    if !seen.is_writable {
        return refuse(format!("the control group {dir} is not delegated: it cannot be written to"));
    }
    if is_managed && !seen.is_delegated {
        return refuse(format!("systemd has not delegated the control group {dir}"));
    }
    if seen.has_processes && !seen.is_top && !seen.enabled.suffice() {
        return refuse(format!(
            "processes are in the control group {dir} itself, so that groups in it can have no limits"
        ));
    }
    Ok(())
}

/// Of the server's own group and the one above it the one that groups may be made in.
///
/// # Errors
///
/// Why neither is.
pub fn choose<'a>(own: &'a Seen, parent: Option<&'a Seen>, is_managed: bool) -> Result<&'a Seen, Refusal> {
    let refused = match judge(own, is_managed) {
        Ok(()) => return Ok(own),
        Err(refused) => refused,
    };
    let Some(parent) = parent else { return Err(refused) };
    match judge(parent, is_managed) {
        Ok(()) => Ok(parent),
        // With a delegated group, all that is missing is that the server is not in it.
        Err(_) if own.is_writable && (own.is_delegated || !is_managed) => Err(refused),
        Err(above) => Err(above),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate";

    fn found(cgroup: &str, mountinfo: &str) -> Result<(String, Option<String>), String> {
        let text = |path: PathBuf| path.display().to_string();
        standing(cgroup, mountinfo)
            .map(|found| (text(found.own), found.parent.map(text)))
            .map_err(|refusal| refusal.why)
    }

    #[test]
    fn the_own_group_is_found_in_whatever_is_mounted() {
        let is = |own: &str, parent: Option<&str>| Ok((own.to_owned(), parent.map(str::to_owned)));
        for (cgroup, mountinfo, expected) in [
            (
                "0::/a.slice/b.service/server\n",
                UNIFIED,
                is("/sys/fs/cgroup/a.slice/b.service/server", Some("/sys/fs/cgroup/a.slice/b.service")),
            ),
            ("0::/\n", UNIFIED, is("/sys/fs/cgroup/", None)),
            // A container without a namespace of its own sees its own part of the tree.
            (
                "0::/docker/x",
                "9 8 0:1 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup ro",
                is("/sys/fs/cgroup/", None),
            ),
            (
                "0::/docker/x/y",
                "9 8 0:1 /docker/x /my\\040dir rw - cgroup2 cgroup rw",
                is("/my dir/y", Some("/my dir")),
            ),
            (
                "9:name=systemd:/\n4:memory:/m\n0::/\n",
                "32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
                is("/sys/fs/cgroup/unified/", None),
            ),
        ] {
            assert_eq!(found(cgroup, mountinfo), expected, "{cgroup}");
        }
        for (cgroup, mountinfo, word) in [
            ("4:memory:/m\n", UNIFIED, "no cgroup v2"),
            ("0::/\n", "32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory", "no cgroup v2"),
            ("0::/../other\n", UNIFIED, "does not show"),
            ("0::/elsewhere\n", "9 8 0:1 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup ro", "does not show"),
            ("nonsense", "nonsense - ", "no cgroup v2"),
        ] {
            let why = found(cgroup, mountinfo).unwrap_err();
            assert!(why.contains(word), "{cgroup}: {why}");
        }
    }

    fn seen(dir: &str) -> Seen {
        let all = Controllers { memory: true, pids: true, cpu: true };
        Seen { dir: dir.into(), is_group: true, is_writable: true, controllers: all, ..Seen::default() }
    }

    fn chosen(own: &Seen, parent: Option<&Seen>, is_managed: bool) -> Result<PathBuf, String> {
        choose(own, parent, is_managed).map(|seen| seen.dir.clone()).map_err(|refusal| refusal.why)
    }

    #[test]
    fn a_group_beside_the_servers_is_made_in_what_is_delegated() {
        let own = Seen { has_processes: true, ..seen("/d/server") };
        let delegated = Seen { is_delegated: true, ..seen("/d") };
        assert_eq!(chosen(&own, Some(&delegated), true), Ok("/d".into()));
        // In a container nobody else writes to what can be written to.
        assert_eq!(chosen(&own, Some(&seen("/d")), false), Ok("/d".into()));
        // Somebody made all ready, and moved nobody.
        let all = Controllers::parse("cpu memory pids");
        let ready = Seen { has_processes: true, enabled: all, ..seen("/d") };
        assert_eq!(chosen(&own, Some(&ready), false), Ok("/d".into()));
        // The machine's topmost may have both, processes and groups with limits.
        let top = Seen { has_processes: true, is_top: true, ..seen("/") };
        assert_eq!(chosen(&top, None, false), Ok("/".into()));
    }

    #[test]
    fn where_nothing_is_delegated_the_reason_is_the_one_that_helps() {
        let own = Seen { has_processes: true, ..seen("/d/server") };
        let why =
            |own: &Seen, parent: Option<&Seen>, is_managed| chosen(own, parent, is_managed).unwrap_err();
        // A service without delegation, as root: its slice is systemd's.
        assert!(
            why(&own, Some(&seen("/d")), true).contains("systemd has not delegated the control group /d")
        );
        // Delegated, but the server is in it: the slice above is no way out.
        let in_it = Seen { is_delegated: true, ..own.clone() };
        assert!(
            why(&in_it, Some(&seen("/slice")), true).contains("processes are in the control group /d/server")
        );
        // A container: its own group is the top of what it sees.
        assert!(why(&own, None, false).contains("processes are in"));
        let read_only = Seen { is_writable: false, ..own.clone() };
        assert!(why(&read_only, None, false).contains("cannot be written to"));
        // A hybrid machine: the controllers are version 1's.
        let bare = Seen { controllers: Controllers::default(), ..own };
        assert!(why(&bare, None, false).contains("controllers memory and pids"));
        assert!(why(&Seen::default(), None, false).contains("no folder of a cgroup v2"));
    }

    #[test]
    fn what_is_enabled_already_is_left() {
        let all = Controllers::parse("cpuset cpu io memory hugetlb pids rdma\n");
        assert_eq!(all, Controllers { memory: true, pids: true, cpu: true });
        assert_eq!(all.missing_in(Controllers::parse("memory")), ["+pids", "+cpu"]);
        assert!(Controllers::parse("cpuset").missing_in(Controllers::default()).is_empty());
        assert!(!Controllers::parse("memory cpu").suffice());
    }
}
