//! Tests a region between processes: at different addresses, killed at any step, opened by strangers, read by another program.
#![cfg(target_os = "linux")]
#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/content.rs"]
mod content;
#[path = "support/dying.rs"]
mod dying;
#[path = "support/random.rs"]
mod random;
#[path = "support/work.rs"]
mod work;

use std::env::var;
use std::fs::{File, Permissions, remove_file, set_permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use content::{key, read};
use dying::Dying;
use tierkv_core::record;
use tierkv_shm::layout::{BITMAP_AT, CAME_AT, LOCK_AT, entry};
use tierkv_shm::mapping::{Options, map, open};
use tierkv_shm::region::{Put, Region};
use tierkv_shm::visibility::{Coherence, Fabric};
use work::{Name, OPTIONS, check, contend, go_through_everything, is_long, mix, said, store, told};

/// Mixed operations of all processes together; `TIERKV_TEST_OPERATIONS` sets another number.
fn operations() -> u64 {
    let usual = if is_long() { 1_000_000 } else { 100_000 };
    var("TIERKV_TEST_OPERATIONS").map_or(usual, |number| number.parse().unwrap())
}

/// With the lock, of each of four processes that contend for it.
fn turns() -> u64 {
    if is_long() { 100_000 } else { 5000 }
}

/// What the other processes of these tests do.
#[test]
fn child() {
    let Ok(role) = var("TIERKV_SHM_CHILD") else { return };
    let path = PathBuf::from(var("TIERKV_SHM_PATH").unwrap());
    let number: u64 = var("TIERKV_SHM_NUMBER").unwrap().parse().unwrap();
    if role == "mixes" {
        let address = 0x2000_0000_0000 + (number as usize) * 0x10_0000_0000;
        let coherence = if number == 3 { Coherence::Clflush } else { Coherence::Hardware };
        let region = open(&path, &Options { address, coherence, ..OPTIONS }).unwrap();
        assert_eq!(region.fabric().address(), address);
        mix(&region, number, operations() / 4);
    } else if role == "contends" {
        let region = open(&path, &OPTIONS).unwrap();
        while region.fill().unwrap().members < 5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let [p99, most] = contend(&region, number, turns());
        writeln!(std::io::stdout(), "waits {p99} {most}").unwrap();
    } else {
        let (memory, bytes) = map(&path, &OPTIONS).unwrap();
        let region = Region::join(Dying { memory, steps: 0.into(), dies_at: number }, bytes);
        let region = region.unwrap();
        go_through_everything(&region);
        let steps = region.fabric().steps.load(std::sync::atomic::Ordering::Relaxed);
        writeln!(std::io::stdout(), "steps {steps}").unwrap();
    }
}

#[test]
fn four_processes_at_different_addresses_read_no_wrong_byte_and_leak_no_chunk() {
    let name = Name::new("mixes");
    let region = name.open(None);
    let children: Vec<_> = (0..4).map(|number| name.child(None, "mixes", number)).collect();
    for child in children {
        let output = said(child);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.ready > 0, "{audit:?}");
    assert_eq!((audit.filling, audit.pinned), (0, 0), "{audit:?}");
}

#[test]
fn four_processes_that_contend_for_the_lock_all_get_it_and_no_turn_is_lost() {
    let name = Name::new("contends");
    let region = name.open(None);
    let children: Vec<_> = (0..4).map(|number| name.child(None, "contends", number)).collect();
    for child in children {
        let output = said(child);
        let waits = told(&output, "waits");
        writeln!(std::io::stderr(), "waited, in us: p99 {}, most {}", waits[0], waits[1]).unwrap();
        assert!(!is_long() || waits[0] <= 5000, "{waits:?}");
    }
    // Whoever came between another one's reading and writing would have cost a count.
    assert_eq!(region.fabric().load(CAME_AT), 4 * turns());
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.filling == 0, "{audit:?}");
}

#[test]
fn whoever_is_killed_at_any_step_leaves_others_a_whole_region() {
    let name = Name::new("killed");
    let region = name.open(None);
    // Full from here on, so that each of the killed evicts.
    (0..300).for_each(|number| store(&region, number));
    let output = said(name.child(None, "dies", u64::MAX));
    let steps = told(&output, "steps")[0];
    let deaths = if is_long() { steps } else { 64 };
    let mut died = 0;
    for death in 0..deaths {
        let dies_at = death * steps / deaths;
        let output = said(name.child(None, "dies", dies_at));
        // What there is to do depends on what the one before left.
        died += u64::from(!output.status.success());
        store(&region, death);
        assert!(check(&region, death), "step {dies_at}: {death} was stored");
        region.sweep().unwrap();
        let audit = region.audit().unwrap();
        assert!(audit.is_sound(), "step {dies_at}: {audit:?}");
        assert_eq!((audit.filling, audit.pinned), (0, 0), "step {dies_at}: {audit:?}");
        for number in 1000..1060 {
            check(&region, number);
            region.remove(&key(number)).unwrap();
        }
        // Full again.
        (0..300).for_each(|number| store(&region, number));
    }
    assert!(died * 2 > deaths, "{died} of {deaths} died");
}

