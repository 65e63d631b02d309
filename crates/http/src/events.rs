//! Owns the borders of a stream of events: comments before the first one, and whether the bytes so far end between two.

/// Drops empty lines and comments (lines that begin with a colon) until the first other byte of a line.
#[derive(Debug, Default)]
pub struct Leading {
    is_in_comment: bool,
}

impl Leading {
    /// Returns the place of the first byte that is no part of a comment or an empty line; `None`: there is none.
    pub fn skip(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'\n' => self.is_in_comment = false,
                b':' => self.is_in_comment = true,
                b'\r' => {}
                _ if self.is_in_comment => {}
                _ => return Some(at),
            }
        }
        None
    }
}

/// Whether the bytes sent so far end between two events.
#[derive(Debug)]
pub struct Border {
    is_line_empty: bool,
    is_at: bool,
}

impl Default for Border {
    fn default() -> Self {
        Self { is_line_empty: true, is_at: true }
    }
}

impl Border {
    /// Whether they do.
    pub fn is_at(&self) -> bool {
        self.is_at
    }

    /// Hears of bytes sent. Of all but carriage returns, only the last two can matter.
    pub fn pass(&mut self, bytes: &[u8]) {
        let mut last = bytes.iter().rev().filter(|byte| **byte != b'\r');
        let (second, first) = (last.next(), last.next());
        for byte in first.into_iter().chain(second) {
            self.is_at = *byte == b'\n' && self.is_line_empty;
            self.is_line_empty = *byte == b'\n';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Border, Leading};

    #[test]
    fn comments_and_empty_lines_before_the_first_event_are_skipped() {
        let text = b": ping\r\n\r\n:\n\ndata: 1\n\n";
        for step in 1..text.len() {
            let mut leading = Leading::default();
            let first = text
                .chunks(step)
                .enumerate()
                .find_map(|(at, piece)| Some(at * step + leading.skip(piece)?));
            assert_eq!(first, Some(13), "{step}");
        }
    }

    #[test]
    fn a_border_is_behind_an_empty_line() {
        for (text, is_at) in [
            ("", true),
            ("data: 1\n\n", true),
            ("data: 1\r\n\r\n", true),
            ("data: 1\n\n\r\r\r\r", true),
            ("data: 1\n", false),
            ("data: 1\n\ndata", false),
        ] {
            for step in 1..=text.len().max(1) {
                let mut border = Border::default();
                text.as_bytes().chunks(step).for_each(|piece| border.pass(piece));
                assert_eq!(border.is_at(), is_at, "{text:?} {step}");
            }
        }
    }
}
