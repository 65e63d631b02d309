//! Owns the shape of an engine's page: checked once at registration, then walked in runs without checks.

mod spec;

use std::ops::Range;

pub use self::spec::Spec;
use self::spec::{check, vectors};

use crate::codec_id::{Block, Codec, Form};
use crate::error::Result;
use crate::header::{HEADER_BYTES, Header, LAYOUT_OPAQUE};
use crate::limits::SLOT_ALIGN_BYTES;

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
    /// Merges adjacent runs, so that a contiguous page is copied in long pieces.
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
    /// Offset of the first head vector in the page.
    pub offset: usize,
    pub tokens: usize,
    pub token_stride: usize,
    /// Bytes of one head vector.
    pub vector_bytes: usize,
    /// K, or the single part of a latent cache; otherwise V.
    pub is_key: bool,
}

/// A page shape whose runs all lie inside the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    spec: Spec,
    /// Head vectors as laid out; none in an opaque page.
    vectors: Vec<Part>,
    /// The same bytes in runs as long as possible.
    parts: Vec<Part>,
    layer_bytes: usize,
    page_bytes: usize,
    source_bytes: usize,
    /// Whether the page equals its canonical form, byte for byte.
    is_canonical: bool,
}

impl Geometry {
    /// Checks all of `spec`, so that encode and decode need no checks.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the field, its value and what it must be.
    pub fn new(spec: Spec) -> Result<Self> {
        let page_bytes = check(&spec)?;
        let (vectors, parts) = if spec.layout == LAYOUT_OPAQUE {
            let once = Axis { count: 1, stride: 0 };
            let run_bytes = index(spec.layer_bytes);
            (Vec::new(), vec![Part { offset: 0, outer: once, inner: once, run_bytes }])
        } else {
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

    /// Whether the page equals the payload of a raw record, byte for byte.
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

    /// Length of a payload of this geometry, the longest where lengths vary; `None` where the codec does not take such a
    /// block.
    #[must_use]
    pub fn payload_bytes(&self, form: impl Into<Form>) -> Option<usize> {
        form.into().payload_bytes(&self.block()).map(index)
    }

    /// Whether a payload of this geometry can have this length.
    #[must_use]
    pub fn has_payload_of(&self, form: impl Into<Form>, bytes: usize) -> bool {
        form.into().has_payload_of(&self.block(), bytes as u64)
    }

    /// The form whose payloads of this geometry have this length, in a namespace of this fidelity.
    #[must_use]
    pub fn form_of_length(&self, fidelity: u8, bytes: usize) -> Option<Form> {
        Form::of_length(&self.block(), fidelity, bytes as u64)
    }

    fn block(&self) -> Block {
        let spec = &self.spec;
        Block {
            record_class: spec.record_class,
            dtype: spec.dtype,
            source_bytes: self.source_bytes as u64,
            heads: u64::from(spec.layers) * u64::from(spec.heads),
            parts: u64::from(self.part_count()),
            tokens: u64::from(spec.tokens),
            dim_k: u64::from(spec.dim_k),
        }
    }

    /// Length of the longest record of this geometry with any codec.
    #[must_use]
    pub fn record_bytes_max(&self) -> usize {
        let forms = Codec::ALL.into_iter().map(|codec| codec.form(true));
        let payloads = forms.filter_map(|form| self.payload_bytes(form));
        HEADER_BYTES + payloads.max().unwrap_or(self.source_bytes)
    }

    /// Number of K/V parts in a record; 0 for an opaque page.
    #[must_use]
    pub fn part_count(&self) -> u8 {
        match (self.spec.layout, self.spec.dim_v) {
            (LAYOUT_OPAQUE, _) => 0,
            (_, 0) => 1,
            _ => 2,
        }
    }

    /// First field of `header` that differs from this geometry.
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

    /// Each head's K or V in canonical order: layer, part, head; none in an opaque page.
    pub(crate) fn heads(&self) -> impl Iterator<Item = HeadRows> {
        self.heads_from(0)
    }

    /// Like `heads`, from layer number `layer` on.
    pub(crate) fn heads_from(&self, layer: usize) -> impl Iterator<Item = HeadRows> {
        let layers = (layer * self.layer_bytes..self.page_bytes).step_by(self.layer_bytes);
        let parts = |layer| self.vectors.iter().enumerate().map(move |part| (layer, part));
        layers.flat_map(parts).flat_map(|(layer, (number, part))| {
            (0..part.outer.count).map(move |head| HeadRows {
                is_key: number == 0,
                offset: layer + part.offset + head * part.outer.stride,
                tokens: part.inner.count,
                token_stride: part.inner.stride,
                vector_bytes: part.run_bytes,
            })
        })
    }

    /// Visits each run (offset in the page, bytes) in canonical order: layer, part, head, token.
    pub(crate) fn for_each_run(&self, visit: impl FnMut(usize, usize)) {
        self.for_each_run_of(0..self.spec.layers as usize, visit);
    }

    /// Like `for_each_run`, for some of the layers.
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

/// Converts a count or offset that is bounded by `PAGE_BYTES_MAX`.
fn index(value: u64) -> usize {
    usize::try_from(value).expect("bounded by PAGE_BYTES_MAX")
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

/// Stride of an axis; 0 for a single step, whose stride is never used and may be any number.
fn stride(count: u32, stride: u64) -> usize {
    if count > 1 { index(stride) } else { 0 }
}
