//! Owns the groups of an int8 payload: K or V of one head in one layer, and where its parts lie in the payload.

use std::ops::Range;

use super::kernels::{Rows, Scale};
use super::scale;
use crate::codec_id::{Codec, Form, MEAN_TOKENS, SCALE_BYTES};
use crate::geometry::Geometry;

/// `tokens` head vectors of `dim` elements, `stride` bytes apart.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    pub page_at: usize,
    payload_at: usize,
    tokens: usize,
    stride: usize,
    dim: usize,
    /// Number of means: one per `MEAN_TOKENS` tokens of K in codec 4, else none.
    means: usize,
    /// Bytes of the first vector where it is kept exact, else 0.
    exact_bytes: usize,
}

/// The means of a group: a scale and `dim` codes each.
#[derive(Debug)]
pub struct Means<'a> {
    pub scales: &'a [Scale],
    pub codes: &'a [u8],
}

/// The parts of a group's payload, in their order.
#[derive(Debug)]
pub struct Parts<'a> {
    pub means: Means<'a>,
    pub scales: &'a [Scale],
    pub codes: &'a [u8],
    /// The first vector as it is; empty where it is coded.
    pub exact: &'a [u8],
}

/// As `Means`, to be written.
#[derive(Debug)]
pub struct MeansMut<'a> {
    pub scales: &'a mut [Scale],
    pub codes: &'a mut [u8],
}

/// As `Parts`, to be written.
#[derive(Debug)]
pub struct PartsMut<'a> {
    pub means: MeansMut<'a>,
    pub scales: &'a mut [Scale],
    pub codes: &'a mut [u8],
    pub exact: &'a mut [u8],
}

impl Group {
    /// Payload range of all its parts.
    pub fn payload(&self) -> Range<usize> {
        let vectors = (self.means + self.tokens) * (SCALE_BYTES + self.dim);
        self.payload_at..self.payload_at + vectors + self.exact_bytes
    }

    pub fn rows(&self) -> Rows {
        Rows { stride: self.stride, dim: self.dim }
    }

    /// Lengths of mean scales, mean codes, scales and codes.
    fn lengths(&self) -> [usize; 4] {
        let of = |vectors: usize| [vectors * SCALE_BYTES, vectors * self.dim];
        let ([a, b], [c, d]) = (of(self.means), of(self.tokens));
        [a, b, c, d]
    }

    /// Splits the group's payload.
    pub fn split<'a>(&self, payload: &'a [u8]) -> Parts<'a> {
        let [mean_scales, mean_codes, scales, codes] = self.lengths();
        let (mean_scales, rest) = payload.split_at(mean_scales);
        let (mean_codes, rest) = rest.split_at(mean_codes);
        let (scales, rest) = rest.split_at(scales);
        let (codes, exact) = rest.split_at(codes);
        let means = Means { scales: mean_scales.as_chunks().0, codes: mean_codes };
        Parts { means, scales: scales.as_chunks().0, codes, exact }
    }

    /// As `split`.
    pub fn split_mut<'a>(&self, payload: &'a mut [u8]) -> PartsMut<'a> {
        let [mean_scales, mean_codes, scales, codes] = self.lengths();
        let (mean_scales, rest) = payload.split_at_mut(mean_scales);
        let (mean_codes, rest) = rest.split_at_mut(mean_codes);
        let (scales, rest) = rest.split_at_mut(scales);
        let (codes, exact) = rest.split_at_mut(codes);
        let means = MeansMut { scales: mean_scales.as_chunks_mut().0, codes: mean_codes };
        PartsMut { means, scales: scales.as_chunks_mut().0, codes, exact }
    }
}

/// All groups of a page, in canonical order: layer, part, head.
pub fn groups(geometry: &Geometry, form: Form) -> impl Iterator<Item = Group> {
    groups_from(geometry, form, 0)
}

/// The groups that start at `payload_at` or later; earlier layers are not walked.
pub fn groups_from(
    geometry: &Geometry,
    form: Form,
    payload_at: usize,
) -> impl Iterator<Item = Group> {
    let element_bytes = scale::element_bytes(geometry.spec().dtype);
    let layer_bytes = layer_payload_bytes(geometry, form);
    let layer = payload_at / layer_bytes;
    let groups = geometry.heads_from(layer).scan(layer * layer_bytes, move |end, head| {
        let has_mean = form.codec() == Codec::Int8MeanHad && head.is_key;
        let group = Group {
            page_at: head.offset,
            payload_at: *end,
            tokens: head.tokens,
            stride: head.token_stride,
            dim: head.vector_bytes / element_bytes,
            means: if has_mean { head.tokens.div_ceil(MEAN_TOKENS) } else { 0 },
            exact_bytes: if form.is_first() { head.vector_bytes } else { 0 },
        };
        *end = group.payload().end;
        Some(group)
    });
    groups.skip_while(move |group| group.payload_at < payload_at)
}

/// Payload bytes of one layer; all layers are alike.
pub fn layer_payload_bytes(geometry: &Geometry, form: Form) -> usize {
    let bytes = geometry.payload_bytes(form).unwrap_or_default();
    (bytes / geometry.spec().layers as usize).max(1)
}
