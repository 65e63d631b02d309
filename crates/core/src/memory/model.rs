//! Owns the model of a record's references; loom runs it in every order that the memory model allows.
//!
//! `npm run test:loom`.

use std::sync::Arc;

use loom::thread;

use super::budget::Budget;
use super::buffer::Shape;
use super::{Pin, Stored};

const RECORD: usize = 200;
const MAX: u64 = 1 << 20;

fn stored(budget: &Arc<Budget>) -> Stored {
    let memory = budget.charge(Shape::of_record(RECORD).expect("a length"), |_| ()).expect("room");
    memory.into_stored(0)
}

/// Asserts that all memory was given back once: the record's reference to the budget is gone.
fn assert_nothing_is_left(budget: &Arc<Budget>) {
    assert_eq!((budget.used(), budget.held(), budget.reserved()), (0, 0, 0));
    assert_eq!(Arc::strong_count(budget), 1);
}

/// A record is evicted while its pin is dropped.
#[test]
fn evicted_while_pinned() {
    loom::model(|| {
        let budget = Budget::new(MAX);
        let record = stored(&budget);
        let pin = record.pin();
        let reader = thread::spawn(move || assert_eq!(pin.len(), RECORD));
        drop(record);
        reader.join().expect("reads");
        assert_nothing_is_left(&budget);
    });
}

/// A pin is cloned while the first one and the record are dropped.
#[test]
fn passed_on_while_evicted() {
    loom::model(|| {
        let budget = Budget::new(MAX);
        let record = stored(&budget);
        let first = record.pin();
        let second = Pin::clone(&first);
        let passing = thread::spawn(move || drop(Pin::clone(&first)));
        let reader = thread::spawn(move || {
            assert_eq!(second.len(), RECORD);
            drop(second);
        });
        drop(record);
        passing.join().expect("passes");
        reader.join().expect("reads");
        assert_nothing_is_left(&budget);
    });
}

/// Eviction checks a record while its last pin is dropped; either answer is right, and eviction then frees accordingly.
#[test]
fn looked_at_while_unpinned() {
    loom::model(|| {
        let budget = Budget::new(MAX);
        let record = stored(&budget);
        let pin = record.pin();
        let reader = thread::spawn(move || drop(pin));
        let charge = record.charge();
        if !record.is_pinned() {
            drop(record);
            assert_eq!(budget.used(), 0, "what is evicted frees its memory at once");
        } else {
            assert_eq!(budget.used(), charge);
            drop(record);
        }
        reader.join().expect("ends");
        assert_nothing_is_left(&budget);
    });
}
