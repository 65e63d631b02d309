//! Owns a trial of memory: one side publishes under the visibility rules, the other reads and compares each word.

use crate::layout::LINE_BYTES;
use crate::visibility::{Fabric, Rule, Seen};

/// Bytes published per round.
pub const TRIAL_BYTES: u64 = 16 << 10;
/// Offset of the payload; the trial's word precedes it.
const PAYLOAD_FROM: u64 = LINE_BYTES;

/// Payload of a round, in which every word differs from the round before.
fn payload(round: u64) -> Vec<u8> {
    (0..TRIAL_BYTES / 8).flat_map(|word| (round << 32 | word).to_le_bytes()).collect()
}

/// Publishes a round's payload as a record is published.
pub fn publish<F: Fabric>(fabric: &F, at: u64, round: u64) {
    let seen = Seen(fabric);
    seen.payload_in(at + PAYLOAD_FROM, &payload(round));
    seen.fence(Rule::PayloadFence);
    say(fabric, at, round);
}

/// Writes a word as an entry's state is written.
pub fn say<F: Fabric>(fabric: &F, at: u64, word: u64) {
    let seen = Seen(fabric);
    seen.set(at, word);
    seen.fence(Rule::UnlockFence);
}

/// Reads the word as this side sees it.
pub fn heard<F: Fabric>(fabric: &F, at: u64) -> u64 {
    Seen(fabric).word(at)
}

/// Whether a round's payload is as published.
pub fn is_whole<F: Fabric>(fabric: &F, at: u64, round: u64) -> bool {
    let mut bytes = vec![0; usize::try_from(TRIAL_BYTES).unwrap_or_default()];
    Seen(fabric).payload_out(at + PAYLOAD_FROM, &mut bytes);
    bytes == payload(round)
}
