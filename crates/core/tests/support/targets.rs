//! Owns what fuzzing runs on any bytes: frames, records, segments, and the index against a plain map; payloads.rs has codecs, secured.rs what is under keys.

use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tierkv_core::crc32c;
use tierkv_core::disk::format::{ENTRY_BYTES, SegmentName, parse_footer};
use tierkv_core::disk::index::{Index, Place};
use tierkv_core::disk::walk::find;
use tierkv_core::error::Result;
use tierkv_core::lane::frame::{FRAME_BYTES, Kind};
use tierkv_core::lane::stream::Stream;
use tierkv_core::lane::wire::{Alive, Reader};
use tierkv_core::limits::{LANE_CHUNK_BYTES, LANE_CONTROL_BYTES_MAX};
use tierkv_core::memory::pages::PAGE;
use tierkv_core::record::{self, HEADER_BYTES};
use tierkv_core::store::{RecordKey, Scope};

use super::payloads::payload;
use super::records::key;
use super::secured::{sealed, tls};
use super::segments::{Bytes, NAME, segment as build};

/// Body of one fuzz target.
pub type Target = fn(&[u8]);

/// All of them, by name.
pub const TARGETS: [(&str, Target); 7] = [
    ("frame", frame),
    ("record", record),
    ("payload", payload),
    ("segment", segment),
    ("index", index),
    ("tls", tls),
    ("sealed", sealed),
];

/// Sets the CRC32C of everything before the last 4 bytes: random bytes would never get past it.
fn seal(bytes: &mut [u8]) {
    let (body, checksum) = bytes.split_at_mut(bytes.len() - 4);
    checksum.copy_from_slice(&crc32c::checksum(body).to_le_bytes());
}

/// A peer that sends these bytes, a few at a time, and then ends.
struct Peer {
    bytes: Vec<u8>,
    sent: AtomicUsize,
}

