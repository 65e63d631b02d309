//! Owns a lane's stream under TLS: writes are sealed and reads opened in place, each direction independently.

use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::{AlertDescription, ExtractedSecrets};

use super::handshake::{NextKeys, alert_text, refused};
use super::records::{
    ALERT, APPLICATION_DATA, EXTRA_BYTES, HANDSHAKE, HEADER_BYTES, Key, PLAIN_BYTES_MAX,
    RECORD_BYTES_MAX, parse_header,
};
use crate::error::{Error, Result};
use crate::lane::stream::Stream;
use crate::limits::{LANE_KEY_RECORDS_MAX, LANE_STEP_BYTES};

/// Key update as a handshake message without its last byte, in which 1 asks for an update in return.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// Session ticket as a handshake message; our vaults send none, and our clients ignore it.
const SESSION_TICKET: u8 = 4;
/// Alert by which the peer closes without an error.
const CLOSE_NOTIFY: u8 = 0;
/// Bytes sealed at once, still in the L2 cache when the system takes them.
const OUT_BYTES: usize = LANE_STEP_BYTES / PLAIN_BYTES_MAX * (PLAIN_BYTES_MAX + EXTRA_BYTES);
/// Bytes opened at once, and the beginning of a record.
const IN_BYTES: usize = OUT_BYTES + RECORD_BYTES_MAX;

/// A stream whose bytes travel in TLS records.
pub struct Secured {
    inner: Arc<dyn Stream>,
    out: Mutex<Out>,
    incoming: Mutex<Incoming>,
    next_keys: Mutex<NextKeys>,
    /// Records per key.
    key_records: u64,
    /// Whether the peer has asked us to change our key.
    is_update_due: AtomicBool,
}

struct Out {
    key: Key,
    buffer: Vec<u8>,
    /// Range of sealed, unsent bytes.
    ready: Range<usize>,
    /// The caller's bytes in that range.
    plain: usize,
}

struct Incoming {
    key: Key,
    buffer: Vec<u8>,
    /// Range of received, unopened bytes.
    sealed: Range<usize>,
    /// Range of opened, unread bytes.
    plain: Range<usize>,
    /// Type of these bytes, if they are not for the lane.
    other: Option<u8>,
}

impl Secured {
    /// Returns a stream over one whose handshake is done.
    pub fn new(
        inner: Arc<dyn Stream>,
        secrets: ExtractedSecrets,
        next_keys: NextKeys,
    ) -> Result<Self> {
        let out =
            Out { key: Key::new(secrets.tx)?, buffer: vec![0; OUT_BYTES], ready: 0..0, plain: 0 };
        let incoming = Incoming {
            key: Key::new(secrets.rx)?,
            buffer: vec![0; IN_BYTES],
            sealed: 0..0,
            plain: 0..0,
            other: None,
        };
        Ok(Self {
            inner,
            out: Mutex::new(out),
            incoming: Mutex::new(incoming),
            next_keys: Mutex::new(next_keys),
            key_records: LANE_KEY_RECORDS_MAX,
            is_update_due: AtomicBool::new(false),
        })
    }

    /// Sets the number of records after which keys change.
    #[cfg(test)]
    pub fn set_key_records(&mut self, records: u64) {
        self.key_records = records;
    }

