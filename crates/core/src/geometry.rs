//! Owns the shape of an engine's page: checked once at registration, then walked run by run without checks.

use std::ops::Range;

use crate::codec::{Block, Codec};
use crate::error::{Error, Result};
use crate::limits::{PAGE_BYTES_MAX, SLOT_ALIGN_BYTES, VECTORS_PER_LAYER_MAX};
use crate::record::{CLASS_KV, CLASS_SSM, HEADER_BYTES, Header, LAYOUT_CANONICAL, LAYOUT_OPAQUE};

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
    /// Elements of a V head vector; 0 where there is one part only, or opaque.
    pub dim_v: u32,
    /// Bytes of one layer of the page.
    pub layer_bytes: u64,
    /// Where K starts inside a layer.
    pub key_offset: u64,
    /// Where V starts inside a layer.
    pub value_offset: u64,
    /// From head to head.
    pub head_stride: u64,
    /// From token to token.
    pub token_stride: u64,
}

/// A repetition: `count` times, `stride` bytes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    count: usize,
    stride: usize,
}

/// K or V of one layer as equal runs of bytes: outer x inner runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    offset: usize,
    outer: Axis,
    inner: Axis,
    run_bytes: usize,
}

impl Part {
    /// Merges neighbouring runs, so that a contiguous page is copied in long pieces.
    fn merged(mut self) -> Self {
        if self.inner.stride == self.run_bytes || self.inner.count == 1 {
            self.run_bytes *= self.inner.count;
            self.inner = self.outer;
            self.outer = Axis { count: 1, stride: 0 };
            if self.inner.stride == self.run_bytes || self.inner.count == 1 {
                self.run_bytes *= self.inner.count;
                self.inner = Axis { count: 1, stride: 0 };
            }
        }
        self
    }
}

/// K or V of one head in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadRows {
    /// Where its first head vector starts in the page.
    pub offset: usize,
    pub tokens: usize,
    pub token_stride: usize,
    /// Bytes of one head vector.
    pub vector_bytes: usize,
}

/// A page shape whose every run is known to lie inside the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    spec: Spec,
    /// Head vectors as they lie; none where the page is opaque.
    vectors: Vec<Part>,
    /// The same bytes in the longest runs.
    parts: Vec<Part>,
    layer_bytes: usize,
    page_bytes: usize,
    source_bytes: usize,
    /// The page is its own canonical form, byte for byte.
    is_canonical: bool,
}

impl Geometry {
    /// Checks `spec` whole: afterwards no encode or decode needs to.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the field, its value and what it must be.
    pub fn new(spec: Spec) -> Result<Self> {
        check_names(&spec)?;
        let page_bytes = u64::from(spec.layers)
            .checked_mul(spec.layer_bytes)
            .filter(|bytes| *bytes <= PAGE_BYTES_MAX as u64)
            .ok_or_else(|| {
                refuse("layer_bytes", spec.layer_bytes, "layers * layer_bytes within 512 MiB")
            })?;
        let (vectors, parts) = if spec.layout == LAYOUT_OPAQUE {
            check_opaque(&spec)?;
            let once = Axis { count: 1, stride: 0 };
            let run_bytes = index(spec.layer_bytes);
            (Vec::new(), vec![Part { offset: 0, outer: once, inner: once, run_bytes }])
        } else {
            check_canonical(&spec)?;
            let vectors = canonical_parts(&spec);
            let parts = vectors.iter().cloned().map(Part::merged).collect();
            (vectors, parts)
        };
        let per_layer: usize =
            parts.iter().map(|part| part.outer.count * part.inner.count * part.run_bytes).sum();
        let mut geometry = Self {
            source_bytes: per_layer * index(u64::from(spec.layers)),
            layer_bytes: index(spec.layer_bytes),
            page_bytes: index(page_bytes),
            is_canonical: false,
            vectors,
            parts,
            spec,
        };
        let (mut at, mut in_place) = (0, true);
        geometry.for_each_run(|offset, bytes| {
            in_place &= offset == at;
            at += bytes;
        });
        geometry.is_canonical = in_place && at == geometry.page_bytes;
        Ok(geometry)
    }

    /// Whether the page is, byte for byte, the payload of a raw record.
    #[must_use]
    pub fn is_canonical(&self) -> bool {
        self.is_canonical
    }