impl Stream for Peer {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(feed(&self.bytes, &self.sent, buffer))
    }
    fn write(&self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn write_now(&self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn shutdown(&self) {}
}

/// The next few of `bytes`, of which `sent` have gone.
pub fn feed(bytes: &[u8], sent: &AtomicUsize, buffer: &mut [u8]) -> usize {
    let from = sent.load(Ordering::Acquire);
    let count = buffer.len().min(bytes.len() - from).min(1 + from % 97);
    buffer[..count].copy_from_slice(&bytes[from..from + count]);
    sent.store(from + count, Ordering::Release);
    count
}

pub struct Always;

impl Alive for Always {
    fn tick(&self) -> Result<()> {
        Ok(())
    }
}

/// Frames one after another, as a lane reads them. With an odd first byte every header has a sound checksum.
pub fn frame(input: &[u8]) {
    let Some((is_sealed, rest)) = input.split_first() else { return };
    let mut bytes = rest.to_vec();
    if is_sealed % 2 == 1 {
        let mut at = 0;
        while let Some(head) = bytes.get_mut(at..at + FRAME_BYTES) {
            head[..5].copy_from_slice(b"TKVL\x02");
            seal(head);
            let body = u32::from_le_bytes([head[32], head[33], head[34], head[35]]);
            at = at.saturating_add(FRAME_BYTES).saturating_add(body as usize);
        }
    }
    let mut left = bytes.clone();
    let peer = Peer { bytes, sent: AtomicUsize::new(0) };
    let mut reader = Reader::new(Arc::new(peer), Duration::from_secs(60));
    while let Ok(frame) = reader.frame(&Always) {
        assert_eq!(frame.encode(), left[..FRAME_BYTES], "what is read is what was written");
        let limit =
            if frame.kind == Kind::Chunk { LANE_CHUNK_BYTES } else { LANE_CONTROL_BYTES_MAX };
        assert!(frame.bytes as usize <= limit);
        assert!(frame.kind != Kind::Chunk || frame.offset < frame.record_bytes);
        let end = FRAME_BYTES + frame.bytes as usize;
        if frame.request % 2 == 0 {
            let Ok(body) = reader.body(&frame, &Always) else { return };
            assert_eq!(body, left[FRAME_BYTES..end]);
        } else if reader.skip(frame.bytes as usize, &Always, &|| ()).is_err() {
            return;
        }
        left.drain(..end);
    }
}

/// Gives a record magic, version and checksums that hold.
pub fn make_sound(bytes: &mut [u8]) {
    let Some((head, payload)) = bytes.split_at_mut_checked(HEADER_BYTES) else { return };
    head[..8].copy_from_slice(b"TKVR\x01\x00\xc0\x00");
    head[HEADER_BYTES - 8..HEADER_BYTES - 4]
        .copy_from_slice(&crc32c::checksum(payload).to_le_bytes());
    seal(head);
}

/// A record. With an odd first byte its frame is sound: magic, version and checksums; only its fields are not.
pub fn record(input: &[u8]) {
    let Some((is_sealed, rest)) = input.split_first() else { return };
    let mut bytes = rest.to_vec();
    if is_sealed % 2 == 1 {
        make_sound(&mut bytes);
    }
    let verified = record::verify(&bytes);
    let Ok(parsed) = record::parse(&bytes) else {
        assert!(verified.is_err(), "no record without a header");
        return;
    };
    let head = parsed.header.encode(parsed.payload_checksum);
    assert_eq!(head, bytes[..HEADER_BYTES], "what is read is what was written");
    if let Ok(header) = verified {
        assert_eq!(header, parsed.header);
        assert_eq!(header.payload_bytes, (bytes.len() - HEADER_BYTES) as u64);
        let of_canonical = header.canonical_bytes().filter(|_| header.layout == 0);
        assert!(of_canonical.is_none_or(|bytes| bytes == header.source_bytes));
    }
}

/// A sound segment, and what the input does to it: 4 bytes each say what, where, and with which byte.
pub fn segment(input: &[u8]) {
    let Some((shape, script)) = input.split_first() else { return };
    let lengths: &[usize] =
        [&[700, 5_000, 300][..], &[200], &[9_000, 4_096, 3_968, 250], &[]][usize::from(shape % 4)];
    let (mut bytes, written) = build(lengths, shape & 4 != 0);
    let mut is_forged = false;
    for step in script.as_chunks::<4>().0 {
        let at = usize::from(u16::from_le_bytes([step[1], step[2]]));
        let page = at % (bytes.len() / PAGE).max(1) * PAGE;
        let at = at % bytes.len().max(1);
        match step[0] % 6 {
            0 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = step[3];
                }
            }
            1 => bytes.truncate(at),
            2 => {
                let from = usize::from(step[3]) * PAGE;
                let piece = bytes.get(from..from + PAGE).map(<[u8]>::to_vec);
                if let (Some(piece), Some(to)) = (piece, bytes.get_mut(page..page + PAGE)) {
                    to.copy_from_slice(&piece);
                }
            }
            3 => {
                is_forged = true;
                bytes.get_mut(page..page + ENTRY_BYTES).map(seal).unwrap_or_default();
            }
            4 => {
                is_forged = true;
                bytes.get_mut(page..page + 40).map(seal).unwrap_or_default();
            }
            _ => bytes.resize(bytes.len() + usize::from(step[3]), 0),
        }
    }
    let found = find(&Bytes(&bytes), &NAME).expect("memory can be read");
    let mut end = 0;
    for entry in &found.entries {
        assert!(entry.page >= end, "one after another");
        end = entry.page + entry.pages();
        assert!(end as usize * PAGE <= bytes.len(), "within the file");
        assert!(is_forged || written.contains(entry), "{entry:?} was never written");
        let pages = &bytes[entry.page as usize * PAGE..];
        let is_whole = entry.record(pages).is_some();
        assert!(found.is_sealed || is_whole, "without a footer every record is checked");
    }
    let pages = u32::try_from(bytes.len() / PAGE).expect("small");
    let _ = parse_footer(&bytes, &NAME, pages);
    let text: String = script.iter().map(|byte| char::from(*byte)).collect();
    let name = SegmentName::parse(&text);
    assert!(name.is_none_or(|name| name.text() == text));
}

