//! Owns Valkey, one server or a cluster, as a store of records: one key each, put if absent, expired and evicted by Valkey.

mod address;
mod commands;
mod connection;
mod flush;
mod flushes;
mod lines;
mod nodes;
mod refusals;
mod spread;
mod topology;

use std::sync::Arc;

use tierkv_core::error::{Error, Result};
use tierkv_core::lane::client::Outgoing;
use tierkv_core::limits::VALKEY_FLUSH_ROUNDS_MAX;
use tierkv_core::record::Hash;
use tierkv_core::store::ItemStatus;

use self::address::Address;
use self::commands::Told;
pub use self::connection::Login;
use self::flush::hex;
use self::flushes::{Flushes, Seen};
use self::lines::Lines;
use self::refusals::Refusals;
use self::spread::{Got, values};
use self::topology::Topology;
use crate::goal::Goal;
use crate::store::{Call, Flushed, NodeFacts, PackedKey, Scope, Store};

pub use self::address::{SCHEME, TLS_SCHEME};

/// Names of the hosts in an address, without ports.
///
/// # Errors
/// As `Valkey::open`.
pub fn hosts_of(address: &str) -> Result<Vec<String>> {
    let hosts = Address::parse(address)?.hosts;
    Ok(hosts.iter().map(|host| connection::host_of(host).to_owned()).collect())
}

/// How a deployment uses Valkey, beside the address.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// User, and TLS where the scheme asks for it.
    pub login: Login,
    /// Time to live of a record in s; `None`: until Valkey evicts it.
    pub ttl_s: Option<u64>,
    /// Before all keys of the deployment; empty: `tierkv`.
    pub prefix: String,
    /// Number of the class of all records.
    pub class: u8,
    /// Whether replicas are read.
    pub reads_replicas: bool,
}

/// Valkey.
pub struct Valkey {
    topology: Topology,
    ttl_s: Option<u64>,
    /// Before what the flushes add to a name.
    prefix: Vec<u8>,
    flushes: Flushes,
    refusals: Refusals,
}

/// Names of records and then of the copies of the list of flushes, of which a request asks as well.
struct Names {
    keys: Vec<Vec<u8>>,
    records: usize,
    cover: u64,
}

impl Valkey {
    /// Opens `valkey://host:port[,host:port...][/database]`, or `valkeys://` with TLS, where a cluster's further hosts stand in for the
    /// first one; connects to nothing yet.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the address, the reason and the fix.
    pub fn open(address: &str, options: Options) -> Result<Self> {
        let Address { hosts, database, is_secure } = Address::parse(address)?;
        let Options { mut login, ttl_s, prefix, class, reads_replicas } = options;
        login.database = database;
        if is_secure != login.tls.is_some() {
            let text = format!("{address}: TLS and valkeys:// go together; write both or none");
            return Err(Error::bad_argument(text));
        }
        let prefix = if prefix.is_empty() { "tierkv" } else { &prefix };
        Ok(Self {
            topology: Topology::new(hosts, login, reads_replicas),
            ttl_s,
            prefix: format!("{prefix}:1:").into_bytes(),
            flushes: Flushes::new(prefix, class),
            refusals: Refusals::default(),
        })
    }

    fn lines(&self) -> Lines<'_> {
        Lines { topology: &self.topology, refusals: &self.refusals }
    }

    /// Names of a tenant's records as the flushes have them now.
    fn names(&self, namespace: &Hash, keys: &[PackedKey], call: &Call) -> Result<Names> {
        let tenant = call.asker().tenant;
        if self.flushes.cover(namespace, tenant).is_none() {
            self.look_at_flushes(call)?;
        }
        if self.flushes.is_model_wanted(namespace) {
            self.flushes.read_models(namespace, &self.lines(), call)?;
        }
        let cover = self.flushes.cover(namespace, tenant).unwrap_or_default();
        // As text, because braces among the bytes would send all records of a namespace to one slot.
        let mut front = self.prefix.clone();
        front.extend(format!("{cover:016x}:{}:", hex(namespace)).into_bytes());
        let name = |key: &PackedKey| [&front[..], key.as_slice()].concat();
        let records = keys.len();
        let keys = keys.iter().map(name).chain(self.flushes.keys().iter().cloned()).collect();
        Ok(Names { keys, records, cover })
    }

    fn look_at_flushes(&self, call: &Call) -> Result<()> {
        let asked = self.ask(b"EXISTS", self.flushes.keys(), 0, call)?;
        self.heed_all(asked, call)
    }

    fn heed_all(&self, asked: Vec<Option<Got<Told>>>, call: &Call) -> Result<()> {
        let seen: Vec<_> = asked.into_iter().map(seen).collect();
        self.flushes.heed(&seen, &self.lines(), call)
    }

    /// Splits outcomes, and heeds those of the list of flushes. `None`: a flush took the names meanwhile.
    fn heeded(
        &self,
        names: &Names,
        namespace: &Hash,
        mut outcomes: Vec<Option<Got<Told>>>,
        call: &Call,
    ) -> Result<Option<Vec<Option<Got<Told>>>>> {
        self.heed_all(outcomes.split_off(names.records), call)?;
        let cover = self.flushes.cover(namespace, call.asker().tenant);
        Ok((cover == Some(names.cover)).then_some(outcomes))
    }

    /// Asks with one command per record, whose answers are numbers; anew where a flush changed their names.
    fn numbers(
        &self,
        command: &[u8],
        namespace: &Hash,
        packed: &[PackedKey],
        call: &Call,
    ) -> Result<(Names, Vec<bool>)> {
        for _ in 0..VALKEY_FLUSH_ROUNDS_MAX {
            let names = self.names(namespace, packed, call)?;
            let asked = if command == b"EXISTS" && self.topology.is_alone() {
                self.exist(&names.keys, names.records, call)?
            } else {
                self.ask(command, &names.keys, names.records, call)?
            };
            let Some(asked) = self.heeded(&names, namespace, asked, call)? else { continue };
            let told = values(asked, |_| Told::Is(false))?;
            let is = told.into_iter().map(|told| matches!(told, Told::Is(true))).collect();
            return Ok((names, is));
        }
        Err(Error::lane_failed("flushes come faster than answers of Valkey"))
    }
}

