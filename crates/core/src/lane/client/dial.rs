//! Owns the opening of one lane: connect, hello, welcome, all within one time.

use std::sync::Arc;
use std::time::Instant;

use super::Options;
use super::session::Session;
use crate::error::{Error, Result};
use crate::lane::frame::{Frame, Kind};
use crate::lane::stream::{Stream, dial};
use crate::lane::wire::{Alive, Reader, WriteBatch};

/// Until when a new lane must be welcomed.
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

/// Lane `lane` of a session, welcomed.
pub fn dial_lane(session: &Session, options: &Options, lane: u16) -> Result<Arc<dyn Stream>> {
    let Options { address, token, lanes, tls, timing, .. } = options;
    let mut stream = dial(address, timing.hello, timing.tick)?;
    session.add_lane(&stream)?;
    let dialling = Dialling { session, until: Instant::now() + timing.hello };
    if let Some(tls) = tls {
        stream = tls.connect(stream, dialling.until, &dialling)?;
    }
    let hello = Frame { item: u32::from(lane), code: *lanes, ..Frame::new(Kind::Hello, 0) };
    let mut batch = WriteBatch::default();
    batch.push_owned(hello, token.to_vec());
    // Whoever does not take our hello may have said why: what it answers is the better reason.
    let _ = batch.send(&*stream, timing.hello, &dialling);
    let mut reader = Reader::new(Arc::clone(&stream), timing.hello);
    let answer = reader.frame(&dialling)?;
    match answer.kind {
        Kind::Welcome => Ok(stream),
        Kind::Error => Err(refused(&reader.body(&answer, &dialling)?)),
        kind => Err(Error::lane_failed(format!("the vault answered hello with {kind:?}"))),
    }
}

/// What an error frame says.
pub fn refused(text: &[u8]) -> Error {
    Error::lane_failed(format!("the vault refused: {}", String::from_utf8_lossy(text)))
}
