//! Owns one connection to a node of Valkey: commands out, answers in, the bytes of a record straight to their place.

use std::io::{self, IoSlice, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Parser, Value};
use tierkv_core::error::{Error, Result};
use tierkv_core::lane::stream::{Stream, dial};
use tierkv_core::lane::tls;
use tierkv_core::lane::wire::{Alive, send_all};
use tierkv_core::limits::{
    INBOX_BYTES_MAX, VALKEY_BUFFER_BYTES, VALKEY_DIAL_MS, VALKEY_LINE_BYTES_MAX, VALKEY_TICK_MS,
};

use crate::goal::Source;
use crate::store::Call;

/// User and database that a connection begins with.
#[derive(Debug, Clone, Default)]
pub struct Login {
    /// User of the access list; none: the default one.
    pub user: Option<String>,
    /// None: no login.
    pub password: Option<String>,
    /// Number of the database.
    pub database: i64,
    /// None: in the clear.
    pub tls: Option<tls::Client>,
}

/// An answer, or the head of one.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// A value of that many bytes follows, and must be read to its end.
    Bulk(u64),
    /// There is no value.
    Nil,
    /// A number.
    Int(i64),
    /// That many answers follow.
    List(u64),
    /// A word, such as OK.
    Status,
    /// The server refuses; its words.
    Refused(String),
}

pub struct Connection {
    stream: Arc<dyn Stream>,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
}

/// Before the server's words in an error.
pub const REFUSES: &str = "Valkey refuses: ";

/// The host of `host:port`, without the brackets of an IPv6 address.
pub fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Turns a failure of the client's library into an error.
fn broken(error: &dyn std::fmt::Display) -> Error {
    Error::lane_failed(format!("Valkey's answer cannot be read: {error}"))
}

impl Connection {
    /// Connects and logs in; a replica is told that it is to answer itself.
    ///
    /// # Errors
    /// `LANE_FAILED` with the reason; `CANCELLED`.
    pub fn dial(address: &str, login: &Login, is_replica: bool, call: &Call) -> Result<Self> {
        call.tick()?;
        let within = call.rest().min(Duration::from_millis(VALKEY_DIAL_MS));
        let stream = dial(address, None, within, Duration::from_millis(VALKEY_TICK_MS))?;
        let stream = match &login.tls {
            None => stream,
            Some(client) => {
                let client = client.named(host_of(address))?;
                client.connect(stream, Instant::now() + within, call)?
            }
        };
        let buffer = vec![0; VALKEY_BUFFER_BYTES].into_boxed_slice();
        let mut connection = Self { stream, buffer, at: 0, end: 0 };
        if let Some(password) = &login.password {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = &login.user {
                auth.arg(user);
            }
            connection.ask(auth.arg(password), call)?;
        }
        if login.database != 0 {
            connection.ask(redis::cmd("SELECT").arg(login.database), call)?;
        }
        if is_replica {
            connection.ask(&redis::cmd("READONLY"), call)?;
        }
        Ok(connection)
    }

    /// Sends a command alone and reads its whole answer, of whatever shape.
    ///
    /// # Errors
    /// `LANE_FAILED`, also where the server refuses; `CANCELLED`.
    pub fn ask(&mut self, command: &Cmd, call: &Call) -> Result<Value> {
        self.send(&mut [IoSlice::new(&command.get_packed_command())], call)?;
        let mut ended = None;
        let reader = Reading { connection: self, call, ended: &mut ended };
        let value = Parser::new().parse_value(reader);
        match (ended, value) {
            (Some(error), _) => Err(error),
            (None, Ok(Value::ServerError(refusal))) => {
                let (code, details) = (refusal.code(), refusal.details().unwrap_or_default());
                Err(Error::lane_failed(format!("{REFUSES}{code} {details}")))
            }
            (None, Ok(value)) => Ok(value),
            (None, Err(error)) => Err(broken(&error)),
        }
    }

