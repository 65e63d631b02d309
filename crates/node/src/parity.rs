//! Owns the bindings of the core's parity records: stripes by id, and members rebuilt into slots.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use napi::bindgen_prelude::{AsyncTask, BufferSlice, Float64Array, Uint8Array};
use napi_derive::napi;
use tierkv_core::error::{Error, Result};
use tierkv_core::inbox::Wanted;
use tierkv_core::lane::client::{Content, Target, Targets};
use tierkv_core::limits::{PARITY_BYTES_MAX, POOL_IDLE_BYTES_MAX};
use tierkv_core::parity::{Place, Stripe, rebuild};
use tierkv_core::pool::Pool;
use tierkv_core::record::{self, HASH_BYTES, HEADER_BYTES};
use tierkv_core::store::ItemStatus;

use crate::ffi::{count, hash, run, size};
use crate::ids::Ids;
use crate::inbox::INBOX;
use crate::lane_client::targets;
use crate::outbox::{OUTBOX, RECORDS};
use crate::seal::current;
use crate::store_disk::Background;

static POOL: LazyLock<Arc<Pool>> =
    LazyLock::new(|| Pool::new("parity", PARITY_BYTES_MAX, POOL_IDLE_BYTES_MAX));
static STRIPES: Ids<Shared> = Ids::new("stripe");

type Shared = Arc<Mutex<Stripe>>;

/// Fields of a parity record that do not follow from its members.
#[napi(object)]
pub struct ParityPlace<'env> {
    pub fidelity: u8,
    pub group: u16,
    pub shard: u16,
    pub shard_count: u16,
    pub tokens: u32,
    pub end_tokens: f64,
    pub namespace: BufferSlice<'env>,
    pub block_hash: BufferSlice<'env>,
    pub anchor: BufferSlice<'env>,
}

/// Opens a stripe of `width` records; returns its id.
#[napi]
pub fn parity_open(width: u32) -> napi::Result<u32> {
    run(|| STRIPES.insert(Arc::new(Mutex::new(Stripe::new(&POOL, width as usize)?))))
}

/// Adds outbox records to stripes: triples of stripe, place and record. Returns for each record its stripe's memory in
/// bytes; 0 if it was not added.
#[napi(ts_return_type = "Promise<Float64Array>")]
pub fn parity_add(triples: &[u32]) -> AsyncTask<Background<Vec<f64>, Float64Array>> {
    let (triples, _) = triples.as_chunks::<3>();
    let work: Vec<_> = triples
        .iter()
        .map(|[stripe, place, record]| {
            Some((STRIPES.get(*stripe).ok()?, *place as usize, RECORDS.get(*record).ok()?))
        })
        .collect();
    Background::start(move || {
        let added =
            |(stripe, place, record): (Shared, usize, Content)| add(&stripe, place, &record);
        let sizes = work.into_iter().map(|item| item.map_or(Ok(0), added).map_or(0.0, size));
        Ok(sizes.collect())
    })
}

fn add(stripe: &Mutex<Stripe>, place: usize, record: &Content) -> Result<usize> {
    let record = record.make()?;
    let mut stripe = stripe.lock().unwrap_or_else(PoisonError::into_inner);
    stripe.add(place, record.bytes())?;
    Ok(stripe.bytes())
}

