//! Owns the golden cases: pages with their geometry and record, and records that readers must refuse.

use std::ops::Range;

use tierkv_core::crc32c;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::record::{
    CLASS_KV, CLASS_SSM, HEADER_BYTES, Header, LAYOUT_CANONICAL, LAYOUT_OPAQUE, Refusal,
};

use super::misplaced::{misplaced, not_first, unlikely};
use super::{int8, lossless};

/// A page as an engine holds it, and its record.
pub struct Golden {
    pub name: &'static str,
    pub spec: Spec,
    pub header: Header,
    pub page: Vec<u8>,
    pub record: Vec<u8>,
    /// Page decoded from the record if its codec is lossy.
    pub decoded: Option<Vec<u8>>,
}

/// Bytes that every reader must refuse, with the reason.
pub struct Refused {
    pub name: String,
    pub refusal: Refusal,
    pub bytes: Vec<u8>,
}

/// Returns bytes that look like noise and are the same everywhere (splitmix64).
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let words = std::iter::repeat_with(|| next().to_le_bytes());
    words.flatten().take(length).collect()
}

fn hash(seed: u64) -> [u8; 32] {
    noise(seed, 32).try_into().expect("32 bytes")
}

fn canonical(dtype: u8, [tokens, layers, heads]: [u32; 3], [dim_k, dim_v]: [u32; 2]) -> Spec {
    Spec {
        group: 0,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype,
        tokens,
        layers,
        heads,
        dim_k,
        dim_v,
        layer_bytes: 0,
        key_offset: 0,
        value_offset: 0,
        head_stride: 0,
        token_stride: 0,
    }
}

fn opaque(record_class: u8, dtype: u8, tokens: u32, layers: u32, layer_bytes: u64) -> Spec {
    let spec = canonical(dtype, [tokens, layers, 0], [0, 0]);
    Spec { record_class, layout: LAYOUT_OPAQUE, layer_bytes, ..spec }
}

/// Lays out all K of a layer, then all V; head after head.
fn heads_first(spec: &Spec) -> Spec {
    let token_stride = u64::from(spec.dim_k) * Header::element_bytes(spec.dtype).expect("known");
    let head_stride = token_stride * u64::from(spec.tokens);
    let value_offset = head_stride * u64::from(spec.heads);
    let layer_bytes = value_offset * if spec.dim_v == 0 { 1 } else { 2 };
    Spec { layer_bytes, value_offset, head_stride, token_stride, ..spec.clone() }
}

/// Lays out all K of a layer, then all V; token after token, with `pad` bytes after each and at the end.
fn tokens_first(spec: &Spec, pad: u64) -> Spec {
    let head_stride = u64::from(spec.dim_k) * Header::element_bytes(spec.dtype).expect("known");
    let token_stride = head_stride * u64::from(spec.heads) + pad;
    let value_offset = token_stride * u64::from(spec.tokens);
    Spec {
        layer_bytes: value_offset * 2 + pad,
        value_offset,
        head_stride,
        token_stride,
        ..spec.clone()
    }
}

/// Lays out K and V of a head side by side; token after token.
fn side_by_side(spec: &Spec) -> Spec {
    let element = Header::element_bytes(spec.dtype).expect("known");
    let value_offset = u64::from(spec.dim_k) * element;
    let head_stride = value_offset + u64::from(spec.dim_v) * element;
    let token_stride = head_stride * u64::from(spec.heads);
    let layer_bytes = token_stride * u64::from(spec.tokens);
    Spec { layer_bytes, value_offset, head_stride, token_stride, ..spec.clone() }
}

fn golden(seed: u64, name: &'static str, spec: Spec, edit: impl FnOnce(&mut Header)) -> Golden {
    let geometry = Geometry::new(spec.clone()).expect("a golden geometry is possible");
    let page = noise(seed, geometry.page_bytes());
    let payload = payload_of(&spec, &page);
    let mut header = Header {
        codec: 0,
        record_class: spec.record_class,
        fidelity: 0,
        layout: spec.layout,
        group: spec.group,
        shard: 0,
        shard_count: 1,
        dtype: spec.dtype,
        parts: geometry.part_count(),
        tokens: spec.tokens,
        layers: spec.layers,
        heads: spec.heads,
        dim_k: spec.dim_k,
        dim_v: spec.dim_v,
        end_tokens: u64::from(spec.tokens) * 3,
        payload_bytes: payload.len() as u64,
        source_bytes: payload.len() as u64,
        namespace: hash(seed + 1),
        block_hash: hash(seed + 2),
        parent_hash: hash(seed + 3),
    };
    edit(&mut header);
    let record = record_of(&header, &payload);
    Golden { name, spec, header, page, record, decoded: None }
}

