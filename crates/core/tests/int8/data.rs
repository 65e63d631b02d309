//! Owns the synthetic head vectors that figures are given for, the same on every machine.

use tierkv_core::codec::Codec;
use tierkv_core::codec::int8::Isa;

use super::trip::{BF16, decode, encode, plain};

/// A small generator with a good spread; its seed is its name in every figure.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Above 0, up to 1.
    fn unit(&mut self) -> f64 {
        let [high, low] = [self.bits() >> 32, self.bits() >> 32]
            .map(|half| f64::from(u32::try_from(half).expect("32 bits are left")));
        (high + (low + 1.0) / 4_294_967_296.0) / 4_294_967_296.0
    }

    fn gaussian(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    fn laplace(&mut self) -> f64 {
        let sign = if self.bits() & 1 == 0 { 1.0 } else { -1.0 };
        -sign * self.unit().ln()
    }

    fn student_t4(&mut self) -> f64 {
        let chi_square = -2.0 * (self.unit().ln() + self.unit().ln());
        self.gaussian() / (chi_square / 4.0).sqrt()
    }
}

/// How the elements of a head vector are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    Gaussian,
    Laplace,
    StudentT4,
    /// Gaussian, with 3 % of the channels (the same in all vectors) 8 times as large.
    KeyLike,
}

impl Spread {
    pub const ALL: [Self; 4] = [Self::Gaussian, Self::Laplace, Self::StudentT4, Self::KeyLike];

    pub fn name(self) -> &'static str {
        match self {
            Self::Gaussian => "gaussian",
            Self::Laplace => "laplace",
            Self::StudentT4 => "student_t4",
            Self::KeyLike => "key_like",
        }
    }

    /// `vectors` head vectors of `dim` elements, one after another.
    fn elements(self, vectors: usize, dim: usize) -> Vec<f32> {
        let mut random = Random::new(0x7469_6572);
        let loud: Vec<bool> = (0..dim).map(|channel| channel % 32 == 7).collect();
        let mut element = |channel: usize| match self {
            Self::Gaussian => random.gaussian(),
            Self::Laplace => random.laplace(),
            Self::StudentT4 => random.student_t4(),
            Self::KeyLike => random.gaussian() * if loud[channel] { 8.0 } else { 1.0 },
        };
        (0..vectors * dim).map(|index| narrow(element(index % dim))).collect()
    }
}

/// `vectors` head vectors of `dim` bf16 elements, one after another.
pub fn bf16(spread: Spread, vectors: usize, dim: usize) -> Vec<u8> {
    // bf16 is the upper half of float32.
    let halves = spread.elements(vectors, dim).into_iter().map(f32::to_le_bytes);
    halves.flat_map(|bytes| bytes.into_iter().skip(2)).collect()
}

#[expect(clippy::cast_possible_truncation, reason = "synthetic data loses nothing by it")]
fn narrow(value: f64) -> f32 {
    value as f32
}

/// What is left of bf16 head vectors of 128 elements: power of the signal over power of the error in
/// dB, the true ratio, not the peak one.
pub fn snr_db(codec: Codec, spread: Spread) -> f64 {
    let (dim, vectors) = (128, 4096);
    let page = bf16(spread, vectors, dim);
    let geometry = plain(BF16, dim, vectors);
    let (payload, _) = encode((Isa::best(), codec), &geometry, &page).expect("all is finite");
    let mut decoded = vec![0; page.len()];
    decode((Isa::best(), codec), &geometry, &payload, &mut decoded);
    let values = |bytes: &[u8]| -> Vec<f64> {
        let halves = bytes.chunks_exact(2);
        halves.map(|half| f32::from_le_bytes([0, 0, half[0], half[1]]).into()).collect()
    };
    let (source, decoded) = (values(&page), values(&decoded));
    let power: f64 = source.iter().map(|value| value * value).sum();
    let errors = source.iter().zip(&decoded).map(|(source, decoded)| source - decoded);
    let noise: f64 = errors.map(|error| error * error).sum();
    10.0 * (power / noise).log10()
}
