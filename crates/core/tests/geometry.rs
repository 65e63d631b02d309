//! Owns the proof that a geometry is refused whole or safe whole, and that pages survive the way there and back.

#![expect(clippy::cast_possible_truncation, reason = "a test may panic")]

use proptest::prelude::*;
use tierkv_core::codec::{Codec, Encoded, Form};
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::record::{CLASS_KV, HEADER_BYTES, LAYOUT_CANONICAL, LAYOUT_OPAQUE};

fn contiguous() -> Spec {
    Spec {
        group: 0,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype: 1,
        tokens: 4,
        layers: 3,
        heads: 2,
        dim_k: 8,
        dim_v: 8,
        layer_bytes: 256,
        key_offset: 0,
        value_offset: 128,
        head_stride: 64,
        token_stride: 16,
    }
}

/// Strides that may or may not fit: most are wrong, and must be found wrong.
fn any_spec() -> impl Strategy<Value = Spec> {
    let shape = (1..=3_u8, 1..5_u32, 1..4_u32, 1..4_u32, 1..6_u32, 0..6_u32);
    let place = (1..400_u64, 0..40_u64, 0..200_u64, 0..100_u64, 0..100_u64);
    (shape, place).prop_map(|((dtype, tokens, layers, heads, dim_k, dim_v), place)| {
        let (layer_bytes, key_offset, value_offset, head_stride, token_stride) = place;
        Spec {
            dtype,
            tokens,
            layers,
            heads,
            dim_k,
            dim_v,
            layer_bytes,
            key_offset,
            value_offset,
            head_stride,
            token_stride,
            ..contiguous()
        }
    })
}

/// How often each byte of a layer is used by a head vector; `None` when one lies outside.
fn uses(spec: &Spec) -> Option<Vec<u32>> {
    let element = [1, 2, 2, 4][spec.dtype as usize];
    let mut uses = vec![0; usize::try_from(spec.layer_bytes).ok()?];
    for (offset, dim) in [(spec.key_offset, spec.dim_k), (spec.value_offset, spec.dim_v)] {
        for head in 0..u64::from(spec.heads) {
            for token in 0..u64::from(spec.tokens) {
                let start = offset + head * spec.head_stride + token * spec.token_stride;
                for byte in start..start + u64::from(dim) * element {
                    *uses.get_mut(usize::try_from(byte).ok()?)? += 1;
                }
            }
        }
    }
    Some(uses)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exactly_the_possible_ones_are_taken(spec in any_spec()) {
        let possible = uses(&spec).is_some_and(|uses| uses.iter().all(|count| *count <= 1));
        prop_assert_eq!(Geometry::new(spec).is_ok(), possible);
    }

    #[test]
    fn a_page_comes_back_byte_for_byte(spec in any_spec(), seed in any::<u8>()) {
        let Some(uses) = uses(&spec).filter(|uses| uses.iter().all(|count| *count <= 1)) else {
            return Ok(());
        };
        let geometry = Geometry::new(spec).expect("possible");
        let page: Vec<u8> =
            (0..geometry.page_bytes()).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
        let mut payload = vec![0; geometry.source_bytes()];
        // SAFETY: page and payload are vectors of the lengths that the geometry says.
        let made = unsafe { Form::from(Codec::Raw).encode(&geometry, page.as_ptr(), &mut payload) };
        let (bytes, checksum) = (payload.len(), tierkv_core::crc32c::checksum(&payload));
        prop_assert_eq!(made, Ok(Encoded { bytes, checksum }));

        let mut back = vec![0xEE; geometry.page_bytes()];
        // SAFETY: as above.
        unsafe { Form::from(Codec::Raw).decode(&geometry, &payload, back.as_mut_ptr()) }.expect("raw");
        for (at, byte) in back.into_iter().enumerate() {
            let used = uses[at % uses.len()] == 1;
            prop_assert_eq!(byte, if used { page[at] } else { 0xEE }, "byte {}", at);
        }
    }
}

#[test]
fn a_geometry_says_what_follows_from_it() {
    let geometry = Geometry::new(contiguous()).unwrap();
    assert_eq!(geometry.page_bytes(), 768);
    assert_eq!(geometry.slot_bytes(), 4096);
    assert_eq!(geometry.source_bytes(), 768);
    assert_eq!(geometry.record_bytes_max(), 768 + HEADER_BYTES);
    assert_eq!(geometry.part_count(), 2);
}

#[test]
fn refusals_name_the_field() {
    let opaque = Spec { layout: LAYOUT_OPAQUE, heads: 0, dim_k: 0, dim_v: 0, ..contiguous() };
    assert!(Geometry::new(opaque.clone()).is_ok());
    let cases = [
        ("record_class", Spec { record_class: 3, ..contiguous() }),
        ("layout", Spec { layout: 2, ..contiguous() }),
        ("dtype", Spec { dtype: 4, ..contiguous() }),
        ("dtype", Spec { dtype: 0, ..contiguous() }),
        ("tokens", Spec { tokens: 0, ..contiguous() }),
        ("layers", Spec { layers: 0, ..contiguous() }),
        ("layer_bytes", Spec { layer_bytes: 0, ..contiguous() }),
        ("layer_bytes", Spec { layer_bytes: u64::MAX, ..contiguous() }),
        ("heads", Spec { heads: 0, ..contiguous() }),
        ("heads", Spec { heads: u32::MAX, tokens: u32::MAX, ..contiguous() }),
        ("dim_k", Spec { dim_k: 0, ..contiguous() }),
        ("key_offset", Spec { key_offset: 129, ..contiguous() }),
        ("value_offset", Spec { value_offset: 129, ..contiguous() }),
        ("key_offset", Spec { head_stride: u64::MAX, ..contiguous() }),
        ("token_stride", Spec { token_stride: 15, ..contiguous() }),
        ("token_stride", Spec { value_offset: 127, ..contiguous() }),
        ("heads", Spec { heads: 1, ..opaque.clone() }),
        ("dim_k", Spec { dim_k: 1, ..opaque.clone() }),
        ("dim_v", Spec { dim_v: 1, ..opaque }),
    ];
    for (field, spec) in cases {
        let error = Geometry::new(spec).unwrap_err().to_string();
        assert!(error.starts_with(&format!("BAD_ARGUMENT: geometry: {field} is ")), "{error}");
    }
}

/// The stride of a count of one is never walked, whatever an engine writes there.
#[test]
fn unused_strides_do_not_matter() {
    let spec = Spec { heads: 1, tokens: 1, head_stride: u64::MAX, token_stride: 0, ..contiguous() };
    assert_eq!(Geometry::new(spec).unwrap().source_bytes(), 3 * 2 * 16);
}
