//! Owns the measuring of a codec on one block: payload bytes and decode time.

use std::time::{Duration, Instant};

use crate::codec_id::Codec;
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
}

/// Measures a codec; `None` where it does not take such a block, or has no codes for its contents.
///
/// # Panics
/// If `page` is shorter than the geometry's.
#[must_use]
pub fn weigh(codec: Codec, geometry: &Geometry, page: &[u8]) -> Option<Weight> {
    assert!(page.len() >= geometry.page_bytes(), "a page of this geometry");
    let form = codec.form(false);
    let mut payload = vec![0; geometry.payload_bytes(form)?];
    let mut back = page.to_vec();
    // SAFETY: the page is as long as the geometry says, and other memory than the payload.
    let bytes = unsafe { form.encode(geometry, page.as_ptr(), &mut payload) }.ok()?.bytes;
    let mut decode = Duration::MAX;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        // SAFETY: as above.
        let done = unsafe { form.decode(geometry, &payload[..bytes], back.as_mut_ptr()) };
        let took = began.elapsed();
        done.ok()?;
        decode = decode.min(took);
    }
    Some(Weight { bytes, decode })
}
