//! Owns recovery: footers read in parallel, unsealed segments walked and sealed, unfinished uploads removed.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::archived::{Archived, INDEX, INTENT, object, replace};
use super::format::{Entry, SegmentName, footer, parse_index};
use super::index::Place;
use super::inner::{Inner, wall_ms};
use super::segments::{Object, Segment};
use super::storage::{Access, write_full};
use super::walk::{Found, find};
use crate::limits::{ARCHIVE_RETRY_MAX_MS, DISK_RECOVERY_THREADS, DISK_REREAD_MAX_MS};
use crate::memory::pages::PAGE;

/// Runs until every segment is read; retries segments that could not be read.
pub fn run(shared: &Arc<Inner>) {
    let mut pause = shared.options.retry;
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
    shared.next_generation();
    loop {
        left = load_all(shared, left);
        shared.is_recovering.store(false, Ordering::Release);
        shared.next_generation();
        if left.is_empty() || shared.stops() {
            return;
        }
        shared.rest(pause);
        pause = longer(pause, &left);
    }
}

/// The next pause: an unreadable segment of a disk is read whole for each try, an archive is asked for a little.
fn longer(pause: Duration, left: &VecDeque<Arc<Segment>>) -> Duration {
    let is_far = left.iter().any(|segment| !segment.is_local.load(Ordering::Acquire));
    let most = if is_far { ARCHIVE_RETRY_MAX_MS } else { DISK_REREAD_MAX_MS };
    (pause * 2).min(Duration::from_millis(most))
}

/// Reads directory and tombstones, then declares the directory ready; returns the segments, the newest first.
fn prepare(shared: &Inner) -> io::Result<VecDeque<Arc<Segment>>> {
    let files = shared.storage.list()?;
    shared.tombstones().load(&*shared.storage)?;
    let mut found = VecDeque::new();
    let mut last = 0;
    for (name, on_disk, object) in sightings(&files) {
        last = last.max(name.id);
        let is_reached = shared.archived.is_some();
        if object != Object::None && !is_reached {
            shared.segments.set_unreached(name.id);
        }
        if on_disk.is_none() && !is_reached {
            continue;
        }
        let segment = Segment::new(name, on_disk.unwrap_or_default(), expiry(shared, &name));
        segment.is_closed.store(true, Ordering::Release);
        segment.is_local.store(on_disk.is_some(), Ordering::Release);
        segment.set_object(if is_reached { object } else { Object::None });
        let segment = Arc::new(segment);
        shared.segments.insert(Arc::clone(&segment));
        if on_disk.is_none() && object == Object::Perhaps {
            // The segment was evicted during its upload.
            shared.mark_deleted(&segment);
        } else {
            found.push_front(segment);
        }
    }
    // Tombstones name segment ids, too; the id of a removed segment must not be reused.
    let mut tombstones = shared.tombstones();
    let next = last.max(tombstones.last_segment()).saturating_add(1);
    shared.next_id.store(next, Ordering::Release);
    let has_early = !tombstones.is_saved();
    if tombstones.settle(&*shared.storage, (next, 0)).is_err() {
        shared.alarm();
    }
    if let Some(archive) = shared.archived.as_ref().filter(|_| has_early) {
        archive.note();
    }
    // Set under the lock, so that each flush is either settled here or sees it.
    shared.is_ready.store(true, Ordering::Release);
    Ok(found)
}

/// Returns each segment named in the directory, the oldest first: its file's length, and the state of its archive copy.
fn sightings(files: &[(String, u64)]) -> Vec<(SegmentName, Option<u64>, Object)> {
    let mut found = BTreeMap::new();
    for (text, bytes) in files {
        let sighting = |name: SegmentName| (name, None, Object::None);
        if let Some(name) = SegmentName::parse(text) {
            found.entry(name.id).or_insert_with(|| sighting(name)).1 = Some(*bytes);
        } else if let Some(name) = SegmentName::parse_with(text, INDEX) {
            found.entry(name.id).or_insert_with(|| sighting(name)).2 = Object::Whole;
        } else if let Some(name) = SegmentName::parse_with(text, INTENT) {
            let known = found.entry(name.id).or_insert_with(|| sighting(name));
            known.2 = if known.2 == Object::None { Object::Perhaps } else { known.2 };
        }
    }
    found.into_values().collect()
}

