//! A child that tries what its confinement should forbid, and says what came of it: a line per attempt.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// What a child on trial tries itself at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// A file that everybody may read, in a folder that everybody may write to; both outside of what the plan allows.
    pub canary: Vec<u8>,
    /// A process that is not the child's. In a PID namespace, which has no such, the first one of that namespace is taken.
    pub victim: i32,
    /// What the plan lets be written to the working folder; 0 where nothing limits that, and nothing is tried.
    pub room_bytes: u64,
    /// The encoded plan of a worker: then the child is as a base zygote is, and tries one thing only, [`Attempt::Sibling`].
    pub worker: Option<Vec<u8>>,
}

/// One thing to try. Those that are no attempt but a question answer with what they found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attempt {
    /// Reading the canary.
    Read,
    /// Making a file beside it.
    Write,
    /// Reading the victim's environment.
    Environment,
    /// A signal to the victim.
    Signal,
    /// A local socket.
    LocalSocket,
    /// A socket of the Internet.
    Internet,
    /// Being traced.
    Trace,
    /// A user namespace.
    UserNamespace,
    /// Whether new programs may bring privileges: `EPERM` if not.
    NewPrivileges,
    /// Having a capability: `EPERM` if there is none.
    Capability,
    /// Having one in the bounding set: `EPERM` if that is empty.
    Bounding,
    /// The own user's number.
    User,
    /// The inode of the own network namespace.
    NetworkNamespace,
    /// The inode of the own namespace of System V's shared memory and queues.
    IpcNamespace,
    /// The inode of the own namespace of host names.
    UtsNamespace,
    /// The inode of the own namespace of processes.
    PidNamespace,
    /// Writing more into the working folder than [`Trial::room_bytes`].
    Fill,
    /// A signal from a worker that was forked into a PID namespace of its own to one in another: `ESRCH` if it is not seen.
    /// `EPERM` where such a namespace can't be had.
    Sibling,
    /// A connection to [`ALLOWED_PORT`] of this machine, and, where that is not refused, one to [`REFUSED_PORT`]: `EPERM` if the second was
    /// refused alone; `ENOENT` if both were; 0 if none was.
    Asking,
}

/// A port of loopback that who is asked allows; whether anybody listens there is all the same.
pub const ALLOWED_PORT: u16 = 9;

/// One that is not.
pub const REFUSED_PORT: u16 = 11;

impl Attempt {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Self; 19] = [
        Self::Read,
        Self::Write,
        Self::Environment,
        Self::Signal,
        Self::LocalSocket,
        Self::Internet,
        Self::Trace,
        Self::UserNamespace,
        Self::NewPrivileges,
        Self::Capability,
        Self::Bounding,
        Self::User,
        Self::NetworkNamespace,
        Self::IpcNamespace,
        Self::UtsNamespace,
        Self::PidNamespace,
        Self::Fill,
        Self::Sibling,
        Self::Asking,
    ];
}

/// What came of each attempt: 0 if it was let through, else an errno; of a question, the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcomes([u64; Attempt::ALL.len()]);

impl Outcomes {
    /// Writes one down.
    pub fn set(&mut self, attempt: Attempt, found: u64) {
        self.0[attempt as usize] = found;
    }

    /// What came of one.
    pub fn get(&self, attempt: Attempt) -> u64 {
        self.0[attempt as usize]
    }

    /// Whether an attempt failed for lack of permission (`EPERM`, `EACCES`, `EROFS`), or because what it was about is hidden,
    /// not for another reason.
    pub fn is_refused(&self, attempt: Attempt) -> bool {
        matches!(self.get(attempt), 1 | 13 | 30) || self.is_hidden(attempt)
    }

    /// The first attempt, if any, that failed for want of something that may be there again: it was neither let through nor refused.
    pub fn unclear(&self) -> Option<(Attempt, std::io::Error)> {
        /// `EINTR`, `EIO`, `EAGAIN`, `ENOMEM`, `ENFILE`, `EMFILE`, `ENOSPC`, `ENOBUFS`, `ETIMEDOUT`, `EDQUOT`.
        const PASSING: [u64; 10] = [4, 5, 11, 12, 23, 24, 28, 105, 110, 122];
        let questions = [
            Attempt::User,
            Attempt::NetworkNamespace,
            Attempt::IpcNamespace,
            Attempt::UtsNamespace,
            Attempt::PidNamespace,
            Attempt::Sibling,
        ];
        Attempt::ALL.into_iter().find_map(|attempt| {
            let found = self.get(attempt);
            // No room is what an attempt to fill the folder is to end with.
            let is_answer = questions.contains(&attempt) || attempt == Attempt::Fill && self.is_full(attempt);
            if is_answer || !PASSING.contains(&found) {
                return None;
            }
            Some((attempt, std::io::Error::from_raw_os_error(i32::try_from(found).ok()?)))
        })
    }

    /// Whether there was no room for more (`ENOSPC`).
    pub fn is_full(&self, attempt: Attempt) -> bool {
        self.get(attempt) == 28
    }

    /// Whether a file was not there (`ENOENT`).
    pub fn is_hidden(&self, attempt: Attempt) -> bool {
        matches!(attempt, Attempt::Read | Attempt::Write | Attempt::Environment) && self.get(attempt) == 2
    }

    /// As text.
    pub fn encode(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, found| {
            let _ = writeln!(text, "{found}");
            text
        })
    }

    /// From that text; `None` when it is not whole.
    pub fn decode(text: &str) -> Option<Self> {
        let found: Vec<u64> = text.lines().map(|line| line.parse().ok()).collect::<Option<_>>()?;
        text.ends_with('\n').then(|| found.try_into().ok().map(Self)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_survive_their_text() {
        let mut outcomes = Outcomes::default();
        outcomes.set(Attempt::Read, 13);
        outcomes.set(Attempt::NetworkNamespace, 4_026_531_840);
        let text = outcomes.encode();
        assert_eq!(Outcomes::decode(&text), Some(outcomes));
        assert!(outcomes.is_refused(Attempt::Read) && !outcomes.is_refused(Attempt::Write));
        for (errno, hidden, refused) in
            [(0, false, false), (2, true, true), (13, false, true), (30, false, true)]
        {
            outcomes.set(Attempt::Write, errno);
            assert_eq!(
                (outcomes.is_hidden(Attempt::Write), outcomes.is_refused(Attempt::Write)),
                (hidden, refused)
            );
        }
        outcomes.set(Attempt::Fill, 28);
        assert!(outcomes.is_full(Attempt::Fill) && !outcomes.is_full(Attempt::Read));
        outcomes.set(Attempt::Signal, 2);
        assert!(!outcomes.is_refused(Attempt::Signal));
        assert_eq!(Outcomes::decode(text.trim_end()), None);
        assert_eq!(Outcomes::decode("1\n2\n"), None);
        assert_eq!(Outcomes::decode(""), None);
    }
}
