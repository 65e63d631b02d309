//! Owns the vault's RAM store: records in memory of ours, under a byte budget that equals real memory.

mod durable;
mod flush;
mod ghosts;
mod lately;
mod listing;
mod names;
mod policy;
mod queues;
mod reservation;
mod s3fifo;
mod sessions;
mod status;
mod tenants;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

pub use durable::SlowTier;
use flush::FlushLog;
pub use flush::{Flushed, MADE_NOW};
use ghosts::{GHOST_BYTES, ghosts};
pub use listing::{Listed, Listing, position};
pub use policy::Policy;
pub use reservation::Reservation;
pub use s3fifo::S3Fifo;
pub use sessions::SessionStats;
use sessions::Sessions;
pub use status::ItemStatus;

use crate::disk::Disk;
use crate::error::{Error, Result};
pub use crate::key::{MEASURING_NAMESPACE, RecordKey, Scope};
use crate::lent::Lendable;
use crate::limits::{STORE_BYTES_MIN, STORE_SPARED_MS};
use crate::memory::{Budget, Reserved, Shape};
pub use crate::memory::{ENTRY_BYTES, Pin, Stored};
use crate::record::{CLASS_KV, CLASS_SSM, HEADER_BYTES};
pub use crate::tenant::{salt_of, tenant_of};

/// Value of [`Options::record_class`] for a store that takes records of every class.
pub const CLASS_ANY: u8 = 0;

/// Options of a store.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Real memory the store may use, in bytes: records, index, reservations, pinned records.
    pub max_bytes: u64,
    /// Longest record the store takes, in bytes.
    pub max_record_bytes: u64,
    /// Class of records the store takes: 1 kv, 2 ssm; [`CLASS_ANY`]: both.
    pub record_class: u8,
}

/// Counters and gauges of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Budget in bytes.
    pub max_bytes: u64,
    /// Memory in use, of all kinds; never above the budget.
    pub used_bytes: u64,
    /// Part of `used_bytes` reserved for records that are still arriving.
    pub reserved_bytes: u64,
    /// Freed memory kept for new records, not part of `used_bytes`; both together never exceed the budget.
    pub spare_bytes: u64,
    /// Part of `used_bytes` in records that sessions keep.
    pub kept_bytes: u64,
    /// Records that can be looked up.
    pub records: u64,
    /// Namespaces of these records.
    pub namespaces: u64,
    /// Records accepted so far.
    pub inserted: u64,
    /// Records evicted so far.
    pub evicted: u64,
    /// Memory of the evicted records.
    pub evicted_bytes: u64,
    /// Records found bad and removed so far.
    pub quarantined: u64,
}

/// The answer to an offer of one record.
pub enum Offer {
    /// Send it: the room is reserved.
    Wanted(Reservation),
    /// Do not send it.
    Refused(ItemStatus),
}

/// Records by key, evicted to stay within the budget. One lock; every operation on a key takes constant time.
pub struct Store {
    options: Options,
    budget: Arc<Budget>,
    state: Mutex<State>,
    /// Held by commits until the disk also knows the record, so that a flush reaches both tiers or neither.
    commits: RwLock<()>,
    disk: Option<Disk>,
    loads: durable::Loads,
    cursors: listing::Cursors,
    is_draining: AtomicBool,
}

/// Bytes charged to a tenant for one arriving record; put back once, when the record is stored or given up.
#[derive(Debug, Clone, Copy)]
struct Aside {
    /// Id of the tenant.
    owner: u64,
    /// Number the tenant is counted under.
    tenant: u16,
    bytes: u64,
}

struct State {
    /// Beginnings and ends of flushes so far; a record read from disk before a flush must not be inserted after it.
    flushes: u64,
    /// Scopes that the disk is removing now; records read there meanwhile must not be inserted either.
    flushing: Vec<Scope>,
    flushed: FlushLog,
    policy: Box<dyn Policy>,
    in_flight: HashSet<RecordKey>,
    sessions: Sessions,
    totals: Stats,
}

impl Store {
    /// Returns an empty store.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the option.
    pub fn new(options: Options) -> Result<Self> {
        let ghosts = ghosts(options.max_bytes);
        Self::with_policy(options, |room| {
            Box::new(S3Fifo::new(room, ghosts).sparing(Duration::from_millis(STORE_SPARED_MS)))
        })
    }

    /// Returns an empty store with the eviction policy that `make` returns for a room in bytes.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the option.
    pub fn with_policy(
        options: Options,
        make: impl FnOnce(u64) -> Box<dyn Policy>,
    ) -> Result<Self> {
        check(&options)?;
        // Ghosts take memory, too; the store sets it aside once, so that the rest is for records.
        let room = options.max_bytes - ghosts(options.max_bytes) * GHOST_BYTES;
        let state = State {
            flushes: 0,
            flushing: Vec::new(),
            flushed: FlushLog::default(),
            policy: make(room),
            in_flight: HashSet::new(),
            sessions: Sessions::default(),
            totals: Stats::default(),
        };
        let (budget, state) = (Budget::new(room), Mutex::new(state));
        let (commits, loads) = (RwLock::default(), durable::Loads::default());
        let (cursors, is_draining) = (listing::Cursors::default(), AtomicBool::new(false));
        Ok(Self { options, budget, state, commits, disk: None, loads, cursors, is_draining })
    }

