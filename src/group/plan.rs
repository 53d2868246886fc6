//! What is written into the group of a call. Pure.

use super::find::Controllers;

/// The period that a share of the processors is counted over, microseconds: the kernel's own default.
const CPU_PERIOD_US: u64 = 100_000;

/// The least that the kernel takes as a share of that period, microseconds.
const CPU_QUOTA_MIN_US: u64 = 1_000;

/// What all processes of one call together may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupLimits {
    /// Memory, bytes: what is cached of files and what the kernel holds for the processes counts.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub tasks: u32,
    /// Thousandths of a processor; none: as many as there are.
    pub cpu_thousandths: Option<u32>,
}

/// One file of a group, and what goes into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Its name.
    pub file: &'static str,
    /// What is written.
    pub value: String,
    /// Whether the group must not be used without it. Else a kernel that has no such file is fine.
    pub needed: bool,
}

/// What makes a new group one of a call, in this order.
pub fn writes(limits: &GroupLimits, controllers: Controllers) -> Vec<Write> {
    let needed = |file, value: String| Write { file, value, needed: true };
    let optional = |file, value: &str| Write { file, value: value.to_owned(), needed: false };
    let mut writes = Vec::new();
    if controllers.memory {
        writes.push(needed("memory.max", limits.memory_bytes.to_string()));
        // Not there where the machine has no swap, or does not count it.
        writes.push(optional("memory.swap.max", "0"));
        // All or none: a call that has lost one of its processes is none that could go on.
        writes.push(optional("memory.oom.group", "1"));
    }
    if controllers.pids {
        writes.push(needed("pids.max", limits.tasks.to_string()));
    }
    if let Some(thousandths) = limits.cpu_thousandths.filter(|_| controllers.cpu) {
        let quota = (u64::from(thousandths) * CPU_PERIOD_US / 1000).max(CPU_QUOTA_MIN_US);
        writes.push(needed("cpu.max", format!("{quota} {CPU_PERIOD_US}")));
    }
    writes
}

/// The number behind a name in a file of lines like `oom_kill 3`.
pub fn number_of(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(found, _)| *found == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Controllers = Controllers { memory: true, pids: true, cpu: true };

    fn shown(limits: &GroupLimits, controllers: Controllers) -> String {
        let line = |one: &Write| {
            format!("{}{} = {}", if one.needed { "" } else { "(if there) " }, one.file, one.value)
        };
        writes(limits, controllers).iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_call_is_held_to_its_limits_by_what_there_is() {
        let limits = GroupLimits { memory_bytes: 5 << 20, tasks: 300, cpu_thousandths: Some(1500) };
        assert_eq!(
            shown(&limits, ALL),
            "memory.max = 5242880\n(if there) memory.swap.max = 0\n(if there) memory.oom.group = 1\npids.max = 300\n\
             cpu.max = 150000 100000"
        );
        assert_eq!(shown(&limits, Controllers { memory: false, cpu: false, ..ALL }), "pids.max = 300");
        assert_eq!(shown(&limits, Controllers::default()), "");
        let open = GroupLimits { cpu_thousandths: None, ..limits };
        assert!(!shown(&open, ALL).contains("cpu.max"), "nobody asked for it");
        let least = GroupLimits { cpu_thousandths: Some(1), ..limits };
        assert!(shown(&least, ALL).ends_with("cpu.max = 1000 100000"));
    }

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        let text = "low 0\noom 7\noom_kill 3\noom_group_kill 1\nmax nonsense\n";
        assert_eq!(number_of(text, "oom_kill"), Some(3));
        assert_eq!(number_of(text, "oom"), Some(7));
        assert_eq!((number_of(text, "max"), number_of(text, "high")), (None, None));
    }
}
