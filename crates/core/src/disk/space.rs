//! Owns the room on disk: new segments, whole-segment eviction with a second chance for records in use, time to live.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, VecDeque};
use std::hash::BuildHasher;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::active::{Active, pages_of};
use super::format::{SegmentName, footer_pages};
use super::inner::{add, wall_ms};
use super::queue::{Age, Job};
use super::segments::{Object, Segment};
use super::storage::write_full;
use super::writer::Writer;
use crate::limits::{DISK_MOVED_SHARE, DISK_RESERVE_SEGMENTS, DISK_TTL_STEPS};
use crate::memory::pages::PAGE;

impl Writer {
    /// Opens a new segment with room for the first of `jobs`; puts records that move before them.
    pub(super) fn open(&mut self, jobs: &mut VecDeque<Job>) -> io::Result<()> {
        let record_bytes = jobs.front().map_or(0, |job| job.source.len());
        let pages = u64::from(pages_of(record_bytes)) + u64::from(footer_pages(1));
        let bytes = self.shared.options.segment_bytes.max(pages * PAGE as u64);
        let mut moving = Vec::new();
        let opened = match self
            .make_room(bytes, moved_bytes(jobs.iter()), &mut moving)
            .and_then(|()| self.create_for(bytes, &moving, jobs))
        {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                if self.is_full_for_long() && self.free_oldest(&mut moving) {
                    self.create_for(bytes, &moving, jobs)
                } else {
                    Err(error)
                }
            }
            opened => opened,
        };
        if opened.is_ok() {
            self.full_since = None;
        }
        match opened {
            Ok(active) => self.active = Some(active),
            Err(error) => {
                // The queue is the only place left for the moved records.
                self.shared.queue.push_back(moving);
                return Err(error);
            }
        }
        for moved in moving.into_iter().rev() {
            jobs.push_front(moved);
        }
        Ok(())
    }

    /// Creates a segment for the records that are written first. Those that move and have a time to live get a segment of
    /// their own, only as long as they need, which expires with the first of them.
    fn create_for(&self, bytes: u64, moving: &[Job], jobs: &VecDeque<Job>) -> io::Result<Active> {
        let first = moving.iter().chain(jobs).map_while(|job| Some((job, job.age?)));
        let (mut age, mut pages, mut records): (Option<Age>, u64, usize) = (None, 0, 0);
        for (job, of) in first {
            pages += u64::from(pages_of(job.source.len()));
            records += 1;
            age = age.filter(|age| age.expires <= of.expires).or(Some(of));
        }
        let needed = (pages + u64::from(footer_pages(records))) * PAGE as u64;
        self.create(if age.is_some() { bytes.min(needed) } else { bytes }, age)
    }

    /// Whether a record may go into the active segment: it must fit, expire no later than it would without a move, and not
    /// much earlier than its time to live says.
    pub(super) fn takes(&self, active: &Active, job: &Job) -> bool {
        let lives = match (job.age, active.expires()) {
            (Some(age), Some(expires)) => expires <= age.expires,
            (None, Some(expires)) => !self.is_aged(expires),
            (_, None) => true,
        };
        lives && !self.waits_for_archive(active)
    }

    /// Evicts while more is on disk than the budget, which was lowered, and nobody waits for the writer. What moves is
    /// written before the next segments go.
    pub(super) fn shrink(&mut self) {
        let shared = Arc::clone(&self.shared);
        let max_bytes = shared.options.max_bytes;
        let is_wanted = |writer: &Self| {
            let is_known = !shared.is_recovering.load(Ordering::Acquire);
            let is_over = shared.segments.bytes() > max_bytes;
            is_known && is_over && writer.retry_at.is_none() && shared.queue.is_idle()
        };
        while is_wanted(self) {
            let (mut moving, before) = (Vec::new(), shared.segments.bytes());
            let made = self.make_room(0, 0, &mut moving);
            let is_stuck = moving.is_empty() && shared.segments.bytes() >= before;
            if !moving.is_empty() {
                self.commit(moving.into());
            }
            if let Err(error) = made {
                self.fail(Vec::new(), &error);
            }
            if is_stuck {
                return;
            }
        }
    }

    /// Opens a segment to test a failed disk while no record is queued, because no write would show its recovery. Never evicts for it.
    pub(super) fn probe(&mut self) {
        let shared = Arc::clone(&self.shared);
        let bytes = shared.options.segment_bytes;
        let is_due = self.active.is_none()
            && self.retry_at.is_some_and(|at| at <= Instant::now())
            && shared.queue.held().0 == 0
            && shared.segments.bytes() + bytes <= shared.options.max_bytes;
        if !is_due {
            return;
        }
        match self.create(bytes, None) {
            Ok(active) => {
                self.active = Some(active);
                self.full_since = None;
                self.recovers();
            }
            Err(error) => self.fail(Vec::new(), &error),
        }
        shared.next_generation();
    }

    /// Whether the disk has been full for longer than the patience for other programs; then only our own segments can make room.
    fn is_full_for_long(&mut self) -> bool {
        let since = *self.full_since.get_or_insert_with(Instant::now);
        since.elapsed() >= self.shared.options.full_patience
    }

    fn free_oldest(&mut self, moving: &mut Vec<Job>) -> bool {
        let Some(next) = self.next_to_go(&[]) else { return false };
        let used = self.shared.segments.bytes();
        moving.extend(self.evict(&next));
        self.shared.remove_files() > 0 || self.shared.segments.bytes() < used
    }

    fn create(&self, bytes: u64, age: Option<Age>) -> io::Result<Active> {
        let shared = &self.shared;
        let id = shared.next_id.fetch_add(1, Ordering::AcqRel);
        let salt = RandomState::new().hash_one(id);
        let made_ms = age.map_or_else(wall_ms, |age| age.made_ms) & 0xffff_ffff_ffff;
        let name = SegmentName { id, made_ms, salt };
        let file = shared.storage.create(&name.text())?;
        let made = file
            .allocate(bytes)
            // On a file system without preallocation only a write shows a full disk.
            .and_then(|()| write_full(&*file, &mut [IoSlice::new(&[0; PAGE])], 0))
            .and_then(|()| file.sync())
            .and_then(|()| shared.storage.sync());
        if let Err(error) = made {
            if shared.storage.remove(&name.text()).is_err() {
                shared.alarm();
            }
            return Err(error);
        }
        let fresh = || shared.options.ttl.and_then(|ttl| Instant::now().checked_add(ttl));
        let expires = age.map(|age| age.expires).or_else(fresh);
        let segment = Arc::new(Segment::new(name, bytes, expires));
        segment.is_loaded.store(true, Ordering::Release);
        shared.segments.insert(Arc::clone(&segment));
        let file_pages = u32::try_from(bytes / PAGE as u64).unwrap_or(u32::MAX);
        Ok(Active::new(segment, file, file_pages))
    }

    /// Evicts until a file of `bytes` bytes fits beside the reserve, or a segment's worth of records moves, which must be
    /// written first; adds the records to move to `held` bytes that move already. Fails where files that cannot be removed
    /// leave no room.
    fn make_room(&mut self, bytes: u64, held: u64, moving: &mut Vec<Job>) -> io::Result<()> {
        let reserve = self.shared.options.segment_bytes * (DISK_RESERVE_SEGMENTS - 1);
        let limit = self.shared.options.max_bytes.saturating_sub(reserve + bytes);
        let mut stuck = Vec::new();
        let leaving = |shared: &super::inner::Inner| {
            let gone = shared.segments.all_leaving();
            gone.iter().map(|segment| segment.bytes.load(Ordering::Acquire)).sum::<u64>()
        };
        // A budget that was lowered may need thousands of evictions, and their moved records lie in memory until written.
        let most = self.shared.options.segment_bytes - self.moved_bytes_max();
        while self.shared.segments.bytes().saturating_sub(leaving(&self.shared)) > limit
            && (moving.is_empty() || held + moved_bytes(moving.iter()) <= most)
            && let Some(next) = self.next_to_go(&stuck)
        {
            moving.extend(self.evict(&next));
            let id = next.name.id;
            if next.is_local.load(Ordering::Acquire) && self.shared.segments.get(id).is_some() {
                stuck.push(id);
            }
        }
        // The janitor removes files in the background, where no write waits for it, unless the budget would be exceeded.
        if self.shared.segments.bytes() + bytes > self.shared.options.max_bytes {
            self.shared.remove_files();
        }
        if !stuck.is_empty() && self.shared.segments.bytes() + bytes > self.shared.options.max_bytes
        {
            let text = format!("the files of {} archived segments cannot be removed", stuck.len());
            return Err(io::Error::other(text));
        }
        Ok(())
    }

    /// Returns the segment to evict, none of `stuck`: the oldest that the archive has, because its loss costs least. Otherwise the oldest
    /// whose protected tenants' records can all move, or else the one with the fewest bytes of theirs.
    fn next_to_go(&self, stuck: &[u32]) -> Option<Arc<Segment>> {
        let active = self.active.as_ref().map(Active::id);
        let keepers = self.shared.tenants.keepers();
        let mut least: Option<(u64, Arc<Segment>)> = None;
        let mut all = self.shared.segments.all();
        all.retain(|segment| {
            let id = segment.name.id;
            segment.is_local.load(Ordering::Acquire) && Some(id) != active && !stuck.contains(&id)
        });
        let is_archived = |segment: &&Arc<Segment>| segment.object() == Object::Whole;
        if let Some(archived) = all.iter().find(is_archived) {
            return Some(Arc::clone(archived));
        }
        for segment in all {
            let kept = kept_bytes(&segment, &keepers);
            if kept <= self.moved_bytes_max() {
                return Some(segment);
            }
            if least.as_ref().is_none_or(|(bytes, _)| kept < *bytes) {
                least = Some((kept, segment));
            }
        }
        least.map(|(_, segment)| segment)
    }

    /// Most bytes moved out of a segment; the limit ensures that eviction gains room and that moved records fit in memory.
    fn moved_bytes_max(&self) -> u64 {
        self.shared.options.segment_bytes / DISK_MOVED_SHARE
    }

    /// Evicts a segment from disk. Records of protected tenants move first, then recently used ones, up to the limit. The
    /// rest stays readable in the archive where it has a copy, or is lost.
    fn evict(&mut self, segment: &Arc<Segment>) -> Vec<Job> {
        let is_archived = segment.object() == Object::Whole && self.shared.archived.is_some();
        // A thread that loads the segment's entries finishes first, and then sees that the segment is gone.
        let _loading = segment.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = std::mem::take(&mut segment.records().slots);
        let keepers = self.shared.tenants.keepers();
        let mut places: Vec<_> =
            slots.iter().filter_map(|slot| self.shared.index.at(*slot, segment.name.id)).collect();
        places.sort_by_key(|(_, place, _)| !keepers.contains(&place.tenant));
        let mut room = self.moved_bytes_max();
        let mut moving = Vec::new();
        for (key, place, is_hot) in places {
            let bytes = u64::from(place.record_bytes);
            if (is_hot || keepers.contains(&place.tenant))
                && bytes <= room
                && let Some(mut job) = self.load(key, place)
            {
                room -= bytes;
                if is_archived {
                    moving.push(job);
                    continue;
                }
                job.origin = None;
                self.shared.forget(&key, place);
                if self.shared.index.reserve(&key) {
                    moving.push(job);
                }
            } else if !is_archived && self.shared.forget(&key, place) {
                add(&self.shared.counters.evicted, 1);
            }
        }
        if is_archived {
            segment.records().slots = slots;
            self.shared.leave_to_archive(segment);
        } else {
            self.shared.mark_deleted(segment);
        }
        moving
    }

    /// Removes expired segments.
    pub(super) fn expire(&mut self) {
        let now = Instant::now();
        let is_old = |segment: &Arc<Segment>| segment.expires.is_some_and(|expires| expires <= now);
        let active = self.active.as_ref().map(Active::id);
        for segment in self.shared.segments.all().into_iter().filter(is_old) {
            if Some(segment.name.id) != active {
                self.shared.drop_segment(&segment, &self.shared.counters.expired);
            }
        }
    }

    /// Whether the active segment must be closed early: because it expires as a whole and later records would lose too
    /// much of their time to live, or because its first record has waited long enough for the archive.
    pub(super) fn is_worn(&self) -> bool {
        self.active.as_ref().is_some_and(|active| {
            self.waits_for_archive(active)
                || active.expires().is_some_and(|expires| self.is_aged(expires))
        })
    }

    /// Whether the segment's first record has waited long enough for the archive.
    fn waits_for_archive(&self, active: &Active) -> bool {
        let after = self.shared.archived.as_ref().map(|archive| archive.options.after);
        let waited = active.first_at().map(|at| at.elapsed());
        after.zip(waited).is_some_and(|(after, waited)| waited >= after)
    }

    /// Whether a new record of a segment that expires then would lose too much of its time to live.
    fn is_aged(&self, expires: Instant) -> bool {
        self.shared.options.ttl.is_some_and(|ttl| {
            expires.saturating_duration_since(Instant::now())
                < ttl.saturating_sub(ttl / DISK_TTL_STEPS)
        })
    }
}

/// Bytes of the records that move.
fn moved_bytes<'a>(jobs: impl IntoIterator<Item = &'a Job>) -> u64 {
    jobs.into_iter().filter(|job| job.is_moved()).map(|job| job.source.len() as u64).sum()
}

/// Bytes of protected tenants in a segment.
fn kept_bytes(segment: &Segment, keepers: &BTreeSet<u16>) -> u64 {
    let held = segment.records();
    let kept = held.tenant_bytes.iter().filter(|(tenant, _)| keepers.contains(tenant));
    kept.map(|(_, bytes)| bytes).sum()
}
