//! Owns every limit of the core, each with the reason for its size.

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Slots are whole pages, so that a slot is mapped, allocated and touched without its neighbours.
pub const SLOT_ALIGN_BYTES: usize = 4 * KIB;

/// Largest page of one block (attention) or one state (recurrent): many times what models of today need.
pub const PAGE_BYTES_MAX: usize = 512 * MIB;

/// Slots of one arena; the table costs 16 bytes of memory for each.
pub const SLOT_COUNT_MAX: u32 = 1 << 20;

/// Head vectors of one layer that a geometry may describe; each is checked at registration.
pub const VECTORS_PER_LAYER_MAX: u64 = 1 << 21;

/// Encoded records waiting to be sent, all engines of the process together.
pub const OUTBOX_BYTES_MAX: usize = 1024 * MIB;

/// Records in the middle of arriving, all engines of the process together.
pub const INBOX_BYTES_MAX: usize = 1024 * MIB;

/// Freed buffers kept for reuse, in each of outbox and inbox: saves the page faults of new memory.
pub const POOL_IDLE_BYTES_MAX: usize = 64 * MIB;

/// Payload bytes copied before their checksum is taken: they must still be in the L1 cache.
pub const CHECKSUM_SPAN_BYTES: usize = 16 * KIB;

/// Smallest block that is decoded past the cache: an arena is larger than any cache, and whoever reads
/// the block next is another core or the GPU.
pub const STREAM_BYTES_MIN: usize = 128 * KIB;

/// Smallest budget of a store: a few records and their index must fit.
pub const STORE_BYTES_MIN: u64 = MIB as u64;

/// Record size from which the store guesses how many evicted keys are worth remembering.
pub const STORE_RECORD_BYTES_TYPICAL: u64 = 256 * KIB as u64;

/// Evicted keys remembered at most; each costs an index entry.
pub const STORE_GHOSTS_MAX: u64 = 1 << 20;

/// Objects of one kind that JavaScript may hold open: reservations, pins, records in the outbox.
pub const IDS_MAX: usize = 1 << 20;

/// Parts of stored records on their way out that JavaScript has not collected yet; beyond it they are copied.
pub const VIEWED_BYTES_MAX: usize = 256 * MIB;
