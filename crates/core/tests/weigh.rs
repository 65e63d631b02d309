//! Owns the proof of the weighing of codecs, and that a fault of a lossy codec shows in what it decodes.

use tierkv_core::codec::{Codec, SCALE_BYTES, weigh};
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::record::{CLASS_KV, LAYOUT_CANONICAL};

const BF16: u8 = 1;
const TOKENS: u32 = 16;
const DIM: u32 = 64;
/// Error power over signal power that 8 bits stay below (35 dB), and each fault here exceeds.
const NOISE_MAX: f64 = 3e-4;

/// Two layers of two heads, with padding behind each layer.
fn geometry() -> Geometry {
    let head = u64::from(TOKENS * DIM * 2);
    Geometry::new(Spec {
        group: 0,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype: BF16,
        tokens: TOKENS,
        layers: 2,
        heads: 2,
        dim_k: DIM,
        dim_v: DIM,
        layer_bytes: 4 * head + 512,
        key_offset: 0,
        value_offset: 2 * head,
        head_stride: head,
        token_stride: u64::from(DIM) * 2,
    })
    .expect("a sound shape")
}

/// Waves, of which one channel of K in the second layer is `outlier` times larger.
fn page(geometry: &Geometry, outlier: f32) -> Vec<u8> {
    let mut page = vec![0; geometry.page_bytes()];
    let layer = geometry.page_bytes() / 2;
    for (at, element) in page.chunks_exact_mut(2).enumerate() {
        let place = at * 2 % layer / 2;
        let is_large =
            at * 2 >= layer && place < 2 * (TOKENS * DIM) as usize && place % DIM as usize == 3;
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let value = (at as f32 * 0.37).sin() * if is_large { outlier } else { 1.0 };
        element.copy_from_slice(&value.to_bits().to_le_bytes()[2..]);
    }
    page
}

/// Decodes a page's payload after `change`; gives error power over signal power, of the layer's K or V where it is worst.
fn noise(codec: Codec, page: &[u8], change: impl Fn(&mut [u8])) -> f64 {
    let geometry = geometry();
    let form = codec.form(false);
    let mut payload = vec![0; geometry.payload_bytes(form).expect("it takes such a block")];
    // SAFETY: the page is as long as the geometry says, and other memory than the payload.
    let made = unsafe { form.encode(&geometry, page.as_ptr(), &mut payload) }.expect("taken");
    let payload = &mut payload[..made.bytes];
    change(payload);
    let mut back = page.to_vec();
    // SAFETY: as above.
    unsafe { form.decode(&geometry, payload, back.as_mut_ptr()) }.expect("sound scales");
    let part = (2 * TOKENS * DIM * 2) as usize;
    let layer = geometry.page_bytes() / 2;
    let parts = [0, part, layer, layer + part];
    parts
        .map(|at| error_share(&page[at..at + part], &back[at..at + part]))
        .into_iter()
        .fold(0.0, f64::max)
}

fn error_share(before: &[u8], after: &[u8]) -> f64 {
    let (mut signal, mut error) = (0.0, 0.0);
    for (before, after) in before.chunks_exact(2).zip(after.chunks_exact(2)) {
        let [before, after] = [before, after]
            .map(|of| f64::from(f32::from_bits(u32::from_le_bytes([0, 0, of[0], of[1]]))));
        signal += before * before;
        error += (before - after) * (before - after);
    }
    error / signal
}

#[test]
fn exact_codecs_have_no_noise_and_lossy_ones_have_what_their_steps_make() {
    let page = page(&geometry(), 1.0);
    for codec in [Codec::Raw, Codec::Lossless] {
        assert_eq!(noise(codec, &page, |_| ()).to_bits(), 0, "{codec:?}");
    }
    // Of a sine, (1/127)^2 / 12 over 1/2, and the rounding to bf16; turned, a wave is one large number among small ones.
    for codec in [Codec::Int8, Codec::Int8MeanHad] {
        let noise = noise(codec, &page, |_| ());
        assert!((3e-6..NOISE_MAX).contains(&noise), "{codec:?} {noise}");
    }
}

#[test]
fn an_outlier_channel_of_one_layer_is_seen_and_a_turn_spreads_it() {
    let geometry = geometry();
    let [plain, turned] = [Codec::Int8, Codec::Int8MeanHad].map(|codec| {
        let [without, with] =
            [1.0, 64.0].map(|outlier| noise(codec, &page(&geometry, outlier), |_| ()));
        with / without
    });
    assert!(plain.max(turned) < 100.0, "of the elements that are there: {plain} {turned}");
}

#[test]
fn a_weight_is_the_length_of_the_payload_and_a_time() {
    let geometry = geometry();
    let lengths = [Codec::Raw, Codec::Int8MeanHad].map(|codec| {
        let weight = weigh(codec, &geometry, &page(&geometry, 1.0)).expect("taken");
        assert!(!weight.decode.is_zero());
        weight.bytes
    });
    assert_eq!(
        lengths,
        [geometry.source_bytes(), geometry.payload_bytes(Codec::Int8MeanHad).unwrap()]
    );
}

