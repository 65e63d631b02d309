//! Tests a region between processes: at different addresses, killed at any step, opened by strangers, read by another program.
#![cfg(target_os = "linux")]
#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/content.rs"]
mod content;
#[path = "support/dying.rs"]
mod dying;
#[path = "support/options.rs"]
mod options;
#[path = "support/random.rs"]
mod random;
#[path = "support/work.rs"]
mod work;

use std::env::var;
use std::fs::{File, Permissions, remove_file, set_permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use content::{key, read};
use dying::Dying;
use rustix::process::{getegid, geteuid};
use tierkv_core::record;
use tierkv_shm::file::group_id;
use tierkv_shm::layout::{BITMAP_AT, CAME_AT, LOCK_AT, entry};
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::{Options, map, open};
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

const NOBODY: u32 = 65534;
const OF_NOBODY: u32 = 4242;

/// Becomes a user of that group who is in no other.
fn become_nobody(group: u32) {
    // SAFETY: no list of groups is read.
    let none = unsafe { libc::setgroups(0, std::ptr::null()) };
    // SAFETY: a number only.
    let in_group = unsafe { libc::setgid(group) };
    // SAFETY: a number only.
    let as_user = unsafe { libc::setuid(NOBODY) };
    assert_eq!([none, in_group, as_user], [0; 3], "root may");
}

/// What the other processes of these tests do.
#[test]
fn child() {
    let Ok(role) = var("TIERKV_SHM_CHILD") else { return };
    let path = PathBuf::from(var("TIERKV_SHM_PATH").unwrap());
    let number: u64 = var("TIERKV_SHM_NUMBER").unwrap().parse().unwrap();
    if role == "mixes" {
        let address = 0x2000_0000_0000 + (number as usize) * 0x10_0000_0000;
        // Who drops lines by hand takes twenty times as long: without a smaller part it would end up alone.
        let (coherence, tenths) =
            if number == 3 { (Coherence::Clflush, 1) } else { (Coherence::Hardware, 3) };
        let region = open(&path, &Options { address, coherence, ..OPTIONS }).unwrap();
        assert_eq!(region.fabric().address(), address);
        mix(&region, number, operations() / 10 * tenths, &AtomicU64::new(0));
    } else if role == "shares" {
        become_nobody(OF_NOBODY);
        let shared = Options { group: Some(OF_NOBODY), ..OPTIONS };
        let region = open(&path, &shared).unwrap();
        assert!(check(&region, 1), "root's record");
        mix(&region, 3, number, &AtomicU64::new(0));
        store(&region, 2);
        let own = path.with_extension("nobody");
        let alone = Options { group: Some(OF_NOBODY + 1), ..OPTIONS };
        let text = open(&own, &alone).err().expect("no member").text;
        assert!(text.contains("[cluster] group") && !own.exists(), "{text}");
        set_permissions(&path, Permissions::from_mode(0o600)).expect_err("root's file");
        std::process::exit(7);
    } else if role == "is refused" {
        become_nobody(OF_NOBODY);
        let text = open(&path, &OPTIONS).err().expect("refused").text;
        assert!(text.contains("another user has it") && text.contains("[cluster] group"), "{text}");
        std::process::exit(7);
    } else if role == "contends" {
        let region = open(&path, &OPTIONS).unwrap();
        while region.fill().unwrap().members < 5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let [p99, most] = contend(&region, number, turns());
        writeln!(std::io::stdout(), "waits {p99} {most}").unwrap();
    } else {
        let (memory, bytes) = map(&path, &OPTIONS).unwrap();
        let region =
            Region::join(Dying { memory, steps: 0.into(), dies_at: number, panics: false }, bytes);
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
    let mut children: Vec<_> = (0..4).map(|number| name.child(None, "mixes", number)).collect();
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        let audit = region.audit().unwrap();
        assert!(audit.is_sound(), "{audit:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
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
fn f108_a_region_of_a_group_is_that_groups_and_refused_otherwise_by_name() {
    let (name, own) = (Name::new("group"), Name::new("own"));
    let group = getegid().as_raw();
    let of = |group| Options { group: Some(group), ..OPTIONS };
    let mode = |to| set_permissions(&name.0, Permissions::from_mode(to)).unwrap();
    let refusal = |path: &Path, options: &Options| {
        let text = open(path, options).err().expect("refused").text;
        assert!(text.contains(&path.display().to_string()), "{text}");
        text
    };
    drop(open(&name.0, &of(group)).unwrap());
    let stat = std::fs::metadata(&name.0).unwrap();
    assert_eq!((stat.mode() & 0o7777, stat.gid()), (0o660, group));
    drop(open(&name.0, &of(group)).unwrap());
    assert!(refusal(&name.0, &OPTIONS).contains("[cluster] group"), "made for a group");
    let text = refusal(&name.0, &of(group + 1));
    assert!(text.contains(&format!("chgrp {}", group + 1)), "{text}");
    for wrong in [0o600, 0o640, 0o662, 0o664] {
        mode(wrong);
        assert!(refusal(&name.0, &of(group)).contains("chmod 660"), "{wrong:o}");
    }
    drop(own.open(None));
    assert!(refusal(&own.0, &of(group)).contains("mode 600"), "made for one user");
    mode(0o660);
    let folder = Name::new("folder");
    std::fs::create_dir(&folder.0).unwrap();
    set_permissions(&folder.0, Permissions::from_mode(0o2777)).unwrap();
    let inside = folder.0.join("region");
    assert!(refusal(&inside, &of(group)).contains("chmod o-w") && !inside.exists());
    set_permissions(&folder.0, Permissions::from_mode(0o2770)).unwrap();
    drop(open(&inside, &of(group)).unwrap());
    set_permissions(&folder.0, Permissions::from_mode(0o2777)).unwrap();
    assert!(refusal(&inside, &of(group)).contains("chmod o-w"));
    std::fs::remove_dir_all(&folder.0).unwrap();
}

#[test]
fn f108_two_users_of_a_group_share_a_region_and_nobody_else_does() {
    if !geteuid().is_root() {
        writeln!(std::io::stderr(), "skipped: a process of another user takes root").unwrap();
        return;
    }
    let (name, own) = (Name::new("shared"), Name::new("unshared"));
    drop(own.open(None));
    let region = open(&name.0, &Options { group: Some(OF_NOBODY), ..OPTIONS }).unwrap();
    store(&region, 1);
    for (path, role) in [(&name, "shares"), (&own, "is refused")] {
        let output = said(path.child(None, role, 300));
        assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stdout));
    }
    assert!(check(&region, 2), "nobody's record");
    std::os::unix::fs::chown(&own.0, Some(NOBODY), None).unwrap();
    let text = open(&own.0, &OPTIONS).err().expect("nobody's").text;
    assert!(text.contains("belongs to user 65534"), "{text}");
    region.sweep().unwrap();
    assert!(region.audit().unwrap().is_sound());
}

#[test]
fn a_group_has_a_name_or_a_number() {
    assert_eq!(group_id("4242").unwrap(), 4242);
    assert_eq!(group_id("root").unwrap(), 0);
    for wrong in ["no-such-group", "4294967295", "a\0b", "-1", ""] {
        let text = group_id(wrong).unwrap_err().text;
        assert!(text.contains("[cluster] group") && text.contains("getent group"), "{text}");
    }
}

fn now(region: &Region<Mapping>) -> Option<(Vec<bool>, u64)> {
    region.look_up_now([3, 4].map(key).into_iter())
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
    assert_eq!([now(&region), now(&region)], [None, None], "a repair takes its time");
    for number in 0..40 {
        assert!(!check(&region, number), "{number} cannot be where its entry says");
    }
    assert_eq!(now(&region), Some((vec![false, false], 0)), "who may wait did it");
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.ready == 0, "{audit:?}");
    store(&region, 7);
    assert!(check(&region, 7));
}

#[test]
fn a_look_up_at_once_waits_for_nobody() {
    let name = Name::new("now");
    let region = name.open(None);
    (0..4).for_each(|number| store(&region, number));
    assert_eq!(now(&region), Some((vec![true, false], 0)));
    let (other, _) = map(&name.0, &OPTIONS).unwrap();
    other.lock().unwrap();
    assert_eq!(now(&region), None, "another one has the lock");
    other.unlock();
    assert!(now(&region).is_some());
    // Its file is closed, as at a process's death.
    other.lock().unwrap();
    drop(other);
    assert_eq!(now(&region), None, "a repair takes its time");
    assert_eq!(now(&region), None, "nobody has done it yet");
    store(&region, 4);
    assert_eq!(now(&region), Some((vec![true, true], 0)), "who stored did it");
    let by_hand = open(&name.0, &Options { coherence: Coherence::Clflush, ..OPTIONS }).unwrap();
    assert_eq!(now(&by_hand), None, "each line takes its time");
    let several = Name::new("now-hosts");
    assert_eq!(now(&several.open(Some(0))), None, "a turn takes its time");
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
