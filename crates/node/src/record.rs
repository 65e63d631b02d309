//! Owns the bindings of the core's record.

use napi::Env;
use napi::bindgen_prelude::BufferSlice;
use napi_derive::napi;
use tierkv_core::crc32c as checksum;
use tierkv_core::error::Result;
use tierkv_core::record::Header;

use crate::ffi::{count, hash, run};

/// A record's header; docs/protocol.md, section 1, explains the fields.
#[napi(object)]
pub struct RecordHeader<'env> {
    pub codec: u8,
    pub record_class: u8,
    pub fidelity: u8,
    pub layout: u8,
    pub group: u16,
    pub shard: u16,
    pub shard_count: u16,
    pub dtype: u8,
    pub parts: u8,
    pub tokens: u32,
    pub layers: u32,
    pub heads: u32,
    pub dim_k: u32,
    pub dim_v: u32,
    pub end_tokens: f64,
    pub payload_bytes: f64,
    pub source_bytes: f64,
    pub namespace: BufferSlice<'env>,
    pub block_hash: BufferSlice<'env>,
    pub parent_hash: BufferSlice<'env>,
}

impl RecordHeader<'_> {
    fn to_core(&self) -> Result<Header> {
        Ok(Header {
            codec: self.codec,
            record_class: self.record_class,
            fidelity: self.fidelity,
            layout: self.layout,
            group: self.group,
            shard: self.shard,
            shard_count: self.shard_count,
            dtype: self.dtype,
            parts: self.parts,
            tokens: self.tokens,
            layers: self.layers,
            heads: self.heads,
            dim_k: self.dim_k,
            dim_v: self.dim_v,
            end_tokens: count("endTokens", self.end_tokens)?,
            payload_bytes: count("payloadBytes", self.payload_bytes)?,
            source_bytes: count("sourceBytes", self.source_bytes)?,
            namespace: hash("namespace", &self.namespace)?,
            block_hash: hash("blockHash", &self.block_hash)?,
            parent_hash: hash("parentHash", &self.parent_hash)?,
        })
    }
}

/// Makes a record with any header, valid or not, and right checksums.
#[napi]
pub fn write_record<'env>(
    env: &'env Env,
    header: RecordHeader<'env>,
    payload: &[u8],
) -> napi::Result<BufferSlice<'env>> {
    let header = run(|| header.to_core())?;
    let head = header.encode(checksum::checksum(payload));
    BufferSlice::from_data(env, [&head, payload].concat())
}
