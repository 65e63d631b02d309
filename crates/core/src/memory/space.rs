//! Owns the address space of a store's records: whole pages, whose memory is reused for later records or returned to the system.
//!
//! An allocator keeps holes between records of many lengths, up to a third of a vault's memory after a while. Here a hole
//! costs only address space.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::pages::PAGE;

/// Number of the longest spare runs checked for adjacent empty pages.
const JOINED_TRIES: usize = 8;

/// Reserved address space and its free pages.
#[derive(Debug)]
pub(super) struct Space {
    start: NonNull<c_void>,
    bytes: usize,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    /// Free pages without memory.
    empty: Runs,
    /// Free pages that keep their memory, because faulting pages in costs more than receiving a record.
    spare: Runs,
    /// Fewest spare pages since the last trim, so that this many were not needed.
    unused: usize,
}

// SAFETY: the mapping belongs to no thread and has one owner.
unsafe impl Send for Space {}
// SAFETY: a lock guards the free pages.
unsafe impl Sync for Space {}

impl Space {
    /// Reserves `bytes` of address space without memory; `None` where the system refuses.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(PAGE).filter(|bytes| *bytes > 0)?;
        let start = reserve(bytes)?;
        Some(Self { start, bytes, free: Mutex::new(Free::new(bytes / PAGE)) })
    }

    /// Takes pages for `bytes` bytes, and says whether all are zeros; `None` without a free run of that length.
    pub(super) fn take(&self, bytes: usize) -> Option<(NonNull<u8>, bool)> {
        let (from, are_zeros) = self.free().take(pages_of(bytes))?;
        Some((self.page(from), are_zeros))
    }

    /// Returns pages with their memory.
    ///
    /// # Safety
    /// `take` returned `start` for `bytes`, and no reference exists.
    pub(super) unsafe fn give(&self, start: NonNull<u8>, bytes: usize) {
        let from = (start.addr().get() - self.start.addr().get()) / PAGE;
        self.free().spare.give(from, pages_of(bytes));
    }

    /// Bytes of free pages that have memory.
    pub(super) fn spare_bytes(&self) -> u64 {
        (self.free().spare.pages * PAGE) as u64
    }

    /// Returns the spare memory above `room` bytes to the system, the shortest runs first.
    pub(super) fn shrink(&self, room: u64) {
        let room = usize::try_from(room).map_or(usize::MAX, |room| room / PAGE);
        loop {
            let Some((from, pages)) = self.free().cut(room) else { return };
            // SAFETY: the pages are free, and cannot be taken meanwhile.
            let is_gone = unsafe { empty(self.page(from), pages * PAGE) };
            // Locked memory stays, so that its pages are not handed out as zeros.
            let mut free = self.free();
            if !is_gone {
                free.spare.give(from, pages);
                return;
            }
            free.empty.give(from, pages);
        }
    }

    /// Returns memory to the system that was not needed since the last call.
    pub(super) fn trim(&self) {
        let needed = {
            let free = self.free();
            free.spare.pages - free.unused
        };
        self.shrink((needed * PAGE) as u64);
        let mut free = self.free();
        free.unused = free.spare.pages;
    }

    fn page(&self, number: usize) -> NonNull<u8> {
        // SAFETY: every page number lies within the mapping.
        unsafe { self.start.cast::<u8>().add(number * PAGE) }
    }

    pub(super) fn has(&self, place: NonNull<u8>) -> bool {
        let start = self.start.addr().get();
        (start..start + self.bytes).contains(&place.addr().get())
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no reference exists. Unmapping an existing mapping cannot fail.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
    }
}

#[cfg(all(target_os = "linux", not(loom)))]
fn reserve(bytes: usize) -> Option<NonNull<c_void>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new anonymous mapping aliases nothing.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
    let start = NonNull::new(start.ok()?)?;
    // Huge pages would add memory beyond a record's end. A system without them refuses the call, which is harmless.
    // SAFETY: the mapping is ours, and the advice changes no contents.
    let _ = unsafe { madvise(start.as_ptr(), bytes, Advice::LinuxNoHugepage) };
    Some(start)
}

/// Elsewhere released pages do not read as zeros, so that only the system allocator is used.
#[cfg(not(all(target_os = "linux", not(loom))))]
fn reserve(_: usize) -> Option<NonNull<c_void>> {
    None
}

/// Releases the memory of pages, which then read as zeros; returns whether the system took it.
///
/// # Safety
/// The pages belong to a mapping of ours, and no reference to them exists.
#[cfg(target_os = "linux")]
unsafe fn empty(start: NonNull<u8>, bytes: usize) -> bool {
    use rustix::mm::{Advice, madvise};
    // SAFETY: as the caller promises.
    unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontNeed) }.is_ok()
}

/// # Safety
/// None is needed.
#[cfg(not(target_os = "linux"))]
unsafe fn empty(_: NonNull<u8>, _: usize) -> bool {
    false
}

