//! Owns the bindings of a store's durable tier: work that waits for the disk runs on libuv's threads, never on JavaScript's.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use napi::bindgen_prelude::{AsyncTask, Buffer, ToNapiValue, TypeName, Uint8Array};
use napi::{Env, Task};
use napi_derive::napi;
use tierkv_core::disk::{Disk, DiskOptions, Durability};
use tierkv_core::error::{Error, Result};
use tierkv_core::record::PACKED_KEY_BYTES;
use tierkv_core::store::{Flushed, Listed, Listing, RecordKey, Scope, Store, salt_of, tenant_of};

use crate::ffi::{count, hash, number, run};
use crate::store::{STORES, bitmap, keys};
use crate::store_archive::{StoreArchiveOptions, StoreArchiveStats};

/// Options of a durable tier.
#[napi(object)]
pub struct StoreDiskOptions {
    pub data_dir: String,
    pub disk_bytes: f64,
    /// 0 none, 1 group, 2 sync.
    pub durability: u8,
    pub ttl_ms: Option<f64>,
    /// Archive of full segments; null: there is none.
    pub archive: Option<StoreArchiveOptions>,
}

/// Result of a flush: the records removed.
#[napi(object)]
pub struct StoreFlushed {
    pub records: f64,
    /// Memory of the records.
    pub bytes: f64,
    pub disk_bytes: f64,
    /// The records stay away even after a crash.
    pub is_durable: bool,
}

/// Counters and gauges of a durable tier.
#[napi(object)]
pub struct StoreDiskStats {
    pub max_bytes: f64,
    pub used_bytes: f64,
    pub segments: f64,
    pub records: f64,
    pub record_bytes: f64,
    pub durable_records: f64,
    pub durable_bytes: f64,
    pub queued: f64,
    pub queued_bytes: f64,
    pub written: f64,
    pub written_bytes: f64,
    pub file_bytes: f64,
    pub read: f64,
    pub read_bytes: f64,
    pub missed: f64,
    pub skipped: f64,
    /// Namespace of the last record refused because the disk has records of too many.
    pub refused_namespace: Option<Buffer>,
    pub quarantined: f64,
    pub evicted: f64,
    pub moved: f64,
    pub expired: f64,
    pub scrubbed_bytes: f64,
    pub alarms: f64,
    pub syncs_failed: f64,
    pub is_recovering: bool,
    pub is_failing: bool,
    pub trouble: String,
    /// Whether directory and archive have recorded every flush so far; false also while one is carried out.
    pub are_flushes_recorded: bool,
    pub archive: Option<StoreArchiveStats>,
}

impl StoreDiskOptions {
    /// Opens the durable tier behind a RAM tier of `ram_bytes` bytes.
    pub fn open(self, ram_bytes: u64) -> Result<Disk> {
        let durability = match self.durability {
            0 => Durability::None,
            1 => Durability::Group,
            2 => Durability::Sync,
            other => {
                let text =
                    format!("durability is {other}: it must be 0 (none), 1 (group) or 2 (sync)");
                return Err(Error::bad_argument(text));
            }
        };
        let mut options =
            DiskOptions::new(count("diskBytes", self.disk_bytes)?, ram_bytes, durability);
        let ttl = self.ttl_ms.map(|ttl_ms| count("ttlMs", ttl_ms)).transpose()?;
        options.ttl = ttl.map(Duration::from_millis);
        let archive = self.archive.map(StoreArchiveOptions::read).transpose()?;
        Disk::open_archived(Path::new(&self.data_dir), options, archive)
    }
}

impl From<Flushed> for StoreFlushed {
    fn from(flushed: Flushed) -> Self {
        Self {
            records: number(flushed.records),
            bytes: number(flushed.bytes),
            disk_bytes: number(flushed.disk_bytes),
            is_durable: flushed.is_durable,
        }
    }
}

type Work<V> = Box<dyn FnOnce() -> Result<V> + Send>;

/// Work for a thread of libuv, with the JavaScript value it resolves to.
pub struct Background<V, J> {
    work: Option<Work<V>>,
    _ends_in: std::marker::PhantomData<fn() -> J>,
}