/// Returns the head vectors' ranges in the page, in the order of the payload.
fn vectors_of(spec: &Spec) -> Vec<Range<usize>> {
    let element = Header::element_bytes(spec.dtype).expect("known");
    let index = |bytes: u64| usize::try_from(bytes).expect("small");
    let mut vectors = Vec::new();
    for layer in 0..u64::from(spec.layers) {
        for (offset, dim) in [(spec.key_offset, spec.dim_k), (spec.value_offset, spec.dim_v)] {
            if dim == 0 {
                continue;
            }
            for head in 0..u64::from(spec.heads) {
                for token in 0..u64::from(spec.tokens) {
                    let vector = layer * spec.layer_bytes
                        + offset
                        + head * spec.head_stride
                        + token * spec.token_stride;
                    vectors.push(index(vector)..index(vector + u64::from(dim) * element));
                }
            }
        }
    }
    vectors
}

/// Makes the canonical payload in the protocol's words, independently of the core.
fn payload_of(spec: &Spec, page: &[u8]) -> Vec<u8> {
    if spec.layout == LAYOUT_OPAQUE {
        return page.to_vec();
    }
    vectors_of(spec).into_iter().flat_map(|vector| page[vector].to_vec()).collect()
}

/// Makes a quantised block of a lossy namespace, the first of its sequence if so asked.
fn golden_int8(seed: u64, name: &'static str, codec: u8, is_first: bool, spec: Spec) -> Golden {
    let raw = golden(seed, name, spec, |header| {
        (header.codec, header.fidelity) = (codec, codec);
        if is_first {
            header.parent_hash = [0; 32];
            header.end_tokens = u64::from(header.tokens);
        }
    });
    let Golden { spec, mut header, mut page, .. } = raw;
    let vectors = vectors_of(&spec);
    int8::tame(spec.dtype, &mut page, &vectors, codec == 2);
    let heads = spec.heads as usize;
    let is_key = |number: usize| spec.dim_v == 0 || (number / heads).is_multiple_of(2);
    let tokens = spec.tokens as usize;
    let (payload, decoded) = if codec == 2 {
        int8::encode(spec.dtype, &page, &vectors, tokens)
    } else {
        int8::encode_turned(spec.dtype, &page, &vectors, tokens, is_key, is_first)
    };
    header.payload_bytes = payload.len() as u64;
    let record = record_of(&header, &payload);
    Golden { name, spec, header, page, record, decoded: Some(decoded) }
}

/// Makes a block that the lossless codec shortens; in two heads some exponents lie outside the range of short codes.
fn golden_lossless(seed: u64, name: &'static str, spec: Spec) -> Golden {
    let Golden { spec, mut header, mut page, .. } =
        golden(seed, name, spec, |header| header.codec = 1);
    let vectors = vectors_of(&spec);
    let tokens = spec.tokens as usize;
    let untouched = page.clone();
    int8::tame(spec.dtype, &mut page, &vectors, true);
    for vector in vectors[tokens..2 * tokens].iter().step_by(5) {
        let two = vector.start..vector.start + 4;
        page[two.clone()].copy_from_slice(&untouched[two]);
    }
    let payload = lossless::encode(&page, &vectors, tokens);
    header.payload_bytes = payload.len() as u64;
    let record = record_of(&header, &payload);
    Golden { name, spec, header, page, record, decoded: None }
}

pub fn record_of(header: &Header, payload: &[u8]) -> Vec<u8> {
    [&header.encode(crc32c::checksum(payload)), payload].concat()
}

