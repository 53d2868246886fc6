//! The end of a stream: what is kept of npm's stderr.

use tokio::io::{AsyncRead, AsyncReadExt};

/// Read at once.
const CHUNK_BYTES: usize = 8 * 1024;

/// The last bytes of a stream, and how many there were.
#[derive(Debug)]
pub(super) struct Tail {
    kept: Vec<u8>,
    limit_bytes: usize,
    total_bytes: u64,
}

impl Tail {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self { kept: Vec::new(), limit_bytes, total_bytes: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.total_bytes += bytes.len() as u64;
        self.kept.extend_from_slice(bytes);
        // Moved down only now and then, not with every chunk.
        if self.kept.len() > 2 * self.limit_bytes {
            self.kept.drain(..self.kept.len() - self.limit_bytes);
        }
    }

    /// How much there was.
    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// What is kept, from a line's start on when it is not all: half a line could hold half a credential.
    pub(super) fn text(&self) -> String {
        let kept = &self.kept[self.kept.len().saturating_sub(self.limit_bytes)..];
        let whole = self.total_bytes == kept.len() as u64;
        let start = if whole {
            0
        } else {
            kept.iter().position(|byte| *byte == b'\n').map_or(kept.len(), |at| at + 1)
        };
        String::from_utf8_lossy(&kept[start..]).trim().to_owned()
    }
}

/// Reads to the end, keeping what `tail` keeps; a stream that breaks has ended.
pub(super) async fn keep(mut from: impl AsyncRead + Unpin, tail: &std::sync::Mutex<Tail>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut chunk).await {
        tail.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(&chunk[..count]);
    }
}

/// Reads to the end and keeps nothing, so that the writer never waits.
pub(super) async fn drain(mut from: impl AsyncRead + Unpin) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(1..) = from.read(&mut chunk).await {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_whole() {
        let mut tail = Tail::new(10);
        tail.push(b" ab\n");
        tail.push(b"cd\n");
        assert_eq!((tail.text().as_str(), tail.total_bytes()), ("ab\ncd", 7));
    }

    #[test]
    fn what_does_not_starts_with_a_line() {
        let mut tail = Tail::new(10);
        for _ in 0..50 {
            tail.push(b"secret=x\nlast\n");
        }
        assert_eq!((tail.text().as_str(), tail.total_bytes()), ("last", 700));
        let mut unbroken = Tail::new(4);
        unbroken.push(b"abcdefgh");
        assert_eq!(unbroken.text(), "");
    }
}
