//! Owns the spreading of commands over the nodes that own their keys: side by side, redirected, one outcome for each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::lane::wire::Alive;
use tierkv_core::limits::{VALKEY_NODE_SILENT_MS, VALKEY_REDIRECTS_MAX};

use super::connection::{Connection, push_command};
use super::refusals::Refusals;
use super::topology::{Node, Owned, Owner, Topology};
use crate::store::Call;

/// Outcome of one command.
pub enum Got<T> {
    Value(T),
    Refused(String),
    /// The slot lies at another node, for good or for this command.
    Moved(String),
    Asked(String),
}

/// Commands to one node over one connection: numbers of the items, and whether each follows ASKING.
pub struct Part {
    node: Arc<Node>,
    pub asking: bool,
    pub items: Vec<usize>,
}

/// Outcomes by item.
pub type Done<T> = Vec<(usize, Got<T>)>;

/// Sends the commands of some items and reads their answers in order.
pub type Exchange<'a, T> =
    &'a (dyn Fn(&mut Connection, &Part, &Call, &mut Done<T>) -> Result<()> + Sync);

/// How one request is spread.
pub struct Way<'a, T> {
    pub topology: &'a Topology,
    pub refusals: &'a Refusals,
    /// Items before this one are records, those from it on copies of the list of flushes.
    pub records: usize,
    /// Whether records may be read from replicas.
    pub is_read: bool,
    /// Whether a replica's answer says nothing of the primary.
    pub is_absent: &'a dyn Fn(&T) -> bool,
}

/// Runs one command per key at the nodes that own them; follows redirections. An item whose node does not answer, refuses, or is a
/// replica without the record is tried once at another node that may have it. `None` where no node answered.
pub fn spread<T: Send>(
    way: &Way<'_, T>,
    keys: &[Vec<u8>],
    call: &Call,
    exchange: Exchange<'_, T>,
) -> Result<Vec<Option<Got<T>>>> {
    let owned = way.topology.owners_of(keys, call)?;
    let first = |(item, owner): (usize, &Option<Owner>)| {
        let may_read = way.is_read && item < way.records;
        owner.as_ref().and_then(|owner| first_of(owner, &keys[item], may_read))
    };
    let chosen: Vec<_> = owned.owners.iter().enumerate().map(first).collect();
    let outcomes = keys.iter().map(|_| None).collect();
    let mut work = Spreading { way, owned, chosen, outcomes, failure: None };
    let firsts = work.chosen.clone().into_iter().enumerate();
    let mut parts = work.open(cut(firsts, false));
    let mut is_second = false;
    for _ in 0..=VALKEY_REDIRECTS_MAX {
        // The rest of the time is for other nodes.
        let is_bounded = work.owned.is_cluster && !is_second;
        let silence = way.is_read.then_some(Duration::from_millis(VALKEY_NODE_SILENT_MS));
        let bounded = if is_bounded { call.part(silence) } else { call.clone() };
        let redirected = work.run(&parts, &bounded, exchange);
        parts = way.redirections(&redirected);
        if !is_second && redirected.is_empty() {
            is_second = true;
            parts = work.second_tries();
        }
        if parts.is_empty() || work.is_cancelled() || call.tick().is_err() {
            break;
        }
    }
    work.end()
}

/// An item, the address that it is sent on to, and whether for this command alone.
type Redirected = (usize, String, bool);

/// A request while it is spread.
struct Spreading<'a, T> {
    way: &'a Way<'a, T>,
    owned: Owned,
    /// The node that each item was asked of first.
    chosen: Vec<Option<Arc<Node>>>,
    outcomes: Vec<Option<Got<T>>>,
    failure: Option<Error>,
}

