//! Owns one model's tokenizer: loading it from the model's folder, and text to ids.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::digest::{Context, SHA256};
use tierkv_core::error::{Error, Result};
use tokenizers::Tokenizer as Model;

use crate::cuts::Cuts;
use crate::kept::{Kept, Name};

/// Largest `tokenizer.json`: several times the largest known one.
pub const FILE_BYTES_MAX: u64 = 128 << 20;

/// Text of plain tokens, used to find the ids that a model adds around a text.
const SAMPLE: &str = "a b";

/// Ids that a model adds around a text.
struct Frame {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// One model's tokenizer.
pub struct Tokenizer {
    model: Model,
    cuts: Cuts,
    /// `None` if the model adds more than ids before and after, so that texts are tokenized whole.
    frame: Option<Frame>,
    kept: Mutex<Kept>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` in `folder`. Ignores its truncation and padding, because engines take prompts whole.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` where the file cannot be read or is not a tokenizer.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let wrong = |why: String| Error::bad_argument(format!("{}: {why}", path.display()));
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(|error| wrong(error.to_string()))?;
        let mut file = file.take(FILE_BYTES_MAX + 1);
        let read = file.read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
        if read as u64 > FILE_BYTES_MAX {
            return Err(wrong(format!("it is larger than {FILE_BYTES_MAX} bytes")));
        }
        let mut model = Model::from_bytes(bytes).map_err(|error| wrong(error.to_string()))?;
        model.with_padding(None);
        model.with_truncation(None).map_err(|error| wrong(error.to_string()))?;
        let cuts = Cuts::new(model.get_added_tokens_decoder().values());
        let frame = frame_of(&model);
        Ok(Self { model, cuts, frame, kept: Mutex::default() })
    }

    /// Returns the ids of a text; `is_framed` adds the ids that the model puts around each text.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` where the model has no token for a part of the text.
    pub fn encode(&self, text: &str, is_framed: bool) -> Result<Vec<u32>> {
        let Some(frame) = &self.frame else {
            return ids_of(&self.model, text, is_framed);
        };
        let mut ids = Vec::with_capacity(text.len() / 3 + 8);
        if is_framed {
            ids.extend_from_slice(&frame.before);
        }
        self.encode_pieces(text, &mut ids)?;
        if is_framed {
            ids.extend_from_slice(&frame.after);
        }
        Ok(ids)
    }

    /// Returns the text of ids, special tokens included. Leaves out ids that the model has not.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` where the model's decoder refuses the ids.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.model.decode(ids, false).map_err(|error| Error::bad_argument(error.to_string()))
    }

    fn encode_pieces(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let mut pieces = self.cuts.pieces(text);
        // The last piece ends with the text, and longer prompts do not contain it, so that it is not kept.
        let last = pieces.pop().unwrap_or(0..text.len());
        let mut before = Context::new(&SHA256);
        for piece in pieces {
            let piece = &text[piece];
            before.update(piece.as_bytes());
            let mut name: Name = [0; 32];
            name.copy_from_slice(before.clone().finish().as_ref());
            let found = self.kept().find(&name);
            let made = match found {
                Some(kept) => kept,
                None => self.make(name, piece)?,
            };
            ids.extend_from_slice(&made);
        }
        ids.extend(ids_of(&self.model, &text[last], false)?);
        Ok(())
    }

    fn make(&self, name: Name, piece: &str) -> Result<Arc<[u32]>> {
        let made: Arc<[u32]> = ids_of(&self.model, piece, false)?.into();
        self.kept().keep(name, Arc::clone(&made));
        Ok(made)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ids_of(model: &Model, text: &str, is_framed: bool) -> Result<Vec<u32>> {
    let encoding = model.encode_fast(text, is_framed);
    let encoding = encoding.map_err(|error| Error::bad_argument(error.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

fn frame_of(model: &Model) -> Option<Frame> {
    let bare = ids_of(model, SAMPLE, false).ok().filter(|bare| !bare.is_empty())?;
    let whole = model.encode_fast(SAMPLE, true).ok()?;
    let from = whole.get_special_tokens_mask().iter().position(|is_added| *is_added == 0)?;
    let (before, rest) = whole.get_ids().split_at(from);
    let after = rest.strip_prefix(bare.as_slice())?;
    Some(Frame { before: before.to_vec(), after: after.to_vec() })
}
