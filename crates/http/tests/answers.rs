//! Owns the proof that an answer is read as it was sent, however it was cut, and that no bytes can do harm.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/cuts.rs"]
mod cuts;

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::{prop_assert, prop_assert_eq, sample};

use cuts::{Seen, answer, cut, seen};
use tierkv_http::{HEAD_BYTES_MAX, Meter};

const CASES: u32 = 1_000;

/// How a body's end is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Length,
    Chunks,
    Close,
}

/// An answer as an engine writes it, and what should be seen of it.
#[derive(Debug, Clone)]
struct Sent {
    told: Told,
    /// Interim answers before it.
    interim: usize,
    /// Comments and empty lines before the first event; `None`: no events.
    leading: Option<String>,
    chunks: Vec<Vec<u8>>,
    extension: &'static str,
    trailer: &'static str,
    line: &'static str,
    rest: Vec<u8>,
}

impl Sent {
    fn body(&self) -> Vec<u8> {
        self.chunks.concat()
    }

    /// Bytes on the wire, and the fields of the head.
    fn write(&self) -> (Vec<u8>, String) {
        let leading = self.leading.clone().unwrap_or_default();
        let mut chunks = vec![leading.clone().into_bytes()];
        chunks.extend(self.chunks.iter().cloned());
        let length = leading.len() + self.body().len();
        let framing = match self.told {
            Told::Length => format!("Content-Length: {length}\r\n"),
            Told::Chunks => "Transfer-Encoding: gzip, Chunked\r\n".into(),
            Told::Close => String::new(),
        };
        let kind = if self.leading.is_some() { "text/event-stream" } else { "text/plain" };
        let head = format!("{framing}content-type: {kind}\r\nX-Empty:\r\n");
        let mut bytes = "HTTP/1.1 103 Early\r\nlink: a\r\n\r\n".repeat(self.interim).into_bytes();
        bytes.extend(format!("HTTP/1.1 200 OK\r\n{head}\r\n").into_bytes());
        for chunk in &chunks {
            if self.told != Told::Chunks {
                bytes.extend(chunk);
            } else if !chunk.is_empty() {
                let size = format!("{:x}{}{}", chunk.len(), self.extension, self.line);
                bytes.extend([size.as_bytes(), chunk, self.line.as_bytes()].concat());
            }
        }
        if self.told == Told::Chunks {
            let end = format!("0{}{}{}", self.line, self.trailer, self.line);
            bytes.extend(end.into_bytes());
        }
        bytes.extend(&self.rest);
        let fields: Vec<String> = head
            .lines()
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| format!("{}\n{}", name.to_lowercase(), value.trim()))
            .collect();
        (bytes, fields.join("\n"))
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    let told = sample::select(vec![Told::Length, Told::Chunks, Told::Close]);
    let comments = sample::select(vec!["", ":\n", ": ping\r\n\r\n", "\n\n", ": data: 1\n\n"]);
    let events = vec(sample::select(vec!["data: 1\n\n", "data: :\n\n", "d", "e\n: x\n\n"]), 1..20);
    let as_events = (vec(comments, 0..4), events).prop_map(|(leading, events)| {
        let chunks = events.iter().map(|event| event.as_bytes().to_vec()).collect();
        (Some(leading.concat()), chunks)
    });
    let as_bytes = vec(vec(any::<u8>(), 0..200), 0..8).prop_map(|chunks| (None, chunks));
    let body = prop_oneof![as_events, as_bytes];
    let extension = sample::select(vec!["", ";a", ";a=\"1\"", " ", "\t;x"]);
    let trailer = sample::select(vec!["", "t: 1\r\n", "t: 1\r\nu: 2\n"]);
    let line = sample::select(vec!["\r\n", "\n"]);
    let rest = prop_oneof![Just(Vec::new()), vec(any::<u8>(), 1..30)];
    (told, 0..3_usize, body, extension, trailer, line, rest).prop_map(
        |(told, interim, (leading, chunks), extension, trailer, line, rest)| {
            let rest = if told == Told::Close { Vec::new() } else { rest };
            Sent { told, interim, leading, chunks, extension, trailer, line, rest }
        },
    )
}

