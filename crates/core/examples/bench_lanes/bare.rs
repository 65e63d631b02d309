//! Owns the ceiling: the most that processors and memory allow a lane. Records have no frames, sessions or wakes, and one thread
//! serves each connection. A restore receives, checks and decodes in the cache; a save encodes and sends, and the far side checks.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::thread;

use tierkv_core::codec::int8::{Isa, Spans};
use tierkv_core::codec::{Codec, Form};
use tierkv_core::crc32c;
use tierkv_core::geometry::Geometry;
use tierkv_core::record::HEADER_BYTES;

use super::tcp::{CHECK, SEND, Span, order};

/// Approximate bytes received before they are checked and decoded.
const STEP_BYTES: usize = 128 << 10;

/// Pages in equal parts, one per connection, with their geometry and codec.
pub struct Bare<'a> {
    pub geometry: &'a Geometry,
    pub pages: &'a [Span],
    pub codec: Codec,
}

impl Bare<'_> {
    /// Restores the far side's set into all pages. The set must be valid payload everywhere, because headers are not told apart.
    pub fn restore(&self, streams: &mut [TcpStream]) {
        self.share(streams, |stream, pages, set| {
            order(stream, SEND, set.start, set.len());
            let mut window = vec![0; STEP_BYTES];
            for page in pages {
                stream.read_exact(&mut window[..HEADER_BYTES]).unwrap();
                match self.codec {
                    Codec::Raw => receive_raw(stream, *page),
                    Codec::Int8 => receive_int8(stream, self.geometry, *page, &mut window),
                    Codec::Lossless | Codec::Int8MeanHad => unreachable!("no loop of its own"),
                }
            }
        });
    }

    /// Saves all pages to the far side, which has checked them when this returns.
    pub fn save(&self, streams: &mut [TcpStream]) {
        self.share(streams, |stream, pages, set| {
            order(stream, CHECK, set.start, set.len());
            let mut record = vec![0; self.record_bytes()];
            for page in pages {
                let payload = &mut record[HEADER_BYTES..];
                // SAFETY: each page is as long as the geometry's, and nobody writes it meanwhile.
                let checksum =
                    unsafe { Form::from(self.codec).encode(self.geometry, page.place, payload) };
                black_box(checksum.unwrap());
                stream.write_all(&record).unwrap();
            }
            stream.read_exact(&mut [0]).unwrap();
        });
    }

    fn record_bytes(&self) -> usize {
        HEADER_BYTES + self.geometry.payload_bytes(self.codec).unwrap()
    }

    fn share(
        &self,
        streams: &mut [TcpStream],
        work: impl Fn(&mut TcpStream, &[Span], Range<usize>) + Sync,
    ) {
        let share = self.pages.len().div_ceil(streams.len());
        let record_bytes = self.record_bytes();
        thread::scope(|scope| {
            for (index, (stream, pages)) in
                streams.iter_mut().zip(self.pages.chunks(share)).enumerate()
            {
                let from = index * share * record_bytes;
                let set = from..from + pages.len() * record_bytes;
                let work = &work;
                scope.spawn(move || work(stream, pages, set));
            }
        });
    }
}

/// Receives straight into the page, which must be in its canonical form.
fn receive_raw(stream: &mut TcpStream, page: Span) {
    let mut checksum = 0;
    for at in (0..page.bytes).step_by(STEP_BYTES) {
        let place = page.place.wrapping_add(at);
        // SAFETY: each page is writable, and used by the one thread that has it.
        let part =
            unsafe { std::slice::from_raw_parts_mut(place, STEP_BYTES.min(page.bytes - at)) };
        stream.read_exact(part).unwrap();
        checksum = crc32c::append(checksum, part);
    }
    black_box(checksum);
}

/// Receives whole groups, so that no bytes of a window are left over.
fn receive_int8(stream: &mut TcpStream, geometry: &Geometry, page: Span, window: &mut [u8]) {
    let spans = Spans::new((Isa::best(), Codec::Int8), geometry, page.place);
    let group_bytes = spans.group_bytes_max(geometry);
    let step = window.len() / group_bytes * group_bytes;
    let payload_bytes = geometry.payload_bytes(Codec::Int8).unwrap();
    let mut checksum = 0;
    for at in (0..payload_bytes).step_by(step) {
        let part = &mut window[..step.min(payload_bytes - at)];
        stream.read_exact(part).unwrap();
        checksum = crc32c::append(checksum, part);
        let payload = part.as_ptr().wrapping_sub(at);
        // SAFETY: each page is as long as the geometry's and used by the one thread that has it; the span is `part`.
        let decoded = unsafe { spans.decode(geometry, payload, at..at + part.len(), page.place) };
        assert_eq!(decoded, Ok(at + part.len()));
    }
    black_box(checksum);
}