/// Returns pages and records that every reader must accept.
pub fn goldens() -> Vec<Golden> {
    let padded = tokens_first(&canonical(2, [5, 2, 3], [8, 8]), 6);
    let state = opaque(CLASS_SSM, 3, 4096, 3, 100);
    vec![
        golden(10, "smallest", heads_first(&canonical(1, [1, 1, 1], [1, 1])), |_| ()),
        golden(20, "bf16-heads-first", heads_first(&canonical(1, [4, 2, 2], [8, 8])), |header| {
            header.parent_hash = [0; 32];
            header.end_tokens = 4;
        }),
        golden(30, "fp16-tokens-first-padded", Spec { group: 2, ..padded }, |header| {
            header.end_tokens = (1 << 40) + 5;
        }),
        golden(40, "f32-side-by-side", side_by_side(&canonical(3, [3, 2, 2], [6, 4])), |header| {
            header.shard = 3;
            header.shard_count = 4;
        }),
        golden(50, "bf16-latent", heads_first(&canonical(1, [4, 2, 1], [36, 0])), |_| ()),
        golden(
            60,
            "bf16-of-a-lossy-namespace",
            heads_first(&canonical(1, [2, 1, 1], [4, 4])),
            |h| {
                h.fidelity = 2;
            },
        ),
        golden(70, "opaque-kv", opaque(CLASS_KV, 0, 16, 2, 123), |_| ()),
        golden(80, "opaque-state", Spec { group: 7, ..state }, |header| {
            header.shard = 1;
            header.shard_count = 2;
        }),
        golden_int8(90, "int8-bf16", 2, false, side_by_side(&canonical(1, [5, 2, 2], [33, 18]))),
        golden_int8(
            100,
            "int8-fp16",
            2,
            false,
            tokens_first(&canonical(2, [3, 1, 3], [40, 40]), 6),
        ),
        golden_int8(110, "int8-f32", 2, false, heads_first(&canonical(3, [9, 1, 1], [70, 0]))),
        golden_int8(
            120,
            "turned-bf16",
            4,
            false,
            side_by_side(&canonical(1, [20, 2, 2], [32, 18])),
        ),
        golden_int8(
            130,
            "turned-fp16",
            4,
            false,
            tokens_first(&canonical(2, [5, 1, 3], [40, 40]), 6),
        ),
        golden_int8(140, "turned-f32", 4, false, heads_first(&canonical(3, [33, 1, 1], [70, 0]))),
        golden_int8(
            160,
            "turned-first-bf16",
            4,
            true,
            side_by_side(&canonical(1, [19, 1, 2], [64, 48])),
        ),
        golden_int8(
            170,
            "turned-first-f32",
            4,
            true,
            heads_first(&canonical(3, [17, 2, 1], [24, 8])),
        ),
        golden_lossless(150, "lossless", side_by_side(&canonical(1, [8, 1, 2], [24, 16]))),
    ]
}

/// Returns bytes that every reader must refuse.
pub fn refusals() -> Vec<Refused> {
    let cases = goldens();
    let smallest = &cases[0];
    let opaque = cases.iter().find(|golden| golden.name == "opaque-kv").expect("it is there");
    let mut refused = damaged(&smallest.record);
    refused.extend(foreign(smallest));
    refused.extend(contradictions(smallest, opaque));
    let int8 = cases.iter().find(|golden| golden.name == "int8-bf16").expect("it is there");
    refused.extend(misplaced(int8, opaque));
    let turned = |name| cases.iter().find(|golden| golden.name == name).expect("it is there");
    refused.extend(not_first(turned("turned-bf16"), turned("turned-first-bf16")));
    let lossless = cases.iter().find(|golden| golden.name == "lossless").expect("it is there");
    refused.extend(unlikely(int8, lossless));
    refused
}

pub fn refuse(name: impl Into<String>, refusal: Refusal, bytes: Vec<u8>) -> Refused {
    Refused { name: name.into(), refusal, bytes }
}

/// Returns records cut, lengthened or flipped on their way.
fn damaged(record: &[u8]) -> Vec<Refused> {
    let flipped = |at: usize, bit: u8| {
        let mut bytes = record.to_vec();
        bytes[at] ^= 1 << bit;
        bytes
    };
    let end = record.len();
    vec![
        refuse("empty", Refusal::Short, Vec::new()),
        refuse("cut-in-header", Refusal::Short, record[..HEADER_BYTES - 1].to_vec()),
        refuse("cut-after-header", Refusal::Length, record[..HEADER_BYTES].to_vec()),
        refuse("cut-by-one", Refusal::Length, record[..end - 1].to_vec()),
        refuse("long-by-one", Refusal::Length, [record, &[0]].concat()),
        refuse("twice", Refusal::Length, record.repeat(2)),
        refuse("flipped-magic", Refusal::Magic, flipped(0, 0)),
        refuse("flipped-version", Refusal::Version, flipped(4, 1)),
        refuse("flipped-header-bytes", Refusal::HeaderBytes, flipped(6, 3)),
        refuse("flipped-tokens", Refusal::HeaderChecksum, flipped(20, 0)),
        refuse("flipped-block-hash", Refusal::HeaderChecksum, flipped(127, 7)),
        refuse("flipped-reserved", Refusal::HeaderChecksum, flipped(170, 2)),
        refuse("flipped-payload-checksum", Refusal::HeaderChecksum, flipped(184, 4)),
        refuse("flipped-header-checksum", Refusal::HeaderChecksum, flipped(191, 7)),
        refuse("flipped-payload-first", Refusal::PayloadChecksum, flipped(HEADER_BYTES, 0)),
        refuse("flipped-payload-last", Refusal::PayloadChecksum, flipped(end - 1, 7)),
    ]
}

