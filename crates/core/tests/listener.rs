//! Owns the proof of a vault's listener: who comes is told apart by bytes that stay unread, and who is silent gives way and has to go.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::generate_simple_self_signed;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tierkv_core::lane::frame::{Frame, Kind};
use tierkv_core::lane::server::{self, Right, Server};
use tierkv_core::lane::tls::{self, Identity};
use tierkv_core::listener::{ConnectionId, GrpcHandler, Listener, Options, Socket};
use tierkv_core::store::{self, CLASS_ANY, Store};

const SOON: Duration = Duration::from_secs(30);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Keeps what it is given, as far as it has room.
struct Desk {
    tell: Mutex<Sender<(ConnectionId, TcpStream)>>,
    room: Mutex<usize>,
    cut: Mutex<Vec<ConnectionId>>,
}

impl GrpcHandler for Desk {
    fn take(&self, place: ConnectionId, socket: Socket) -> Result<(), Socket> {
        let mut room = self.room.lock().unwrap();
        if *room == 0 {
            return Err(socket);
        }
        *room -= 1;
        let socket = TcpStream::from(OwnedFd::from(socket));
        socket.set_nonblocking(false).unwrap();
        self.tell.lock().unwrap().send((place, socket)).unwrap();
        Ok(())
    }

    fn cut(&self, place: ConnectionId) {
        self.cut.lock().unwrap().push(place);
    }
}

struct Stand {
    listener: Listener,
    lanes: Arc<Server>,
    desk: Arc<Desk>,
    taken: Receiver<(ConnectionId, TcpStream)>,
}

impl Stand {
    fn with(tls: Option<tls::Server>, adjust: impl FnOnce(&mut Options)) -> Self {
        let size = store::Options {
            max_bytes: 1 << 24,
            max_record_bytes: 1 << 20,
            record_class: CLASS_ANY,
        };
        let mut options = Options::new("127.0.0.1:0", tls.is_some());
        adjust(&mut options);
        let served = server::Options { tls, ..server::Options::new(1 << 20, 1 << 20) };
        let lanes = Arc::new(Server::new(Arc::new(Store::new(size).unwrap()), served));
        let (tell, taken) = channel();
        let desk = Arc::new(Desk {
            tell: Mutex::new(tell),
            room: Mutex::new(usize::MAX),
            cut: Mutex::default(),
        });
        let front: Arc<dyn GrpcHandler> = Arc::clone(&desk) as _;
        let listener = Listener::open(options, Some(Arc::clone(&lanes)), Some(front)).unwrap();
        Self { listener, lanes, desk, taken }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.listener.port().unwrap())).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    fn taken(&self) -> (ConnectionId, TcpStream) {
        self.taken.recv_timeout(SOON).expect("a connection at the desk")
    }

    fn refused(&self) -> u64 {
        let counts = self.listener.counts();
        counts.iter().find(|(name, _)| *name == "connections_refused").map_or(0, |(_, n)| *n)
    }
}

