//! Owns Valkey, one server or a cluster, as a store of records: one key each, put if absent, expired and evicted by Valkey.

mod connection;
mod topology;

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::lane::client::Outgoing;
use tierkv_core::lane::wire::Alive;
use tierkv_core::limits::{VALKEY_CONNECTIONS_MAX, VALKEY_REDIRECTS_MAX};
use tierkv_core::record::Hash;
use tierkv_core::store::ItemStatus;

pub use self::connection::Login;
use self::connection::{Connection, Reply, push_argument, push_command};
use self::topology::{Node, Topology};
use crate::goal::{Goal, skip};
use crate::store::{Call, PackedKey, Store, made};

/// Scheme of a server's address.
pub const SCHEME: &str = "valkey://";
/// Before the namespace in each key.
const KEY_PREFIX: &[u8] = b"tierkv:1:";
/// Names of refusals by the first word of the server's answer; the last one stands for all others.
const REFUSALS: [&str; 7] =
    ["OOM", "LOADING", "CLUSTERDOWN", "READONLY", "NOPERM", "NOAUTH", "other"];

/// Valkey.
pub struct Valkey {
    topology: Topology,
    /// Time to live of a record in s; `None`: until Valkey evicts it.
    ttl_s: Option<u64>,
    refusals: [AtomicU64; REFUSALS.len()],
}

/// Outcome of one command.
enum Got<T> {
    Value(T),
    Refused(String),
    /// The slot lies at another node, for good or for this command.
    Moved(String),
    Asked(String),
}

/// Commands to one node over one connection: numbers of the items, and whether each follows ASKING.
struct Part {
    node: Arc<Node>,
    asking: bool,
    items: Vec<usize>,
}

/// Sends the commands of some items and reads their answers in order.
type Exchange<'a, T> =
    &'a (dyn Fn(&mut Connection, &Part, &mut Vec<(usize, Got<T>)>) -> Result<()> + Sync);

