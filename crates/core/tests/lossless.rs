//! Owns the proof of codec 1: what comes back is what was there, for any bits; and no bytes but its own are taken for it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use proptest::collection::vec;
use proptest::prelude::*;
use tierkv_core::codec::{BadPayload, Codec, Form, Unfit};
use tierkv_core::crc32c;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::record::{CLASS_KV, LAYOUT_CANONICAL};

/// Two heads of K and V side by side, in bf16, with `pad` bytes after each token.
fn geometry(tokens: u32, dim: u32, pad: u64) -> Geometry {
    let vector = u64::from(dim) * 2;
    let token_stride = 4 * vector + pad;
    Geometry::new(Spec {
        group: 0,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype: 1,
        tokens,
        layers: 1,
        heads: 2,
        dim_k: dim,
        dim_v: dim,
        layer_bytes: token_stride * u64::from(tokens),
        key_offset: 0,
        value_offset: vector,
        head_stride: 2 * vector,
        token_stride,
    })
    .unwrap()
}

fn encode(geometry: &Geometry, page: &[u8]) -> Result<Vec<u8>, Unfit> {
    assert_eq!(page.len(), geometry.page_bytes());
    let mut payload = vec![0; geometry.payload_bytes(Codec::Lossless).unwrap()];
    // SAFETY: the page is as long as the geometry says; payload is another vector.
    let made =
        unsafe { Form::from(Codec::Lossless).encode(geometry, page.as_ptr(), &mut payload) }?;
    payload.truncate(made.bytes);
    assert_eq!(made.checksum, crc32c::checksum(&payload), "taken in spans");
    Ok(payload)
}

fn decode(geometry: &Geometry, payload: &[u8], page: &mut [u8]) -> Result<(), BadPayload> {
    assert_eq!(page.len(), geometry.page_bytes());
    // SAFETY: as above.
    unsafe { Form::from(Codec::Lossless).decode(geometry, payload, page.as_mut_ptr()) }
}

/// The elements of a page: eleven exponents, of which eight neighbours hold nearly all.
fn calm(geometry: &Geometry) -> Vec<u8> {
    let exponents = [120, 121, 122, 123, 124, 125, 126, 127, 122, 123, 124, 123];
    let element = |at: usize| {
        let exponent = if at.is_multiple_of(97) { 3 } else { exponents[at % 12] };
        let fraction = at.wrapping_mul(2_654_435_761) >> 7 & 0x7f;
        u16::try_from((at & 1) << 15 | exponent << 7 | fraction).unwrap().to_le_bytes()
    };
    (0..geometry.page_bytes() / 2).flat_map(element).collect()
}

#[test]
fn few_exponents_take_fewer_bytes_and_come_back_with_padding_left_alone() {
    for (tokens, dim, pad) in [(16, 128, 0), (16, 64, 0), (9, 80, 6), (300, 64, 2)] {
        let geometry = geometry(tokens, dim, pad);
        let page = calm(&geometry);
        let payload = encode(&geometry, &page).unwrap();
        assert!(payload.len() * 13 < geometry.source_bytes() * 10, "1.3 times smaller");
        let mut back: Vec<u8> = page.iter().map(|byte| !byte).collect();
        decode(&geometry, &payload, &mut back).unwrap();
        let row = geometry.page_bytes() / tokens as usize;
        for (at, (ours, theirs)) in back.iter().zip(&page).enumerate() {
            let is_padding = at % row >= row - usize::try_from(pad).unwrap();
            assert_eq!(*ours, if is_padding { !theirs } else { *theirs }, "byte {at}");
        }
    }
}

#[test]
fn every_element_there_is_comes_back() {
    let geometry = geometry(128, 128, 0);
    let every: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    assert_eq!(encode(&geometry, &every), Err(Unfit), "all exponents alike save nothing");
    // An eighth of them beside so many with few exponents that it pays.
    for eighth in every.chunks(every.len() / 8) {
        let mut page = calm(&geometry);
        page[..eighth.len()].copy_from_slice(eighth);
        let payload = encode(&geometry, &page).unwrap();
        let mut back = vec![0; page.len()];
        decode(&geometry, &payload, &mut back).unwrap();
        assert!(back == page);
    }
}

#[test]
fn what_no_writer_makes_is_refused() {
    let geometry = geometry(16, 64, 0);
    let payload = encode(&geometry, &calm(&geometry)).unwrap();
    let mut page = vec![0; geometry.page_bytes()];
    let mut refused =
        |payload: &[u8]| decode(&geometry, payload, &mut page) == Err(BadPayload::Lossless);
    assert!(!refused(&payload));
    assert!((1..payload.len()).all(|length| refused(&payload[..length])), "cut");
    assert!(refused(&[&payload[..], &[0]].concat()), "longer");
    for base in 249..255 {
        assert!(refused(&[&[base], &payload[1..]].concat()), "no exponents from {base} on");
    }
    // After 8 chunks and their counts: the place of the first element whose exponent has no code.
    let place = 1 + 8 * 176 + 8;
    let far = [&payload[..place], &[128], &payload[place + 1..]].concat();
    assert!(refused(&far), "a place beyond its chunk");
}

proptest! {
    #[test]
    fn any_page_comes_back_or_saves_nothing(
        tokens in 1..40_u32,
        dim in 1..140_u32,
        mask in any::<[u8; 2]>(),
        noise in vec(any::<u8>(), 64),
    ) {
        let geometry = geometry(tokens, dim, 0);
        let page: Vec<u8> = (0..geometry.page_bytes())
            .map(|at| noise[at.wrapping_mul(31) % noise.len()] & (mask[at % 2] | 0x80))
            .collect();
        if let Ok(payload) = encode(&geometry, &page) {
            prop_assert!(payload.len() < geometry.source_bytes());
            let mut back = vec![0; page.len()];
            prop_assert_eq!(decode(&geometry, &payload, &mut back), Ok(()));
            prop_assert_eq!(back, page);
        }
    }
}
