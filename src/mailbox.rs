//! What a call tells while it runs, on its way to a thread that takes it when it can. In order, nothing is lost, and bounded: output by
//! the call's own output limit, pieces by their number. Pure.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use crate::executor::EventKind;

/// Pieces that wait. Beyond it output is added to the last piece of its stream: then it is known no more which of the two streams came
/// first.
const LIMIT_PIECES: usize = 4096;

/// News of progress that wait. Beyond it the oldest is dropped: who is late wants the latest.
const LIMIT_PROGRESS: usize = 64;

/// A piece of output, or a word about the call.
pub type Piece = (EventKind, String);

/// See the module.
#[derive(Debug, Default)]
pub struct Mailbox(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    pieces: VecDeque<Piece>,
    /// How many of them are news of progress.
    progress: usize,
    /// Whether the other side was called and has not taken them yet.
    called: bool,
}

impl Mailbox {
    /// Adds a piece. `true` means that the other side has to be called.
    pub fn push(&self, kind: EventKind, text: String) -> bool {
        let mut waiting = self.lock();
        if kind == EventKind::Progress {
            waiting.make_room_for_progress();
        }
        let full = waiting.pieces.len() >= LIMIT_PIECES && kind.is_output();
        // Searched from the end: the last piece of the stream is one of the last.
        let last = full.then(|| waiting.pieces.iter_mut().rev().find(|(of, _)| *of == kind)).flatten();
        match last {
            Some((_, piece)) => piece.push_str(&text),
            None => waiting.pieces.push_back((kind, text)),
        }
        !std::mem::replace(&mut waiting.called, true)
    }

    /// Everything that waits; the other side has to be called for what comes from now on.
    pub fn take(&self) -> VecDeque<Piece> {
        let mut waiting = self.lock();
        waiting.called = false;
        waiting.progress = 0;
        std::mem::take(&mut waiting.pieces)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn make_room_for_progress(&mut self) {
        self.progress += 1;
        if self.progress <= LIMIT_PROGRESS {
            return;
        }
        if let Some(oldest) = self.pieces.iter().position(|(kind, _)| *kind == EventKind::Progress) {
            self.pieces.remove(oldest);
            self.progress -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_much_progress_the_latest_is_kept() {
        let mailbox = Mailbox::default();
        mailbox.push(EventKind::Stdout, "before".into());
        for done in 0..2 * LIMIT_PROGRESS {
            mailbox.push(EventKind::Progress, done.to_string());
        }
        let taken = mailbox.take();
        assert_eq!(taken.len(), LIMIT_PROGRESS + 1);
        assert_eq!(taken[0].1, "before");
        assert_eq!(taken[1].1, LIMIT_PROGRESS.to_string());
        assert_eq!(taken[LIMIT_PROGRESS].1, (2 * LIMIT_PROGRESS - 1).to_string());
        for done in 0..LIMIT_PROGRESS {
            mailbox.push(EventKind::Progress, done.to_string());
        }
        assert_eq!(mailbox.take().len(), LIMIT_PROGRESS, "what was taken makes room");
    }

    #[test]
    fn the_other_side_is_called_once_for_what_waits() {
        let mailbox = Mailbox::default();
        assert!(mailbox.push(EventKind::Stdout, "a".into()));
        assert!(!mailbox.push(EventKind::Stderr, "b".into()));
        let taken: Vec<_> = mailbox.take().into();
        assert_eq!(taken, [(EventKind::Stdout, "a".to_owned()), (EventKind::Stderr, "b".to_owned())]);
        assert!(mailbox.push(EventKind::Stdout, "c".into()));
    }

    #[test]
    fn more_than_there_is_room_for_is_kept_in_fewer_pieces() {
        let mailbox = Mailbox::default();
        for _ in 0..LIMIT_PIECES {
            mailbox.push(EventKind::Stdout, "o".into());
            mailbox.push(EventKind::Stderr, "e".into());
        }
        mailbox.push(EventKind::Usage, "{}".into());
        let pieces = mailbox.take();
        assert_eq!(pieces.len(), LIMIT_PIECES + 1);
        for (kind, text) in [(EventKind::Stdout, "o"), (EventKind::Stderr, "e")] {
            let all: String =
                pieces.iter().filter(|(of, _)| *of == kind).map(|(_, text)| text.as_str()).collect();
            assert_eq!(all, text.repeat(LIMIT_PIECES));
        }
        assert_eq!(pieces.back().map(|(kind, _)| *kind), Some(EventKind::Usage));
    }
}
