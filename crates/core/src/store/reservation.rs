//! Owns a record in the middle of arriving at the store, and the verdict on it.

use std::sync::Arc;

use super::memory::Reserved;
use super::{CLASS_ANY, ItemStatus, RecordKey, Store};
use crate::error::Result;
use crate::record::{self, Progress};

/// Room for one record under one key, which nobody else can write meanwhile. Dropped = given back.
pub struct Reservation {
    store: Arc<Store>,
    key: RecordKey,
    progress: Progress,
    memory: Option<Reserved>,
}

impl Reservation {
    pub(super) fn new(
        store: Arc<Store>,
        key: RecordKey,
        record_bytes: usize,
        memory: Reserved,
    ) -> Self {
        Self { store, key, progress: Progress::new(record_bytes), memory: Some(memory) }
    }

    /// Takes the next piece; true when the record is complete.
    ///
    /// # Errors
    /// `BAD_RECORD` for gaps, duplicates and overruns.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<bool> {
        self.progress.accept(offset, data)?;
        if let Some(memory) = &mut self.memory {
            memory.append(data);
        }
        Ok(self.progress.is_complete())
    }

    /// Checks the record whole; only an `Accepted` one can be looked up.
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
            self.store.commit(self.key, memory.into_stored());
        } else {
            self.memory = Some(memory);
        }
        status
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.memory.take().is_some() {
            self.store.abandon(&self.key);
        }
    }
}

/// Judges a whole record, payload checksum included.
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
