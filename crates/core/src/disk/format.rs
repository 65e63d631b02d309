//! Owns the bytes of a segment: its name, the header before each record, and the footer that lists them (docs/protocol.md, section 6).

use crate::crc32c;
use crate::key::RecordKey;
use crate::memory::pages::PAGE;
use crate::record::{self, CLASS_KV, CLASS_SSM, HASH_BYTES, HEADER_BYTES, Hash};

/// Length of the header before each record.
pub const ENTRY_BYTES: usize = 128;
/// Length of one line of a footer.
pub const LINE_BYTES: usize = 84;
/// A tenant's id has 48 bits.
const TENANT_BYTES: usize = 6;

const SEGMENT: &str = "seg";
const ENTRY_MAGIC: [u8; 4] = *b"TKVE";
const FOOTER_MAGIC: [u8; 4] = *b"TKVF";
const VERSION: u16 = 1;
const ENTRY_CHECKSUM_AT: usize = ENTRY_BYTES - 4;
const TRAILER_BYTES: usize = 40;
const TRAILER_CHECKSUM_AT: usize = TRAILER_BYTES - 4;

/// Name of a segment, which distinguishes its entries from those of any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentName {
    /// Ascending; never used twice.
    pub id: u32,
    /// Creation time in ms since 1970; used only for the segment's age.
    pub made_ms: u64,
    /// Random number repeated in each entry, so that bytes of a record cannot pass for an entry.
    pub salt: u64,
}

impl SegmentName {
    /// The file's name.
    #[must_use]
    pub fn text(&self) -> String {
        self.with(SEGMENT)
    }

    /// The name of a file that describes this segment.
    #[must_use]
    pub fn with(&self, suffix: &str) -> String {
        format!("{:08x}-{:012x}-{:016x}.{suffix}", self.id, self.made_ms, self.salt)
    }

    /// Parses a file name; `None` for any file but a segment.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::parse_with(text, SEGMENT)
    }

    /// Parses a file name with the given suffix; `None` for any other file.
    #[must_use]
    pub fn parse_with(text: &str, suffix: &str) -> Option<Self> {
        let mut parts = text.strip_suffix(suffix)?.strip_suffix('.')?.split('-');
        let mut hex = || u64::from_str_radix(parts.next()?, 16).ok();
        let name = Self { id: u32::try_from(hex()?).ok()?, made_ms: hex()?, salt: hex()? };
        (name.with(suffix) == text).then_some(name)
    }
}

/// Place of a record in a segment, with its key and tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Key of the record.
    pub key: RecordKey,
    /// 1 kv, 2 ssm.
    pub record_class: u8,
    /// First page of the entry, which begins with the entry's header.
    pub page: u32,
    /// Length of the record.
    pub record_bytes: u32,
    /// Tenant the record was stored for, 48 bits; 0: none in particular.
    pub tenant: u64,
}

impl Entry {
    /// Whether both entries are the same record at the same page, of whatever tenant.
    #[must_use]
    pub fn is_at(&self, other: &Self) -> bool {
        Self { tenant: other.tenant, ..*self } == *other
    }

    /// Pages of header and record.
    #[must_use]
    pub fn pages(&self) -> u32 {
        entry_pages(self.record_bytes)
    }

    /// Returns the header's bytes.
    #[must_use]
    pub fn encode(&self, segment: &SegmentName) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0..4].copy_from_slice(&ENTRY_MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&128_u16.to_le_bytes());
        bytes[8..16].copy_from_slice(&segment.salt.to_le_bytes());
        bytes[16..20].copy_from_slice(&segment.id.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.page.to_le_bytes());
        bytes[24..108].copy_from_slice(&self.line());
        let checksum = crc32c::checksum(&bytes[..ENTRY_CHECKSUM_AT]);
        bytes[ENTRY_CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses the header at the start of `bytes`; `None` unless it is sound and belongs to `page` of `segment`.
    #[must_use]
    pub fn parse(bytes: &[u8], segment: &SegmentName, page: u32) -> Option<Self> {
        let bytes: &[u8; ENTRY_BYTES] = bytes.first_chunk()?;
        let entry = Self::from_line(bytes[24..108].first_chunk()?)?;
        (entry.page == page && entry.encode(segment) == *bytes).then_some(entry)
    }

    /// Returns the record within the pages of its entry; `None` unless it is sound and this entry's.
    #[must_use]
    pub fn record<'a>(&self, pages: &'a [u8]) -> Option<&'a [u8]> {
        let end = ENTRY_BYTES + usize::try_from(self.record_bytes).ok()?;
        let bytes = pages.get(ENTRY_BYTES..end)?;
        let header = record::verify(bytes).ok()?;
        let ours = self.key.is_of(&header) && self.record_class == header.record_class;
        ours.then_some(bytes)
    }

    fn line(&self) -> [u8; LINE_BYTES] {
        let mut bytes = [0; LINE_BYTES];
        bytes[0..32].copy_from_slice(&self.key.namespace);
        bytes[32..64].copy_from_slice(&self.key.block_hash);
        bytes[64..66].copy_from_slice(&self.key.group.to_le_bytes());
        bytes[66..68].copy_from_slice(&self.key.shard.to_le_bytes());
        bytes[68..72].copy_from_slice(&self.page.to_le_bytes());
        bytes[72..76].copy_from_slice(&self.record_bytes.to_le_bytes());
        bytes[76] = self.record_class;
        bytes[78..84].copy_from_slice(&self.tenant.to_le_bytes()[..TENANT_BYTES]);
        bytes
    }

    /// Parses a footer line; `None` for bytes that no writer writes.
    fn from_line(bytes: &[u8; LINE_BYTES]) -> Option<Self> {
        let hash = |at: usize| -> Option<Hash> { bytes[at..at + HASH_BYTES].try_into().ok() };
        let entry = Self {
            key: RecordKey {
                namespace: hash(0)?,
                block_hash: hash(32)?,
                group: u16::from_le_bytes([bytes[64], bytes[65]]),
                shard: u16::from_le_bytes([bytes[66], bytes[67]]),
            },
            page: word(&bytes[68..])?,
            record_bytes: word(&bytes[72..])?,
            record_class: bytes[76],
            tenant: {
                let mut tenant = [0; 8];
                tenant[..TENANT_BYTES].copy_from_slice(&bytes[78..]);
                u64::from_le_bytes(tenant)
            },
        };
        let sized = usize::try_from(entry.record_bytes).is_ok_and(|bytes| bytes > HEADER_BYTES);
        let sound = sized && matches!(entry.record_class, CLASS_KV | CLASS_SSM);
        (sound && bytes[77] == 0).then_some(entry)
    }
}

