//! Owns the files of test/vectors: records, pages before and after, and the manifest that explains them.

use std::fmt::Write;

use tierkv_core::geometry::Spec;
use tierkv_core::record::Header;

use super::cases::{Golden, goldens, refusals};

/// Returns every file's name and bytes.
pub fn all() -> Vec<(String, Vec<u8>)> {
    let mut files = vec![("manifest.json".to_owned(), manifest().into_bytes())];
    for golden in goldens() {
        files.push((format!("{}.page.bin", golden.name), golden.page));
        if let Some(decoded) = golden.decoded {
            files.push((format!("{}.decoded.bin", golden.name), decoded));
        }
        files.push((format!("{}.record.bin", golden.name), golden.record));
    }
    for refused in refusals() {
        files.push((format!("refused-{}.record.bin", refused.name), refused.bytes));
    }
    files
}

fn manifest() -> String {
    let records: Vec<String> = goldens().iter().map(golden_json).collect();
    let refused: Vec<String> = refusals()
        .iter()
        .map(|case| {
            format!(
                "    {{ \"file\": \"refused-{}.record.bin\", \"refusal\": \"{}\" }}",
                case.name,
                case.refusal.name()
            )
        })
        .collect();
    format!(
        "{{\n  \"recordVersion\": 1,\n  \"records\": [\n{}\n  ],\n  \"refused\": [\n{}\n  ]\n}}\n",
        records.join(",\n"),
        refused.join(",\n")
    )
}

fn golden_json(golden: &Golden) -> String {
    format!(
        "    {{\n      \"record\": \"{0}.record.bin\",\n      \"page\": \"{0}.page.bin\",\n      \
         \"decoded\": \"{0}.{1}.bin\",\n      \"header\": {2},\n      \"geometry\": {3}\n    }}",
        golden.name,
        if golden.decoded.is_some() { "decoded" } else { "page" },
        header_json(&golden.header),
        geometry_json(&golden.spec)
    )
}

fn numbers_json(fields: &[(&str, u64)]) -> String {
    let lines: Vec<String> =
        fields.iter().map(|(name, value)| format!("        \"{name}\": {value}")).collect();
    lines.join(",\n")
}

fn header_json(header: &Header) -> String {
    let numbers = numbers_json(&[
        ("codec", header.codec.into()),
        ("recordClass", header.record_class.into()),
        ("fidelity", header.fidelity.into()),
        ("layout", header.layout.into()),
        ("group", header.group.into()),
        ("shard", header.shard.into()),
        ("shardCount", header.shard_count.into()),
        ("dtype", header.dtype.into()),
        ("parts", header.parts.into()),
        ("tokens", header.tokens.into()),
        ("layers", header.layers.into()),
        ("heads", header.heads.into()),
        ("dimK", header.dim_k.into()),
        ("dimV", header.dim_v.into()),
        ("endTokens", header.end_tokens),
        ("payloadBytes", header.payload_bytes),
        ("sourceBytes", header.source_bytes),
    ]);
    let hashes = [
        ("namespace", &header.namespace),
        ("blockHash", &header.block_hash),
        ("parentHash", &header.parent_hash),
    ];
    let hashes = hashes.map(|(name, hash)| format!("        \"{name}\": \"{}\"", hex(hash)));
    format!("{{\n{numbers},\n{}\n      }}", hashes.join(",\n"))
}

fn geometry_json(spec: &Spec) -> String {
    let numbers = numbers_json(&[
        ("group", spec.group.into()),
        ("recordClass", spec.record_class.into()),
        ("layout", spec.layout.into()),
        ("dtype", spec.dtype.into()),
        ("tokens", spec.tokens.into()),
        ("layers", spec.layers.into()),
        ("heads", spec.heads.into()),
        ("dimK", spec.dim_k.into()),
        ("dimV", spec.dim_v.into()),
        ("layerBytes", spec.layer_bytes),
        ("keyOffset", spec.key_offset),
        ("valueOffset", spec.value_offset),
        ("headStride", spec.head_stride),
        ("tokenStride", spec.token_stride),
    ]);
    format!("{{\n{numbers}\n      }}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
