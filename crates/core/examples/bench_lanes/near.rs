//! Owns the near side: an engine's arena, the rounds of measures, and their results.

use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use tierkv_core::arena::{self, Arena};
use tierkv_core::codec::Codec;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::inbox::Inbox;
use tierkv_core::lane::client::{
    Client, Content, Options, Outcome, Outgoing, Rail, Target, Targets,
};
use tierkv_core::lane::tls;
use tierkv_core::lane::wire::Timing;
use tierkv_core::outbox::{Identity, Outbox};
use tierkv_core::record::{CLASS_KV, HEADER_BYTES, LAYOUT_CANONICAL};
use tierkv_core::slots::Lease;

use super::Plan;
use super::bare::Bare;
use super::beside;
use super::far::token_of;
use super::samples::{Samples, measure};
use super::session::Session;
use super::tcp::{self, Span};

pub const NAMESPACE: [u8; 32] = [1; 32];
/// Records of one store, and of one fetch, as a sidecar sends them.
pub const SAVE_BATCH: usize = 8;
const FETCH_WINDOW: usize = 14;
/// Most stores, and fetches, under way at a time, as in a sidecar.
pub const STORES_IN_FLIGHT: usize = 2;
const FETCHES_IN_FLIGHT: usize = 2;
/// Numbers of plain TCP connections; the best one counts.
const CONNECTIONS: [usize; 3] = [1, 2, 4];
pub const CODECS: [(Codec, &str); 2] = [(Codec::Int8, "Int8"), (Codec::Raw, "Raw")];

/// A block of 16 tokens of an 8B model: 36 layers, 8 KV heads, head dim 128, bf16.
fn geometry() -> Arc<Geometry> {
    let spec = Spec {
        group: 0,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype: 1,
        tokens: 16,
        layers: 36,
        heads: 8,
        dim_k: 128,
        dim_v: 128,
        layer_bytes: 65_536,
        key_offset: 0,
        value_offset: 32_768,
        head_stride: 256,
        token_stride: 2_048,
    };
    Arc::new(Geometry::new(spec).unwrap())
}

/// Place of the far side.
pub struct Place {
    /// Network namespace of the far side, if it has its own.
    pub netns: Option<String>,
    pub host: String,
}

impl Default for Place {
    fn default() -> Self {
        Self { netns: None, host: "127.0.0.1".to_owned() }
    }
}

pub struct Near {
    pub far: Child,
    said: BufReader<ChildStdout>,
    lanes_address: String,
    secured_address: String,
    /// Address of the vault's Unix socket.
    own_address: String,
    cert_pem: String,
    streams: Vec<Vec<TcpStream>>,
    pub geometry: Arc<Geometry>,
    arena: Arc<Arena>,
    leases: Vec<Lease>,
    /// Outbox and inbox of all records.
    pub boxes: Boxes,
    sessions: u32,
    /// Number of the stored set of records; each set has its own keys.
    set: u32,
}

/// Way out and way in of records, as an outbox and an inbox.
#[derive(Default)]
pub struct Boxes {
    pub outbox: Arc<Outbox>,
    pub inbox: Arc<Inbox>,
}

/// Way to the far side.
struct Way {
    rails: Vec<Rail>,
    tls: Option<tls::Client>,
    lends: Option<Arc<Outbox>>,
}

