//! Owns the proof of lanes over several rails: which are asked whether they live, and which one ends a session.

use std::thread;
use std::time::{Duration, Instant};

use tierkv_core::lane::client::{Outcome, Rail};
use tierkv_core::lane::frame::{Frame, Kind};
use tierkv_core::limits::RAIL_SILENT_MS;

use super::stand::{Lanes, NAMESPACE, Vault, key, timing};
use super::wires::{Wire, vault_on, vault_over};

const RAILS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// Answers what asks whether the vault is there, and nothing else, until the lane ends.
fn answer_pings(mut wire: Wire) {
    thread::spawn(move || {
        while let Some((frame, _)) = wire.next() {
            if frame.kind == Kind::Ping {
                wire.send(frame, &[]);
            }
        }
    });
}

#[test]
fn f85_a_rail_that_is_silent_while_another_is_heard_ends_the_session_and_is_named() {
    let (lanes, mut wires) = vault_over(&RAILS, 2);
    let _silent = wires.pop().unwrap();
    answer_pings(wires.pop().unwrap());
    thread::sleep(Duration::from_millis(2 * RAIL_SILENT_MS));
    assert!(lanes.is_quiet(), "nobody waits for anything");
    lanes.client.look_up(&NAMESPACE, &[key(1)]).unwrap();
    let text = lanes.down();
    assert!(text.contains("127.0.0.2") && text.contains("silent"), "{text}");
    assert_eq!(lanes.client.failed_rails(), [1]);
}

#[test]
fn f110_what_shares_an_end_with_a_silent_rail_and_is_silent_is_named_with_it() {
    let ways = [("127.0.0.1", Some(3)), ("127.0.0.2", Some(4)), ("127.0.0.3", Some(4))];
    let (lanes, mut wires) = vault_on(&ways, 3);
    let _silent = [wires.pop().unwrap(), wires.pop().unwrap()];
    answer_pings(wires.pop().unwrap());
    lanes.client.look_up(&NAMESPACE, &[key(1)]).unwrap();
    lanes.down();
    assert_eq!(lanes.client.failed_rails(), [1, 2]);
}

#[test]
fn f85_a_vault_that_is_silent_on_all_rails_is_late_and_no_rail_is_cut() {
    let (lanes, mut wires) = vault_over(&RAILS, 2);
    let request = lanes.client.look_up(&NAMESPACE, &[key(1)]).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(3 * RAIL_SILENT_MS) {
        assert!(lanes.is_quiet());
    }
    let wire = &mut wires[request as usize % 2];
    wire.send(Frame::new(Kind::Found, request), &[1]);
    assert_eq!(lanes.outcome(request), Outcome::Found(vec![1]));
    assert_eq!(lanes.client.failed_rails(), [] as [usize; 0]);
}

#[test]
fn a_lane_comes_from_the_address_that_its_rail_names_and_a_vault_answers_pings() {
    let vault = Vault::open();
    let local = |last| Some([127, 0, 0, last].into());
    let rails = [3, 4].map(|last| Rail { address: vault.address.clone(), local: local(last) });
    let lanes = Lanes::over(rails.to_vec(), vault.token(), 2, timing());
    assert_eq!(lanes.next(), (0, Outcome::Up));
    // Longer than a rail may be silent.
    let request = lanes.client.probe(1, false).unwrap();
    assert!(matches!(lanes.outcome(request), Outcome::Done(..)));
    let elsewhere = Rail { address: vault.address.clone(), local: local(3) };
    let gone = Rail { address: "127.0.0.5:1".to_owned(), local: None };
    let broken = Lanes::over(vec![elsewhere, gone], vault.token(), 2, timing());
    broken.down();
    assert_eq!(broken.client.failed_rails(), [1]);
}
