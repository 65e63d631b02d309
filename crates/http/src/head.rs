//! Owns reading an answer's head: its status, its fields as text, and what they say of the body.

use crate::framing::{Chunks, Framing};
use crate::limits::{HEAD_BYTES_MAX, HEADERS_MAX};

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    /// Status.
    pub status: u16,
    /// Fields as `name\nvalue` joined by `\n`, names in lower case, bytes as they came.
    pub fields: Vec<u8>,
    /// Where the body ends.
    pub framing: Framing,
    /// Whether the connection may take another request.
    pub keeps: bool,
    /// Whether the body is a stream of events as the engine wrote them.
    pub is_events: bool,
}

/// Content of some bytes.
#[derive(Debug)]
pub enum Found {
    /// No whole head yet.
    Part,
    /// An interim answer of so many bytes, which is skipped.
    Interim(usize),
    /// A head of so many bytes.
    Whole(Box<Head>, usize),
}

/// Reads the first head in `bytes`; `has_body` is false for the answer to HEAD.
///
/// # Errors
/// These bytes are no head of HTTP/1.
pub fn read(bytes: &[u8], has_body: bool) -> Result<Found, String> {
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut fields);
    let read = answer.parse(bytes).map_err(|error| format!("the answer's head: {error}"))?;
    let (length, is_whole) = match read {
        httparse::Status::Complete(length) => (length, true),
        httparse::Status::Partial => (bytes.len(), false),
    };
    // Whole or not, so that it does not matter how a head is cut.
    if length > HEAD_BYTES_MAX {
        return Err(format!("the answer's head is longer than {HEAD_BYTES_MAX} bytes"));
    }
    if !is_whole {
        return Ok(Found::Part);
    }
    let status = answer.code.unwrap_or(0);
    if (100..200).contains(&status) && status != 101 {
        return Ok(Found::Interim(length));
    }
    let mut said = Said::default();
    let mut text = Vec::with_capacity(length);
    for field in answer.headers.iter() {
        said.hear(field.name, field.value)?;
        text.extend(field.name.bytes().map(|byte| byte.to_ascii_lowercase()));
        text.push(b'\n');
        text.extend_from_slice(field.value);
        text.push(b'\n');
    }
    text.pop();
    let framing = said.framing(has_body && !matches!(status, 204 | 304));
    let keeps = framing != Framing::UntilClose && said.keeps(answer.version == Some(1));
    let is_events = said.is_events && !said.is_encoded;
    let head = Head { status, fields: text, framing, keeps, is_events };
    Ok(Found::Whole(Box::new(head), length))
}

/// Meaning of the fields for the body and the connection.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each says something else of the answer")]
struct Said {
    length: Option<u64>,
    coding: Option<bool>,
    closes: bool,
    stays: bool,
    is_events: bool,
    is_encoded: bool,
}

impl Said {
    fn hear(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        if is("content-length") {
            self.hear_length(value)?;
        } else if is("transfer-encoding") {
            let last = value.rsplit(|byte| *byte == b',').next().unwrap_or(value);
            self.coding = Some(last.trim_ascii().eq_ignore_ascii_case(b"chunked"));
        } else if is("connection") {
            for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                self.closes |= option.eq_ignore_ascii_case(b"close");
                self.stays |= option.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if is("content-type") {
            self.is_events = value.starts_with(b"text/event-stream");
        } else if is("content-encoding") {
            self.is_encoded = !value.eq_ignore_ascii_case(b"identity");
        }
        Ok(())
    }

    fn hear_length(&mut self, value: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(value).unwrap_or("");
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let length = text.parse().ok().filter(|_| is_number);
        let wrong = || format!("content-length {text:?} is no length");
        let length: u64 = length.ok_or_else(wrong)?;
        if self.length.is_some_and(|before| before != length) {
            return Err("the answer has two lengths".into());
        }
        self.length = Some(length);
        Ok(())
    }

    fn framing(&self, has_body: bool) -> Framing {
        match (has_body, self.coding, self.length) {
            (false, _, _) => Framing::Length(0),
            (true, Some(true), _) => Framing::Chunked(Chunks::default()),
            (true, None, Some(length)) => Framing::Length(length),
            (true, _, _) => Framing::UntilClose,
        }
    }

    fn keeps(&self, is_newest: bool) -> bool {
        !self.closes && (is_newest || self.stays)
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, Head, read};
    use crate::framing::{Chunks, Framing};

    fn whole(text: &str) -> Head {
        match read(text.as_bytes(), true).unwrap() {
            Found::Whole(head, length) => {
                assert_eq!(length, text.len());
                *head
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_head_says_where_the_body_ends() {
        let head = whole("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\n");
        assert_eq!((head.status, head.framing, head.keeps), (200, Framing::Length(5), true));
        assert_eq!(head.fields, b"content-length\n5\nx-a\nb");
        let both = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(whole(both).framing, Framing::Chunked(Chunks::default()));
        let closed = whole("HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!((closed.framing, closed.keeps), (Framing::UntilClose, false));
        assert_eq!(whole("HTTP/1.1 204 No\r\n\r\n").framing, Framing::Length(0));
        assert!(!whole("HTTP/1.1 204 No\r\nconnection: Close\r\n\r\n").keeps);
        assert!(!whole("HTTP/1.0 204 No\r\n\r\n").keeps);
        assert!(whole("HTTP/1.0 204 No\r\nconnection: keep-alive\r\n\r\n").keeps);
    }

    #[test]
    fn events_are_told_by_their_type_unless_they_are_encoded() {
        let events = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n";
        assert!(whole(&format!("{events}\r\n")).is_events);
        assert!(!whole(&format!("{events}content-encoding: gzip\r\n\r\n")).is_events);
    }

    #[test]
    fn a_head_comes_in_parts_and_after_interim_answers() {
        assert!(matches!(read(b"HTTP/1.1 200 OK\r\nx", true), Ok(Found::Part)));
        assert!(matches!(read(b"HTTP/1.1 100 Continue\r\n\r\nHT", true), Ok(Found::Interim(25))));
    }

    #[test]
    fn no_head_and_two_lengths_are_errors() {
        assert!(read(b"SSH-2.0-x\r\n", true).is_err());
        let two = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n";
        assert!(read(two, true).is_err());
        assert!(read(b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n", true).is_err());
        let endless = [b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &vec![b'a'; 70_000]].concat();
        assert!(read(&endless, true).is_err());
        assert!(read(&[&endless, b"\r\n\r\n".as_slice()].concat(), true).is_err());
    }
}
