//! Owns the weighing of a codec on one block of the engine's own: bytes, time each way, and how far off what comes back is.

use std::time::{Duration, Instant};

use super::int8;
use crate::codec_id::Codec;
use crate::geometry::Geometry;

/// The quickest of so many: a thread that had to wait says nothing of the codec.
const ROUNDS: usize = 5;

/// What a codec makes of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weight {
    /// Length of its payload.
    pub bytes: usize,
    /// Payload to page.
    pub decode: Duration,
    /// Power of the errors over that of the elements, of the layer's K or V where it is worst; 0 where nothing differs.
    pub noise: f64,
}

/// `None` where the codec does not take such a block, or has no codes for what it holds.
///
/// # Panics
/// If `page` is shorter than the geometry's.
#[must_use]
pub fn weigh(codec: Codec, geometry: &Geometry, page: &[u8]) -> Option<Weight> {
    weigh_through(codec, geometry, page, |_| ())
}

/// The same with payloads that are changed between the two ways: what a codec makes that reads other than it writes.
///
/// # Panics
/// As `weigh`.
pub fn weigh_through(
    codec: Codec,
    geometry: &Geometry,
    page: &[u8],
    mut change: impl FnMut(&mut [u8]),
) -> Option<Weight> {
    assert!(page.len() >= geometry.page_bytes(), "a page of this geometry");
    let mut payload = vec![0; geometry.payload_bytes(codec)?];
    let mut back = page.to_vec();
    let (mut decode, mut bytes) = (Duration::MAX, 0);
    for _ in 0..ROUNDS {
        // SAFETY: the page is as long as the geometry says, and other memory than the payload.
        bytes = unsafe { codec.encode(geometry, page.as_ptr(), &mut payload) }.ok()?.bytes;
        change(&mut payload[..bytes]);
        let changed = Instant::now();
        // SAFETY: as above.
        let done = unsafe { codec.decode(geometry, &payload[..bytes], back.as_mut_ptr()) };
        let ended = Instant::now();
        done.ok()?;
        decode = decode.min(ended - changed);
    }
    Some(Weight { bytes, decode, noise: noise(geometry, page, &back) })
}

/// Pages without vectors are opaque: codecs leave them as they are.
fn noise(geometry: &Geometry, page: &[u8], back: &[u8]) -> f64 {
    let spec = geometry.spec();
    let heads: Vec<_> = geometry.heads().collect();
    let of_part = heads.chunks(spec.heads.max(1) as usize);
    of_part
        .map(|heads| {
            let (mut signal, mut error) = (0.0, 0.0);
            for head in heads {
                for token in 0..head.tokens {
                    let start = head.offset + token * head.token_stride;
                    let vector = start..start + head.vector_bytes;
                    let pairs = elements(spec.dtype, &page[vector.clone()])
                        .zip(elements(spec.dtype, &back[vector]));
                    for (before, after) in pairs {
                        signal += before * before;
                        error += (before - after) * (before - after);
                    }
                }
            }
            if error > 0.0 { error / signal } else { 0.0 }
        })
        .fold(0.0, f64::max)
}

fn elements(dtype: u8, bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes
        .chunks_exact(int8::element_bytes(dtype))
        .map(move |bytes| int8::value_at(dtype, bytes).into())
}
