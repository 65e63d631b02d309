//! Owns the places at which a text can be cut so that both parts give the same token ids as the whole.
//!
//! A tokenizer first finds its added tokens, leftmost and longest, and treats the text between them separately. A text may
//! therefore be cut before an added token that is found at every position, because no other one overlaps it.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

/// Shortest piece; shorter ones would cost more to look up than to tokenize.
pub const PIECE_BYTES_MIN: usize = 1 << 10;
/// Most added tokens considered; texts of a model with more (some have thousands of unused ones) are not cut.
pub const MARKS_MAX: usize = 4_096;

/// Tokens before which texts are cut.
pub struct Cuts {
    marks: Option<AhoCorasick>,
}

impl Cuts {
    /// Takes all added tokens of a tokenizer.
    #[must_use]
    pub fn new<'a>(added: impl Iterator<Item = &'a AddedToken>) -> Self {
        // Tokens matched in the normalised text are matched only between these.
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

    /// Returns the pieces of a text in order; each but the first begins with an added token.
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

/// Whether the token is found at every position, and the text before it is tokenized independently of it.
fn stands_alone(token: &AddedToken, all: &[&AddedToken]) -> bool {
    let text = token.content.as_str();
    // A letter would continue the word of a preceding `single_word` token; a space would belong to an `rstrip` token.
    let is_mark = text.starts_with(|first: char| first.is_ascii_punctuation() && first != '_');
    is_mark && !token.lstrip && !token.single_word && all.iter().all(|other| !reaches(other, text))
}

/// Whether `other`, found first, could hide `text`: it is longer and begins with it, or its end overlaps the start of `text`.
fn reaches(other: &AddedToken, text: &str) -> bool {
    let other = other.content.as_str();
    let is_longer = other != text && other.starts_with(text);
    is_longer
        || other.char_indices().skip(1).any(|(at, _)| {
            let end = &other[at..];
            end.starts_with(text) || text.starts_with(end)
        })
}
