//! Owns where a text can be cut so that both sides become the same ids as the whole.
//!
//! A tokenizer looks for its added tokens first, leftmost and longest, and treats what lies between two of them by itself. A
//! text may therefore be cut before an added token that is found wherever it stands: no other one reaches into it.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

/// A piece is at least this long: shorter ones would cost more to look up than to turn into tokens.
pub const PIECE_BYTES_MIN: usize = 1 << 10;
/// Added tokens that are looked at; a model with more (some have thousands of unused ones) is cut before none.
pub const MARKS_MAX: usize = 4_096;

/// Tokens before which texts are cut.
pub struct Cuts {
    marks: Option<AhoCorasick>,
}

impl Cuts {
    /// `added`: all added tokens of a tokenizer.
    #[must_use]
    pub fn new<'a>(added: impl Iterator<Item = &'a AddedToken>) -> Self {
        // Those that are found in the normalised text are looked for between these.
        let added: Vec<&AddedToken> = added.filter(|token| !token.normalized).collect();
        if added.len() > MARKS_MAX {
            return Self { marks: None };
        }
        let marks: Vec<&str> = added
            .iter()
            .filter(|token| stands_alone(token, &added))
            .map(|token| token.content.as_str())
            .collect();
        let marks = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(marks);
        Self { marks: marks.ok().filter(|marks| marks.patterns_len() > 0) }
    }

    /// The pieces of a text, in order; each but the first begins with an added token.
    #[must_use]
    pub fn pieces(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        let mut from = 0;
        for found in self.marks.iter().flat_map(|marks| marks.find_iter(text)) {
            if found.start() - from >= PIECE_BYTES_MIN {
                pieces.push(from..found.start());
                from = found.start();
            }
        }
        pieces.push(from..text.len());
        pieces
    }
}

/// Whether it is found wherever it stands, and whatever stands before it is found without looking at it.
fn stands_alone(token: &AddedToken, all: &[&AddedToken]) -> bool {
    let text = token.content.as_str();
    // A letter would tell a `single_word` token before it that its word goes on; a space belongs to an `rstrip` token.
    let is_mark = text.starts_with(|first: char| first.is_ascii_punctuation() && first != '_');
    is_mark && !token.lstrip && !token.single_word && all.iter().all(|other| !reaches(other, text))
}

/// Whether `other`, found first, could hide `text`: it begins as `text` does and is longer, or ends as `text` begins.
fn reaches(other: &AddedToken, text: &str) -> bool {
    let other = other.content.as_str();
    let is_longer = other != text && other.starts_with(text);
    is_longer
        || other.char_indices().skip(1).any(|(at, _)| {
            let end = &other[at..];
            end.starts_with(text) || text.starts_with(end)
        })
}
