//! Owns the knowledge of which node has which key: one node, or the slots of a cluster as its nodes tell them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;
use redis::cluster_routing::Slot;
use tierkv_core::error::{Code, Error, Result};
use tierkv_core::lane::wire::Alive;
use tierkv_core::limits::{
    VALKEY_IDLE_MAX, VALKEY_NODE_PAUSE_MS, VALKEY_NODE_SILENT_MS, VALKEY_NODES_MAX,
    VALKEY_SLOTS_EVERY_MS,
};

use super::connection::{Connection, Login, host_of};
use crate::store::Call;

/// One node, with connections that wait for the next request.
pub struct Node {
    pub address: String,
    /// Whether it is asked as the replica that it is, and answers with what it has.
    pub is_replica: bool,
    login: Login,
    idle: Mutex<Vec<Connection>>,
    /// End of a pause, after no answer came.
    paused: Mutex<Option<Instant>>,
}

impl Node {
    fn new(address: &str, is_replica: bool, login: &Login) -> Arc<Self> {
        let (address, login) = (address.to_owned(), login.clone());
        Arc::new(Self {
            address,
            is_replica,
            login,
            idle: Mutex::default(),
            paused: Mutex::default(),
        })
    }

    /// Takes a connection that waits, if any.
    pub fn waiting(&self) -> Option<Connection> {
        lock(&self.idle).pop()
    }

    /// Makes a new connection.
    ///
    /// # Errors
    /// As `Connection::dial`.
    pub fn dial(&self, call: &Call) -> Result<Connection> {
        Connection::dial(&self.address, &self.login, self.is_replica, call)
    }

    /// Keeps a connection whose answers are all read.
    pub fn keep(&self, connection: Connection) {
        let mut idle = lock(&self.idle);
        if idle.len() < VALKEY_IDLE_MAX {
            idle.push(connection);
        }
    }

    /// Whether it may be asked. After a pause, the first request tries it, and the others wait for its outcome.
    pub fn may_be_asked(&self) -> bool {
        let mut paused = lock(&self.paused);
        match *paused {
            Some(until) if Instant::now() < until => false,
            Some(_) => {
                *paused = Some(pause());
                true
            }
            None => true,
        }
    }

    /// Notes whether it answered.
    pub fn answered(&self, is_answer: bool) {
        *lock(&self.paused) = (!is_answer).then(pause);
        if !is_answer {
            lock(&self.idle).clear();
        }
    }
}

