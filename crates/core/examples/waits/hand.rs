//! Owns a client of lanes by hand, so that the time of each record's arrival is seen, and the vault it speaks to.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use tierkv_core::lane::frame::{FRAME_BYTES, Frame, Kind};
use tierkv_core::lane::server::{Options, Right, Server, Token};
use tierkv_core::listener::{self, Listener};
use tierkv_core::store::Store;

use super::MIB;
use super::records::key;

/// A vault's lanes on a port of its own.
pub struct Vault {
    pub server: Arc<Server>,
    pub listener: Listener,
}

impl Vault {
    pub fn open(store: Store, host: &str) -> Self {
        Self::over(Arc::new(store), host)
    }

    pub fn over(store: Arc<Store>, host: &str) -> Self {
        let server = Arc::new(Server::new(store, Options::new(64 * MIB, 256 * MIB)));
        let at = listener::Options::new(&format!("{host}:0"), false);
        let listener = Listener::open(at, Some(Arc::clone(&server)), None).unwrap();
        Self { server, listener }
    }

    pub fn port(&self) -> u16 {
        self.listener.port().unwrap()
    }

    /// Opens a session of so many lanes.
    pub fn session(&self, token: u8, lanes: u16) -> Vec<Wire> {
        let token: Token = [token; 32];
        self.server.admit(token, Right { may_store: true, account: 0 });
        let wire = |lane| Wire::open(&format!("127.0.0.1:{}", self.port()), token, lane, lanes);
        (0..lanes).map(wire).collect()
    }
}

/// One lane.
pub struct Wire(TcpStream);

impl Wire {
    pub fn open(address: &str, token: Token, lane: u16, lanes: u16) -> Self {
        let mut wire = Self(TcpStream::connect(address).unwrap());
        wire.0.set_nodelay(true).unwrap();
        let hello = Frame { item: lane.into(), code: lanes, ..Frame::new(Kind::Hello, 0) };
        wire.send(hello, &token);
        assert_eq!(wire.next().unwrap().kind, Kind::Welcome);
        wire
    }

    pub fn send(&mut self, frame: Frame, body: &[u8]) {
        self.0.write_all(&[&frame.of(body).encode(), body].concat()).unwrap();
    }

    pub fn fetch(&mut self, request: u32, numbers: std::ops::Range<u64>) {
        let mut body = key(0).namespace.to_vec();
        for key in numbers.map(key) {
            body.extend(
                [&key.block_hash[..], &key.group.to_le_bytes(), &key.shard.to_le_bytes()].concat(),
            );
        }
        self.send(Frame::new(Kind::Fetch, request), &body);
    }

    /// The next frame, its body read; `None` at the end.
    pub fn next(&mut self) -> Option<Frame> {
        let mut header = [0; FRAME_BYTES];
        self.0.read_exact(&mut header).ok()?;
        let frame = Frame::parse(&header).unwrap();
        let mut body = vec![0; frame.bytes as usize];
        self.0.read_exact(&mut body).ok()?;
        Some(frame)
    }

    pub fn end(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    pub fn clone(&self) -> Self {
        Self(self.0.try_clone().unwrap())
    }
}
