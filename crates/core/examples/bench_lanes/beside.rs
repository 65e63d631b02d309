//! Owns the time of restoring one block while stores keep the same lanes busy.

use std::iter::once;
use std::time::Instant;

use tierkv_core::codec::Codec;
use tierkv_core::lane::client::Outgoing;

use super::near::{NAMESPACE, Near, SAVE_BATCH, STORES_IN_FLIGHT};
use super::session::Session;

/// Returns the milliseconds of each restore of one block, one after another, until all other blocks are stored. Their
/// records are made before, so that only lanes and vault are measured.
pub fn restore_ms(near: &Near, session: &Session, codec: Codec) -> Vec<f64> {
    let maker = near.maker(codec);
    let last = near.blocks() - 1;
    let records: Vec<Outgoing> = (0..last).map(|index| maker.encode(index)).collect();
    let store = |batch: Vec<_>| session.client.store(&NAMESPACE, batch).unwrap();
    store(vec![maker.encode(last)]);
    session.accepted();
    let mut batches = records.chunks(SAVE_BATCH).map(<[_]>::to_vec);
    let mut stores = 0;
    for batch in batches.by_ref().take(STORES_IN_FLIGHT) {
        store(batch);
        stores += 1;
    }
    let fetch = || (session.client.fetch(near.targets(once(last), codec)).unwrap(), Instant::now());
    let (mut fetched, mut begun) = fetch();
    let mut samples = Vec::new();
    while stores > 0 {
        if session.accepted() == fetched {
            samples.push(begun.elapsed().as_secs_f64() * 1e3);
            (fetched, begun) = fetch();
        } else if let Some(batch) = batches.next() {
            store(batch);
        } else {
            stores -= 1;
        }
    }
    session.accepted();
    samples
}
