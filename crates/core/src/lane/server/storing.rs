//! Owns the receiving side of a vault's stores: offers, reservations, bytes straight into the store's memory, one result per record.

use std::time::Instant;

use super::Inner;
use super::kept::Kept;
use super::spans::{Asked, OpenSpan};
use crate::error::{Error, Result};
use crate::lane::frame::{Frame, OFFER_ITEM_BYTES};
use crate::limits::{LANE_KEYS_MAX, LANE_NO_RECORD_BYTES};
use crate::record::{HASH_BYTES, PACKED_KEY_BYTES};
use crate::store::{ItemStatus, Offer, RecordKey, Reservation};

/// One accepted offer, until its last record is settled; dropping it frees its room.
pub struct StoreJob {
    items: Vec<Item>,
    open: usize,
    pub open_bytes: u64,
    pub touched: Instant,
    pub kept: Kept,
    /// Span, if the client traces.
    span: Option<OpenSpan>,
}

enum Item {
    Waiting(Reservation),
    /// A lane is receiving its next bytes.
    Receiving,
    /// A chunk that is no record.
    Plain,
    Settled,
}

/// Action for an arriving chunk.
pub enum Begun {
    /// Discard it, because its record is settled.
    Over,
    /// Receive it into this reservation.
    Receiving(Reservation),
    /// Discard it, because its record is refused.
    Refused(ItemStatus),
    /// Discard and count it: a probe's chunk.
    Plain,
}

/// Parses the records of an offer's body.
fn parse_offer(body: &[u8]) -> Result<Vec<(RecordKey, u64)>> {
    let short = || Error::lane_failed("the peer sent an offer without a namespace");
    let (namespace, rest) = body.split_first_chunk::<HASH_BYTES>().ok_or_else(short)?;
    let (items, _) = rest.as_chunks::<OFFER_ITEM_BYTES>();
    let item = |item: &[u8; OFFER_ITEM_BYTES]| {
        let (key, bytes) = item.split_first_chunk::<PACKED_KEY_BYTES>()?;
        let bytes = u64::from_le_bytes(bytes.try_into().ok()?);
        Some((RecordKey::from_packed(*namespace, key), bytes))
    };
    let items: Vec<_> = items.iter().filter_map(item).collect();
    if items.len() > LANE_KEYS_MAX {
        return Err(Error::lane_failed(format!("an offer of {} records", items.len())));
    }
    Ok(items)
}

/// Memory that an offer keeps besides its reserved records.
pub fn offer_bytes(body: &[u8]) -> usize {
    body.len() / OFFER_ITEM_BYTES * size_of::<Item>()
}

impl StoreJob {
    /// Reserves records in order, within the vault's limit for arriving records and within `room`; further ones are
    /// `OverBudget` and evict nothing. Also returns the statuses; 0: wanted.
    pub fn open(
        shared: &Inner,
        (tenant, known): (u64, u64),
        body: &[u8],
        room: u64,
        kept: Kept,
    ) -> Result<(Self, Vec<u8>)> {
        let offered = parse_offer(body)?;
        let span = shared.span(Asked::Store, body, offered.len());
        let reserved = shared.store.stats().reserved_bytes;
        let mut room = room.min(shared.options.max_reserved_bytes.saturating_sub(reserved));
        let items = Vec::new();
        let mut job = Self { items, open: 0, open_bytes: 0, touched: Instant::now(), kept, span };
        let mut statuses = Vec::with_capacity(offered.len());
        shared.counts.add("stores", 1);
        shared.counts.add("offered", offered.len() as u64);
        for (key, bytes) in offered {
            match shared.store.reserve_within(room, known, tenant, key, bytes) {
                Offer::Wanted(reservation) => {
                    room -= bytes.min(room);
                    job.open += 1;
                    job.open_bytes += bytes;
                    job.items.push(Item::Waiting(reservation));
                    statuses.push(ItemStatus::Unspecified as u8);
                }
                Offer::Refused(status) => {
                    shared.counts.add_outcome(status, bytes);
                    job.items.push(Item::Settled);
                    statuses.push(status as u8);
                }
            }
        }
        Ok((job, statuses))
    }

    /// Returns a probe's job of `chunks` chunks that are no record.
    pub fn plain(chunks: u32, kept: Kept) -> Self {
        let items: Vec<_> = (0..chunks).map(|_| Item::Plain).collect();
        let open = items.len();
        Self { open, items, open_bytes: 0, touched: Instant::now(), kept, span: None }
    }

    pub fn is_over(&self) -> bool {
        self.open == 0
    }

    /// Returns the action for an arriving chunk.
    pub fn begin(&mut self, frame: &Frame) -> Begun {
        self.touched = Instant::now();
        let Some(item) = self.items.get_mut(frame.item as usize) else { return Begun::Over };
        match std::mem::replace(item, Item::Receiving) {
            Item::Settled => {
                *item = Item::Settled;
                Begun::Over
            }
            // Two lanes bring the same record, so that its bytes have no order.
            Item::Receiving => {
                self.settle(frame.item);
                Begun::Refused(ItemStatus::BadRecord)
            }
            Item::Plain => {
                self.settle(frame.item);
                Begun::Plain
            }
            Item::Waiting(reservation) => {
                let (record_bytes, filled) = reservation.progress();
                if (record_bytes as u64, filled as u64) == (frame.record_bytes, frame.offset) {
                    return Begun::Receiving(reservation);
                }
                self.settle(frame.item);
                let is_none = frame.record_bytes == LANE_NO_RECORD_BYTES as u64;
                Begun::Refused(if is_none { ItemStatus::Incomplete } else { ItemStatus::BadRecord })
            }
        }
    }

    /// Takes back the reservation of an incomplete record after a chunk.
    pub fn put_back(&mut self, item: u32, reservation: Reservation) {
        self.touched = Instant::now();
        if let Some(place @ Item::Receiving) = self.items.get_mut(item as usize) {
            *place = Item::Waiting(reservation);
        }
    }

    /// Settles a checked record; false if it was settled before.
    pub fn stored(&mut self, frame: &Frame, status: ItemStatus) -> bool {
        let is_open = self.settle(frame.item);
        let is_taken = matches!(status, ItemStatus::Accepted | ItemStatus::Durable);
        if let (Some(span), true) = (&mut self.span, is_open && is_taken) {
            span.add(1, frame.record_bytes);
        }
        is_open
    }

    /// Settles a record; false if it was settled before.
    pub fn settle(&mut self, item: u32) -> bool {
        self.touched = Instant::now();
        match self.items.get_mut(item as usize) {
            None | Some(Item::Settled) => false,
            Some(place) => {
                *place = Item::Settled;
                self.open -= 1;
                true
            }
        }
    }
}
