//! Owns the core's failpoints: named places where a test makes a step fail or wait, or ends the process. Without the
//! feature `failpoints`, which only our own tests turn on, there is nothing of them.

use std::io;

/// Every failpoint, by what is true there. None gives a value: none can make a byte wrong.
pub const FAILPOINTS: [(&str, &str); 9] = [
    ("lane.received", "a record's bytes are all there; none is verified"),
    ("lane.stored", "a record is verified, and durable where it must be; it is not answered"),
    ("reassembly.whole", "a record's bytes are all in their place in the arena; none is verified"),
    ("reassembly.sound", "a record is verified and decoded into its slot; nobody is told"),
    ("disk.append", "records can be looked up in memory; nothing of them is in a segment"),
    ("disk.written", "records lie in a segment; the index does not know it"),
    ("disk.sync", "records lie in a segment and can be looked up; nothing is synced"),
    ("disk.synced", "records are durable; nobody is told"),
    ("disk.roll", "a segment is sealed; there is no next one"),
];

/// Stands before a step that may fail. With the feature: waits, ends the process or fails, as a test has said with
/// `fail::cfg`: `return` fails, `return(abort)` ends the process as a crash does.
///
/// # Errors
/// When it is the turn of that; never without the feature.
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

/// The same without the feature: nothing.
///
/// # Errors
/// None.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub const fn failpoint(_name: &str) -> io::Result<()> {
    Ok(())
}
