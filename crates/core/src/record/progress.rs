//! Owns the progress of an arriving record: pieces in ascending order, with the checksum computed on the way.

use super::HEADER_BYTES;
use crate::crc32c;
use crate::error::Error;

/// Bytes of a record that have arrived, and the checksum of the payload so far.
///
/// The checksum is computed as bytes arrive, while they are in the cache.
#[derive(Debug)]
pub struct Progress {
    record_bytes: usize,
    filled: usize,
    checksum: u32,
}

impl Progress {
    /// Returns the progress of a record of `record_bytes` bytes that has not begun to arrive.
    #[must_use]
    pub fn new(record_bytes: usize) -> Self {
        Self { record_bytes, filled: 0, checksum: 0 }
    }

    /// Whether the whole record has arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.filled == self.record_bytes
    }

    /// Bytes that have arrived.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes of the whole record.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Bytes that are still to come.
    #[must_use]
    pub fn rest(&self) -> usize {
        self.record_bytes - self.filled
    }

    /// The payload's checksum so far.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Counts `data` at `offset`, which must be the end of the last piece.
    ///
    /// # Errors
    /// `BAD_RECORD` for gaps, duplicates and overruns, which are not counted.
    pub fn accept(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        if offset != self.filled as u64 {
            return Err(Error::bad_record(format!(
                "a piece starts at {offset}, but {} is next: pieces must ascend without gaps",
                self.filled
            )));
        }
        if data.len() > self.rest() {
            return Err(Error::bad_record(format!(
                "a piece of {} bytes at {offset} runs over the record's {} bytes",
                data.len(),
                self.record_bytes
            )));
        }
        let in_header = HEADER_BYTES.saturating_sub(self.filled).min(data.len());
        self.checksum = crc32c::append(self.checksum, &data[in_header..]);
        self.filled += data.len();
        Ok(())
    }
}