/// A changed clock cannot make a segment's age negative or larger than its time to live.
fn expiry(shared: &Inner, name: &SegmentName) -> Option<Instant> {
    let ttl = shared.options.ttl?;
    let age = Duration::from_millis(wall_ms().saturating_sub(name.made_ms)).min(ttl);
    Instant::now().checked_add(ttl.saturating_sub(age))
}

/// Loads the segments in parallel; returns those not read completely.
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

/// Enters a segment's records into the index; false when some of its pages could not be read.
fn load(shared: &Arc<Inner>, segment: &Arc<Segment>) -> io::Result<bool> {
    let _loading = segment.loading.lock().unwrap_or_else(PoisonError::into_inner);
    if shared.segments.get(segment.name.id).is_none() {
        return Ok(true);
    }
    let found = if segment.is_local.load(Ordering::Acquire) {
        let file = shared.storage.open(&segment.name.text(), Access::Direct)?;
        find(&*file, &segment.name)?
    } else {
        match find_archived(shared, segment) {
            // The object was removed from the archive by another program.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                shared.mark_deleted(segment);
                return Ok(true);
            }
            found => found?,
        }
    };
    if segment.object() == Object::Whole && segment.is_local.load(Ordering::Acquire) {
        let bytes = segment.bytes.load(Ordering::Acquire);
        segment.object_bytes.store(bytes, Ordering::Release);
    }
    let is_remote = !segment.is_local.load(Ordering::Acquire);
    let mut is_whole = !found.is_partial;
    if found.is_sealed || is_remote {
        segment.synced_pages.store(u32::MAX, Ordering::Release);
        segment.is_sealed.store(found.is_sealed, Ordering::Release);
    } else if !found.is_partial && !found.entries.is_empty() {
        // Seals before the records can be looked up, so that they count as durable at once.
        if seal(shared, segment, &found.entries).is_err() {
            // Tried again, because the archive gets no segment without a footer.
            is_whole = false;
        }
    }
    enter(shared, segment, &found.entries);
    segment.is_loaded.store(!found.is_partial, Ordering::Release);
    Ok(is_whole)
}

/// Reads the entries of a segment that only the archive has, from the footer on disk or from the archive.
fn find_archived(shared: &Inner, segment: &Segment) -> io::Result<Found> {
    let index = shared.read_index(segment)?;
    if let Some((entries, pages)) = index.and_then(|bytes| parse_index(&bytes, &segment.name)) {
        segment.object_bytes.store(u64::from(pages) * PAGE as u64, Ordering::Release);
        return Ok(Found { entries, is_sealed: true, is_partial: false });
    }
    let Some(archive) = &shared.archived else { return Ok(Found::default()) };
    let found = find_object(archive, segment);
    let found = found.inspect_err(|error| archive.fails(error))?;
    if found.is_sealed {
        let page = found.entries.last().map_or(0, |entry| entry.page + entry.pages());
        let bytes = footer(&segment.name, &found.entries, page);
        replace(&*shared.storage, &segment.name.with(INDEX), &bytes)?;
    }
    Ok(found)
}

/// Reads the entries of a segment's object; one that is missing or has no footer is believed only of the vault's own archive.
fn find_object(archive: &Archived, segment: &Segment) -> io::Result<Found> {
    let opened = archive.opened();
    let file = object(&opened, &segment.name);
    let found = file.bytes().and_then(|bytes| {
        segment.object_bytes.store(bytes, Ordering::Release);
        find(&*file, &segment.name)
    });
    let is_whole = found.as_ref().is_ok_and(|found| found.is_sealed);
    if !is_whole {
        archive.check_owner(&*opened)?;
    }
    found
}

/// Makes the verified records durable and lists them in a footer.
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
    segment.is_sealed.store(true, Ordering::Release);
    Ok(())
}

fn enter(shared: &Inner, segment: &Segment, entries: &[Entry]) {
    let tombstones = shared.tombstones();
    let id = segment.name.id;
    for entry in entries.iter().filter(|entry| !tombstones.covers(entry, id)) {
        // The newer of two copies stays, because its segment is evicted later.
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
