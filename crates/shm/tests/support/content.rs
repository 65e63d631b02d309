//! Owns keys by number, and the bytes that belong to each: whoever reads others has read a wrong record.

use tierkv_core::error::Result;
use tierkv_core::key::RecordKey;
use tierkv_shm::region::Region;
use tierkv_shm::visibility::Fabric;

use super::random::Random;

pub fn key(number: u64) -> RecordKey {
    let mut random = Random::new(number);
    let mut block_hash = [0; 32];
    // Few homes, so that probes are long.
    block_hash[8..16].copy_from_slice(&random.next().to_le_bytes());
    block_hash[0] = (number % 3) as u8;
    RecordKey { namespace: [7; 32], block_hash, group: (number % 2) as u16, shard: 0 }
}

/// How many bytes belong to a key.
pub fn length(number: u64, bytes_max: u64) -> u64 {
    1 + Random::new(!number).below(bytes_max)
}

pub fn content(number: u64, bytes_max: u64) -> Vec<u8> {
    let (mut random, bytes) = (Random::new(number << 32), length(number, bytes_max) as usize);
    let mut content = vec![0; bytes.next_multiple_of(8)];
    content.as_chunks_mut().0.iter_mut().for_each(|word| *word = random.next().to_le_bytes());
    content.truncate(bytes);
    content
}

/// The record's bytes, if it is there.
pub fn read<F: Fabric>(region: &Region<F>, number: u64) -> Result<Option<Vec<u8>>> {
    let Some(pinned) = region.pin(&key(number))? else { return Ok(None) };
    let mut bytes = vec![0; pinned.bytes() as usize];
    pinned.read(0, &mut bytes)?;
    Ok(Some(bytes))
}
