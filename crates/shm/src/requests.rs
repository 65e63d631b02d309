//! Owns the requests to a desk: what each asks of a region, how it is carried out, and its answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tierkv_core::error::{Code, Result};
use tierkv_core::header::PACKED_KEY_BYTES;
use tierkv_core::key::RecordKey;
use tierkv_core::lane::client::{Kept, Outgoing, Targets};
use tierkv_core::record::Hash;
use tierkv_core::store::ItemStatus;

use crate::flushes::{Label, News, Scope};
use crate::mapping::Mapping;
use crate::moves;
use crate::region::{Fill, Pins, Region};

/// A request.
pub enum Work {
    /// Says which of these packed keys can be read now.
    LookUp(Hash, Vec<[u8; PACKED_KEY_BYTES]>),
    /// Fetches records into slots.
    Fetch(Targets),
    /// Fetches records and keeps them as records.
    Take(Kept),
    /// Stores records of slots, put-if-absent.
    Store(Label, Hash, Vec<Outgoing>),
    /// Checks records that a caller could not use.
    Check(Vec<RecordKey>),
    /// Flushes the records of a scope, optionally only of a model's namespaces.
    Flush(Scope, Option<Hash>),
    /// Notes the model of a namespace.
    Name(Hash, Hash),
    /// Lists the flushes after a number.
    News(u64),
    /// Measures how full the region is.
    Fill,
}

/// Result of a request.
#[derive(Debug)]
pub enum Answer {
    /// Bitmap over the keys.
    Found(Vec<u8>),
    /// An `ItemStatus` number per item, the bytes moved, and why the first bad record was refused.
    Done(Vec<u8>, u64, Option<String>),
    /// Records and bytes removed.
    Flushed(u64, u64),
    /// Flushes.
    News(News),
    /// Fill of the region.
    Fill(Fill),
}

/// Outcome of a request, with the number of the last flush at that time.
pub type Outcome = Result<(Answer, u64)>;

/// Progress of a request, and whether it is to end early.
#[derive(Default)]
pub(crate) struct Open {
    pub is_cancelled: AtomicBool,
    /// Bytes moved so far.
    pub bytes: AtomicU64,
}

/// A request that is being carried out.
pub(crate) struct Request<'a> {
    pub region: &'a Region<Mapping>,
    pub open: &'a Open,
}

