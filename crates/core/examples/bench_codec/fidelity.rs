//! Owns the fidelity figures: what comes back of known head vectors, and how small they get.

use tierkv_core::codec::Codec;

use crate::data::{Spread, snr_db};
use crate::trip::{BF16, plain};

/// True SNR of each spread in dB, bf16 at head dim 128.
pub fn all() -> impl Iterator<Item = (Spread, f64)> {
    Spread::ALL.into_iter().map(|spread| (spread, snr_db(spread)))
}

/// Source over payload bytes, bf16 at head dim 128.
pub fn ratio() -> f64 {
    let geometry = plain(BF16, 128, 16);
    let payload = geometry.payload_bytes(Codec::Int8).expect("int8 takes kv pages");
    let float = |bytes: usize| f64::from(u32::try_from(bytes).expect("a small page"));
    float(geometry.source_bytes()) / float(payload)
}
