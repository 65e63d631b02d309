//! Owns the running of work on many items on a few threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Runs the work on all items, the first ones first, on at most `most` threads; returns the results in order.
pub fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    most: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let turns = || {
        while let Some((at, item)) = Some(next.fetch_add(1, Ordering::Relaxed))
            .and_then(|at| items.get(at).map(|item| (at, item)))
        {
            let result = work(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..items.len().min(most) {
            scope.spawn(turns);
        }
        turns();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
