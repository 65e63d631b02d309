//! Owns the proof that a long record, cut, gives shorter pages what they would hold of its tokens, whatever its codec.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::ops::Range;
use std::sync::Arc;

use proptest::prelude::*;
use tierkv_core::codec::Codec;
use tierkv_core::crc32c;
use tierkv_core::error::Code;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::inbox::Wanted;
use tierkv_core::pool::Pool;
use tierkv_core::record::{CLASS_KV, HEADER_BYTES, Header, LAYOUT_CANONICAL, LAYOUT_OPAQUE};
use tierkv_core::recut::{cut, decode, longer};
use tierkv_core::seal::{RecordKeys, SEALED_AROUND, SEALED_EXTRA_BYTES};

const POOL_BYTES: usize = 1 << 26;
const KEY: &str = "0101010101010101010101010101010101010101010101010101010101010101";

fn pool() -> Arc<Pool> {
    Pool::new("recut", POOL_BYTES, 0)
}

/// Heads one after another, or tokens, as engines have it; `pad` bytes after each vector pair.
fn short(codec: Codec, tokens: u32, is_by_token: bool, pad: u64) -> Geometry {
    let (dtype, element) = if codec == Codec::Lossless { (1, 2) } else { (3, 4) };
    let (layers, heads, dim_k, dim_v) = (2, 3, 32, 48);
    let pair = u64::from(dim_k + dim_v) * element + pad;
    let (of_tokens, of_heads) = (u64::from(tokens), u64::from(heads));
    let (token_stride, head_stride) =
        if is_by_token { (pair * of_heads, pair) } else { (pair, pair * of_tokens) };
    Geometry::new(Spec {
        group: 5,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype,
        tokens,
        layers,
        heads,
        dim_k,
        dim_v,
        layer_bytes: pair * of_tokens * of_heads,
        key_offset: 0,
        value_offset: u64::from(dim_k) * element,
        head_stride,
        token_stride,
    })
    .unwrap()
}

/// Numbers of which every codec makes codes, each another one.
fn page_of(geometry: &Geometry, seed: u32) -> Vec<u8> {
    let element = Header::element_bytes(geometry.spec().dtype).unwrap();
    let count = geometry.page_bytes() / usize::try_from(element).unwrap();
    let bits = |at: usize| -> f32 {
        let mixed = u32::try_from(at).unwrap().wrapping_add(seed).wrapping_mul(2_654_435_761);
        // Below 2, all bits of the fraction drawn.
        f32::from_bits(1_f32.to_bits() | mixed >> 9)
    };
    (0..count)
        .flat_map(|at| {
            let whole = bits(at).to_le_bytes();
            whole[4 - usize::try_from(element).unwrap()..].to_vec()
        })
        .collect()
}

fn wanted(fidelity: u8) -> Wanted {
    let mut packed_key = [7; 36];
    packed_key[32..].copy_from_slice(&[5, 0, 1, 0]);
    Wanted { fidelity, namespace: [4; 32], packed_key }
}

fn fidelity_of(codec: Codec) -> u8 {
    if codec.fits_fidelity(0) { 0 } else { codec.id() }
}

/// `None`: the codec does not take the page, as lossless does with less than a chunk of elements.
fn record_of(whole: &Geometry, codec: Codec, page: &[u8]) -> Option<(Header, Vec<u8>)> {
    let form = codec.form(true);
    let mut payload = vec![0; whole.payload_bytes(form)?];
    // SAFETY: the page is as long as the geometry says; payload is another vector.
    let made = unsafe { form.encode(whole, page.as_ptr(), &mut payload) }.ok()?;
    payload.truncate(made.bytes);
    let spec = whole.spec();
    let header = Header {
        codec: codec.id(),
        record_class: CLASS_KV,
        fidelity: fidelity_of(codec),
        layout: LAYOUT_CANONICAL,
        group: spec.group,
        shard: 1,
        shard_count: 2,
        dtype: spec.dtype,
        parts: 2,
        tokens: spec.tokens,
        layers: spec.layers,
        heads: spec.heads,
        dim_k: spec.dim_k,
        dim_v: spec.dim_v,
        end_tokens: u64::from(spec.tokens),
        payload_bytes: payload.len() as u64,
        source_bytes: whole.source_bytes() as u64,
        namespace: [4; 32],
        block_hash: [7; 32],
        parent_hash: [0; 32],
    };
    let head = header.encode(crc32c::checksum(&payload));
    Some((header, [&head[..], &payload].concat()))
}

