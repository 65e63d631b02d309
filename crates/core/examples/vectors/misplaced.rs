//! Owns the records that readers must refuse because of their codec.

use tierkv_core::record::{CLASS_SSM, HEADER_BYTES, Header, Refusal};

use super::cases::{Golden, Refused, record_of, refuse};

/// Returns records of codec 2 with a fidelity, class, layout or length that it does not allow.
pub fn misplaced(int8: &Golden, opaque: &Golden) -> Vec<Refused> {
    let edited = |name: &str, refusal, golden: &Golden, edit: &dyn Fn(&mut Header)| {
        let mut header = Header { codec: 2, fidelity: 2, ..golden.header.clone() };
        edit(&mut header);
        refuse(name, refusal, record_of(&header, &golden.record[HEADER_BYTES..]))
    };
    vec![
        edited("int8-exact", Refusal::Fidelity, int8, &|header| header.fidelity = 0),
        edited("int8-other-fidelity", Refusal::Fidelity, int8, &|header| header.fidelity = 4),
        edited("int8-state", Refusal::Geometry, int8, &|header| header.record_class = CLASS_SSM),
        edited("int8-opaque", Refusal::Geometry, opaque, &|_| ()),
        edited("int8-as-long-as-raw", Refusal::Geometry, int8, &|header| {
            header.payload_bytes = header.source_bytes;
        }),
        edited("int8-said-to-be-raw", Refusal::Geometry, int8, &|header| header.codec = 0),
    ]
}

/// Returns records of codecs 1 and 4 with a fidelity, dtype or length that they do not allow.
pub fn unlikely(int8: &Golden, lossless: &Golden) -> Vec<Refused> {
    let edited = |name: &str, refusal, golden: &Golden, edit: &dyn Fn(&mut Header)| {
        let mut header = golden.header.clone();
        edit(&mut header);
        refuse(name, refusal, record_of(&header, &golden.record[HEADER_BYTES..]))
    };
    vec![
        edited("int8-said-to-be-turned", Refusal::Fidelity, int8, &|header| header.codec = 4),
        edited("turned-exact", Refusal::Fidelity, int8, &|header| {
            (header.codec, header.fidelity) = (4, 0);
        }),
        edited("lossless-fp16", Refusal::Geometry, lossless, &|header| header.dtype = 2),
        edited("lossless-as-long-as-raw", Refusal::Geometry, lossless, &|header| {
            header.payload_bytes = header.source_bytes;
        }),
        edited("lossless-without-bytes", Refusal::Geometry, lossless, &|header| {
            header.payload_bytes = 0;
        }),
    ]
}

/// Returns records of codec 4 whose header says the contrary of their payload about the start of the sequence, and one of
/// codec 3, which no version reads.
pub fn not_first(inner: &Golden, first: &Golden) -> Vec<Refused> {
    let edited = |name: &str, refusal, golden: &Golden, edit: &dyn Fn(&mut Header)| {
        let mut header = golden.header.clone();
        edit(&mut header);
        refuse(name, refusal, record_of(&header, &golden.record[HEADER_BYTES..]))
    };
    vec![
        edited("turned-said-to-be-first", Refusal::Geometry, inner, &|header| {
            header.parent_hash = [0; 32];
        }),
        edited("turned-said-to-follow", Refusal::Geometry, first, &|header| {
            header.parent_hash = [1; 32];
        }),
        edited("codec-3", Refusal::Codec, inner, &|header| {
            (header.codec, header.fidelity) = (3, 3);
        }),
    ]
}
