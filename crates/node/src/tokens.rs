//! Owns the bindings of models' tokenizers. Opening and encoding run on threads of libuv, because both take longer than an event may.

use std::path::Path;
use std::sync::Arc;

use napi::bindgen_prelude::{AsyncTask, Uint32Array};
use napi_derive::napi;
use tierkv_tokens::tokenizer::Tokenizer;

use crate::ffi::run;
use crate::ids::Ids;
use crate::store_disk::Background;

static TOKENIZERS: Ids<Arc<Tokenizer>> = Ids::new("tokenizer");

/// Reads `tokenizer.json` in a folder; returns the tokenizer's id.
#[napi(ts_return_type = "Promise<number>")]
pub fn tokenizer_open(folder: String) -> AsyncTask<Background<u32, u32>> {
    Background::start(move || TOKENIZERS.insert(Arc::new(Tokenizer::open(Path::new(&folder))?)))
}

/// Returns the token ids of a text; `isFramed`: with the tokens that the model puts before and after each text.
#[napi(ts_return_type = "Promise<Uint32Array>")]
pub fn tokenizer_encode(
    id: u32,
    text: String,
    is_framed: bool,
) -> napi::Result<AsyncTask<Background<Vec<u32>, Uint32Array>>> {
    let tokenizer = run(|| TOKENIZERS.get(id))?;
    Ok(Background::start(move || tokenizer.encode(&text, is_framed)))
}

/// Returns the text of token ids, special tokens included; leaves out ids that the model has not.
#[napi(ts_return_type = "Promise<string>")]
pub fn tokenizer_decode(
    id: u32,
    ids: Uint32Array,
) -> napi::Result<AsyncTask<Background<String, String>>> {
    let tokenizer = run(|| TOKENIZERS.get(id))?;
    let ids = ids.to_vec();
    Ok(Background::start(move || tokenizer.decode(&ids)))
}

/// Forgets a tokenizer; idempotent.
#[napi]
pub fn tokenizer_close(id: u32) -> napi::Result<()> {
    run(|| {
        TOKENIZERS.remove(id);
        Ok(())
    })
}