/// K's and V's vectors of some tokens, in the order of a raw payload.
fn vectors(geometry: &Geometry, page: &[u8], tokens: Range<u32>) -> Vec<u8> {
    let spec = geometry.spec();
    let element = Header::element_bytes(spec.dtype).unwrap();
    let mut found = Vec::new();
    for layer in 0..u64::from(spec.layers) {
        for (offset, dim) in [(spec.key_offset, spec.dim_k), (spec.value_offset, spec.dim_v)] {
            for head in 0..u64::from(spec.heads) {
                for token in tokens.clone() {
                    let at = layer * spec.layer_bytes
                        + offset
                        + head * spec.head_stride
                        + u64::from(token) * spec.token_stride;
                    let at = usize::try_from(at).unwrap();
                    let bytes = usize::try_from(u64::from(dim) * element).unwrap();
                    found.extend_from_slice(&page[at..at + bytes]);
                }
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_piece_holds_its_tokens_as_the_whole_record_has_them(
        codec in 0..4_usize,
        tokens in 1..40_u32,
        ratio in 1..6_u32,
        is_by_token in any::<bool>(),
        pad in 0..3_u64,
        seed in any::<u32>(),
        is_sealed in any::<bool>(),
    ) {
        let codec = Codec::ALL[codec];
        let geometry = short(codec, tokens, is_by_token, pad * 4);
        let whole = longer(&geometry, tokens * ratio).unwrap();
        let made = record_of(&whole, codec, &page_of(&whole, seed));
        prop_assume!(made.is_some());
        let (header, mut record) = made.unwrap();
        // What the engine would get of the whole record, by the codec itself.
        let mut there = vec![0; whole.page_bytes()];
        let form = codec.form(true);
        // SAFETY: the page is as long as the geometry says; the payload is another vector.
        unsafe { form.decode(&whole, &record[HEADER_BYTES..], there.as_mut_ptr()) }.unwrap();
        let keys = is_sealed.then(|| RecordKeys::parse(KEY.as_bytes()).unwrap());
        if let Some(keys) = &keys {
            let mut sealed = vec![0; record.len() + SEALED_EXTRA_BYTES];
            sealed[SEALED_AROUND.0..][..record.len()].copy_from_slice(&record);
            keys.seal(&mut sealed, &header).unwrap();
            record = sealed;
        }
        let fidelity = wanted(fidelity_of(codec));
        let page = decode(&pool(), keys.as_ref(), &fidelity, &whole, &record).unwrap();
        for piece in 0..ratio {
            let first = piece * tokens;
            let mut block = vec![0xee; geometry.page_bytes()];
            // SAFETY: the block is as long as its geometry says; the page is another buffer.
            unsafe { cut(&page, &whole, first, &geometry, block.as_mut_ptr()) }.unwrap();
            let wanted = vectors(&whole, &there, first..first + tokens);
            prop_assert!(vectors(&geometry, &block, 0..tokens) == wanted, "piece {}", piece);
            let is_left = |byte: &&u8| **byte == 0xee;
            let padding = geometry.page_bytes() - geometry.source_bytes();
            prop_assert!(block.iter().filter(is_left).count() >= padding, "padding is left alone");
        }
    }
}

#[test]
fn what_is_not_the_record_that_was_asked_for_is_refused() {
    let geometry = short(Codec::Raw, 8, true, 0);
    let whole = longer(&geometry, 32).unwrap();
    let (_, record) = record_of(&whole, Codec::Raw, &page_of(&whole, 1)).unwrap();
    let code = |wanted: &Wanted, whole: &Geometry, record: &[u8]| {
        decode(&pool(), None, wanted, whole, record).map(|_| ()).unwrap_err().code
    };
    let ours = wanted(0);
    for at in [0, 70, 188, HEADER_BYTES, record.len() - 1] {
        let mut damaged = record.clone();
        damaged[at] ^= 1;
        assert_eq!(code(&ours, &whole, &damaged), Code::BadRecord, "byte {at}");
    }
    assert_eq!(code(&ours, &whole, &record[..record.len() - 1]), Code::BadRecord);
    for other in [
        Wanted { namespace: [5; 32], ..ours.clone() },
        Wanted { packed_key: [7; 36], ..ours.clone() },
        wanted(2),
    ] {
        assert_eq!(code(&other, &whole, &record), Code::BadRecord);
    }
    let longer = longer(&geometry, 40).unwrap();
    assert_eq!(code(&ours, &longer, &record), Code::BadRecord, "of other tokens");
    let keys = RecordKeys::parse(KEY.as_bytes()).unwrap();
    let sealed = decode(&pool(), Some(&keys), &ours, &whole, &record);
    assert_eq!(sealed.unwrap_err().code, Code::RecordUnopened, "clear, where records are sealed");
}

#[test]
fn no_piece_reaches_beyond_the_record() {
    let geometry = short(Codec::Raw, 8, false, 0);
    let whole = longer(&geometry, 32).unwrap();
    let page = page_of(&whole, 1);
    let other = short(Codec::Lossless, 8, false, 0);
    let mut block = vec![0; geometry.page_bytes()];
    let mut fails = |page: &[u8], first: u32, geometry: &Geometry| {
        // SAFETY: the block is as long as the longest geometry says; the page is another vector.
        unsafe { cut(page, &whole, first, geometry, block.as_mut_ptr()) }.is_err()
    };
    assert!(!fails(&page, 24, &geometry));
    assert!(fails(&page, 25, &geometry) && fails(&page, u32::MAX, &geometry), "too far");
    assert!(fails(&page[1..], 0, &geometry), "too short a page");
    assert!(fails(&page, 0, &other), "another shape");
}

#[test]
fn only_whole_numbers_of_blocks_of_attention_are_cut() {
    let geometry = short(Codec::Raw, 32, true, 0);
    assert!(longer(&geometry, 128).is_ok() && longer(&geometry, 100).is_err());
    assert!(longer(&geometry, 0).is_err() && longer(&geometry, u32::MAX / 32 * 32).is_err());
    let opaque = Spec {
        layout: LAYOUT_OPAQUE,
        dtype: 0,
        heads: 0,
        dim_k: 0,
        dim_v: 0,
        ..geometry.spec().clone()
    };
    assert!(longer(&Geometry::new(opaque).unwrap(), 128).is_err());
}
