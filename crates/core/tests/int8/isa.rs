//! Owns the proof that every instruction set here gives the bytes that the portable kernels give.

use tierkv_core::codec::int8::{self, BadScale, Isa, NotFinite};
use tierkv_core::codec::{Codec, Form};
use tierkv_core::crc32c;
use tierkv_core::geometry::{Geometry, Spec};

use super::data::Random;
use super::trip::{decode, element_bytes, encode, plain};

/// Every form, the blocks of codec 4 that begin a sequence among them.
fn forms() -> [Form; 3] {
    [Codec::Int8.form(false), Codec::Int8MeanHad.form(false), Codec::Int8MeanHad.form(true)]
}
const DTYPES: [u8; 3] = [1, 2, 3];
/// Whole steps of every kernel, and every kind of rest after them.
const DIMS: [u32; 20] =
    [1, 2, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 80, 96, 128, 200];

/// The largest finite magnitude bits of a dtype.
fn largest(dtype: u8) -> u32 {
    [0, 0x7f7f, 0x7bff, 0x7f7f_ffff][usize::from(dtype)]
}

/// Finite elements of one kind: any bits at all; nearly equal ones; the edges of the dtype; zeros.
fn element(dtype: u8, kind: usize, random: &mut Random) -> u32 {
    let bits = u32::try_from(random.bits() >> 32).expect("32 bits are left");
    let one = [0, 0x3f80, 0x3c00, 0x3f80_0000][usize::from(dtype)];
    let edges = [0, 1, 2, 0x7f, 0x80, 0x3ff, 0x400, one, largest(dtype) - 1, largest(dtype)];
    let magnitude = match kind {
        // Of bf16 and float32, 2^-63 to 2^64, of which codec 4 has codes.
        4 if dtype != 2 => one / 2 + bits % one,
        0 | 4 => bits % (largest(dtype) + 1),
        1 => one + bits % 64,
        2 => edges[bits as usize % edges.len()],
        _ => 0,
    };
    let sign = if dtype == 3 { 1 << 31 } else { 1 << 15 };
    magnitude | if random.bits() & 1 == 0 { 0 } else { sign }
}

/// Two layers; K and V side by side, heads inside, tokens outside, `pad` bytes after each vector.
fn spec(dtype: u8, dim_k: u32, dim_v: u32, tokens: u32, pad: u64) -> Spec {
    let element = element_bytes(dtype) as u64;
    let value_offset = pad + u64::from(dim_k) * element + pad;
    let head_stride = value_offset + u64::from(dim_v) * element;
    let token_stride = head_stride * 2 + pad;
    Spec {
        tokens,
        layers: 2,
        heads: 2,
        dim_k,
        dim_v,
        layer_bytes: token_stride * u64::from(tokens) + 5 * pad,
        key_offset: pad,
        value_offset,
        head_stride,
        token_stride,
        ..plain(dtype, 1, 1).spec().clone()
    }
}

/// Where each element lies in a page.
fn places(spec: &Spec) -> Vec<usize> {
    let mut places = Vec::new();
    for layer in 0..u64::from(spec.layers) {
        for (offset, dim) in [(spec.key_offset, spec.dim_k), (spec.value_offset, spec.dim_v)] {
            for head in 0..u64::from(spec.heads) {
                for token in 0..u64::from(spec.tokens) {
                    let vector = layer * spec.layer_bytes
                        + offset
                        + head * spec.head_stride
                        + token * spec.token_stride;
                    let vector = usize::try_from(vector).expect("a small page");
                    let step = element_bytes(spec.dtype);
                    places.extend((0..dim as usize).map(|index| vector + index * step));
                }
            }
        }
    }
    places
}

fn page(spec: &Spec, mut element: impl FnMut() -> u32) -> Vec<u8> {
    let page_bytes = usize::try_from(spec.layer_bytes).expect("a small page") * 2;
    let mut page = vec![0xEE; page_bytes];
    for place in places(spec) {
        let bytes = element().to_le_bytes();
        let step = element_bytes(spec.dtype);
        page[place..place + step].copy_from_slice(&bytes[..step]);
    }
    page
}

/// False where the form has no codes for such a page, which every instruction set must say.
fn assert_same_everywhere(form: Form, geometry: &Geometry, page: &[u8], what: &str) -> bool {
    let portable = (Isa::PORTABLE, form);
    let Ok((wanted, checksum)) = encode(portable, geometry, page) else {
        for isa in Isa::all() {
            assert_eq!(encode((isa, form), geometry, page), Err(NotFinite), "{what}");
        }
        return false;
    };
    assert_eq!(checksum, crc32c::checksum(&wanted), "{what}");
    let mut wanted_page = vec![0xEE; page.len()];
    decode(portable, geometry, &wanted, &mut wanted_page);
    for isa in Isa::all() {
        let (payload, same_checksum) = encode((isa, form), geometry, page).expect("all is finite");
        assert!(payload == wanted && same_checksum == checksum, "{} encodes {what}", isa.name());
        let mut decoded = vec![0xEE; page.len()];
        decode((isa, form), geometry, &wanted, &mut decoded);
        assert!(decoded == wanted_page, "{} decodes {what}", isa.name());
    }
    true
}

