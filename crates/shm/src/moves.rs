//! Owns the transfer between a region and an arena: a record is checked and decoded into its slot, or made and copied into the region.

use std::sync::Arc;

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::header::PACKED_KEY_BYTES;
use tierkv_core::inbox::Wanted;
use tierkv_core::key::RecordKey;
use tierkv_core::lane::client::{Content, Kept, Target, Targets};
use tierkv_core::lane::wire::Bytes;
use tierkv_core::limits::LANE_STEP_BYTES;
use tierkv_core::record::{self, Progress};
use tierkv_core::store::ItemStatus;

use crate::flushes::Label;
use crate::mapping::Mapping;
use crate::region::{Offer, Pinned, Region, Reservation};

/// Verifies a record and decodes it into its slot; returns its bytes.
pub fn fetch(pinned: &Pinned<'_, Mapping>, targets: &Targets, target: &Target) -> Result<u64> {
    let Targets { namespace, fidelity, arena, inbox, .. } = targets;
    let Target { packed_key, lease, geometry } = target;
    let wanted = Wanted { fidelity: *fidelity, namespace: *namespace, packed_key: *packed_key };
    let bytes = pinned.bytes();
    let reassembly = Arc::new(inbox.begin(arena, *lease, geometry, wanted, bytes)?);
    reassembly.take_standing(pinned.standing())?;
    Ok(bytes)
}

/// Verifies record number `at` and passes it to the callback; returns its bytes.
pub fn take(
    pinned: &Pinned<'_, Mapping>,
    Kept { namespace, inbox, keep, .. }: &Kept,
    at: usize,
    packed_key: &[u8; PACKED_KEY_BYTES],
) -> Result<Option<u64>> {
    // The caller that decodes the record checks its fidelity.
    let wanted = Wanted { fidelity: 0, namespace: *namespace, packed_key: *packed_key };
    let reassembly = Arc::new(inbox.keep(wanted, pinned.bytes())?);
    reassembly.take_standing(pinned.standing())?;
    let whole = reassembly.whole();
    Ok(whole.map(|record| {
        keep(at, record);
        pinned.bytes()
    }))
}

/// Status of an item for which `fetch` failed.
pub fn status_of(error: &Error) -> ItemStatus {
    match error.code {
        Code::BadRecord => ItemStatus::BadRecord,
        Code::NoMemory => ItemStatus::OverBudget,
        // The record is of no use to us, but may be sound.
        Code::RecordUnopened => ItemStatus::Missing,
        // The lease ended meanwhile, so that the record is no longer wanted.
        _ => ItemStatus::Incomplete,
    }
}

/// Stores a record; returns its bytes. It is made in memory of this process, because its checksum must be of what was made, and
/// not of what others may have written meanwhile.
pub fn store(
    region: &Region<Mapping>,
    key: &RecordKey,
    content: &Content,
    label: Label,
) -> Result<(ItemStatus, u64)> {
    // Room first, because a record that is present need not be made.
    let length = content.length();
    let mut room = match offered(region.reserve(key, length as u64, label)?) {
        Ok(room) => room,
        Err(status) => return Ok((status, 0)),
    };
    let made: Arc<dyn Bytes> = match content {
        Content::Made(made) => Arc::clone(made),
        Content::Deferred(deferred) => Arc::new(deferred.make()?),
    };
    let bytes = made.bytes();
    if bytes.len() != length {
        drop(room);
        room = match offered(region.reserve(key, bytes.len() as u64, label)?) {
            Ok(room) => room,
            Err(status) => return Ok((status, 0)),
        };
    }
    room.write(0, bytes)?;
    Ok((published(room)?, bytes.len() as u64))
}

fn published(reservation: Reservation<'_, Mapping>) -> Result<ItemStatus> {
    Ok(if reservation.publish()? { ItemStatus::Accepted } else { ItemStatus::Flushed })
}

fn offered(offer: Offer<'_, Mapping>) -> std::result::Result<Reservation<'_, Mapping>, ItemStatus> {
    match offer {
        Offer::Wanted(reservation) => Ok(reservation),
        Offer::Present | Offer::Filling => Err(ItemStatus::Present),
        Offer::TooLarge => Err(ItemStatus::TooLarge),
        Offer::Full => Err(ItemStatus::OverBudget),
    }
}

/// Checks a record that a caller could not use, and removes it if it is not sound.
pub fn check(region: &Region<Mapping>, key: &RecordKey) -> Result<ItemStatus> {
    let Some(pinned) = region.pin(key)? else { return Ok(ItemStatus::Missing) };
    let mut progress = Progress::new(usize::try_from(pinned.bytes()).unwrap_or(usize::MAX));
    let mut window = vec![0; LANE_STEP_BYTES];
    let mut head = Vec::new();
    let mut at = 0;
    while at < pinned.bytes() {
        let count = (pinned.bytes() - at).min(LANE_STEP_BYTES as u64);
        let part = &mut window[..usize::try_from(count).unwrap_or_default()];
        pinned.read(at, part)?;
        progress.accept(at, part)?;
        if at == 0 {
            head = part.to_vec();
        }
        at += count;
    }
    let sound = record::check(&head, pinned.bytes(), progress.checksum());
    if sound.is_ok_and(|header| key.is_of(&header)) {
        return Ok(ItemStatus::Present);
    }
    region.discard(key)?;
    Ok(ItemStatus::Quarantined)
}

/// Checks several records; returns their statuses as numbers.
pub fn check_each(region: &Region<Mapping>, keys: &[RecordKey]) -> Result<Vec<u8>> {
    keys.iter().map(|key| Ok(check(region, key)? as u8)).collect()
}
