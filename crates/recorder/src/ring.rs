//! The ring of encoded records: segments of bytes, of which the oldest are dropped.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::codec::{self, RECORD_MAX};
use crate::entry::{Entry, Record};

/// Bytes of the length before a record: two bytes of 7 bits hold [`RECORD_MAX`].
const LENGTH_MAX: usize = 2;
/// Bytes of the largest segment.
const SEGMENT_MAX: usize = 64 << 10;
/// Bytes of the smallest segment: one record fits.
const SEGMENT_MIN: usize = RECORD_MAX + LENGTH_MAX;
/// Segments of a ring with small segments. So much of the history, one of them, is dropped at once.
const SEGMENTS: usize = 16;

/// The ring that several threads write to. Clones share it.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    is_on: AtomicBool,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    limit: usize,
    /// Full segments, the oldest first.
    full: VecDeque<Arc<Segment>>,
    /// Bytes of memory of the full segments.
    held: usize,
    open: Segment,
    /// The number of the next record.
    next: u64,
}

/// Records, each after its length.
#[derive(Debug, Clone, Default)]
struct Segment {
    /// The number of its first record.
    first: u64,
    bytes: Vec<u8>,
}

impl Recorder {
    /// Creates an empty ring that takes at most `limit` bytes. With 0, or less than a record may need, it records nothing.
    pub fn new(limit: usize) -> Self {
        let ring = Ring { limit, ..Ring::default() };
        Self(Arc::new(Shared { is_on: AtomicBool::new(ring.records()), ring: Mutex::new(ring) }))
    }

    /// Sets another limit. If it is lower, the oldest records are dropped.
    pub fn set_limit(&self, limit: usize) {
        let mut ring = self.ring();
        ring.limit = limit;
        self.0.is_on.store(ring.records(), Ordering::Relaxed);
        if ring.records() {
            ring.make_room(0);
        } else {
            *ring = Ring { limit, next: ring.next, ..Ring::default() };
        }
    }

    /// Returns true if entries are recorded.
    pub fn is_on(&self) -> bool {
        self.0.is_on.load(Ordering::Relaxed)
    }

    /// Records an entry that happened at this time since the Unix epoch. The entry is made only if it is recorded.
    pub fn record(&self, at: Duration, entry: impl FnOnce() -> Entry) {
        if self.is_on() {
            let record = codec::encode(at, &entry());
            self.ring().push(&record);
        }
    }

    /// Returns what the ring has.
    pub fn history(&self) -> History {
        let ring = self.ring();
        let mut segments: Vec<Arc<Segment>> = ring.full.iter().cloned().collect();
        segments.push(Arc::new(ring.open.clone()));
        let (limit, total) = (ring.limit, ring.next);
        drop(ring);
        History { limit, total, segments }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // A panic of another thread leaves whole records.
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    const fn records(&self) -> bool {
        self.limit >= SEGMENT_MIN
    }

    /// Returns the bytes of a segment.
    fn segment(&self) -> usize {
        (self.limit / SEGMENTS).clamp(SEGMENT_MIN, SEGMENT_MAX)
    }

    fn push(&mut self, record: &[u8]) {
        // The limit may have changed since the caller looked.
        if !self.records() || record.len() > RECORD_MAX {
            return;
        }
        let needed = record.len().saturating_add(LENGTH_MAX);
        let open = &self.open.bytes;
        if open.len().saturating_add(needed) > open.capacity() {
            self.open_segment();
        }
        codec::push_length(&mut self.open.bytes, record.len());
        self.open.bytes.extend_from_slice(record);
        self.next = self.next.saturating_add(1);
    }

    /// Puts the open segment to the full ones and opens another.
    fn open_segment(&mut self) {
        let size = self.segment();
        let open = std::mem::take(&mut self.open);
        if !open.bytes.is_empty() {
            self.held = self.held.saturating_add(open.bytes.capacity());
            self.full.push_back(Arc::new(open));
        }
        self.make_room(size);
        self.open = Segment { first: self.next, bytes: Vec::with_capacity(size) };
    }

    /// Drops the oldest segments until this many bytes fit, beside the open segment.
    fn make_room(&mut self, bytes: usize) {
        let needed = self.open.bytes.capacity().saturating_add(bytes);
        while self.held.saturating_add(needed) > self.limit {
            let Some(oldest) = self.full.pop_front() else {
                // The limit is lower than the open segment.
                self.open = Segment::default();
                return;
            };
            self.held = self.held.saturating_sub(oldest.bytes.capacity());
        }
    }
}

/// A copy of the ring at one moment. Its records are decoded when they are read.
#[derive(Debug, Clone)]
pub struct History {
    limit: usize,
    total: u64,
    segments: Vec<Arc<Segment>>,
}

impl History {
    /// Returns the limit of the ring in bytes.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of records since the start of the agent, dropped ones included.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Returns the bytes of memory that the segments take.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.bytes.capacity()).sum()
    }

