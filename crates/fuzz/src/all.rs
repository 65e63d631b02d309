//! Owns the way to the targets: they stand beside the tests of the core, which replay the corpus.
#![expect(dead_code, reason = "each program runs one of them")]

#[path = "../../core/tests/support/certificates.rs"]
pub mod certificates;
#[path = "../../core/tests/support/payloads.rs"]
pub mod payloads;
#[path = "../../core/tests/support/records.rs"]
pub mod records;
#[path = "../../core/tests/support/secured.rs"]
pub mod secured;
#[path = "../../core/tests/support/segments.rs"]
pub mod segments;
#[path = "../../core/tests/support/targets.rs"]
pub mod targets;
