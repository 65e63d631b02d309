//! Owns the way through the codec and back for pages that a test makes up.

use tierkv_core::codec::Form;
use tierkv_core::codec::int8::{self, Isa, NotFinite};
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::record::{CLASS_KV, LAYOUT_CANONICAL};

pub const BF16: u8 = 1;

pub fn element_bytes(dtype: u8) -> usize {
    if dtype == 3 { 4 } else { 2 }
}

/// One layer of one latent head: the plainest page, its head vectors side by side.
pub fn plain(dtype: u8, dim: usize, vectors: usize) -> Geometry {
    let narrow = |count: usize| u32::try_from(count).expect("a small count");
    let vector_bytes = (dim * element_bytes(dtype)) as u64;
    let spec = Spec {
        group: 0,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype,
        tokens: narrow(vectors),
        layers: 1,
        heads: 1,
        dim_k: narrow(dim),
        dim_v: 0,
        layer_bytes: vector_bytes * vectors as u64,
        key_offset: 0,
        value_offset: 0,
        head_stride: 0,
        token_stride: vector_bytes,
    };
    Geometry::new(spec).expect("a sound shape")
}

/// The payload of a page, and its checksum.
pub fn encode(
    (isa, form): (Isa, impl Into<Form>),
    geometry: &Geometry,
    page: &[u8],
) -> Result<(Vec<u8>, u32), NotFinite> {
    assert_eq!(page.len(), geometry.page_bytes());
    let form = form.into();
    let payload_bytes = geometry.payload_bytes(form).expect("int8 takes kv pages");
    let mut payload = vec![0; payload_bytes];
    // SAFETY: the page is as long as the geometry says; payload is another vector.
    let checksum = unsafe { int8::encode((isa, form), geometry, page.as_ptr(), &mut payload) }?;
    Ok((payload, checksum))
}

/// Writes the page of a payload whose scales are sound.
pub fn decode(coder: (Isa, impl Into<Form>), geometry: &Geometry, payload: &[u8], page: &mut [u8]) {
    assert_eq!(page.len(), geometry.page_bytes());
    // SAFETY: the page is as long as the geometry says; payload is another vector.
    let decoded = unsafe { int8::decode(coder, geometry, payload, page.as_mut_ptr()) };
    decoded.expect("all scales are sound");
}