    /// Seals as much of `parts` as fits the buffer.
    fn fill(&self, out: &mut Out, parts: &[IoSlice<'_>]) -> Result<()> {
        (out.ready, out.plain) = (0..0, 0);
        if out.key.used() >= self.key_records || self.is_update_due.load(Ordering::Relaxed) {
            self.change_key(out)?;
        }
        let mut parts = parts.iter();
        let mut part: &[u8] = &[];
        while out.ready.end + PLAIN_BYTES_MAX + EXTRA_BYTES <= out.buffer.len() {
            let room = &mut out.buffer[out.ready.end..];
            let mut bytes = 0;
            while bytes < PLAIN_BYTES_MAX {
                if part.is_empty() {
                    let Some(next) = parts.next() else { break };
                    part = next;
                    continue;
                }
                let (taken, rest) = part.split_at(part.len().min(PLAIN_BYTES_MAX - bytes));
                room[HEADER_BYTES + bytes..][..taken.len()].copy_from_slice(taken);
                (part, bytes) = (rest, bytes + taken.len());
            }
            if bytes == 0 {
                break;
            }
            out.ready.end += out.key.seal(APPLICATION_DATA, room, bytes)?;
            out.plain += bytes;
        }
        Ok(())
    }

    /// Adds a key update, after which records use the next key.
    fn change_key(&self, out: &mut Out) -> Result<()> {
        self.is_update_due.store(false, Ordering::Relaxed);
        let message = [&KEY_UPDATE[..], &[0]].concat();
        out.buffer[HEADER_BYTES..][..message.len()].copy_from_slice(&message);
        out.ready.end = out.key.seal(HANDSHAKE, &mut out.buffer, message.len())?;
        let next = lock(&self.next_keys).sealing();
        out.key = Key::new(next.map_err(|error| refused(&error))?)?;
        Ok(())
    }

    /// Seals and sends. Bytes count as written once their records are sent; until then the caller must pass them again.
    fn push(
        &self,
        parts: &[IoSlice<'_>],
        send: impl Fn(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut out = lock(&self.out);
        let out = &mut *out;
        if out.ready.is_empty() {
            self.fill(out, parts).map_err(broken)?;
        }
        match send(&[IoSlice::new(&out.buffer[out.ready.clone()])])? {
            0 => return Ok(0),
            bytes => out.ready.start += bytes,
        }
        if out.ready.is_empty() {
            return Ok(out.plain.min(parts.iter().map(|part| part.len()).sum()));
        }
        // The caller checks its deadline and continues.
        Err(ErrorKind::Interrupted.into())
    }

    /// Handles a record that carries no bytes of the lane.
    fn receive_other(&self, incoming: &mut Incoming, kind: u8) -> io::Result<usize> {
        let body = &incoming.buffer[std::mem::take(&mut incoming.plain)];
        match (kind, body) {
            (ALERT, [_, CLOSE_NOTIFY]) => Ok(0),
            (ALERT, [_, alert]) => {
                let text = alert_text(AlertDescription::from(*alert));
                Err(io::Error::other(format!("lane refused: {text}")))
            }
            (HANDSHAKE, [message @ .., request_update @ (0 | 1)])
                if message == KEY_UPDATE.as_slice() =>
            {
                if *request_update == 1 {
                    self.is_update_due.store(true, Ordering::Relaxed);
                }
                let next = lock(&self.next_keys).opening().map_err(io::Error::other)?;
                incoming.key = Key::new(next).map_err(broken)?;
                Err(ErrorKind::Interrupted.into())
            }
            (HANDSHAKE, [SESSION_TICKET, ..]) => Err(ErrorKind::Interrupted.into()),
            _ => Err(io::Error::other("the peer sent a TLS record that does not belong here")),
        }
    }
}

impl Incoming {
    /// End of the next record, if it is complete.
    fn whole(&self) -> Result<Option<usize>> {
        let sealed = &self.buffer[self.sealed.clone()];
        let Some(header) = sealed.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let (_, bytes) = parse_header(*header)?;
        Ok((bytes <= sealed.len()).then_some(self.sealed.start + bytes))
    }

    /// Opens the next record, if it is complete; returns its type.
    fn open(&mut self) -> Result<Option<u8>> {
        let Some(end) = self.whole()? else { return Ok(None) };
        let start = self.sealed.start;
        let (kind, bytes) = self.key.open(&mut self.buffer[start..end])?;
        self.sealed.start = end;
        self.plain = start + HEADER_BYTES..start + HEADER_BYTES + bytes;
        Ok(Some(kind))
    }

    /// Space for received bytes, at least one record long.
    fn room(&mut self) -> &mut [u8] {
        if self.sealed.is_empty() {
            self.sealed = 0..0;
        } else if self.buffer.len() - self.sealed.start < RECORD_BYTES_MAX {
            self.buffer.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
        }
        &mut self.buffer[self.sealed.end..]
    }
}

impl Stream for Secured {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        let incoming = &mut *incoming;
        if let Some(kind) = incoming.other.take() {
            return self.receive_other(incoming, kind);
        }
        let mut filled = 0;
        loop {
            let bytes = incoming.plain.len().min(buffer.len() - filled);
            let from = incoming.plain.start..incoming.plain.start + bytes;
            buffer[filled..filled + bytes].copy_from_slice(&incoming.buffer[from.clone()]);
            (incoming.plain.start, filled) = (from.end, filled + bytes);
            if filled == buffer.len() {
                return Ok(filled);
            }
            let opened = match incoming.open() {
                // Bytes opened before the bad record are valid; the next read fails on it.
                Err(_) if filled > 0 => return Ok(filled),
                opened => opened.map_err(broken)?,
            };
            match opened {
                // An empty record is not skipped here, because a peer could keep this loop busy with them.
                Some(APPLICATION_DATA) if !incoming.plain.is_empty() => {}
                Some(kind) if filled == 0 => return self.receive_other(incoming, kind),
                // Bytes opened before it are read first.
                Some(kind) => {
                    incoming.other = Some(kind);
                    return Ok(filled);
                }
                None if filled > 0 => return Ok(filled),
                None => match self.inner.read(incoming.room())? {
                    0 => return Ok(0),
                    bytes => incoming.sealed.end += bytes,
                },
            }
        }
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.push(parts, |sealed| self.inner.write(sealed))
    }

    fn write_now(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.push(parts, |sealed| self.inner.write_now(sealed))
    }

    fn shutdown(&self) {
        self.inner.shutdown();
    }

    fn is_within_machine(&self) -> bool {
        self.inner.is_within_machine()
    }

    fn limit_unsent(&self, bytes: usize) {
        self.inner.limit_unsent(bytes);
    }

    fn mtu(&self) -> Option<u32> {
        self.inner.mtu()
    }
}

fn broken(error: Error) -> io::Error {
    io::Error::other(error.text)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