/// Gives the pages around some bytes their memory, as writing to each would.
///
/// # Safety
/// The bytes belong to a mapping of ours.
#[cfg(target_os = "linux")]
pub(super) unsafe fn populate(start: NonNull<u8>, bytes: usize) {
    use rustix::mm::{Advice, madvise};
    let before = start.addr().get() % PAGE;
    // SAFETY: a mapping begins at a page, so that the page with the first byte is ours.
    let page = unsafe { start.sub(before) };
    // SAFETY: the pages are ours, and populating changes no contents. Before Linux 5.14 the call fails, which is harmless.
    let _ = unsafe { madvise(page.as_ptr().cast(), before + bytes, Advice::LinuxPopulateWrite) };
}

/// # Safety
/// None is needed.
#[cfg(not(target_os = "linux"))]
pub(super) unsafe fn populate(_: NonNull<u8>, _: usize) {}

pub(super) fn pages_of(bytes: usize) -> usize {
    bytes.div_ceil(PAGE)
}

impl Free {
    fn new(pages: usize) -> Self {
        let mut empty = Runs::default();
        empty.insert(0, pages);
        Self { empty, spare: Runs::default(), unused: 0 }
    }

    /// Takes a run of pages; returns its first page, and whether all are zeros.
    fn take(&mut self, pages: usize) -> Option<(usize, bool)> {
        if let Some(from) = self.spare.take(pages) {
            self.unused = self.unused.min(self.spare.pages);
            return Some((from, false));
        }
        if let Some(from) = self.take_joined(pages) {
            return Some((from, false));
        }
        Some((self.empty.take(pages)?, true))
    }

    /// Takes a spare run that is too short, with empty pages beside it, so that only those are faulted in.
    fn take_joined(&mut self, pages: usize) -> Option<usize> {
        let longest = self.spare.by_pages.iter().rev().take(JOINED_TRIES);
        let (first, (from, has)) = longest.copied().find_map(|(has, from)| {
            let missing = pages - has;
            let fits = |(_, free): &(usize, usize)| *free >= missing;
            let behind = self.empty.starting_at(from + has).filter(fits).map(|_| from);
            let before = || self.empty.ending_at(from).filter(fits).map(|_| from - missing);
            Some((behind.or_else(before)?, (from, has)))
        })?;
        self.spare.remove(from, has);
        let missing = pages - has;
        self.empty.cut_out(if first == from { from + has } else { first }, missing);
        self.unused = self.unused.min(self.spare.pages);
        Some(first)
    }

    /// Takes a run of spare pages out, or its part above `room`.
    fn cut(&mut self, room: usize) -> Option<(usize, usize)> {
        let beyond = self.spare.pages.checked_sub(room).filter(|beyond| *beyond > 0)?;
        let (has, _) = self.spare.by_pages.first().copied()?;
        let pages = has.min(beyond);
        let from = self.spare.take(pages)?;
        self.unused = self.unused.min(self.spare.pages);
        Some((from, pages))
    }
}

/// Runs of free pages; no two are adjacent.
#[derive(Debug, Default)]
struct Runs {
    /// Total of the pages.
    pages: usize,
    /// Length of each run, by first page.
    by_start: BTreeMap<usize, usize>,
    /// The runs as (pages, first page).
    by_pages: BTreeSet<(usize, usize)>,
}

impl Runs {
    /// Takes pages from the shortest run that is long enough; returns the first page.
    fn take(&mut self, pages: usize) -> Option<usize> {
        let (has, from) = self.by_pages.range((pages, 0)..).next().copied()?;
        self.remove(from, has);
        if has > pages {
            self.insert(from + pages, has - pages);
        }
        Some(from)
    }

    fn give(&mut self, mut from: usize, mut pages: usize) {
        if let Some((before, has)) = self.ending_at(from) {
            self.remove(before, has);
            (from, pages) = (before, has + pages);
        }
        if let Some((behind, has)) = self.starting_at(from + pages) {
            self.remove(behind, has);
            pages += has;
        }
        self.insert(from, pages);
    }

    /// Takes pages out of the run that contains them, at its beginning or end.
    fn cut_out(&mut self, from: usize, pages: usize) {
        let run = self.by_start.range(..=from).next_back();
        let Some((&start, &has)) = run else { return };
        self.remove(start, has);
        for (from, pages) in [(start, from - start), (from + pages, start + has - from - pages)] {
            if pages > 0 {
                self.insert(from, pages);
            }
        }
    }

    fn starting_at(&self, page: usize) -> Option<(usize, usize)> {
        self.by_start.get(&page).map(|pages| (page, *pages))
    }

    fn ending_at(&self, page: usize) -> Option<(usize, usize)> {
        let (&from, &pages) = self.by_start.range(..page).next_back()?;
        (from + pages == page).then_some((from, pages))
    }

    fn insert(&mut self, from: usize, pages: usize) {
        self.pages += pages;
        self.by_start.insert(from, pages);
        self.by_pages.insert((pages, from));
    }

    fn remove(&mut self, from: usize, pages: usize) {
        self.pages -= pages;
        self.by_start.remove(&from);
        self.by_pages.remove(&(pages, from));
    }
}