impl<V, J> Background<V, J> {
    pub fn start(work: impl FnOnce() -> Result<V> + Send + 'static) -> AsyncTask<Self>
    where
        Self: Task,
    {
        AsyncTask::new(Self { work: Some(Box::new(work)), _ends_in: std::marker::PhantomData })
    }
}

impl<V: Send + 'static, J: From<V> + ToNapiValue + TypeName> Task for Background<V, J> {
    type Output = V;
    type JsValue = J;

    fn compute(&mut self) -> napi::Result<V> {
        let work = self.work.take();
        run(|| work.map_or_else(|| Err(Error::bad_argument("this work was done")), |work| work()))
    }

    fn resolve(&mut self, _env: Env, output: V) -> napi::Result<J> {
        Ok(J::from(output))
    }
}

/// Returns a store and keys of one namespace, for work on another thread.
fn asked(id: u32, namespace: &[u8], packed: &[u8]) -> napi::Result<(Arc<Store>, Vec<RecordKey>)> {
    run(|| Ok((STORES.get(id)?, keys(namespace, packed)?.collect())))
}

/// Returns which records survive a power failure now: a bitmap, least significant bit first.
#[napi]
pub fn store_durable(id: u32, namespace: &[u8], packed: &[u8]) -> napi::Result<Uint8Array> {
    let (store, keys) = asked(id, namespace, packed)?;
    run(|| Ok(bitmap(&store.are_durable(&keys)).into()))
}

/// Checks stored records again in both tiers and removes bad copies; returns an `ItemStatus` number per key.
#[napi(ts_return_type = "Promise<Uint8Array>")]
pub fn store_recheck(
    id: u32,
    namespace: &[u8],
    packed: &[u8],
) -> napi::Result<AsyncTask<Background<Vec<u8>, Uint8Array>>> {
    let (store, keys) = asked(id, namespace, packed)?;
    Ok(Background::start(move || Ok(keys.iter().map(|key| store.recheck(key) as u8).collect())))
}

/// Removes records from both tiers as flush `number`: of a namespace (null: all), a class (1 kv, 2 ssm, 0 both) and a
/// tenant by its peers' name (0: all). Such records made before the flush are refused from now on.
#[napi(
    ts_args_type = "id: number, number: number, namespace: Uint8Array | null, recordClass: number, tenant: number",
    ts_return_type = "Promise<StoreFlushed>"
)]
pub fn store_flush(
    id: u32,
    number: f64,
    namespace: Option<&[u8]>,
    record_class: u8,
    tenant: f64,
) -> napi::Result<AsyncTask<Background<Flushed, StoreFlushed>>> {
    let (store, number, scope) = run(|| {
        let scope = scope(namespace, record_class, tenant)?;
        Ok((STORES.get(id)?, count("number", number)?, scope))
    })?;
    Ok(Background::start(move || Ok(store.flush_as(number, scope))))
}

fn scope(namespace: Option<&[u8]>, record_class: u8, tenant: f64) -> Result<Scope> {
    let namespace = namespace.map(|bytes| hash("namespace", bytes)).transpose()?;
    let record_class = Some(record_class).filter(|class| *class != 0);
    let tenant = Some(count("tenant", tenant)?).filter(|tenant| *tenant != 0);
    // Salts are equal in all accounts, so account 0 stands for all.
    let salt = tenant.map(|tenant| salt_of(tenant_of(0, tenant)));
    Ok(Scope { namespace, record_class, salt })
}

/// Adds a flush of an earlier run; arguments as `storeFlush`.
#[napi(
    ts_args_type = "id: number, number: number, namespace: Uint8Array | null, recordClass: number, tenant: number"
)]
pub fn store_note_flush(
    id: u32,
    number: f64,
    namespace: Option<&[u8]>,
    record_class: u8,
    tenant: f64,
) -> napi::Result<()> {
    run(|| {
        let number = count("number", number)?;
        STORES.get(id)?.note_flush(number, scope(namespace, record_class, tenant)?);
        Ok(())
    })
}

/// Refuses records made before flush `number`, because the earlier flushes are not known.
#[napi]
pub fn store_forget_flushes(id: u32, number: f64) -> napi::Result<()> {
    run(|| {
        STORES.get(id)?.forget_flushes(count("number", number)?);
        Ok(())
    })
}

