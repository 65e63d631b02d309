//! Owns the bindings of the core's store. Keys are passed packed, answers returned packed.

use std::sync::Arc;

use napi::Env;
use napi::bindgen_prelude::{AsyncTask, BufferSlice};
use napi_derive::napi;
use tierkv_core::error::{Error, Result};
use tierkv_core::record::{Hash, PACKED_KEY_BYTES};
use tierkv_core::store::{Options, RecordKey, Store};

use crate::ffi::{count, hash, number, run};
use crate::ids::Ids;
use crate::store_disk::{Background, StoreDiskOptions};

pub static STORES: Ids<Arc<Store>> = Ids::new("store");

/// Options of a store.
#[napi(object)]
pub struct StoreOptions {
    pub max_bytes: f64,
    pub max_record_bytes: f64,
    /// 1 kv, 2 ssm, 0 both.
    pub record_class: u8,
    /// Bytes each tenant keeps whatever others store; null: tenants are not told apart.
    pub tenant_bytes: Option<f64>,
    /// Most bytes of records that sessions keep; null: no record is kept.
    pub session_bytes: Option<f64>,
    /// Options of the disk tier; null: records are in memory only.
    pub disk: Option<StoreDiskOptions>,
}

/// Counters and gauges of a store.
#[napi(object)]
pub struct StoreStats {
    pub max_bytes: f64,
    pub used_bytes: f64,
    pub reserved_bytes: f64,
    pub spare_bytes: f64,
    pub kept_bytes: f64,
    pub records: f64,
    pub namespaces: f64,
    pub evicted: f64,
    pub evicted_bytes: f64,
    pub quarantined: f64,
}

/// Splits packed keys of one namespace.
pub(crate) fn keys(
    namespace: &[u8],
    packed: &[u8],
) -> Result<impl ExactSizeIterator<Item = RecordKey>> {
    let namespace: Hash = hash("namespace", namespace)?;
    let (keys, rest) = packed.as_chunks::<PACKED_KEY_BYTES>();
    if !rest.is_empty() {
        return Err(Error::bad_argument(format!(
            "keys has {} bytes: it must be a multiple of {PACKED_KEY_BYTES}",
            packed.len()
        )));
    }
    Ok(keys.iter().map(move |key| RecordKey::from_packed(namespace, key)))
}

/// Makes a store, empty or with the records of its disk.
#[napi]
pub fn create_store(options: StoreOptions) -> napi::Result<u32> {
    run(|| {
        let max_bytes = count("maxBytes", options.max_bytes)?;
        let max_record_bytes = count("maxRecordBytes", options.max_record_bytes)?;
        let in_memory = Options { max_bytes, max_record_bytes, record_class: options.record_class };
        let tenant_bytes =
            options.tenant_bytes.map(|bytes| count("tenantBytes", bytes)).transpose()?;
        let store = match options.disk {
            None => Arc::new(Store::new(in_memory)?),
            Some(disk) => Store::on_disk(in_memory, disk.open(max_bytes)?)?,
        };
        if let Some(each) = tenant_bytes {
            store.limit_tenants(each, &[]);
        }
        if let Some(bytes) = options.session_bytes {
            store.limit_sessions(count("sessionBytes", bytes)?);
        }
        STORES.insert(store)
    })
}

/// Returns which keys can be fetched: a bitmap, least significant bit first.
#[napi]
pub fn store_lookup<'env>(
    env: &'env Env,
    id: u32,
    namespace: &[u8],
    packed: &[u8],
) -> napi::Result<BufferSlice<'env>> {
    let bitmap = run(|| {
        let store = STORES.get(id)?;
        let keys: Vec<RecordKey> = keys(namespace, packed)?.collect();
        Ok(bitmap(&store.contains_all(&keys)))
    })?;
    BufferSlice::copy_from(env, bitmap)
}

/// Refuses new records from now on, or accepts them again; stored records can be fetched all the time.
#[napi]
pub fn store_drain_away(id: u32, is_draining: bool) -> napi::Result<()> {
    run(|| {
        STORES.get(id)?.drain(is_draining);
        Ok(())
    })
}

/// Packs bits into bytes, least significant bit first.
pub(crate) fn bitmap(bits: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| {
        bits.iter().enumerate().fold(0, |byte, (index, bit)| byte | u8::from(*bit) << index)
    };
    bits.chunks(8).map(byte).collect()
}

/// Returns the store's current numbers.
#[napi]
pub fn store_stats(id: u32) -> napi::Result<StoreStats> {
    run(|| {
        let stats = STORES.get(id)?.stats();
        Ok(StoreStats {
            max_bytes: number(stats.max_bytes),
            used_bytes: number(stats.used_bytes),
            reserved_bytes: number(stats.reserved_bytes),
            spare_bytes: number(stats.spare_bytes),
            kept_bytes: number(stats.kept_bytes),
            records: number(stats.records),
            namespaces: number(stats.namespaces),
            evicted: number(stats.evicted),
            evicted_bytes: number(stats.evicted_bytes),
            quarantined: number(stats.quarantined),
        })
    })
}

/// Gives memory back to the system that no record has needed since the last call.
#[napi(ts_return_type = "Promise<void>")]
pub fn store_trim(id: u32) -> napi::Result<AsyncTask<Background<(), ()>>> {
    let store = run(|| STORES.get(id))?;
    Ok(Background::start(move || {
        store.trim();
        Ok(())
    }))
}

/// Closes a store; idempotent. Pinned memory is freed with its last pin.
#[napi]
pub fn close_store(id: u32) -> napi::Result<()> {
    run(|| {
        STORES.remove(id);
        Ok(())
    })
}