#[test]
fn a_length_is_the_lossy_codec_s_in_its_own_namespace_and_lossless_elsewhere() {
    let geometry = geometry();
    let length = geometry.payload_bytes(Codec::Int8MeanHad).unwrap();
    let plain = geometry.payload_bytes(Codec::Int8).unwrap();
    let first = geometry.payload_bytes(Codec::Int8MeanHad.form(true)).unwrap();
    let form = |fidelity, bytes| geometry.form_of_length(fidelity, bytes);
    assert_eq!(form(4, length), Some(Codec::Int8MeanHad.form(false)));
    assert_eq!(form(4, first), Some(Codec::Int8MeanHad.form(true)));
    assert_eq!(form(2, plain), Some(Codec::Int8.into()));
    assert_eq!(form(2, length), Some(Codec::Lossless.into()));
    assert_eq!(form(0, length), Some(Codec::Lossless.into()));
    assert_eq!(form(4, length + 1), Some(Codec::Lossless.into()));
    assert_eq!(form(4, geometry.source_bytes()), Some(Codec::Raw.into()));
}

#[test]
fn what_has_no_codes_is_not_weighed() {
    let geometry = geometry();
    let mut nan = page(&geometry, 1.0);
    nan[..2].copy_from_slice(&0x7fc1_u16.to_le_bytes());
    assert_eq!(weigh(Codec::Int8MeanHad, &geometry, &nan), None);
    assert!(weigh(Codec::Raw, &geometry, &nan).is_some());
}

/// Of each head in a payload: its mean (a scale and codes; only of K in codec 4), its scales, its codes.
fn groups(codec: Codec, mut payload: &mut [u8]) -> Vec<[&mut [u8]; 3]> {
    let (of_scales, of_codes) = (TOKENS as usize * SCALE_BYTES, (TOKENS * DIM) as usize);
    let mut groups = Vec::new();
    while !payload.is_empty() {
        let is_key = groups.len() % 4 < 2;
        let mean = if is_key && codec == Codec::Int8MeanHad { 2 + DIM as usize } else { 0 };
        let (mean, rest) = payload.split_at_mut(mean);
        let (factors, rest) = rest.split_at_mut(of_scales);
        let (bytes, rest) = rest.split_at_mut(of_codes);
        groups.push([mean, factors, bytes]);
        payload = rest;
    }
    groups
}

/// Exchanges the means of the first layer's two heads of K.
fn swap_means(payload: &mut [u8]) {
    let mut groups = groups(Codec::Int8MeanHad, payload);
    let [[one, ..], [other, ..], ..] = &mut groups[..] else { panic!("two heads") };
    one.swap_with_slice(other);
}

#[test]
fn a_swapped_mean_is_seen_in_the_decoded_page() {
    // Each channel of a head is nearly constant, as a bias of K makes it, and another one in the other head.
    let mut page = page(&geometry(), 1.0);
    for (at, element) in page.chunks_exact_mut(2).enumerate() {
        let (head, channel) = (at / (TOKENS * DIM) as usize, at % DIM as usize);
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let [constant, wave] = [(head * 64 + channel) as f32, at as f32].map(|at| (at * 0.7).sin());
        element.copy_from_slice(&(constant * 8.0 + wave).to_bits().to_le_bytes()[2..]);
    }
    assert!(noise(Codec::Int8MeanHad, &page, |_| ()) < NOISE_MAX);
    let swapped = noise(Codec::Int8MeanHad, &page, swap_means);
    assert!(swapped > 100.0 * NOISE_MAX, "{swapped}");
}

#[test]
fn f97_a_wrong_entry_among_codes_or_a_drifted_scale_is_seen_in_the_decoded_page() {
    let page = page(&geometry(), 1.0);
    for codec in [Codec::Int8, Codec::Int8MeanHad] {
        assert!(noise(codec, &page, |_| ()) < NOISE_MAX, "{codec:?} as it is");
        // 127, which each vector has, is read as -127, and nothing else is wrong.
        let entry = |payload: &mut [u8]| {
            for [.., codes] in groups(codec, payload) {
                for code in codes.iter_mut().filter(|code| **code == 127) {
                    *code = 0x81;
                }
            }
        };
        // By a sixteenth: a bf16 number's second highest bits of its fraction.
        let drift = |payload: &mut [u8]| {
            for [_, scales, _] in groups(codec, payload) {
                for scale in scales.chunks_exact_mut(2) {
                    let bits = u16::from_le_bytes([scale[0], scale[1]]) + 8;
                    scale.copy_from_slice(&bits.to_le_bytes());
                }
            }
        };
        for (name, change) in [("entry", &entry as &dyn Fn(&mut [u8])), ("drift", &drift)] {
            let found = noise(codec, &page, change);
            assert!(found > NOISE_MAX, "{codec:?} {name} {found}");
        }
    }
}
