//! Owns the proof that damaged segments give up what is sound in them and nothing else: torn anywhere, any bit flipped, any bytes at all.
//! @module-tag nightly

#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

#[expect(dead_code, reason = "segments are not looked at here")]
#[path = "support/folder.rs"]
mod folder;
#[path = "support/random.rs"]
mod random;
#[expect(dead_code, reason = "nothing is put here")]
#[path = "support/records.rs"]
mod records;
#[path = "support/segments.rs"]
mod segments;

use folder::Folder;
use random::Random;
use records::{key, record};
use segments::{Bytes, NAME, segment};
use tierkv_core::disk::format::{ENTRY_BYTES, Entry, SegmentName, entry_pages, parse_footer};
use tierkv_core::disk::storage::Directory;
use tierkv_core::disk::tombstones::Tombstones;
use tierkv_core::disk::walk::find;
use tierkv_core::memory::pages::PAGE;
use tierkv_core::record::{CLASS_KV, CLASS_SSM};
use tierkv_core::store::Scope;

/// What can be looked up and read back: every entry found is one that was written; how many of them are sound.
fn served(bytes: &[u8], written: &[Entry], near: Option<usize>) -> usize {
    let found = find(&Bytes(bytes), &NAME).unwrap();
    assert!(!found.is_partial);
    let mut sound = 0;
    for entry in &found.entries {
        assert!(written.contains(entry), "{entry:?} was never written");
        let start = entry.page as usize * PAGE;
        let end = (start + entry.pages() as usize * PAGE).min(bytes.len());
        if near.is_some_and(|at| !(start..end).contains(&at)) {
            sound += 1;
            continue;
        }
        let pages = bytes.get(start..end).unwrap_or_default();
        let is_entry = Entry::parse(pages, &NAME, entry.page).as_ref() == Some(entry);
        if let Some(bytes) = entry.record(pages).filter(|_| is_entry) {
            assert_eq!(bytes, record(&entry.key, entry.record_bytes as usize));
            sound += 1;
        }
    }
    sound
}

const SMALL: [usize; 3] = [500, 3_968, 6_000];

#[test]
fn f13_a_small_segment_torn_at_every_offset() {
    for is_sealed in [false, true] {
        let (bytes, entries) = segment(&SMALL, is_sealed);
        assert_eq!(served(&bytes, &entries, None), 3);
        for length in 0..bytes.len() {
            let whole = |entry: &&Entry| (entry.page + entry.pages()) as usize * PAGE <= length;
            let expected = entries.iter().filter(whole).count();
            assert_eq!(served(&bytes[..length], &entries, None), expected, "{length} {is_sealed}");
        }
    }
}

