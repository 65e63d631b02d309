//! Owns a pipe through a codec: for each page read, it writes the length of the payload and the decoded page.
//!
//! `through_codec CODEC DTYPE TOKENS HEADS DIM [BLOCKS]`, the numbers as in a record header; K of all heads before V. One
//! page in BLOCKS begins a sequence; without it, none does. A page that the codec refuses is written back unchanged.

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
    let mut next = || numbers.next().expect("CODEC DTYPE TOKENS HEADS DIM [BLOCKS]");
    let codec = Codec::from_id(u8::try_from(next()).expect("a codec")).expect("a known codec");
    let geometry = geometry([next(), next(), next(), next()]);
    let blocks: Option<u64> = numbers.next().map(u64::from);
    let mut page = vec![0; geometry.page_bytes()];
    let mut number = 0_u64;
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    while input.read_exact(&mut page).is_ok() {
        let form = codec.form(blocks.is_some_and(|blocks| number.is_multiple_of(blocks)));
        number += 1;
        let mut payload = vec![0; geometry.payload_bytes(form).expect("a codec for such blocks")];
        // SAFETY: the page is as long as the geometry says; payload is another vector.
        let made = unsafe { form.encode(&geometry, page.as_ptr(), &mut payload) };
        let bytes = made.map_or(page.len(), |made| made.bytes);
        if made.is_ok() {
            // SAFETY: as above.
            let back = unsafe { form.decode(&geometry, &payload[..bytes], page.as_mut_ptr()) };
            back.expect("what is written is read");
        }
        output.write_all(&(bytes as u64).to_le_bytes())?;
        output.write_all(&page)?;
        output.flush()?;
    }
    Ok(())
}