impl Near {
    pub fn open(plan: &Plan, place: &Place) -> Self {
        let geometry = geometry();
        let slot_bytes = geometry.slot_bytes() as u64;
        let options = arena::Options { slot_bytes, slot_count: plan.blocks, dir: None, label: 1 };
        let arena = Arc::new(Arena::create(&options).unwrap());
        arena.prefault().unwrap();
        while arena.status().touched_slots < plan.blocks {
            thread::yield_now();
        }
        let leases = arena.slots().lease(1, plan.blocks);
        let program = std::env::current_exe().unwrap();
        let socket = std::env::temp_dir().join(format!("tierkv-bench-{}", std::process::id()));
        let own_address = format!("unix:{}", socket.display());
        let mut command = match &place.netns {
            None => Command::new(program),
            Some(netns) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns]).arg(program);
                command
            }
        };
        let mut far = command
            .args(["--far", &place.host, &own_address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let set_bytes = plan.blocks as usize * (HEADER_BYTES + geometry.slot_bytes());
        writeln!(far.stdin.as_ref().unwrap(), "{set_bytes}").unwrap();
        let mut said = BufReader::new(far.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let (ports, cert_pem) = line.trim().split_at(line.find(" -----").unwrap());
        let mut ports = ports.split_whitespace().map(|port| format!("{}{port}", place.host));
        let [lanes_address, secured_address, tcp_address] = [(); 3].map(|()| ports.next().unwrap());
        let cert_pem = cert_pem.trim().replace('|', "\n");
        let streams = CONNECTIONS.map(|connections| tcp::connect(&tcp_address, connections)).into();
        Self {
            far,
            said,
            lanes_address,
            secured_address,
            own_address,
            cert_pem,
            streams,
            geometry,
            arena,
            leases,
            boxes: Boxes::default(),
            sessions: 0,
            set: 0,
        }
    }

    /// Ends the far side.
    pub fn end(&mut self) {
        drop(self.far.stdin.take());
        self.far.wait().unwrap();
        std::fs::remove_file(self.own_address.trim_start_matches("unix:")).unwrap();
    }

    pub fn order(&mut self, order: &str) {
        writeln!(self.far.stdin.as_ref().unwrap(), "{order}").unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }

    /// Begins a new set of records. The stored set is evicted first, because the vault is full, as vaults are.
    pub fn next_set(&mut self) {
        self.order(&format!("retire {} {}", self.set, self.leases.len()));
        self.set += 1;
    }

    pub fn connect(&mut self, lanes: u16, is_secured: bool) -> Session {
        let pinned = || tls::Client::new(self.cert_pem.as_bytes(), "far", None).unwrap();
        let tls = is_secured.then(pinned);
        let address = if is_secured { &self.secured_address } else { &self.lanes_address };
        let rails = vec![address.as_str().into()];
        self.open_session(Way { rails, tls, lends: None }, lanes)
    }

    /// Opens a session over the Unix socket, where records are read where they stand, or travel.
    pub fn connect_own(&mut self, lanes: u16, is_lent: bool) -> Session {
        let lends = is_lent.then(|| Arc::clone(&self.boxes.outbox));
        let rails = vec![self.own_address.as_str().into()];
        let session = self.open_session(Way { rails, tls: None, lends }, lanes);
        assert_eq!(session.client.lends(), [is_lent; 2]);
        session
    }

    fn open_session(&mut self, Way { rails, tls, lends }: Way, lanes: u16) -> Session {
        self.sessions += 1;
        let name = self.sessions.to_string();
        self.order(&name);
        let (tell, outcomes) = channel();
        let sink = Arc::new(move |request, outcome| drop(tell.send((request, outcome))));
        let token = token_of(&name);
        let (down, up) = <(Arc<_>, Arc<_>)>::default();
        let timing = Timing::default();
        let options = Options { rails, token, lanes, tls, timing, down, up, lends };
        let session = Session { client: Client::open(options, sink).unwrap(), outcomes };
        assert_eq!(session.outcomes.recv().unwrap(), (0, Outcome::Up));
        session
    }

    /// Fills every slot with different finite numbers.
    pub fn fill(&self) {
        let mut word = 88_172_645_463_325_252_u64;
        for lease in &self.leases {
            let words = (0..self.geometry.page_bytes() / 8).map(|_| {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                word & 0xBFFF_BFFF_BFFF_BFFF
            });
            let page: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            self.arena.poke(lease.slot, &page).unwrap();
        }
    }

    /// Cuts the arena's first `bytes` bytes into equal parts; the slots follow one another in memory.
    fn spans(&self, parts: usize, bytes: usize) -> Vec<Span> {
        let first = self.leases.iter().min().unwrap();
        let place = self.arena.access(*first).unwrap().as_ptr();
        let part = bytes / parts;
        (0..parts)
            .map(|index| Span { place: place.wrapping_add(index * part), bytes: part })
            .collect()
    }

    /// Returns the pages of all slots.
    pub fn pages(&self) -> Vec<Span> {
        let page = |lease: &Lease| self.arena.access(*lease).unwrap().as_ptr();
        let bytes = self.geometry.page_bytes();
        self.leases.iter().map(|lease| Span { place: page(lease), bytes }).collect()
    }

    pub fn wire_bytes(&self, codec: Codec) -> usize {
        self.leases.len() * (HEADER_BYTES + self.geometry.payload_bytes(codec).unwrap())
    }

    pub fn blocks(&self) -> usize {
        self.leases.len()
    }

    /// Returns the targets of a fetch of blocks straight into their slots.
    pub fn targets(&self, blocks: impl Iterator<Item = usize>, codec: Codec) -> Targets {
        let target = |index: usize| Target {
            packed_key: key(self.set, index),
            lease: self.leases[index],
            geometry: Arc::clone(&self.geometry),
        };
        Targets {
            namespace: NAMESPACE,
            fidelity: codec.id(),
            arena: Arc::clone(&self.arena),
            inbox: Arc::clone(&self.boxes.inbox),
            items: blocks.map(target).collect(),
            trace: None,
            stall: None,
        }
    }

    pub fn restore(&self, session: &Session, codec: Codec) {
        let windows = (0..self.blocks())
            .step_by(FETCH_WINDOW)
            .map(|first| self.targets(first..self.blocks().min(first + FETCH_WINDOW), codec));
        let fetch = |client: &Client, targets| client.fetch(targets).unwrap();
        session.pipelined(FETCHES_IN_FLIGHT, windows, fetch);
    }

    pub fn maker(&self, codec: Codec) -> Maker<'_> {
        let (leases, arena, geometry) = (&self.leases, &self.arena, &self.geometry);
        Maker { set: self.set, leases, arena, geometry, outbox: &self.boxes.outbox, codec }
    }

    /// Saves all blocks; the lanes that send the records make them, as in a sidecar.
    pub fn save(&self, session: &Session, codec: Codec) {
        let maker = self.maker(codec);
        let blocks: Vec<usize> = (0..self.blocks()).collect();
        let deferred = |index: &usize| maker.deferred(*index);
        let batches = blocks.chunks(SAVE_BATCH).map(|batch| batch.iter().map(deferred).collect());
        let store = |client: &Client, batch| client.store(&NAMESPACE, batch).unwrap();
        session.pipelined(STORES_IN_FLIGHT, batches, store);
    }
}