#[test]
fn a_region_that_is_not_ours_is_refused_by_name() {
    let name = Name::new("refused");
    let refusal = || open(&name.0, &OPTIONS).err().expect("refused").text;
    drop(name.open(None));
    let file = File::options().read(true).write(true).open(&name.0).unwrap();
    let other = Name(name.0.with_extension("other"));
    std::fs::hard_link(&name.0, &other.0).unwrap();
    assert!(refusal().contains("another name"));
    remove_file(&other.0).unwrap();
    std::os::unix::fs::symlink(&name.0, &other.0).unwrap();
    assert!(open(&other.0, &OPTIONS).is_err(), "a link is not followed");
    set_permissions(&name.0, Permissions::from_mode(0o640)).unwrap();
    assert!(refusal().contains("chmod 600"));
    set_permissions(&name.0, Permissions::from_mode(0o600)).unwrap();
    let bytes = file.metadata().unwrap().len();
    file.set_len(bytes + 4096).unwrap();
    assert!(refusal().contains("its superblock says"));
    file.set_len(bytes).unwrap();
    for (at, reason) in [(0, "no region"), (8, "version"), (24, "damaged"), (64, "damaged")] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x55], at).unwrap();
        assert!(refusal().contains(reason), "byte {at}: {}", refusal());
        assert!(refusal().contains(&name.0.display().to_string()));
        file.write_all_at(&byte, at).unwrap();
    }
    drop(name.open(None));
}

#[test]
fn damage_in_the_index_costs_records_and_nothing_else() {
    let name = Name::new("damaged");
    let region = name.open(None);
    (0..40).for_each(|number| store(&region, number));
    let layout = *region.layout();
    let file = File::options().write(true).open(&name.0).unwrap();
    for (index, word) in (0..layout.entries).zip([u64::MAX, 1 << 40, layout.chunks].iter().cycle())
    {
        let field = if index % 2 == 0 { entry::CHUNK } else { entry::BYTES };
        let word = if field == entry::BYTES { word << 20 } else { *word };
        file.write_all_at(&word.to_le_bytes(), layout.entry_at(index) + field).unwrap();
    }
    for number in 0..40 {
        assert!(!check(&region, number), "{number} cannot be where its entry says");
    }
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.ready == 0, "{audit:?}");
    store(&region, 7);
    assert!(check(&region, 7));
}

#[test]
fn a_file_that_is_cut_short_costs_its_records_and_ends_nobody() {
    let name = Name::new("cut");
    let region = name.open(None);
    store(&region, 1);
    assert!(check(&region, 1));
    std::fs::File::options().write(true).open(&name.0).unwrap().set_len(0).unwrap();
    // Who finds out may still be answered: with nothing.
    assert_ne!(region.look_up(&[key(1)]).ok(), Some(vec![true]));
    let error = region.look_up(&[key(1)]).unwrap_err();
    assert!(error.text.contains("cut short"), "{}", error.text);
    assert!(region.pin(&key(1)).is_err());
}

#[test]
fn only_sound_records_are_stored() {
    let name = Name::new("records");
    let region = name.open(None);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../test/vectors/bf16-heads-first.record.bin");
    let mut bytes = std::fs::read(golden).unwrap();
    let header = record::verify(&bytes).unwrap();
    let mut own = key(0);
    (own.namespace, own.block_hash) = (header.namespace, header.block_hash);
    (own.group, own.shard) = (header.group, header.shard);
    assert!(region.put(&key(0), &bytes).is_err(), "another key");
    bytes[200] ^= 1;
    assert!(region.put(&own, &bytes).is_err(), "another bit");
    assert_eq!(region.look_up(&[own]).unwrap(), [false]);
    bytes[200] ^= 1;
    assert_eq!(region.put(&own, &bytes).unwrap(), Put::Stored);
    assert_eq!(region.put(&own, &bytes).unwrap(), Put::Present);
    assert_eq!(region.look_up(&[own, key(0)]).unwrap(), [true, false]);
}

#[test]
fn another_program_reads_the_same_layout() {
    let name = Name::new("reader");
    let region = name.open(None);
    (0..40).for_each(|number| store(&region, number));
    let _pinned = region.pin(&key(39)).unwrap();
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reader.py");
    let output = Command::new("python3").arg(reader).arg(&name.0).output().unwrap();
    let audit = region.audit().unwrap();
    let layout = region.layout();
    let numbers = [
        ("chunks", layout.chunks),
        ("entries", layout.entries),
        ("lock_at", LOCK_AT),
        ("bitmap_at", BITMAP_AT),
        ("ready", audit.ready),
        ("pinned", audit.pinned),
        ("used_chunks", audit.used_chunks),
    ];
    let present = (0..40).filter_map(|number| read(&region, number).unwrap());
    let mut sums: Vec<u64> =
        present.map(|bytes| bytes.iter().map(|byte| u64::from(*byte)).sum()).collect();
    sums.sort_unstable();
    let sums = sums.into_iter().map(|sum| ("sum", sum));
    let expected: Vec<_> =
        numbers.into_iter().chain(sums).map(|(name, number)| format!("{name} {number}")).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{errors}");
}
