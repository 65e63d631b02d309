//! Owns the proof of lanes under TLS: everything that is proven of lanes in clear, and who is not let in.
//! @module-tag nightly

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../support/certificates.rs"]
mod certificates;
#[path = "../lanes/link.rs"]
mod link;
#[path = "../support/random.rs"]
mod random;

/// Whether what is tested here travels under TLS.
const IS_SECURE: bool = true;
/// Whether clients and vaults read records in each other's memory; `lanes_lent` runs a part of this with it.
const IS_LENT: bool = false;

#[path = "../lanes/bounds.rs"]
mod bounds;
#[path = "../lanes/deferred.rs"]
mod deferred;
#[path = "../lanes/frames.rs"]
mod frames;
#[path = "../lanes/peers.rs"]
mod peers;
#[path = "../lanes/sealed.rs"]
mod sealed;
#[path = "../lanes/shares.rs"]
mod shares;
#[path = "../lanes/stand.rs"]
mod stand;
#[path = "../lanes/trip.rs"]
mod trip;
#[path = "../lanes/wires.rs"]
mod wires;

mod refusals;
