//! Owns finding the entries of a segment: from its footer, or page by page, skipping pages without a sound entry.

use std::io;

use super::format::{Entry, SegmentName, footer_place, parse_footer};
use super::storage::{DiskFile, read_full};
use crate::memory::pages::{PAGE, Pages};

/// Pages read at a time.
const WINDOW_PAGES: u32 = 512;

/// Entries found in a segment.
#[derive(Debug, Default)]
pub struct Found {
    /// In page order. Without a footer each record was checked whole.
    pub entries: Vec<Entry>,
    /// Whether the entries come from a footer, so that all are durable.
    pub is_sealed: bool,
    /// Whether some pages could not be read, so that entries may be missing.
    pub is_partial: bool,
}

/// Reads the entries from a segment's footer, or from the segment itself without a sound footer.
///
/// # Errors
/// Errors of reading the footer.
pub fn find(file: &dyn DiskFile, segment: &SegmentName) -> io::Result<Found> {
    let file_pages = u32::try_from(file.bytes()? / PAGE as u64).unwrap_or(u32::MAX);
    match read_footer(file, segment, file_pages)? {
        Some(entries) => Ok(Found { entries, is_sealed: true, is_partial: false }),
        None => Ok(walk(file, segment, file_pages)),
    }
}

/// Reads a footer; `None` when there is none, or it is not sound.
fn read_footer(
    file: &dyn DiskFile,
    name: &SegmentName,
    file_pages: u32,
) -> io::Result<Option<Vec<Entry>>> {
    let Some(last_page) = file_pages.checked_sub(1) else { return Ok(None) };
    let Some(mut last) = Pages::new(PAGE) else { return Ok(None) };
    read_full(file, &mut last, u64::from(last_page) * PAGE as u64)?;
    let Some((page, _)) = footer_place(&last, name, file_pages) else { return Ok(None) };
    let Some(mut pages) = Pages::new((file_pages - page) as usize * PAGE) else { return Ok(None) };
    let read = read_full(file, &mut pages, u64::from(page) * PAGE as u64)?;
    Ok(parse_footer(&pages[..read], name, file_pages))
}

fn walk(file: &dyn DiskFile, segment: &SegmentName, file_pages: u32) -> Found {
    let mut walked = Found::default();
    let mut window = Window { file, file_pages, first: 0, held: 0, pages: None };
    let mut page = 0;
    while page < file_pages {
        let found = window.get(page, 1).and_then(|bytes| Entry::parse(bytes, segment, page));
        let sound = found.filter(|entry| {
            let bytes = window.get(page, entry.pages());
            bytes.is_some_and(|bytes| entry.record(bytes).is_some())
        });
        // A page without a sound entry has a torn tail, a flipped bit, or was never written; an entry may start at any later page.
        page += sound.map_or(1, |entry| entry.pages());
        walked.entries.extend(sound);
        walked.is_partial |= window.held == 0;
    }
    walked
}

struct Window<'a> {
    file: &'a dyn DiskFile,
    file_pages: u32,
    first: u32,
    /// Pages read; 0 after a failed read.
    held: u32,
    pages: Option<Pages>,
}

impl Window<'_> {
    /// Returns pages of the file; `None` past its end, or when they cannot be read.
    fn get(&mut self, page: u32, count: u32) -> Option<&[u8]> {
        let end = page.checked_add(count).filter(|end| *end <= self.file_pages)?;
        if page < self.first || end > self.first + self.held {
            let ahead = count.max(WINDOW_PAGES).min(self.file_pages - page);
            if !(self.fill(page, ahead) || ahead > count && self.fill(page, count)) {
                return None;
            }
        }
        let start = (page - self.first) as usize * PAGE;
        self.pages.as_ref()?.get(start..start + count as usize * PAGE)
    }

    fn fill(&mut self, page: u32, count: u32) -> bool {
        (self.first, self.held) = (page, 0);
        let bytes = count as usize * PAGE;
        if self.pages.as_ref().is_none_or(|pages| pages.len() < bytes) {
            self.pages = Pages::new(bytes);
        }
        let Some(pages) = &mut self.pages else { return false };
        let read = read_full(self.file, &mut pages[..bytes], u64::from(page) * PAGE as u64);
        if read.is_ok_and(|read| read == bytes) {
            self.held = count;
        }
        self.held > 0
    }
}