impl<T: Send> Spreading<'_, T> {
    /// Leaves out parts for nodes that did not answer lately. Of one server all is asked; a cluster goes on without some.
    fn open(&mut self, mut parts: Vec<Part>) -> Vec<Part> {
        parts.retain(|part| {
            let is_open = !self.owned.is_cluster || part.node.may_be_asked();
            if !is_open {
                let text = format!("{} did not answer lately", part.node.address);
                self.failure.get_or_insert(Error::lane_failed(text));
            }
            is_open
        });
        parts
    }

    fn run(&mut self, parts: &[Part], call: &Call, exchange: Exchange<'_, T>) -> Vec<Redirected> {
        let mut redirected = Vec::new();
        for (done, error) in run(parts, self.owned.is_cluster, call, exchange) {
            for (index, got) in done {
                match &got {
                    Got::Moved(address) => redirected.push((index, address.clone(), false)),
                    Got::Asked(address) => redirected.push((index, address.clone(), true)),
                    Got::Value(_) | Got::Refused(_) => {}
                }
                self.outcomes[index] = Some(got);
            }
            if let Some(error) = error {
                self.failure.get_or_insert(error);
            }
        }
        redirected
    }

    /// Items that another node may have.
    fn second_tries(&mut self) -> Vec<Part> {
        let records = if self.way.is_read { self.way.records } else { 0 };
        let other = |item: usize| {
            let asked = self.chosen[item].as_ref();
            let is_known = match &self.outcomes[item] {
                // A primary that says so knows it.
                Some(Got::Value(value)) => {
                    !(self.way.is_absent)(value) || asked.is_none_or(|node| !node.is_replica)
                }
                _ => false,
            };
            if is_known { None } else { other_of(self.owned.owners[item].as_ref(), asked) }
        };
        let others: Vec<_> = (0..records).map(|item| (item, other(item))).collect();
        self.open(cut(others.into_iter(), false))
    }

    fn is_cancelled(&self) -> bool {
        self.failure.as_ref().is_some_and(|error| error.code == Code::Cancelled)
    }

    /// The outcomes; the failure where no record has one.
    fn end(self) -> Result<Vec<Option<Got<T>>>> {
        let Self { way, outcomes, failure, .. } = self;
        if let Some(error) = failure {
            way.topology.is_stale();
            way.refusals.note_error(&error);
            let records = if way.records == 0 { &outcomes[..] } else { &outcomes[..way.records] };
            if error.code == Code::Cancelled || records.iter().all(Option::is_none) {
                return Err(error);
            }
        }
        Ok(outcomes)
    }
}

impl<T> Way<'_, T> {
    fn redirections(&self, redirected: &[Redirected]) -> Vec<Part> {
        let mut parts = Vec::new();
        for asking in [false, true] {
            let to = redirected.iter().filter(|(.., asks)| *asks == asking);
            let nodes: Vec<_> = to
                .map(|(index, address, _)| (*index, self.topology.node_at(address).ok()))
                .collect();
            parts.extend(cut(nodes.into_iter(), asking));
        }
        parts
    }
}

/// The node that an item is asked of first: reads go to the primary and its replicas alike.
fn first_of(owner: &Owner, key: &[u8], may_read: bool) -> Option<Arc<Node>> {
    let all = 1 + owner.replicas.len();
    // The last bytes of a key are its group and shard; a byte of the hash before them is as good as random.
    let byte = key.len().checked_sub(5).and_then(|at| key.get(at)).copied().unwrap_or_default();
    let at = if may_read { usize::from(byte) % all } else { 0 };
    let nodes = std::iter::once(&owner.primary).chain(owner.replicas.iter());
    nodes.cycle().skip(at).take(1).next().cloned()
}

/// Another node that may have an item: the primary, or a replica of it.
fn other_of(owner: Option<&Owner>, asked: Option<&Arc<Node>>) -> Option<Arc<Node>> {
    let (owner, asked) = (owner?, asked?);
    if asked.is_replica {
        Some(Arc::clone(&owner.primary))
    } else {
        owner.replicas.first().cloned()
    }
}

