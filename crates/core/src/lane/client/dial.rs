//! Owns the opening of one lane: connect, hello and welcome within one time limit.

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
    let mut batch = WriteBatch::default();
    batch.push_owned(hello, token.to_vec());
    // A vault that does not take the hello may have sent a reason, which is the better error.
    let _ = batch.send(&*stream, timing.hello, &dialling);
    let mut reader = Reader::new(Arc::clone(&stream), timing.hello);
    let answer = reader.frame(&dialling)?;
    match answer.kind {
        Kind::Welcome if are_several => Ok(Arc::new(Watched::new(stream, session, lane.into()))),
        Kind::Welcome => Ok(stream),
        Kind::Error => Err(refused(&reader.body(&answer, &dialling)?)),
        kind => Err(Error::lane_failed(format!("the vault answered hello with {kind:?}"))),
    }
}

/// Turns the text of an error frame into an error.
pub fn refused(text: &[u8]) -> Error {
    Error::lane_failed(format!("the vault refused: {}", String::from_utf8_lossy(text)))
}
