//! Owns the writing of test/vectors: `cargo run --release --example vectors -- ../test/vectors`.

mod cases;
mod files;
mod int8;
mod lossless;
mod misplaced;

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).map_or_else(|| "../test/vectors".into(), PathBuf::from);
    std::fs::create_dir_all(&folder)?;
    for (name, bytes) in files::all() {
        std::fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}
