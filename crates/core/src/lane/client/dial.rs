//! Owns the opening of one lane: connect, hello and welcome within one time limit.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Options;
use super::rails::{Rail, Watched};
use super::session::Session;
use crate::error::{Error, Result};
use crate::lane::frame::{Frame, Kind};
use crate::lane::stream::{Stream, dial};
use crate::lane::wire::{Alive, Reader, WriteBatch};
use crate::limits::{RAIL_DIAL_MS, RAIL_SOCKET_BYTES, RAIL_TICK_MS};

/// Deadline for the welcome of a new lane.
struct Dialling<'a> {
    session: &'a Session,
    until: Instant,
}

impl Alive for Dialling<'_> {
    fn tick(&self) -> Result<()> {
        self.session.tick()?;
        if Instant::now() > self.until {
            return Err(Error::lane_failed("the vault did not welcome the lane in time"));
        }
        Ok(())
    }
}

/// Opens lane `lane` of a session; returns its stream after the welcome.
pub fn dial_lane(session: &Arc<Session>, options: &Options, lane: u16) -> Result<Arc<dyn Stream>> {
    let rail = usize::from(lane) % options.rails.len();
    open_lane(session, options, lane, &options.rails[rail])
        .inspect_err(|_| session.blame(vec![rail]))
}

fn open_lane(
    session: &Arc<Session>,
    options: &Options,
    lane: u16,
    Rail { address, local }: &Rail,
) -> Result<Arc<dyn Stream>> {
    let Options { rails, token, lanes, tls, timing, .. } = options;
    let are_several = rails.len() > 1;
    let (within, tick) = if are_several {
        (Duration::from_millis(RAIL_DIAL_MS), Duration::from_millis(RAIL_TICK_MS))
    } else {
        (timing.hello, timing.tick)
    };
    let mut stream = dial(address, *local, within, tick)?;
    session.add_lane(&stream)?;
    let dialling = Dialling { session, until: Instant::now() + within };
    if let Some(tls) = tls {
        stream = tls.connect(stream, dialling.until, &dialling)?;
    }
    let mut hello = Frame { item: u32::from(lane), code: *lanes, ..Frame::new(Kind::Hello, 0) };
    if are_several {
        stream.limit_unsent(RAIL_SOCKET_BYTES);
        hello.offset = rails.len() as u64;
    }
    // A vault that does not take the hello may have sent a reason, which is the better error.
    let _ = if let Some(fd) = lent(options, lane, &*stream) {
        let hello = Frame { record_bytes: 1, ..hello };
        WriteBatch::send_with(&*stream, (hello, token), fd.as_fd(), timing.hello, &dialling)
    } else {
        let mut batch = WriteBatch::default();
        batch.push_owned(hello, token.to_vec());
        batch.send(&*stream, timing.hello, &dialling).map(|()| true)
    };
    let mut reader = Reader::new(Arc::clone(&stream), timing.hello);
    let (answer, lent) = reader.first_frame(&dialling)?;
    if answer.kind == Kind::Welcome {
        session.welcomed(&answer, lent.as_ref().filter(|_| stream.is_own_user()));
    }
    match answer.kind {
        Kind::Welcome if are_several => Ok(Arc::new(Watched::new(stream, session, lane.into()))),
        Kind::Welcome => Ok(stream),
        Kind::Error => Err(refused(&reader.body(&answer, &dialling)?)),
        kind => Err(Error::lane_failed(format!("the vault answered hello with {kind:?}"))),
    }
}

/// A descriptor of our records' memory, for the first lane to a vault of our user on this machine.
fn lent(options: &Options, lane: u16, stream: &dyn Stream) -> Option<OwnedFd> {
    let outbox = options.lends.as_ref().filter(|_| lane == 0 && stream.is_own_user())?;
    outbox.lendable()?.for_readers().ok()
}

/// Turns the text of an error frame into an error.
pub fn refused(text: &[u8]) -> Error {
    Error::lane_failed(format!("the vault refused: {}", String::from_utf8_lossy(text)))
}