    /// Sends all of `parts`.
    ///
    /// # Errors
    /// `LANE_FAILED`; the connection is then unusable, as after all errors.
    pub fn send(&mut self, parts: &mut [IoSlice<'_>], call: &Call) -> Result<()> {
        send_all(&*self.stream, parts, call.rest(), call)
    }

    /// Reads the next answer, or its head.
    ///
    /// # Errors
    /// `LANE_FAILED`, `CANCELLED`.
    pub fn reply(&mut self, call: &Call) -> Result<Reply> {
        let line = self.line(call)?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| broken(&"an empty line"))?;
        let number = || rest.parse::<i64>().map_err(|_| broken(&format!("the line {line:?}")));
        match kind {
            "$" => match u64::try_from(number()?) {
                Ok(bytes) if bytes > INBOX_BYTES_MAX as u64 => {
                    Err(broken(&format!("a value of {bytes} bytes")))
                }
                bytes => Ok(bytes.map_or(Reply::Nil, Reply::Bulk)),
            },
            ":" => Ok(Reply::Int(number()?)),
            "*" => Ok(u64::try_from(number()?).map_or(Reply::Nil, Reply::List)),
            "+" => Ok(Reply::Status),
            "_" => Ok(Reply::Nil),
            "-" => Ok(Reply::Refused(rest.to_owned())),
            _ => Err(broken(&format!("the line {line:?}"))),
        }
    }

    /// Reads the end of a value.
    ///
    /// # Errors
    /// As `reply`.
    pub fn end_of_value(&mut self, call: &Call) -> Result<()> {
        match self.line(call)?.as_str() {
            "" => Ok(()),
            line => Err(broken(&format!("{line:?} behind a value"))),
        }
    }

    /// Reads a short value of `bytes` bytes and its end.
    ///
    /// # Errors
    /// As `reply`; also for a value of over 4 KiB.
    pub fn short(&mut self, bytes: u64, call: &Call) -> Result<Vec<u8>> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        if length > VALKEY_LINE_BYTES_MAX {
            return Err(broken(&format!("a short value of {bytes} bytes")));
        }
        let mut value = vec![0; length];
        let mut filled = 0;
        while filled < length {
            filled += self.read(&mut value[filled..], call)?;
        }
        self.end_of_value(call)?;
        Ok(value)
    }

    fn line(&mut self, call: &Call) -> Result<String> {
        let mut line = Vec::new();
        loop {
            if let Some(length) = self.buffer[self.at..self.end].iter().position(|b| *b == b'\n') {
                line.extend_from_slice(&self.buffer[self.at..self.at + length]);
                self.at += length + 1;
                if line.pop().is_some_and(|byte| byte != b'\r') {
                    return Err(broken(&"a line without its end"));
                }
                return String::from_utf8(line).map_err(|_| broken(&"a line that is no text"));
            }
            line.extend_from_slice(&self.buffer[self.at..self.end]);
            if line.len() > VALKEY_LINE_BYTES_MAX {
                return Err(broken(&format!("a line of over {VALKEY_LINE_BYTES_MAX} bytes")));
            }
            (self.at, self.end) = (0, 0);
            let mut buffer = std::mem::take(&mut self.buffer);
            let count = self.some(&mut buffer, call);
            self.buffer = buffer;
            self.end = count?;
        }
    }

    /// Receives at least one byte from the network.
    fn some(&self, buffer: &mut [u8], call: &Call) -> Result<usize> {
        let begun = Instant::now();
        loop {
            // A server that sends a byte now and then must not hold a request beyond its end.
            call.tick()?;
            if let Some(most) = call.silence().filter(|most| begun.elapsed() > *most) {
                let text = format!("a node of Valkey sends no byte for {} ms", most.as_millis());
                return Err(Error::lane_failed(text));
            }
            match self.stream.read(buffer) {
                Ok(0) => return Err(Error::lane_failed("Valkey closed the connection")),
                Ok(count) => return Ok(count),
                Err(error) if is_wait(&error) => {}
                Err(error) => {
                    return Err(Error::lane_failed(format!("receiving from Valkey: {error}")));
                }
            }
        }
    }
}

fn is_wait(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

impl Source for Connection {
    fn read(&mut self, buffer: &mut [u8], call: &Call) -> Result<usize> {
        let ready = &self.buffer[self.at..self.end];
        if ready.is_empty() {
            return self.some(buffer, call);
        }
        let count = ready.len().min(buffer.len());
        buffer[..count].copy_from_slice(&ready[..count]);
        self.at += count;
        Ok(count)
    }
}

/// A connection as the library's parser reads it; keeps the error that ended the reading.
struct Reading<'a> {
    connection: &'a mut Connection,
    call: &'a Call,
    ended: &'a mut Option<Error>,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection.read(buffer, self.call).map_err(|error| {
            let text = error.text.clone();
            *self.ended = Some(error);
            io::Error::other(text)
        })
    }
}

/// Appends one argument of a command.
pub fn push_argument(out: &mut Vec<u8>, argument: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
    out.extend_from_slice(argument);
    out.extend_from_slice(b"\r\n");
}

/// Appends a command of short arguments.
pub fn push_command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        push_argument(out, argument);
    }
}