fn pause() -> Instant {
    Instant::now() + Duration::from_millis(VALKEY_NODE_PAUSE_MS)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All nodes that are known, and the owner of each slot.
pub struct Topology {
    seeds: Vec<String>,
    login: Login,
    /// Whether replicas are read.
    reads_replicas: bool,
    state: Mutex<State>,
    /// Held by the request that asks for the slots; others go on with what is known.
    asking: Mutex<()>,
}

#[derive(Default)]
struct State {
    nodes: HashMap<(String, bool), Arc<Node>>,
    /// Owners by slot, once known; a single server owns all.
    owners: Option<Owners>,
    is_stale: bool,
    asked: Option<Instant>,
}

/// The nodes that have a slot.
#[derive(Clone)]
pub struct Owner {
    pub primary: Arc<Node>,
    /// Replicas that may be read.
    pub replicas: Arc<[Arc<Node>]>,
}

#[derive(Clone)]
enum Owners {
    One(Owner),
    Slots(Arc<HashMap<Slot, Owner>>),
}

impl Owners {
    /// Whether each slot has an owner.
    fn are_all(&self) -> bool {
        match self {
            Self::One(_) => true,
            Self::Slots(slots) => slots.len() == usize::from(SLOTS),
        }
    }
}

/// Slots of a cluster.
const SLOTS: u16 = 16_384;

/// The owner of each key, and whether there are several nodes, so that the others go on without one.
pub struct Owned {
    pub owners: Vec<Option<Owner>>,
    pub is_cluster: bool,
}

impl Topology {
    pub fn new(seeds: Vec<String>, login: Login, reads_replicas: bool) -> Self {
        Self { seeds, login, reads_replicas, state: Mutex::default(), asking: Mutex::default() }
    }

    /// The owner of each key; `None`: no node serves its slot at present.
    ///
    /// # Errors
    /// `LANE_FAILED` where no node answers.
    pub fn owners_of(&self, keys: &[Vec<u8>], call: &Call) -> Result<Owned> {
        Ok(match self.owners(call)? {
            Owners::One(owner) => {
                Owned { owners: vec![Some(owner); keys.len()], is_cluster: false }
            }
            Owners::Slots(slots) => {
                let owner = |key: &Vec<u8>| slots.get(&Slot::for_key(key)).cloned();
                Owned { owners: keys.iter().map(owner).collect(), is_cluster: true }
            }
        })
    }

    /// Whether one server is known to own all keys.
    pub fn is_alone(&self) -> bool {
        matches!(self.state().owners, Some(Owners::One(_)))
    }

    /// All primaries.
    ///
    /// # Errors
    /// As `owners_of`.
    pub fn primaries(&self, call: &Call) -> Result<Vec<Arc<Node>>> {
        let mut nodes: Vec<_> = match self.owners(call)? {
            Owners::One(owner) => vec![owner.primary],
            Owners::Slots(slots) => {
                slots.values().map(|owner| Arc::clone(&owner.primary)).collect()
            }
        };
        nodes.sort_by(|one, other| one.address.cmp(&other.address));
        nodes.dedup_by(|one, other| one.address == other.address);
        Ok(nodes)
    }

    /// The node at an address, which a redirection named.
    ///
    /// # Errors
    /// `LANE_FAILED` for more nodes than a cluster has.
    pub fn node_at(&self, address: &str) -> Result<Arc<Node>> {
        self.node_as(address, false)
    }

    fn node_as(&self, address: &str, is_replica: bool) -> Result<Arc<Node>> {
        let mut state = self.state();
        let key = (address.to_owned(), is_replica);
        if let Some(node) = state.nodes.get(&key) {
            return Ok(Arc::clone(node));
        }
        if state.nodes.len() >= VALKEY_NODES_MAX {
            let text = format!("{VALKEY_NODES_MAX} nodes of Valkey are known: no more are used");
            return Err(Error::lane_failed(text));
        }
        let node = Node::new(address, is_replica, &self.login);
        state.nodes.insert(key, Arc::clone(&node));
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
        // A node that answered lately comes first, because one that is frozen costs the time to connect.
        let mut addresses = self.seeds.clone();
        addresses.extend(self.state().nodes.keys().map(|(address, _)| address.clone()));
        let mut seen = HashSet::new();
        addresses.retain(|address| seen.insert(address.clone()));
        addresses.sort_by_key(|address| self.is_paused(address));
        let mut last = Error::lane_failed("no address of Valkey");
        // One that is alone gets all the time.
        let silence = Duration::from_millis(VALKEY_NODE_SILENT_MS);
        let is_alone = addresses.len() == 1;
        for address in addresses {
            call.tick()?;
            let part = if is_alone { call.clone() } else { call.part(Some(silence)) };
            match self.ask_node(&address, &part) {
                Ok(owners) => {
                    let mut state = self.state();
                    state.owners = Some(owners.clone());
                    // A cluster that is being made, or has lost nodes, serves the other slots later.
                    state.is_stale = !owners.are_all();
                    state.asked = Some(Instant::now());
                    return Ok(owners);
                }
                Err(error) => last = error,
            }
        }
        self.state().asked = Some(Instant::now());
        Err(last)
    }

    fn is_paused(&self, address: &str) -> bool {
        let node = self.state().nodes.get(&(address.to_owned(), false)).cloned();
        node.is_some_and(|node| lock(&node.paused).is_some())
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
                Ok(Owners::One(Owner { primary: node, replicas: Arc::new([]) }))
            }
            Ok(other) => Err(Error::lane_failed(format!("CLUSTER SLOTS answers {other:?}"))),
            Err(error) => Err(error),
        }
    }

    /// Reads ranges of slots, each with its first and last slot, then its primary and its replicas: host, port.
    fn slots(&self, asked: &str, ranges: &[Value]) -> Result<HashMap<Slot, Owner>> {
        let mut slots = HashMap::new();
        for range in ranges {
            let Value::Array(parts) = range else { return Err(strange()) };
            let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = &parts[..] else {
                return Err(strange());
            };
            let replicas = if self.reads_replicas { replicas } else { &[] };
            let replicas = replicas
                .iter()
                .map(|replica| self.node_as(&place_of(asked, replica)?, true))
                .collect::<Result<Vec<_>>>()?;
            let owner = Owner {
                primary: self.node_at(&place_of(asked, primary)?)?,
                replicas: replicas.into(),
            };
            for slot in *first..=*last {
                let slot = u16::try_from(slot).ok().and_then(Slot::new).ok_or_else(strange)?;
                slots.insert(slot, owner.clone());
            }
        }
        Ok(slots)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn strange() -> Error {
    Error::lane_failed("CLUSTER SLOTS answers in a form that is not known")
}

/// Address of a node in the answer of the node at `asked`.
fn place_of(asked: &str, node: &Value) -> Result<String> {
    let Value::Array(parts) = node else { return Err(strange()) };
    let [host, Value::Int(port), ..] = &parts[..] else { return Err(strange()) };
    match host {
        Value::BulkString(bytes) if !bytes.is_empty() && bytes != b"?" => {
            let host = String::from_utf8(bytes.clone()).map_err(|_| strange())?;
            Ok(address_of(&host, *port))
        }
        // A node that does not know its own address: it is where it was asked.
        _ => Ok(address_of(host_of(asked), *port)),
    }
}

/// `host:port`, with brackets around an IPv6 address.
fn address_of(host: &str, port: i64) -> String {
    if host.contains(':') && !host.starts_with('[') {
        return format!("[{host}]:{port}");
    }
    format!("{host}:{port}")
}
