//! Owns what fuzzing runs on bytes that travel or lie under keys: whoever dials a vault's TLS, and sealed records.

use std::io::{self, IoSlice};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use tierkv_core::lane::stream::Stream;
use tierkv_core::lane::tls::Server;
use tierkv_core::record::{self, HEADER_BYTES};
use tierkv_core::seal::{PREFIX_BYTES, RecordKeys, SEALED_AROUND, SEALED_EXTRA_BYTES};

use super::certificates::Pair;
use super::records::{header, key};
use super::targets::{Always, feed, make_sound};

/// Type, version and length of a TLS record.
const TLS_HEADER_BYTES: usize = 5;
/// What such a record is made to hold at most: a fuzzer's inputs are short.
const TLS_BODY_BYTES_MAX: u16 = 600;
/// Magic, version and key of a sealed record's prefix.
const KNOWN_BYTES: usize = 8;

/// A peer that sends these bytes, a few at a time, takes whatever it is told, and then ends.
struct Dialler {
    bytes: Vec<u8>,
    sent: AtomicUsize,
}

impl Stream for Dialler {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(feed(&self.bytes, &self.sent, buffer))
    }
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(parts.iter().map(|part| part.len()).sum())
    }
    fn write_now(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write(parts)
    }
    fn shutdown(&self) {}
}

/// What a vault hears of somebody who dials it. With an odd first byte the bytes stand in records whose headers are sound.
pub fn tls(input: &[u8]) {
    static VAULT: LazyLock<Server> = LazyLock::new(|| Pair::new().server());
    let Some((is_sound, rest)) = input.split_first() else { return };
    let mut bytes = rest.to_vec();
    if is_sound % 2 == 1 {
        let mut at = 0;
        while let Some(head) = bytes.get_mut(at..at + TLS_HEADER_BYTES) {
            let body = u16::from_be_bytes([head[3], head[4]]) % TLS_BODY_BYTES_MAX;
            let kind = 20 + head[0] % 4;
            head[..3].copy_from_slice(&[kind, 3, 3]);
            head[3..].copy_from_slice(&body.to_be_bytes());
            at += TLS_HEADER_BYTES + usize::from(body);
        }
    }
    let peer = Arc::new(Dialler { bytes, sent: AtomicUsize::new(0) });
    let until = Instant::now() + Duration::from_secs(60);
    let let_in = VAULT.accept(peer, until, &Always).is_ok();
    assert!(!let_in, "nobody proves who he is without the key to it");
}

/// A sealed record. Bit 0 of the first byte: the rest is what lies in it, else what a vault gives as one; bit 1: what can be sound is.
pub fn sealed(input: &[u8]) {
    static KEYS: LazyLock<RecordKeys> =
        LazyLock::new(|| RecordKeys::parse(&[b'1'; 64]).expect("a key file"));
    let Some((how, rest)) = input.split_first() else { return };
    if how & 1 == 1 {
        let mut plain = rest.to_vec();
        if how & 2 == 2 {
            make_sound(&mut plain);
        }
        return open_sealed(&KEYS, &plain);
    }
    // Also what people write: a file of keys.
    let _ = RecordKeys::parse(rest);
    let mut payload = rest.to_vec();
    if how & 2 == 2 && payload.len() >= KNOWN_BYTES {
        let known = seal(&KEYS, b"");
        payload[..KNOWN_BYTES].copy_from_slice(&known[HEADER_BYTES..][..KNOWN_BYTES]);
    }
    let opened = KEYS.open(&[0; HEADER_BYTES], &mut payload);
    assert!(opened.is_err(), "nobody seals without the key");
}

fn seal(keys: &RecordKeys, plain: &[u8]) -> Vec<u8> {
    let mut made = vec![0; plain.len() + SEALED_EXTRA_BYTES];
    made[SEALED_AROUND.0..][..plain.len()].copy_from_slice(plain);
    keys.seal(&mut made, &header(&key(1), 1)).expect("random bytes");
    made
}

/// What is sealed comes out again, if it is a record.
fn open_sealed(keys: &RecordKeys, plain: &[u8]) {
    let mut made = seal(keys, plain);
    record::verify(&made).expect("a vault takes it");
    let (outer, payload) = made.split_at_mut(HEADER_BYTES);
    let opened = keys.open(outer, payload);
    let inner = record::parse(plain).map(|parsed| parsed.header);
    let inner =
        inner.ok().filter(|inner| inner.payload_bytes == (plain.len() - HEADER_BYTES) as u64);
    assert_eq!(opened.as_ref().ok().map(|(header, _)| header), inner.as_ref());
    if let Ok((_, at)) = opened {
        assert_eq!(at.start, PREFIX_BYTES + HEADER_BYTES);
        assert_eq!(payload[at], plain[HEADER_BYTES..]);
    }
}