    /// The description this was made from.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Bytes of the page, padding included.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes of the smallest slot that holds the page.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.page_bytes.next_multiple_of(SLOT_ALIGN_BYTES)
    }

    /// Bytes of the decoded block, padding excluded.
    #[must_use]
    pub fn source_bytes(&self) -> usize {
        self.source_bytes
    }

    /// Length of a payload of this geometry; `None` where the codec does not take such a block.
    #[must_use]
    pub fn payload_bytes(&self, codec: Codec) -> Option<usize> {
        let per_layer: usize =
            self.vectors.iter().map(|part| part.outer.count * part.inner.count).sum();
        let block = Block {
            record_class: self.spec.record_class,
            dtype: self.spec.dtype,
            source_bytes: self.source_bytes as u64,
            vectors: per_layer as u64 * u64::from(self.spec.layers),
        };
        codec.payload_bytes(&block).map(index)
    }

    /// Length of the longest record of this geometry, whatever the codec.
    #[must_use]
    pub fn record_bytes_max(&self) -> usize {
        let payloads = Codec::ALL.into_iter().filter_map(|codec| self.payload_bytes(codec));
        HEADER_BYTES + payloads.max().unwrap_or(self.source_bytes)
    }

    /// K/V parts as they stand in a record: 0 for an opaque page.
    #[must_use]
    pub fn part_count(&self) -> u8 {
        match (self.spec.layout, self.spec.dim_v) {
            (LAYOUT_OPAQUE, _) => 0,
            (_, 0) => 1,
            _ => 2,
        }
    }

    /// The first field of `header` that does not describe this geometry.
    #[must_use]
    pub fn mismatch(&self, header: &Header) -> Option<&'static str> {
        let spec = &self.spec;
        [
            ("group", header.group == spec.group),
            ("class", header.record_class == spec.record_class),
            ("layout", header.layout == spec.layout),
            ("dtype", header.dtype == spec.dtype),
            ("parts", header.parts == self.part_count()),
            ("tokens", header.tokens == spec.tokens),
            ("layers", header.layers == spec.layers),
            ("heads", header.heads == spec.heads),
            ("K dim", header.dim_k == spec.dim_k),
            ("V dim", header.dim_v == spec.dim_v),
            ("source bytes", header.source_bytes == self.source_bytes as u64),
        ]
        .into_iter()
        .find_map(|(field, same)| (!same).then_some(field))
    }

    /// Every head's K or V in canonical order: layer, part, head; none where the page is opaque.
    pub(crate) fn heads(&self) -> impl Iterator<Item = HeadRows> {
        self.heads_from(0)
    }

    /// The same from the layer of that number on.
    pub(crate) fn heads_from(&self, layer: usize) -> impl Iterator<Item = HeadRows> {
        let layers = (layer * self.layer_bytes..self.page_bytes).step_by(self.layer_bytes);
        layers.flat_map(|layer| self.vectors.iter().map(move |part| (layer, part))).flat_map(
            |(layer, part)| {
                (0..part.outer.count).map(move |head| HeadRows {
                    offset: layer + part.offset + head * part.outer.stride,
                    tokens: part.inner.count,
                    token_stride: part.inner.stride,
                    vector_bytes: part.run_bytes,
                })
            },
        )
    }

    /// Visits every run (offset in the page, bytes) in canonical order: layer, part, head, token.
    pub(crate) fn for_each_run(&self, visit: impl FnMut(usize, usize)) {
        self.for_each_run_of(0..self.spec.layers as usize, visit);
    }

    /// The same, of some of the layers.
    pub(crate) fn for_each_run_of(
        &self,
        layers: Range<usize>,
        mut visit: impl FnMut(usize, usize),
    ) {
        for layer in layers.map(|layer| layer * self.layer_bytes) {
            for part in &self.parts {
                for outer in 0..part.outer.count {
                    for inner in 0..part.inner.count {
                        let offset =
                            part.offset + outer * part.outer.stride + inner * part.inner.stride;
                        visit(layer + offset, part.run_bytes);
                    }
                }
            }
        }
    }
}

fn refuse(field: &str, value: impl std::fmt::Display, wanted: &str) -> Error {
    Error::bad_argument(format!("geometry: {field} is {value}; it must be {wanted}"))
}

/// A count or offset that is known to fit: everything is bounded by `PAGE_BYTES_MAX` before.
fn index(value: u64) -> usize {
    usize::try_from(value).expect("bounded by PAGE_BYTES_MAX")
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

/// (offset, bytes) of the head vectors of K and, where there is one, of V.
fn vectors(spec: &Spec) -> Vec<(&'static str, u64, u64)> {
    let element = Header::element_bytes(spec.dtype).expect("checked before");
    let mut vectors = vec![("key_offset", spec.key_offset, u64::from(spec.dim_k) * element)];
    if spec.dim_v > 0 {
        vectors.push(("value_offset", spec.value_offset, u64::from(spec.dim_v) * element));
    }
    vectors
}

/// The last byte of the last vector must lie inside the layer; the first ones do then, too.
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

/// No two vectors may share a byte: a decode would overwrite what it has just written.
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

fn canonical_parts(spec: &Spec) -> Vec<Part> {
    vectors(spec)
        .into_iter()
        .map(|(_, offset, bytes)| Part {
            offset: index(offset),
            outer: Axis {
                count: index(u64::from(spec.heads)),
                stride: stride(spec.heads, spec.head_stride),
            },
            inner: Axis {
                count: index(u64::from(spec.tokens)),
                stride: stride(spec.tokens, spec.token_stride),
            },
            run_bytes: index(bytes),
        })
        .collect()
}

/// The stride of an axis that is walked at all: of a single step it may be any number.
fn stride(count: u32, stride: u64) -> usize {
    if count > 1 { index(stride) } else { 0 }
}
