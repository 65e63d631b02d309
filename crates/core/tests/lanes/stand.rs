//! Owns what lane tests stand on: a vault's store and lanes, an engine's arena, and a client that keeps every outcome.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tierkv_core::arena::{self, Arena};
use tierkv_core::codec::Codec;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::goodput::Goodput;
use tierkv_core::inbox::{Inbox, Wanted};
use tierkv_core::lane::client::{
    Client, Content, Options, Outcome, Outgoing, Rail, Target, Targets,
};
use tierkv_core::lane::server::{self, Right, Server, Token};
use tierkv_core::lane::tls;
use tierkv_core::lane::wire::Timing;
use tierkv_core::listener::{self, Listener};
use tierkv_core::outbox::{Identity, Outbox};
use tierkv_core::record::{CLASS_KV, HASH_BYTES, LAYOUT_CANONICAL, LAYOUT_OPAQUE};
use tierkv_core::slots::Lease;
use tierkv_core::store::{self, CLASS_ANY, ItemStatus, Store};

use super::random::Random;
use super::{IS_LENT, IS_SECURE, link};

pub const MIB: usize = 1 << 20;
pub const NAMESPACE: [u8; 32] = [7; 32];
/// Only a hung test reaches it.
pub const SOON: Duration = Duration::from_secs(30);

/// Shapes of pages, each with what is special about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A raw record is received in the slot itself; several chunks.
    Opaque,
    /// Head vectors with gaps between layers.
    Strided,
    /// The same, so large that a record has several chunks.
    Large,
}

pub fn geometry(shape: Shape) -> Arc<Geometry> {
    let (tokens, layers) = if shape == Shape::Large { (64, 30) } else { (16, 3) };
    let vectors = u64::from(tokens) * 4 * 256;
    let canonical = Spec {
        group: 1,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype: 1,
        tokens,
        layers,
        heads: 4,
        dim_k: 128,
        dim_v: 128,
        layer_bytes: vectors * 2 + 512,
        key_offset: 0,
        value_offset: vectors,
        head_stride: 256,
        token_stride: 1024,
    };
    let opaque = Spec {
        layout: LAYOUT_OPAQUE,
        dtype: 0,
        layers: 2,
        heads: 0,
        dim_k: 0,
        dim_v: 0,
        layer_bytes: 1_300_480,
        value_offset: 0,
        head_stride: 0,
        token_stride: 0,
        ..canonical
    };
    Arc::new(Geometry::new(if shape == Shape::Opaque { opaque } else { canonical }).unwrap())
}

/// Short enough for tests that wait for it, long enough for a busy machine.
pub fn timing() -> Timing {
    Timing { tick: Duration::from_millis(20), ..Timing::default() }
}

/// An empty store.
pub fn new_store() -> Arc<Store> {
    let max = 512 * MIB as u64;
    let options =
        store::Options { max_bytes: max, max_record_bytes: max / 2, record_class: CLASS_ANY };
    Arc::new(Store::new(options).unwrap())
}

/// A vault's store and lanes.
pub struct Vault {
    pub store: Arc<Store>,
    pub server: Arc<Server>,
    /// Last: whoever it let in goes first.
    _listener: Listener,
    pub address: String,
    tokens: Mutex<u32>,
}

impl Vault {
    pub fn open() -> Self {
        Self::with(|_| {})
    }

    /// `adjust` may change what its lanes are made of.
    pub fn with(adjust: impl FnOnce(&mut server::Options)) -> Self {
        Self::over(new_store(), adjust)
    }

    /// An address of a socket of its own.
    pub fn socket() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("tierkv-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        format!("unix:{}", std::env::temp_dir().join(name).display())
    }

    /// The lanes of a store.
    pub fn over(store: Arc<Store>, adjust: impl FnOnce(&mut server::Options)) -> Self {
        let address = if IS_LENT { Self::socket() } else { "127.0.0.1:0".to_owned() };
        Self::at(&address, store, adjust)
    }

    /// The same at another address.
    pub fn at(address: &str, store: Arc<Store>, adjust: impl FnOnce(&mut server::Options)) -> Self {
        let max = 512 * MIB as u64;
        let mut options = server::Options::new(max / 2, max / 2);
        options.timing = timing();
        options.tls = IS_SECURE.then(|| link::usual().server());
        adjust(&mut options);
        let at = listener::Options::new(address, options.tls.is_some());
        let server = Arc::new(Server::new(Arc::clone(&store), options));
        let listener = Listener::open(at, Some(Arc::clone(&server)), None).unwrap();
        let bound = listener.port().map(|port| format!("127.0.0.1:{port}"));
        let address = bound.unwrap_or_else(|| address.to_owned());
        Self { store, server, _listener: listener, address, tokens: Mutex::new(0) }
    }

