//! Owns the golden lossless blocks, computed from the protocol's words, independently of the core.

use std::ops::Range;

const CHUNK: usize = 128;

fn exponent(element: u16) -> u16 {
    (element >> 7) & 0xff
}

/// Returns the payload of a bf16 page; `tokens` vectors belong to one head.
pub fn encode(page: &[u8], vectors: &[Range<usize>], tokens: usize) -> Vec<u8> {
    vectors.chunks(tokens).flat_map(|head| group(page, head)).collect()
}

fn group(page: &[u8], head: &[Range<usize>]) -> Vec<u8> {
    let bytes: Vec<u8> = head.iter().flat_map(|vector| page[vector.clone()].to_vec()).collect();
    let mut elements: Vec<u16> =
        bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
    let covered = |base: u16| {
        elements.iter().filter(|element| (base..base + 8).contains(&exponent(**element))).count()
    };
    // Reversed, because `max_by_key` returns the last maximum and the lowest base is wanted.
    let base = (0..=248).rev().max_by_key(|base| covered(*base)).expect("there are some");
    elements.resize(elements.len().next_multiple_of(CHUNK), base << 7);
    let (mut codes, mut counts, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for chunk in elements.chunks(CHUNK) {
        let low_byte = |value: u16| value.to_le_bytes()[0];
        codes.extend(chunk.iter().map(|element| low_byte((element >> 8) & 0x80 | element & 0x7f)));
        let above: Vec<u16> =
            chunk.iter().map(|element| exponent(*element).wrapping_sub(base) % 8).collect();
        codes.extend((0..32).map(|at| {
            low_byte(
                (0..4).fold(0, |byte, number| byte | (above[at + 32 * number] % 4) << (2 * number)),
            )
        }));
        codes.extend((0..16).map(|at| {
            low_byte((0..8).fold(0, |byte, number| byte | (above[at + 16 * number] / 4) << number))
        }));
        let before = others.len();
        for (place, element) in (0..).zip(chunk) {
            if !(base..base + 8).contains(&exponent(*element)) {
                others.extend([place, low_byte(exponent(*element))]);
            }
        }
        counts.push(u8::try_from((others.len() - before) / 2).expect("at most a chunk"));
    }
    let short = [codes, counts, others].concat();
    if short.len() < bytes.len() {
        [vec![low_tag(base)], short].concat()
    } else {
        [vec![0xff], bytes].concat()
    }
}

fn low_tag(base: u16) -> u8 {
    u8::try_from(base).expect("at most 248")
}
