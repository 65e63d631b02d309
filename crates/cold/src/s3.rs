//! Owns a bucket as a store of records: the blocks of a run in one object, found by its name, read by ranges, written once.

mod cuts;
mod object;
mod places;
mod runs;

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tierkv_core::archive::{Archive, Bucket, Vars};
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::lane::client::Outgoing;
use tierkv_core::lane::wire::Alive;
use tierkv_core::limits::{S3_INDEX_BYTES, S3_REQUESTS_MAX, S3_ROUNDS_MAX, S3_WRITES_MAX};
use tierkv_core::record::Hash;
use tierkv_core::store::ItemStatus;

use self::cuts::{Pack, Range, packs_of, ranges_of};
use self::object::{Entry, index_of, parse};
use self::places::{Place, Places};
use self::runs::{folder_of, is_object, object_of, runs_of};
use crate::goal::{Goal, Source};
use crate::parallel::side_by_side;
use crate::store::{Call, Flushed, PackedKey, Scope, Store};

/// Scheme of a bucket's address.
pub const SCHEME: &str = "s3://";
/// Configuration's key, for errors.
const KEY: &str = "[cluster] kv_cold";
/// Names of refusals.
const REFUSALS: [&str; 5] = ["denied", "slow_down", "expired", "clock_skew", "other"];
const DENIED: usize = 0;
/// S3 denies an object that is missing to whoever may not list the bucket.
const RIGHTS: &str = "; allow s3:GetObject, s3:PutObject and s3:DeleteObject, and s3:ListBucket, without which S3 denies what is missing";
/// Words with which S3 says that the key itself is wrong.
const WRONG_KEYS: [&str; 3] = ["SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken"];
const KEYS: &str = "; correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile";
/// Names of what requests cost: their number, and bytes read and written.
const SPENT: [&str; 4] = ["reads", "writes", "read_bytes", "written_bytes"];

/// A bucket.
pub struct S3 {
    bucket: Bucket,
    places: Places,
    /// False once the server refused `If-None-Match`.
    knows_conditions: AtomicBool,
    refusals: [AtomicU64; REFUSALS.len()],
    spent: [AtomicU64; SPENT.len()],
}

impl S3 {
    /// Opens `s3://bucket/prefix`, with region, endpoint and credentials from the usual AWS variables and files.
    ///
    /// # Errors
    /// `STORE_FAILED` naming the address, the reason and the fix.
    pub fn open(address: &str, vars: Vars) -> Result<Self> {
        let bucket = Bucket::at(KEY, address, vars)?;
        let refusals = std::array::from_fn(|_| AtomicU64::new(0));
        let spent = std::array::from_fn(|_| AtomicU64::new(0));
        let (places, knows_conditions) = (Places::default(), true.into());
        Ok(Self { bucket, places, knows_conditions, refusals, spent })
    }

    fn read(&self, bytes: u64) {
        self.spent[0].fetch_add(1, Ordering::Relaxed);
        self.spent[2].fetch_add(bytes, Ordering::Relaxed);
    }

    fn wrote(&self, bytes: u64) {
        self.spent[1].fetch_add(1, Ordering::Relaxed);
        self.spent[3].fetch_add(bytes, Ordering::Relaxed);
    }

    fn failed(&self, error: &io::Error) -> Error {
        let text = error.to_string();
        let at = match error.kind() {
            _ if text.contains("ExpiredToken") => 2,
            _ if text.contains("RequestTimeTooSkewed") => 3,
            io::ErrorKind::PermissionDenied => DENIED,
            _ if text.contains("503") || text.contains("SlowDown") => 1,
            _ => 4,
        };
        self.refusals[at].fetch_add(1, Ordering::Relaxed);
        let fix = match at {
            _ if WRONG_KEYS.iter().any(|word| text.contains(word)) => KEYS,
            DENIED => RIGHTS,
            _ => "",
        };
        Error::lane_failed(format!("the bucket: {text}{fix}"))
    }

