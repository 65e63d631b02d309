//! Owns the segment that is being written: appending, syncing, sealing.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::format::{ENTRY_BYTES, Entry, footer, footer_pages};
use super::index::Place;
use super::inner::{Inner, add};
use super::queue::Job;
use super::segments::Segment;
use super::storage::{DiskFile, write_full};
use crate::failpoint::failpoint;
use crate::memory::pages::PAGE;

/// A written record and its place.
pub struct Placed {
    pub job: Job,
    pub place: Place,
}

pub struct Active {
    segment: Arc<Segment>,
    file: Arc<dyn DiskFile>,
    entries: Vec<Entry>,
    next_page: u32,
    file_pages: u32,
    is_sealed: bool,
    /// When the segment's first record was written.
    first_at: Option<Instant>,
}

/// Filler between a record's end and the next page.
const ZEROS: [u8; PAGE] = [0; PAGE];

impl Active {
    /// Returns an empty segment whose file has `file_pages` pages.
    pub fn new(segment: Arc<Segment>, file: Arc<dyn DiskFile>, file_pages: u32) -> Self {
        let (entries, next_page, is_sealed) = (Vec::new(), 0, false);
        Self { segment, file, entries, next_page, file_pages, is_sealed, first_at: None }
    }

    pub fn into_segment(self) -> Arc<Segment> {
        self.segment
    }

    pub fn id(&self) -> u32 {
        self.segment.name.id
    }

    /// Position in the log behind the last write.
    pub fn mark(&self) -> (u32, u32) {
        (self.id(), self.next_page)
    }

    /// Whether a record fits, together with the footer the segment then needs.
    pub fn fits(&self, record_bytes: usize) -> bool {
        self.fits_behind(record_bytes, self.next_page, self.entries.len())
    }

    fn fits_behind(&self, record_bytes: usize, page: u32, entries: usize) -> bool {
        let pages = pages_of(record_bytes);
        let end = u64::from(page) + u64::from(pages) + u64::from(footer_pages(entries + 1));
        end <= u64::from(self.file_pages)
    }

    /// Writes as many of the first `most` jobs as fit in one write, and enters them into the index. After an error the jobs
    /// are still in `jobs`.
    pub fn append(
        &mut self,
        shared: &Inner,
        jobs: &mut VecDeque<Job>,
        most: usize,
        written: &mut Vec<Placed>,
    ) -> io::Result<()> {
        let mut entries = Vec::new();
        let mut page = self.next_page;
        for job in jobs.iter().take(most) {
            if !self.fits_behind(job.source.len(), page, self.entries.len() + entries.len()) {
                break;
            }
            let record_bytes = u32::try_from(job.source.len()).unwrap_or(u32::MAX);
            let Job { key, record_class, tenant, .. } = *job;
            let entry = Entry { key, record_class, page, record_bytes, tenant };
            page += entry.pages();
            entries.push(entry);
        }
        let heads: Vec<_> = entries.iter().map(|entry| entry.encode(&self.segment.name)).collect();
        let mut parts = Vec::with_capacity(entries.len() * 3);
        for (head, job) in heads.iter().zip(jobs.iter()) {
            let filler = (ENTRY_BYTES + job.source.len()).next_multiple_of(PAGE);
            parts.push(IoSlice::new(head));
            parts.push(IoSlice::new(&job.source));
            parts.push(IoSlice::new(&ZEROS[..filler - ENTRY_BYTES - job.source.len()]));
        }
        let offset = u64::from(self.next_page) * PAGE as u64;
        failpoint("disk.append")?;
        write_full(&*self.file, &mut parts, offset)?;
        failpoint("disk.written")?;
        add(&shared.counters.file_bytes, u64::from(page - self.next_page) * PAGE as u64);
        self.next_page = page;
        self.first_at.get_or_insert_with(Instant::now);
        for entry in entries {
            let Some(job) = jobs.pop_front() else { break };
            written.extend(self.enter(shared, job, entry));
        }
        Ok(())
    }

    /// Enters a record into the index; `None` when its job is outdated, and this copy is never looked up.
    fn enter(&mut self, shared: &Inner, job: Job, entry: Entry) -> Option<Placed> {
        let (origin, is_moved) = (job.origin, job.is_moved());
        self.entries.push(entry);
        let (place, slot, before) = shared.publish(&entry, self.id(), |now| now == origin)?;
        self.segment.enter(slot, &place, entry.page + entry.pages());
        if let Some(before) = before {
            shared.left(&job.key, before);
        }
        // An eviction forgets the old place before the record is written again.
        if is_moved {
            add(&shared.counters.moved, 1);
        } else {
            add(&shared.counters.written, 1);
            add(&shared.counters.written_bytes, u64::from(place.record_bytes));
        }
        Some(Placed { job, place })
    }

    /// When the segment's first record was written.
    pub fn first_at(&self) -> Option<Instant> {
        self.first_at
    }

    /// When the segment's records expire.
    pub fn expires(&self) -> Option<Instant> {
        self.segment.expires
    }

    /// Gives allocated but unwritten bytes back to the file system; a failure keeps them allocated.
    pub fn trim(&self) {
        let bytes = u64::from(self.next_page) * PAGE as u64;
        if self.segment.bytes.load(Ordering::Acquire) > bytes
            && !self.is_sealed
            && self.file.truncate(bytes).is_ok()
        {
            self.segment.bytes.store(bytes, Ordering::Release);
        }
    }

    pub fn sync(&mut self, shared: &Inner) -> io::Result<()> {
        failpoint("disk.sync")?;
        self.file.sync()?;
        failpoint("disk.synced")?;
        self.segment.set_synced(self.next_page);
        shared.next_generation();
        Ok(())
    }

    /// Writes the footer after syncing the entries, so that a footer implies its entries.
    pub fn seal(&mut self, shared: &Inner) -> io::Result<()> {
        if self.entries.is_empty() {
            self.file.truncate(0)?;
            self.segment.bytes.store(0, Ordering::Release);
            return Ok(());
        }
        self.sync(shared)?;
        let bytes = footer(&self.segment.name, &self.entries, self.next_page);
        let offset = u64::from(self.next_page) * PAGE as u64;
        write_full(&*self.file, &mut [IoSlice::new(&bytes)], offset)?;
        self.file.truncate(offset + bytes.len() as u64)?;
        self.file.sync()?;
        self.segment.bytes.store(offset + bytes.len() as u64, Ordering::Release);
        add(&shared.counters.file_bytes, bytes.len() as u64);
        self.is_sealed = true;
        self.segment.is_sealed.store(true, Ordering::Release);
        Ok(())
    }
}

pub fn pages_of(record_bytes: usize) -> u32 {
    u32::try_from((ENTRY_BYTES + record_bytes).div_ceil(PAGE)).unwrap_or(u32::MAX)
}
