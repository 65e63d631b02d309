//! Owns the tests that secured streams are TLS: rustls as the peer, key changes on both sides, damaged records.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::pki_types::PrivateKeyDer;
use rustls::server::ServerConfig;
use rustls::{ServerConnection, StreamOwned};

use super::secured::Secured;
use super::*;
use crate::lane::stream::dial;

const BYTES: usize = 3_000_001;

struct Patient;

impl Alive for Patient {
    fn tick(&self) -> Result<()> {
        Ok(())
    }
}

type Vault = StreamOwned<ServerConnection, TcpStream>;

fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()[0]).collect()
}

/// Starts a vault that is only rustls; returns a client connected to it.
fn vault(serve: impl FnOnce(Vault) + Send + 'static) -> (Secured, JoinHandle<()>) {
    let made = rcgen::generate_simple_self_signed(vec!["vault.test".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    // The server sends session tickets, which is the default of rustls.
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        serve(StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), stream));
    });
    let client = Client::new(made.cert.pem().as_bytes(), "vault.test", None).unwrap();
    let stream = dial(&address, None, Duration::from_secs(30), Duration::from_secs(30)).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let peer =
        UnbufferedClientConnection::new(Arc::clone(&client.config), client.name.clone()).unwrap();
    let (secrets, keys) = shake(peer, &*stream, until, &Patient).unwrap();
    (Secured::new(stream, secrets, keys).unwrap(), serving)
}

fn write_all(stream: &Secured, bytes: &[u8]) {
    // The parts are empty, odd, or longer than a record.
    let mut at = 0;
    while at < bytes.len() {
        let (near, far) = ((at + 41).min(bytes.len()), (at + 70_000).min(bytes.len()));
        let parts = [&bytes[at..near], &[], &bytes[near..far]].map(IoSlice::new);
        match stream.write(&parts) {
            Ok(taken) => at += taken,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted),
        }
    }
}

fn read_all(stream: &Secured, bytes: usize) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), vec![0; 50_000]);
    while all.len() < bytes {
        match stream.read(&mut part) {
            Ok(0) => panic!("the end after {} bytes", all.len()),
            Ok(came) => all.extend_from_slice(&part[..came]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}"),
        }
    }
    all
}

#[test]
fn keys_change_on_both_sides_and_no_byte_is_lost() {
    let (mut secured, serving) = vault(|mut vault| {
        let mut received = vec![0; BYTES];
        vault.read_exact(&mut received).unwrap();
        for part in received.chunks(400_000) {
            vault.conn.refresh_traffic_keys().unwrap();
            vault.write_all(part).unwrap();
        }
        // Ends when the client does; these bytes were sealed after its key changes.
        let mut rest = Vec::new();
        let _ = vault.read_to_end(&mut rest);
        assert_eq!(rest, noise(5000));
    });
    secured.set_key_records(3);
    let sent = noise(BYTES);
    write_all(&secured, &sent);
    assert!(read_all(&secured, BYTES) == sent);
    write_all(&secured, &noise(5000));
    secured.shutdown();
    serving.join().unwrap();
}

#[test]
fn what_was_changed_on_the_way_ends_the_stream() {
    let (secured, serving) = vault(|mut vault| {
        vault.write_all(&noise(100)).unwrap();
        // A record that was not sealed with the keys.
        let forged = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
        vault.sock.write_all(&forged).unwrap();
    });
    assert_eq!(read_all(&secured, 100), noise(100));
    let error = secured.read(&mut [0; 100]).unwrap_err();
    assert!(error.to_string().contains("does not verify"), "{error}");
    serving.join().unwrap();
}

#[test]
fn what_came_before_an_alert_is_read_first() {
    let (secured, serving) = vault(|mut vault| {
        vault.flush().unwrap();
        vault.conn.writer().write_all(&noise(5000)).unwrap();
        let forged = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
        vault.conn.read_tls(&mut &forged[..]).unwrap();
        vault.conn.process_new_packets().unwrap_err();
        let mut sealed = Vec::new();
        while vault.conn.wants_write() {
            vault.conn.write_tls(&mut sealed).unwrap();
        }
        // Records and alert arrive together.
        vault.sock.write_all(&sealed).unwrap();
    });
    serving.join().unwrap();
    assert_eq!(read_all(&secured, 5000), noise(5000));
    let error = secured.read(&mut [0; 100]).unwrap_err();
    assert!(error.to_string().contains("lane refused"), "{error}");
}

#[test]
fn a_peer_that_says_goodbye_has_ended() {
    let (secured, serving) = vault(|mut vault| {
        vault.write_all(&noise(10)).unwrap();
        vault.conn.send_close_notify();
        vault.flush().unwrap();
        let _ = vault.read(&mut [0; 1]);
    });
    assert_eq!(read_all(&secured, 10), noise(10));
    assert_eq!(secured.read(&mut [0; 1]).unwrap(), 0);
    secured.shutdown();
    serving.join().unwrap();
}
