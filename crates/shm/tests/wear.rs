//! Tests an index that was used for long: probes end as soon as in a new one, and nothing is lost.
#![cfg(target_os = "linux")]

#[path = "support/options.rs"]
mod options;
#[path = "support/random.rs"]
mod random;

use std::fs::remove_file;

use options::OPTIONS;
use random::Random;
use tierkv_core::key::RecordKey;
use tierkv_shm::flushes::Label;
use tierkv_shm::layout::entry;
use tierkv_shm::opening::open;
use tierkv_shm::region::Offer;
use tierkv_shm::visibility::Fabric;

/// So often each place was taken.
const ROUNDS: u64 = 30;

fn key(number: u64) -> RecordKey {
    let mut block_hash = [0; 32];
    block_hash[..8].copy_from_slice(&Random::new(number).below(u64::MAX).to_le_bytes());
    RecordKey { namespace: [7; 32], block_hash, group: 0, shard: 0 }
}

#[test]
fn an_index_that_was_used_for_long_has_places_where_probes_end() {
    let path = format!("/dev/shm/tierkv-test-wear-{}", std::process::id());
    let region = open(path.as_ref(), &OPTIONS).unwrap();
    let _ = remove_file(&path);
    let layout = *region.layout();
    let last = ROUNDS * layout.chunks;
    for number in 0..last {
        // As small as may be: half of the index is in use.
        let Offer::Wanted(reservation) = region.reserve(&key(number), 1, Label::default()).unwrap()
        else {
            panic!("others give way")
        };
        reservation.publish().unwrap();
    }
    let is_empty =
        |index: &u64| region.fabric().load(layout.entry_at(*index) + entry::STATE) == entry::EMPTY;
    let empty = (0..layout.entries).filter(is_empty).count() as u64;
    assert!(empty * 4 > layout.entries, "{empty} of {} end a probe", layout.entries);
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.ready == layout.chunks, "{audit:?}");
    assert!(region.look_up(&[key(last - 1)]).unwrap()[0], "the last one is there");
}
