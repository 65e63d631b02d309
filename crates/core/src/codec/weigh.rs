//! Owns the measuring of a codec on one block: payload bytes, decode time, and error.

use std::time::{Duration, Instant};

use super::int8;
use crate::codec_id::{Codec, Form};
use crate::geometry::Geometry;

/// Decodes per measurement; the fastest counts, because a waiting thread says nothing of the codec.
const ROUNDS: usize = 5;

/// Measurements of a codec on a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weight {
    /// Length of its payload.
    pub bytes: usize,
    /// Time from payload to page.
    pub decode: Duration,
    /// Error power over signal power, of the layer's K or V where it is worst; 0 for exact results.
    pub noise: f64,
}

/// Measures a codec; `None` where it does not take such a block, or has no codes for its contents.
///
/// # Panics
/// If `page` is shorter than the geometry's.
#[must_use]
pub fn weigh(codec: Codec, geometry: &Geometry, page: &[u8]) -> Option<Weight> {
    weigh_through(codec, geometry, page, |_| ())
}

/// Like `weigh`, with a change to each payload between encoding and decoding, to simulate a faulty codec.
///
/// # Panics
/// As `weigh`.
pub fn weigh_through(
    form: impl Into<Form>,
    geometry: &Geometry,
    page: &[u8],
    mut change: impl FnMut(&mut [u8]),
) -> Option<Weight> {
    assert!(page.len() >= geometry.page_bytes(), "a page of this geometry");
    let form = form.into();
    let mut payload = vec![0; geometry.payload_bytes(form)?];
    let mut back = page.to_vec();
    let (mut decode, mut bytes) = (Duration::MAX, 0);
    for _ in 0..ROUNDS {
        // SAFETY: the page is as long as the geometry says, and other memory than the payload.
        bytes = unsafe { form.encode(geometry, page.as_ptr(), &mut payload) }.ok()?.bytes;
        change(&mut payload[..bytes]);
        let changed = Instant::now();
        // SAFETY: as above.
        let done = unsafe { form.decode(geometry, &payload[..bytes], back.as_mut_ptr()) };
        let ended = Instant::now();
        done.ok()?;
        decode = decode.min(ended - changed);
    }
    Some(Weight { bytes, decode, noise: noise(geometry, page, &back) })
}

/// Noise is 0 for opaque pages without vectors, which codecs leave unchanged.
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
