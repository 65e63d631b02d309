//! Owns the bytes of a lane's frames: a fixed header with its own checksum, and the body that each kind may have.

use super::standing::PLACE_BYTES;
use crate::crc32c;
use crate::error::{Error, Result};
use crate::limits::{LANE_CHUNK_BYTES, LANE_CONTROL_BYTES_MAX};
use crate::record::{HASH_BYTES, PACKED_KEY_BYTES};

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"TKVL";
/// Version of the frames described here.
pub const VERSION: u8 = 2;
/// Length of a frame's header.
pub const FRAME_BYTES: usize = 40;
/// Length of a session's token.
pub const TOKEN_BYTES: usize = 32;
/// Length of a trace context: trace id, id of the requesting span, flags, as in W3C's `traceparent`.
pub const TRACE_BYTES: usize = 25;
/// Longest text of an error.
pub const ERROR_TEXT_BYTES_MAX: usize = 512;

const CHECKSUM_AT: usize = 36;
/// Length of an offered item: its key and its length.
pub const OFFER_ITEM_BYTES: usize = PACKED_KEY_BYTES + 8;

/// Context of the trace that a request belongs to.
pub type TraceContext = [u8; TRACE_BYTES];

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Client, first on every lane: token. `item` is the lane's number, `code` the number of lanes, `offset` the number of
    /// rails if there are several, `record_bytes` 1 if a descriptor of the client's memory comes with it.
    Hello = 1,
    /// Vault: the lane is open. `code` 1: the vault reads in the client's memory; `record_bytes` 1: a descriptor of the vault's
    /// memory comes with it.
    Welcome = 2,
    /// Client: namespace, packed keys, and an optional trace context; `item` 1: not counted in the hit rate.
    Lookup = 3,
    /// Vault: bitmap over the keys of a look-up.
    Found = 4,
    /// Client: namespace, packed keys in the order needed, context; `code`: number of lanes to use, counted from the last; 0: all;
    /// `item` 1: the client reads records in the vault's memory.
    Fetch = 5,
    /// Either: bytes of one record.
    Chunk = 6,
    /// Vault: the item's outcome, or its end; `code` is an `ItemStatus`.
    Status = 7,
    /// Client: the request is given up.
    Cancel = 8,
    /// Client: namespace, then key and length of each record, context.
    Offer = 9,
    /// Vault: one `ItemStatus` per offered record; 0 = send it.
    Wanted = 10,
    /// Either: a text. Request 0: the session ends.
    Error = 11,
    /// Client: `item` full chunks of bytes that are no record; `code` 0: from the vault, 1: to it.
    Probe = 12,
    /// Either: the client asks on this lane whether the vault is alive; the vault returns the same frame.
    Ping = 13,
    /// Vault: for `offset` µs the record of the next frame on this lane waited for an archive.
    Waited = 14,
    /// Either: records that the peer reads in the memory lent to it; each is a `Place`.
    Standing = 15,
    /// Either: the first `item` records that stand on this lane were read.
    Read = 16,
}

impl Kind {
    const ALL: [Self; 16] = [
        Self::Hello,
        Self::Welcome,
        Self::Lookup,
        Self::Found,
        Self::Fetch,
        Self::Chunk,
        Self::Status,
        Self::Cancel,
        Self::Offer,
        Self::Wanted,
        Self::Error,
        Self::Probe,
        Self::Ping,
        Self::Waited,
        Self::Standing,
        Self::Read,
    ];

    fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == id)
    }

    /// Whether the body may have this length.
    fn takes(self, bytes: usize) -> bool {
        let keys = |item_bytes: usize| {
            bytes <= LANE_CONTROL_BYTES_MAX
                && bytes
                    .checked_sub(HASH_BYTES)
                    .is_some_and(|keys| matches!(keys % item_bytes, 0 | TRACE_BYTES))
        };
        match self {
            Self::Hello => bytes == TOKEN_BYTES,
            Self::Welcome
            | Self::Status
            | Self::Cancel
            | Self::Probe
            | Self::Ping
            | Self::Waited
            | Self::Read => bytes == 0,
            Self::Lookup | Self::Fetch => keys(PACKED_KEY_BYTES),
            Self::Offer => keys(OFFER_ITEM_BYTES),
            Self::Found | Self::Wanted => bytes <= LANE_CONTROL_BYTES_MAX,
            Self::Standing => {
                (1..=LANE_CONTROL_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(PLACE_BYTES)
            }
            Self::Chunk => (1..=LANE_CHUNK_BYTES).contains(&bytes),
            Self::Error => bytes <= ERROR_TEXT_BYTES_MAX,
        }
    }
}

