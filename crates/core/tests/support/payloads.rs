//! Owns what fuzzing runs on payloads: any bytes as a payload, and any page there and back.

use tierkv_core::codec::Codec;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::record::{CLASS_KV, LAYOUT_CANONICAL};

/// The first byte says which codec and whether the block is a sequence's first, the next four which shape; the rest is a payload, and a page.
pub fn payload(input: &[u8]) {
    let Some(([codec_byte, dtype, tokens, dim_k, dim_v], rest)) = input.split_first_chunk::<5>()
    else {
        return;
    };
    let codec = Codec::ALL[usize::from(codec_byte % 4)];
    let form = codec.form(codec_byte & 4 > 0);
    let geometry = shape([*dtype, *tokens, *dim_k, *dim_v]);
    let mut page = vec![0; geometry.page_bytes()];
    if geometry.has_payload_of(form, rest.len()) {
        // SAFETY: the page is as long as the geometry says, and other memory than the payload.
        let _ = unsafe { form.decode(&geometry, rest, page.as_mut_ptr()) };
    }
    let filled = page.len().min(rest.len());
    page[..filled].copy_from_slice(&rest[..filled]);
    let Some(payload_bytes) = geometry.payload_bytes(form) else { return };
    let mut payload = vec![0; payload_bytes];
    // SAFETY: as above.
    let Ok(made) = (unsafe { form.encode(&geometry, page.as_ptr(), &mut payload) }) else {
        return;
    };
    assert!(geometry.has_payload_of(form, made.bytes));
    let mut back = vec![0; page.len()];
    // SAFETY: as above.
    let done = unsafe { form.decode(&geometry, &payload[..made.bytes], back.as_mut_ptr()) };
    assert_eq!(done, Ok(()), "what is written is read");
    assert!(!codec.fits_fidelity(0) || back == page, "exact is exact");
}

/// One layer of one head, K and V one after another.
fn shape([dtype, tokens, dim_k, dim_v]: [u8; 4]) -> Geometry {
    let [dtype, tokens] = [dtype % 3 + 1, tokens % 32 + 1];
    let element = if dtype == 3 { 4 } else { 2 };
    let [key, value] = [dim_k.max(1), dim_v].map(|dim| u64::from(dim) * element);
    let spec = Spec {
        group: 0,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype,
        tokens: tokens.into(),
        layers: 1,
        heads: 1,
        dim_k: dim_k.max(1).into(),
        dim_v: dim_v.into(),
        layer_bytes: (key + value) * u64::from(tokens),
        key_offset: 0,
        value_offset: key,
        head_stride: 0,
        token_stride: key + value,
    };
    Geometry::new(spec).expect("a sound shape")
}
