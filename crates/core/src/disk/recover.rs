//! Owns what happens to the files of the run before: footers read in parallel, unsealed segments walked and sealed, half-made files removed.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::format::{Entry, SegmentName, footer};
use super::index::Place;
use super::inner::{Inner, wall_ms};
use super::segments::Segment;
use super::storage::{Access, write_full};
use super::walk::find;
use crate::limits::DISK_RECOVERY_THREADS;
use crate::memory::pages::PAGE;

/// Runs until every segment was read once, and then for those that could not be read.
pub fn run(shared: &Arc<Inner>) {
    let pause = shared.options.retry;
    let mut left = loop {
        match prepare(shared) {
            Ok(found) => break found,
            Err(_) => shared.alarm(),
        }
        shared.rest(pause);
        if shared.stops() {
            return;
        }
    };
    shared.is_ready.store(true, Ordering::Release);
    shared.next_generation();
    loop {
        left = load_all(shared, left);
        shared.is_recovering.store(false, Ordering::Release);
        shared.next_generation();
        if left.is_empty() || shared.stops() {
            return;
        }
        shared.rest(pause);
    }
}

/// Reads directory and tombstones; the segments, the newest first.
fn prepare(shared: &Inner) -> io::Result<VecDeque<Arc<Segment>>> {
    let files = shared.storage.list()?;
    shared.tombstones().load(&*shared.storage)?;
    let mut found = VecDeque::new();
    for (text, bytes) in files {
        let Some(name) = SegmentName::parse(&text) else { continue };
        let segment = Segment::new(name, bytes, expiry(shared, &name));
        segment.is_closed.store(true, Ordering::Release);
        found.push_back(Arc::new(segment));
    }
    found.make_contiguous().sort_by_key(|segment| std::cmp::Reverse(segment.name.id));
    for segment in &found {
        shared.segments.insert(Arc::clone(segment));
    }
    let last = found.front().map_or(0, |segment| segment.name.id);
    // Tombstones name ids, too: those of segments that are gone must not be given again.
    let marked = shared.tombstones().last_segment();
    shared.next_id.store(last.max(marked).saturating_add(1), Ordering::Release);
    Ok(found)
}

/// A clock that was set makes nothing older than its time to live, and nothing younger than new.
fn expiry(shared: &Inner, name: &SegmentName) -> Option<Instant> {
    let ttl = shared.options.ttl?;
    let age = Duration::from_millis(wall_ms().saturating_sub(name.made_ms)).min(ttl);
    Instant::now().checked_add(ttl.saturating_sub(age))
}

/// Returns what could not be read whole.
fn load_all(shared: &Arc<Inner>, segments: VecDeque<Arc<Segment>>) -> VecDeque<Arc<Segment>> {
    let (todo, failed) = (Mutex::new(segments), Mutex::new(VecDeque::new()));
    let work = || {
        while !shared.stops() {
            let next = todo.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(segment) = next else { return };
            if !matches!(load(shared, &segment), Ok(true)) {
                shared.alarm();
                failed.lock().unwrap_or_else(PoisonError::into_inner).push_back(segment);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..DISK_RECOVERY_THREADS {
            scope.spawn(work);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Enters a segment's records; false when some of its pages could not be read.
fn load(shared: &Arc<Inner>, segment: &Arc<Segment>) -> io::Result<bool> {
    let _loading = segment.loading.lock().unwrap_or_else(PoisonError::into_inner);
    if shared.segments.get(segment.name.id).is_none() {
        return Ok(true);
    }
    let file = shared.storage.open(&segment.name.text(), Access::Direct)?;
    let found = find(&*file, &segment.name)?;
    if found.is_sealed {
        segment.synced_pages.store(u32::MAX, Ordering::Release);
    } else if !found.is_partial && !found.entries.is_empty() {
        // Before its records can be looked up, so that they count as durable at once.
        if seal(shared, segment, &found.entries).is_err() {
            shared.alarm();
        }
    }
    enter(shared, segment, &found.entries);
    segment.is_loaded.store(!found.is_partial, Ordering::Release);
    Ok(!found.is_partial)
}

/// What was read back sound is made durable, and listed in a footer.
fn seal(shared: &Inner, segment: &Segment, entries: &[Entry]) -> io::Result<()> {
    let page = entries.last().map_or(0, |entry| entry.page + entry.pages());
    let bytes = footer(&segment.name, entries, page);
    let offset = u64::from(page) * PAGE as u64;
    let file = shared.storage.open(&segment.name.text(), Access::Write)?;
    file.sync()?;
    write_full(&*file, &mut [IoSlice::new(&bytes)], offset)?;
    file.truncate(offset + bytes.len() as u64)?;
    file.sync()?;
    shared.storage.sync()?;
    segment.bytes.store(offset + bytes.len() as u64, Ordering::Release);
    segment.synced_pages.store(page, Ordering::Release);
    Ok(())
}

fn enter(shared: &Inner, segment: &Segment, entries: &[Entry]) {
    let tombstones = shared.tombstones();
    let id = segment.name.id;
    for entry in entries.iter().filter(|entry| !tombstones.covers(entry, id)) {
        // Of two copies the newer stays: its segment is evicted later.
        let is_newer = |before: Option<Place>| {
            before.is_none_or(|before| (before.segment, before.page) < (id, entry.page))
        };
        if let Some((place, slot, before)) = shared.publish(entry, id, is_newer) {
            segment.enter(slot, &place, entry.page + entry.pages());
            if let Some(before) = before {
                shared.left(&entry.key, before);
            }
        }
    }
}