    /// Reads the index of an object and remembers its places; `None` where there is no such object, or no sound one.
    fn index(&self, namespace: &Hash, object: &str, call: &Call) -> Result<Option<Vec<Entry>>> {
        call.tick()?;
        let read = self.bucket.stream(object, 0, S3_INDEX_BYTES, call.rest(), |body, bytes| {
            let mut index = Vec::new();
            body.take(bytes).read_to_end(&mut index)?;
            Ok(index)
        });
        self.read(read.as_ref().map_or(0, |index| index.len() as u64));
        match read {
            Ok(index) => {
                let Ok(entries) = parse(&index) else { return Ok(None) };
                self.places.add(namespace, &Arc::from(object), &entries);
                Ok(Some(entries))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// The place of each key. Asks for the object at each run's start, then for the one at the first block that no object had yet, since
    /// a run lies in several objects where prompts ended or parted.
    fn find(
        &self,
        namespace: &Hash,
        keys: &[PackedKey],
        call: &Call,
    ) -> Result<Vec<Option<Place>>> {
        let mut found: Vec<_> = keys.iter().map(|key| self.places.get(namespace, key)).collect();
        let mut open = runs_of(keys);
        let mut asked = HashSet::new();
        for round in 0..S3_ROUNDS_MAX {
            let mut names = Vec::new();
            open.retain(|run| {
                let Some(next) = run.keys.iter().find(|index| found[**index].is_none()) else {
                    return false;
                };
                let is_begun = round > 0 || self.places.get(namespace, &run.first).is_some();
                let start = if is_begun { keys[*next] } else { run.first };
                let name = object_of(namespace, &start);
                let is_new = asked.insert(name.clone());
                if is_new {
                    names.push(name);
                }
                is_new
            });
            if names.is_empty() {
                break;
            }
            let answers =
                side_by_side(&names, S3_REQUESTS_MAX, |name| self.index(namespace, name, call));
            let mut failure = None;
            let is_failed = answers.iter().all(Result::is_err);
            for answer in answers {
                failure = failure.or(answer.err());
            }
            if let Some(error) = failure.filter(|error| is_failed || error.code == Code::Cancelled)
            {
                return Err(error);
            }
            for run in &open {
                for index in &run.keys {
                    if found[*index].is_none() {
                        found[*index] = self.places.get(namespace, &keys[*index]);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Reads one range, and each record of it to its place.
    fn bring(&self, range: &Range, goal: &Goal, keys: &[PackedKey], call: &Call) -> Part {
        let mut done = Vec::new();
        let mut ended = None;
        let (start, end) = (range.start(), range.end());
        let read = self.bucket.stream(&range.object, start, end - start, call.rest(), |body, _| {
            let mut body = Streamed(body);
            for (index, place) in &range.items {
                match goal.receive(*index, place.bytes, &mut body, call) {
                    Ok(status) => done.push((*index, status)),
                    Err(error) => {
                        ended = Some(error);
                        break;
                    }
                }
            }
            Ok(())
        });
        self.read(read.as_ref().map_or(0, |()| end - start));
        let error = match read {
            Ok(()) => ended,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                for (index, _) in &range.items {
                    self.places.forget(goal.namespace(), &keys[*index]);
                    done.push((*index, ItemStatus::Missing));
                }
                None
            }
            Err(error) => Some(self.failed(&error)),
        };
        (done, error)
    }

    /// Stores a run: what objects have of it is left out, the rest becomes one object.
    fn put(
        &self,
        namespace: &Hash,
        mut pack: Pack,
        call: &Call,
    ) -> Result<Vec<(usize, ItemStatus)>> {
        let mut done = Vec::new();
        let mut refused = None;
        while let Some((_, first, _)) = pack.first() {
            let object = object_of(namespace, first);
            let was_refused = refused.as_ref() == Some(&object);
            if self.index(namespace, &object, call)?.is_some() {
                let before = pack.len();
                pack.retain(|(index, key, _)| {
                    let is_there = self.places.get(namespace, key).is_some();
                    if is_there {
                        done.push((*index, ItemStatus::Present));
                    }
                    !is_there
                });
                if pack.len() < before {
                    continue;
                }
                return Err(Error::lane_failed(format!("{object} begins with another record")));
            }
            if was_refused {
                return Err(Error::lane_failed(format!(
                    "{object} is there and has no sound index"
                )));
            }
            let lengths: Vec<_> =
                pack.iter().map(|(_, key, record)| (*key, record.bytes().len() as u64)).collect();
            let (mut bytes, entries) = index_of(&lengths);
            for (_, _, record) in &pack {
                bytes.extend_from_slice(record.bytes());
            }
            if self.put_new(&object, &bytes, call)? {
                self.places.add(namespace, &Arc::from(object.as_str()), &entries);
                call.moved(lengths.iter().map(|(_, bytes)| bytes).sum());
                done.extend(pack.drain(..).map(|(index, ..)| (index, ItemStatus::Accepted)));
            } else {
                refused = Some(object);
            }
        }
        Ok(done)
    }

    /// Writes an object; false where another client was faster.
    fn put_new(&self, object: &str, bytes: &[u8], call: &Call) -> Result<bool> {
        call.tick()?;
        let is_checked = self.knows_conditions.load(Ordering::Relaxed);
        self.wrote(bytes.len() as u64);
        match self.bucket.put_new(object, bytes, is_checked, call.rest()) {
            Ok(is_new) => Ok(is_new),
            Err(error) if is_checked && error.kind() == io::ErrorKind::Unsupported => {
                self.knows_conditions.store(false, Ordering::Relaxed);
                let put = self.bucket.put_new(object, bytes, false, call.rest());
                put.map_err(|error| self.failed(&error))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }
}

/// Statuses of a part by item, and the error that ended it.
type Part = (Vec<(usize, ItemStatus)>, Option<Error>);

/// The body of an answer.
struct Streamed<'a>(&'a mut dyn Read);

impl Source for Streamed<'_> {
    fn read(&mut self, buffer: &mut [u8], call: &Call) -> Result<usize> {
        call.tick()?;
        match self.0.read(buffer) {
            Ok(0) => Err(Error::lane_failed("an object of the bucket ends too early")),
            Ok(count) => Ok(count),
            Err(error) => Err(Error::lane_failed(format!("reading from the bucket: {error}"))),
        }
    }
}

/// Sets the statuses of what is known; fails where nothing is, and something failed.
fn settle(statuses: &mut [ItemStatus], answers: Vec<Part>) -> Result<()> {
    let (mut known, mut failure) = (false, None);
    for (done, error) in answers {
        known |= !done.is_empty();
        failure = failure.or(error);
        for (index, status) in done {
            statuses[index] = status;
        }
    }
    match failure {
        Some(error) if !known || error.code == Code::Cancelled => Err(error),
        _ => Ok(()),
    }
}

impl Store for S3 {
    fn look_up(&self, namespace: &Hash, keys: &[PackedKey], call: &Arc<Call>) -> Result<Vec<bool>> {
        Ok(self.find(namespace, keys, call)?.iter().map(Option::is_some).collect())
    }

    fn fetch(&self, goal: &Goal, call: &Arc<Call>) -> Result<Vec<ItemStatus>> {
        let keys = goal.keys();
        let found = self.find(goal.namespace(), &keys, call)?;
        let status = |place: &Option<Place>| match place {
            Some(_) => ItemStatus::Incomplete,
            None => ItemStatus::Missing,
        };
        let mut statuses: Vec<_> = found.iter().map(status).collect();
        let bring = |range: &Range| self.bring(range, goal, &keys, call);
        settle(&mut statuses, side_by_side(&ranges_of(&found), S3_REQUESTS_MAX, bring))?;
        Ok(statuses)
    }

    fn store(
        &self,
        namespace: &Hash,
        records: &[Outgoing],
        call: &Arc<Call>,
    ) -> Result<Vec<ItemStatus>> {
        let is_known = |record: &Outgoing| self.places.get(namespace, &record.packed_key).is_some();
        let mut statuses: Vec<_> = records
            .iter()
            .map(
                |record| {
                    if is_known(record) { ItemStatus::Present } else { ItemStatus::Incomplete }
                },
            )
            .collect();
        let wanted: Vec<_> =
            (0..records.len()).filter(|at| statuses[*at] == ItemStatus::Incomplete).collect();
        let packs = packs_of(records, &wanted);
        let put = |pack: &Pack| match self.put(namespace, pack.clone(), call) {
            Ok(done) => (done, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        settle(&mut statuses, side_by_side(&packs, S3_WRITES_MAX, put))?;
        Ok(statuses)
    }

    fn remove(
        &self,
        namespace: &Hash,
        keys: &[PackedKey],
        call: &Arc<Call>,
    ) -> Result<Vec<ItemStatus>> {
        // The whole object goes, because it is written once; its other blocks are saved again.
        let found = self.find(namespace, keys, call)?;
        for place in found.iter().flatten() {
            self.bucket.remove(&place.object).map_err(|error| self.failed(&error))?;
            self.places.forget_object(&place.object);
        }
        let status = |place: &Option<Place>| match place {
            Some(_) => ItemStatus::Quarantined,
            None => ItemStatus::Missing,
        };
        Ok(found.iter().map(status).collect())
    }

    /// Removes the objects of a namespace, or all; other clients miss what was removed. What is being stored meanwhile may stay.
    fn flush(&self, scope: Scope, call: &Arc<Call>) -> Result<Flushed> {
        if scope.model.is_some() || scope.tenant != 0 {
            return Err(Error::bad_argument("a bucket does not tell models and tenants apart"));
        }
        let folder = scope.namespace.map_or_else(String::new, |namespace| folder_of(&namespace));
        let enough = call.rest() / 3;
        let mut done = Flushed {
            is_unknown: false,
            models: Vec::new(),
            copies: (0, 0),
            is_everything: false,
            removed: 0,
            is_left: false,
        };
        let mut from: Option<String> = None;
        loop {
            call.tick()?;
            let page = self.bucket.below(&folder, from.as_deref(), call.rest());
            self.read(0);
            let (mut names, next) = page.map_err(|error| self.failed(&error))?;
            names.retain(|name| is_object(name));
            let removed =
                side_by_side(&names, S3_REQUESTS_MAX, |name| self.bucket.remove(name.as_str()));
            for outcome in removed {
                outcome.map_err(|error| self.failed(&error))?;
                done.removed += 1;
            }
            from = next;
            done.is_left = from.is_some() && call.rest() < enough;
            if from.is_none() || done.is_left {
                self.places.forget_all();
                return Ok(done);
            }
        }
    }

    fn ping(&self, call: &Arc<Call>) -> Result<()> {
        self.index(&[0; 32], "ping", call).map(drop)
    }

    fn spent(&self) -> Vec<(&'static str, u64)> {
        let count = |spent: &AtomicU64| spent.load(Ordering::Relaxed);
        SPENT.into_iter().zip(self.spent.iter().map(count)).collect()
    }

    fn refusals(&self) -> Vec<(&'static str, u64)> {
        let count = |refusals: &AtomicU64| refusals.load(Ordering::Relaxed);
        REFUSALS.into_iter().zip(self.refusals.iter().map(count)).collect()
    }
}