/// Code of a look-up whose answer may name records that only the archive has.
pub const LOOKUP_FAR: u16 = 1;

/// Item of a fetch whose client reads records in the vault's memory.
pub const FETCH_STANDING: u32 = 1;

/// Item of a look-up that no request asked for, so that the hit rate leaves it out.
pub const LOOKUP_UNCOUNTED: u32 = 1;

/// Length of the pace behind both bitmaps of such an answer: microseconds until the first archived record, and from one to the next.
pub const FAR_PACE_BYTES: usize = 8;

/// Header of a frame, followed by the body. Fields that a kind does not use are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Kind of the frame.
    pub kind: Kind,
    /// A status, a number of lanes, a probe's direction, or whether a vault reads in the client's memory.
    pub code: u16,
    /// Number given by the client, ascending from 1; 0: the session itself.
    pub request: u32,
    /// Index into the request's keys, the number of a probe's chunks or of records that were read, or whether a look-up counts.
    pub item: u32,
    /// Offset of the body in the record; in an offer the tenant, in a hello the number of rails, in a wait its µs.
    pub offset: u64,
    /// Length of the whole record; in an offer the last flush its maker knew of; in hello and welcome the number of descriptors.
    pub record_bytes: u64,
    /// Length of the body.
    pub bytes: u32,
}

impl Frame {
    /// Returns a frame of `kind` for `request`, with all other fields 0.
    #[must_use]
    pub fn new(kind: Kind, request: u32) -> Self {
        Self { kind, code: 0, request, item: 0, offset: 0, record_bytes: 0, bytes: 0 }
    }

    /// Sets the length of `body`.
    ///
    /// # Panics
    /// Never: bodies are far below 4 GiB.
    #[must_use]
    pub fn of(self, body: &[u8]) -> Self {
        Self { bytes: u32::try_from(body.len()).expect("bodies are bounded"), ..self }
    }

    /// Returns the frame's 40 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[6..8].copy_from_slice(&self.code.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.request.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.item.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.record_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.bytes.to_le_bytes());
        let checksum = crc32c::checksum(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses and checks a header, so that its body may then be received.
    ///
    /// # Errors
    /// `LANE_FAILED` naming the defect.
    pub fn parse(bytes: &[u8; FRAME_BYTES]) -> Result<Self> {
        if bytes[0..4] != MAGIC {
            return Err(wrong("does not start with TKVL"));
        }
        if bytes[4] != VERSION {
            return Err(wrong(&format!("is of version {}, this is {VERSION}", bytes[4])));
        }
        if crc32c::checksum(&bytes[..CHECKSUM_AT]) != u32_at(bytes, CHECKSUM_AT) {
            return Err(wrong("has a header checksum that does not match"));
        }
        let kind = Kind::from_id(bytes[5])
            .ok_or_else(|| wrong(&format!("is of unknown kind {}", bytes[5])))?;
        let frame = Self {
            kind,
            code: u16::from_le_bytes([bytes[6], bytes[7]]),
            request: u32_at(bytes, 8),
            item: u32_at(bytes, 12),
            offset: u64_at(bytes, 16),
            record_bytes: u64_at(bytes, 24),
            bytes: u32_at(bytes, 32),
        };
        if !kind.takes(frame.bytes as usize) {
            return Err(wrong(&format!("of kind {kind:?} has a body of {} bytes", frame.bytes)));
        }
        let end = frame.offset.checked_add(u64::from(frame.bytes));
        if kind == Kind::Chunk && end.is_none_or(|end| end > frame.record_bytes) {
            let Self { offset, record_bytes, bytes, .. } = frame;
            let text = format!("brings {bytes} bytes at {offset} of a record of {record_bytes}");
            return Err(wrong(&text));
        }
        Ok(frame)
    }
}

fn wrong(what: &str) -> Error {
    Error::lane_failed(format!("the peer sent a frame that {what}"))
}

fn u32_at(bytes: &[u8; FRAME_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; FRAME_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
