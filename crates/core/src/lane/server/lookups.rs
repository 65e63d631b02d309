//! Owns a vault's answers to look-ups, which are given at once.

use super::fetching::parse_keys;
use super::found::found_body;
use super::requests::Lane;
use super::session::Session;
use super::spans::Asked;
use crate::error::Result;
use crate::lane::frame::{Frame, Kind, LOOKUP_UNCOUNTED};
use crate::record::PACKED_KEY_BYTES;
use crate::store::{MEASURING_NAMESPACE, RecordKey};

impl Session {
    pub(super) fn look_up(&self, frame: &Frame, body: &[u8], lane: &Lane) -> Result<()> {
        let (namespace, keys) = parse_keys(body)?;
        let span = self.shared.span(Asked::Lookup, body, keys.len());
        let of = |key: &[u8; PACKED_KEY_BYTES]| RecordKey::from_packed(namespace, key);
        let keys: Vec<_> = keys.iter().map(of).collect();
        let held = self.shared.store.contains_all(&keys);
        let answer = found_body(&self.shared.store, frame.code, &keys, &held);
        let hits = held.iter().filter(|is_held| **is_held).count();
        // The hit rate counts only the requests of engines.
        if frame.item != LOOKUP_UNCOUNTED && !namespace.starts_with(MEASURING_NAMESPACE) {
            let counts = &self.shared.counts;
            counts.add("lookups", 1);
            counts.add("lookup_keys", keys.len() as u64);
            counts.add("lookup_hits", hits as u64);
        }
        if let Some(mut span) = span {
            span.add(u32::try_from(hits).unwrap_or(u32::MAX), 0);
        }
        self.answer_at_once(Frame::new(Kind::Found, frame.request), answer, lane)
    }
}
