//! Owns the moving of frames over one stream: whole or not at all, with an end to every wait.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::frame::{FRAME_BYTES, Frame};
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::limits::{
    LANE_HELLO_MS, LANE_SILENT_MS, LANE_STALL_MS, LANE_STEP_BYTES, LANE_STORE_IDLE_MS,
    LANE_TICK_MS, LANE_TOKEN_MS,
};

/// How long anything may take.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// How often a waiting lane looks whether it is to end.
    pub tick: Duration,
    /// Connecting, and the first frame of a lane.
    pub hello: Duration,
    /// A frame that has begun, or a batch of sending.
    pub stall: Duration,
    /// An offer without a byte.
    pub store_idle: Duration,
    /// A token that nobody uses.
    pub token: Duration,
    /// A peer without a byte while requests are open.
    pub silent: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            tick: ms(LANE_TICK_MS),
            hello: ms(LANE_HELLO_MS),
            stall: ms(LANE_STALL_MS),
            store_idle: ms(LANE_STORE_IDLE_MS),
            token: ms(LANE_TOKEN_MS),
            silent: ms(LANE_SILENT_MS),
        }
    }
}

/// Asked at every tick: an error ends the wait.
pub trait Alive {
    /// Whether to go on.
    ///
    /// # Errors
    /// Why not.
    fn tick(&self) -> Result<()>;
}

/// The receiving half of a lane.
pub struct Reader {
    stream: Arc<dyn Stream>,
    stall: Duration,
    /// Until when the frame that has begun must be whole.
    until: Option<Instant>,
    scratch: Vec<u8>,
}

impl Reader {
    /// Reads from `stream`.
    #[must_use]
    pub fn new(stream: Arc<dyn Stream>, stall: Duration) -> Self {
        Self { stream, stall, until: None, scratch: Vec::new() }
    }

    /// Waits for the next frame for as long as `alive` says; its body is still to be read.
    ///
    /// # Errors
    /// `LANE_FAILED`: the lane is of no use any more.
    pub fn frame(&mut self, alive: &dyn Alive) -> Result<Frame> {
        self.until = None;
        let mut header = [0; FRAME_BYTES];
        let begun = self.some(&mut header, alive)?;
        self.until = Some(Instant::now() + self.stall);
        self.exact(&mut header[begun..], alive)?;
        Frame::parse(&header)
    }

    /// The body of a control frame.
    ///
    /// # Errors
    /// As `frame`.
    pub fn body(&mut self, frame: &Frame, alive: &dyn Alive) -> Result<Vec<u8>> {
        let mut body = vec![0; frame.bytes as usize];
        self.exact(&mut body, alive)?;
        Ok(body)
    }

    /// Reads the body and forgets it; `on_part` is called for every part.
    ///
    /// # Errors
    /// As `frame`.
    pub fn skip(&mut self, bytes: usize, alive: &dyn Alive, on_part: &dyn Fn()) -> Result<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(LANE_STEP_BYTES, 0);
        let mut rest = bytes;
        while rest > 0 {
            rest -= self.some(&mut scratch[..rest.min(LANE_STEP_BYTES)], alive)?;
            on_part();
        }
        self.scratch = scratch;
        Ok(())
    }

    /// What is there of the body, at least a byte.
    ///
    /// # Errors
    /// As `frame`.
    pub fn some(&mut self, buffer: &mut [u8], alive: &dyn Alive) -> Result<usize> {
        loop {
            if self.until.is_some_and(|until| Instant::now() > until) {
                let ms = self.stall.as_millis();
                return Err(Error::lane_failed(format!("a frame was not whole after {ms} ms")));
            }
            match self.stream.read(buffer) {
                Ok(0) => return Err(Error::lane_failed("the peer closed the lane")),
                Ok(bytes) => return Ok(bytes),
                Err(error) => retry(&error, "receiving", alive)?,
            }
        }
    }

    fn exact(&mut self, buffer: &mut [u8], alive: &dyn Alive) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            filled += self.some(&mut buffer[filled..], alive)?;
        }
        Ok(())
    }
}

/// Goes on after what is no failure: nothing was there within a tick.
pub(super) fn retry(error: &io::Error, doing: &str, alive: &dyn Alive) -> Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => alive.tick(),
        _ => Err(Error::lane_failed(format!("{doing}: {error}"))),
    }
}

/// Memory that frames are sent from.
pub trait Bytes: Send + Sync {
    /// All of it.
    fn bytes(&self) -> &[u8];
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A part of some memory, kept until it is sent.
pub struct Body {
    /// The memory.
    pub owner: Arc<dyn Bytes>,
    /// The part.
    pub range: Range<usize>,
}

/// What one write of a lane sends: frames, each with its body in place.
#[derive(Default)]
pub struct WriteBatch {
    headers: Vec<[u8; FRAME_BYTES]>,
    bodies: Vec<Option<Body>>,
    body_bytes: usize,
}

impl WriteBatch {
    /// Frames in it.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.headers.len()
    }

    /// Bytes of all bodies.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Adds a frame without a body, or one whose body stands in memory of somebody else.
    pub fn push(&mut self, frame: Frame, body: Option<Body>) {
        debug_assert_eq!(frame.bytes as usize, body.as_ref().map_or(0, |body| body.range.len()));
        self.headers.push(frame.encode());
        self.body_bytes += frame.bytes as usize;
        self.bodies.push(body);
    }

    /// Puts a frame without a body before all others.
    pub fn lead(&mut self, frame: Frame) {
        self.headers.insert(0, frame.encode());
        self.bodies.insert(0, None);
    }

    /// Adds a frame with a body of its own.
    pub fn push_owned(&mut self, frame: Frame, body: Vec<u8>) {
        let frame = frame.of(&body);
        let range = 0..body.len();
        self.push(frame, Some(Body { owner: Arc::new(body), range }));
    }

    /// Sends all of it and is empty afterwards.
    ///
    /// # Errors
    /// `LANE_FAILED`: the lane is of no use any more.
    pub fn send(&mut self, stream: &dyn Stream, stall: Duration, alive: &dyn Alive) -> Result<()> {
        let mut parts = Vec::with_capacity(self.headers.len() * 2);
        for (header, body) in self.headers.iter().zip(&self.bodies) {
            parts.push(IoSlice::new(header));
            if let Some(Body { owner, range }) = body {
                parts.push(IoSlice::new(&owner.bytes()[range.clone()]));
            }
        }
        send_all(stream, &mut parts, stall, alive)?;
        self.headers.clear();
        self.bodies.clear();
        self.body_bytes = 0;
        Ok(())
    }
}

/// Sends all of `parts`, which are used up.
///
/// # Errors
/// `LANE_FAILED`: the lane is of no use any more.
pub fn send_all(
    stream: &dyn Stream,
    parts: &mut [IoSlice<'_>],
    stall: Duration,
    alive: &dyn Alive,
) -> Result<()> {
    let until = Instant::now() + stall;
    let mut rest = parts;
    // Parts without a byte would look like a stream that takes nothing.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        if Instant::now() > until {
            let ms = stall.as_millis();
            return Err(Error::lane_failed(format!("the peer took too little in {ms} ms")));
        }
        match stream.write(rest) {
            Ok(0) => return Err(Error::lane_failed("the peer closed the lane")),
            Ok(bytes) => IoSlice::advance_slices(&mut rest, bytes),
            Err(error) => retry(&error, "sending", alive)?,
        }
    }
    Ok(())
}