    /// A token that is good for one session.
    pub fn token(&self) -> Token {
        let mut tokens = self.tokens.lock().unwrap();
        *tokens += 1;
        let mut token = [0; 32];
        token[..4].copy_from_slice(&tokens.to_le_bytes());
        self.server.admit(token, Right { may_store: true, account: 0 });
        token
    }

    pub fn count(&self, name: &str) -> u64 {
        let counts = self.server.status().counts;
        counts.into_iter().find(|(counted, _)| *counted == name).map_or(0, |(_, n)| n)
    }
}

impl Drop for Vault {
    fn drop(&mut self) {
        if let Some(path) = self.address.strip_prefix("unix:") {
            let _ = std::fs::remove_file(path);
        }
    }
}

thread_local! {
    /// Outbox of the engine that the thread made last, whose memory its clients lend.
    static OUTBOX: RefCell<Arc<Outbox>> = RefCell::default();
}

/// A client whose outcomes come one after another.
pub struct Lanes {
    pub client: Client,
    pub down: Arc<Goodput>,
    outcomes: Receiver<(u32, Outcome)>,
}

impl Lanes {
    /// Dials, and does not wait.
    pub fn dial(address: &str, token: Token, lanes: u16, timing: Timing) -> Self {
        Self::with(address, token, lanes, timing, IS_SECURE.then(|| link::usual().client()))
    }

    /// The same, trusting whom `tls` trusts.
    pub fn with(
        address: &str,
        token: Token,
        lanes: u16,
        timing: Timing,
        tls: Option<tls::Client>,
    ) -> Self {
        Self::between(vec![address.into()], token, lanes, timing, tls)
    }

    /// The same over several rails.
    pub fn over(rails: Vec<Rail>, token: Token, lanes: u16, timing: Timing) -> Self {
        Self::between(rails, token, lanes, timing, IS_SECURE.then(|| link::usual().client()))
    }

    fn between(
        rails: Vec<Rail>,
        token: Token,
        lanes: u16,
        timing: Timing,
        tls: Option<tls::Client>,
    ) -> Self {
        let lends = IS_LENT.then(|| OUTBOX.with_borrow(Arc::clone));
        Self::of(rails, token, lanes, timing, tls, lends)
    }

    /// The same, lending the records of an outbox.
    pub fn of(
        rails: Vec<Rail>,
        token: Token,
        lanes: u16,
        timing: Timing,
        tls: Option<tls::Client>,
        lends: Option<Arc<Outbox>>,
    ) -> Self {
        let (tell, outcomes) = channel();
        let sink = move |request, outcome| drop(tell.send((request, outcome)));
        let (down, up) = <(Arc<_>, Arc<_>)>::default();
        let options =
            Options { rails, token, lanes, tls, timing, down: Arc::clone(&down), up, lends };
        Self { client: Client::open(options, Arc::new(sink)).unwrap(), down, outcomes }
    }

    pub fn open(vault: &Vault, lanes: u16) -> Self {
        let open = Self::dial(&vault.address, vault.token(), lanes, timing());
        assert_eq!(open.next(), (0, Outcome::Up));
        assert_eq!(open.client.lends(), [IS_LENT; 2]);
        open
    }

    /// The next outcome of any request.
    pub fn next(&self) -> (u32, Outcome) {
        self.outcomes.recv_timeout(SOON).expect("an outcome")
    }

    /// The outcome of `request`, which must be the next.
    pub fn outcome(&self, request: u32) -> Outcome {
        let (of, outcome) = self.next();
        assert_eq!(of, request, "{outcome:?}");
        outcome
    }

    /// The text with which the session ends; what came before is not of interest.
    pub fn down(&self) -> String {
        loop {
            if let (0, Outcome::Down(error)) = self.next() {
                return error.text;
            }
        }
    }

    /// Whether nothing comes for a while.
    pub fn is_quiet(&self) -> bool {
        self.outcomes.recv_timeout(Duration::from_millis(100)).is_err()
    }

    pub fn store(&self, records: Vec<Outgoing>) -> Vec<u8> {
        let request = self.client.store(&NAMESPACE, records).unwrap();
        match self.outcome(request) {
            Outcome::Done(statuses, _, None) => statuses,
            other => panic!("{other:?}"),
        }
    }
}

/// An engine's arena, with pages of one shape.
pub struct Engine {
    pub arena: Arc<Arena>,
    pub geometry: Arc<Geometry>,
    pub inbox: Arc<Inbox>,
    pub outbox: Arc<Outbox>,
}