/// Pieces of an answer's text in which tokens are counted.
fn counted() -> impl Strategy<Value = String> {
    let number = || (0..10_u64.pow(12)).prop_map(|number| number.to_string());
    let field = sample::select(vec![
        "\"total_tokens\":",
        "\"total_tokens\": ",
        "\"completion_tokens\":",
        "\"output_tokens\":",
        "\"input_tokens\":",
        "\"cache_read_input_tokens\":",
        "\\\"total_tokens\\\":",
    ]);
    let usage = (field, number()).prop_map(|(field, number)| format!("{field}{number},"));
    let other = sample::select(vec!["data: {", "}\n\n", "\ndata:", "\n", "data:", "words", "\""]);
    vec(prop_oneof![usage, other.prop_map(String::from)], 0..30).prop_map(|all| all.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_answer_is_read_as_it_was_sent(sent in sent(), seed in any::<u64>()) {
        let (bytes, fields) = sent.write();
        let keeps = sent.told != Told::Close;
        let expected = Seen {
            status: 200,
            fields: fields.into_bytes(),
            body: sent.body(),
            rest: sent.rest.clone(),
            keeps,
            is_whole: true,
        };
        prop_assert_eq!(seen(cut(&bytes, seed), true), Ok(Some(expected)));
    }

    #[test]
    fn a_cut_answer_is_never_whole(sent in sent(), seed in any::<u64>(), share in 0.0..1.0) {
        let sent = Sent { rest: Vec::new(), ..sent };
        let (bytes, _) = sent.write();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
        #[expect(clippy::cast_precision_loss, reason = "a share of a length")]
        let kept = (share * bytes.len() as f64) as usize;
        let read = seen(cut(&bytes[..kept], seed), true).unwrap();
        let is_whole = read.is_some_and(|read| read.is_whole);
        // An answer without a told end is whole wherever it is cut behind its head.
        prop_assert!(!is_whole || sent.told == Told::Close);
    }

    #[test]
    fn any_bytes_are_read_alike_however_they_are_cut(sent in sent(), seed in any::<u8>(), at in any::<sample::Index>(), byte in any::<u8>()) {
        let (mut bytes, _) = sent.write();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        answer(&[&[seed], bytes.as_slice()].concat());
        bytes.remove(at);
        answer(&[&[seed], bytes.as_slice()].concat());
    }

    #[test]
    fn tokens_are_counted_alike_however_an_answer_is_cut(text in counted(), seed in any::<u64>()) {
        let mut whole = Meter::default();
        whole.pass(text.as_bytes());
        let mut in_pieces = Meter::default();
        cut(text.as_bytes(), seed).for_each(|piece| in_pieces.pass(piece));
        prop_assert_eq!(whole.total(), in_pieces.total());
        prop_assert_eq!((whole.answer, whole.events), (in_pieces.answer, in_pieces.events));
    }
}

#[test]
fn the_length_of_a_head_is_bounded_however_it_is_cut() {
    for (length, is_read) in [(HEAD_BYTES_MAX, true), (HEAD_BYTES_MAX + 1, false)] {
        let start = "HTTP/1.1 204 No\r\nx: ";
        let end = "\r\n\r\n";
        let filler = "y".repeat(length - start.len() - end.len());
        let head = format!("{start}{filler}{end}");
        for step in [length, 60_000, 1_000] {
            let read = seen(head.as_bytes().chunks(step), true);
            assert_eq!(read.is_ok(), is_read, "{length} {step}");
        }
    }
}

#[test]
fn the_fuzz_target_takes_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/answer");
    let files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|file| file.unwrap()).collect();
    assert!(files.len() > 1, "the fuzz target has a corpus");
    for file in files {
        let bytes = std::fs::read(file.path()).unwrap();
        answer(&bytes);
        // What a mutation may do first: cut it.
        answer(&bytes[..bytes.len() / 2]);
    }
}
