//! Owns the tests of a directory that is this user's alone: links, pipes, other owners and other names are refused, each by its path.
#![expect(clippy::print_stderr, reason = "says why it did not run")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use tierkv_core::disk::storage::{Access, Directory, Storage};
use tierkv_core::disk::{Disk, DiskOptions, Durability};
use tierkv_core::folder::Folder;
use tierkv_core::lockfile::LockFile;

#[expect(dead_code, reason = "segments are not looked at here")]
#[path = "support/folder.rs"]
mod support;
use support::Folder as Place;

const NOBODY: u32 = 65_534;
const OURS: &str = "tombstones";

fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).expect("it is made");
}

fn pipe(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .expect("it is made");
}

/// Tests that give files away run where they may: as root.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: giving a file to another user takes root");
    }
    root
}

fn refusal(path: &Path) -> String {
    Folder::open(path).expect_err("it is refused").to_string()
}

#[test]
fn a_directory_is_made_for_this_user_alone() {
    let place = Place::new();
    let path = place.path().join("a").join("b");
    Folder::open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn f39_a_directory_that_others_may_write_is_refused_with_its_mode() {
    let place = Place::new();
    for bits in [0o777, 0o1777, 0o770, 0o702] {
        mode(place.path(), bits);
        let says = refusal(place.path());
        assert!(says.contains(&format!("mode {bits:o}")), "{says}");
        assert!(says.contains(&format!("chmod 700 {}", place.path().display())), "{says}");
    }
    mode(place.path(), 0o755);
    Folder::open(place.path()).unwrap();
}

#[test]
fn f39_a_directory_of_another_user_is_refused() {
    let place = Place::new();
    if is_root() {
        chown(place.path(), Some(NOBODY), None).unwrap();
        assert!(refusal(place.path()).contains("belongs to user 65534"));
    }
}

#[test]
fn a_link_to_a_directory_is_followed_only_when_we_or_root_made_it() {
    let (place, real) = (Place::new(), Place::new());
    let link = place.path().join("link");
    symlink(real.path(), &link).unwrap();
    assert_eq!(Folder::open(&link).unwrap().path(), real.path().canonicalize().unwrap());
    if is_root() {
        std::os::unix::fs::lchown(&link, Some(NOBODY), None).unwrap();
        for path in [link.clone(), link.join("")] {
            assert!(refusal(&path).contains("a link of user 65534"));
        }
    }
}

/// What may stand where a file of ours is expected, by a part of the refusal.
type Foreign = (&'static str, fn(&Path, &Path));
const FOREIGN: [Foreign; 4] = [
    ("no regular file", |path, elsewhere| symlink(elsewhere, path).expect("it is made")),
    ("no regular file", |path, _| pipe(path)),
    ("hard link", |path, elsewhere| fs::hard_link(elsewhere, path).expect("it is made")),
    ("mode 666", |path, _| {
        fs::write(path, b"x").expect("it is made");
        mode(path, 0o666);
    }),
];

#[test]
fn a_vault_does_not_start_on_what_is_not_its_own() {
    let elsewhere = Place::new();
    let other = elsewhere.path().join("precious");
    fs::write(&other, b"precious").unwrap();
    let segment = "00000001-000000000001-0000000000000001.seg";
    for name in
        [OURS, "tombstones.new", "models.json", "flushes.json", "archive.new", "lock", segment]
    {
        for (reason, make) in FOREIGN {
            let place = Place::new();
            make(&place.path().join(name), &other);
            let options = DiskOptions::new(64 << 20, 1 << 20, Durability::Sync);
            let Err(refused) = Disk::open(place.path(), options) else {
                panic!("{name}: {reason} was taken")
            };
            let says = refused.to_string();
            assert!(says.contains(name) && says.contains(reason), "{says}");
            assert!(says.contains("move it out"), "{says}");
        }
    }
    assert_eq!(fs::read(&other).unwrap(), b"precious");
}

#[test]
fn nothing_foreign_is_opened_later_and_no_pipe_is_waited_for() {
    let (place, elsewhere) = (Place::new(), Place::new());
    let other = elsewhere.path().join("precious");
    fs::write(&other, b"precious").unwrap();
    let storage = Directory::open(place.path()).unwrap();
    for (reason, make) in FOREIGN {
        let path = place.path().join(OURS);
        make(&path, &other);
        for access in [Access::Direct, Access::Write] {
            let says = storage.open(OURS, access).err().unwrap().to_string();
            let is_link = says.contains("it is a link");
            assert!(says.contains(reason) || is_link, "{says}, not {reason}");
            assert!(says.contains(OURS), "{says}");
        }
        assert!(storage.create(OURS).is_err());
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(fs::read(&other).unwrap(), b"precious");
}

#[test]
fn f39_a_file_of_another_user_is_refused() {
    let place = Place::new();
    let folder = Folder::open(place.path()).unwrap();
    folder.write(OURS, b"x").unwrap();
    if is_root() {
        chown(place.path().join(OURS), Some(NOBODY), None).unwrap();
        let says = folder.file(OURS, OFlags::RDONLY).unwrap_err().to_string();
        assert!(says.contains("belongs to user 65534"), "{says}");
        assert!(folder.check(|name| name == OURS).is_err());
        assert!(folder.check(|name| name != OURS).is_ok());
    }
}

#[test]
fn a_directory_that_is_moved_away_stays_the_one_that_was_checked() {
    let place = Place::new();
    let (path, moved) = (place.path().join("data"), place.path().join("moved"));
    let folder = Folder::open(&path).unwrap();
    fs::rename(&path, &moved).unwrap();
    symlink(std::env::temp_dir(), &path).unwrap();
    folder.write("models.json", b"{}").unwrap();
    assert_eq!(fs::read(moved.join("models.json")).unwrap(), b"{}");
}

#[test]
fn a_small_file_is_written_over_a_link_and_read_up_to_its_limit() {
    let (place, elsewhere) = (Place::new(), Place::new());
    let other = elsewhere.path().join("precious");
    fs::write(&other, b"precious").unwrap();
    let folder = Folder::open(place.path()).unwrap();
    assert_eq!(folder.read("models.json", 8).unwrap(), None);
    symlink(&other, place.path().join("models.json.new")).unwrap();
    symlink(&other, place.path().join("models.json")).unwrap();
    assert!(folder.read("models.json", 100).is_err());
    folder.write("models.json", b"12345678").unwrap();
    assert_eq!(folder.read("models.json", 8).unwrap().as_deref(), Some(&b"12345678"[..]));
    assert!(folder.read("models.json", 7).is_err());
    assert_eq!(fs::read(&other).unwrap(), b"precious");
    let bits = fs::metadata(place.path().join("models.json")).unwrap().permissions().mode();
    assert_eq!(bits & 0o777, 0o600);
}

#[test]
fn a_lock_is_no_pipe_and_no_link() {
    let place = Place::new();
    let path = place.path().join("lock");
    pipe(&path);
    let says = LockFile::take(&path).unwrap_err().to_string();
    assert!(says.contains("no regular file"), "{says}");
    assert!(path.exists(), "what is not ours is not removed");
    fs::remove_file(&path).unwrap();
    let other = place.path().join("other");
    fs::write(&other, b"").unwrap();
    symlink(&other, &path).unwrap();
    assert!(LockFile::take(&path).is_err());
}