fn seen(outcome: Option<Got<Told>>) -> Seen {
    match outcome {
        Some(Got::Value(Told::Number(Some(number)))) => Seen::Number(number),
        Some(Got::Value(_)) => Seen::None,
        Some(Got::Refused(text)) => Seen::Unknown(text),
        Some(Got::Moved(_) | Got::Asked(_)) | None => Seen::Unknown(String::new()),
    }
}

impl Store for Valkey {
    fn look_up(&self, namespace: &Hash, keys: &[PackedKey], call: &Arc<Call>) -> Result<Vec<bool>> {
        Ok(self.numbers(b"EXISTS", namespace, keys, call)?.1)
    }

    fn fetch(&self, goal: &Goal, call: &Arc<Call>) -> Result<Vec<ItemStatus>> {
        let packed = goal.keys();
        let names = self.names(goal.namespace(), &packed, call)?;
        let fetched = self.get(goal, &names.keys, names.records, call)?;
        let Some(fetched) = self.heeded(&names, goal.namespace(), fetched, call)? else {
            // The records that came were flushed meanwhile.
            return Ok(vec![ItemStatus::Missing; packed.len()]);
        };
        // A record of a node that does not answer is not missing, so that another source may be tried.
        let told = values(fetched, |_| Told::Status(ItemStatus::Incomplete))?;
        let status = |told| match told {
            Told::Status(status) => status,
            Told::Is(_) | Told::Count(_) | Told::Number(_) => ItemStatus::Incomplete,
        };
        Ok(told.into_iter().map(status).collect())
    }

    fn store(
        &self,
        namespace: &Hash,
        records: &[Outgoing],
        call: &Arc<Call>,
    ) -> Result<Vec<ItemStatus>> {
        let packed: Vec<_> = records.iter().map(|record| record.packed_key).collect();
        // Asked first, because a record that is there need not be made or sent.
        let (names, present) = self.numbers(b"EXISTS", namespace, &packed, call)?;
        let asker = call.asker();
        let since = |known| self.flushes.is_flushed_since(known, namespace, asker.tenant);
        if asker.flushed.is_some_and(since) {
            return Ok(vec![ItemStatus::Incomplete; records.len()]);
        }
        let wanted: Vec<_> = (0..records.len()).filter(|index| !present[*index]).collect();
        let keys: Vec<_> = wanted.iter().map(|index| names.keys[*index].clone()).collect();
        let contents: Vec<_> = wanted.iter().map(|index| &records[*index].content).collect();
        let stored = self.set(&keys, &contents, call)?;
        let none = |text: &str| match text.split(' ').next() {
            Some("OOM") => ItemStatus::OverBudget,
            _ => ItemStatus::Incomplete,
        };
        let stored = values(stored, none)?;
        let mut statuses = vec![ItemStatus::Present; records.len()];
        for (index, status) in wanted.into_iter().zip(stored) {
            statuses[index] = status;
        }
        Ok(statuses)
    }

    fn remove(
        &self,
        namespace: &Hash,
        keys: &[PackedKey],
        call: &Arc<Call>,
    ) -> Result<Vec<ItemStatus>> {
        let (_, removed) = self.numbers(b"UNLINK", namespace, keys, call)?;
        let status = |is_there| {
            if is_there { ItemStatus::Quarantined } else { ItemStatus::Missing }
        };
        Ok(removed.into_iter().map(status).collect())
    }

    fn ping(&self, call: &Arc<Call>) -> Result<()> {
        // Answered by the nodes of the keys, and only where this user may read them.
        self.numbers(b"EXISTS", &[0; 32], &[[0; 36]], call).map(drop)
    }

    fn refusals(&self) -> Vec<(&'static str, u64)> {
        self.refusals.all()
    }

    fn flush(&self, scope: Scope, call: &Arc<Call>) -> Result<Flushed> {
        self.look_at_flushes(call)?;
        let models = self.flushes.model_names(&self.lines(), call)?;
        let is_unknown = scope.model.as_ref().is_some_and(|model| !models.contains(model));
        let (taken, is_everything) = self.flushes.flush(scope, &self.lines(), call)?;
        let copies = (taken, self.flushes.keys().len());
        let (removed, is_left) = (0, false);
        Ok(Flushed { is_unknown, models, copies, is_everything, removed, is_left })
    }

    fn news(&self, known: u64) -> (u64, Vec<Scope>) {
        self.flushes.news(known)
    }

    fn learn_model(&self, namespace: &Hash, model: &str) {
        self.flushes.note_model(namespace, model);
    }

    fn name_model(&self, namespace: &Hash, model: &str, call: &Arc<Call>) -> Result<()> {
        self.flushes.note_model(namespace, model);
        self.flushes.tell_model(namespace, model, &self.lines(), call)
    }

    fn nodes(&self, call: &Arc<Call>) -> Result<Vec<NodeFacts>> {
        let primaries = self.topology.primaries(call)?;
        Ok(primaries.iter().map(|node| nodes::facts_of(node, call)).collect())
    }
}
