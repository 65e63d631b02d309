//! Owns the bindings of the core's page geometry.

use std::sync::Arc;

use napi_derive::napi;
use tierkv_core::geometry::{self, Spec};

use crate::ffi::{count, run, size};
use crate::ids::Ids;

pub static GEOMETRIES: Ids<Arc<geometry::Geometry>> = Ids::new("geometry");

/// Layout of one KV-cache group in a slot: codes of the record header, offsets and strides in bytes.
#[napi(object)]
pub struct Geometry {
    pub group: u16,
    pub record_class: u8,
    pub layout: u8,
    pub dtype: u8,
    pub tokens: u32,
    pub layers: u32,
    pub heads: u32,
    pub dim_k: u32,
    pub dim_v: u32,
    pub layer_bytes: f64,
    pub key_offset: f64,
    pub value_offset: f64,
    pub head_stride: f64,
    pub token_stride: f64,
}

/// Sizes that follow from a geometry.
#[napi(object)]
pub struct GeometryInfo {
    /// Bytes of the smallest slot that holds a page.
    pub slot_bytes: f64,
    /// Bytes of the decoded block.
    pub source_bytes: f64,
    /// Bytes of the longest record.
    pub record_bytes_max: f64,
}

/// Checks a geometry completely and returns its id.
#[napi]
pub fn register_geometry(geometry: Geometry) -> napi::Result<u32> {
    run(|| {
        let spec = Spec {
            group: geometry.group,
            record_class: geometry.record_class,
            layout: geometry.layout,
            dtype: geometry.dtype,
            tokens: geometry.tokens,
            layers: geometry.layers,
            heads: geometry.heads,
            dim_k: geometry.dim_k,
            dim_v: geometry.dim_v,
            layer_bytes: count("layerBytes", geometry.layer_bytes)?,
            key_offset: count("keyOffset", geometry.key_offset)?,
            value_offset: count("valueOffset", geometry.value_offset)?,
            head_stride: count("headStride", geometry.head_stride)?,
            token_stride: count("tokenStride", geometry.token_stride)?,
        };
        GEOMETRIES.insert(Arc::new(geometry::Geometry::new(spec)?))
    })
}

/// Returns the sizes that follow from a geometry.
#[napi]
pub fn geometry_info(id: u32) -> napi::Result<GeometryInfo> {
    run(|| {
        let geometry = GEOMETRIES.get(id)?;
        Ok(GeometryInfo {
            slot_bytes: size(geometry.slot_bytes()),
            source_bytes: size(geometry.source_bytes()),
            record_bytes_max: size(geometry.record_bytes_max()),
        })
    })
}

/// Forgets a geometry; idempotent.
#[napi]
pub fn drop_geometry(id: u32) -> napi::Result<()> {
    run(|| {
        GEOMETRIES.remove(id);
        Ok(())
    })
}
