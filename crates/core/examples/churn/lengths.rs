//! Owns the lengths of real models' records, by number; the mix of models changes as numbers grow.

const KIB: u64 = 1024;
/// Numbers that share one mix of models, about 25 GB of payloads.
const PHASE: u64 = 16_384;

/// Bytes of one block in vLLM, in KiB: 16 tokens of all layers of a group, or a recurrent state.
const BLOCKS_KIB: [u64; 9] = [
    // Llama-3.1-8B, Llama-3.1-70B, Qwen3-30B-A3B, gpt-oss-120b (either group), DeepSeek-V3.
    2048, 5120, 1536, 576, 1098,
    // Gemma 3 27B: a group of ten layers; a model of 16 KiB a token; Qwen3.5: state of a group, state of a layer.
    1280, 256, 3150, 37,
];

/// Returns a number without any pattern for each number (`SplitMix64`).
pub fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Returns the payload bytes of record `number`: raw, INT8, or lossless with a length that differs from block to block.
pub fn payload_bytes(number: u64) -> usize {
    let (phase, dice) = (number / PHASE, mixed(number));
    // Two models of a phase have half of its records.
    let favourite = mixed(phase ^ (dice & 1) << 40);
    let model = if dice & 2 == 0 { favourite } else { dice >> 8 };
    let block = BLOCKS_KIB[usize::try_from(model % BLOCKS_KIB.len() as u64).expect("small")] * KIB;
    let bytes = match (dice >> 32) % 4 {
        0 => block,
        1 | 2 => block / 2 + block / 128,
        _ => block * 650 / 1000 + (dice >> 40) % (block * 150 / 1000),
    };
    usize::try_from(bytes).expect("fits")
}