    /// Iterates over the records, the oldest first.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.segments.iter().flat_map(|segment| segment.records())
    }
}

impl Segment {
    fn records(&self) -> impl Iterator<Item = Record> {
        let (mut rest, mut next) = (self.bytes.as_slice(), self.first);
        std::iter::from_fn(move || {
            let (record, after) = codec::split_length(rest)?;
            let (at, entry) = codec::decode(record)?;
            let sequence = next;
            rest = after;
            next = next.saturating_add(1);
            Some(Record { sequence, at, entry })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::tests::entries;
    use crate::entry::Note;

    const DEFAULT_LIMIT: usize = 4 << 20;

    fn note(number: u64) -> Entry {
        Entry::Note(Note { about: "number".into(), text: number.to_string() })
    }

    fn record(recorder: &Recorder, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            recorder.record(Duration::from_secs(number), || note(number));
        }
    }

    fn sequences(recorder: &Recorder) -> Vec<u64> {
        recorder.history().records().map(|record| record.sequence).collect()
    }

    #[test]
    fn the_oldest_records_are_dropped() {
        let recorder = Recorder::new(DEFAULT_LIMIT);
        record(&recorder, 0..400_000);
        let history = recorder.history();
        let records: Vec<Record> = history.records().collect();
        let oldest = 400_000 - records.len() as u64;
        assert!(oldest > 0 && records.len() > 100_000, "{}", records.len());
        for (sequence, record) in (oldest..).zip(&records) {
            let want = Record { sequence, at: Duration::from_secs(sequence), entry: note(sequence) };
            assert_eq!(*record, want);
        }
        assert_eq!((history.total(), history.limit()), (400_000, DEFAULT_LIMIT));
    }

    #[test]
    fn an_empty_ring_takes_no_memory_and_limit_0_makes_no_entry() {
        assert_eq!(Recorder::new(DEFAULT_LIMIT).history().bytes(), 0);
        for limit in [0, SEGMENT_MIN - 1] {
            let recorder = Recorder::new(limit);
            recorder.record(Duration::ZERO, || unreachable!("it is off"));
            assert!(!recorder.is_on() && recorder.history().records().next().is_none());
        }
    }

    #[test]
    fn another_limit_keeps_the_newest_records() {
        let recorder = Recorder::new(DEFAULT_LIMIT);
        record(&recorder, 0..100_000);
        recorder.set_limit(DEFAULT_LIMIT / 4);
        let kept = sequences(&recorder);
        assert!(recorder.history().bytes() <= DEFAULT_LIMIT / 4 && kept.len() > 10_000);
        assert_eq!(kept.last(), Some(&99_999));
        recorder.set_limit(0);
        assert!(sequences(&recorder).is_empty() && !recorder.is_on());
        recorder.set_limit(DEFAULT_LIMIT);
        record(&recorder, 0..1);
        assert_eq!(sequences(&recorder), [100_000], "the numbers continue");
    }

    proptest! {
        /// Whatever is recorded, the ring stays below its limit, and its records are the last ones, without a gap.
        #[test]
        fn the_ring_is_bounded(
            limit in SEGMENT_MIN..200_000,
            list in proptest::collection::vec(entries("x{0,400}"), 1..80),
        ) {
            let recorder = Recorder::new(limit);
            let mut last = None;
            for entry in list.iter().cycle().take(400) {
                recorder.record(Duration::ZERO, || entry.clone());
                last = Some(entry);
                prop_assert!(recorder.history().bytes() <= limit);
            }
            let records: Vec<Record> = recorder.history().records().collect();
            let first = 400 - records.len() as u64;
            let numbers: Vec<u64> = records.iter().map(|record| record.sequence).collect();
            prop_assert_eq!(numbers, (first..400).collect::<Vec<_>>());
            let newest = records.last().map(|record| &record.entry);
            // Long texts are cut.
            let is_cut = format!("{last:?}").len() > 256;
            prop_assert!(newest.is_some() && (newest == last || is_cut));
        }
    }
}