/// Runs the parts side by side; each ends with what came and the error that ended it.
fn run<T: Send>(
    parts: &[Part],
    is_cluster: bool,
    call: &Call,
    exchange: Exchange<'_, T>,
) -> Vec<(Done<T>, Option<Error>)> {
    let one = |part: &Part| {
        let mut done = Vec::new();
        let error = over_connection(part, call, &mut done, exchange).err();
        if is_cluster && error.as_ref().is_none_or(|error| error.code != Code::Cancelled) {
            part.node.answered(error.is_none());
        }
        (done, error)
    };
    let [first, others @ ..] = parts else { return Vec::new() };
    thread::scope(|scope| {
        let others: Vec<_> = others.iter().map(|part| scope.spawn(move || one(part))).collect();
        let mut all = vec![one(first)];
        let lost = || (Vec::new(), Some(Error::lane_failed("a thread of the client ended")));
        all.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|_| lost())));
        all
    })
}

/// Turns outcomes into values, with `none` where there is none; fails where the server refuses every one.
pub fn values<T>(outcomes: Vec<Option<Got<T>>>, none: impl Fn(&str) -> T) -> Result<Vec<T>> {
    let is_refused = |got: &Option<Got<T>>| matches!(got, Some(Got::Refused(_)));
    let refusal = !outcomes.is_empty() && outcomes.iter().all(is_refused);
    let mut said = None;
    let values = outcomes.into_iter().map(|got| match got {
        Some(Got::Value(value)) => value,
        Some(Got::Refused(text)) => {
            let value = none(&text);
            said.get_or_insert(text);
            value
        }
        Some(Got::Moved(_) | Got::Asked(_)) | None => none(""),
    });
    let values: Vec<T> = values.collect();
    match said.filter(|text| refusal && !text.starts_with("OOM")) {
        Some(text) => Err(Error::lane_failed(format!("Valkey refuses: {text}"))),
        None => Ok(values),
    }
}

/// Gathers items by node: a request takes one connection to each, as further ones cost wake-ups and add no rate.
fn cut(owners: impl Iterator<Item = (usize, Option<Arc<Node>>)>, asking: bool) -> Vec<Part> {
    let mut by_node: BTreeMap<(String, bool), Part> = BTreeMap::new();
    for (index, node) in owners {
        let Some(node) = node else { continue };
        let key = (node.address.clone(), node.is_replica);
        let part = by_node.entry(key).or_insert(Part { node, asking, items: Vec::new() });
        part.items.push(index);
    }
    by_node.into_values().collect()
}

/// Runs a part over a connection that waits, or over a new one where there is none or the server has closed it meanwhile.
fn over_connection<T>(
    part: &Part,
    call: &Call,
    done: &mut Done<T>,
    exchange: Exchange<'_, T>,
) -> Result<()> {
    if let Some(mut connection) = part.node.waiting() {
        match exchange(&mut connection, part, call, done) {
            Ok(()) => {
                part.node.keep(connection);
                return Ok(());
            }
            Err(error) if error.code == Code::Cancelled || !done.is_empty() => return Err(error),
            Err(_) => call.tick()?,
        }
    }
    let mut connection = part.node.dial(call)?;
    exchange(&mut connection, part, call, done)?;
    part.node.keep(connection);
    Ok(())
}

impl Part {
    /// The items, with those of the list of flushes first, so that no record holds them up.
    pub fn in_order(&self, records: usize) -> impl Iterator<Item = usize> {
        let lists = self.items.iter().filter(move |item| **item >= records);
        lists.chain(self.items.iter().filter(move |item| **item < records)).copied()
    }
}

pub fn push_for(out: &mut Vec<u8>, part: &Part, arguments: &[&[u8]]) {
    if part.asking {
        push_command(out, &[b"ASKING"]);
    }
    push_command(out, arguments);
}

pub fn end_asking(connection: &mut Connection, part: &Part, call: &Call) -> Result<()> {
    if part.asking {
        connection.reply(call)?;
    }
    Ok(())
}
