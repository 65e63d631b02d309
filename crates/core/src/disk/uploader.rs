//! Owns the archive's threads: one reports flushes, the other removes deleted segments and uploads sealed ones, the oldest first.

use std::cell::Cell;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::archived::{ArchiveStats, Archived, INDEX, INTENT, read_file, replace};
use super::format::{footer_pages, footer_place};
use super::inner::{Inner, add};
use super::segments::{Object, Segment};
use super::storage::{Access, DiskFile, read_full};
use crate::archive::Archive;
use crate::limits::{ARCHIVE_REST_MS, ARCHIVE_RETRY_MAX_MS};
use crate::memory::pages::{PAGE, Pages};

/// Lower priority than the threads that serve requests.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Removes and uploads until the tier stops.
pub fn keep(shared: &Arc<Inner>) {
    let is_begun = Cell::new(false);
    run(shared, |shared, archive| {
        if archive.is_failing.load(Ordering::Acquire) {
            archive.open_anew()?;
        }
        if !is_begun.get() {
            let own = archive.own()?;
            unless_forbidden(archive, archive.clear(&*own).map(drop))?;
            unless_forbidden(archive, compare(shared, archive, &*own))?;
            is_begun.set(true);
        }
        step(shared, archive)
    });
}

/// Passes on all errors but those of an archive that never lists: it gets segments all the same.
fn unless_forbidden(archive: &Archived, done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
            ) =>
        {
            archive.fails(&error);
            Ok(())
        }
        done => done,
    }
}

/// Believes no note on disk of an object that the archive lacks. A directory restored from a back-up notes objects that were
/// removed since, and a bucket's rules or another program may remove some. What the disk has is uploaded again.
fn compare(shared: &Inner, archive: &Archived, own: &dyn Archive) -> io::Result<()> {
    let noted = shared.segments.all().into_iter();
    let noted: Vec<_> = noted.filter(|segment| segment.object() == Object::Whole).collect();
    if noted.is_empty() {
        return Ok(());
    }
    let listed = own.list()?;
    let listed: HashSet<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
    for segment in noted {
        if listed.contains(segment.name.text().as_str()) {
            continue;
        }
        // A thread that loads the segment sets its object's bytes, and an eviction leaves it to the archive.
        let loading = segment.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if segment.is_local.load(Ordering::Acquire) {
            segment.set_object(Object::None);
            segment.object_bytes.store(0, Ordering::Release);
            continue;
        }
        drop(loading);
        shared.drop_segment(&segment, &archive.counters.removed);
    }
    Ok(())
}

/// Reports flushes until the tier stops; in a thread of its own, because a caller waits for it and an upload may take long.
pub fn tell(shared: &Arc<Inner>) {
    run(shared, |shared, archive| {
        if archive.is_told_all() {
            return Ok(false);
        }
        archive.tell(&*archive.own()?, &*shared.storage)?;
        shared.next_generation();
        Ok(true)
    });
}

fn run(shared: &Arc<Inner>, step: impl Fn(&Inner, &Archived) -> io::Result<bool>) {
    let Some(archive) = &shared.archived else { return };
    // On Linux the niceness belongs to the thread alone.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICE);
    let retry = shared.options.retry;
    let mut pause = retry;
    while !shared.stops() {
        let is_ready = shared.is_ready.load(Ordering::Acquire);
        let noted = archive.noted();
        let is_wanted = || shared.stops() || archive.noted() > noted;
        match if is_ready { step(shared, archive) } else { Ok(false) } {
            Ok(does_more) => {
                pause = retry;
                if !does_more {
                    shared.wait(Instant::now() + retry, is_wanted);
                }
            }
            Err(_) if shared.stops() => {}
            Err(error) => {
                archive.fails(&error);
                shared.next_generation();
                shared.wait(Instant::now() + pause, is_wanted);
                pause = (pause * 2).min(Duration::from_millis(ARCHIVE_RETRY_MAX_MS));
            }
        }
    }
}

/// Does one step of the work; false when there was none.
fn step(shared: &Inner, archive: &Archived) -> io::Result<bool> {
    let gone = shared.segments.all_leaving().into_iter();
    let gone: Vec<_> = gone.filter(|segment| !segment.is_local.load(Ordering::Acquire)).collect();
    let next = next(shared);
    let is_failing = archive.is_failing.load(Ordering::Acquire);
    if gone.is_empty() && next.is_none() && !is_failing {
        return Ok(false);
    }
    let own = archive.own()?;
    // The names of models may have changed, too.
    archive.tell(&*own, &*shared.storage)?;
    for segment in &gone {
        remove(shared, &*own, segment)?;
    }
    // Where a segment waits, only its upload shows that the archive takes any.
    let is_well = match next {
        Some(segment) => match room(shared, archive, &segment)? {
            Room::There => upload(shared, archive, &*own, &segment)?,
            Room::Made => false,
            Room::Soon => return Ok(false),
        },
        None => true,
    };
    if is_well {
        archive.is_failing.store(false, Ordering::Release);
    }
    Ok(true)
}

/// The oldest sealed segment that the archive has no complete copy of.
fn next(shared: &Inner) -> Option<Arc<Segment>> {
    shared.segments.all().into_iter().find(|segment| is_pending(segment))
}

fn is_pending(segment: &Segment) -> bool {
    segment.is_sealed.load(Ordering::Acquire)
        && segment.is_local.load(Ordering::Acquire)
        && segment.object() != Object::Whole
        && segment.records().live > 0
}

