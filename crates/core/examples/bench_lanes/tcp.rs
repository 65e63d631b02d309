//! Owns plain TCP as the yardstick: as many connections as lanes, 1 MiB writes, reads straight into their final place, nothing checked.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Bytes of one write, and at most of one read.
const STEP_BYTES: usize = 1 << 20;
/// What the near side asks for: bytes to it, or from it.
const SEND: u8 = b's';
const TAKE: u8 = b't';

/// The far side: sends its set, or takes into it, as often as asked. The set lives as long as the process.
pub fn serve(listener: &TcpListener, set: Vec<u8>) {
    let set = Span { place: set.leak().as_mut_ptr(), bytes: 0 };
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        set_up(&stream);
        thread::spawn(move || {
            // The whole of it, not its fields one by one.
            let set = set;
            let mut order = [0_u8; 17];
            while stream.read_exact(&mut order).is_ok() {
                let [from, bytes] = [1, 9].map(|at| {
                    let word = order[at..at + 8].try_into().unwrap();
                    usize::try_from(u64::from_le_bytes(word)).unwrap()
                });
                let place = set.place.wrapping_add(from);
                if order[0] == SEND {
                    // SAFETY: the near side asks for parts of the set, and for one thing at a time.
                    send(&mut stream, unsafe { std::slice::from_raw_parts(place, bytes) });
                } else {
                    take(&mut stream, place, bytes);
                    stream.write_all(b"k").unwrap();
                }
            }
        });
    }
}

/// As lanes have it within one machine: a paced congestion control would slow the yardstick down, too.
fn set_up(stream: &TcpStream) {
    stream.set_nodelay(true).unwrap();
    rustix::net::sockopt::set_tcp_congestion(stream, "reno").unwrap();
}

fn send(stream: &mut TcpStream, data: &[u8]) {
    for part in data.chunks(STEP_BYTES) {
        stream.write_all(part).unwrap();
    }
}

/// Reads `bytes` bytes to `place`, which must be writable.
fn take(stream: &mut TcpStream, place: *mut u8, bytes: usize) {
    let mut filled = 0;
    while filled < bytes {
        let at = place.wrapping_add(filled);
        // SAFETY: the callers give `bytes` writable bytes that nobody else uses meanwhile.
        let rest = unsafe { std::slice::from_raw_parts_mut(at, STEP_BYTES.min(bytes - filled)) };
        filled += stream.read(rest).unwrap();
    }
}

/// Memory that one connection reads into, or sends from.
#[derive(Clone, Copy)]
pub struct Span {
    pub place: *mut u8,
    pub bytes: usize,
}

// SAFETY: each span's memory is used by one thread at a time, while its owner waits.
unsafe impl Send for Span {}

/// Connections to the far side, ready for use.
pub fn connect(address: &str, connections: usize) -> Vec<TcpStream> {
    (0..connections)
        .map(|_| {
            let stream = TcpStream::connect(address).unwrap();
            set_up(&stream);
            stream
        })
        .collect()
}

/// The near side: one connection per span, all at once. `out`: to the far side, else from it.
pub fn run(streams: &mut [TcpStream], spans: &[Span], out: bool) {
    thread::scope(|scope| {
        let mut from = 0_u64;
        for (stream, span) in streams.iter_mut().zip(spans) {
            let (span, at) = (*span, from);
            from += span.bytes as u64;
            scope.spawn(move || {
                let span = span;
                let mut order = vec![if out { TAKE } else { SEND }];
                order.extend_from_slice(&at.to_le_bytes());
                order.extend_from_slice(&(span.bytes as u64).to_le_bytes());
                stream.write_all(&order).unwrap();
                if out {
                    // SAFETY: the caller gives readable bytes that nobody writes meanwhile.
                    send(stream, unsafe { std::slice::from_raw_parts(span.place, span.bytes) });
                    stream.read_exact(&mut [0]).unwrap();
                } else {
                    take(stream, span.place, span.bytes);
                }
            });
        }
    });
}