/// Pages of an entry whose record has `record_bytes` bytes.
#[must_use]
pub fn entry_pages(record_bytes: u32) -> u32 {
    let bytes = u64::from(record_bytes) + ENTRY_BYTES as u64;
    // At most 2^20 + 1.
    bytes.div_ceil(PAGE as u64).try_into().unwrap_or(u32::MAX)
}

/// Pages of the footer of `records` records, trailer included.
#[must_use]
pub fn footer_pages(records: usize) -> u32 {
    let lines = records.saturating_mul(LINE_BYTES).div_ceil(PAGE);
    u32::try_from(lines).unwrap_or(u32::MAX - 1) + 1
}

/// Returns the bytes behind the last entry of a sealed segment: one line per entry, and a last page with the trailer.
///
/// # Panics
/// Never: a segment holds fewer than 2^32 entries.
#[must_use]
pub fn footer(segment: &SegmentName, entries: &[Entry], page: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(footer_pages(entries.len()) as usize * PAGE);
    for entry in entries {
        bytes.extend_from_slice(&entry.line());
    }
    let lines_checksum = crc32c::checksum(&bytes);
    bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
    let count = u32::try_from(entries.len()).expect("fewer than 2^32");
    bytes.extend_from_slice(&trailer(segment, count, page, lines_checksum));
    bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
    bytes
}

fn trailer(segment: &SegmentName, count: u32, page: u32, lines: u32) -> [u8; TRAILER_BYTES] {
    let mut bytes = [0; TRAILER_BYTES];
    bytes[0..4].copy_from_slice(&FOOTER_MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&segment.salt.to_le_bytes());
    bytes[16..20].copy_from_slice(&segment.id.to_le_bytes());
    bytes[20..24].copy_from_slice(&count.to_le_bytes());
    bytes[24..28].copy_from_slice(&page.to_le_bytes());
    bytes[28..32].copy_from_slice(&lines.to_le_bytes());
    let checksum = crc32c::checksum(&bytes[..TRAILER_CHECKSUM_AT]);
    bytes[TRAILER_CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Returns first page and record count of the footer, read from the last page of a file of `file_pages` pages; `None` without a footer.
#[must_use]
pub fn footer_place(last: &[u8], segment: &SegmentName, file_pages: u32) -> Option<(u32, usize)> {
    let found: &[u8; TRAILER_BYTES] = last.first_chunk()?;
    let (count, page, lines) = (word(&found[20..])?, word(&found[24..])?, word(&found[28..])?);
    let records = usize::try_from(count).ok()?;
    let fits = page.checked_add(footer_pages(records)) == Some(file_pages);
    (fits && trailer(segment, count, page, lines) == *found).then_some((page, records))
}

/// Returns the entries of a footer, given the bytes of all its pages; `None` unless each is sound.
#[must_use]
pub fn parse_footer(bytes: &[u8], segment: &SegmentName, file_pages: u32) -> Option<Vec<Entry>> {
    let last = bytes.get(bytes.len().checked_sub(PAGE)?..)?;
    let (page, records) = footer_place(last, segment, file_pages)?;
    let lines = bytes.get(..records.checked_mul(LINE_BYTES)?)?;
    if word(&last[28..]) != Some(crc32c::checksum(lines)) {
        return None;
    }
    let mut next = 0;
    let mut entries = Vec::with_capacity(records);
    for line in lines.as_chunks::<LINE_BYTES>().0 {
        let entry = Entry::from_line(line).filter(|entry| entry.page >= next)?;
        next = entry.page.checked_add(entry.pages()).filter(|end| *end <= page)?;
        entries.push(entry);
    }
    Some(entries)
}

/// Returns the entries of a footer in a file of its own, and the pages of its segment; `None` unless all are sound.
#[must_use]
pub fn parse_index(bytes: &[u8], segment: &SegmentName) -> Option<(Vec<Entry>, u32)> {
    let last = bytes.get(bytes.len().checked_sub(PAGE)?..)?;
    let (count, page) = (word(&last[20..])?, word(&last[24..])?);
    let pages = footer_pages(usize::try_from(count).ok()?);
    let file_pages = page.checked_add(pages).filter(|_| bytes.len() == pages as usize * PAGE)?;
    Some((parse_footer(bytes, segment, file_pages)?, file_pages))
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|word| u32::from_le_bytes(*word))
}
