//! Owns the fidelity figures: SNR of known head vectors after decoding, and compression ratio.

use tierkv_core::codec::{Codec, Form};

use crate::data::{Spread, bf16, snr_db};
use crate::trip::{BF16, plain};

/// Returns the true SNR of each spread in dB, bf16 at head dim 128.
pub fn all(codec: Codec) -> impl Iterator<Item = (Spread, f64)> {
    Spread::ALL.into_iter().map(move |spread| (spread, snr_db(codec, spread)))
}

/// Returns source bytes over payload bytes of the codec, bf16 at head dim 128.
pub fn ratio(codec: Codec) -> f64 {
    let (dim, vectors) = (128, 1024);
    let geometry = plain(BF16, dim, vectors);
    let page = bf16(Spread::KeyLike, vectors, dim);
    let mut payload = vec![0; geometry.payload_bytes(codec).expect("all take kv pages")];
    // SAFETY: the page is as long as the geometry says; payload is another vector.
    let made = unsafe { Form::from(codec).encode(&geometry, page.as_ptr(), &mut payload) };
    let float = |bytes: usize| f64::from(u32::try_from(bytes).expect("a small page"));
    float(geometry.source_bytes()) / float(made.expect("all take such values").bytes)
}
