//! Owns the rounds of protection against readers: lanes under TLS, and sealed records, against both in clear, in turns.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tierkv_core::codec::Codec;
use tierkv_core::crc32c;
use tierkv_core::limits::LANE_STEP_BYTES;
use tierkv_core::seal::RecordKeys;

use super::Plan;
use super::near::{Boxes, Near, Place};
use super::samples::{Samples, measure};
use super::session::Session;

/// Default number of lanes.
const LANES: u16 = 4;
/// Steps of one measurement of checksums.
const CHECKSUM_STEPS: u32 = 4096;

/// One way to send records.
struct Way {
    name: &'static str,
    session: Session,
    boxes: Boxes,
}

fn sealing() -> Boxes {
    let boxes = Boxes::default();
    let keys = Arc::new(RecordKeys::parse("5a".repeat(32).as_bytes()).unwrap());
    assert!(boxes.outbox.seal_with(&keys) && boxes.inbox.open_with(&keys));
    boxes
}

fn round(near: &mut Near, ways: &mut [Way], samples: &mut Samples) {
    near.fill();
    for (codec, name) in [(Codec::Int8, "Int8"), (Codec::Raw, "Raw")] {
        let bytes = near.wire_bytes(codec);
        for Way { name: way, session, boxes } in &mut *ways {
            near.next_set();
            std::mem::swap(&mut near.boxes, boxes);
            measure(samples, near, &format!("save{name}{way}"), bytes, |near| {
                near.save(session, codec);
            });
            measure(samples, near, &format!("restore{name}{way}"), bytes, |near| {
                near.restore(session, codec);
            });
            std::mem::swap(&mut near.boxes, boxes);
        }
    }
    samples.add("checksumSPerGb", checksum_seconds());
}

/// Returns the seconds for the checksum of a gigabyte, step by step in the cache, as lanes compute it.
fn checksum_seconds() -> f64 {
    let step = vec![0x5A; LANE_STEP_BYTES];
    let started = Instant::now();
    for _ in 0..CHECKSUM_STEPS {
        black_box(crc32c::checksum(black_box(&step)));
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let bytes = (step.len() * CHECKSUM_STEPS as usize) as f64;
    started.elapsed().as_secs_f64() / bytes * 1e9
}

/// Runs all rounds; returns one line of JSON.
pub fn run(plan: &Plan, place: &Place) -> String {
    let mut near = Near::open(plan, place);
    let mut ways = [
        Way { name: "Clear", session: near.connect(LANES, false), boxes: Boxes::default() },
        Way { name: "Tls", session: near.connect(LANES, true), boxes: Boxes::default() },
        Way { name: "Sealed", session: near.connect(LANES, false), boxes: sealing() },
    ];
    // The first round is not counted, because it touches memory and makes buffers.
    round(&mut near, &mut ways, &mut Samples::default());
    let mut samples = Samples::default();
    for _ in 0..plan.rounds {
        round(&mut near, &mut ways, &mut samples);
    }
    drop(ways);
    near.end();
    let (blocks, page_bytes) = (plan.blocks, near.geometry.page_bytes());
    let (rounds, samples) = (plan.rounds, samples.json());
    format!(
        "{{\"blocks\":{blocks},\"rounds\":{rounds},\"pageBytes\":{page_bytes},\"lanes\":{LANES},\"samples\":{{{samples}}}}}"
    )
}