impl Valkey {
    /// Opens `valkey://host:port[,host:port...][/database]`, where a cluster's further hosts stand in for the first one; connects to
    /// nothing yet.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the address, the reason and the fix.
    pub fn open(address: &str, mut login: Login, ttl_s: Option<u64>) -> Result<Self> {
        let refused = |reason: &str| {
            let fix = "write \"valkey://host:6379\"";
            Error::bad_argument(format!("{address}: {reason}; {fix}"))
        };
        let place = address.strip_prefix(SCHEME).ok_or_else(|| refused("another scheme"))?;
        if place.contains('@') {
            return Err(refused("user and password stand in VALKEY_USERNAME and VALKEY_PASSWORD"));
        }
        let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
        if !database.is_empty() {
            login.database = database.parse().map_err(|_| refused("no number of a database"))?;
        }
        let is_address = |host: &&str| {
            host.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
            })
        };
        let seeds: Vec<_> = hosts.split(',').map(str::to_owned).collect();
        if !hosts.split(',').all(|host| is_address(&host)) {
            return Err(refused("no list of host:port"));
        }
        let refusals = std::array::from_fn(|_| AtomicU64::new(0));
        Ok(Self { topology: Topology::new(seeds, login), ttl_s, refusals })
    }

    fn note_refusal(&self, text: &str) {
        let word = text.split(' ').next().unwrap_or_default();
        let at = REFUSALS.iter().position(|known| *known == word).unwrap_or(REFUSALS.len() - 1);
        self.refusals[at].fetch_add(1, Ordering::Relaxed);
        if ["CLUSTERDOWN", "READONLY", "MASTERDOWN"].contains(&word) {
            self.topology.is_stale();
        }
    }

    /// Runs one command per key at the nodes that own them, over at most `most` connections to each; follows redirections.
    /// `None` where a node did not answer.
    fn spread<T: Send>(
        &self,
        keys: &[Vec<u8>],
        most: usize,
        call: &Call,
        exchange: Exchange<'_, T>,
    ) -> Result<Vec<Option<Got<T>>>> {
        let mut outcomes: Vec<Option<Got<T>>> = keys.iter().map(|_| None).collect();
        let owners = self.topology.owners_of(keys, call)?;
        let mut parts = cut(owners.into_iter().enumerate(), most, false);
        let mut failure = None;
        for _ in 0..=VALKEY_REDIRECTS_MAX {
            let mut redirected = Vec::new();
            for (done, error) in self.run(&parts, call, exchange) {
                for (index, got) in done {
                    match &got {
                        Got::Moved(address) => redirected.push((index, address.clone(), false)),
                        Got::Asked(address) => redirected.push((index, address.clone(), true)),
                        Got::Value(_) | Got::Refused(_) => {}
                    }
                    outcomes[index] = Some(got);
                }
                failure = failure.or(error);
            }
            if redirected.is_empty() {
                break;
            }
            call.tick()?;
            parts = Vec::new();
            for asking in [false, true] {
                let to = redirected.iter().filter(|(.., asks)| *asks == asking);
                let nodes: Vec<_> = to
                    .map(|(index, address, _)| (*index, self.topology.node_at(address).ok()))
                    .collect();
                parts.extend(cut(nodes.into_iter(), most, asking));
            }
        }
        if let Some(error) = failure {
            self.topology.is_stale();
            if error.code == Code::Cancelled || outcomes.iter().all(Option::is_none) {
                return Err(error);
            }
        }
        Ok(outcomes)
    }

    /// Runs the parts side by side; each ends with what came and the error that ended it.
    fn run<T: Send>(
        &self,
        parts: &[Part],
        call: &Call,
        exchange: Exchange<'_, T>,
    ) -> Vec<(Vec<(usize, Got<T>)>, Option<Error>)> {
        let one = |part: &Part| {
            let mut done = Vec::new();
            let error = over_connection(part, call, &mut done, exchange).err();
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
    fn values<T>(&self, outcomes: Vec<Option<Got<T>>>, none: impl Fn(&str) -> T) -> Result<Vec<T>> {
        let is_refused = |got: &Option<Got<T>>| matches!(got, Some(Got::Refused(_)));
        let refusal = outcomes.iter().all(is_refused);
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

    /// Reads the head of one answer; redirections and refusals end there.
    fn head<T>(&self, connection: &mut Connection, call: &Call) -> Result<Head<T>> {
        let reply = connection.reply(call)?;
        let Reply::Refused(text) = reply else { return Ok(Head::Reply(reply)) };
        let mut words = text.split(' ');
        match (words.next(), words.nth(1)) {
            (Some("MOVED"), Some(address)) => {
                self.topology.is_stale();
                Ok(Head::Ended(Got::Moved(address.to_owned())))
            }
            (Some("ASK"), Some(address)) => Ok(Head::Ended(Got::Asked(address.to_owned()))),
            _ => {
                self.note_refusal(&text);
                Ok(Head::Ended(Got::Refused(text)))
            }
        }
    }

    /// Asks with one command per key, whose answers are numbers.
    fn numbers(
        &self,
        command: &[u8],
        keys: &[Vec<u8>],
        call: &Call,
    ) -> Result<Vec<Option<Got<bool>>>> {
        self.spread(keys, 1, call, &|connection, part, done| {
            let mut out = Vec::with_capacity(part.items.len() * 128);
            for index in &part.items {
                push_for(&mut out, part, &[command, &keys[*index]]);
            }
            connection.send(&mut [IoSlice::new(&out)], call)?;
            for index in &part.items {
                end_asking(connection, part, call)?;
                done.push((
                    *index,
                    match self.head(connection, call)? {
                        Head::Ended(got) => got,
                        Head::Reply(reply) => Got::Value(matches!(reply, Reply::Int(1..))),
                    },
                ));
            }
            Ok(())
        })
    }
}

enum Head<T> {
    Reply(Reply),
    Ended(Got<T>),
}

/// Gathers items by node, the first ones first on each connection.
fn cut(
    owners: impl Iterator<Item = (usize, Option<Arc<Node>>)>,
    most: usize,
    asking: bool,
) -> Vec<Part> {
    let mut by_node: BTreeMap<String, (Arc<Node>, Vec<usize>)> = BTreeMap::new();
    for (index, node) in owners {
        let Some(node) = node else { continue };
        by_node.entry(node.address.clone()).or_insert((node, Vec::new())).1.push(index);
    }
    let mut parts = Vec::new();
    for (node, items) in by_node.into_values() {
        let count = most.clamp(1, items.len());
        for first in 0..count {
            let items = items.iter().skip(first).step_by(count).copied().collect();
            parts.push(Part { node: Arc::clone(&node), asking, items });
        }
    }
    parts
}

/// Runs a part over a connection that waits, or over a new one where there is none or the server has closed it meanwhile.
fn over_connection<T>(
    part: &Part,
    call: &Call,
    done: &mut Vec<(usize, Got<T>)>,
    exchange: Exchange<'_, T>,
) -> Result<()> {
    if let Some(mut connection) = part.node.waiting() {
        match exchange(&mut connection, part, done) {
            Ok(()) => {
                part.node.keep(connection);
                return Ok(());
            }
            Err(error) if error.code == Code::Cancelled || !done.is_empty() => return Err(error),
            Err(_) => call.tick()?,
        }
    }
    let mut connection = part.node.dial(call)?;
    exchange(&mut connection, part, done)?;
    part.node.keep(connection);
    Ok(())
}

fn push_for(out: &mut Vec<u8>, part: &Part, arguments: &[&[u8]]) {
    if part.asking {
        push_command(out, &[b"ASKING"]);
    }
    push_command(out, arguments);
}

fn end_asking(connection: &mut Connection, part: &Part, call: &Call) -> Result<()> {
    if part.asking {
        connection.reply(call)?;
    }
    Ok(())
}

fn names(namespace: &Hash, keys: &[PackedKey]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| [KEY_PREFIX, namespace, key].concat()).collect()
}

impl Store for Valkey {
    fn look_up(&self, namespace: &Hash, keys: &[PackedKey], call: &Arc<Call>) -> Result<Vec<bool>> {
        let found = self.numbers(b"EXISTS", &names(namespace, keys), call)?;
        self.values(found, |_| false)
    }

    fn fetch(&self, goal: &Goal, call: &Arc<Call>) -> Result<Vec<ItemStatus>> {
        let keys = names(goal.namespace(), &goal.keys());
        let fetched =
            self.spread(&keys, VALKEY_CONNECTIONS_MAX, call, &|connection, part, done| {
                let mut out = Vec::with_capacity(part.items.len() * 128);
                for index in &part.items {
                    push_for(&mut out, part, &[b"GET", &keys[*index]]);
                }
                connection.send(&mut [IoSlice::new(&out)], call)?;
                for index in &part.items {
                    end_asking(connection, part, call)?;
                    let got = match self.head(connection, call)? {
                        Head::Ended(got) => got,
                        Head::Reply(Reply::Bulk(bytes)) => {
                            let status = goal.receive(*index, bytes, connection, call)?;
                            connection.end_of_value(call)?;
                            Got::Value(status)
                        }
                        Head::Reply(_) => Got::Value(ItemStatus::Missing),
                    };
                    done.push((*index, got));
                }
                Ok(())
            })?;
        // What a node that does not answer holds is not missing, so that another source may be tried.
        self.values(fetched, |_| ItemStatus::Incomplete)
    }

    fn store(
        &self,
        namespace: &Hash,
        records: &[Outgoing],
        call: &Arc<Call>,
    ) -> Result<Vec<ItemStatus>> {
        let packed: Vec<_> = records.iter().map(|record| record.packed_key).collect();
        // Asked first, because a record that is there need not be made or sent.
        let present = self.look_up(namespace, &packed, call)?;
        let wanted: Vec<_> = (0..records.len()).filter(|index| !present[*index]).collect();
        let keys = names(namespace, &wanted.iter().map(|index| packed[*index]).collect::<Vec<_>>());
        let ttl = self.ttl_s.map(|seconds| seconds.to_string());
        let stored =
            self.spread(&keys, VALKEY_CONNECTIONS_MAX, call, &|connection, part, done| {
                let mut sent = Vec::with_capacity(part.items.len());
                for index in &part.items {
                    call.tick()?;
                    let Ok(record) = made(&records[wanted[*index]].content) else {
                        // The slot of a deferred record was released.
                        done.push((*index, Got::Value(ItemStatus::Incomplete)));
                        continue;
                    };
                    send_set(
                        connection,
                        part,
                        &keys[*index],
                        record.bytes(),
                        ttl.as_deref(),
                        call,
                    )?;
                    sent.push((*index, record.bytes().len() as u64));
                }
                for (index, bytes) in sent {
                    end_asking(connection, part, call)?;
                    done.push((
                        index,
                        match self.head(connection, call)? {
                            Head::Ended(got) => got,
                            Head::Reply(Reply::Status) => {
                                call.moved(bytes);
                                Got::Value(ItemStatus::Accepted)
                            }
                            Head::Reply(Reply::Bulk(bytes)) => {
                                skip(
                                    usize::try_from(bytes).unwrap_or(usize::MAX),
                                    connection,
                                    call,
                                )?;
                                connection.end_of_value(call)?;
                                Got::Value(ItemStatus::Present)
                            }
                            Head::Reply(_) => Got::Value(ItemStatus::Present),
                        },
                    ));
                }
                Ok(())
            })?;
        let none = |text: &str| match text.split(' ').next() {
            Some("OOM") => ItemStatus::OverBudget,
            _ => ItemStatus::Incomplete,
        };
        let stored = self.values(stored, none)?;
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
        let removed = self.numbers(b"UNLINK", &names(namespace, keys), call)?;
        let removed = self.values(removed, |_| false)?;
        let status = |is_there| {
            if is_there { ItemStatus::Quarantined } else { ItemStatus::Missing }
        };
        Ok(removed.into_iter().map(status).collect())
    }

    fn ping(&self, call: &Arc<Call>) -> Result<()> {
        // Answered by the node of the key, and only where this user may read it.
        let asked = self.numbers(b"EXISTS", &[[KEY_PREFIX, b"ping"].concat()], call)?;
        self.values(asked, |_| false).map(drop)
    }

    fn refusals(&self) -> Vec<(&'static str, u64)> {
        let count = |refusals: &AtomicU64| refusals.load(Ordering::Relaxed);
        REFUSALS.into_iter().zip(self.refusals.iter().map(count)).collect()
    }
}

/// Sends `SET key record NX`, with a time to live where there is one.
fn send_set(
    connection: &mut Connection,
    part: &Part,
    key: &[u8],
    record: &[u8],
    ttl: Option<&str>,
    call: &Call,
) -> Result<()> {
    let mut head = Vec::with_capacity(160);
    if part.asking {
        push_command(&mut head, &[b"ASKING"]);
    }
    head.extend_from_slice(if ttl.is_some() { b"*6\r\n" } else { b"*4\r\n" });
    push_argument(&mut head, b"SET");
    push_argument(&mut head, key);
    head.extend_from_slice(format!("${}\r\n", record.len()).as_bytes());
    let mut tail = b"\r\n".to_vec();
    push_argument(&mut tail, b"NX");
    if let Some(ttl) = ttl {
        push_argument(&mut tail, b"EX");
        push_argument(&mut tail, ttl.as_bytes());
    }
    let mut parts = [IoSlice::new(&head), IoSlice::new(record), IoSlice::new(&tail)];
    connection.send(&mut parts, call)
}
