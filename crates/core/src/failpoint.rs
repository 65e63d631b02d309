//! Owns the core's failpoints: named places where a test makes a step fail, wait, or end the process. Only our tests turn
//! on the feature `failpoints`, without which they are compiled out.

use std::io;

/// Every failpoint with the state at its place. None takes a value, so that none can change a byte.
pub const FAILPOINTS: [(&str, &str); 11] = [
    ("lane.received", "a record's bytes are all there; none is verified"),
    ("lane.stored", "a record is verified, and durable where it must be; it is not answered"),
    ("lane.copy", "a record is to be copied from the client's memory"),
    ("lane.read", "a record is to be copied from the vault's memory into its slot"),
    ("reassembly.whole", "a record's bytes are all in their place in the arena; none is verified"),
    ("reassembly.sound", "a record is verified and decoded into its slot; nobody is told"),
    ("disk.append", "records can be looked up in memory; nothing of them is in a segment"),
    ("disk.written", "records lie in a segment; the index does not know it"),
    ("disk.sync", "records lie in a segment and can be looked up; nothing is synced"),
    ("disk.synced", "records are durable; nobody is told"),
    ("disk.roll", "a segment is sealed; there is no next one"),
];

/// Precedes a step that may fail. With the feature, a test sets its action through `fail::cfg`: `return` fails,
/// `return(abort)` ends the process as a crash does.
///
/// # Errors
/// When the test's action is to fail; never without the feature.
#[cfg(feature = "failpoints")]
pub fn failpoint(name: &str) -> io::Result<()> {
    debug_assert!(FAILPOINTS.iter().any(|(known, _)| *known == name), "{name} is in no table");
    let failed = fail::eval(name, |argument| {
        if argument.as_deref() == Some("abort") {
            std::process::abort();
        }
        io::Error::other(format!("failpoint {name}: this step is made to fail"))
    });
    failed.map_or(Ok(()), Err)
}

/// Does nothing, without the feature.
///
/// # Errors
/// None.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub const fn failpoint(_name: &str) -> io::Result<()> {
    Ok(())
}
