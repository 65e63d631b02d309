//! Owns the proof of memory that is lent: what is proven of lanes holds where records are read where they stand, and no peer that
//! ends, waits or lies makes a wrong page or a wrong record.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../support/certificates.rs"]
mod certificates;
#[expect(dead_code, reason = "few peers by hand speak here")]
#[path = "../lanes/link.rs"]
mod link;
#[path = "../support/random.rs"]
mod random;

/// Whether what is tested here travels under TLS.
const IS_SECURE: bool = false;
/// Whether clients and vaults read records in each other's memory.
const IS_LENT: bool = true;

#[path = "../lanes/deferred.rs"]
mod deferred;
#[path = "../lanes/frames.rs"]
mod frames;
#[path = "../lanes/sealed.rs"]
mod sealed;
#[expect(dead_code, reason = "rates are not measured here")]
#[path = "../lanes/stand.rs"]
mod stand;
#[path = "../lanes/trip.rs"]
mod trip;
#[expect(dead_code, reason = "few peers by hand speak here")]
#[path = "../lanes/wires.rs"]
mod wires;

mod faults;
mod users;
