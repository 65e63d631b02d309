//! Owns the proof of the error bound of docs/protocol.md, section 1, in double precision.

use proptest::collection::vec;
use proptest::prelude::*;
use tierkv_core::codec::Codec;
use tierkv_core::codec::int8::Isa;

use super::trip::{decode, element_bytes, encode, plain};

/// The smallest scale but zero, 2^-126.
fn scale_min() -> f64 {
    f32::MIN_POSITIVE.into()
}

fn value(dtype: u8, bytes: &[u8]) -> f64 {
    match dtype {
        1 => f32::from_le_bytes([0, 0, bytes[0], bytes[1]]).into(),
        3 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        _ => {
            let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
            let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
            let fraction = f64::from(bits & 0x3ff);
            match i32::from(bits >> 10 & 0x1f) {
                0 => sign * fraction * 2.0_f64.powi(-24),
                31 => f64::INFINITY,
                exponent => sign * (1024.0 + fraction) * 2.0_f64.powi(exponent - 25),
            }
        }
    }
}

fn values(dtype: u8, bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(element_bytes(dtype)).map(|element| value(dtype, element)).collect()
}

struct Trip {
    source: Vec<f64>,
    scale: f64,
    codes: Vec<f64>,
    decoded: Vec<f64>,
    bytes: Vec<u8>,
}

/// One head vector through the codec.
fn trip(dtype: u8, vector: &[u8]) -> Trip {
    let geometry = plain(dtype, vector.len() / element_bytes(dtype), 1);
    let (payload, _) =
        encode((Isa::best(), Codec::Int8), &geometry, vector).expect("all is finite");
    let mut bytes = vec![0; vector.len()];
    decode((Isa::best(), Codec::Int8), &geometry, &payload, &mut bytes);
    let (scale, codes) = payload.split_at(2);
    Trip {
        source: values(dtype, vector),
        scale: value(1, scale),
        codes: codes.iter().map(|code| f64::from(code.cast_signed())).collect(),
        decoded: values(dtype, &bytes),
        bytes,
    }
}

fn assert_bounded(dtype: u8, trip: &Trip) {
    let absmax = trip.source.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    if absmax == 0.0 {
        assert_eq!(trip.scale.to_bits(), 0);
        assert!(trip.codes.iter().chain(&trip.decoded).all(|value| value.to_bits() == 0));
        return;
    }
    let ideal = (absmax / 127.0).max(scale_min());
    assert!((trip.scale - ideal).abs() <= ideal / 255.0, "{} for {absmax}", trip.scale);
    let half = trip.scale * (0.5 + 2.0_f64.powi(-15));
    for ((source, code), decoded) in trip.source.iter().zip(&trip.codes).zip(&trip.decoded) {
        assert!(code.abs() <= 127.0);
        let product = code * trip.scale;
        assert!((source - product).abs() <= half, "{source} as {code} of {}", trip.scale);
        // The source is such an element, so the nearest one is never further from the product.
        assert!((decoded - product).abs() <= (source - product).abs(), "{product} as {decoded}");
        assert!((source - decoded).abs() <= 2.0 * half);
        if dtype == 3 {
            assert_eq!(decoded.to_bits(), product.to_bits(), "float32 holds every product");
        }
    }
}

/// Elements near one magnitude, from subnormal to the largest, as the bytes of a vector.
fn vectors(dtype: u8) -> impl Strategy<Value = Vec<u8>> {
    let fraction_bits: u32 = [0, 7, 10, 23][usize::from(dtype)];
    let sign_at = 8 * element_bytes(dtype) - 1;
    let largest: u32 = if dtype == 2 { 30 } else { 254 };
    (0..=largest, 0..12_u32).prop_flat_map(move |(top, spread)| {
        let element = (0..=spread, any::<u32>()).prop_map(move |(below, bits)| {
            let exponent = top.saturating_sub(below) << fraction_bits;
            let element = ((bits >> 31) << sign_at) | exponent | (bits % (1 << fraction_bits));
            element.to_le_bytes()[..element_bytes(dtype)].to_vec()
        });
        vec(element, 1..140).prop_map(|elements| elements.concat())
    })
}

proptest! {
    #[test]
    fn the_bound_holds(
        bf16 in vectors(1),
        fp16 in vectors(2),
        single in vectors(3),
    ) {
        assert_bounded(1, &trip(1, &bf16));
        assert_bounded(2, &trip(2, &fp16));
        assert_bounded(3, &trip(3, &single));
    }

    #[test]
    fn float32_that_was_decoded_encodes_to_the_same_codes(single in vectors(3)) {
        let first = trip(3, &single);
        let second = trip(3, &first.bytes);
        if first.codes.iter().any(|code| code.abs() >= 127.0) {
            prop_assert_eq!(first.codes, second.codes);
            prop_assert_eq!(first.bytes, second.bytes);
        }
    }
}

#[test]
fn every_bf16_alone_comes_back_within_the_bound() {
    for bits in (0..0x7f80_u16).chain(0x8000..0xff80) {
        assert_bounded(1, &trip(1, &bits.to_le_bytes()));
    }
}

#[test]
fn every_fp16_alone_comes_back_within_the_bound() {
    for bits in (0..0x7c00_u16).chain(0x8000..0xfc00) {
        assert_bounded(2, &trip(2, &bits.to_le_bytes()));
    }
}

#[test]
fn what_is_too_small_for_a_normal_scale_is_a_multiple_of_the_smallest() {
    let subnormal = [1_u32, 0x7f_ffff, 0x80_0000, 0x0300_0000].map(u32::to_le_bytes).concat();
    let small = trip(3, &subnormal);
    assert_eq!(small.scale.to_bits(), scale_min().to_bits());
    assert_eq!(small.codes, [0.0, 1.0, 1.0, 32.0]);
    assert_bounded(3, &small);
}

#[test]
fn one_outlier_leaves_the_rest_within_half_a_step() {
    let mut values = [0.01_f32; 64];
    values[40] = -100.0;
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let trip = trip(3, &bytes);
    assert_eq!(trip.codes[40].to_bits(), (-127.0_f64).to_bits());
    assert!(trip.codes.iter().filter(|code| **code == 0.0).count() == 63);
    assert_bounded(3, &trip);
}
