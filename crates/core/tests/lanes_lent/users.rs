//! Owns the proof of whom memory is lent to: a process of the same user, and nobody under TLS.

use std::thread;

use tierkv_core::codec::Codec;
use tierkv_core::lane::client::Outcome;

use super::link;
use super::stand::{ACCEPTED, Engine, Lanes, Shape, Vault, new_store, timing};

/// A user that nobody is.
const OTHER: libc::c_long = 65_534;

/// Stores and fetches a record, whose memory nobody lends.
fn travels_unlent(engine: &Engine, lanes: &Lanes) {
    assert_eq!(lanes.next(), (0, Outcome::Up));
    assert_eq!(lanes.client.lends(), [false; 2]);
    let record = engine.record(1, Codec::Raw);
    assert_eq!(lanes.store(vec![record.clone()]), [ACCEPTED]);
    let (targets, leases) = engine.targets(&[1], Codec::Raw);
    let request = lanes.client.fetch(targets).unwrap();
    let Outcome::Done(statuses, ..) = lanes.outcome(request) else { panic!("done") };
    assert_eq!(statuses, [ACCEPTED]);
    let page = engine.page(&record, Codec::Raw);
    assert!(engine.arena.peek(leases[0].slot).unwrap() == page);
}

#[test]
fn a_vault_of_another_user_gets_bytes_and_no_memory() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let address = Vault::socket();
    // Linux keeps a user per thread; what the thread starts has the same.
    let other = move || {
        // SAFETY: the call changes only this thread's user.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER) }, 0);
        Vault::at(&address, new_store(), |_| {})
    };
    let vault = thread::spawn(other).join().unwrap();
    let engine = Engine::new(Shape::Strided, 4);
    let lanes = Lanes::dial(&vault.address, vault.token(), 2, timing());
    travels_unlent(&engine, &lanes);
    assert_eq!(vault.count("lanes_lent"), 0);
}

#[test]
fn under_tls_all_bytes_travel() {
    let tls = Some(link::usual().server());
    let vault = Vault::at(&Vault::socket(), new_store(), |options| options.tls = tls);
    let engine = Engine::new(Shape::Strided, 4);
    let client = Some(link::usual().client());
    let lanes = Lanes::with(&vault.address, vault.token(), 2, timing(), client);
    travels_unlent(&engine, &lanes);
    assert_eq!(vault.count("lanes_lent"), 0);
}

#[test]
fn a_client_that_lends_nothing_gets_bytes() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Strided, 4);
    let rails = vec![vault.address.as_str().into()];
    travels_unlent(&engine, &Lanes::of(rails, vault.token(), 2, timing(), None, None));
    assert_eq!(vault.count("lanes_lent"), 0);
}

#[test]
fn records_of_another_outbox_travel_as_bytes() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Strided, 4);
    // The client lends the memory of the engine made last.
    let _other = Engine::new(Shape::Strided, 4);
    let lanes = Lanes::open(&vault, 2);
    let record = engine.record(1, Codec::Raw);
    assert_eq!(lanes.store(vec![record]), [ACCEPTED]);
}
