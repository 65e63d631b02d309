//! Owns the conversion of a record into pages of shorter blocks: verified and decoded whole, then cut by token range.

use std::sync::Arc;

use crate::arena::Arena;
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::geometry::{Geometry, Spec};
use crate::header::{HEADER_BYTES, Header, LAYOUT_CANONICAL};
use crate::inbox::{Wanted, check_identity, refused};
use crate::outbox::check_fits;
use crate::pool::{Pool, PooledBuffer};
use crate::record;
use crate::seal::RecordKeys;
use crate::slots::Lease;

/// A shorter block inside the record's block.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Tokens of the record before the piece.
    pub first: u32,
    /// Slot that receives the piece.
    pub lease: Lease,
}

/// Returns the shape of blocks of `tokens` tokens with the layers, heads and dims of `geometry`, without padding.
///
/// # Errors
/// `BAD_ARGUMENT` for pages that cannot be cut by tokens, or `tokens` that is no multiple of theirs.
pub fn longer(geometry: &Geometry, tokens: u32) -> Result<Geometry> {
    let spec = geometry.spec();
    if spec.layout != LAYOUT_CANONICAL || !tokens.is_multiple_of(spec.tokens) {
        let text = format!("blocks of {tokens} tokens cannot be cut into such of {}", spec.tokens);
        return Err(Error::bad_argument(text));
    }
    let element = Header::element_bytes(spec.dtype).unwrap_or_default();
    let key = u64::from(spec.dim_k) * element;
    let token_stride = key + u64::from(spec.dim_v) * element;
    let head_stride = token_stride * u64::from(tokens);
    Geometry::new(Spec {
        tokens,
        layer_bytes: head_stride * u64::from(spec.heads),
        key_offset: 0,
        value_offset: key,
        head_stride,
        token_stride,
        ..spec.clone()
    })
}

/// Verifies and decodes a record into a page of the shape `whole`.
///
/// # Errors
/// `BAD_RECORD` and `RECORD_UNOPENED` where it is not the `wanted` record, `NO_MEMORY` at the pool's limit.
pub fn decode(
    pool: &Arc<Pool>,
    keys: Option<&RecordKeys>,
    wanted: &Wanted,
    whole: &Geometry,
    record: &[u8],
) -> Result<PooledBuffer> {
    let outer = record::verify(record)?;
    let Some(keys) = keys else {
        return page_of(pool, wanted, whole, &outer, &record[HEADER_BYTES..]);
    };
    let mut payload = pool.take(record.len() - HEADER_BYTES)?;
    payload.copy_from_slice(&record[HEADER_BYTES..]);
    let (header, place) = keys.open(&record[..HEADER_BYTES], &mut payload)?;
    page_of(pool, wanted, whole, &header, &payload[place])
}

fn page_of(
    pool: &Arc<Pool>,
    wanted: &Wanted,
    whole: &Geometry,
    header: &Header,
    payload: &[u8],
) -> Result<PooledBuffer> {
    check_identity(wanted, whole, header)?;
    let form = Codec::from_id(header.codec)
        .filter(|codec| codec.fits_fidelity(wanted.fidelity))
        .map(|codec| codec.form(header.is_first()))
        .filter(|form| whole.has_payload_of(*form, payload.len()))
        .ok_or_else(|| Error::bad_record("its length is not one of its codec"))?;
    let mut page = pool.take(whole.page_bytes())?;
    // SAFETY: the page is as long as the geometry says, and does not overlap the payload.
    unsafe { form.decode(whole, payload, page.as_mut_ptr()) }.map_err(refused)?;
    Ok(page)
}

/// Copies a piece of a decoded page into its slot in the layout of `geometry`; leaves padding of the slot alone.
///
/// # Errors
/// `BAD_ARGUMENT` for a stale lease, a slot that is too small, tokens outside the page, or another shape.
pub fn place(
    arena: &Arc<Arena>,
    page: &[u8],
    whole: &Geometry,
    piece: Piece,
    geometry: &Geometry,
) -> Result<()> {
    let slot = arena.access(piece.lease)?;
    check_fits(geometry, slot.bytes())?;
    // SAFETY: the slot holds the page of the geometry during the access, and is not our own memory.
    unsafe { cut(page, whole, piece.first, geometry, slot.as_ptr()) }
}

/// Like `place`, into any page.
///
/// # Errors
/// As `place`, except for slots.
///
/// # Safety
/// `geometry.page_bytes()` bytes at `to` are writable and do not overlap `page`.
pub unsafe fn cut(
    page: &[u8],
    whole: &Geometry,
    first: u32,
    geometry: &Geometry,
    to: *mut u8,
) -> Result<()> {
    let (long, short) = (whole.spec(), geometry.spec());
    let is_there = first.checked_add(short.tokens).is_some_and(|end| end <= long.tokens);
    let shape =
        |spec: &Spec| (spec.layout, spec.dtype, spec.layers, spec.heads, spec.dim_k, spec.dim_v);
    if !is_there || shape(long) != shape(short) || page.len() != whole.page_bytes() {
        let (tokens, of) = (short.tokens, long.tokens);
        let text = format!("tokens {first} to {first} + {tokens} of a block of {of}");
        return Err(Error::bad_argument(text));
    }
    for (from, rows) in whole.heads().zip(geometry.heads()) {
        for token in 0..rows.tokens {
            let at = from.offset + (first as usize + token) * from.token_stride;
            let row = &page[at..at + rows.vector_bytes];
            // SAFETY: a validated geometry has all its vectors inside the page, which is writable.
            let place = unsafe { to.add(rows.offset + token * rows.token_stride) };
            // SAFETY: as above; the two do not overlap.
            unsafe { place.copy_from_nonoverlapping(row.as_ptr(), row.len()) };
        }
    }
    Ok(())
}
