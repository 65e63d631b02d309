//! Owns peers that speak frames by hand: a vault or a client that does what a test says.

use std::io::{Read, Write};
use std::net::TcpListener;

use tierkv_core::lane::client::{Outcome, Rail};
use tierkv_core::lane::frame::{FRAME_BYTES, Frame, Kind};

use super::link::Link;
use super::stand::{Lanes, Vault, timing};

/// One lane, by hand.
pub struct Wire(pub Link);

impl Wire {
    pub fn send(&mut self, frame: Frame, body: &[u8]) {
        self.0.write_all(&[&frame.of(body).encode(), body].concat()).unwrap();
    }

    /// The next frame and its body; none when the peer has ended.
    pub fn next(&mut self) -> Option<(Frame, Vec<u8>)> {
        let mut header = [0; FRAME_BYTES];
        self.0.read_exact(&mut header).ok()?;
        let frame = Frame::parse(&header).unwrap();
        let mut body = vec![0; frame.bytes as usize];
        self.0.read_exact(&mut body).ok()?;
        Some((frame, body))
    }

    /// The text with which the peer refuses.
    pub fn refusal(&mut self) -> String {
        let (frame, body) = self.next().expect("an error frame");
        assert_eq!((frame.kind, frame.request), (Kind::Error, 0));
        assert!(self.next().is_none(), "the connection ends");
        String::from_utf8(body).unwrap()
    }

    /// Waits until the peer has ended, whatever comes before.
    pub fn ended(&mut self) {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = self.0.read_to_end(&mut rest);
    }

    pub fn chunk(&mut self, request: u32, item: u32, offset: usize, record: &[u8], bytes: usize) {
        let frame = Frame {
            item,
            offset: offset as u64,
            record_bytes: record.len() as u64,
            ..Frame::new(Kind::Chunk, request)
        };
        self.send(frame, &record[offset..offset + bytes]);
    }
}

/// A vault by hand and a client of it, its lanes in order.
pub fn vault_by_hand(lanes: u16) -> (Lanes, Vec<Wire>) {
    vault_over(&["127.0.0.1"], lanes)
}

/// The same, with the lanes over several addresses.
pub fn vault_over(hosts: &[&str], lanes: u16) -> (Lanes, Vec<Wire>) {
    let ways: Vec<_> = hosts.iter().map(|host| (*host, None)).collect();
    vault_on(&ways, lanes)
}

/// The same, to each address from one of 127.0.0.x, or as the system chooses.
pub fn vault_on(ways: &[(&str, Option<u8>)], lanes: u16) -> (Lanes, Vec<Wire>) {
    let listen = |(host, _): &(&str, _)| TcpListener::bind(format!("{host}:0")).unwrap();
    let listeners: Vec<_> = ways.iter().map(listen).collect();
    let rail = |(listener, (_, last)): (&TcpListener, &(&str, Option<u8>))| Rail {
        address: listener.local_addr().unwrap().to_string(),
        local: last.map(|last| [127, 0, 0, last].into()),
    };
    let rails = listeners.iter().zip(ways).map(rail).collect();
    let client = Lanes::over(rails, [9; 32], lanes, timing());
    let wires = (0..lanes)
        .map(|lane| {
            let listener = &listeners[usize::from(lane) % listeners.len()];
            let (stream, _) = listener.accept().unwrap();
            let mut wire = Wire(Link::accept(stream));
            let (hello, token) = wire.next().unwrap();
            assert_eq!((hello.kind, hello.item, hello.code), (Kind::Hello, u32::from(lane), lanes));
            assert_eq!(token, [9; 32]);
            wire.send(Frame::new(Kind::Welcome, 0), &[]);
            wire
        })
        .collect();
    assert_eq!(client.next(), (0, Outcome::Up));
    (client, wires)
}

/// A connection to a vault that has said nothing yet.
pub fn connect(vault: &Vault) -> Wire {
    Wire(Link::connect(&vault.address))
}

/// The same without any TLS.
pub fn connect_in_clear(vault: &Vault) -> Wire {
    Wire(Link::in_clear(&vault.address))
}

/// A hello for lane `lane` of `lanes`.
pub fn hello(lane: u32, lanes: u16) -> Frame {
    Frame { item: lane, code: lanes, ..Frame::new(Kind::Hello, 0) }
}

/// A client by hand, welcomed on one lane.
pub fn client_by_hand(vault: &Vault) -> Wire {
    let mut wire = connect(vault);
    wire.send(hello(0, 1), &vault.token());
    assert_eq!(wire.next().unwrap().0.kind, Kind::Welcome);
    wire
}
