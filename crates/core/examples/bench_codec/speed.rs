//! Owns the speed figures: encode and decode of strided pages, alternating with memcpy of the same bytes.

use std::hint::black_box;
use std::time::Instant;

use tierkv_core::codec::Codec;
use tierkv_core::codec::int8::{self, Isa};
use tierkv_core::codec::lossless;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::record::{CLASS_KV, LAYOUT_CANONICAL};

use crate::data::{Spread, bf16};

/// Source bytes of one round, more than any cache holds.
pub const SET_BYTES: usize = 256 << 20;
/// Rounds per case; the median counts.
pub const ROUNDS: usize = 9;

const TOKENS: u32 = 16;
const HEADS: u32 = 8;
const ALIGN: usize = 4096;

/// One codec and shape of page.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub codec: Codec,
    dim: u32,
    /// K and V of a token lie side by side, heads outside; otherwise K and V in halves, heads inside.
    side_by_side: bool,
}

impl Case {
    pub fn all() -> Vec<Self> {
        let case = |codec, name, dim, side_by_side| Self { name, codec, dim, side_by_side };
        let codecs = [Codec::Int8, Codec::Int8MeanHad, Codec::Lossless];
        let both = codecs.into_iter().flat_map(|codec| {
            [case(codec, "bf16 64 K|V rows", 64, true), case(codec, "bf16 128 K|V rows", 128, true)]
        });
        let odd = case(Codec::Int8, "bf16 96 K|V rows", 96, true);
        let wide = case(Codec::Int8MeanHad, "bf16 256 K|V rows", 256, true);
        both.chain([odd, wide, case(Codec::Int8, "bf16 128 tokens first", 128, false)]).collect()
    }

    pub fn codec_name(&self) -> &'static str {
        match self.codec {
            Codec::Raw => "raw",
            Codec::Lossless => "lossless",
            Codec::Int8 => "int8",
            Codec::Int8MeanHad => "int8-mean-had",
        }
    }

    /// Returns pages of about 2 MiB, as a model of some billion parameters has.
    fn geometry(&self) -> Geometry {
        let vector = u64::from(self.dim) * 2;
        let layer_bytes = 2 * vector * u64::from(TOKENS * HEADS);
        let (value_offset, head_stride, token_stride) = if self.side_by_side {
            (vector, 2 * vector * u64::from(TOKENS), 2 * vector)
        } else {
            (layer_bytes / 2, vector, vector * u64::from(HEADS))
        };
        let spec = Spec {
            group: 0,
            record_class: CLASS_KV,
            layout: LAYOUT_CANONICAL,
            dtype: 1,
            tokens: TOKENS,
            layers: 32,
            heads: HEADS,
            dim_k: self.dim,
            dim_v: self.dim,
            layer_bytes,
            key_offset: 0,
            value_offset,
            head_stride,
            token_stride,
        };
        Geometry::new(spec).expect("a sound shape")
    }
}

/// GB/s of source (encode) or output (decode) bytes; each ratio is the median of the rounds' ratios.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub memcpy_gbps: f64,
    pub encode_gbps: f64,
    pub decode_gbps: f64,
    pub encode_over_memcpy: f64,
    pub decode_over_memcpy: f64,
}

/// Memory that starts at a page boundary; all of it is touched.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

impl Memory {
    fn new(length: usize) -> Self {
        let bytes = vec![1; length + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start }
    }

    fn get(&mut self, at: usize, length: usize) -> &mut [u8] {
        &mut self.bytes[self.start + at..][..length]
    }
}

pub fn measure(isa: Isa, case: &Case) -> Figures {
    let geometry = case.geometry();
    let page_bytes = geometry.page_bytes();
    let payload_bytes = geometry.payload_bytes(case.codec).expect("all take kv pages");
    let coder = (isa, case.codec);
    let pages = SET_BYTES / page_bytes;
    let mut source = Memory::new(SET_BYTES);
    let mut target = Memory::new(SET_BYTES);
    let mut payloads = Memory::new(pages * payload_bytes);
    fill(source.get(0, SET_BYTES));
    let mut lengths = vec![payload_bytes; pages];
    let gigabytes = |seconds: f64| float(pages * page_bytes) / seconds / 1e9;
    let mut rounds = Vec::new();
    for _ in 0..=ROUNDS {
        let whole = pages * page_bytes;
        let memcpy = seconds(|| target.get(0, whole).copy_from_slice(source.get(0, whole)));
        black_box(target.get(0, 1));
        let encode = seconds(|| {
            for (page, length) in lengths.iter_mut().enumerate() {
                let payload = payloads.get(page * payload_bytes, payload_bytes);
                let from = source.get(page * page_bytes, page_bytes).as_ptr();
                if case.codec == Codec::Lossless {
                    // SAFETY: a whole page is readable, and payloads are other memory.
                    let made = unsafe { lossless::encode(&geometry, from, payload) };
                    *length = black_box(made).expect("such values take less").0;
                } else {
                    // SAFETY: as above.
                    let checksum = unsafe { int8::encode(coder, &geometry, from, payload) };
                    black_box(checksum).expect("all elements are finite");
                }
            }
        });
        let decode = seconds(|| {
            for (page, length) in lengths.iter().enumerate() {
                let payload = payloads.get(page * payload_bytes, *length);
                let to = target.get(page * page_bytes, page_bytes).as_mut_ptr();
                if case.codec == Codec::Lossless {
                    // SAFETY: a whole page is writable, and payloads are other memory.
                    let decoded = unsafe { lossless::decode(&geometry, payload, to) };
                    decoded.expect("all codes are sound");
                } else {
                    // SAFETY: as above.
                    let decoded = unsafe { int8::decode(coder, &geometry, payload, to) };
                    decoded.expect("all scales are sound");
                }
            }
        });
        black_box(target.get(0, 1));
        rounds.push([memcpy, encode, decode]);
    }
    // The first round warms up.
    let rounds = &rounds[1..];
    Figures {
        memcpy_gbps: median(rounds.iter().map(|[memcpy, ..]| gigabytes(*memcpy))),
        encode_gbps: median(rounds.iter().map(|[_, encode, _]| gigabytes(*encode))),
        decode_gbps: median(rounds.iter().map(|[.., decode]| gigabytes(*decode))),
        encode_over_memcpy: median(rounds.iter().map(|[memcpy, encode, _]| memcpy / encode)),
        decode_over_memcpy: median(rounds.iter().map(|[memcpy, _, decode]| memcpy / decode)),
    }
}

/// Fills memory with the same few thousand head vectors, repeated.
fn fill(bytes: &mut [u8]) {
    let vectors = bf16(Spread::KeyLike, 4096, 128);
    for part in bytes.chunks_mut(vectors.len()) {
        part.copy_from_slice(&vectors[..part.len()]);
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("a set is below 4 GiB"))
}
