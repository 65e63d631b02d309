//! Owns the proof of the lanes: records there and back over real sockets, and peers that are late, silent or wrong.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[expect(dead_code, reason = "operations are not counted here")]
#[path = "../support/faulty.rs"]
mod faulty;
#[path = "../support/folder.rs"]
mod folder;
#[path = "../support/random.rs"]
mod random;
#[path = "../support/records.rs"]
mod records;

#[path = "../support/certificates.rs"]
mod certificates;
mod link;

/// Whether what is tested here travels under TLS; `lanes_tls` runs the same again with it.
const IS_SECURE: bool = false;
/// Whether clients and vaults read records in each other's memory; `lanes_lent` runs a part of this with it.
const IS_LENT: bool = false;

mod bounds;
mod deferred;
mod failpoints;
mod frames;
mod peers;
#[cfg(target_os = "linux")]
mod rails;
mod sealed;
mod shares;
mod slow;
mod stand;
mod traces;
mod trip;
mod wires;
