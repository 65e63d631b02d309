//! Owns the proof that the golden files are what the core makes and takes, and that nothing near them is taken.

#[path = "../examples/vectors/cases.rs"]
mod cases;
#[path = "../examples/vectors/files.rs"]
mod files;
#[path = "../examples/vectors/int8.rs"]
mod int8;
#[path = "../examples/vectors/lossless.rs"]
mod lossless;
#[path = "../examples/vectors/misplaced.rs"]
mod misplaced;

use std::path::Path;

use cases::{goldens, refusals};
use tierkv_core::codec::Codec;
use tierkv_core::geometry::Geometry;
use tierkv_core::record::{self, HEADER_BYTES};

#[test]
fn the_committed_files_are_these_cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/vectors");
    let wanted = files::all();
    for (name, bytes) in &wanted {
        let committed = std::fs::read(folder.join(name)).unwrap_or_default();
        assert!(committed == *bytes, "{name} differs: run `cargo run --example vectors`");
    }
    let committed = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(committed, wanted.len(), "no other files lie in test/vectors");
}

/// CRC32C over the payloads and decoded pages of each codec's golden records. Stored records must stay readable, and a
/// certificate names a codec by its id: a codec whose bytes change gets a new id, and its own line here.
const BYTES_OF_CODECS: [(u8, u32); 4] =
    [(0, 939_265_547), (1, 2_937_007_085), (2, 2_236_660_129), (4, 1_948_214_673)];

#[test]
fn a_codec_whose_bytes_change_has_a_new_id() {
    let mut found: Vec<(u8, u32)> = Vec::new();
    for golden in goldens() {
        let bytes =
            [&golden.record[HEADER_BYTES..], golden.decoded.as_ref().unwrap_or(&golden.page)];
        if found.iter().all(|(id, _)| *id != golden.header.codec) {
            found.push((golden.header.codec, 0));
        }
        for (_, sum) in found.iter_mut().filter(|(id, _)| *id == golden.header.codec) {
            *sum = tierkv_core::crc32c::append(*sum, &bytes.concat());
        }
    }
    found.sort_unstable();
    assert_eq!(found, BYTES_OF_CODECS, "bytes of a codec changed: give it a new id in codec_id.rs");
    let listed = Codec::ALL.map(Codec::id);
    assert_eq!(listed, BYTES_OF_CODECS.map(|(id, _)| id), "each codec has golden records");
}

#[test]
fn golden_records_are_taken_and_say_what_was_written() {
    for golden in goldens() {
        assert_eq!(record::verify(&golden.record), Ok(golden.header), "{}", golden.name);
    }
}

#[test]
fn refused_records_are_refused_for_their_reason() {
    for case in refusals() {
        assert_eq!(record::verify(&case.bytes), Err(case.refusal), "{}", case.name);
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    for golden in goldens() {
        let mut bytes = golden.record.clone();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(record::verify(&bytes).is_err(), "{}: bit {bit}", golden.name);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    for golden in goldens() {
        for length in 0..golden.record.len() {
            assert!(record::verify(&golden.record[..length]).is_err(), "{}: {length}", golden.name);
        }
    }
}

#[test]
fn pages_become_their_payloads_and_come_back() {
    for golden in goldens() {
        let geometry = Geometry::new(golden.spec.clone()).unwrap();
        let codec = Codec::from_id(golden.header.codec).unwrap();
        let wanted = &golden.record[HEADER_BYTES..];
        let form = codec.form(golden.header.is_first());
        let mut payload = vec![0; geometry.payload_bytes(form).unwrap()];
        // SAFETY: the page is as long as the geometry says; payload is another vector.
        let made = unsafe { form.encode(&geometry, golden.page.as_ptr(), &mut payload) }.unwrap();
        payload.truncate(made.bytes);
        assert!(payload == wanted, "{}", golden.name);
        assert_eq!(made.checksum, tierkv_core::crc32c::checksum(wanted), "{}", golden.name);

        // Decoding onto the page's complement must restore every byte but the padding.
        let decoded = golden.decoded.as_ref().unwrap_or(&golden.page);
        let mut page: Vec<u8> = decoded.iter().map(|byte| !byte).collect();
        // SAFETY: as above.
        unsafe { form.decode(&geometry, &payload, page.as_mut_ptr()) }.unwrap();
        let same = page.iter().zip(decoded).filter(|(ours, theirs)| ours == theirs).count();
        let untouched =
            page.iter().zip(decoded).filter(|(ours, theirs)| **ours == !**theirs).count();
        assert_eq!(same, geometry.source_bytes(), "{}", golden.name);
        assert_eq!(untouched, geometry.page_bytes() - geometry.source_bytes(), "{}", golden.name);
    }
}