impl Request<'_> {
    /// Carries a request out.
    pub fn run(&self, work: Work) -> Outcome {
        let region = self.region;
        let answer = match work {
            Work::LookUp(namespace, packed) => return self.look_up(namespace, &packed),
            Work::Fetch(targets) => return self.fetch(&targets),
            Work::Take(kept) => return self.take(&kept),
            Work::Store(label, namespace, records) => self.store(label, namespace, &records)?,
            Work::Check(keys) => Answer::Done(moves::check_each(region, &keys)?, 0, None),
            Work::Flush(scope, model) => return self.flush(&scope, model.as_ref()),
            Work::News(known) => {
                let news = region.news(known)?;
                let number = news.number;
                return Ok((Answer::News(news), number));
            }
            Work::Name(namespace, model) => {
                region.name(&namespace, &model)?;
                Answer::Done(Vec::new(), 0, None)
            }
            Work::Fill => {
                let fill = region.fill()?;
                return Ok((Answer::Fill(fill), fill.flush));
            }
        };
        Ok((answer, region.last_flush()?))
    }

    fn look_up(&self, namespace: Hash, packed: &[[u8; PACKED_KEY_BYTES]]) -> Outcome {
        let (found, number) = self.region.look_up_at_flush(unpacked(namespace, packed))?;
        Ok((Answer::Found(bitmap(&found)), number))
    }

    fn flush(&self, scope: &Scope, model: Option<&Hash>) -> Outcome {
        let (number, records, bytes) = match model {
            Some(model) => self.region.flush_model(scope, model)?,
            None => self.region.flush(scope)?,
        };
        Ok((Answer::Flushed(records, bytes), number))
    }

    fn fetch(&self, targets: &Targets) -> Outcome {
        let packed = targets.items.iter().map(|target| &target.packed_key);
        let pins = self.pins(targets.namespace, packed)?;
        let items: Vec<_> = targets.items.iter().zip(pins.records()).collect();
        let answer = bring(&items, self.open, |(target, pinned)| {
            pinned.as_ref().map(|pinned| moves::fetch(pinned, targets, target)).transpose()
        })?;
        Ok((answer, pins.release()?))
    }

    fn take(&self, kept: &Kept) -> Outcome {
        let pins = self.pins(kept.namespace, kept.keys.iter())?;
        let items: Vec<_> = kept.keys.iter().zip(pins.records()).enumerate().collect();
        let answer = bring(&items, self.open, |(at, (key, pinned))| {
            let Some(pinned) = pinned else { return Ok(None) };
            moves::take(pinned, kept, *at, key)
        })?;
        Ok((answer, pins.release()?))
    }

    fn pins<'a>(
        &self,
        namespace: Hash,
        packed: impl Iterator<Item = &'a [u8; PACKED_KEY_BYTES]>,
    ) -> Result<Pins<'_, Mapping>> {
        self.region.pin_each(packed.map(|packed| RecordKey::from_packed(namespace, packed)))
    }

    fn store(&self, label: Label, namespace: Hash, records: &[Outgoing]) -> Result<Answer> {
        let statuses = each(records, self.open, |Outgoing { packed_key, content }| {
            let key = RecordKey::from_packed(namespace, packed_key);
            match moves::store(self.region, &key, content, label) {
                Err(error) if error.code == Code::ArenaFailed => Err(error),
                // The slot of a deferred record was released.
                Err(_) => Ok((ItemStatus::Incomplete, 0)),
                stored => stored,
            }
        })?;
        Ok(Answer::Done(statuses, self.open.bytes.load(Ordering::Relaxed), None))
    }
}

/// The keys of a namespace.
pub(crate) fn unpacked(
    namespace: Hash,
    packed: &[[u8; PACKED_KEY_BYTES]],
) -> impl Iterator<Item = RecordKey> + '_ {
    packed.iter().map(move |packed| RecordKey::from_packed(namespace, packed))
}

/// One bit for each key, the lowest first.
pub(crate) fn bitmap(found: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
    found.chunks(8).map(byte).collect()
}

/// Processes records one by one; keeps the reason why the first refused one was refused.
fn bring<T>(
    items: &[T],
    open: &Open,
    mut bring: impl FnMut(&T) -> Result<Option<u64>>,
) -> Result<Answer> {
    let mut reason = None;
    let statuses = each(items, open, |item| match bring(item) {
        Ok(Some(bytes)) => Ok((ItemStatus::Accepted, bytes)),
        Ok(None) => Ok((ItemStatus::Missing, 0)),
        Err(error) if error.code == Code::ArenaFailed => Err(error),
        Err(error) => {
            let status = moves::status_of(&error);
            if status == ItemStatus::BadRecord {
                reason.get_or_insert(error.text);
            }
            Ok((status, 0))
        }
    })?;
    Ok(Answer::Done(statuses, open.bytes.load(Ordering::Relaxed), reason))
}

/// Processes items one by one until the request is cancelled.
fn each<T>(
    items: &[T],
    open: &Open,
    mut work: impl FnMut(&T) -> Result<(ItemStatus, u64)>,
) -> Result<Vec<u8>> {
    let mut statuses = Vec::with_capacity(items.len());
    for item in items {
        if open.is_cancelled.load(Ordering::Relaxed) {
            statuses.push(ItemStatus::Incomplete as u8);
            continue;
        }
        let (status, bytes) = work(item)?;
        open.bytes.fetch_add(bytes, Ordering::Relaxed);
        statuses.push(status as u8);
    }
    Ok(statuses)
}
