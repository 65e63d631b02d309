//! Owns the proof that ten thousand generated records, sound and not, are read here as test/core/generated.json says: python-shim/tests/test_generated.py
//! generates the same ones for a reader of its own, and what both must come to stands in that file.
//!
//! Each is a golden record of which up to two fields are others, whose end may be damaged, cut or too long, and whose checksums may hold all the same.

use std::fmt::Write;
use std::path::Path;

use ring::digest::{SHA256, digest};
use tierkv_core::crc32c;
use tierkv_core::record::{self, HEADER_BYTES, Header};

const CASES: usize = 10_000;
const SEED: u64 = 20;
const CHECKSUMS: [usize; 2] = [184, 188];

/// Offset and width of what an edit may change: all fields, the first bytes of hashes, both ends of what is reserved.
const FIELDS: [(usize, usize); 25] = [
    (0, 4),
    (4, 2),
    (6, 2),
    (8, 1),
    (9, 1),
    (10, 1),
    (11, 1),
    (12, 2),
    (14, 2),
    (16, 2),
    (18, 1),
    (19, 1),
    (20, 4),
    (24, 4),
    (28, 4),
    (32, 4),
    (36, 4),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (96, 8),
    (128, 8),
    (160, 8),
    (176, 8),
];
/// Where arithmetic goes wrong; all of them numbers that JavaScript has, too.
const EDGES: [u64; 12] =
    [0, 1, 2, 3, 4, 16, 255, 65_535, 1 << 31, u32::MAX as u64, 1 << 53, 1 << 63];

/// splitmix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        below(self.next(), bound)
    }
}

fn below(drawn: u64, bound: usize) -> usize {
    usize::try_from(drawn % bound as u64).expect("below a usize")
}

fn edit(record: &mut [u8], numbers: &mut Numbers) {
    let (at, width) = FIELDS[numbers.below(FIELDS.len())];
    let (how, drawn) = (numbers.below(3), numbers.next());
    let mut old = [0; 8];
    old[..width].copy_from_slice(&record[at..at + width]);
    let value = match how {
        0 => EDGES[below(drawn, EDGES.len())],
        1 => drawn >> 11,
        _ => u64::from_le_bytes(old).wrapping_add(1),
    };
    record[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

fn case(bases: &[Vec<u8>], numbers: &mut Numbers) -> Vec<u8> {
    let mut record = bases[numbers.below(bases.len())].clone();
    for _ in 0..numbers.below(3) {
        edit(&mut record, numbers);
    }
    let (end, drawn) = (numbers.below(8), numbers.next());
    let payload = record.len() - HEADER_BYTES;
    match end {
        0 => record[HEADER_BYTES + below(drawn, payload)] ^= 1 << ((drawn >> 32) % 8),
        1 => record.truncate(below(drawn, record.len())),
        2 => record.resize(record.len() + below(drawn, 5), 0),
        _ => {}
    }
    let signed = numbers.below(8);
    let [payload_at, header_at] = CHECKSUMS;
    if record.len() >= HEADER_BYTES && signed >= 2 {
        if signed >= 4 {
            let checksum = crc32c::checksum(&record[HEADER_BYTES..]);
            record[payload_at..header_at].copy_from_slice(&checksum.to_le_bytes());
        }
        let checksum = crc32c::checksum(&record[..header_at]);
        record[header_at..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }
    record
}

/// All fields in the order of their bytes.
fn words(header: &Header) -> String {
    let Header { codec, record_class, fidelity, layout, group, shard, shard_count, .. } = header;
    let Header { dtype, parts, tokens, layers, heads, dim_k, dim_v, .. } = header;
    let Header { end_tokens, payload_bytes, source_bytes, .. } = header;
    let mut text = format!("{codec} {record_class} {fidelity} {layout} {group} {shard}");
    let _ = write!(text, " {shard_count} {dtype} {parts} {tokens} {layers} {heads} {dim_k}");
    let _ = write!(text, " {dim_v} {end_tokens} {payload_bytes} {source_bytes}");
    for hash in [header.namespace, header.block_hash, header.parent_hash] {
        text += " ";
        for byte in hash {
            let _ = write!(text, "{byte:02x}");
        }
    }
    text
}

#[test]
fn ten_thousand_generated_records_are_read_as_by_python() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test");
    let mut names: Vec<_> = std::fs::read_dir(root.join("vectors"))
        .expect("golden records")
        .map(|entry| entry.expect("a file").file_name().into_string().expect("ASCII"))
        .filter(|name| name.ends_with(".record.bin") && !name.starts_with("refused-"))
        .collect();
    names.sort();
    let read = |name: &String| std::fs::read(root.join("vectors").join(name)).expect("golden");
    let bases: Vec<Vec<u8>> = names.iter().map(read).collect();
    let (mut numbers, mut taken, mut lines) = (Numbers(SEED), 0, String::new());
    for _ in 0..CASES {
        let record = case(&bases, &mut numbers);
        let verdict = match record::verify(&record) {
            Ok(header) => {
                taken += 1;
                words(&header)
            }
            Err(refusal) => refusal.name().to_owned(),
        };
        let _ = writeln!(lines, "{:08x} {verdict}", crc32c::checksum(&record));
    }
    let mut sha256 = String::new();
    for byte in digest(&SHA256, lines.as_bytes()).as_ref() {
        let _ = write!(sha256, "{byte:02x}");
    }
    let wanted = std::fs::read_to_string(root.join("core/generated.json")).unwrap_or_default();
    let found = [
        ("cases", CASES.to_string()),
        ("taken", taken.to_string()),
        ("sha256", format!("{sha256:?}")),
    ];
    for (name, value) in found {
        let line = format!("\"{name}\": {value}");
        assert!(wanted.contains(&line), "{line} is not in {wanted}");
    }
}
