//! Owns the golden int8 blocks of codecs 2 and 4, computed from the protocol's words, independently of the core.

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

/// Turns noise into finite elements within a few powers of two. `is_wide`: one vector of zeros, one of subnormals, one of the
/// largest, for which codec 4 has no codes.
pub fn tame(code: u8, page: &mut [u8], vectors: &[Range<usize>], is_wide: bool) {
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
                _ if !is_wide => {
                    sign | (one - (bits >> 3) % 6 * (1 << dtype.fraction_bits)) | fraction
                }
                1 => sign | fraction,
                2 => sign | (largest - (fraction >> 2)),
                _ => sign | (one - (bits >> 3) % 6 * (1 << dtype.fraction_bits)) | fraction,
            };
            element.copy_from_slice(&bits.to_le_bytes()[..dtype.bytes]);
        }
    }
}

/// One coded vector: its scale's bits, the scale, and the codes.
struct Coded {
    scale_bits: u32,
    scale: f64,
    codes: Vec<f64>,
}

fn coded(values: &[f64]) -> Coded {
    let bf16 = dtype(1);
    let absmax = values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let smallest = 2_f64.powi(-126);
    let ideal = single(absmax * single(1.0 / 127.0));
    let scale_bits = bf16.nearest(if absmax == 0.0 { 0.0 } else { ideal.max(smallest) });
    let scale = bf16.value(scale_bits);
    let reciprocal = if absmax == 0.0 { 0.0 } else { single(1.0 / scale) };
    let quotient = |value: &f64| single(value * reciprocal);
    let codes = values.iter().map(|value| quotient(value).round_ties_even()).collect();
    Coded { scale_bits, scale, codes }
}

#[expect(clippy::cast_possible_truncation, reason = "within -127..=127")]
fn bytes_of(codes: &[f64]) -> impl Iterator<Item = u8> {
    codes.iter().map(|code| (*code as i8).cast_unsigned())
}

fn scale_bytes(coded: &Coded) -> [u8; 2] {
    let [low, high, ..] = coded.scale_bits.to_le_bytes();
    [low, high]
}

/// Returns the payload of a page in codec 2 and the decoded page; `tokens` vectors belong to one head.
pub fn encode(
    code: u8,
    page: &[u8],
    vectors: &[Range<usize>],
    tokens: usize,
) -> (Vec<u8>, Vec<u8>) {
    let source = dtype(code);
    let (mut payload, mut decoded) = (Vec::new(), page.to_vec());
    for head in vectors.chunks(tokens) {
        let mut codes = Vec::new();
        for vector in head {
            let own = coded(&source.values(&page[vector.clone()]));
            payload.extend(scale_bytes(&own));
            codes.extend(bytes_of(&own.codes));
            let values = own.codes.iter().map(|code| code * own.scale);
            source.write(values, &mut decoded[vector.clone()]);
        }
        payload.extend(codes);
    }
    (payload, decoded)
}

/// As `encode`, in codec 4. `is_key`: whether the head of that number is K, which loses its mean; `is_first`: the first
/// vector of each head is kept.
pub fn encode_turned(
    code: u8,
    page: &[u8],
    vectors: &[Range<usize>],
    tokens: usize,
    is_key: impl Fn(usize) -> bool,
    is_first: bool,
) -> (Vec<u8>, Vec<u8>) {
    let source = dtype(code);
    let (mut payload, mut decoded) = (Vec::new(), page.to_vec());
    for (number, head) in vectors.chunks(tokens).enumerate() {
        let mut parts: [Vec<u8>; 5] = std::array::from_fn(|_| Vec::new());
        let [mean_scales, mean_codes, scales, codes, exact] = &mut parts;
        for (run, members) in head.chunks(16).enumerate() {
            let (kept, members) = members.split_at(usize::from(is_first && run == 0));
            let rows: Vec<Vec<f64>> =
                members.iter().map(|vector| turn(&source.values(&page[vector.clone()]))).collect();
            let dim = head[0].len() / source.bytes;
            let mean = coded(&if is_key(number) { mean_of(&rows, dim) } else { vec![0.0; dim] });
            if is_key(number) {
                mean_scales.extend(scale_bytes(&mean));
                mean_codes.extend(bytes_of(&mean.codes));
            }
            for vector in kept {
                scales.extend([0; 2]);
                codes.extend(vec![0; dim]);
                exact.extend(&page[vector.clone()]);
            }
            for (vector, row) in members.iter().zip(&rows) {
                let less = |(value, code): (&f64, &f64)| single(value - code * mean.scale);
                let own = coded(&row.iter().zip(&mean.codes).map(less).collect::<Vec<_>>());
                scales.extend(scale_bytes(&own));
                codes.extend(bytes_of(&own.codes));
                let sums = back(&own.codes).into_iter().zip(back(&mean.codes));
                let values =
                    sums.map(|(sum, mean_sum)| single(sum * own.scale + mean_sum * mean.scale));
                source.write(values, &mut decoded[vector.clone()]);
            }
        }
        payload.extend(parts.concat());
    }
    (payload, decoded)
}

/// The mean of rows, in float32: the sum in their order, times one over their number.
fn mean_of(rows: &[Vec<f64>], dim: usize) -> Vec<f64> {
    let share = single(1.0 / f64::from(u16::try_from(rows.len().max(1)).expect("16 at most")));
    let sum = |channel: usize| rows.iter().fold(0.0, |sum, row| single(sum + row[channel]));
    (0..dim).map(|channel| single(sum(channel) * share)).collect()
}

#[expect(clippy::cast_possible_truncation, reason = "float32 is what is asked for")]
fn single(value: f64) -> f64 {
    f64::from(value as f32)
}

/// Returns the sums of the codes, block by block.
fn back(codes: &[f64]) -> Vec<f64> {
    codes.chunks(block_of(codes.len())).flat_map(turned).collect()
}

/// Returns the turned values, block by block.
fn turn(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    let block = block_of(values.len());
    values.chunks_mut(block).for_each(turn_into);
    values
}

impl Dtype {
    fn values(&self, bytes: &[u8]) -> Vec<f64> {
        bytes.chunks_exact(self.bytes).map(|bytes| self.value(read(bytes))).collect()
    }

    fn write(&self, values: impl Iterator<Item = f64>, to: &mut [u8]) {
        for (value, target) in values.zip(to.chunks_exact_mut(self.bytes)) {
            target.copy_from_slice(&self.nearest(value).to_le_bytes()[..self.bytes]);
        }
    }
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
