//! Gives a worker in few system calls the pages that it would else copy one by one, while it serves its call.
//!
//! A scout - a child forked as workers are - goes the way of a job once and tells which pages of its zygote it made its own.
//! Workers then need not go that way themselves to be warm.

use std::{
    fs::File,
    io::{self, Read, Write},
    ops::Range,
    os::unix::fs::FileExt,
};

use crate::memory::mappings;

/// Of `/proc/<pid>/pagemap`, which has this many bytes for each page.
const ENTRY_BYTES: usize = 8;

/// In memory; in memory of no file, and shared with no other process (Linux 4.2; readable without privileges, pagemap(7)).
const PRESENT: u64 = 1 << 63;
const OF_FILE_OR_SHARED: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;

/// Linux 5.14; libc knows it for some targets only.
const MADV_POPULATE_WRITE: libc::c_int = 23;

/// A trivial job touches some 300 pages in 170 ranges. More are not remembered.
const MAX_RANGES: usize = 2048;
const RANGE_BYTES: usize = 16;

/// Pages to be made a worker's own.
pub(crate) struct Pages(Vec<Range<usize>>);

impl Pages {
    pub(crate) const fn none() -> Self {
        Self(Vec::new())
    }

    /// Those that the process has for itself.
    pub(crate) fn own() -> io::Result<Self> {
        let pagemap = File::open("/proc/self/pagemap")?;
        let page_bytes = page_bytes();
        let mut ranges = Vec::new();
        for mapping in mappings().into_iter().filter(|mapping| mapping.is_own) {
            let mut entries = vec![0; mapping.range.len() / page_bytes * ENTRY_BYTES];
            let at = (mapping.range.start / page_bytes * ENTRY_BYTES) as u64;
            pagemap.read_exact_at(&mut entries, at)?;
            let entries = entries.as_chunks().0.iter().map(|entry| u64::from_ne_bytes(*entry));
            add(&mut ranges, mapping.range.start, page_bytes, entries);
        }
        ranges.truncate(MAX_RANGES);
        Ok(Self(ranges))
    }

    /// Makes them the calling process's own. What is no longer there stays away; without the call (Linux below 5.14) pages
    /// are copied when they are needed.
    pub(crate) fn take(&self) {
        for Range { start, end } in &self.0 {
            // SAFETY: changes no content.
            unsafe { libc::madvise(*start as *mut libc::c_void, end - start, MADV_POPULATE_WRITE) };
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|range| range.len() / page_bytes()).sum()
    }

    pub(crate) fn write(&self, mut to: impl Write) -> io::Result<()> {
        let numbers = self.0.iter().flat_map(|range| [range.start, range.end]);
        to.write_all(&numbers.flat_map(|number| (number as u64).to_ne_bytes()).collect::<Vec<u8>>())
    }

    /// Reads what `write` wrote, up to its end. Only what lies in a heap or stack of the calling process is taken.
    pub(crate) fn read(from: impl Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        from.take((MAX_RANGES * RANGE_BYTES) as u64).read_to_end(&mut bytes)?;
        let mappings = mappings();
        let number = |bytes: &[u8; 8]| usize::try_from(u64::from_ne_bytes(*bytes)).unwrap_or(0);
        let ranges = bytes.as_chunks::<RANGE_BYTES>().0.iter().map(|range| {
            let halves = range.as_chunks::<8>().0;
            number(&halves[0])..number(&halves[1])
        });
        let is_own = |range: &Range<usize>| {
            let mut own = mappings.iter().filter(|mapping| mapping.is_own);
            range.start < range.end
                && own.any(|mapping| mapping.range.start <= range.start && range.end <= mapping.range.end)
        };
        Ok(Self(ranges.filter(is_own).collect()))
    }
}

/// Adds the pages from `at` on that belong to nobody else, as ranges.
fn add(ranges: &mut Vec<Range<usize>>, at: usize, page_bytes: usize, entries: impl Iterator<Item = u64>) {
    for (index, entry) in entries.enumerate() {
        if entry & (PRESENT | EXCLUSIVE | OF_FILE_OR_SHARED) != PRESENT | EXCLUSIVE {
            continue;
        }
        let start = at + index * page_bytes;
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end += page_bytes,
            _ => ranges.push(start..start + page_bytes),
        }
    }
}

fn page_bytes() -> usize {
    // SAFETY: reads a constant of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_range_and_shared_pages_none() {
        let (own, shared, of_file) = (PRESENT | EXCLUSIVE, PRESENT, PRESENT | EXCLUSIVE | OF_FILE_OR_SHARED);
        let mut ranges = Vec::new();
        add(&mut ranges, 0x1000, 0x1000, [own, own, shared, own, of_file, 0, EXCLUSIVE].into_iter());
        add(&mut ranges, 0x8000, 0x1000, [own, shared].into_iter());
        assert_eq!(ranges, [0x1000..0x3000, 0x4000..0x5000, 0x8000..0x9000]);
    }

    #[test]
    fn own_pages_are_found_told_and_taken() {
        let own = Pages::own().unwrap();
        assert!(!own.is_empty());
        let mut told = Vec::new();
        own.write(&mut told).unwrap();
        let read = Pages::read(&*told).unwrap();
        assert!(!read.is_empty());
        read.take();
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "nothing that is told is trusted")]
    fn what_is_no_heap_of_the_reader_is_not_taken() {
        let text = page_bytes as *const () as usize / 4096 * 4096;
        let foreign =
            Pages(vec![0..4096, text..text + 4096, usize::MAX - 8191..usize::MAX - 4095, 8192..4096]);
        let mut told = Vec::new();
        foreign.write(&mut told).unwrap();
        told.push(1);
        assert!(Pages::read(&*told).unwrap().is_empty());
    }

    #[test]
    fn what_is_told_has_a_limit() {
        let told = vec![0_u8; MAX_RANGES * RANGE_BYTES * 2];
        assert!(Pages::read(&*told).unwrap().0.len() <= MAX_RANGES);
    }
}
