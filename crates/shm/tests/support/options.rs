//! Owns the region that tests open where they need none of their own.

use tierkv_shm::opening::Options;
use tierkv_shm::visibility::Coherence;

pub const OPTIONS: Options = Options {
    max_bytes: 2 << 20,
    chunk_bytes: 4096,
    coherence: Coherence::Hardware,
    address: 0,
    host: None,
    group: None,
};
