//! Owns codec 1, lossless: bf16 head vectors with exponents of three bits where possible, restored bit for bit.
//!
//! The layout of the payload stands in docs/protocol.md, section 1.

use crate::crc32c;
use crate::geometry::{Geometry, HeadRows};
use crate::limits::CHECKSUM_SPAN_BYTES;

/// Elements coded together.
const CHUNK: usize = 128;
/// Bytes of a chunk for the lower two bits of the codes, four to a byte.
const PAIRS: usize = CHUNK / 4;
/// Bytes of a chunk for the upper bit of the codes, eight to a byte.
const SINGLES: usize = CHUNK / 8;
/// Bytes of a chunk: sign and fraction of each element, then the codes.
const CHUNK_BYTES: usize = CHUNK + PAIRS + SINGLES;
/// Number of exponents that have a code.
const WIDTH: u8 = 8;
/// Mask of the bits that are set only in an exponent difference without a code, for eight differences at once.
const WITHOUT_CODE: u64 = 0xf8f8_f8f8_f8f8_f8f8;
/// Highest first exponent of a group's codes.
const BASE_MAX: u8 = u8::MAX - (WIDTH - 1);
/// Tag of a group that is stored uncoded.
const PLAIN: u8 = u8::MAX;
/// Only every fifth element of a large group is sampled; an odd step meets every channel.
const LOOK_EVERY: usize = 5;
const LOOK_AT_ALL: usize = 512;

type Element = [u8; 2];

/// The payload would be no shorter than the page's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavesNothing;

/// The payload is not one that a writer of this codec makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadCode;

/// Encodes the page at `page` into the start of `payload`; returns its length and CRC32C.
///
/// # Errors
/// `SavesNothing`; `payload` then holds no usable bytes.
///
/// # Safety
/// `geometry.page_bytes()` bytes at `page` are readable and do not overlap `payload`; the elements are bf16.
pub unsafe fn encode(
    geometry: &Geometry,
    page: *const u8,
    payload: &mut [u8],
) -> Result<(usize, u32), SavesNothing> {
    let (mut checksum, mut checked, mut end) = (0, 0, 0);
    let mut writer = Writer::default();
    for head in geometry.heads() {
        // SAFETY: a validated geometry has all its rows inside the page, which is readable.
        unsafe { gather(page, &head, &mut writer.elements) };
        end += writer.put(&mut payload[end..]).ok_or(SavesNothing)?;
        if end - checked >= CHECKSUM_SPAN_BYTES {
            checksum = crc32c::append(checksum, &payload[checked..end]);
            checked = end;
        }
    }
    Ok((end, crc32c::append(checksum, &payload[checked..end])))
}

/// Decodes `payload` into the page at `page`; padding of the page is left alone.
///
/// # Errors
/// `BadCode`; the page is then partly written, and unusable.
///
/// # Safety
/// `geometry.page_bytes()` bytes at `page` are writable and do not overlap `payload`; the elements are bf16.
pub unsafe fn decode(
    geometry: &Geometry,
    mut payload: &[u8],
    page: *mut u8,
) -> Result<(), BadCode> {
    let mut elements = Vec::new();
    for head in geometry.heads() {
        let count = head.tokens * head.vector_bytes / size_of::<Element>();
        payload = read(payload, count, &mut elements)?;
        // SAFETY: a validated geometry has all its rows inside the page, which is writable.
        unsafe { scatter(elements.as_flattened(), &head, page) };
    }
    if payload.is_empty() { Ok(()) } else { Err(BadCode) }
}

/// # Safety
/// The rows of `head` lie within the page, which is readable.
unsafe fn gather(page: *const u8, head: &HeadRows, elements: &mut Vec<Element>) {
    elements.resize(head.tokens * head.vector_bytes / size_of::<Element>(), [0; 2]);
    let rows = elements.as_flattened_mut().chunks_exact_mut(head.vector_bytes);
    for (token, row) in rows.enumerate() {
        let from = page.wrapping_add(head.offset + token * head.token_stride);
        // SAFETY: the caller's row is readable, and `row` is memory of ours.
        unsafe { from.copy_to_nonoverlapping(row.as_mut_ptr(), row.len()) };
    }
}

/// # Safety
/// The rows of `head` lie within the page, which is writable.
unsafe fn scatter(elements: &[u8], head: &HeadRows, page: *mut u8) {
    for (token, row) in elements.chunks_exact(head.vector_bytes).enumerate() {
        let to = page.wrapping_add(head.offset + token * head.token_stride);
        // SAFETY: the caller's row is writable, and `row` is memory of ours.
        unsafe { to.copy_from_nonoverlapping(row.as_ptr(), row.len()) };
    }
}