/// What the index should hold.
#[derive(Default)]
struct Model {
    places: HashMap<RecordKey, Place>,
    pending: HashSet<RecordKey>,
}

fn key_of(byte: u8) -> RecordKey {
    let namespace = [byte >> 6; 32];
    RecordKey { namespace, shard: u16::from(byte >> 5 & 1), ..key(u64::from(byte & 31)) }
}

/// Steps of 3 bytes: what is done, to which key, and with which place.
pub fn index(input: &[u8]) {
    let (index, mut model) = (Index::default(), Model::default());
    for [what, key, place] in input.as_chunks::<3>().0 {
        let record_class = 1 + (place & 1);
        let (segment, page) = (u32::from(place >> 5), u32::from(place >> 1));
        let (record_bytes, salt) = (u32::from(*place), u32::from(place >> 1 & 1));
        let place = Place { segment, page, record_bytes, record_class, tenant: 0, salt };
        step(&index, &mut model, *what, key_of(*key), place);
        let key = key_of(*key);
        assert_eq!(index.get(&key), model.places.get(&key).copied());
        assert_eq!(index.is_pending(&key), model.pending.contains(&key));
    }
    let keys: Vec<_> = (0..=255).map(key_of).collect();
    let held: Vec<_> = keys.iter().map(|key| model.places.contains_key(key)).collect();
    assert_eq!(index.contains_all(&keys), held);
    for number in 0..18_u8 {
        let some = |number: u8| number.checked_sub(1);
        let scope = Scope {
            namespace: some(number / 9).map(|name| [name; 32]),
            record_class: some(number / 3 % 3).map(|class| class + 1),
            salt: some(number % 3).map(u32::from),
        };
        let takes = |(key, place): &(&RecordKey, &Place)| {
            scope.takes(&key.namespace, place.record_class, place.salt.into())
        };
        let found: HashMap<_, _> = index.matching(&scope).into_iter().collect();
        let held = model.places.iter().filter(takes);
        assert_eq!(found, held.map(|(key, place)| (*key, *place)).collect());
    }
}

fn step(index: &Index, model: &mut Model, what: u8, key: RecordKey, place: Place) {
    let before = model.places.get(&key).copied();
    match what % 6 {
        0 => {
            let may = before.is_none() && model.pending.insert(key);
            assert_eq!(index.reserve(&key), may, "put if absent");
        }
        1 => {
            index.release(&key);
            model.pending.remove(&key);
        }
        2 => publish(index, model, what >= 192, key, place),
        3 => remove(index, model, key, place),
        4 => remove(index, model, key, before.unwrap_or(place)),
        _ => assert_eq!(index.touch(&key), before.is_some()),
    }
}

fn publish(index: &Index, model: &mut Model, keeps_old: bool, key: RecordKey, place: Place) {
    let before = model.places.get(&key).copied();
    let refuses = keeps_old && before.is_some();
    let answer = index.publish(&key, place, |now| {
        assert_eq!(now, before);
        !refuses
    });
    model.pending.remove(&key);
    assert_eq!(answer.is_none(), refuses);
    if let Some((slot, was)) = answer {
        assert_eq!(was, before);
        assert_eq!(index.at(slot, place.segment), Some((key, place, false)));
        assert_eq!(index.at(slot, place.segment + 1), None);
        model.places.insert(key, place);
    }
}

/// Only a record that lies just there goes.
fn remove(index: &Index, model: &mut Model, key: RecordKey, place: Place) {
    let is_there = model.places.get(&key) == Some(&place);
    assert_eq!(index.remove(&key, place), is_there);
    if is_there {
        model.places.remove(&key);
    }
}
