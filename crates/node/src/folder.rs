//! Owns the bindings of small files in a directory that belongs to this user alone.

use std::path::Path;

use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use tierkv_core::error::{Code, Error};
use tierkv_core::folder::Folder;

use crate::ffi::{count, run};

/// Reads a file of the directory, at most `most` bytes; null when there is none.
#[napi]
pub fn read_own_file(folder: String, name: String, most: f64) -> napi::Result<Option<Buffer>> {
    run(|| {
        let found = Folder::open(Path::new(&folder))?.read(&name, count("most", most)?);
        Ok(found.map_err(|error| failed(&error))?.map(Into::into))
    })
}

/// Replaces a file of the directory atomically.
#[napi]
pub fn write_own_file(folder: String, name: String, bytes: &[u8]) -> napi::Result<()> {
    run(|| {
        let folder = Folder::open(Path::new(&folder))?;
        folder.write(&name, bytes).map_err(|error| failed(&error))
    })
}

fn failed(error: &std::io::Error) -> Error {
    Error::new(Code::DiskFailed, error.to_string())
}