/// Makes records of the arena's slots.
pub struct Maker<'a> {
    set: u32,
    leases: &'a [Lease],
    arena: &'a Arc<Arena>,
    geometry: &'a Arc<Geometry>,
    outbox: &'a Arc<Outbox>,
    codec: Codec,
}

impl Maker<'_> {
    pub fn encode(&self, index: usize) -> Outgoing {
        let Outgoing { packed_key, content } = self.deferred(index);
        Outgoing { packed_key, content: Content::Made(content.make().unwrap()) }
    }

    fn deferred(&self, index: usize) -> Outgoing {
        let packed_key = key(self.set, index);
        let identity = Identity {
            shard: 0,
            shard_count: 1,
            end_tokens: 16,
            namespace: NAMESPACE,
            block_hash: packed_key[..32].try_into().unwrap(),
            parent_hash: [0; 32],
        };
        let (lease, codec) = (self.leases[index], (self.codec, self.codec.id()));
        let deferred =
            self.outbox.defer(self.arena, lease, self.geometry, codec, identity).unwrap();
        Outgoing { packed_key, content: Content::Deferred(Arc::new(deferred)) }
    }
}

/// Returns the packed key of block `index` of a set.
pub fn key(set: u32, index: usize) -> [u8; 36] {
    let mut key = [0; 36];
    key[8..12].copy_from_slice(&set.to_le_bytes());
    key[..8].copy_from_slice(&(index as u64).to_le_bytes());
    key
}

/// Runs one round: plain TCP both ways, then saves and restores with each codec. The page bytes stay the same.
fn round(near: &mut Near, sessions: &[(u16, Session)], samples: &mut Samples) {
    let bytes = near.wire_bytes(Codec::Int8);
    for (index, connections) in CONNECTIONS.into_iter().enumerate() {
        for (name, out) in [("tcpIn", false), ("tcpOut", true)] {
            let spans = near.spans(connections, bytes);
            measure(samples, near, &format!("{name}{connections}"), bytes, |near| {
                tcp::run(&mut near.streams[index], &spans, out);
            });
        }
    }
    let pages = near.pages();
    for (codec, name) in CODECS {
        let (bytes, geometry) = (near.wire_bytes(codec), Arc::clone(&near.geometry));
        let bare = Bare { geometry: &geometry, pages: &pages, codec };
        for (index, connections) in CONNECTIONS.into_iter().enumerate() {
            measure(samples, near, &format!("bareRestore{name}{connections}"), bytes, |near| {
                bare.restore(&mut near.streams[index]);
            });
            measure(samples, near, &format!("bareSave{name}{connections}"), bytes, |near| {
                bare.save(&mut near.streams[index]);
            });
        }
    }
    near.fill();
    for (codec, name) in CODECS {
        let bytes = near.wire_bytes(codec);
        for (lanes, session) in sessions {
            near.next_set();
            measure(samples, near, &format!("save{name}{lanes}"), bytes, |near| {
                near.save(session, codec);
            });
            measure(samples, near, &format!("restore{name}{lanes}"), bytes, |near| {
                near.restore(session, codec);
            });
        }
    }
    for (lanes, session) in sessions {
        near.next_set();
        for ms in beside::restore_ms(near, session, Codec::Int8) {
            samples.add(&format!("besideSaves{lanes}Ms"), ms);
        }
    }
}

/// Runs all rounds; returns one line of JSON.
pub fn run(plan: &Plan) -> String {
    let mut near = Near::open(plan, &Place::default());
    let sessions: Vec<(u16, Session)> =
        [1, 2, 4].map(|lanes| (lanes, near.connect(lanes, false))).into_iter().collect();
    // The first round is not counted, because it touches memory and makes buffers.
    round(&mut near, &sessions, &mut Samples::default());
    let mut samples = Samples::default();
    for _ in 0..plan.rounds {
        round(&mut near, &sessions, &mut samples);
    }
    let keys: Vec<_> = (0..2000).map(|index| key(near.set, index)).collect();
    for _ in 0..plan.rounds * 100 {
        samples.add("lookup2000Ms", sessions[2].1.look_up_ms(&keys));
    }
    drop(sessions);
    near.end();
    let (blocks, wire) = (plan.blocks, near.wire_bytes(Codec::Int8));
    let rounds = plan.rounds;
    format!(
        "{{\"blocks\":{blocks},\"rounds\":{rounds},\"wireBytesInt8\":{wire},\"pageBytes\":{},\"samples\":{{{}}}}}",
        near.geometry.page_bytes(),
        samples.json()
    )
}