/// One page of a store's records, in the order of keys.
#[napi(object)]
pub struct StoreListing {
    pub namespace: Buffer,
    /// Rows of 84 bytes: packed key, parent hash (zeros: unknown), number of the block in its prompt (uint32; all ones:
    /// unknown), salt of its tenant (uint32), length (uint64).
    pub rows: Buffer,
    /// Key after which the next page begins; empty: this page is the last.
    pub last: Buffer,
}

impl From<Listing> for StoreListing {
    fn from(Listing { namespace, rows, last }: Listing) -> Self {
        let last = last.map_or_else(Vec::new, |key| {
            let RecordKey { namespace, block_hash, group, shard } = key;
            let place = [group.to_le_bytes(), shard.to_le_bytes()].concat();
            [namespace.as_slice(), &block_hash, &place].concat()
        });
        Self { namespace: namespace.to_vec().into(), rows: rows.into(), last: last.into() }
    }
}

/// Lists records of one class (1 kv, 2 ssm) and one namespace after the last key of an earlier page (empty: from the
/// first). `session`: only records of that session. `hot`: only hot records.
#[napi(ts_return_type = "Promise<StoreListing>")]
pub fn store_list(
    id: u32,
    record_class: u8,
    after: &[u8],
    session: Option<u32>,
    hot: Option<bool>,
) -> napi::Result<AsyncTask<Background<Listing, StoreListing>>> {
    let (store, after) = run(|| {
        let after = match after.split_first_chunk::<32>() {
            None if after.is_empty() => None,
            Some((namespace, packed)) if packed.len() == PACKED_KEY_BYTES => {
                keys(namespace, packed)?.next()
            }
            _ => return Err(Error::bad_argument(format!("after has {} bytes", after.len()))),
        };
        Ok((STORES.get(id)?, after))
    })?;
    let of = match session {
        Some(session) => Listed::Session(session),
        None if hot == Some(true) => Listed::Hot,
        None => Listed::All,
    };
    Ok(Background::start(move || Ok(store.list(record_class, after.as_ref(), of))))
}

/// Writes all queued records, seals their segment and releases the directory; the durable tier accepts no records any more.
#[napi(ts_return_type = "Promise<void>")]
pub fn store_drain(id: u32) -> napi::Result<AsyncTask<Background<(), ()>>> {
    let store = run(|| STORES.get(id))?;
    Ok(Background::start(move || {
        if let Some(disk) = store.disk() {
            disk.close();
        }
        Ok(())
    }))
}

/// Returns the numbers of the durable tier; null if there is none.
#[napi]
pub fn store_disk_stats(id: u32) -> napi::Result<Option<StoreDiskStats>> {
    run(|| {
        let store = STORES.get(id)?;
        let Some(stats) = store.disk().map(Disk::stats) else { return Ok(None) };
        Ok(Some(StoreDiskStats {
            max_bytes: number(stats.max_bytes),
            used_bytes: number(stats.used_bytes),
            segments: number(stats.segments),
            records: number(stats.records),
            record_bytes: number(stats.record_bytes),
            durable_records: number(stats.durable_records),
            durable_bytes: number(stats.durable_bytes),
            queued: number(stats.queued),
            queued_bytes: number(stats.queued_bytes),
            written: number(stats.written),
            written_bytes: number(stats.written_bytes),
            file_bytes: number(stats.file_bytes),
            read: number(stats.read),
            read_bytes: number(stats.read_bytes),
            missed: number(stats.missed),
            skipped: number(stats.skipped),
            refused_namespace: stats.refused_namespace.map(|name| name.to_vec().into()),
            quarantined: number(stats.quarantined),
            evicted: number(stats.evicted),
            moved: number(stats.moved),
            expired: number(stats.expired),
            scrubbed_bytes: number(stats.scrubbed_bytes),
            alarms: number(stats.alarms),
            syncs_failed: number(stats.syncs_failed),
            is_recovering: stats.is_recovering,
            is_failing: stats.is_failing,
            trouble: stats.trouble,
            are_flushes_recorded: stats.are_flushes_recorded,
            archive: stats.archive.map(StoreArchiveStats::from),
        }))
    })
}
