//! Owns what fuzzing runs on the bytes of an answer: it is read alike however it is cut.

use tierkv_http::Answer;

/// Longest piece between two cuts.
const PIECE_MAX: usize = 40;

/// All that can be seen of an answer whose connection was closed behind it.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    pub status: u16,
    pub fields: Vec<u8>,
    pub body: Vec<u8>,
    /// Bytes behind the answer.
    pub rest: Vec<u8>,
    /// Whether its connection could take another request before it was closed.
    pub keeps: bool,
    /// Whether the answer is whole.
    pub is_whole: bool,
}

/// Reads an answer that comes in these pieces.
pub fn seen<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    has_body: bool,
) -> Result<Option<Seen>, String> {
    let mut answer = Answer::new(has_body);
    let (mut body, mut rest) = (Vec::new(), Vec::new());
    for piece in pieces {
        answer.receive(piece, &mut rest)?;
        body.append(answer.held());
    }
    let Some(head) = answer.head() else { return Ok(None) };
    let (status, fields) = (head.status, head.fields.clone());
    let keeps = answer.keeps();
    let is_whole = answer.end().is_ok();
    Ok(Some(Seen { status, fields, body, rest, keeps, is_whole }))
}

/// Cuts bytes into pieces, as `seed` wants it.
pub fn cut(bytes: &[u8], mut seed: u64) -> impl Iterator<Item = &[u8]> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let wanted = 1 + usize::try_from(seed >> 40).unwrap_or(0) % PIECE_MAX;
        let (piece, others) = left.split_at(wanted.min(left.len()));
        left = others;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Reads any bytes as an answer, whole and cut: the first byte says how.
pub fn answer(bytes: &[u8]) {
    let Some((&seed, given)) = bytes.split_first() else { return };
    let has_body = seed % 2 == 0;
    let whole = seen(std::iter::once(given), has_body);
    let in_pieces = seen(cut(given, seed.into()), has_body);
    let by_byte = seen(given.chunks(1), has_body);
    if let Ok(Some(seen)) = &whole {
        assert!(seen.body.len() + seen.rest.len() < given.len(), "bytes were made up");
        assert!(has_body || seen.body.is_empty(), "an answer without a body has one");
    }
    assert_eq!(whole.is_err(), in_pieces.is_err(), "{whole:?} {in_pieces:?}");
    assert_eq!(whole.is_err(), by_byte.is_err(), "{whole:?} {by_byte:?}");
    if let (Ok(whole), Ok(in_pieces), Ok(by_byte)) = (whole, in_pieces, by_byte) {
        assert_eq!(whole, in_pieces);
        assert_eq!(whole, by_byte);
    }
}
