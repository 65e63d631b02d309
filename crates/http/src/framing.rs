//! Owns where an answer's body ends (RFC 9112, 6), and taking its bytes out of chunks.

use crate::limits::HEAD_BYTES_MAX;

/// How much of the body is still to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes; 0: it is over.
    Length(u64),
    /// Chunks until one of no bytes.
    Chunked(Chunks),
    /// All until the connection is closed.
    UntilClose,
}

/// State between two bytes of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In the size; whether a digit was there.
    Size(bool),
    /// Behind the carriage return after the size: the line's end must follow.
    SizeEnd,
    /// Behind the size: an extension, until the line ends.
    Extension,
    /// So many bytes of data are missing.
    Data,
    /// Behind the data: the end of its line.
    DataEnd,
    /// In trailers; whether their line has a byte.
    Trailer(bool),
    Over,
}

/// Reads a chunked body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    at: At,
    left: u64,
    /// Bytes of extensions and trailers so far.
    beside: usize,
}

impl Default for Chunks {
    fn default() -> Self {
        Self { at: At::Size(false), left: 0, beside: 0 }
    }
}

impl Framing {
    /// Whether the whole body has come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.at == At::Over,
            Self::UntilClose => false,
        }
    }

    /// Appends the body's bytes to `into`; returns how many of `bytes` belong to this answer.
    ///
    /// # Errors
    /// The chunks cannot be read.
    pub fn take(&mut self, bytes: &[u8], into: &mut Vec<u8>) -> Result<usize, &'static str> {
        match self {
            Self::UntilClose => {
                into.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            Self::Length(left) => {
                let count = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                into.extend_from_slice(&bytes[..count]);
                *left -= count as u64;
                Ok(count)
            }
            Self::Chunked(chunks) => chunks.take(bytes, into),
        }
    }
}

impl Chunks {
    fn take(&mut self, bytes: &[u8], into: &mut Vec<u8>) -> Result<usize, &'static str> {
        let mut at = 0;
        while at < bytes.len() && self.at != At::Over {
            if self.at == At::Data {
                let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                let count = left.min(bytes.len() - at);
                into.extend_from_slice(&bytes[at..at + count]);
                self.left -= count as u64;
                at += count;
                if self.left == 0 {
                    self.at = At::DataEnd;
                }
                continue;
            }
            self.step(bytes[at])?;
            at += 1;
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8) -> Result<(), &'static str> {
        self.at = match (self.at, byte) {
            (At::Size(has), b'\n') => self.sized(has)?,
            (At::Size(true), b'\r') => At::SizeEnd,
            (At::Size(true), b';' | b' ' | b'\t') => At::Extension,
            (At::Size(_), digit) => self.digit(digit)?,
            (At::SizeEnd | At::Extension, b'\n') => self.sized(true)?,
            (At::SizeEnd, _) => return Err("the line of a chunk's size does not end"),
            (At::DataEnd, b'\n') => At::Size(false),
            (At::DataEnd, b'\r') => At::DataEnd,
            (At::DataEnd, _) => return Err("a chunk is longer than it says"),
            (At::Trailer(false), b'\n') => At::Over,
            (At::Trailer(has), b'\r') => self.aside(At::Trailer(has))?,
            (At::Trailer(_), b'\n') => self.aside(At::Trailer(false))?,
            (At::Trailer(_), _) => self.aside(At::Trailer(true))?,
            (At::Extension, _) => self.aside(At::Extension)?,
            (At::Data | At::Over, _) => self.at,
        };
        Ok(())
    }

    fn digit(&mut self, byte: u8) -> Result<At, &'static str> {
        let digit = char::from(byte).to_digit(16).ok_or("the size of a chunk is no number")?;
        let left = self.left.checked_mul(16).and_then(|left| left.checked_add(digit.into()));
        self.left = left.ok_or("a chunk is too long")?;
        Ok(At::Size(true))
    }

    fn sized(&self, has_digit: bool) -> Result<At, &'static str> {
        match (has_digit, self.left) {
            (false, _) => Err("a chunk has no size"),
            (true, 0) => Ok(At::Trailer(false)),
            (true, _) => Ok(At::Data),
        }
    }

    fn aside(&mut self, next: At) -> Result<At, &'static str> {
        self.beside += 1;
        if self.beside > HEAD_BYTES_MAX { Err("trailers without an end") } else { Ok(next) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Chunks, Framing};

    fn read(text: &[u8], step: usize) -> Result<(Vec<u8>, usize, bool), &'static str> {
        let mut framing = Framing::Chunked(Chunks::default());
        let (mut body, mut used) = (Vec::new(), 0);
        for piece in text.chunks(step) {
            used += framing.take(piece, &mut body)?;
        }
        Ok((body, used, framing.is_over()))
    }

    #[test]
    fn chunks_are_read_however_they_are_cut() {
        let text = b"3\r\nabc\r\nA;x=\"1\"\r\n0123456789\r\n0\r\nt: 1\r\n\r\nHTTP/1.1 200";
        for step in 1..text.len() {
            let (body, used, is_over) = read(text, step).unwrap();
            assert_eq!(body, b"abc0123456789", "{step}");
            assert_eq!((used, is_over), (text.len() - 12, true), "{step}");
        }
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        for wrong in
            ["\r\n", "x\r\n", "1\r2\r\n", "3\r\nabcd\r\n", "fffffffffffffffff\r\n", ";\r\n"]
        {
            assert!(read(wrong.as_bytes(), 1).is_err(), "{wrong}");
        }
        let endless = [b"0\r\n".as_slice(), &vec![b't'; 70_000]].concat();
        assert!(read(&endless, 4096).is_err());
    }

    #[test]
    fn a_cut_body_is_not_over() {
        let (body, _, is_over) = read(b"5\r\nabc", 2).unwrap();
        assert_eq!((body.as_slice(), is_over), (b"abc".as_slice(), false));
    }
}
