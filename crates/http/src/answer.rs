//! Owns reading an answer from its first byte to its last: head, framing, and comments before the first event.

use std::mem;

use crate::events::Leading;
use crate::framing::Framing;
use crate::head::{self, Found, Head};

/// An answer whose bytes come in pieces of any length.
#[derive(Debug)]
pub struct Answer {
    has_body: bool,
    head: Option<Head>,
    /// Bytes of the body that were not taken yet.
    held: Vec<u8>,
    leading: Leading,
    is_led: bool,
}

impl Answer {
    /// `has_body` is false for the answer to HEAD.
    #[must_use]
    pub fn new(has_body: bool) -> Self {
        let (held, leading) = (Vec::new(), Leading::default());
        Self { has_body, head: None, held, leading, is_led: false }
    }

    /// The head; `None`: it has not come whole.
    #[must_use]
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Takes the head's fields, which nothing else needs.
    pub fn take_fields(&mut self) -> Vec<u8> {
        self.head.as_mut().map(|head| mem::take(&mut head.fields)).unwrap_or_default()
    }

    /// Bytes of the body that were not taken yet.
    pub fn held(&mut self) -> &mut Vec<u8> {
        &mut self.held
    }

    /// Bytes that are still to come, where the head says their number.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        match self.head.as_ref()?.framing {
            Framing::Length(left) => Some(left),
            _ => None,
        }
    }

    /// Whether the last byte has come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.framing.is_over())
    }

    /// Whether its connection may take another request now.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.keeps && head.framing.is_over())
    }

    /// Takes the next bytes, behind those in `input`, which keeps what is not read: a part of a head, or what follows the
    /// answer's end.
    ///
    /// # Errors
    /// The bytes are no answer of HTTP/1.
    pub fn receive(&mut self, bytes: &[u8], input: &mut Vec<u8>) -> Result<(), String> {
        if self.head.is_some() {
            let used = self.take(bytes)?;
            input.extend_from_slice(&bytes[used..]);
            return Ok(());
        }
        input.extend_from_slice(bytes);
        let given = mem::take(input);
        let mut from = 0;
        loop {
            match head::read(&given[from..], self.has_body)? {
                Found::Part => break,
                Found::Interim(length) => from += length,
                Found::Whole(head, length) => {
                    self.head = Some(*head);
                    from += length;
                    from += self.take(&given[from..])?;
                    break;
                }
            }
        }
        input.extend_from_slice(&given[from..]);
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<usize, String> {
        let Some(head) = &mut self.head else { return Ok(0) };
        let before = self.held.len();
        let used = head.framing.take(bytes, &mut self.held)?;
        if head.is_events && !self.is_led {
            let first = self.leading.skip(&self.held[before..]);
            self.is_led = first.is_some();
            let end = first.unwrap_or(self.held.len() - before);
            self.held.drain(before..before + end);
        }
        Ok(used)
    }

    /// The connection was closed; what was held is still to be taken.
    ///
    /// # Errors
    /// The answer is not whole.
    pub fn end(&mut self) -> Result<(), &'static str> {
        let Some(head) = &mut self.head else { return Err("the engine closed the connection") };
        match head.framing {
            Framing::UntilClose => head.framing = Framing::Length(0),
            _ if head.framing.is_over() => {}
            _ => return Err("the engine closed the connection in its answer"),
        }
        Ok(())
    }
}
