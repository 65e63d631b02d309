//! Owns reading one record back: checked whole, quarantined when bad, refused while the disk hangs.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::archived::{Archived, object};
use super::format::{ENTRY_BYTES, Entry};
use super::index::Place;
use super::inner::{Inner, add};
use super::segments::Segment;
use super::storage::{DiskFile, read_full};
use crate::key::RecordKey;
use crate::memory::pages::{PAGE, Pages};
use crate::record::HEADER_BYTES;

/// How a read went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The record is there, sound, and has the wanted key.
    Sound,
    /// The bytes at the place are not a sound record of that key.
    Bad,
    /// The read failed for now.
    Failed,
}

/// Counter for tickets, and the open reads by start time.
type Open = (u64, BTreeSet<(Instant, u64)>);

/// Open reads of one device. A read over the time limit means that the device hangs, and that no other caller should wait for it.
#[derive(Debug)]
pub struct Stalls {
    limit: Duration,
    open: Mutex<Open>,
}

impl Stalls {
    /// Sets the time limit of a read in ms.
    pub fn new(limit_ms: u64) -> Self {
        Self { limit: Duration::from_millis(limit_ms), open: Mutex::default() }
    }

    /// Whether the oldest read is over the limit.
    pub fn any(&self) -> bool {
        self.hangs(&self.open())
    }

    fn hangs(&self, open: &Open) -> bool {
        open.1.first().is_some_and(|(begun, _)| begun.elapsed() > self.limit)
    }

    fn begin(&self) -> Option<(Instant, u64)> {
        let mut open = self.open();
        if self.hangs(&open) {
            return None;
        }
        open.0 += 1;
        let ticket = (Instant::now(), open.0);
        open.1.insert(ticket);
        Some(ticket)
    }

    fn end(&self, ticket: (Instant, u64)) {
        self.open().1.remove(&ticket);
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Reads the entry at `place` into `pages`, which must hold it; a bad one is quarantined.
    pub fn read(&self, key: &RecordKey, place: Place, pages: &mut [u8]) -> Outcome {
        let stalls = self.stalls_at(place);
        let Some(ticket) = stalls.begin() else {
            add(&self.counters.missed, 1);
            return Outcome::Failed;
        };
        let begun = Instant::now();
        let far = self.archive_at(place);
        // A single failure may come from the path, not the medium, so that each read has a second try.
        let mut read = self.read_once(key, place, pages);
        if let Err(error) = &read {
            self.read_failed(place, error);
            read = self.read_once(key, place, pages);
        }
        stalls.end(ticket);
        if let Some(archive) = far {
            archive.paces.read(begun, Instant::now());
        }
        let outcome = read.unwrap_or(Outcome::Failed);
        match outcome {
            Outcome::Sound => {}
            Outcome::Bad => self.quarantine(key, place),
            Outcome::Failed => add(&self.counters.missed, 1),
        }
        outcome
    }

    /// Open reads of the device that holds `place`; a slow archive must not count against the disk.
    pub fn stalls_at(&self, place: Place) -> &Stalls {
        self.archive_at(place).map_or(&self.stalls, |archive| &archive.stalls)
    }

    /// The archive, where `place` is not on disk.
    pub fn archive_at(&self, place: Place) -> Option<&Archived> {
        let segment = self.segments.get(place.segment)?;
        self.archived.as_ref().filter(|_| !segment.is_local.load(Ordering::Acquire))
    }

    fn read_failed(&self, place: Place, error: &io::Error) {
        match self.archive_at(place) {
            Some(archive) => archive.fails(error),
            None => self.alarm(),
        }
    }

    /// The file of a segment, on the disk or in the archive.
    fn file(&self, segment: &Arc<Segment>) -> io::Result<Arc<dyn DiskFile>> {
        match &self.archived {
            Some(archive) if !segment.is_local.load(Ordering::Acquire) => {
                Ok(object(&archive.opened(), &segment.name))
            }
            _ => self.segments.reader(&*self.storage, segment),
        }
    }

    fn read_once(&self, key: &RecordKey, place: Place, pages: &mut [u8]) -> io::Result<Outcome> {
        let wanted = place.entry(*key);
        let Some(segment) = self.segments.get(place.segment) else {
            self.forget(key, place);
            return Ok(Outcome::Failed);
        };
        let is_local = segment.is_local.load(Ordering::Acquire);
        let far = self.archived.as_ref().filter(|_| !is_local);
        // The same one is read and asked whose it is, because it may be opened anew in between.
        let far = far.map(|archive| (archive, archive.opened()));
        let bytes = wanted.pages() as usize * PAGE;
        let offset = u64::from(place.page) * PAGE as u64;
        let file = match &far {
            Some((_, opened)) => Ok(object(opened, &segment.name)),
            None => self.segments.reader(&*self.storage, &segment),
        };
        let read = file.and_then(|file| read_full(&*file, &mut pages[..bytes], offset));
        let is_own = || far.as_ref().map_or(Ok(()), |(far, opened)| far.check_owner(&**opened));
        let read = match read {
            // The record was evicted meanwhile or its file removed; unless the segment has just moved to the archive.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && is_local == segment.is_local.load(Ordering::Acquire) =>
            {
                is_own()?;
                self.forget(key, place);
                return Ok(Outcome::Failed);
            }
            read => read?,
        };
        if let Some((archive, _)) = &far {
            archive.was_read(read as u64);
        }
        let found = Entry::parse(&pages[..read], &segment.name, place.page);
        let is_there = found.is_some_and(|found| found.is_at(&wanted));
        let is_sound = is_there && wanted.record(&pages[..read]).is_some();
        if is_sound {
            return Ok(Outcome::Sound);
        }
        is_own()?;
        Ok(Outcome::Bad)
    }

    /// Reads the header of the record at `place`; `None` where the read fails.
    pub fn read_header(&self, place: Place) -> Option<[u8; HEADER_BYTES]> {
        let stalls = self.stalls_at(place);
        let ticket = stalls.begin()?;
        let mut page = Pages::new(PAGE)?;
        let read = self.segments.get(place.segment).and_then(|segment| {
            let file = self.file(&segment).ok()?;
            read_full(&*file, &mut page, u64::from(place.page) * PAGE as u64).ok()
        });
        stalls.end(ticket);
        page[..read?].get(ENTRY_BYTES..)?.first_chunk().copied()
    }

    /// Reads the entry at `place` into newly allocated pages.
    pub fn read_pages(&self, key: &RecordKey, place: Place) -> Result<Pages, Outcome> {
        let bytes = place.entry(*key).pages() as usize * PAGE;
        let mut pages = Pages::new(bytes).ok_or(Outcome::Failed)?;
        match self.read(key, place, &mut pages) {
            Outcome::Sound => Ok(pages),
            other => Err(other),
        }
    }
}
