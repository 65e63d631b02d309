//! Owns the proof of the fidelity and of the size that the figures name.

use tierkv_core::codec::Codec;

use super::data::{Spread, snr_db};
use super::trip::{BF16, plain};

/// Measured for these rules elsewhere, at head dim 128: INT8, and INT8 of turned vectors.
fn expected_db(spread: Spread) -> [f64; 2] {
    match spread {
        Spread::Gaussian => [43.8, 43.8],
        Spread::Laplace => [41.0, 43.7],
        Spread::StudentT4 => [39.3, 43.8],
        Spread::KeyLike => [35.9, 44.8],
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a log must say what was measured")]
fn true_snr_is_as_expected_for_each_spread() {
    for spread in Spread::ALL {
        let wanted = expected_db(spread);
        for (codec, wanted) in [Codec::Int8, Codec::Int8MeanHad].into_iter().zip(wanted) {
            let db = snr_db(codec, spread);
            println!("{codec:?}, {}: {db:.2} dB", spread.name());
            assert!((db - wanted).abs() < 1.0, "{codec:?}, {}: {db:.2} dB", spread.name());
        }
    }
}

#[test]
fn bf16_at_head_dim_128_is_1_97_times_as_long() {
    let geometry = plain(BF16, 128, 16);
    let payload = geometry.payload_bytes(Codec::Int8).expect("int8 takes kv pages");
    assert_eq!((geometry.source_bytes(), payload), (16 * 256, 16 * 130));
}
