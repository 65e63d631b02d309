//! Owns the measurement of restores from a region into an engine's slots, beside a copy of as many bytes, for each codec.
//! `cargo run --release -p tierkv-shm --example restores`.
#![expect(clippy::print_stdout, reason = "it says what it measured")]

#[path = "../tests/support/options.rs"]
mod options;
#[path = "../tests/support/unnamed.rs"]
mod unnamed;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tierkv_core::arena::{self, Arena};
use tierkv_core::codec::Codec;
use tierkv_core::error::Result;
use tierkv_core::geometry::{Geometry, Spec};
use tierkv_core::inbox::{Inbox, Wanted};
use tierkv_core::key::RecordKey;
use tierkv_core::outbox::{Identity, Outbox};
use tierkv_core::record::{CLASS_KV, LAYOUT_CANONICAL};
use tierkv_core::slots::Lease;
use tierkv_shm::mapping::Mapping;
use tierkv_shm::opening::Options;
use tierkv_shm::region::Region;

const CODECS: [Codec; 4] = [Codec::Raw, Codec::Int8, Codec::Int8MeanHad, Codec::Lossless];
const BLOCKS: u32 = 96;
const CHUNK_BYTES: u64 = 65_536;
const ROUNDS: usize = 25;
const TOKENS: u32 = 16;
const LAYERS: u32 = 36;
const HEADS: u32 = 8;
const HEAD_BYTES: u32 = 256;
const NAMESPACE: [u8; 32] = [7; 32];

/// A block of 16 tokens of a model of 8 billion parameters, heads beside each other, as vLLM lays pages out.
fn geometry() -> Result<Arc<Geometry>> {
    let layer_bytes = 2 * TOKENS * HEADS * HEAD_BYTES;
    let spec = Spec {
        group: 0,
        record_class: CLASS_KV,
        layout: LAYOUT_CANONICAL,
        dtype: 1,
        tokens: TOKENS,
        layers: LAYERS,
        heads: HEADS,
        dim_k: HEAD_BYTES / 2,
        dim_v: HEAD_BYTES / 2,
        layer_bytes: u64::from(layer_bytes),
        key_offset: 0,
        value_offset: u64::from(layer_bytes / 2),
        head_stride: u64::from(HEAD_BYTES),
        token_stride: u64::from(HEADS * HEAD_BYTES),
    };
    Ok(Arc::new(Geometry::new(spec)?))
}

struct Stand {
    region: Region<Mapping>,
    arena: Arc<Arena>,
    geometry: Arc<Geometry>,
    leases: Vec<Lease>,
    inbox: Inbox,
}

impl Stand {
    fn open() -> Result<Self> {
        let geometry = geometry()?;
        let slot_bytes = geometry.slot_bytes() as u64;
        let options = arena::Options { slot_bytes, slot_count: BLOCKS, dir: None, label: 1 };
        let arena = Arc::new(Arena::create(&options)?);
        arena.prefault()?;
        while arena.status().touched_slots < BLOCKS {
            std::thread::sleep(Duration::from_millis(1));
        }
        let leases = arena.slots().lease(1, BLOCKS);
        let options = Options {
            max_bytes: (slot_bytes + CHUNK_BYTES) * u64::from(BLOCKS) * 11 / 10,
            chunk_bytes: CHUNK_BYTES,
            ..options::OPTIONS
        };
        let region = unnamed::region(&options)?;
        Ok(Self { region, arena, geometry, leases, inbox: Inbox::default() })
    }

    fn key(number: u32) -> RecordKey {
        let mut block_hash = [0; 32];
        block_hash[..4].copy_from_slice(&number.to_le_bytes());
        RecordKey { namespace: NAMESPACE, block_hash, group: 0, shard: 0 }
    }

    /// Stores a record of each slot, whose numbers are small and random.
    fn save(&self, codec: Codec, fidelity: u8) -> Result<usize> {
        let (outbox, mut bytes, mut state) = (Outbox::default(), 0, 1_u64);
        let mut page = vec![0; self.geometry.page_bytes()];
        for (number, lease) in (0_u32..).zip(&self.leases) {
            for element in page.as_chunks_mut::<2>().0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Sign and mantissa at random; numbers from 1/16 to 1.
                let [_, _, _, _, exponent, sign, _, mantissa] = state.to_le_bytes();
                let high =
                    0x3D80 + (u16::from(exponent) << 1 & 0x1FF) + (u16::from(sign) << 8 & 0x8000);
                *element = (high | u16::from(mantissa) & 0x7F).to_le_bytes();
            }
            self.arena.poke(lease.slot, &page)?;
            let identity = Identity {
                shard: 0,
                shard_count: 1,
                end_tokens: 64,
                namespace: NAMESPACE,
                block_hash: Self::key(number).block_hash,
                parent_hash: [9; 32],
            };
            let codec = (codec, fidelity);
            let record = outbox.encode(&self.arena, *lease, &self.geometry, codec, &identity)?;
            bytes += record.len();
            let _ = self.region.remove(&Self::key(number))?;
            self.region.put(&Self::key(number), &record)?;
        }
        Ok(bytes)
    }

    fn restore(&self, fidelity: u8) -> Result<()> {
        for (number, lease) in (0_u32..).zip(&self.leases) {
            let key = Self::key(number);
            let pinned = self.region.pin(&key)?.expect("stored, and the region has room for all");
            let mut packed_key = [0; 36];
            packed_key[..32].copy_from_slice(&key.block_hash);
            let wanted = Wanted { fidelity, namespace: NAMESPACE, packed_key };
            let reassembly =
                self.inbox.begin(&self.arena, *lease, &self.geometry, wanted, pinned.bytes())?;
            Arc::new(reassembly).take_standing(pinned.standing())?;
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let stand = Stand::open()?;
    let page_bytes = stand.geometry.page_bytes() * stand.leases.len();
    let (from, mut to) = (vec![1_u8; page_bytes], vec![2_u8; page_bytes]);
    for codec in CODECS {
        let fidelity =
            (0..=u8::MAX).find(|fidelity| codec.fits_fidelity(*fidelity)).unwrap_or_default();
        let bytes = stand.save(codec, fidelity)?;
        let (mut copies, mut restores) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            black_box(&mut to).copy_from_slice(black_box(&from));
            copies.push(start.elapsed());
            let start = Instant::now();
            stand.restore(fidelity)?;
            restores.push(start.elapsed());
        }
        copies.sort_unstable();
        restores.sort_unstable();
        #[expect(clippy::cast_precision_loss, reason = "rates")]
        let rate = |took: Duration| page_bytes as f64 / took.as_secs_f64() / 1e9;
        let (best, middle) = (0, ROUNDS / 2);
        println!(
            "{codec:?}, {bytes} bytes: restore {:.2} GB/s of pages (median {:.2}), memcpy {:.2} ({:.2}), ratio {:.2} ({:.2})",
            rate(restores[best]),
            rate(restores[middle]),
            rate(copies[best]),
            rate(copies[middle]),
            copies[best].as_secs_f64() / restores[best].as_secs_f64(),
            copies[middle].as_secs_f64() / restores[middle].as_secs_f64(),
        );
    }
    Ok(())
}
