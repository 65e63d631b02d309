//! Owns plain TCP as the yardstick: as many connections as lanes, 1 MiB writes, reads straight into their final place, no checks.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use tierkv_core::crc32c;

/// Most bytes of one write, and of one read.
const STEP_BYTES: usize = 1 << 20;
/// Orders of the near side: send bytes to it, take bytes from it, or take them and compute their checksum.
pub const SEND: u8 = b's';
pub const TAKE: u8 = b't';
pub const CHECK: u8 = b'c';
/// Bytes whose checksum is computed at a time, because they are still in the cache.
const CHECKED_BYTES: usize = 128 << 10;

/// Serves orders on the far side: sends its set, or receives into memory of the same length. Both memories live as long as the process.
pub fn serve(listener: &TcpListener, set: Vec<u8>) {
    // Touched, because the set is touched too.
    let taken = vec![0xFF; set.len()];
    let [set, taken] = [set, taken].map(|memory| memory.leak().as_mut_ptr());
    let memory = [Span { place: set, bytes: 0 }, Span { place: taken, bytes: 0 }];
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        set_up(&stream);
        thread::spawn(move || {
            // Captures whole spans, not their fields, because a bare pointer is not `Send`.
            let [set, taken] = memory;
            let mut order = [0_u8; 17];
            while stream.read_exact(&mut order).is_ok() {
                let [from, bytes] = [1, 9].map(|at| {
                    let word = order[at..at + 8].try_into().unwrap();
                    usize::try_from(u64::from_le_bytes(word)).unwrap()
                });
                if order[0] == SEND {
                    let place = set.place.wrapping_add(from);
                    // SAFETY: the near side asks for parts of the set, and for one thing at a time.
                    send(&mut stream, unsafe { std::slice::from_raw_parts(place, bytes) });
                } else {
                    let is_checked = order[0] == CHECK;
                    take(&mut stream, taken.place.wrapping_add(from), bytes, is_checked);
                    stream.write_all(b"k").unwrap();
                }
            }
        });
    }
}

/// Sets the socket up as lanes do within one machine, because a paced congestion control would slow the yardstick down.
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
fn take(stream: &mut TcpStream, place: *mut u8, bytes: usize, is_checked: bool) {
    let most = if is_checked { CHECKED_BYTES } else { STEP_BYTES };
    let (mut filled, mut checksum) = (0, 0);
    while filled < bytes {
        let at = place.wrapping_add(filled);
        // SAFETY: the callers give `bytes` writable bytes that no other thread uses meanwhile.
        let rest = unsafe { std::slice::from_raw_parts_mut(at, most.min(bytes - filled)) };
        let got = stream.read(rest).unwrap();
        if is_checked {
            checksum = crc32c::append(checksum, &rest[..got]);
        }
        filled += got;
    }
    black_box(checksum);
}

/// Orders the far side to send `bytes` bytes of its set from offset `from`, or to take as many.
pub fn order(stream: &mut TcpStream, what: u8, from: usize, bytes: usize) {
    let mut order = vec![what];
    order.extend_from_slice(&(from as u64).to_le_bytes());
    order.extend_from_slice(&(bytes as u64).to_le_bytes());
    stream.write_all(&order).unwrap();
}

/// Memory that one connection reads into or sends from.
#[derive(Clone, Copy)]
pub struct Span {
    pub place: *mut u8,
    pub bytes: usize,
}

// SAFETY: each span's memory is used by one thread at a time, while its owner waits.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

/// Opens connections to the far side, ready for use.
pub fn connect(address: &str, connections: usize) -> Vec<TcpStream> {
    (0..connections)
        .map(|_| {
            let stream = TcpStream::connect(address).unwrap();
            set_up(&stream);
            stream
        })
        .collect()
}

/// Runs the near side: one connection per span, all at once. `out`: to the far side, otherwise from it.
pub fn run(streams: &mut [TcpStream], spans: &[Span], out: bool) {
    thread::scope(|scope| {
        let mut from = 0;
        for (stream, span) in streams.iter_mut().zip(spans) {
            let (span, at) = (*span, from);
            from += span.bytes;
            scope.spawn(move || {
                let span = span;
                order(stream, if out { TAKE } else { SEND }, at, span.bytes);
                if out {
                    // SAFETY: the caller gives readable bytes that no thread writes meanwhile.
                    send(stream, unsafe { std::slice::from_raw_parts(span.place, span.bytes) });
                    stream.read_exact(&mut [0]).unwrap();
                } else {
                    take(stream, span.place, span.bytes, false);
                }
            });
        }
    });
}
