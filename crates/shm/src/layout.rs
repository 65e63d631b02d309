//! Owns the positions of everything in a region, version 4: offsets from its start, never pointers, all little-endian.

use tierkv_core::crc32c;
use tierkv_core::error::{Code, Error, Result};

/// First bytes of a region.
pub const MAGIC: [u8; 8] = *b"TKVSHM\0\0";
/// Version of the layout described here.
pub const VERSION: u32 = 4;
/// Bytes of a cache line, the unit of a write-back. No line is shared by two owners.
pub const LINE_BYTES: u64 = 64;
/// Bytes of the superblock, which never changes once the region has its name.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Bytes of the line that the lock has for itself; its first four name the owner.
pub const LOCK_BYTES: u64 = LINE_BYTES;
/// The lock, in a page of its own.
pub const LOCK_AT: u64 = SUPERBLOCK_BYTES;
/// Chunk at which the search for records to evict continues.
pub const HAND_AT: u64 = LOCK_AT + LOCK_BYTES;
/// Chunk at which the search for free chunks continues.
pub const NEXT_AT: u64 = HAND_AT + 8;
/// Records evicted since the region was created.
pub const EVICTED_AT: u64 = NEXT_AT + 8;
/// Records in the region, with those being filled.
pub const RECORDS_AT: u64 = EVICTED_AT + 8;
/// Chunks of these records.
pub const USED_AT: u64 = RECORDS_AT + 8;
/// Records that came since the region was created.
pub const CAME_AT: u64 = USED_AT + 8;
/// Number of the last flush.
pub const FLUSH_AT: u64 = HAND_AT + LINE_BYTES;
/// Number of names remembered so far, in the same line.
pub const NAMED_AT: u64 = FLUSH_AT + 8;
/// The last flushes; flush N is at place N modulo their count.
pub const FLUSHES_AT: u64 = FLUSH_AT + LINE_BYTES;
/// Number of remembered flushes; records made before all of them are refused.
pub const FLUSHES_MAX: u64 = 32;
/// One line per member: 1 while it has joined, otherwise 0.
pub const MEMBERS_AT: u64 = LOCK_AT + 4096;
/// Most members; an entry has a bit for each.
pub const MEMBERS_MAX: u64 = 64;
/// The last named namespaces, each with its model's digest, in one line.
pub const NAMES_AT: u64 = MEMBERS_AT + MEMBERS_MAX * LINE_BYTES;
/// Number of remembered names.
pub const NAMES_MAX: u64 = 64;
/// One place per host, where several hosts share the region.
pub const HOSTS_AT: u64 = NAMES_AT + NAMES_MAX * LINE_BYTES;
/// Most hosts; each has an equal part of the members.
pub const HOSTS_MAX: u64 = HOSTS as u64;
pub(crate) const HOSTS: usize = 8;
/// Bytes of a host's place.
pub const HOST_BYTES: u64 = 8 * LINE_BYTES;
/// Number of the manager of the lock between hosts, unique, or 0. From here on each word has its own line.
pub const MANAGER_AT: u64 = HOSTS_AT + HOSTS_MAX * HOST_BYTES;
/// Heartbeat of the manager, which changes while it lives.
pub const MANAGER_BEAT_AT: u64 = MANAGER_AT + LINE_BYTES;
/// Not 0 after a death in the middle of a change; the next owner of the lock then repairs the region.
pub const DIRTY_AT: u64 = MANAGER_BEAT_AT + LINE_BYTES;
/// Bitmap with one bit per chunk.
pub const BITMAP_AT: u64 = HOSTS_AT + 8192;
/// Bytes of an index entry: one line that changes, one with the key's hashes.
pub const ENTRY_BYTES: u64 = 2 * LINE_BYTES;
/// Smallest chunk, and the alignment of the payload.
pub const CHUNK_BYTES_MIN: u64 = 4096;
/// Largest chunk, so that no length of a region is beyond 64 bits.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// Most chunks of a region.
pub const CHUNKS_MAX: u64 = 1 << 24;
/// Entries per chunk; at most half of the table is then in use, so that probing stays short.
const ENTRIES_PER_CHUNK: u64 = 2;

