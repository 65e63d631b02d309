//! Owns the bytes of an object: an index of its records, then the records one after another.

use tierkv_core::crc32c;
use tierkv_core::error::{Error, Result};
use tierkv_core::header::PACKED_KEY_BYTES;
use tierkv_core::limits::{INBOX_BYTES_MAX, S3_OBJECT_RECORDS_MAX};

use crate::store::PackedKey;

const MAGIC: [u8; 4] = *b"TKVP";
const VERSION: u32 = 1;
/// Magic, version, number of records.
const HEAD_BYTES: usize = 12;
/// Packed key, and length.
const ENTRY_BYTES: usize = PACKED_KEY_BYTES + 8;
const CHECKSUM_BYTES: usize = 4;

/// One record in an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub key: PackedKey,
    pub offset: u64,
    pub bytes: u64,
}

/// The index of an object with these records; its entries follow from the lengths.
pub fn index_of(records: &[(PackedKey, u64)]) -> (Vec<u8>, Vec<Entry>) {
    let mut index = Vec::with_capacity(HEAD_BYTES + records.len() * ENTRY_BYTES + CHECKSUM_BYTES);
    index.extend_from_slice(&MAGIC);
    index.extend_from_slice(&VERSION.to_le_bytes());
    let count = u32::try_from(records.len()).expect("an object has few records");
    index.extend_from_slice(&count.to_le_bytes());
    for (key, bytes) in records {
        index.extend_from_slice(key);
        index.extend_from_slice(&bytes.to_le_bytes());
    }
    let checksum = crc32c::checksum(&index);
    index.extend_from_slice(&checksum.to_le_bytes());
    let entries = placed(records.iter().copied(), index.len());
    (index, entries)
}

fn placed(records: impl Iterator<Item = (PackedKey, u64)>, from: usize) -> Vec<Entry> {
    let mut offset = from as u64;
    let entry = |(key, bytes)| {
        let entry = Entry { key, offset, bytes };
        offset += bytes;
        entry
    };
    records.map(entry).collect()
}

/// Reads the index at the front of an object.
///
/// # Errors
/// `BAD_RECORD` for bytes that are none.
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry>> {
    let bad = |why: &str| Error::bad_record(format!("the index of an object: {why}"));
    let head = bytes.first_chunk::<HEAD_BYTES>().ok_or_else(|| bad("too short"))?;
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if head[..4] != MAGIC || number(4) != VERSION {
        return Err(bad("another magic or version"));
    }
    let count = number(8) as usize;
    if !(1..=S3_OBJECT_RECORDS_MAX).contains(&count) {
        return Err(bad("an impossible number of records"));
    }
    let end = HEAD_BYTES + count * ENTRY_BYTES;
    let checksum = bytes.get(end..end + CHECKSUM_BYTES).ok_or_else(|| bad("too short"))?;
    if crc32c::checksum(&bytes[..end]).to_le_bytes() != checksum {
        return Err(bad("its checksum does not match"));
    }
    let mut records = Vec::with_capacity(count);
    for entry in bytes[HEAD_BYTES..end].as_chunks::<ENTRY_BYTES>().0 {
        let (key, length) = entry.split_first_chunk::<PACKED_KEY_BYTES>().expect("a key first");
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        if length == 0 || length > INBOX_BYTES_MAX as u64 {
            return Err(bad("an impossible length"));
        }
        records.push((*key, length));
    }
    Ok(placed(records.into_iter(), end + CHECKSUM_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_as_it_was_written_and_no_changed_byte_passes() {
        let records: Vec<_> = (0..64).map(|at| ([at; 36], 1000 + u64::from(at))).collect();
        let (index, entries) = index_of(&records);
        assert!(index.len() as u64 <= tierkv_core::limits::S3_INDEX_BYTES);
        assert_eq!(entries[1].offset, index.len() as u64 + 1000);
        let mut longer = index.clone();
        longer.extend_from_slice(&[7; 100]);
        assert_eq!(parse(&longer).expect("sound"), entries);
        for at in 0..index.len() {
            let mut changed = index.clone();
            changed[at] ^= 1;
            assert!(parse(&changed).is_err(), "byte {at}");
            assert!(parse(&index[..at]).is_err(), "{at} bytes");
        }
    }
}
