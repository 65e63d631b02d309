//! Owns the rounds of lanes under TLS beside lanes in clear: the same records, the same way, in turns.

use tierkv_core::codec::Codec;

use super::Plan;
use super::near::{Near, Place, Samples, Session, measure};

/// The default.
const LANES: u16 = 2;

fn round(near: &mut Near, sessions: &[(&str, Session)], samples: &mut Samples) {
    near.fill();
    for (codec, name) in [(Codec::Int8, "Int8"), (Codec::Raw, "Raw")] {
        let bytes = near.wire_bytes(codec);
        for (how, session) in sessions {
            near.order("flush");
            measure(samples, near, &format!("save{name}{how}"), bytes, |near| {
                near.save(session, codec);
            });
            measure(samples, near, &format!("restore{name}{how}"), bytes, |near| {
                near.restore(session, codec);
            });
        }
    }
}

/// Runs all rounds; one line of JSON.
pub fn run(plan: &Plan, place: &Place) -> String {
    let mut near = Near::open(plan, place);
    let sessions = [("Clear", false), ("Tls", true)]
        .map(|(how, is_secured)| (how, near.connect(LANES, is_secured)));
    // One round for nothing: memory is touched, buffers are made.
    round(&mut near, &sessions, &mut Samples::default());
    let mut samples = Samples::default();
    for _ in 0..plan.rounds {
        round(&mut near, &sessions, &mut samples);
    }
    drop(sessions);
    near.end();
    let (blocks, page_bytes) = (plan.blocks, near.page_bytes());
    let (rounds, samples) = (plan.rounds, samples.json());
    format!(
        "{{\"blocks\":{blocks},\"rounds\":{rounds},\"pageBytes\":{page_bytes},\"lanes\":{LANES},\"samples\":{{{samples}}}}}"
    )
}
