//! Owns the proof of the fidelity and of the size that the figures name.

use tierkv_core::codec::Codec;

use super::data::{Spread, snr_db};
use super::trip::{BF16, plain};

/// Measured for this rule elsewhere, at head dim 128.
fn expected_db(spread: Spread) -> f64 {
    match spread {
        Spread::Gaussian => 43.8,
        Spread::Laplace => 41.0,
        Spread::StudentT4 => 39.3,
        Spread::KeyLike => 35.9,
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a log must say what was measured")]
fn true_snr_is_as_expected_for_each_spread() {
    for spread in Spread::ALL {
        let db = snr_db(spread);
        println!("{}: {db:.2} dB", spread.name());
        assert!((db - expected_db(spread)).abs() < 1.0, "{}: {db:.2} dB", spread.name());
    }
}

#[test]
fn bf16_at_head_dim_128_is_1_97_times_as_long() {
    let geometry = plain(BF16, 128, 16);
    let payload = geometry.payload_bytes(Codec::Int8).expect("int8 takes kv pages");
    assert_eq!((geometry.source_bytes(), payload), (16 * 256, 16 * 130));
}
