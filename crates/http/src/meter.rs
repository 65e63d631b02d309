//! Owns counting an answer's tokens as it passes: the engine's own count, else its events; nothing is parsed.

use memchr::memmem;

/// Begins the data of an event; a comment has none.
const DATA: &[u8] = b"\ndata:";
/// Inside a JSON string the quote would be escaped, so this is the engine's own field.
const TOTAL: &[u8] = b"\"total_tokens\":";
const ANSWER: &[u8] = b"\"completion_tokens\":";
/// Anthropic's API reports no total, but the parts of the prompt and the answer.
const PARTS: [&[u8]; 3] =
    [b"\"input_tokens\":", b"\"cache_read_input_tokens\":", b"\"cache_creation_input_tokens\":"];
const OUTPUT: &[u8] = b"\"output_tokens\":";
const DIGITS_MAX: usize = 24;
/// Bytes kept of each piece, because a name and its number may be cut in two.
const TAIL_BYTES: usize = PARTS[2].len() + DIGITS_MAX;

/// Counts the tokens of one answer.
#[derive(Debug)]
pub struct Meter {
    text: Vec<u8>,
    tail: usize,
    total: Option<u64>,
    parts: [u64; PARTS.len()],
    output: Option<u64>,
    /// Tokens of the answer, as last reported; `None`: not reported.
    pub answer: Option<u64>,
    /// Events so far: one for each token, where an engine streams.
    pub events: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            text: vec![b'\n'],
            tail: 1,
            total: None,
            parts: [0; PARTS.len()],
            output: None,
            answer: None,
            events: 0,
        }
    }
}

impl Meter {
    /// Tokens of prompt and answer, as last reported; `None`: not reported.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        let output = self.output;
        // A stream reports 0 at its start, and the answer at its end.
        let written = output.map(|count| if count == 0 { self.events } else { count });
        self.total.or_else(|| Some(self.parts.iter().sum::<u64>() + written?))
    }

    /// Hears of bytes that pass.
    pub fn pass(&mut self, bytes: &[u8]) {
        let tail = self.tail;
        self.text.extend_from_slice(bytes);
        let text = std::mem::take(&mut self.text);
        // Data that lies whole in the tail was counted with its own piece.
        let from = (tail + 1).saturating_sub(DATA.len());
        self.events += memmem::find_iter(&text[from..], DATA).count() as u64;
        if memchr::memchr(b'"', &text).is_some() {
            self.total = last_of(TOTAL, &text).or(self.total);
            self.output = last_of(OUTPUT, &text).or(self.output);
            self.answer = last_of(ANSWER, &text).or(self.answer);
            for (part, name) in self.parts.iter_mut().zip(PARTS) {
                *part = last_of(name, &text).unwrap_or(*part);
            }
        }
        self.text = text;
        let gone = self.text.len().saturating_sub(TAIL_BYTES);
        self.text.drain(..gone);
        self.text.shrink_to(TAIL_BYTES);
        self.tail = self.text.len();
    }
}

fn last_of(name: &[u8], text: &[u8]) -> Option<u64> {
    let from = memmem::rfind(text, name)? + name.len();
    let rest = &text[from..text.len().min(from + DIGITS_MAX)];
    let digits = rest.trim_ascii_start();
    let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&digits[..count]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::Meter;

    fn metered(text: &str, step: usize) -> Meter {
        let mut meter = Meter::default();
        text.as_bytes().chunks(step).for_each(|piece| meter.pass(piece));
        meter
    }

    #[test]
    fn an_engines_own_count_is_found_however_it_is_cut() {
        let text = "data: {\"t\":\"\\\"total_tokens\\\": 7\"}\n\n: note\n\ndata: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\": 12,\"total_tokens\":15}}\n\ndata: [DONE]\n\n";
        for step in 1..text.len() {
            let meter = metered(text, step);
            assert_eq!((meter.total(), meter.answer), (Some(15), Some(12)), "{step}");
            assert_eq!(meter.events, 3, "{step}");
        }
    }

    #[test]
    fn parts_of_a_prompt_are_added() {
        let start = "event: message_start\ndata: {\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":20,\"output_tokens\":0}}\n\n";
        for step in 1..start.len() {
            assert_eq!(metered(start, step).total(), Some(26), "{step}");
            let ended = format!("{start}data: {{\"usage\":{{\"output_tokens\":9}}}}\n\n");
            assert_eq!(metered(&ended, step).total(), Some(34), "{step}");
        }
    }

    #[test]
    fn without_a_report_there_is_no_total() {
        let meter = metered("data: a\n\ndata: b\n\n", 3);
        assert_eq!((meter.total(), meter.answer, meter.events), (None, None, 2));
    }
}