impl Engine {
    pub fn new(shape: Shape, slots: u32) -> Self {
        let geometry = geometry(shape);
        let slot_bytes = geometry.slot_bytes() as u64;
        let options = arena::Options { slot_bytes, slot_count: slots, dir: None, label: 1 };
        let arena = Arc::new(Arena::create(&options).unwrap());
        arena.prefault().unwrap();
        until(|| arena.status().touched_slots == slots);
        let outbox = Arc::default();
        OUTBOX.set(Arc::clone(&outbox));
        Self { arena, geometry, inbox: Arc::default(), outbox }
    }

    pub fn lease(&self) -> Lease {
        self.arena.slots().lease(1, 1)[0]
    }

    /// A page of noise, as a record.
    pub fn record(&self, number: u8, codec: Codec) -> Outgoing {
        let (deferred, lease) = self.defer(number, codec);
        let content = Content::Made(deferred.content.make().unwrap());
        self.arena.slots().release(lease).unwrap();
        Outgoing { content, ..deferred }
    }

    /// The same, to be made when it is sent: until then its slot is to be kept.
    pub fn defer(&self, number: u8, codec: Codec) -> (Outgoing, Lease) {
        let lease = self.lease();
        let mut random = Random::new(u64::from(number) + 1);
        // Finite numbers, also read as bf16.
        let words =
            (0..self.geometry.page_bytes() / 8).map(|_| random.next() & 0xBFFF_BFFF_BFFF_BFFF);
        let page: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        self.arena.poke(lease.slot, &page).unwrap();
        let identity = Identity {
            shard: 0,
            shard_count: 1,
            end_tokens: 16,
            namespace: NAMESPACE,
            block_hash: [number; 32],
            parent_hash: [0; 32],
        };
        let codec = (codec, codec.id());
        let deferred =
            self.outbox.defer(&self.arena, lease, &self.geometry, codec, identity).unwrap();
        (
            Outgoing { packed_key: key(number), content: Content::Deferred(Arc::new(deferred)) },
            lease,
        )
    }

    /// What a slot holds when a whole record was decoded into it.
    pub fn page(&self, record: &Outgoing, codec: Codec) -> Vec<u8> {
        let lease = self.lease();
        self.clear(lease);
        let made = record.content.make().unwrap();
        let bytes = made.bytes();
        let wanted =
            Wanted { fidelity: codec.id(), namespace: NAMESPACE, packed_key: record.packed_key };
        let reassembly = self
            .inbox
            .begin(&self.arena, lease, &self.geometry, wanted, bytes.len() as u64)
            .unwrap();
        Arc::new(reassembly).take(bytes, bytes.len()).unwrap();
        let page = self.arena.peek(lease.slot).unwrap();
        self.arena.slots().release(lease).unwrap();
        page
    }

    pub fn clear(&self, lease: Lease) {
        self.arena.poke(lease.slot, &vec![0xEE; self.geometry.slot_bytes()]).unwrap();
    }

    /// A fetch of the records of these numbers into new slots, which hold nothing of use before.
    pub fn targets(&self, numbers: &[u8], codec: Codec) -> (Targets, Vec<Lease>) {
        let leases: Vec<Lease> = numbers.iter().map(|_| self.lease()).collect();
        let target = |(number, lease): (&u8, &Lease)| {
            self.clear(*lease);
            let geometry = Arc::clone(&self.geometry);
            Target { packed_key: key(*number), lease: *lease, geometry }
        };
        let targets = Targets {
            namespace: NAMESPACE,
            fidelity: codec.id(),
            arena: Arc::clone(&self.arena),
            inbox: Arc::clone(&self.inbox),
            items: numbers.iter().zip(&leases).map(target).collect(),
            trace: None,
            stall: None,
        };
        (targets, leases)
    }
}

pub fn key(number: u8) -> [u8; 36] {
    let mut key = [number; 36];
    key[HASH_BYTES..].copy_from_slice(&[1, 0, 0, 0]);
    key
}

pub fn until(is_true: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !is_true() {
        assert!(Instant::now() < end, "waited in vain");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub const ACCEPTED: u8 = ItemStatus::Accepted as u8;
pub const PRESENT: u8 = ItemStatus::Present as u8;
pub const MISSING: u8 = ItemStatus::Missing as u8;
pub const BAD: u8 = ItemStatus::BadRecord as u8;
pub const INCOMPLETE: u8 = ItemStatus::Incomplete as u8;

/// A record of `bytes`, under the key of `number`, whatever it holds.
pub fn outgoing(number: u8, bytes: Vec<u8>) -> Outgoing {
    Outgoing { packed_key: key(number), content: Content::Made(Arc::new(bytes)) }
}

pub fn bytes_of(record: &Outgoing) -> Vec<u8> {
    record.content.make().unwrap().bytes().to_vec()
}
