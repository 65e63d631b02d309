//! Owns the figures of a vault of this machine and user: records read where they stand, against the same vault over its socket,
//! and against one core that copies as many bytes.

use std::hint::black_box;

use tierkv_core::codec::Codec;

use super::Plan;
use super::near::{CODECS, Near, Place};
use super::samples::{Samples, measure};
use super::session::Session;

/// Lanes of a session, as a sidecar opens them.
const LANES: u16 = 4;
/// Rounds of each codec before those that count.
const WARMING: usize = 2;

/// One round of a codec: a copy, then a save and a restore in both ways.
fn round(
    near: &mut Near,
    sessions: &[(&str, Session); 2],
    to: &mut [u8],
    (codec, name): (Codec, &str),
    samples: &mut Samples,
) {
    let pages = near.pages();
    let bytes = to.len();
    measure(samples, near, "memcpy", bytes, |_| {
        for (page, part) in pages.iter().zip(to.chunks_mut(bytes / pages.len())) {
            // SAFETY: each page is as long as the part, and nobody writes it meanwhile.
            unsafe { part.as_mut_ptr().copy_from_nonoverlapping(page.place, part.len()) };
        }
        black_box(&to);
    });
    let bytes = near.wire_bytes(codec);
    for (way, session) in sessions {
        near.next_set();
        measure(samples, near, &format!("save{name}{way}"), bytes, |near| {
            near.save(session, codec);
        });
        measure(samples, near, &format!("restore{name}{way}"), bytes, |near| {
            near.restore(session, codec);
        });
    }
}

/// Runs all rounds; returns one line of JSON.
pub fn run(plan: &Plan) -> String {
    let mut near = Near::open(plan, &Place::default());
    let sessions = [("Socket", false), ("Lent", true)]
        .map(|(way, is_lent)| (way, near.connect_own(LANES, is_lent)));
    near.fill();
    let page_bytes = near.geometry.page_bytes();
    let mut to = vec![1; near.blocks() * page_bytes];
    let mut samples = Samples::default();
    for codec in CODECS {
        // Not counted: they touch memory, and fill the vault with records of this length, so that it has pages for the next.
        for _ in 0..WARMING {
            round(&mut near, &sessions, &mut to, codec, &mut Samples::default());
        }
        for _ in 0..plan.rounds {
            round(&mut near, &sessions, &mut to, codec, &mut samples);
        }
    }
    drop(sessions);
    near.end();
    let (blocks, rounds) = (plan.blocks, plan.rounds);
    format!(
        "{{\"blocks\":{blocks},\"rounds\":{rounds},\"pageBytes\":{page_bytes},\"samples\":{{{}}}}}",
        samples.json()
    )
}