/// Removes the object before the files that say it exists.
fn remove(shared: &Inner, own: &dyn Archive, segment: &Segment) -> io::Result<()> {
    own.remove(&segment.name.text())?;
    shared.storage.remove(&segment.name.with(INTENT))?;
    shared.storage.remove(&segment.name.with(INDEX))?;
    shared.storage.sync()?;
    shared.segments.removed(segment);
    Ok(())
}

/// Room in the archive for one more segment.
enum Room {
    There,
    /// A segment was removed; there may be room now.
    Made,
    /// The disk still has every segment of the archive, and gives some up, because its budget was lowered.
    Soon,
}

/// Finds room for the next segment, or removes the oldest segment that only the archive has.
fn room(shared: &Inner, archive: &Archived, next: &Segment) -> io::Result<Room> {
    let all = shared.segments.all();
    let used: u64 = all.iter().map(|segment| segment.object_bytes.load(Ordering::Acquire)).sum();
    if used + next.bytes.load(Ordering::Acquire) <= archive.options.max_bytes {
        return Ok(Room::There);
    }
    let Some(oldest) = all.iter().find(|segment| !segment.is_local.load(Ordering::Acquire)) else {
        let is_shrinking = shared.segments.bytes() > shared.options.max_bytes;
        if is_shrinking || shared.is_recovering.load(Ordering::Acquire) {
            return Ok(Room::Soon);
        }
        let text = format!(
            "its {} bytes are used up, and no record can leave it while the disk has the same records",
            archive.options.max_bytes
        );
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
    };
    shared.drop_segment(oldest, &archive.counters.removed);
    Ok(Room::Made)
}

/// Uploads a segment; false when it was evicted meanwhile.
fn upload(
    shared: &Inner,
    archive: &Archived,
    own: &dyn Archive,
    segment: &Segment,
) -> io::Result<bool> {
    let storage = &*shared.storage;
    let name = segment.name;
    // An eviction from now on leaves the object's removal to this thread.
    segment.set_object(Object::Perhaps);
    if shared.segments.get(name.id).is_none() {
        return Ok(false);
    }
    let file = storage.open(&name.text(), Access::Direct)?;
    let bytes = file.bytes()?;
    replace(storage, &name.with(INTENT), &footer_of(segment, &*file, bytes)?)?;
    let mut sent_at: Option<Instant> = None;
    own.put(&name.text(), bytes, &mut |buffer, offset| {
        if let Some(sent_at) = sent_at {
            let most = Duration::from_millis(ARCHIVE_REST_MS);
            shared.rest(sent_at.elapsed().min(most));
        }
        if shared.stops() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if read_full(&*file, buffer, offset)? < buffer.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        sent_at = Some(Instant::now());
        add(&archive.counters.sent_bytes, buffer.len() as u64);
        Ok(())
    })?;
    storage.rename(&name.with(INTENT), &name.with(INDEX))?;
    storage.sync()?;
    segment.object_bytes.store(bytes, Ordering::Release);
    segment.set_object(Object::Whole);
    Ok(true)
}

/// Returns the pages behind the segment's last entry.
fn footer_of(segment: &Segment, file: &dyn DiskFile, bytes: u64) -> io::Result<Vec<u8>> {
    let unsound = || io::Error::new(io::ErrorKind::InvalidData, "a sealed segment has no footer");
    let file_pages = u32::try_from(bytes / PAGE as u64).map_err(|_| unsound())?;
    let last_page = file_pages.checked_sub(1).ok_or_else(unsound)?;
    let mut last = Pages::new(PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
    read_full(file, &mut last, u64::from(last_page) * PAGE as u64)?;
    let place = footer_place(&last, &segment.name, file_pages);
    let (page, records) = place.ok_or_else(unsound)?;
    let length = footer_pages(records) as usize * PAGE;
    let mut pages = Pages::new(length).ok_or(io::ErrorKind::OutOfMemory)?;
    let read = read_full(file, &mut pages, u64::from(page) * PAGE as u64)?;
    Ok(pages[..read].to_vec())
}

impl Inner {
    /// Returns the archive's counters; `None` without an archive.
    pub fn archive_stats(&self) -> Option<ArchiveStats> {
        let archive = self.archived.as_ref()?;
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let counted = &archive.counters;
        let mut stats = ArchiveStats {
            max_bytes: archive.options.max_bytes,
            sent_bytes: of(&counted.sent_bytes),
            read: of(&counted.read),
            read_bytes: of(&counted.read_bytes),
            removed: of(&counted.removed),
            failures: of(&counted.failures),
            is_failing: archive.is_failing.load(Ordering::Acquire),
            trouble: archive.trouble(),
            ..ArchiveStats::default()
        };
        for segment in self.segments.all() {
            if segment.object() == Object::Whole {
                stats.segments += 1;
                stats.used_bytes += segment.object_bytes.load(Ordering::Acquire);
                stats.remote_segments += u64::from(!segment.is_local.load(Ordering::Acquire));
            } else if is_pending(&segment) {
                stats.pending += 1;
                stats.pending_bytes += segment.bytes.load(Ordering::Acquire);
            }
        }
        Some(stats)
    }

    /// Reads the footer of an archived segment from disk.
    pub fn read_index(&self, segment: &Segment) -> io::Result<Option<Vec<u8>>> {
        read_file(&*self.storage, &segment.name.with(INDEX))
    }
}
