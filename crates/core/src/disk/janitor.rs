//! Owns the durable tier's background work: removing files, and reading every record again from time to time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::inner::{Inner, add};
use super::read::Outcome;
use super::segments::{Object, Segment};
use crate::limits::DISK_SCRUB_BYTES;

const TICK: Duration = Duration::from_secs(1);
/// Pause between two walks over all records.
const SCRUB_PAUSE: Duration = Duration::from_secs(3600);

/// Runs until the tier stops.
pub fn run(shared: &Arc<Inner>) {
    let mut scrub = Scrub::default();
    let mut scrub_at = Instant::now() + TICK;
    while !shared.stops() {
        shared.remove_files();
        shared.collect_empty();
        if scrub_at <= Instant::now() {
            scrub.run(shared, DISK_SCRUB_BYTES);
            let is_through = scrub.segment == 0;
            scrub_at = Instant::now() + if is_through { SCRUB_PAUSE } else { TICK };
        }
        shared.await_janitor(TICK);
    }
    shared.remove_files();
}

impl Inner {
    /// Removes the files of removed segments; returns how many. The archive's thread removes their objects.
    pub fn remove_files(&self) -> usize {
        let mut gone = Vec::new();
        let leaving = self.segments.all_leaving().into_iter();
        for segment in leaving.filter(|segment| segment.is_local.load(Ordering::Acquire)) {
            if self.storage.remove(&segment.name.text()).is_ok() {
                gone.push(segment);
            } else {
                self.alarm();
            }
        }
        // Before the sync is durable the files may come back, so that their tombstones must be kept.
        if gone.is_empty() || self.storage.sync().is_err() {
            return 0;
        }
        for segment in &gone {
            if self.archived.is_some() && segment.object() != Object::None {
                segment.bytes.store(0, Ordering::Release);
                segment.is_local.store(false, Ordering::Release);
            } else {
                self.segments.removed(segment);
            }
        }
        gone.len()
    }

    /// Removes the file of a segment that the archive has, and reads it there. Until the removal is durable the file may come back.
    pub fn leave_to_archive(&self, segment: &Segment) {
        let bytes = self.segments.leave_disk(segment);
        if self.storage.remove(&segment.name.text()).is_err() {
            self.alarm();
            segment.bytes.store(bytes, Ordering::Release);
            segment.is_local.store(true, Ordering::Release);
        }
    }

    /// Removes segments without live records: all were flushed, moved, or copies.
    fn collect_empty(&self) {
        for segment in self.segments.all() {
            let is_whole = segment.is_closed.load(Ordering::Acquire)
                && segment.is_loaded.load(Ordering::Acquire);
            if is_whole && segment.records().live == 0 {
                self.mark_deleted(&segment);
            }
        }
    }
}

/// A walk over all records, in parts.
#[derive(Default)]
pub struct Scrub {
    segment: u32,
    position: usize,
}

impl Scrub {
    /// Reads about `bytes` bytes and quarantines bad records; returns the bytes read and the number of bad records.
    pub fn run(&mut self, shared: &Inner, bytes: u64) -> (u64, u64) {
        let (mut done, mut bad) = (0, 0);
        while done < bytes {
            let all = shared.segments.all();
            let Some(segment) = all.iter().find(|segment| segment.name.id >= self.segment) else {
                *self = Self::default();
                break;
            };
            if !segment.is_local.load(Ordering::Acquire) {
                self.segment = segment.name.id.saturating_add(1);
                continue;
            }
            if segment.name.id != self.segment {
                (self.segment, self.position) = (segment.name.id, 0);
            }
            let Some((read, was_bad)) = self.one(shared, segment) else {
                (self.segment, self.position) = (segment.name.id.saturating_add(1), 0);
                continue;
            };
            done += read;
            bad += u64::from(was_bad);
        }
        add(&shared.counters.scrubbed_bytes, done);
        (done, bad)
    }

    /// Checks the next record of a segment; `None` at its end.
    fn one(&mut self, shared: &Inner, segment: &Segment) -> Option<(u64, bool)> {
        let slot = segment.records().slots.get(self.position).copied()?;
        self.position += 1;
        let Some((key, place, _)) = shared.index.at(slot, segment.name.id) else {
            return Some((0, false));
        };
        let outcome = shared.read_pages(&key, place).err();
        Some((u64::from(place.record_bytes), outcome == Some(Outcome::Bad)))
    }
}