/// The other tests go through `Isa::all`, so a set that it leaves out would be proven by none of them.
#[test]
fn every_instruction_set_of_this_processor_is_listed() {
    let names: Vec<&str> = Isa::all().into_iter().map(Isa::name).collect();
    let mut wanted = vec!["portable"];
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let is_wide = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        let sets = [
            ("avx2", has!("avx2") && has!("f16c")),
            ("avx512", is_wide),
            ("avx512bf16", is_wide && has!("avx512bf16")),
        ];
        wanted.extend(sets.iter().filter(|(_, is_here)| *is_here).map(|(name, _)| name));
    }
    #[cfg(target_arch = "aarch64")]
    wanted.push("neon");
    assert_eq!(names, wanted);
}

#[test]
#[expect(clippy::print_stdout, reason = "a log must say what was proven on this processor")]
fn every_isa_gives_the_same_bytes_and_leaves_padding_alone() {
    let names: Vec<&str> = Isa::all().into_iter().map(Isa::name).collect();
    println!("int8 kernels proven here: {}; chosen: {}", names.join(", "), Isa::best().name());
    let mut random = Random::new(2);
    let (mut coded, mut skipped) = (0, 0);
    for dtype in DTYPES {
        for (index, dim) in DIMS.into_iter().enumerate() {
            for (pad, kind) in [(0, 0), (1, 1), (64, 2), (3, 0), (0, 2), (2, 3), (0, 4), (1, 4)] {
                let spec = spec(dtype, dim, DIMS[DIMS.len() - 1 - index], 19, pad);
                let page = page(&spec, || element(dtype, kind, &mut random));
                let geometry = Geometry::new(spec.clone()).expect("a sound shape");
                for form in forms() {
                    let what = format!("{form:?}, dtype {dtype}, dim {dim}, pad {pad}, {kind}");
                    let is_taken = geometry.payload_bytes(form).is_some();
                    if !is_taken || !assert_same_everywhere(form, &geometry, &page, &what) {
                        skipped += 1;
                        continue;
                    }
                    coded += 1;

                    let best = (Isa::best(), form);
                    let mut decoded = page.clone();
                    let (payload, _) = encode(best, &geometry, &page).expect("all is finite");
                    decode(best, &geometry, &payload, &mut decoded);
                    for place in places(&spec) {
                        decoded[place..place + element_bytes(dtype)].fill(0xEE);
                    }
                    assert!(decoded.iter().all(|byte| *byte == 0xEE), "{what}: padding");
                }
            }
        }
    }
    assert!(coded > 3 * skipped, "{coded} coded, {skipped} not");
}

/// Pages so large and so aligned that kernels write past the cache; and the same ones, not aligned.
#[test]
fn what_goes_past_the_cache_arrives() {
    let mut random = Random::new(3);
    for dtype in DTYPES {
        for dim in [32, 64, 96, 128] {
            let spec = spec(dtype, dim, dim, 16 * 33, 0);
            let geometry = Geometry::new(spec.clone()).expect("a sound shape");
            assert!(geometry.source_bytes() >= 128 << 10, "large enough");
            let page = page(&spec, || element(dtype, 1, &mut random));
            for form in forms() {
                let what = format!("{form:?}, dtype {dtype}, dim {dim}");
                assert_streams(form, &geometry, &page, &what);
            }
        }
    }
}

fn assert_streams(form: Form, geometry: &Geometry, page: &[u8], what: &str) {
    let encoded = encode((Isa::best(), form), geometry, page);
    let (payload, checksum) = encoded.expect("all is finite");
    assert_eq!(checksum, crc32c::checksum(&payload), "taken in spans");
    let mut wanted = vec![0; page.len()];
    decode((Isa::PORTABLE, form), geometry, &payload, &mut wanted);
    let mut memory = vec![0; page.len() + 128];
    let start = memory.as_ptr().align_offset(64);
    for isa in Isa::all() {
        for shift in [0, 2] {
            let target = &mut memory[start + shift..][..page.len()];
            target.fill(0xEE);
            decode((isa, form), geometry, &payload, target);
            assert!(target == wanted, "{}: {what}", isa.name());
        }
    }
}