/// Makes the parity record of a complete stripe, sealed if records are sealed, and closes the stripe. Returns outbox id and length.
#[napi(ts_return_type = "Promise<Float64Array>")]
pub fn parity_make(
    stripe_id: u32,
    place: ParityPlace<'_>,
) -> napi::Result<AsyncTask<Background<Vec<f64>, Float64Array>>> {
    let (stripe, place) = run(|| {
        let stripe = STRIPES.remove(stripe_id);
        let stripe = stripe.ok_or_else(|| Error::bad_argument("the stripe is closed"))?;
        let place = Place {
            fidelity: place.fidelity,
            group: place.group,
            shard: place.shard,
            shard_count: place.shard_count,
            tokens: place.tokens,
            end_tokens: count("endTokens", place.end_tokens)?,
            namespace: hash("namespace", &place.namespace)?,
            block_hash: hash("blockHash", &place.block_hash)?,
            anchor: hash("anchor", &place.anchor)?,
        };
        Ok((stripe, place))
    })?;
    Ok(Background::start(move || {
        let plain = stripe.lock().unwrap_or_else(PoisonError::into_inner).record(&place)?;
        let record = OUTBOX.put(&plain)?;
        let bytes = record.len();
        let id = RECORDS.insert(Content::Made(Arc::new(record)))?;
        Ok(vec![f64::from(id), size(bytes)])
    }))
}

/// Drops a stripe. Idempotent.
#[napi]
pub fn parity_close(stripe_id: u32) -> napi::Result<()> {
    run(|| {
        STRIPES.remove(stripe_id);
        Ok(())
    })
}

/// Rebuilds records from the others of their stripes, verifies them and decodes them into leased slots. Keys, geometries
/// and leases as for `lanesFetch`. `parts`: for each key `width` outbox records, the parity record first; 0: absent. Per
/// key an `ItemStatus` number: 1 (accepted), or 3 (missing) if the record cannot be rebuilt.
#[napi(ts_return_type = "Promise<Uint8Array>")]
pub fn parity_rebuild(
    arena_id: u32,
    fidelity: u8,
    namespace: &[u8],
    packed: &[u8],
    geometries: &[u32],
    leases: &[u32],
    parts: &[u32],
    width: u32,
) -> napi::Result<AsyncTask<Background<Vec<u8>, Uint8Array>>> {
    let (targets, parts) = run(|| {
        let targets = targets(arena_id, fidelity, namespace, packed, geometries, leases)?;
        let width = width as usize;
        if width < 2 || parts.len() != targets.items.len() * width {
            let text = format!("{} records for {} keys", parts.len(), targets.items.len());
            return Err(Error::bad_argument(text));
        }
        let parts = parts.chunks(width).map(|ids| ids.iter().map(|id| RECORDS.get(*id)).collect());
        Ok((targets, parts.collect::<Vec<Result<Vec<Content>>>>()))
    })?;
    Ok(Background::start(move || {
        let landed = targets.items.iter().zip(parts).map(|(item, parts)| {
            match parts.and_then(|parts| land(&targets, item, &parts)) {
                Ok(()) => ItemStatus::Accepted as u8,
                Err(_) => ItemStatus::Missing as u8,
            }
        });
        Ok(landed.collect())
    }))
}

fn land(targets: &Targets, item: &Target, parts: &[Content]) -> Result<()> {
    let parts: Vec<_> = parts.iter().map(Content::make).collect::<Result<_>>()?;
    let (parity, others) = parts.split_first().expect("a width of two at least");
    let others: Vec<&[u8]> = others.iter().map(|other| other.bytes()).collect();
    let mut wanted = [0; HASH_BYTES];
    wanted.copy_from_slice(&item.packed_key[..HASH_BYTES]);
    let parity = parity.bytes();
    record::parse(parity)?;
    let record = match current() {
        None => rebuild(&POOL, &parity[HEADER_BYTES..], &others, &wanted)?,
        Some(keys) => {
            let mut copy = parity[HEADER_BYTES..].to_vec();
            let (_, place) = keys.open(&parity[..HEADER_BYTES], &mut copy)?;
            rebuild(&POOL, &copy[place], &others, &wanted)?
        }
    };
    let wanted = Wanted {
        fidelity: targets.fidelity,
        namespace: targets.namespace,
        packed_key: item.packed_key,
    };
    let bytes = record.len() as u64;
    let reassembly = INBOX.begin(&targets.arena, item.lease, &item.geometry, wanted, bytes)?;
    Arc::new(reassembly).take_standing(&record).map(|_| ())
}
