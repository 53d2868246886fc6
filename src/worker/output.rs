//! What a worker prints: text across chunk borders, and the last of it. Pure.

/// How much of each stream an error shows, in bytes.
pub const TAIL_BYTES: usize = 8 * 1024;

/// UTF-8 that comes in any chunks. What is no UTF-8 becomes U+FFFD.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    /// The beginning of a character, at most 3 bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// The text that is whole with `chunk`; the beginning of a character is kept for the next chunk.
    pub fn push(&mut self, chunk: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.pending);
        bytes.extend_from_slice(chunk);
        let whole = bytes.len() - unfinished_bytes(&bytes);
        self.pending = bytes.split_off(whole);
        into_text(bytes)
    }

    /// What is left at the end of the stream.
    pub fn finish(&mut self) -> String {
        into_text(std::mem::take(&mut self.pending))
    }
}

/// How many bytes at the end of `bytes` are the beginning of a character that may still be completed.
fn unfinished_bytes(bytes: &[u8]) -> usize {
    let Some(last) = bytes.utf8_chunks().last() else { return 0 };
    let tail = last.invalid();
    // `utf8_chunks` gives the longest valid beginning; at the end of the input it is incomplete, not wrong.
    let incomplete = std::str::from_utf8(tail).is_err_and(|error| error.error_len().is_none());
    if incomplete { tail.len() } else { 0 }
}

fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The last [`TAIL_BYTES`] of a stream.
#[derive(Debug, Default)]
pub struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    /// Adds to the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        let chunk = if chunk.len() > TAIL_BYTES {
            self.cut = true;
            &chunk[chunk.len() - TAIL_BYTES..]
        } else {
            chunk
        };
        let excess = (self.bytes.len() + chunk.len()).saturating_sub(TAIL_BYTES);
        self.cut |= excess > 0;
        self.bytes.drain(..excess);
        self.bytes.extend_from_slice(chunk);
    }

    /// The tail as text; a character that lost its beginning is left out.
    pub fn text(&self) -> String {
        let is_continuation = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
        let skip = if self.cut { self.bytes.iter().take(3).take_while(is_continuation).count() } else { 0 };
        String::from_utf8_lossy(&self.bytes[skip..]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tail_starts_with_a_whole_character() {
        let mut tail = Tail::default();
        tail.push("値".repeat(TAIL_BYTES).as_bytes());
        let text = tail.text();
        assert_eq!(text, "値".repeat(TAIL_BYTES / 3));
        tail.push(b"end");
        assert!(tail.text().ends_with("値end"));
        assert!(tail.bytes.len() <= TAIL_BYTES);
    }

    #[test]
    fn what_is_no_utf8_is_replaced_once_it_is_known_to_be_none() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"a\xff\xe5\x80"), "a\u{fffd}");
        assert_eq!(stream.push(b"\xa4b\xf0\x9f"), "値b");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn text_survives_any_chunks(text in "\\PC{0,300}", chunk_bytes in 1..9_usize) {
            let mut stream = Utf8Stream::default();
            let mut decoded: String = text.as_bytes().chunks(chunk_bytes).map(|chunk| stream.push(chunk)).collect();
            decoded.push_str(&stream.finish());
            prop_assert_eq!(decoded, text);
        }

        #[test]
        fn any_bytes_decode_as_a_whole(bytes in prop::collection::vec(any::<u8>(), 0..200), chunk_bytes in 1..9_usize) {
            let mut stream = Utf8Stream::default();
            let mut decoded: String = bytes.chunks(chunk_bytes).map(|chunk| stream.push(chunk)).collect();
            decoded.push_str(&stream.finish());
            prop_assert_eq!(decoded, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn a_tail_is_the_end(chunks in prop::collection::vec(0..6000_usize, 0..8)) {
            let mut tail = Tail::default();
            let mut all = String::new();
            for (index, size) in chunks.into_iter().enumerate() {
                let chunk = char::from(b'a' + u8::try_from(index).unwrap()).to_string().repeat(size * 3);
                tail.push(chunk.as_bytes());
                all.push_str(&chunk);
            }
            prop_assert_eq!(tail.text(), &all[all.len().saturating_sub(TAIL_BYTES)..]);
        }
    }
}
