//! Owns the list of modules that turn text into token ids, as an engine does with the same files.

pub mod cuts;
mod kept;
pub mod tokenizer;