#[test]
fn an_inf_or_nan_anywhere_is_told() {
    for (form, dtype) in forms().into_iter().flat_map(|form| DTYPES.map(|dtype| (form, dtype))) {
        let infinity = largest(dtype) + 1;
        for dim in [17, 33, 64, 72] {
            let spec = spec(dtype, dim, dim, 17, 2);
            let geometry = Geometry::new(spec.clone()).expect("a sound shape");
            let one = [0, 0x3f80, 0x3c00, 0x3f80_0000][usize::from(dtype)];
            let element = if form.codec() == Codec::Int8 { largest(dtype) } else { one };
            let mut page = page(&spec, || element);
            let places = places(&spec);
            for at in (0..places.len()).step_by(13).chain([places.len() - 1]) {
                let element = places[at]..places[at] + element_bytes(dtype);
                let is_exact = form.is_first() && (at / dim as usize).is_multiple_of(17);
                for bits in [infinity, infinity + 1] {
                    let before = page[element.clone()].to_vec();
                    page[element.clone()].copy_from_slice(&bits.to_le_bytes()[..before.len()]);
                    for isa in Isa::all() {
                        let encoded = encode((isa, form), &geometry, &page);
                        let told = encoded.as_ref().err();
                        let wanted = if is_exact { None } else { Some(&NotFinite) };
                        assert_eq!(told, wanted, "{}: {form:?} at {at}", isa.name());
                        if let Ok((payload, _)) = encoded {
                            let mut back = vec![0xEE; page.len()];
                            decode((isa, form), &geometry, &payload, &mut back);
                            assert_eq!(back[element.clone()], page[element.clone()], "{at}");
                        }
                    }
                    page[element.clone()].copy_from_slice(&before);
                }
            }
            assert!(encode((Isa::best(), form), &geometry, &page).is_ok());
        }
    }
}

/// Every scale a payload can hold with every code, -128 among them, which no writer makes.
#[test]
fn every_scale_with_every_code_decodes_alike_or_is_refused() {
    for dtype in DTYPES {
        let geometry = plain(dtype, 256, 1);
        let mut payload = vec![0; 2];
        payload.extend(0..=u8::MAX);
        for scale in 0..=u16::MAX {
            payload[..2].copy_from_slice(&scale.to_le_bytes());
            let is_sound = scale == 0 || (0x0080..0x7f80).contains(&scale);
            let what = format!("dtype {dtype}, scale {scale:#x}");
            assert_decodes_alike(Codec::Int8.into(), &geometry, &payload, is_sound, &what);
        }
    }
}

/// The same of codec 4: scales of means and of vectors from 2^-100 to below 2^110, and no others.
#[test]
fn every_scale_of_a_mean_and_of_a_vector_decodes_alike_or_is_refused() {
    const TOKENS: usize = 3;
    let is_sound = |scale: u16| scale == 0 || (0x0d80..0x7680).contains(&scale);
    let edges = [0, 1, 0x0d7f, 0x0d80, 0x3f80, 0x767f, 0x7680, 0x7f80, 0x8000, 0xbf80];
    for (dtype, dim) in DTYPES.into_iter().flat_map(|dtype| [(dtype, 64), (dtype, 256)]) {
        let geometry = plain(dtype, dim, TOKENS);
        let form = Form::from(Codec::Int8MeanHad);
        let mut payload = vec![0; geometry.payload_bytes(form).expect("it is shorter")];
        for (at, code) in payload.iter_mut().enumerate() {
            *code = u8::try_from(at * 67 % 256).expect("a byte");
        }
        // The highest sums: all codes alike.
        let last = payload.len() - dim;
        payload[last..].fill(0x80);
        payload[2..2 + dim].fill(0x7f);
        let scales = edges.into_iter().chain((0..=u16::MAX).step_by(251));
        for (mean, own) in edges.into_iter().flat_map(|mean| scales.clone().map(move |s| (mean, s)))
        {
            payload[..2].copy_from_slice(&mean.to_le_bytes());
            let scales = 2 + dim..2 + dim + 2 * TOKENS;
            for scale in payload[scales].chunks_exact_mut(2) {
                scale.copy_from_slice(&own.to_le_bytes());
            }
            let is_sound = is_sound(mean) && is_sound(own);
            let what = format!("dtype {dtype}, dim {dim}, mean {mean:#x}, scale {own:#x}");
            assert_decodes_alike(form, &geometry, &payload, is_sound, &what);
        }
    }
}

fn assert_decodes_alike(form: Form, geometry: &Geometry, payload: &[u8], sound: bool, what: &str) {
    let mut wanted = vec![0; geometry.page_bytes()];
    for isa in Isa::all() {
        let mut page = vec![0; geometry.page_bytes()];
        let at = page.as_mut_ptr();
        // SAFETY: the page is as long as the geometry says; payload is another vector.
        let outcome = unsafe { int8::decode((isa, form), geometry, payload, at) };
        assert_eq!(outcome, if sound { Ok(()) } else { Err(BadScale) }, "{what}");
        if isa == Isa::PORTABLE {
            wanted = page;
        } else {
            assert!(!sound || page == wanted, "{}: {what}", isa.name());
        }
    }
    if sound {
        let finite = encode((Isa::PORTABLE, Codec::Int8), geometry, &wanted).is_ok();
        assert!(finite, "{what} never becomes inf");
    }
}
