//! Tests what two processes find out about memory that they share, and that nothing of it stays.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tierkv_shm::doctor::{answer, ask};

fn name(of: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/tierkv-test-doctor-{of}-{}", std::process::id()))
}

/// What the other process does.
#[test]
fn child() {
    if let Some(path) = std::env::var_os("TIERKV_SHM_PATH") {
        answer(Path::new(&path)).unwrap();
    }
}

fn peer(path: &Path) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child"])
        .env("TIERKV_SHM_PATH", path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "the other process makes the file");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

#[test]
fn memory_of_this_machine_is_seen_and_right_either_way() {
    let path = name("both");
    let mut other = peer(&path);
    let report = ask(&path).unwrap();
    assert!(other.wait().unwrap().success());
    assert!(!path.exists(), "nothing stays");
    assert!(report.is_same_host && report.load_ns > 0.0 && report.own_load_ns > 0.0);
    for way in [Some(report.hardware), report.clflush].into_iter().flatten() {
        assert_eq!((way.unseen, way.wrong), (0, 0), "{report:?}");
        assert!(way.in_per_s > 0.0 && way.out_per_s > 0.0 && way.trip_ns[1] >= way.trip_ns[0]);
    }
    assert_eq!(report.clflush.is_some(), cfg!(target_arch = "x86_64"));
    assert!(report.lock_ns.unwrap()[0] > 0.0);
}

#[test]
fn a_file_that_was_left_is_refused_by_both_with_its_name() {
    let path = name("left");
    let mut other = peer(&path);
    other.kill().unwrap();
    other.wait().unwrap();
    let refusal = answer(&path).unwrap_err().text;
    assert!(refusal.contains("remove it") && refusal.contains(path.to_str().unwrap()));
    std::fs::remove_file(&path).unwrap();
    assert!(ask(&path).unwrap_err().text.contains("there is no region"));
}