    /// The memory of the records as readers may map it; `None` where the system has no such memory.
    #[must_use]
    pub fn lendable(&self) -> Option<&Lendable> {
        self.budget.space()?.lendable()
    }

    /// Sets whether the store drains; a draining store takes no new records.
    pub fn drain(&self, is_draining: bool) {
        self.is_draining.store(is_draining, Ordering::Release);
    }

    /// Whether a record can be fetched. Does not count as a use.
    #[must_use]
    pub fn contains(&self, key: &RecordKey) -> bool {
        self.state().policy.peek(key).is_some() || self.is_on_disk(key)
    }

    /// Put-if-absent: reserves the room for a record of tenant 0, evicting others as needed.
    pub fn reserve(self: &Arc<Self>, key: RecordKey, record_bytes: u64) -> Offer {
        self.reserve_for(0, key, record_bytes)
    }

    /// Like [`Self::reserve`] for any tenant (see [`tenant_of`]), for a record made now.
    pub fn reserve_for(self: &Arc<Self>, tenant: u64, key: RecordKey, record_bytes: u64) -> Offer {
        self.reserve_since(MADE_NOW, tenant, key, record_bytes)
    }

    /// Like [`Self::reserve_for`] for a record whose maker knew the flushes up to `known`; a record of a later flush is
    /// refused, now or at commit. Under quotas the account that uses most gives way first, in it the tenant furthest over
    /// quota. A tenant's arriving records never exceed its quota.
    pub fn reserve_since(
        self: &Arc<Self>,
        known: u64,
        tenant: u64,
        key: RecordKey,
        record_bytes: u64,
    ) -> Offer {
        self.reserve_within(u64::MAX, known, tenant, key, record_bytes)
    }

    /// Like [`Self::reserve_since`]; a record that is not here and has more than `room` bytes is refused as `OverBudget`.
    pub fn reserve_within(
        self: &Arc<Self>,
        room: u64,
        known: u64,
        tenant: u64,
        key: RecordKey,
        record_bytes: u64,
    ) -> Offer {
        if record_bytes > self.options.max_record_bytes {
            return Offer::Refused(ItemStatus::TooLarge);
        }
        let Some(bytes) = usize::try_from(record_bytes).ok().filter(|bytes| *bytes > HEADER_BYTES)
        else {
            return Offer::Refused(ItemStatus::BadRecord);
        };
        let mut state = self.state();
        if state.policy.peek(&key).is_some() || self.is_on_disk(&key) {
            return Offer::Refused(ItemStatus::Present);
        }
        if record_bytes > room {
            return Offer::Refused(ItemStatus::OverBudget);
        }
        if state.flushed.takes(known, &key, None, tenant) {
            return Offer::Refused(ItemStatus::Flushed);
        }
        if state.in_flight.contains(&key) {
            return Offer::Refused(ItemStatus::Present);
        }
        if self.is_draining.load(Ordering::Acquire) {
            return Offer::Refused(ItemStatus::Draining);
        }
        if !state.policy.may_set_aside(tenant, record_bytes) {
            return Offer::Refused(ItemStatus::OverBudget);
        }
        let Some(shape) = Shape::of_record(bytes) else {
            return Offer::Refused(ItemStatus::OverBudget);
        };
        let Some((memory, aside)) = state.set_aside(&self.budget, shape, tenant) else {
            return Offer::Refused(ItemStatus::OverBudget);
        };
        state.in_flight.insert(key);
        drop(state);
        Offer::Wanted(Reservation::new(Arc::clone(self), key, bytes, memory, aside, known))
    }

    /// Sets the guaranteed bytes per tenant (`each`), with overrides in `own`; memory that is not guaranteed is shared. The
    /// durable tier guarantees `each` in the same proportion. 0: tenants are not told apart.
    pub fn limit_tenants(&self, each: u64, own: &[(u64, u64)]) {
        self.state().policy.limit_tenants(each, own);
        if let Some(disk) = &self.disk {
            let share = u128::from(each) * u128::from(disk.usable_bytes());
            let share = share / u128::from(self.options.max_bytes);
            disk.limit_tenants(u64::try_from(share).unwrap_or(u64::MAX));
        }
    }

    /// Memory of a tenant in bytes; 0 where tenants are not told apart.
    #[must_use]
    pub fn used_by(&self, tenant: u64) -> u64 {
        self.state().policy.used_by(tenant)
    }

    /// Pins a record in memory: the record is not evicted and its memory stays until the pin is dropped.
    pub fn pin_resident(&self, key: &RecordKey) -> Option<Pin> {
        let pin = self.state().policy.touch(key).map(Stored::pin)?;
        if let Some(disk) = &self.disk {
            disk.touch(key);
        }
        Some(pin)
    }

