//! Owns Valkey, one server or a cluster, as a store of records: one key each, put if absent, expired and evicted by Valkey.

mod connection;
mod spread;
mod topology;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tierkv_core::error::{Error, Result};
use tierkv_core::lane::client::Outgoing;
use tierkv_core::lane::wire::Alive;
use tierkv_core::limits::VALKEY_CONNECTIONS_MAX;
use tierkv_core::record::Hash;
use tierkv_core::store::ItemStatus;

pub use self::connection::Login;
use self::connection::{Connection, Reply, push_argument, push_command};
use self::spread::{Got, Part, end_asking, push_for, spread, values};
use self::topology::Topology;
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
        spread(&self.topology, keys, 1, call, &|connection, part, done| {
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

fn names(namespace: &Hash, keys: &[PackedKey]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| [KEY_PREFIX, namespace, key].concat()).collect()
}

impl Store for Valkey {
    fn look_up(&self, namespace: &Hash, keys: &[PackedKey], call: &Arc<Call>) -> Result<Vec<bool>> {
        let found = self.numbers(b"EXISTS", &names(namespace, keys), call)?;
        values(found, |_| false)
    }

    fn fetch(&self, goal: &Goal, call: &Arc<Call>) -> Result<Vec<ItemStatus>> {
        let keys = names(goal.namespace(), &goal.keys());
        let fetched = spread(
            &self.topology,
            &keys,
            VALKEY_CONNECTIONS_MAX,
            call,
            &|connection, part, done| {
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
            },
        )?;
        // A record of a node that does not answer is not missing, so that another source may be tried.
        values(fetched, |_| ItemStatus::Incomplete)
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
        let stored = spread(
            &self.topology,
            &keys,
            VALKEY_CONNECTIONS_MAX,
            call,
            &|connection, part, done| {
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
            },
        )?;
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
        let removed = self.numbers(b"UNLINK", &names(namespace, keys), call)?;
        let removed = values(removed, |_| false)?;
        let status = |is_there| {
            if is_there { ItemStatus::Quarantined } else { ItemStatus::Missing }
        };
        Ok(removed.into_iter().map(status).collect())
    }

    fn ping(&self, call: &Arc<Call>) -> Result<()> {
        // Answered by the node of the key, and only where this user may read it.
        let asked = self.numbers(b"EXISTS", &[[KEY_PREFIX, b"ping"].concat()], call)?;
        values(asked, |_| false).map(drop)
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
