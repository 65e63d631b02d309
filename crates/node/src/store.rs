//! Owns the skin over the core's store. Keys come packed, answers go back packed.

use std::sync::Arc;

use napi::Env;
use napi::bindgen_prelude::{AsyncTask, BufferSlice, Float64Array, Uint32Array};
use napi_derive::napi;
use tierkv_core::error::{Error, Result};
use tierkv_core::record::{Hash, PACKED_KEY_BYTES};
use tierkv_core::store::{
    ItemStatus, Offer, Options, Pin, RecordKey, Reservation, Store, tenant_of,
};

use crate::ids::Ids;
use crate::skin::{account_of, count, hash, number, run, size};
use crate::store_disk::{Background, StoreDiskOptions};

pub static STORES: Ids<Arc<Store>> = Ids::new("store");
static RESERVATIONS: Ids<Reservation> = Ids::new("reservation");
pub(crate) static PINS: Ids<Pin> = Ids::new("pin");

/// What a store is made of.
#[napi(object)]
pub struct StoreOptions {
    pub max_bytes: f64,
    pub max_record_bytes: f64,
    /// 1 kv, 2 ssm, 0 both.
    pub record_class: u8,
    /// What each tenant keeps whatever others store; none: tenants are not told apart.
    pub tenant_bytes: Option<f64>,
    /// Where records are kept on disk, too.
    pub disk: Option<StoreDiskOptions>,
}

/// The answer to an offer, one entry per key.
#[napi(object)]
pub struct StoreReservations {
    /// 0: not wanted.
    pub reservations: Uint32Array,
    /// `ItemStatus` numbers.
    pub statuses: napi::bindgen_prelude::Uint8Array,
}

/// How a store is doing.
#[napi(object)]
pub struct StoreStats {
    pub max_bytes: f64,
    pub used_bytes: f64,
    pub reserved_bytes: f64,
    pub spare_bytes: f64,
    pub records: f64,
    pub namespaces: f64,
    pub inserted: f64,
    pub evicted: f64,
    pub evicted_bytes: f64,
    pub quarantined: f64,
}

/// Packed keys of one namespace.
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

/// Makes an empty store.
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
            Some(disk) => {
                let (path, on_disk) = disk.read(max_bytes)?;
                Store::durable(in_memory, &path, on_disk)?
            }
        };
        if let Some(each) = tenant_bytes {
            store.limit_tenants(each, &[]);
        }
        STORES.insert(store)
    })
}

/// Which keys can be fetched: a bitmap, least significant bit first.
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

/// Records that nobody can use as things are go first, with `unused_only` those that nobody has used; how many of these do now and
/// did not before.
#[napi]
pub fn store_demote(
    id: u32,
    namespace: &[u8],
    packed: &[u8],
    unused_only: bool,
) -> napi::Result<u32> {
    run(|| {
        let store = STORES.get(id)?;
        let keys: Vec<RecordKey> = keys(namespace, packed)?.collect();
        Ok(u32::try_from(store.demote(&keys, unused_only)).unwrap_or(u32::MAX))
    })
}

/// Least significant bit first.
pub(crate) fn bitmap(bits: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| {
        bits.iter().enumerate().fold(0, |byte, (index, bit)| byte | u8::from(*bit) << index)
    };
    bits.chunks(8).map(byte).collect()
}

/// Put-if-absent of many keys: reserves room for each wanted record, on the account (below 2^16) of a credential, for the tenant
/// that its holder names (0: none). `known`: the last flush that their maker knew of.
#[napi]
pub fn store_reserve(
    id: u32,
    namespace: &[u8],
    packed: &[u8],
    record_bytes: &[f64],
    account: u32,
    tenant: f64,
    known: f64,
) -> napi::Result<StoreReservations> {
    run(|| {
        let store = STORES.get(id)?;
        let tenant = tenant_of(account_of(account)?, count("tenant", tenant)?);
        let known = count("known", known)?;
        let keys = keys(namespace, packed)?;
        if keys.len() != record_bytes.len() {
            return Err(Error::bad_argument(format!(
                "recordBytes has {} entries for {} keys",
                record_bytes.len(),
                keys.len()
            )));
        }
        let lengths = record_bytes.iter().map(|bytes| count("recordBytes", *bytes));
        let lengths = lengths.collect::<Result<Vec<_>>>()?;
        let mut wanted = Vec::new();
        let mut statuses = Vec::with_capacity(lengths.len());
        for (key, bytes) in keys.zip(lengths) {
            statuses.push(match store.reserve_since(known, tenant, key, bytes) {
                Offer::Wanted(reservation) => {
                    wanted.push(reservation);
                    ItemStatus::Unspecified as u8
                }
                Offer::Refused(status) => status as u8,
            });
        }
        let mut ids = RESERVATIONS.insert_all(wanted)?.into_iter();
        let is_wanted = |status: &u8| *status == ItemStatus::Unspecified as u8;
        let id = |status| if is_wanted(status) { ids.next().unwrap_or(0) } else { 0 };
        let reservations: Vec<u32> = statuses.iter().map(id).collect();
        Ok(StoreReservations { reservations: reservations.into(), statuses: statuses.into() })
    })
}