    /// Returns the current counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.state();
        Stats {
            max_bytes: self.options.max_bytes,
            used_bytes: self.budget.used(),
            reserved_bytes: self.budget.reserved(),
            spare_bytes: self.budget.spare_bytes(),
            kept_bytes: state.policy.kept_bytes(),
            records: state.policy.len() as u64,
            namespaces: state.policy.namespaces() as u64,
            ..state.totals
        }
    }

    /// Returns memory to the system that no record needed since the last call; may take a while.
    pub fn trim(&self) {
        self.budget.trim();
    }

    /// Flips the lowest bit of one byte of a stored record, for tests; false when there is no such record or byte.
    pub fn corrupt(&self, key: &RecordKey, offset: usize) -> bool {
        let mut is_there = false;
        let flip = |bytes: &mut [u8]| {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte ^= 1;
                is_there = true;
            }
        };
        self.tamper(key, flip) && is_there
    }

    /// Changes a stored record, for tests; false when there is no such record.
    pub fn tamper(&self, key: &RecordKey, change: impl FnOnce(&mut [u8])) -> bool {
        let mut state = self.state();
        let Some(record) = state.policy.peek(key) else { return false };
        let (mut bytes, tenant) = (record.to_vec(), record.tenant());
        change(&mut bytes);
        state.policy.remove(key);
        let Some(shape) = Shape::of_record(bytes.len()) else { return false };
        let Some((mut memory, aside)) = state.set_aside(&self.budget, shape, tenant) else {
            return false;
        };
        memory.span(0, bytes.len()).copy_from_slice(&bytes);
        state.insert(*key, memory.into_stored(tenant), aside, &self.budget);
        true
    }

    /// Ends a reservation and makes the record visible; false, without making it visible, when a flush came in between.
    fn commit(&self, key: RecordKey, record: Stored, aside: Aside, known: u64) -> bool {
        let _commit = self.commits.read().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        state.in_flight.remove(&key);
        if state.flushed.takes(known, &key, Some(record[9]), aside.owner) {
            state.policy.put_back(aside.tenant, aside.bytes);
            return false;
        }
        let pin = record.pin();
        state.insert(key, record, aside, &self.budget);
        state.totals.inserted += 1;
        drop(state);
        if let Some(disk) = &self.disk {
            disk.offer(key, aside.owner, pin);
        }
        true
    }

    /// Ends a reservation without a record.
    fn abandon(&self, key: &RecordKey, aside: Aside) {
        let mut state = self.state();
        state.in_flight.remove(key);
        state.policy.put_back(aside.tenant, aside.bytes);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Evicts until `need` more bytes fit.
    fn make_room(&mut self, budget: &Budget, need: u64) {
        let outside = budget.used() - self.policy.resident_bytes();
        let evicted = self.policy.hold(outside + need);
        for (_, record) in evicted {
            self.totals.evicted += 1;
            self.totals.evicted_bytes += record.charge();
        }
    }

    /// Charges and reserves memory for a record of a tenant, evicting others as needed.
    fn set_aside(
        &mut self,
        budget: &Arc<Budget>,
        shape: Shape,
        tenant: u64,
    ) -> Option<(Reserved, Aside)> {
        let mut aside = None;
        let memory = budget.charge(shape, |bytes| {
            // The bytes count as the tenant's own before eviction chooses a victim.
            if aside.is_none() {
                let number = self.policy.set_aside(tenant, bytes);
                aside = Some(Aside { owner: tenant, tenant: number, bytes });
            }
            self.make_room(budget, bytes);
        });
        let aside = aside?;
        if memory.is_none() {
            self.policy.put_back(aside.tenant, aside.bytes);
        }
        Some((memory?, aside))
    }

    /// Inserts a record whose memory is already charged to the tenant of `aside`.
    fn insert(&mut self, key: RecordKey, record: Stored, aside: Aside, budget: &Budget) {
        let outside = budget.used() - self.policy.resident_bytes() - record.charge();
        let evicted = self.policy.hold(outside);
        debug_assert!(evicted.is_empty(), "what is charged fits the budget");
        self.policy.insert(key, record, aside.tenant);
        self.keep(&key);
        self.policy.put_back(aside.tenant, aside.bytes);
    }
}

fn check(options: &Options) -> Result<()> {
    if options.max_bytes < STORE_BYTES_MIN {
        return Err(Error::bad_argument(format!(
            "maxBytes is {}: a store needs at least {STORE_BYTES_MIN}",
            options.max_bytes
        )));
    }
    if options.max_record_bytes == 0 || options.max_record_bytes > options.max_bytes {
        return Err(Error::bad_argument(format!(
            "maxRecordBytes is {}: it must be 1 to maxBytes ({})",
            options.max_record_bytes, options.max_bytes
        )));
    }
    if !matches!(options.record_class, CLASS_ANY | CLASS_KV | CLASS_SSM) {
        return Err(Error::bad_argument(format!(
            "recordClass is {}: it must be 1 (kv), 2 (ssm) or 0 (both)",
            options.record_class
        )));
    }
    Ok(())
}