fn until(is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < SOON, "waited in vain");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether the other side has ended it: by an end, or by a reset where it had bytes unread.
fn is_ended(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn grpc_goes_to_the_desk_with_every_byte_unread() {
    let stand = Stand::with(None, |_| {});
    let mut near = stand.connect();
    // Also when they come one by one.
    for byte in PREFACE {
        near.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let (_, mut far) = stand.taken();
    let mut heard = [0; PREFACE.len()];
    far.read_exact(&mut heard).unwrap();
    assert_eq!(heard, PREFACE);
    assert_eq!(stand.lanes.status().lanes, 0);
}

#[test]
fn a_lane_is_served_here_also_when_its_first_bytes_trickle() {
    let stand = Stand::with(None, |_| {});
    stand.lanes.admit([3; 32], Right { may_store: true, account: 0 });
    let mut near = stand.connect();
    let hello = Frame { code: 1, ..Frame::new(Kind::Hello, 0) }.of(&[3; 32]).encode();
    for byte in &hello[..4] {
        near.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    near.write_all(&hello[4..]).unwrap();
    near.write_all(&[3; 32]).unwrap();
    let mut welcome = [0; 40];
    near.read_exact(&mut welcome).unwrap();
    assert_eq!(Frame::parse(&welcome).unwrap().kind, Kind::Welcome);
    assert!(stand.taken.try_recv().is_err());
}

/// A vault's certificate, and the first bytes of a client that offers `protocols`.
fn secured(protocols: &[&[u8]]) -> (tls::Server, Vec<u8>) {
    let proof = generate_simple_self_signed(vec!["vault".to_owned()]).unwrap();
    let (cert, key) = (proof.cert.pem(), proof.signing_key.serialize_pem());
    let identity = Identity { cert_pem: cert.as_bytes(), key_pem: key.as_bytes() };
    let server = tls::Server::new(identity, None).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from("vault").unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    (server, hello)
}

#[test]
fn over_tls_the_offered_protocol_decides_once_the_whole_hello_is_there() {
    for (protocols, is_lane) in
        [(&[b"h2".as_slice()][..], false), (&[b"tierkv/1".as_slice()][..], true), (&[], false)]
    {
        let (server, hello) = secured(protocols);
        let stand = Stand::with(Some(server), |_| {});
        let mut near = stand.connect();
        let (first, rest) = hello.split_at(hello.len() - 3);
        near.write_all(first).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(stand.taken.try_recv().is_err());
        assert_eq!(stand.lanes.status().lanes, 0);
        near.write_all(rest).unwrap();
        if is_lane {
            until(|| stand.lanes.status().lanes == 1);
        } else {
            let mut heard = vec![0; hello.len()];
            stand.taken().1.read_exact(&mut heard).unwrap();
            assert_eq!(heard, hello);
        }
    }
}

#[test]
fn over_tls_who_speaks_none_goes_where_it_is_told_why() {
    let (server, _) = secured(&[]);
    let stand = Stand::with(Some(server), |_| {});
    let mut near = stand.connect();
    near.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    stand.taken();
    let mut lane = stand.connect();
    lane.write_all(b"TKVL").unwrap();
    until(|| stand.lanes.status().lanes == 1);
}

#[test]
fn the_silent_give_way_to_whoever_comes() {
    let stand = Stand::with(None, |options| {
        (options.limits.waiting, options.limits.waiting_each) = (8, 4);
    });
    let silent: Vec<_> = (0..6).map(|_| stand.connect()).collect();
    until(|| stand.refused() == 2);
    assert!(silent[..2].iter().all(is_ended));
    let mut near = stand.connect();
    near.write_all(PREFACE).unwrap();
    let (place, _) = stand.taken();
    assert!(stand.listener.settle(place));
    assert_eq!(stand.refused(), 3);
}

#[test]
fn who_is_not_let_in_is_ended_wherever_it_is_and_who_is_stays() {
    let deadline = Duration::from_millis(300);
    let stand = Stand::with(None, |options| options.deadline = deadline);
    let [silent, mut visitor, mut friend] = [(); 3].map(|()| stand.connect());
    friend.write_all(PREFACE).unwrap();
    let (place, _far) = stand.taken();
    assert!(stand.listener.settle(place));
    visitor.write_all(PREFACE).unwrap();
    let (late, _kept) = stand.taken();
    assert!(is_ended(&silent));
    until(|| *stand.desk.cut.lock().unwrap() == [late]);
    assert_eq!(stand.refused(), 2);
    friend.set_read_timeout(Some(deadline)).unwrap();
    assert!(!is_ended(&friend));
}

#[test]
fn who_finds_the_desk_full_waits_for_it() {
    let stand = Stand::with(None, |_| {});
    *stand.desk.room.lock().unwrap() = 0;
    let mut near = stand.connect();
    near.write_all(PREFACE).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(stand.taken.try_recv().is_err());
    *stand.desk.room.lock().unwrap() = 1;
    stand.taken();
}

#[test]
fn a_place_that_is_left_is_free() {
    let stand = Stand::with(None, |options| {
        (options.limits.settled, options.limits.settled_each, options.limits.reserve) = (2, 1, 0);
    });
    let come = || {
        let mut near = stand.connect();
        near.write_all(PREFACE).unwrap();
        (stand.taken(), near)
    };
    let ((first, _far), _near) = come();
    assert!(stand.listener.settle(first));
    let ((second, _far), _near) = come();
    assert!(!stand.listener.settle(second));
    stand.listener.leave(first);
    let ((third, _far), _near) = come();
    assert!(stand.listener.settle(third));
}

#[test]
fn a_door_that_stopped_takes_nobody_and_a_second_one_has_its_port() {
    let stand = Stand::with(None, |_| {});
    let silent = stand.connect();
    stand.listener.stop();
    assert!(is_ended(&silent));
    let port = stand.listener.port().unwrap();
    let taken = Options::new(&format!("127.0.0.1:{port}"), false);
    let second = Listener::open(taken.clone(), None, None).unwrap();
    let error = Listener::open(taken, None, None).err().unwrap();
    assert!(error.text.starts_with("EADDRINUSE: "), "{}", error.text);
    drop(second);
}