/// Encodes groups one after another in reused memory.
#[derive(Debug, Default)]
struct Writer {
    elements: Vec<Element>,
    /// Number of exponents without a code, per chunk.
    counts: Vec<u8>,
    /// Place in the chunk and exponent of each element without a code.
    others: Vec<[u8; 2]>,
}

impl Writer {
    /// Writes the group to the start of `out` and returns its length; `None` when `out` is too short.
    fn put(&mut self, out: &mut [u8]) -> Option<usize> {
        let plain_bytes = self.elements.len() * size_of::<Element>();
        let chunks = self.elements.len().div_ceil(CHUNK);
        let (tag, rest) = out.split_first_mut()?;
        if chunks * (CHUNK_BYTES + 1) < plain_bytes {
            let base = best_base(&self.elements);
            // Elements that fill up the last chunk get the first code.
            self.elements.resize(chunks * CHUNK, [base << 7, base >> 1]);
            let (codes, rest) = rest.split_at_mut_checked(chunks * CHUNK_BYTES)?;
            self.split(base, codes);
            let bytes = chunks * (CHUNK_BYTES + 1) + 2 * self.others.len();
            if bytes < plain_bytes {
                let (counts, rest) = rest.split_at_mut_checked(chunks)?;
                counts.copy_from_slice(&self.counts);
                rest.get_mut(..2 * self.others.len())?.copy_from_slice(self.others.as_flattened());
                *tag = base;
                return Some(1 + bytes);
            }
        }
        *tag = PLAIN;
        let elements = &self.elements.as_flattened()[..plain_bytes];
        out.get_mut(1..=plain_bytes)?.copy_from_slice(elements);
        Some(1 + plain_bytes)
    }

    fn split(&mut self, base: u8, codes: &mut [u8]) {
        self.counts.clear();
        self.others.clear();
        let kernels = Kernels::best();
        let (chunks, _) = self.elements.as_chunks::<CHUNK>();
        let (codes, _) = codes.as_chunks_mut::<CHUNK_BYTES>();
        for (elements, codes) in chunks.iter().zip(codes) {
            let before = self.others.len();
            let above = (kernels.split)(elements, base, codes);
            for (number, eight) in (0..).zip(above.as_chunks::<8>().0) {
                if u64::from_le_bytes(*eight) & WITHOUT_CODE == 0 {
                    continue;
                }
                for (place, above) in (8 * number..).zip(eight) {
                    if *above >= WIDTH {
                        self.others.push([place, base.wrapping_add(*above)]);
                    }
                }
            }
            let count = self.others.len() - before;
            self.counts.push(u8::try_from(count).expect("no more than a chunk has"));
        }
    }
}

#[inline]
fn exponent([low, high]: Element) -> u8 {
    (high << 1) | (low >> 7)
}

/// Returns the first of the eight consecutive exponents that cover most elements.
fn best_base(elements: &[Element]) -> u8 {
    let step = if elements.len() <= LOOK_AT_ALL { 1 } else { LOOK_EVERY };
    let mut counts = [0_u32; 256];
    for element in elements.iter().step_by(step) {
        counts[usize::from(exponent(*element))] += 1;
    }
    let (mut best, mut most) = (0, 0);
    let mut covered: u32 = counts[..usize::from(WIDTH) - 1].iter().sum();
    for base in 0..=BASE_MAX {
        let [first, last] = [base, base + (WIDTH - 1)].map(usize::from);
        covered += counts[last];
        if covered > most {
            (best, most) = (base, covered);
        }
        covered -= counts[first];
    }
    best
}

type Codes = [u8; CHUNK_BYTES];
type Chunk = [Element; CHUNK];

/// Functions on a chunk, compiled for an instruction set.
#[derive(Debug, Clone, Copy)]
struct Kernels {
    split: fn(&Chunk, u8, &mut Codes) -> [u8; CHUNK],
    join: fn(&Codes, u8, &mut Chunk),
}