/// The fields of an entry, as offsets from its start.
pub mod entry {
    /// [`EMPTY`], [`GONE`], [`FILLING`], [`READY`] or [`DOOMED`]; written last.
    pub const STATE: u64 = 0;
    /// One bit per member that reads the record.
    pub const PINS: u64 = 8;
    /// First chunk of the record.
    pub const CHUNK: u64 = 16;
    /// Length of the record in bytes, from which its chunks follow.
    pub const BYTES: u64 = 24;
    /// Member that fills the entry.
    pub const OWNER: u64 = 32;
    /// [`ASKED`] or 0.
    pub const VISITED: u64 = 40;
    /// Requested since the hand passed.
    pub const ASKED: u64 = 1;
    /// Group, and shard in the upper half.
    pub const PLACE: u64 = 48;
    /// Tenant, and class above [`CLASS_SHIFT`].
    pub const LABEL: u64 = 56;
    /// Position of the class; tenants have 48 bits.
    pub const CLASS_SHIFT: u32 = 56;
    /// Namespace, then block hash.
    pub const HASHES: u64 = 64;

    /// Never used; probing ends here.
    pub const EMPTY: u64 = 0;
    /// Free again; probing continues.
    pub const GONE: u64 = 1;
    /// Chunks are allocated and being written.
    pub const FILLING: u64 = 2;
    /// Can be looked up.
    pub const READY: u64 = 3;
    /// No longer visible, but still being read; the last reader frees it.
    pub const DOOMED: u64 = 4;
}

/// The lines of a host's place, as offsets from its start. Each has one writer, because a line is written back as a whole.
pub mod host {
    /// The host's own lock; no other host uses it.
    pub const LOCK: u64 = 0;
    /// Written by the host: a turn, above two bits of state.
    pub const REQUEST: u64 = 64;
    /// Written by the host: heartbeat, which changes while one of its processes lives.
    pub const BEAT: u64 = 128;
    /// Written by the host: id of its kernel (0: it never came), and in `KNOWN` the number of its ends it knows of.
    pub const KERNEL: u64 = 192;
    /// See `KERNEL`.
    pub const KNOWN: u64 = 200;
    /// Written by the manager: its number and the granted turn.
    pub const GRANT: u64 = 256;
    /// Written by the manager: how often the host was found dead, and its turn at that time.
    pub const ENDED: u64 = 320;

    /// State of a request: the host does not want the lock.
    pub const IDLE: u64 = 0;
    /// The host wants the lock.
    pub const WAITING: u64 = 1;
    /// The host has the lock, if the granting manager was still the manager.
    pub const LOCKED: u64 = 2;
}

/// The fields of a remembered flush, as offsets from its start; one line.
pub mod flush {
    /// Number of the flush.
    pub const NUMBER: u64 = 0;
    /// Class (0: both) and the bits below.
    pub const WHAT: u64 = 8;
    /// Bit: only this namespace.
    pub const HAS_NAMESPACE: u64 = 1 << 8;
    /// Bit: only this tenant.
    pub const HAS_TENANT: u64 = 1 << 9;
    /// The tenant.
    pub const TENANT: u64 = 16;
    /// The namespace.
    pub const NAMESPACE: u64 = 24;
}

const _: () = {
    assert!(entry::LABEL + 8 <= LINE_BYTES, "what changes lies in one line");
    assert!(entry::HASHES == LINE_BYTES, "the hashes have the other one");
    assert!(entry::HASHES + 64 == ENTRY_BYTES, "two hashes of 32 bytes fill it");
    assert!(MEMBERS_MAX == u64::BITS as u64, "a member is a bit of PINS");
    assert!(CAME_AT + 8 <= FLUSH_AT, "what changes with an entry lies in one line");
    assert!(FLUSHES_AT + FLUSHES_MAX * LINE_BYTES <= MEMBERS_AT, "the page of the lock holds them");
    assert!(flush::NAMESPACE + 32 <= LINE_BYTES, "a flush lies in one line");
    assert!(MEMBERS_AT == 8192 && BITMAP_AT == 24_576, "as test readers have them");
    assert!(DIRTY_AT + LINE_BYTES <= BITMAP_AT, "hosts have a page, and what they share another");
    assert!(host::ENDED + LINE_BYTES <= HOST_BYTES, "a place's lines");
    assert!(MEMBERS_MAX.is_multiple_of(HOSTS_MAX), "hosts have equal parts of the members");
    assert!(size_of::<usize>() == 8, "offsets are addresses' distances");
};

/// Division of a region, as stored in its superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the whole region.
    pub region_bytes: u64,
    /// Bytes of one chunk.
    pub chunk_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Entries of the index: a power of two.
    pub entries: u64,
    /// Offset of the index.
    pub index_at: u64,
    /// Offset of the chunks.
    pub payload_at: u64,
    /// Number of hosts that may share it; 0 for a single host, whose kernel provides the lock.
    pub hosts: u64,
}

/// Length of the superblock's fields with their checksum.
pub const FIELDS_BYTES: usize = 80;
const CHECKED_BYTES: usize = 72;