#[test]
fn f9_a_small_segment_with_every_bit_flipped() {
    for is_sealed in [false, true] {
        let (mut bytes, entries) = segment(&SMALL, is_sealed);
        for at in 0..bytes.len() {
            let is_in = |entry: &&Entry| {
                let start = entry.page as usize * PAGE;
                (start..start + ENTRY_BYTES + entry.record_bytes as usize).contains(&at)
            };
            let expected = 3 - entries.iter().filter(is_in).count();
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                assert_eq!(served(&bytes, &entries, None), expected, "bit {bit} of {at}");
                bytes[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn a_large_segment_torn_and_flipped_every_512_bytes() {
    let lengths: Vec<usize> = (0..30).map(|number| 20_000 + 4_001 * number).collect();
    let (bytes, entries) = segment(&lengths, false);
    let (mut sealed, _) = segment(&lengths, true);
    for at in (0..bytes.len()).step_by(512) {
        let whole = |entry: &&Entry| (entry.page + entry.pages()) as usize * PAGE <= at;
        let expected = entries.iter().filter(whole).count();
        // Only the last record can be torn.
        assert_eq!(served(&bytes[..at], &entries, Some(at.saturating_sub(1))), expected);
        sealed[at] ^= 4;
        assert!(served(&sealed, &entries, Some(at)) >= 29, "{at}");
        sealed[at] ^= 4;
    }
}

#[test]
fn behind_damage_the_walk_goes_on() {
    let (mut bytes, entries) = segment(&[60_000, 60_000, 60_000, 60_000], false);
    let second = entries[1].page as usize * PAGE;
    bytes[second..second + 30_000].fill(0xa5);
    assert_eq!(served(&bytes, &entries, None), 3);
}

#[test]
fn a_record_that_holds_an_entry_is_one_record() {
    // Bytes of a client, laid out as an entry of this segment on a page of its own.
    let forged =
        Entry { key: key(9), record_class: CLASS_KV, page: 1, record_bytes: 500, tenant: 0 };
    let mut inner = vec![0; PAGE - ENTRY_BYTES - 192];
    inner.extend_from_slice(&forged.encode(&SegmentName { salt: 1, ..NAME }));
    inner.extend_from_slice(&record(&key(9), 500));
    let header = records::header(&key(1), inner.len());
    let outer = [&header.encode(tierkv_core::crc32c::checksum(&inner)), inner.as_slice()].concat();
    let record_bytes = outer.len() as u32;
    let entry = Entry { key: key(1), record_class: CLASS_KV, page: 0, record_bytes, tenant: 0 };
    let mut bytes = [&entry.encode(&NAME), outer.as_slice()].concat();
    bytes.resize(entry_pages(record_bytes) as usize * PAGE, 0);
    assert_eq!(find(&Bytes(&bytes), &NAME).unwrap().entries, [entry]);
    bytes[0] ^= 1;
    assert_eq!(find(&Bytes(&bytes), &NAME).unwrap().entries, [], "without the outer one neither");
}

#[test]
fn any_bytes_are_taken_or_refused() {
    let mut random = Random::new(11);
    let (sound, entries) = segment(&[500, 9_000, 200, 40_000, 700], true);
    for round in 0..3_000 {
        let mut bytes = sound.clone();
        for _ in 0..=random.next() % 12 {
            let at = random.next() as usize % bytes.len();
            match random.next() % 4 {
                0 => bytes[at] = random.next() as u8,
                1 => bytes.truncate(at.max(1)),
                2 => bytes[at..].rotate_left(1),
                _ => {
                    let (from, length) = (random.next() as usize % bytes.len(), PAGE);
                    let piece = bytes[from..(from + length).min(bytes.len())].to_vec();
                    let end = (at + piece.len()).min(bytes.len());
                    bytes[at..end].copy_from_slice(&piece[..end - at]);
                }
            }
        }
        served(&bytes, &entries, None);
        let pages = (bytes.len() / PAGE) as u32;
        let _ = parse_footer(&bytes, &NAME, pages);
        let _ = Entry::parse(&bytes, &NAME, round);
        let text: String = bytes.iter().take(46).map(|byte| *byte as char).collect();
        let _ = SegmentName::parse(&text);
    }
    assert_eq!(SegmentName::parse(&NAME.text()), Some(NAME));
    for other in ["", ".seg", "lock", "tombstones", "+0000007-000000000001-123456789abcdef0.seg"] {
        assert_eq!(SegmentName::parse(other), None, "{other}");
    }
}

#[test]
fn a_damaged_tombstone_is_none_and_the_others_hold() {
    let folder = Folder::new();
    let storage = Directory::open(folder.path()).unwrap();
    let mut made = Tombstones::default();
    made.load(&storage).unwrap();
    let namespace = Some(key(0).namespace);
    made.flush(&storage, Scope { namespace, record_class: Some(CLASS_KV), salt: None }, (3, 5))
        .unwrap();
    made.retire(&storage, (9, 2)).unwrap();
    let at =
        |page| Entry { key: key(0), record_class: CLASS_KV, page, record_bytes: 500, tenant: 0 };
    let ssm = Entry { record_class: CLASS_SSM, ..at(4) };
    let path = folder.path().join("tombstones");
    let bytes = std::fs::read(&path).unwrap();
    let load = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let mut read = Tombstones::default();
        read.load(&storage).unwrap();
        // Before the mark and behind it, another class, the retired one and its neighbour.
        let found = [read.covers(&at(4), 3), read.covers(&at(2), 9)];
        assert!(!read.covers(&at(5), 3) && !read.covers(&ssm, 3) && !read.covers(&at(3), 9));
        found
    };
    assert_eq!(load(&bytes), [true, true]);
    for index in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1 << bit;
            assert_eq!(load(&damaged), [index >= 64, index < 64], "bit {bit} of {index}");
        }
        assert_eq!(load(&bytes[..index]), [index >= 64, false], "{index}");
    }
    let mut random = Random::new(3);
    for _ in 0..300 {
        let length = random.next() as usize % 400;
        load(&(0..length).map(|_| random.next() as u8).collect::<Vec<_>>());
    }
}
