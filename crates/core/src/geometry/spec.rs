//! Owns the engine's description of its page, and the check of its consistency.

use crate::error::{Error, Result};
use crate::header::{CLASS_KV, CLASS_SSM, Header, LAYOUT_CANONICAL, LAYOUT_OPAQUE};
use crate::limits::{PAGE_BYTES_MAX, VECTORS_PER_LAYER_MAX};

/// A page as the engine describes it; offsets and strides in bytes, inside one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// KV-cache group.
    pub group: u16,
    /// 1 kv, 2 ssm.
    pub record_class: u8,
    /// 0 canonical, 1 opaque.
    pub layout: u8,
    /// As in the record header.
    pub dtype: u8,
    /// Tokens of a block.
    pub tokens: u32,
    /// Layers, one after another in the slot.
    pub layers: u32,
    /// KV heads; opaque: 0.
    pub heads: u32,
    /// Elements of a K head vector; opaque: 0.
    pub dim_k: u32,
    /// Elements of a V head vector; 0 where there is only one part, or opaque.
    pub dim_v: u32,
    /// Bytes of one layer of the page.
    pub layer_bytes: u64,
    /// Offset of K inside a layer.
    pub key_offset: u64,
    /// Offset of V inside a layer.
    pub value_offset: u64,
    /// Bytes from head to head.
    pub head_stride: u64,
    /// Bytes from token to token.
    pub token_stride: u64,
}

/// Checks that all fields of `spec` fit together; returns the bytes of the page.
pub(super) fn check(spec: &Spec) -> Result<u64> {
    check_names(spec)?;
    let page_bytes = u64::from(spec.layers)
        .checked_mul(spec.layer_bytes)
        .filter(|bytes| *bytes <= PAGE_BYTES_MAX as u64)
        .ok_or_else(|| {
            refuse("layer_bytes", spec.layer_bytes, "layers * layer_bytes within 512 MiB")
        })?;
    if spec.layout == LAYOUT_OPAQUE { check_opaque(spec) } else { check_canonical(spec) }?;
    Ok(page_bytes)
}

fn refuse(field: &str, value: impl std::fmt::Display, wanted: &str) -> Error {
    Error::bad_argument(format!("geometry: {field} is {value}; it must be {wanted}"))
}

fn check_names(spec: &Spec) -> Result<()> {
    if !matches!(spec.record_class, CLASS_KV | CLASS_SSM) {
        return Err(refuse("record_class", spec.record_class, "1 (kv) or 2 (ssm)"));
    }
    if !matches!(spec.layout, LAYOUT_CANONICAL | LAYOUT_OPAQUE) {
        return Err(refuse("layout", spec.layout, "0 (canonical) or 1 (opaque)"));
    }
    if Header::element_bytes(spec.dtype).is_none() {
        return Err(refuse("dtype", spec.dtype, "0 (bytes), 1 (bf16), 2 (fp16) or 3 (float32)"));
    }
    let counts = [
        ("tokens", u64::from(spec.tokens)),
        ("layers", u64::from(spec.layers)),
        ("layer_bytes", spec.layer_bytes),
    ];
    match counts.into_iter().find(|(_, count)| *count == 0) {
        Some((field, _)) => Err(refuse(field, 0, "at least 1")),
        None => Ok(()),
    }
}

fn check_opaque(spec: &Spec) -> Result<()> {
    let dims = [("heads", spec.heads), ("dim_k", spec.dim_k), ("dim_v", spec.dim_v)];
    match dims.into_iter().find(|(_, dim)| *dim != 0) {
        Some((field, dim)) => Err(refuse(field, dim, "0 for an opaque page")),
        None => Ok(()),
    }
}

fn check_canonical(spec: &Spec) -> Result<()> {
    if spec.dtype == 0 {
        return Err(refuse("dtype", 0, "1 (bf16), 2 (fp16) or 3 (float32) for canonical pages"));
    }
    for (field, count) in [("heads", spec.heads), ("dim_k", spec.dim_k)] {
        if count == 0 {
            return Err(refuse(field, 0, "at least 1 for canonical pages"));
        }
    }
    let vectors = u64::from(spec.heads) * u64::from(spec.tokens);
    if vectors > VECTORS_PER_LAYER_MAX / 2 {
        return Err(refuse("heads", spec.heads, "few enough: 2 * heads * tokens within 2097152"));
    }
    check_inside(spec)?;
    check_disjoint(spec)
}

/// Field name, offset and bytes of a head vector of K and, where there is one, of V.
pub(super) fn vectors(spec: &Spec) -> Vec<(&'static str, u64, u64)> {
    let element = Header::element_bytes(spec.dtype).expect("checked before");
    let mut vectors = vec![("key_offset", spec.key_offset, u64::from(spec.dim_k) * element)];
    if spec.dim_v > 0 {
        vectors.push(("value_offset", spec.value_offset, u64::from(spec.dim_v) * element));
    }
    vectors
}

/// Checks that the last byte of the last vector lies inside the layer; then the other vectors do, too.
fn check_inside(spec: &Spec) -> Result<()> {
    for (field, offset, bytes) in vectors(spec) {
        let end = (u64::from(spec.heads) - 1)
            .checked_mul(spec.head_stride)
            .and_then(|heads| {
                heads.checked_add((u64::from(spec.tokens) - 1).checked_mul(spec.token_stride)?)
            })
            .and_then(|strides| strides.checked_add(offset)?.checked_add(bytes));
        if end.is_none_or(|end| end > spec.layer_bytes) {
            let wanted = format!(
                "such that the last vector (head_stride {}, token_stride {}) ends within layer_bytes {}",
                spec.head_stride, spec.token_stride, spec.layer_bytes
            );
            return Err(refuse(field, offset, &wanted));
        }
    }
    Ok(())
}

/// Checks that no two vectors share a byte, because a decode would overwrite its own output.
fn check_disjoint(spec: &Spec) -> Result<()> {
    let mut spans = Vec::new();
    for (_, offset, bytes) in vectors(spec) {
        for head in 0..u64::from(spec.heads) {
            for token in 0..u64::from(spec.tokens) {
                let start = offset + head * spec.head_stride + token * spec.token_stride;
                spans.push((start, start + bytes));
            }
        }
    }
    spans.sort_unstable();
    if spans.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        let wanted = format!(
            "such that no two head vectors overlap (head_stride {}, value_offset {})",
            spec.head_stride, spec.value_offset
        );
        return Err(refuse("token_stride", spec.token_stride, &wanted));
    }
    Ok(())
}