/// Offset of the owners, behind the bitmap.
fn owners_at(chunks: u64) -> u64 {
    let bitmap_bytes = chunks.div_ceil(u64::from(u64::BITS)) * 8;
    (BITMAP_AT + bitmap_bytes).next_multiple_of(LINE_BYTES)
}

fn is_chunk(bytes: u64) -> bool {
    (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&bytes) && bytes.is_power_of_two()
}

impl Layout {
    /// Divides a region of at most `max_bytes`.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the impossible value.
    pub fn cut(max_bytes: u64, chunk_bytes: u64) -> Result<Self> {
        if !is_chunk(chunk_bytes) {
            return Err(Error::bad_argument(format!(
                "chunkBytes is {chunk_bytes}: it must be a power of two from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}"
            )));
        }
        let mut chunks = (max_bytes / chunk_bytes).min(CHUNKS_MAX);
        while chunks > 0 {
            let layout = Self::of(chunks, chunk_bytes);
            if layout.region_bytes <= max_bytes {
                return Ok(layout);
            }
            chunks -= (layout.region_bytes - max_bytes).div_ceil(chunk_bytes).min(chunks);
        }
        Err(Error::bad_argument(format!(
            "maxBytes is {max_bytes}: a region with one chunk of {chunk_bytes} bytes needs {}",
            Self::of(1, chunk_bytes).region_bytes
        )))
    }

    fn of(chunks: u64, chunk_bytes: u64) -> Self {
        let entries = (chunks * ENTRIES_PER_CHUNK).next_power_of_two();
        let owners_at = owners_at(chunks);
        let index_at = (owners_at + chunks * 8).next_multiple_of(LINE_BYTES);
        let payload_at = (index_at + entries * ENTRY_BYTES).next_multiple_of(CHUNK_BYTES_MIN);
        let region_bytes = payload_at + chunks * chunk_bytes;
        Self { region_bytes, chunk_bytes, chunks, entries, index_at, payload_at, hosts: 0 }
    }

    /// Returns the layout for several hosts.
    #[must_use]
    pub fn between_hosts(self) -> Self {
        Self { hosts: HOSTS_MAX, ..self }
    }

    /// Encodes the superblock's fields.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; FIELDS_BYTES] {
        let mut bytes = [0; FIELDS_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let numbers = [
            self.region_bytes,
            self.chunk_bytes,
            self.chunks,
            self.entries,
            self.index_at,
            self.payload_at,
            self.hosts,
        ];
        for (field, number) in bytes[16..CHECKED_BYTES].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32c::checksum(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..CHECKED_BYTES + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses the superblock of a region of `region_bytes` bytes.
    ///
    /// # Errors
    /// `ARENA_FAILED` naming the first wrong value.
    pub fn from_bytes(bytes: &[u8; FIELDS_BYTES], region_bytes: u64) -> Result<Self> {
        let refused = |text: String| Err(Error::new(Code::ArenaFailed, text));
        if bytes[..8] != MAGIC {
            return refused("this is no region of tierKV: name another file".to_owned());
        }
        let number = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let version = number(8) & u64::from(u32::MAX);
        if version != u64::from(VERSION) {
            return refused(format!(
                "the region has version {version}, this program reads {VERSION}: remove the file"
            ));
        }
        let checksum = crc32c::checksum(&bytes[..CHECKED_BYTES]);
        if number(CHECKED_BYTES) != u64::from(checksum) {
            return refused("the region's superblock is damaged: remove the file".to_owned());
        }
        let (chunk_bytes, chunks) = (number(24), number(32));
        if !is_chunk(chunk_bytes) || !(1..=CHUNKS_MAX).contains(&chunks) {
            return refused("the region's superblock is impossible: remove the file".to_owned());
        }
        let layout = Self { hosts: number(64), ..Self::of(chunks, chunk_bytes) };
        if ![0, HOSTS_MAX].contains(&layout.hosts) || layout.to_bytes() != *bytes {
            return refused("the region's superblock is impossible: remove the file".to_owned());
        }
        if layout.region_bytes != region_bytes {
            return refused(format!(
                "the region has {region_bytes} bytes, its superblock says {}: remove the file",
                layout.region_bytes
            ));
        }
        Ok(layout)
    }

    /// Offset of a chunk.
    #[must_use]
    pub fn chunk_at(&self, chunk: u64) -> u64 {
        self.payload_at + chunk * self.chunk_bytes
    }

    /// Offset of the word that names the entry whose record begins at a chunk: its number plus one.
    #[must_use]
    pub fn owner_at(&self, chunk: u64) -> u64 {
        owners_at(self.chunks) + chunk * 8
    }

    /// Offset of an entry.
    #[must_use]
    pub fn entry_at(&self, entry: u64) -> u64 {
        self.index_at + entry * ENTRY_BYTES
    }
}
