//! Owns a record that is still arriving at the store, and the check at its end.

use std::sync::Arc;

use super::{Aside, CLASS_ANY, ItemStatus, RecordKey, Store};
use crate::error::{Error, Result};
use crate::memory::Reserved;
use crate::record::{self, Progress};

/// Room for one record under one key, which no other writer can store meanwhile. Dropping it gives the room back.
pub struct Reservation {
    store: Arc<Store>,
    key: RecordKey,
    progress: Progress,
    memory: Option<Reserved>,
    aside: Aside,
    /// Number of the last flush the record's maker knew of.
    known: u64,
}

impl Reservation {
    pub(super) fn new(
        store: Arc<Store>,
        key: RecordKey,
        record_bytes: usize,
        memory: Reserved,
        aside: Aside,
        known: u64,
    ) -> Self {
        let progress = Progress::new(record_bytes);
        Self { store, key, progress, memory: Some(memory), aside, known }
    }

    /// Appends the next piece; returns whether the record is complete.
    ///
    /// # Errors
    /// `BAD_RECORD` for gaps, duplicates and overruns.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<bool> {
        let start = self.progress.filled();
        self.progress.accept(offset, data)?;
        if let Some(memory) = &mut self.memory {
            memory.span(start, data.len()).copy_from_slice(data);
        }
        Ok(self.progress.is_complete())
    }

    /// Length of the record, and how many of its bytes have arrived.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        (self.progress.record_bytes(), self.progress.filled())
    }

    /// Memory for the next bytes of the record, at most `bytes`, not cleared, for callers that receive in place. `advance`
    /// then counts the bytes received.
    pub fn spare(&mut self, bytes: usize) -> &mut [u8] {
        let (start, rest) = (self.progress.filled(), self.progress.rest());
        match &mut self.memory {
            Some(memory) => memory.span(start, bytes.min(rest)),
            None => &mut [],
        }
    }

    /// Counts the next `bytes` bytes, written to the memory of `spare`; returns whether the record is complete.
    ///
    /// # Errors
    /// `BAD_RECORD` for more bytes than the record has left.
    pub fn advance(&mut self, bytes: usize) -> Result<bool> {
        let start = self.progress.filled();
        let rest = self.progress.rest();
        let Some(memory) = self.memory.as_mut().filter(|_| bytes <= rest) else {
            return Err(Error::bad_record(format!("{bytes} bytes more, where {rest} are left")));
        };
        self.progress.accept(start as u64, memory.span(start, bytes))?;
        Ok(self.progress.is_complete())
    }

    /// Copies the whole record from memory that others may write at any time. Each byte is copied once, and what was copied is
    /// checked by `commit`.
    ///
    /// # Errors
    /// `BAD_RECORD` for another length.
    pub fn copy(&mut self, record: &[u8]) -> Result<()> {
        let is_whole = (self.progress.filled(), self.progress.rest()) == (0, record.len());
        let Some(memory) = self.memory.as_mut().filter(|_| is_whole) else {
            return Err(Error::bad_record(format!(
                "it has {} bytes, not as offered",
                record.len()
            )));
        };
        memory.copy(record, |at, part| self.progress.accept(at as u64, part))
    }

    /// Like `commit`; in a store that answers once a record is durable, waits for that and returns `Durable`.
    #[must_use]
    pub fn commit_durably(self) -> ItemStatus {
        let (store, key) = (Arc::clone(&self.store), self.key);
        let status = self.commit();
        let waits = status == ItemStatus::Accepted && store.answers_durable();
        if waits && store.wait_durable(&[key]) == [true] { ItemStatus::Durable } else { status }
    }

    /// Checks the whole record; only an `Accepted` record can be looked up.
    #[must_use]
    pub fn commit(mut self) -> ItemStatus {
        if !self.progress.is_complete() {
            return ItemStatus::Incomplete;
        }
        let Some(memory) = self.memory.take() else {
            return ItemStatus::Incomplete;
        };
        let class = self.store.options.record_class;
        let status = verdict(memory.bytes(), self.progress.checksum(), &self.key, class);
        if status == ItemStatus::Accepted {
            let record = memory.into_stored(self.aside.owner);
            if !self.store.commit(self.key, record, self.aside, self.known) {
                return ItemStatus::Flushed;
            }
        } else {
            self.memory = Some(memory);
        }
        status
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.memory.take().is_some() {
            self.store.abandon(&self.key, self.aside);
        }
    }
}

/// Checks a whole record, payload checksum included.
pub(super) fn judge(bytes: &[u8], key: &RecordKey, class: u8) -> ItemStatus {
    let payload = bytes.get(record::HEADER_BYTES..).unwrap_or_default();
    verdict(bytes, crate::crc32c::checksum(payload), key, class)
}

fn verdict(bytes: &[u8], checksum: u32, key: &RecordKey, class: u8) -> ItemStatus {
    match record::check(bytes, bytes.len() as u64, checksum) {
        Err(_) => ItemStatus::BadRecord,
        Ok(header) if class != CLASS_ANY && header.record_class != class => ItemStatus::WrongClass,
        Ok(header) if !key.is_of(&header) => ItemStatus::WrongKey,
        Ok(_) => ItemStatus::Accepted,
    }
}