#[cfg(all(test, target_os = "linux", not(loom)))]
mod tests {
    use super::{PAGE, Runs, Space, populate};

    fn whole(pages: usize) -> Runs {
        let mut runs = Runs::default();
        runs.insert(0, pages);
        runs
    }

    #[test]
    fn runs_that_touch_become_one() {
        let mut runs = whole(10);
        let taken: Vec<_> = (0..5).map(|_| runs.take(2)).collect();
        assert_eq!(taken, [Some(0), Some(2), Some(4), Some(6), Some(8)]);
        assert_eq!((runs.take(1), runs.pages), (None, 0));
        for from in [2, 6, 4] {
            runs.give(from, 2);
        }
        assert_eq!(runs.by_pages.iter().copied().collect::<Vec<_>>(), [(6, 2)]);
        runs.give(0, 2);
        runs.give(8, 2);
        assert_eq!((runs.pages, runs.take(10)), (10, Some(0)));
    }

    #[test]
    fn the_shortest_run_that_is_long_enough_is_taken() {
        let mut runs = whole(20);
        for _ in 0..10 {
            runs.take(2);
        }
        for from in [0, 2, 4, 10, 12, 16] {
            runs.give(from, 2);
        }
        assert_eq!((runs.take(3), runs.take(5), runs.take(1)), (Some(10), Some(0), Some(5)));
        assert_eq!((runs.take(2), runs.take(3)), (Some(16), None));
    }

    fn fill(space: &Space, pages: usize) -> std::ptr::NonNull<u8> {
        let (start, _) = space.take(pages * PAGE).expect("free");
        // SAFETY: so many bytes of ours.
        unsafe { start.write_bytes(7, pages * PAGE) };
        start
    }

    #[test]
    fn pages_come_back_with_their_memory_until_it_is_the_systems() {
        let space = Space::new(8 * PAGE).expect("address space");
        let first = fill(&space, 3);
        assert!(space.has(first) && space.take(6 * PAGE).is_none());
        // SAFETY: taken so, and not used any more.
        unsafe { space.give(first, 3 * PAGE) };
        assert_eq!(space.spare_bytes(), 3 * PAGE as u64);
        assert_eq!(space.take(3 * PAGE - 1), Some((first, false)));
        // SAFETY: as above.
        unsafe { space.give(first, 3 * PAGE - 1) };
        space.shrink(PAGE as u64);
        assert_eq!(space.spare_bytes(), PAGE as u64);
        space.shrink(0);
        let (again, are_zeros) = space.take(8 * PAGE).expect("free");
        assert!(are_zeros && again == first);
        // SAFETY: so many bytes of ours, zeros at first.
        let seen = unsafe { std::slice::from_raw_parts(again.as_ptr(), 8 * PAGE) };
        assert!(seen.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_spare_run_that_is_too_short_is_taken_with_empty_pages_beside_it() {
        for before in [0, 3] {
            let space = Space::new(8 * PAGE).expect("address space");
            let (left, middle) = (fill(&space, before.max(1)), fill(&space, 2));
            let right = fill(&space, 8 - 2 - before.max(1));
            // SAFETY: taken so, and not used any more.
            unsafe { space.give(if before == 0 { right } else { left }, 3 * PAGE) };
            space.shrink(0);
            // SAFETY: as above.
            unsafe { space.give(middle, 2 * PAGE) };
            let expected = if before == 0 { middle } else { left };
            let (start, are_zeros) = space.take(5 * PAGE).expect("free");
            assert_eq!((start, are_zeros, space.spare_bytes()), (expected, false, 0), "{before}");
        }
    }

    #[test]
    fn populated_pages_are_written_without_a_fault() {
        let faults = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("of Linux");
            let fields = stat.rsplit_once(") ").expect("a name in brackets").1;
            fields.split(' ').nth(7).expect("the tenth field").parse::<u64>().expect("a number")
        };
        let space = Space::new(256 * PAGE).expect("address space");
        let (start, _) = space.take(256 * PAGE).expect("free");
        // SAFETY: so many bytes of ours.
        unsafe { populate(start, 256 * PAGE) };
        let before = faults();
        // SAFETY: as above.
        unsafe { start.write_bytes(7, 256 * PAGE) };
        assert!(faults() - before < 32, "{before} before, {} after", faults());
    }

    #[test]
    fn what_was_needed_since_the_last_time_is_not_trimmed() {
        let space = Space::new(16 * PAGE).expect("address space");
        let (first, second) = (fill(&space, 2), fill(&space, 4));
        // SAFETY: taken so, and not used any more.
        unsafe { space.give(first, 2 * PAGE) };
        // SAFETY: as above.
        unsafe { space.give(second, 4 * PAGE) };
        space.trim();
        let third = fill(&space, 4);
        // SAFETY: as above.
        unsafe { space.give(third, 4 * PAGE) };
        space.trim();
        assert_eq!(space.spare_bytes(), 4 * PAGE as u64);
        space.trim();
        assert_eq!(space.spare_bytes(), 0);
    }
}
