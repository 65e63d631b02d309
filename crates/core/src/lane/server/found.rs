//! Owns the answer to a look-up over lanes: the keys held, those that only the archive has, and the archive's pace.

use std::time::{Duration, Instant};

use crate::lane::frame::LOOKUP_FAR;
use crate::store::{RecordKey, Store};

/// Bitmap of the keys held; on request, and if any key is only in the archive, followed by the bitmap of these and the pace.
pub fn found_body(store: &Store, code: u16, keys: &[RecordKey], held: &[bool]) -> Vec<u8> {
    let mut body = bits(held);
    if code != LOOKUP_FAR {
        return body;
    }
    let Some(disk) = store.disk() else { return body };
    let far = store.far_all(keys, held);
    if !far.contains(&true) {
        return body;
    }
    body.extend_from_slice(&bits(&far));
    let pace = disk.archive_pace(Instant::now());
    let us = |of: Duration| u32::try_from(of.as_micros()).unwrap_or(u32::MAX).max(1);
    // 0: no record was read from the archive yet.
    let [first, next] = pace.map_or([0; 2], |pace| [us(pace.first), us(pace.next)]);
    body.extend_from_slice(&first.to_le_bytes());
    body.extend_from_slice(&next.to_le_bytes());
    body
}

fn bits(flags: &[bool]) -> Vec<u8> {
    let mut bitmap = vec![0_u8; flags.len().div_ceil(8)];
    for (index, _) in flags.iter().enumerate().filter(|(_, is_set)| **is_set) {
        bitmap[index / 8] |= 1 << (index % 8);
    }
    bitmap
}