impl Kernels {
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return Self { split: avx2::split, join: avx2::join };
        }
        Self { split: split_chunk, join: join_chunk }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{CHUNK, Chunk, Codes, join_chunk, split_chunk};

    pub fn split(elements: &Chunk, base: u8, codes: &mut Codes) -> [u8; CHUNK] {
        #[target_feature(enable = "avx2")]
        fn compiled(elements: &Chunk, base: u8, codes: &mut Codes) -> [u8; CHUNK] {
            split_chunk(elements, base, codes)
        }
        // SAFETY: `Kernels::best` has checked that the processor has AVX2.
        unsafe { compiled(elements, base, codes) }
    }

    pub fn join(codes: &Codes, base: u8, elements: &mut Chunk) {
        #[target_feature(enable = "avx2")]
        fn compiled(codes: &Codes, base: u8, elements: &mut Chunk) {
            join_chunk(codes, base, elements);
        }
        // SAFETY: as above.
        unsafe { compiled(codes, base, elements) }
    }
}

/// Writes sign, fraction and code of each element; returns each exponent's difference from `base`.
#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn split_chunk(elements: &Chunk, base: u8, codes: &mut Codes) -> [u8; CHUNK] {
    let (plain, codes) = codes.split_at_mut(CHUNK);
    let (pairs, singles) = codes.split_at_mut(PAIRS);
    let mut aboves = [0; CHUNK];
    for ((element, plain), above) in elements.iter().zip(plain).zip(&mut aboves) {
        let [low, high] = *element;
        *plain = (high & 0x80) | (low & 0x7f);
        *above = exponent(*element).wrapping_sub(base);
    }
    for (at, pair) in pairs.iter_mut().enumerate() {
        let part = |number: usize| (aboves[at + number * PAIRS] & 3) << (2 * number);
        *pair = part(0) | part(1) | part(2) | part(3);
    }
    for (at, single) in singles.iter_mut().enumerate() {
        let part = |number: usize| ((aboves[at + number * SINGLES] >> 2) & 1) << number;
        *single = (0..8).fold(0, |bits, number| bits | part(number));
    }
    aboves
}

/// Decodes one group; returns the rest of the payload.
fn read<'a>(
    payload: &'a [u8],
    count: usize,
    elements: &mut Vec<Element>,
) -> Result<&'a [u8], BadCode> {
    let (base, payload) = payload.split_first().ok_or(BadCode)?;
    let chunks = count.div_ceil(CHUNK);
    elements.resize(chunks * CHUNK, [0; 2]);
    if *base == PLAIN {
        elements.truncate(count);
        let (plain, payload) = part(payload, count * size_of::<Element>())?;
        elements.as_flattened_mut().copy_from_slice(plain);
        return Ok(payload);
    }
    if *base > BASE_MAX {
        return Err(BadCode);
    }
    let (codes, payload) = part(payload, chunks * CHUNK_BYTES)?;
    let (counts, mut payload) = part(payload, chunks)?;
    let (codes, _) = codes.as_chunks::<CHUNK_BYTES>();
    let (joined, _) = elements.as_chunks_mut::<CHUNK>();
    let kernels = Kernels::best();
    for ((codes, count), elements) in codes.iter().zip(counts).zip(joined) {
        (kernels.join)(codes, *base, elements);
        let (others, rest) = part(payload, 2 * usize::from(*count))?;
        payload = rest;
        for [place, exponent] in others.as_chunks::<2>().0 {
            let [low, high] = elements.get_mut(usize::from(*place)).ok_or(BadCode)?;
            *low = (*low & 0x7f) | (exponent << 7);
            *high = (*high & 0x80) | (exponent >> 1);
        }
    }
    elements.truncate(count);
    Ok(payload)
}

fn part(payload: &[u8], bytes: usize) -> Result<(&[u8], &[u8]), BadCode> {
    payload.split_at_checked(bytes).ok_or(BadCode)
}

#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn join_chunk(codes: &Codes, base: u8, elements: &mut Chunk) {
    let (plain, codes) = codes.split_at(CHUNK);
    let (pairs, singles) = codes.split_at(PAIRS);
    let mut exponents = [0; CHUNK];
    for (number, exponents) in exponents.as_chunks_mut::<PAIRS>().0.iter_mut().enumerate() {
        for (exponent, pair) in exponents.iter_mut().zip(pairs) {
            *exponent = base + ((pair >> (2 * number)) & 3);
        }
    }
    for (number, exponents) in exponents.as_chunks_mut::<SINGLES>().0.iter_mut().enumerate() {
        for (exponent, single) in exponents.iter_mut().zip(singles) {
            *exponent += ((single >> number) & 1) << 2;
        }
    }
    for ((element, plain), exponent) in elements.iter_mut().zip(plain).zip(exponents) {
        *element = [(plain & 0x7f) | (exponent << 7), (plain & 0x80) | (exponent >> 1)];
    }
}