/// Returns records whose checksums hold, but whose values this version does not read.
fn foreign(golden: &Golden) -> Vec<Refused> {
    let patched = |at: usize, value: u8| {
        let mut bytes = golden.record.clone();
        bytes[at] = value;
        let checksum = crc32c::checksum(&bytes[..188]);
        bytes[188..192].copy_from_slice(&checksum.to_le_bytes());
        bytes
    };
    vec![
        refuse("version-2", Refusal::Version, patched(4, 2)),
        refuse("header-of-193", Refusal::HeaderBytes, patched(6, 193)),
        refuse("codec-9", Refusal::Codec, patched(8, 9)),
        refuse("class-0", Refusal::Class, patched(9, 0)),
        refuse("class-3", Refusal::Class, patched(9, 3)),
        refuse("layout-2", Refusal::Layout, patched(11, 2)),
        refuse("dtype-4", Refusal::Dtype, patched(18, 4)),
        refuse("reserved-first", Refusal::Reserved, patched(160, 1)),
        refuse("reserved-last", Refusal::Reserved, patched(183, 0x80)),
    ]
}

/// Returns records whose checksums hold, but whose numbers contradict one another.
fn contradictions(canonical: &Golden, opaque: &Golden) -> Vec<Refused> {
    let edited = |name: &str, golden: &Golden, edit: &dyn Fn(&mut Header)| {
        let mut header = golden.header.clone();
        edit(&mut header);
        let bytes = record_of(&header, &golden.record[HEADER_BYTES..]);
        refuse(name, Refusal::Geometry, bytes)
    };
    let of_canonical = |name, edit: &dyn Fn(&mut Header)| edited(name, canonical, edit);
    let of_opaque = |name, edit: &dyn Fn(&mut Header)| edited(name, opaque, edit);
    vec![
        of_canonical("no-tokens", &|header| header.tokens = 0),
        of_canonical("no-layers", &|header| header.layers = 0),
        of_canonical("no-heads", &|header| header.heads = 0),
        of_canonical("no-k-dim", &|header| header.dim_k = 0),
        of_canonical("no-shards", &|header| header.shard_count = 0),
        of_canonical("shard-beyond-count", &|header| header.shard = 1),
        of_canonical("two-parts-without-v-dim", &|header| (header.dim_k, header.dim_v) = (2, 0)),
        of_canonical("one-part-with-v-dim", &|header| header.parts = 1),
        of_canonical("canonical-without-parts", &|header| header.parts = 0),
        of_canonical("three-parts", &|header| header.parts = 3),
        of_canonical("canonical-bytes", &|header| {
            (header.dtype, header.dim_k, header.dim_v) = (0, 2, 2);
        }),
        of_canonical("source-bytes-too-many", &|header| header.source_bytes += 1),
        of_canonical("payload-bytes-too-many", &|header| header.payload_bytes += 1),
        of_canonical("both-bytes-too-many", &|header| {
            header.source_bytes += 2;
            header.payload_bytes += 2;
        }),
        of_canonical("counts-beyond-64-bits", &|header| {
            (header.tokens, header.layers, header.heads) = (u32::MAX, u32::MAX, u32::MAX);
        }),
        // 2^31 * 2^31 * 4 * (1 + 1) * 2 bytes are 2^66, which wraps around to 0.
        of_canonical("counts-that-wrap", &|header| {
            (header.tokens, header.layers, header.heads) = (1 << 31, 1 << 31, 4);
            (header.source_bytes, header.payload_bytes) = (0, 0);
        }),
        of_opaque("opaque-with-parts", &|header| header.parts = 1),
        of_opaque("opaque-with-heads", &|header| header.heads = 1),
        of_opaque("opaque-with-k-dim", &|header| header.dim_k = 1),
        of_opaque("opaque-with-v-dim", &|header| header.dim_v = 1),
        of_opaque("opaque-not-in-layers", &|header| header.layers = 4),
        of_opaque("opaque-without-bytes", &|header| {
            (header.source_bytes, header.payload_bytes) = (0, 0);
        }),
        of_opaque("opaque-bytes-differ", &|header| header.source_bytes += 2),
    ]
}
