//! Owns segments in memory, for tests and fuzzing: built from records of these lengths, read back through the disk's own listener.

use std::io::{self, IoSlice};

use tierkv_core::disk::format::{Entry, SegmentName, footer};
use tierkv_core::disk::storage::DiskFile;
use tierkv_core::memory::pages::PAGE;
use tierkv_core::record::CLASS_KV;

use super::records::{key, record};

/// The name of every one of them.
pub const NAME: SegmentName = SegmentName { id: 7, made_ms: 1, salt: 0x1234_5678_9abc_def0 };

/// A file in memory.
pub struct Bytes<'a>(pub &'a [u8]);

impl DiskFile for Bytes<'_> {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.0.get(start..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
    fn allocate(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn truncate(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn write(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

fn pages(bytes: usize) -> u32 {
    u32::try_from(bytes / PAGE).expect("segments are small")
}

/// A segment of records of these lengths, with a footer or without.
pub fn segment(lengths: &[usize], is_sealed: bool) -> (Vec<u8>, Vec<Entry>) {
    let (mut bytes, mut entries) = (Vec::new(), Vec::new());
    for (number, length) in (0..).zip(lengths) {
        let record_bytes = u32::try_from(*length).expect("records are small");
        let page = pages(bytes.len());
        let tenant = number << 40 | 0x55;
        let entry = Entry { key: key(number), record_class: CLASS_KV, page, record_bytes, tenant };
        bytes.extend_from_slice(&entry.encode(&NAME));
        bytes.extend_from_slice(&record(&key(number), *length));
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
        entries.push(entry);
    }
    if is_sealed {
        bytes.extend_from_slice(&footer(&NAME, &entries, pages(bytes.len())));
    }
    (bytes, entries)
}
