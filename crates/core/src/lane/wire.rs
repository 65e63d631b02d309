//! Owns the transfer of frames over one stream: complete or not at all, with a limit on every wait.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::frame::{FRAME_BYTES, Frame};
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::lent::LentPlace;
use crate::limits::{
    LANE_HELLO_MS, LANE_SILENT_MS, LANE_STALL_MS, LANE_STEP_BYTES, LANE_STORE_IDLE_MS,
    LANE_TICK_MS, LANE_TOKEN_MS,
};

/// Time limits of a lane.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Interval at which a waiting lane checks whether it must end.
    pub tick: Duration,
    /// Connecting, and the first frame of a lane.
    pub hello: Duration,
    /// A frame that has begun, or one write.
    pub stall: Duration,
    /// An offer without a byte.
    pub store_idle: Duration,
    /// A token that is not used.
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

/// Check at every tick of a wait; an error ends the wait.
pub trait Alive {
    /// Returns `Ok` to continue the wait.
    ///
    /// # Errors
    /// The reason to end it.
    fn tick(&self) -> Result<()>;
}

/// The receiving half of a lane.
pub struct Reader {
    stream: Arc<dyn Stream>,
    stall: Duration,
    /// Deadline of the frame that has begun.
    until: Option<Instant>,
    scratch: Vec<u8>,
    /// Whether the peer has closed the lane.
    pub has_ended: bool,
}

impl Reader {
    /// Reads from `stream`.
    #[must_use]
    pub fn new(stream: Arc<dyn Stream>, stall: Duration) -> Self {
        Self { stream, stall, until: None, scratch: Vec::new(), has_ended: false }
    }

    /// Waits for the next frame, as long as `alive` allows; its body must then be read.
    ///
    /// # Errors
    /// `LANE_FAILED`; the lane is then unusable.
    pub fn frame(&mut self, alive: &dyn Alive) -> Result<Frame> {
        self.until = None;
        let mut header = [0; FRAME_BYTES];
        let begun = self.some(&mut header, alive)?;
        self.until = Some(Instant::now() + self.stall);
        self.exact(&mut header[begun..], alive)?;
        Frame::parse(&header)
    }

    /// Like `frame` for the first frame of a lane, with which a descriptor may come.
    ///
    /// # Errors
    /// As `frame`.
    pub fn first_frame(&mut self, alive: &dyn Alive) -> Result<(Frame, Option<OwnedFd>)> {
        let mut header = [0; FRAME_BYTES];
        loop {
            match self.stream.read_with(&mut header) {
                Ok((0, _)) => return Err(Error::lane_failed("the peer closed the lane")),
                Ok((begun, fd)) => {
                    self.until = Some(Instant::now() + self.stall);
                    self.exact(&mut header[begun..], alive)?;
                    return Ok((Frame::parse(&header)?, fd));
                }
                Err(error) => retry(&error, "receiving", alive)?,
            }
        }
    }

    /// Reads the body of a control frame.
    ///
    /// # Errors
    /// As `frame`.
    pub fn body(&mut self, frame: &Frame, alive: &dyn Alive) -> Result<Vec<u8>> {
        let mut body = vec![0; frame.bytes as usize];
        self.exact(&mut body, alive)?;
        Ok(body)
    }

    /// Reads and discards the body; calls `on_part` for each part.
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

    /// Reads available bytes of the body, at least one.
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
                Ok(0) => {
                    self.has_ended = true;
                    return Err(Error::lane_failed("the peer closed the lane"));
                }
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

/// Continues after an error that only means that no byte came within a tick.
pub(super) fn retry(error: &io::Error, doing: &str, alive: &dyn Alive) -> Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => alive.tick(),
        _ => Err(Error::lane_failed(format!("{doing}: {error}"))),
    }
}

/// Memory that frames are sent from.
pub trait Bytes: Send + Sync {
    /// The whole memory.
    fn bytes(&self) -> &[u8];

    /// Where it lies in memory that can be lent; `None` for other memory.
    fn place(&self) -> Option<LentPlace<'_>> {
        None
    }
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A range of some memory, which is kept until it is sent.
pub struct Body {
    /// The memory.
    pub owner: Arc<dyn Bytes>,
    /// The part.
    pub range: Range<usize>,
}

/// The frames of one write, each with its body in place.
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

    /// Adds a frame without a body, or with a body in shared memory.
    pub fn push(&mut self, frame: Frame, body: Option<Body>) {
        debug_assert_eq!(frame.bytes as usize, body.as_ref().map_or(0, |body| body.range.len()));
        self.headers.push(frame.encode());
        self.body_bytes += frame.bytes as usize;
        self.bodies.push(body);
    }

    /// Adds a frame that owns its body.
    pub fn push_owned(&mut self, frame: Frame, body: Vec<u8>) {
        let frame = frame.of(&body);
        let range = 0..body.len();
        self.push(frame, Some(Body { owner: Arc::new(body), range }));
    }

    /// Sends one frame with a descriptor of memory that is lent; false if the stream takes none, and then nothing is sent.
    ///
    /// # Errors
    /// `LANE_FAILED`; the lane is then unusable.
    pub fn send_with(
        stream: &dyn Stream,
        (frame, body): (Frame, &[u8]),
        fd: BorrowedFd<'_>,
        stall: Duration,
        alive: &dyn Alive,
    ) -> Result<bool> {
        let header = frame.of(body).encode();
        let mut parts = [IoSlice::new(&header), IoSlice::new(body)];
        let mut rest = &mut parts[..];
        let until = Instant::now() + stall;
        let sent = loop {
            match stream.write_with(rest, fd) {
                Ok(sent) => break sent,
                Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(false),
                Err(_) if Instant::now() > until => {
                    return Err(Error::lane_failed("the peer took no descriptor in time"));
                }
                Err(error) => retry(&error, "sending", alive)?,
            }
        };
        IoSlice::advance_slices(&mut rest, sent);
        send_all(stream, rest, stall, alive)?;
        Ok(true)
    }

    /// Counts bytes that stand elsewhere as bytes of the batch, which then takes no further records.
    pub fn count(&mut self, bytes: usize) {
        self.body_bytes += bytes;
    }

    /// Sends the batch and empties it.
    ///
    /// # Errors
    /// `LANE_FAILED`; the lane is then unusable.
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

/// Sends all of `parts`, which are consumed.
///
/// # Errors
/// `LANE_FAILED`; the lane is then unusable.
pub fn send_all(
    stream: &dyn Stream,
    parts: &mut [IoSlice<'_>],
    stall: Duration,
    alive: &dyn Alive,
) -> Result<()> {
    let until = Instant::now() + stall;
    let mut rest = parts;
    // Empty parts are skipped, because writing them would look like a closed stream.
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
