//! Owns the proof that a vault says how long records waited for its archive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tierkv_core::archive;
use tierkv_core::disk::{ArchiveOptions, Disk, DiskOptions, Durability};
use tierkv_core::lane::frame::{Frame, Kind};
use tierkv_core::store::{CLASS_ANY, ItemStatus, Options, RecordKey, Store};

use super::folder::Folder;
use super::records::{key, put, record};
use super::stand::{MIB, Vault, until};
use super::wires::client_by_hand;

fn archived(disk: &Folder, far: &Folder) -> Arc<Store> {
    let url = format!("file://{}", far.path().display());
    let (archive, after) = (archive::open(&url).unwrap(), Duration::from_millis(50));
    let archive = ArchiveOptions { url, archive, max_bytes: 64 * MIB as u64, after };
    let bytes = 16 * MIB as u64;
    let ram = Options { max_bytes: bytes, max_record_bytes: bytes, record_class: CLASS_ANY };
    let options = DiskOptions::new(bytes, bytes, Durability::Group);
    let disk = Disk::open_archived(disk.path(), options, Some(archive)).unwrap();
    let store = Store::on_disk(ram, disk).unwrap();
    store.disk().unwrap().wait_recovered();
    store
}

#[test]
fn a_vault_says_how_long_its_archive_was_waited_for() {
    let (disk, lost, far) = (Folder::new(), Folder::new(), Folder::new());
    let store = archived(&lost, &far);
    for number in 0..2 {
        let stored = put(&store, key(number), &record(&key(number), 60_000));
        assert_eq!(stored, ItemStatus::Accepted);
    }
    store.disk().unwrap().drain();
    until(|| store.disk_stats().archive.is_some_and(|now| now.segments > 0 && now.pending == 0));
    drop(store);

    let vault = Vault::over(archived(&disk, &far), |_| {});
    let mut client = client_by_hand(&vault);
    // The second time it lies in memory.
    let mut kinds = |request: u32, numbers: &[u64]| {
        let mut body = key(0).namespace.to_vec();
        for RecordKey { block_hash, group, shard, .. } in numbers.iter().map(|at| key(*at)) {
            body.extend([&block_hash[..], &group.to_le_bytes(), &shard.to_le_bytes()].concat());
        }
        let begun = Instant::now();
        client.send(Frame::new(Kind::Fetch, request), &body);
        let mut kinds = Vec::new();
        while kinds.iter().filter(|kind| **kind == Kind::Chunk).count() < numbers.len() {
            let (frame, _) = client.next().unwrap();
            let waited = Duration::from_micros(frame.offset);
            let is_true = !waited.is_zero() && waited < begun.elapsed();
            assert!(frame.kind != Kind::Waited || is_true, "{waited:?}");
            kinds.push(frame.kind);
        }
        kinds
    };
    assert_eq!(kinds(1, &[0]), [Kind::Waited, Kind::Chunk]);
    assert_eq!(kinds(2, &[0]), [Kind::Chunk]);
    // A record in memory waits for no other.
    assert_eq!(kinds(3, &[1, 0]), [Kind::Chunk, Kind::Waited, Kind::Chunk]);
}
