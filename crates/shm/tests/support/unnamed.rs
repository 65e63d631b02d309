//! Owns regions without a name, which measurements leave nothing of.

use std::path::PathBuf;

use tierkv_core::error::Result;
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::{Options, open};
use tierkv_shm::region::Region;

/// A region in shared memory that ends with the process.
pub fn region(options: &Options) -> Result<Region<Mapping>> {
    let path = PathBuf::from(format!("/dev/shm/tierkv-unnamed-{}", std::process::id()));
    let region = open(&path, options);
    let _ = std::fs::remove_file(path);
    region
}