/// Takes the next piece of a reserved record; true when it is complete.
#[napi]
pub fn store_write(reservation_id: u32, offset: f64, data: &[u8]) -> napi::Result<bool> {
    run(|| {
        let offset = count("offset", offset)?;
        RESERVATIONS.with(reservation_id, |reservation| reservation.write(offset, data))
    })
}

/// Checks the record whole; returns its `ItemStatus` number. The reservation is gone afterwards.
#[napi]
pub fn store_commit(reservation_id: u32) -> napi::Result<u32> {
    run(|| Ok(RESERVATIONS.take(reservation_id)?.commit() as u32))
}

/// Gives the reservation back; idempotent.
#[napi]
pub fn store_abort(reservation_id: u32) -> napi::Result<()> {
    run(|| {
        RESERVATIONS.remove(reservation_id);
        Ok(())
    })
}

/// Pins records that are in memory; per key: pin id (0 = not there), record length.
#[napi]
pub fn store_pin(id: u32, namespace: &[u8], packed: &[u8]) -> napi::Result<Float64Array> {
    run(|| {
        let store = STORES.get(id)?;
        let pins = keys(namespace, packed)?.map(|key| store.pin_resident(&key)).collect();
        Ok(pin_pairs(pins)?.into())
    })
}

/// Gives pins their ids; per pin: id (0 = none), record length.
pub(crate) fn pin_pairs(pins: Vec<Option<Pin>>) -> Result<Vec<f64>> {
    let lengths: Vec<usize> =
        pins.iter().map(|pin| pin.as_deref().map_or(0, <[u8]>::len)).collect();
    let mut ids = PINS.insert_all(pins.into_iter().flatten().collect())?.into_iter();
    let mut id = |length| if length > 0 { ids.next().unwrap_or(0) } else { 0 };
    Ok(lengths.into_iter().flat_map(|length| [f64::from(id(length)), size(length)]).collect())
}

/// A part of a pinned record, without a copy (unless very many are out). Its bytes stay, also after `unpin`.
#[napi]
pub fn pin_slice(
    env: &Env,
    pin_id: u32,
    offset: f64,
    length: f64,
) -> napi::Result<BufferSlice<'_>> {
    let (pin, range) = run(|| {
        let pin = PINS.get(pin_id)?;
        let start = count("offset", offset)?;
        let end = start + count("length", length)?;
        if end > pin.len() as u64 {
            let text = format!("{start}..{end} of a record of {} bytes", pin.len());
            return Err(Error::bad_argument(text));
        }
        let index = |at| usize::try_from(at).expect("within a record in memory");
        Ok((pin, index(start)..index(end)))
    })?;
    let Some(view) = pin.view(range.clone()) else {
        return BufferSlice::copy_from(env, &pin[range]);
    };
    let (start, bytes) = (view.as_ptr().cast_mut(), view.len());
    // SAFETY: the memory lives as long as `view`, which the finalizer owns; a stored record is never written.
    unsafe { BufferSlice::from_external(env, start, bytes, view, |_env, view| drop(view)) }
}

/// Ends a pin; idempotent.
#[napi]
pub fn unpin(pin_id: u32) -> napi::Result<()> {
    run(|| {
        PINS.remove(pin_id);
        Ok(())
    })
}

/// Its numbers now.
#[napi]
pub fn store_stats(id: u32) -> napi::Result<StoreStats> {
    run(|| {
        let stats = STORES.get(id)?.stats();
        Ok(StoreStats {
            max_bytes: number(stats.max_bytes),
            used_bytes: number(stats.used_bytes),
            reserved_bytes: number(stats.reserved_bytes),
            spare_bytes: number(stats.spare_bytes),
            records: number(stats.records),
            namespaces: number(stats.namespaces),
            inserted: number(stats.inserted),
            evicted: number(stats.evicted),
            evicted_bytes: number(stats.evicted_bytes),
            quarantined: number(stats.quarantined),
        })
    })
}

/// Gives the system the memory that no record needed since the last time.
#[napi(ts_return_type = "Promise<void>")]
pub fn store_trim(id: u32) -> napi::Result<AsyncTask<Background<(), ()>>> {
    let store = run(|| STORES.get(id))?;
    Ok(Background::start(move || {
        store.trim();
        Ok(())
    }))
}

/// Closes a store; idempotent. Pinned memory goes with its last pin.
#[napi]
pub fn close_store(id: u32) -> napi::Result<()> {
    run(|| {
        STORES.remove(id);
        Ok(())
    })
}
