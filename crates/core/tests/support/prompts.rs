//! Owns a seeded trace of prompts that share prefixes: documents, conversations about them, and an end nobody asks for again.

use tierkv_core::crc32c;
use tierkv_core::record::HEADER_BYTES;
use tierkv_core::store::RecordKey;

use super::random::Random;
use super::records::{header, key};
use super::trace::Zipf;

const DOCUMENTS: u32 = 400;
const BRANCHES: u32 = 8;
const DOCUMENT_BLOCKS: u64 = 24;
const BRANCH_BLOCKS: u64 = 16;
const TAIL_BLOCKS: u64 = 4;

/// Blocks that can be asked for more than once.
pub const SHARED_BLOCKS: u64 =
    DOCUMENTS as u64 * (DOCUMENT_BLOCKS + BRANCHES as u64 * BRANCH_BLOCKS);

/// One prompt: the numbers of its blocks, the first one first.
pub fn prompts(count: usize, seed: u64) -> Vec<Vec<u64>> {
    let (documents, branches) = (Zipf::new(DOCUMENTS, 0.9), Zipf::new(BRANCHES, 0.9));
    let mut random = Random::new(seed);
    let mut fresh = 1 << 40;
    let mut one = || {
        let document = documents.sample(&mut random);
        let branch = document * u64::from(BRANCHES) + branches.sample(&mut random);
        let shared = (0..DOCUMENT_BLOCKS).map(|block| (1 << 20) + document * 64 + block);
        let own = (0..BRANCH_BLOCKS).map(|block| (1 << 30) + branch * 64 + block);
        fresh += TAIL_BLOCKS;
        shared.chain(own).chain(fresh..fresh + TAIL_BLOCKS).collect()
    };
    (0..count).map(|_| one()).collect()
}

/// The record of block `number` that follows block `parent`.
pub fn follower(number: u64, parent: Option<u64>, record_bytes: usize) -> (RecordKey, Vec<u8>) {
    let own = key(number);
    let payload = vec![own.block_hash[0]; record_bytes - HEADER_BYTES];
    let mut header = header(&own, payload.len());
    header.parent_hash = parent.map_or([0; 32], |parent| key(parent).block_hash);
    let head = header.encode(crc32c::checksum(&payload));
    (own, [&head, payload.as_slice()].concat())
}
