//! Owns a pipe through a codec: for each page read, it writes the length of the payload and the decoded page.
//!
//! `through_codec CODEC DTYPE TOKENS HEADS DIM`, the numbers as in a record header; K of all heads before V. A page that
//! the codec refuses is written back unchanged.

use std::io::{self, Read, Write};

use tierkv_core::codec::Codec;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::record::{CLASS_KV, Header, LAYOUT_CANONICAL};

fn geometry([dtype, tokens, heads, dim]: [u32; 4]) -> Geometry {
    let dtype = u8::try_from(dtype).expect("a dtype");
    let element_bytes = Header::element_bytes(dtype).expect("a known dtype");
    let token_stride = u64::from(dim) * element_bytes;
    let head_stride = token_stride * u64::from(tokens);
    let spec = Spec {
        group: 0,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype,
        tokens,
        layers: 1,
        heads,
        dim_k: dim,
        dim_v: dim,
        layer_bytes: 2 * head_stride * u64::from(heads),
        key_offset: 0,
        value_offset: head_stride * u64::from(heads),
        head_stride,
        token_stride,
    };
    Geometry::new(spec).expect("a sound shape")
}

fn main() -> io::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse().expect("a number"));
    let mut next = || numbers.next().expect("CODEC DTYPE TOKENS HEADS DIM");
    let codec = Codec::from_id(u8::try_from(next()).expect("a codec")).expect("a known codec");
    let geometry = geometry([next(), next(), next(), next()]);
    let mut page = vec![0; geometry.page_bytes()];
    let mut payload = vec![0; geometry.payload_bytes(codec).expect("a codec for such blocks")];
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    while input.read_exact(&mut page).is_ok() {
        // SAFETY: the page is as long as the geometry says; payload is another vector.
        let made = unsafe { codec.encode(&geometry, page.as_ptr(), &mut payload) };
        let bytes = made.map_or(page.len(), |made| made.bytes);
        if made.is_ok() {
            // SAFETY: as above.
            let back = unsafe { codec.decode(&geometry, &payload[..bytes], page.as_mut_ptr()) };
            back.expect("what is written is read");
        }
        output.write_all(&(bytes as u64).to_le_bytes())?;
        output.write_all(&page)?;
        output.flush()?;
    }
    Ok(())
}
