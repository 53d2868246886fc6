//! A mark that a process cannot take off, and that everything it starts has: the hard limit of a resource that nothing in here can use
//! (`RLIMIT_RTTIME` is of processes under real-time scheduling). A hard limit is passed on by fork and exec, whatever becomes of
//! session, group, parent and environment; raising it takes a privilege, and the filter of system calls refuses to lower it. Who follows a
//! dead launcher finds by it what that one left; and the processes of a call are told from those of others.
//!
//! ```text
//! bit 62   30 bits       32 bits
//! 1        the launcher  ALL: the launcher itself; ALL - 1: what it starts; else the number of a call
//! ```
//!
//! Pure.

/// What all marks have, and no limit that anybody sets.
const IS_MARK: u64 = 1 << 62;
const LAUNCHER_BITS: u32 = 30;
const NUMBER_BITS: u32 = 32;
const ALL: u64 = (1 << NUMBER_BITS) - 1;

/// Numbers of calls lie below.
pub const CALL_NUMBERS_END: u32 = u32::MAX - 1;

/// A mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(u64);

impl Mark {
    /// That of a launcher which drew this number.
    pub const fn of_launcher(random: u32) -> Self {
        Self(IS_MARK | (random as u64 >> (u32::BITS - LAUNCHER_BITS)) << NUMBER_BITS | ALL)
    }

    /// That of what a launcher starts.
    #[must_use]
    pub const fn of_started(self) -> Self {
        Self(self.0 & !ALL | (ALL - 1))
    }

    /// That of a call below the same launcher.
    #[must_use]
    pub const fn of_call(self, number: u32) -> Self {
        Self(self.0 & !ALL | (number as u64 % (ALL - 1)))
    }

    /// The mark that a process with this hard limit has, if any.
    pub const fn of_limit(limit: u64) -> Option<Self> {
        if limit >> (LAUNCHER_BITS + NUMBER_BITS) == 1 { Some(Self(limit)) } else { None }
    }

    /// The hard limit that says so.
    pub const fn limit(self) -> u64 {
        self.0
    }

    /// Whether this is a launcher's own.
    pub const fn is_launcher(self) -> bool {
        self.0 & ALL == ALL
    }

    /// Whether both are below one launcher, or are it.
    pub const fn has_launcher_of(self, other: Self) -> bool {
        self.0 >> NUMBER_BITS == other.0 >> NUMBER_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_can_only_be_lowered_from_launcher_to_call_and_tells_its_launcher() {
        for random in [0, 1, 0x1234_5678, u32::MAX] {
            let launcher = Mark::of_launcher(random);
            let (started, call) = (launcher.of_started(), launcher.of_call(7));
            assert!(launcher.limit() > started.limit() && started.limit() > call.limit());
            assert!(launcher.is_launcher() && !started.is_launcher() && !call.is_launcher());
            assert!(launcher.has_launcher_of(call) && call.has_launcher_of(started));
            assert_eq!(Mark::of_limit(call.limit()), Some(call));
            assert!(started.limit() > launcher.of_call(CALL_NUMBERS_END).limit());
        }
        assert!(!Mark::of_launcher(u32::MAX).has_launcher_of(Mark::of_launcher(0)));
    }

    #[test]
    fn no_limit_and_those_that_people_set_are_no_marks() {
        for limit in [0, 200_000, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 62) - 1] {
            assert_eq!(Mark::of_limit(limit), None);
        }
    }
}
