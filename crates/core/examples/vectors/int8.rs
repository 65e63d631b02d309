//! Owns the golden int8 blocks, turned ones among them, computed in double precision from the protocol's words, independently of the core.

use std::ops::Range;

/// Bit layout of bf16, fp16 or float32.
struct Dtype {
    bytes: usize,
    fraction_bits: u32,
    exponent_bits: u32,
}

fn dtype(code: u8) -> Dtype {
    match code {
        1 => Dtype { bytes: 2, fraction_bits: 7, exponent_bits: 8 },
        2 => Dtype { bytes: 2, fraction_bits: 10, exponent_bits: 5 },
        _ => Dtype { bytes: 4, fraction_bits: 23, exponent_bits: 8 },
    }
}

impl Dtype {
    fn value(&self, bits: u32) -> f64 {
        let zero = (1 << (self.exponent_bits - 1)) - 1;
        let fraction = f64::from(bits % (1 << self.fraction_bits));
        let exponent = (bits >> self.fraction_bits) % (1 << self.exponent_bits);
        let (whole, power) = if exponent == 0 { (0.0, 1) } else { (1.0, exponent) };
        let power = i32::try_from(power).expect("small") - zero;
        let magnitude = (whole + fraction / f64::from(1 << self.fraction_bits)) * 2_f64.powi(power);
        if bits >> (self.fraction_bits + self.exponent_bits) == 0 { magnitude } else { -magnitude }
    }

    /// Returns the nearest finite element, ties to even. Halving finds it, because magnitudes ascend with their bits.
    fn nearest(&self, value: f64) -> u32 {
        let magnitude = value.abs();
        let largest = (((1 << self.exponent_bits) - 1) << self.fraction_bits) - 1;
        let (mut low, mut high) = (0, largest);
        while high - low > 1 {
            let middle = u32::midpoint(low, high);
            if self.value(middle) <= magnitude { low = middle } else { high = middle }
        }
        let (below, above) = (magnitude - self.value(low), self.value(high) - magnitude);
        let nearest = match below.total_cmp(&above) {
            std::cmp::Ordering::Less => low,
            std::cmp::Ordering::Greater => high,
            std::cmp::Ordering::Equal => low + low % 2,
        };
        let sign = u32::from(value < 0.0) << (self.fraction_bits + self.exponent_bits);
        nearest | sign
    }
}

fn read(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |bits, byte| (bits << 8) | u32::from(*byte))
}

/// Turns noise into finite elements: a vector of zeros, one of subnormals, one of the largest, and
/// the rest within a few powers of two.
pub fn tame(code: u8, page: &mut [u8], vectors: &[Range<usize>]) {
    let dtype = dtype(code);
    let sign_at = dtype.fraction_bits + dtype.exponent_bits;
    let one = ((1 << (dtype.exponent_bits - 1)) - 1) << dtype.fraction_bits;
    let largest = (((1 << dtype.exponent_bits) - 1) << dtype.fraction_bits) - 1;
    for (index, vector) in vectors.iter().enumerate() {
        for element in page[vector.clone()].chunks_exact_mut(dtype.bytes) {
            let bits = read(element);
            let sign = (bits >> sign_at) << sign_at;
            let fraction = bits % (1 << dtype.fraction_bits);
            let bits = match index {
                0 => 0,
                1 => sign | fraction,
                2 => sign | (largest - (fraction >> 2)),
                _ => sign | (one - (bits >> 3) % 6 * (1 << dtype.fraction_bits)) | fraction,
            };
            element.copy_from_slice(&bits.to_le_bytes()[..dtype.bytes]);
        }
    }
}

/// Returns the payload of a page and the decoded page; `tokens` vectors belong to one head. `is_turned`: whether the head
/// of that number is a turned head of K.
pub fn encode(
    code: u8,
    page: &[u8],
    vectors: &[Range<usize>],
    tokens: usize,
    is_turned: impl Fn(usize) -> bool,
) -> (Vec<u8>, Vec<u8>) {
    let (source, bf16) = (dtype(code), dtype(1));
    let (mut payload, mut decoded) = (Vec::new(), page.to_vec());
    for (number, head) in vectors.chunks(tokens).enumerate() {
        let mut codes = Vec::new();
        for vector in head {
            let elements = page[vector.clone()].chunks_exact(source.bytes);
            let mut values: Vec<f64> = elements.map(|bytes| source.value(read(bytes))).collect();
            let block = if is_turned(number) { block_of(values.len()) } else { 1 };
            for block in values.chunks_mut(block) {
                turn_into(block);
            }
            let absmax = values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
            let smallest = 2_f64.powi(-126);
            let scale = if absmax == 0.0 { 0.0 } else { (absmax / 127.0).max(smallest) };
            let scale_bits = bf16.nearest(scale);
            let scale = bf16.value(scale_bits);
            payload.extend(&scale_bits.to_le_bytes()[..2]);
            let quotient = |value: &f64| if absmax == 0.0 { 0.0 } else { value / scale };
            let rounded: Vec<f64> =
                values.iter().map(|value| quotient(value).round_ties_even()).collect();
            #[expect(clippy::cast_possible_truncation, reason = "within -127..=127")]
            codes.extend(rounded.iter().map(|code| (*code as i8).cast_unsigned()));
            let sums: Vec<f64> = rounded.chunks(block).flat_map(turned).collect();
            for (sum, target) in
                sums.iter().zip(decoded[vector.clone()].chunks_exact_mut(source.bytes))
            {
                let bits = source.nearest(sum * scale);
                target.copy_from_slice(&bits.to_le_bytes()[..source.bytes]);
            }
        }
        payload.extend(codes);
    }
    (payload, decoded)
}

/// Returns the largest power of two that divides the length, at most 256.
fn block_of(length: usize) -> usize {
    (0..=8)
        .map(|power| 1 << power)
        .filter(|block| length.is_multiple_of(*block))
        .max()
        .expect("1 does")
}

/// Divides the values by their count in float32, as the protocol says, and turns them.
#[expect(clippy::cast_possible_truncation, reason = "float32 is what is asked for")]
fn turn_into(values: &mut [f64]) {
    let length = f64::from(u16::try_from(values.len()).expect("a block"));
    let single: Vec<f32> = values.iter().map(|value| (value / length) as f32).collect();
    for (value, turned) in values.iter_mut().zip(turned(&single)) {
        *value = turned.into();
    }
}

/// Returns the sums of the two halves, turned, then their differences, turned.
fn turned<N: Copy + std::ops::Add<Output = N> + std::ops::Sub<Output = N>>(values: &[N]) -> Vec<N> {
    if values.len() == 1 {
        return values.to_vec();
    }
    let (low, high) = values.split_at(values.len() / 2);
    let sums: Vec<N> = low.iter().zip(high).map(|(low, high)| *low + *high).collect();
    let differences: Vec<N> = low.iter().zip(high).map(|(low, high)| *low - *high).collect();
    [turned(&sums), turned(&differences)].concat()
}
