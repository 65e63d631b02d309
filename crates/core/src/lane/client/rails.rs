//! Owns the rails that lanes are spread over, and detects a cut one: it is silent while another is not.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::session::Session;
use crate::lane::frame::{Frame, Kind};
use crate::lane::stream::Stream;
use crate::limits::{RAIL_ASK_MS, RAIL_SILENT_MS};

/// One network path to a vault.
#[derive(Debug, Clone)]
pub struct Rail {
    /// `host:port` or `unix:/path`.
    pub address: String,
    /// Local address; `None`: the system chooses.
    pub local: Option<IpAddr>,
}

impl Rail {
    /// Whether both rails share an end, so that one cable may carry both.
    fn shares_end(&self, other: &Self) -> bool {
        self.address == other.address || (self.local.is_some() && self.local == other.local)
    }
}

impl From<&str> for Rail {
    fn from(address: &str) -> Self {
        Self { address: address.to_owned(), local: None }
    }
}

/// A lane on one of several rails. The reader checks for silence, because a pulled cable does not end the connection.
pub struct Watched {
    inner: Arc<dyn Stream>,
    session: Weak<Session>,
    lane: usize,
    /// Times in ms of the session: when the lane last took a byte, and when it asked whether the vault is alive (0: not).
    took: AtomicU64,
    asked: AtomicU64,
}

impl Watched {
    pub fn new(inner: Arc<dyn Stream>, session: &Arc<Session>, lane: usize) -> Self {
        let [took, asked] = [const { AtomicU64::new(0) }; 2];
        Self { inner, session: Arc::downgrade(session), lane, took, asked }
    }

    fn note_heard(&self) {
        if let Some(session) = self.session.upgrade() {
            session.heard[session.rail_of(self.lane)].store(session.now_ms(), Ordering::Relaxed);
        }
    }

    fn note_took(&self) {
        if let Some(session) = self.session.upgrade() {
            self.took.store(session.now_ms(), Ordering::Relaxed);
        }
    }

    /// Checks for silence; called after a tick without a byte.
    fn look(&self) -> io::Result<()> {
        let Some(session) = self.session.upgrade() else { return Ok(()) };
        let at = |when: &AtomicU64| when.load(Ordering::Relaxed);
        let rail = session.rail_of(self.lane);
        let (now, heard, asked) = (session.now_ms(), at(&session.heard[rail]), at(&self.asked));
        let is_another_heard = || session.heard.iter().any(|heard| at(heard) >= asked);
        if !session.is_waiting() {
            self.asked.store(0, Ordering::Relaxed);
        } else if asked == 0 || heard >= asked {
            if now >= heard + RAIL_ASK_MS {
                self.asked.store(now, Ordering::Relaxed);
                session.ping(self.lane);
            }
        } else if now >= asked.max(at(&self.took)) + RAIL_SILENT_MS && is_another_heard() {
            // If the other rails are silent, too, the vault itself has stopped.
            return Err(io::Error::other(session.cut(rail, asked)));
        }
        Ok(())
    }
}

impl Stream for Watched {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer);
        match &read {
            Ok(_) => self.note_heard(),
            Err(error) if is_tick(error) => self.look()?,
            Err(_) => {}
        }
        read
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.inner.write(parts).inspect(|_| self.note_took())
    }

    fn write_now(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.inner.write_now(parts).inspect(|_| self.note_took())
    }

    fn shutdown(&self) {
        self.inner.shutdown();
    }

    fn is_within_machine(&self) -> bool {
        self.inner.is_within_machine()
    }

    fn mtu(&self) -> Option<u32> {
        self.inner.mtu()
    }
}

fn is_tick(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl Session {
    /// Asks the vault on one lane whether it is alive.
    fn ping(&self, lane: usize) {
        let mut state = self.state();
        if let Some(control) = state.control.get_mut(lane) {
            control.push_back((Frame::new(Kind::Ping, 0), Vec::new()));
        }
        drop(state);
        self.wake.notify_all();
    }

    fn rail_of(&self, lane: usize) -> usize {
        lane % self.options.rails.len()
    }

    /// Blames a rail, and other silent rails that share an end with it; returns the reason as text.
    fn cut(&self, rail: usize, asked: u64) -> String {
        let cut = &self.options.rails[rail];
        let all = self.options.rails.iter().zip(&self.heard).enumerate();
        let silent = all.filter(|(number, (other, heard))| {
            *number == rail || (other.shares_end(cut) && heard.load(Ordering::Relaxed) < asked)
        });
        self.blame(silent.map(|(number, _)| number).collect());
        format!("{} is silent, and another way is not", cut.address)
    }

    /// Records the rails that ended the session, or kept it from beginning; does nothing once it has ended.
    pub(super) fn blame(&self, rails: Vec<usize>) {
        let mut state = self.state();
        if state.closed.is_none() && state.failed_rails.is_empty() && self.options.rails.len() > 1 {
            state.failed_rails = rails;
        }
    }

    /// Whether a request is open.
    fn is_waiting(&self) -> bool {
        !self.state().requests.is_empty()
    }
}
