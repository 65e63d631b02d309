//! Owns the knowledge of which node has which key: one node, or the slots of a cluster as its nodes tell them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;
use redis::cluster_routing::Slot;
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::{VALKEY_CONNECTIONS_MAX, VALKEY_NODES_MAX, VALKEY_SLOTS_EVERY_MS};

use super::connection::{Connection, Login};
use crate::store::Call;

/// One node, with connections that wait for the next request.
pub struct Node {
    pub address: String,
    login: Login,
    idle: Mutex<Vec<Connection>>,
}

impl Node {
    fn new(address: &str, login: &Login) -> Arc<Self> {
        let (address, login) = (address.to_owned(), login.clone());
        Arc::new(Self { address, login, idle: Mutex::default() })
    }

    /// Takes a connection that waits, if any.
    pub fn waiting(&self) -> Option<Connection> {
        self.idle().pop()
    }

    /// Makes a new connection.
    ///
    /// # Errors
    /// As `Connection::dial`.
    pub fn dial(&self, call: &Call) -> Result<Connection> {
        Connection::dial(&self.address, &self.login, call)
    }

    /// Keeps a connection whose answers are all read.
    pub fn keep(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < VALKEY_CONNECTIONS_MAX * 2 {
            idle.push(connection);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All nodes that are known, and the owner of each slot.
pub struct Topology {
    seeds: Vec<String>,
    login: Login,
    state: Mutex<State>,
    /// Held by the request that asks for the slots; others go on with what is known.
    asking: Mutex<()>,
}

#[derive(Default)]
struct State {
    nodes: HashMap<String, Arc<Node>>,
    /// Owners by slot, once known; a single server owns all.
    owners: Option<Owners>,
    is_stale: bool,
    asked: Option<Instant>,
}

#[derive(Clone)]
enum Owners {
    One(Arc<Node>),
    Slots(Arc<HashMap<Slot, Arc<Node>>>),
}

impl Topology {
    pub fn new(seeds: Vec<String>, login: Login) -> Self {
        Self { seeds, login, state: Mutex::default(), asking: Mutex::default() }
    }

    /// The owner of each key; `None`: no node serves its slot at present.
    ///
    /// # Errors
    /// `LANE_FAILED` where no node answers.
    pub fn owners_of(&self, keys: &[Vec<u8>], call: &Call) -> Result<Vec<Option<Arc<Node>>>> {
        Ok(match self.owners(call)? {
            Owners::One(node) => vec![Some(node); keys.len()],
            Owners::Slots(slots) => {
                keys.iter().map(|key| slots.get(&Slot::for_key(key)).cloned()).collect()
            }
        })
    }

    /// The node at an address, which a redirection named.
    ///
    /// # Errors
    /// `LANE_FAILED` for more nodes than a cluster has.
    pub fn node_at(&self, address: &str) -> Result<Arc<Node>> {
        let mut state = self.state();
        if let Some(node) = state.nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        if state.nodes.len() >= VALKEY_NODES_MAX {
            let text = format!("{VALKEY_NODES_MAX} nodes of Valkey are known: no more are used");
            return Err(Error::lane_failed(text));
        }
        let node = Node::new(address, &self.login);
        state.nodes.insert(address.to_owned(), Arc::clone(&node));
        Ok(node)
    }

    /// The cluster has changed: the next request asks for its slots.
    pub fn is_stale(&self) {
        self.state().is_stale = true;
    }

    fn owners(&self, call: &Call) -> Result<Owners> {
        let known = {
            let state = self.state();
            let pause = Duration::from_millis(VALKEY_SLOTS_EVERY_MS);
            let is_due = state.asked.is_none_or(|asked| asked.elapsed() >= pause);
            match &state.owners {
                Some(owners) if !(state.is_stale && is_due) => return Ok(owners.clone()),
                owners => owners.clone(),
            }
        };
        let asking = match (&known, self.asking.try_lock()) {
            (_, Ok(asking)) => asking,
            (Some(owners), Err(_)) => return Ok(owners.clone()),
            (None, Err(_)) => self.asking.lock().unwrap_or_else(PoisonError::into_inner),
        };
        if let (None, Some(owners)) = (&known, self.state().owners.clone()) {
            return Ok(owners);
        }
        let asked = self.ask_nodes(call);
        drop(asking);
        match (asked, known) {
            (Ok(owners), _) => Ok(owners),
            (Err(error), _) if error.code == Code::Cancelled => Err(error),
            // A part of a cluster may go on although no node tells its slots.
            (Err(_), Some(known @ Owners::Slots(_))) => Ok(known),
            (Err(error), _) => Err(error),
        }
    }

    fn ask_nodes(&self, call: &Call) -> Result<Owners> {
        let mut addresses = self.seeds.clone();
        addresses.extend(self.state().nodes.keys().cloned());
        addresses.dedup();
        let mut last = Error::lane_failed("no address of Valkey");
        for address in addresses {
            match self.ask_node(&address, call) {
                Ok(owners) => {
                    let mut state = self.state();
                    state.owners = Some(owners.clone());
                    (state.is_stale, state.asked) = (false, Some(Instant::now()));
                    return Ok(owners);
                }
                Err(error) => last = error,
            }
        }
        self.state().asked = Some(Instant::now());
        Err(last)
    }

    fn ask_node(&self, address: &str, call: &Call) -> Result<Owners> {
        let node = self.node_at(address)?;
        let mut connection = node.dial(call)?;
        let answer = connection.ask(redis::cmd("CLUSTER").arg("SLOTS"), call);
        match answer {
            Ok(Value::Array(ranges)) => {
                let slots = self.slots(address, &ranges)?;
                node.keep(connection);
                Ok(Owners::Slots(Arc::new(slots)))
            }
            Err(error) if error.text.contains("cluster support disabled") => {
                node.keep(connection);
                Ok(Owners::One(node))
            }
            Ok(other) => Err(Error::lane_failed(format!("CLUSTER SLOTS answers {other:?}"))),
            Err(error) => Err(error),
        }
    }

    /// Reads ranges of slots, each with its first and last slot and then its primary: host, port.
    fn slots(&self, asked: &str, ranges: &[Value]) -> Result<HashMap<Slot, Arc<Node>>> {
        let bad = || Error::lane_failed("CLUSTER SLOTS answers in a form that is not known");
        let mut slots = HashMap::new();
        for range in ranges {
            let Value::Array(parts) = range else { return Err(bad()) };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &parts[..]
            else {
                return Err(bad());
            };
            let [host, Value::Int(port), ..] = &primary[..] else { return Err(bad()) };
            let host = match host {
                Value::BulkString(bytes) if !bytes.is_empty() => {
                    String::from_utf8(bytes.clone()).map_err(|_| bad())?
                }
                // A node that does not know its own address: it is where it was asked.
                _ => asked.rsplit_once(':').map_or(asked, |(host, _)| host).to_owned(),
            };
            let node = self.node_at(&address_of(&host, *port))?;
            for slot in *first..=*last {
                let slot = u16::try_from(slot).ok().and_then(Slot::new).ok_or_else(bad)?;
                slots.insert(slot, Arc::clone(&node));
            }
        }
        Ok(slots)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `host:port`, with brackets around an IPv6 address.
fn address_of(host: &str, port: i64) -> String {
    if host.contains(':') && !host.starts_with('[') {
        return format!("[{host}]:{port}");
    }
    format!("{host}:{port}")
}
