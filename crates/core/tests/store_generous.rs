//! Owns the proof that the budget holds whatever allocator somebody put in the system's place: this one takes a quarter more than it is
//! asked for, as those with size classes do. A process of its own.

#[path = "support/records.rs"]
mod records;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;

use records::{key, put, record};
use tierkv_core::record::CLASS_KV;
use tierkv_core::store::{ItemStatus, Options, Scope, Store};

struct Generous;

fn longer(layout: Layout) -> Layout {
    Layout::from_size_align(layout.size() + layout.size() / 4, layout.align()).unwrap_or(layout)
}

// SAFETY: the system's, of more than it was asked for, each time the same.
unsafe impl GlobalAlloc for Generous {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for our caller.
        unsafe { System.alloc(longer(layout)) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: allocated with that layout.
        unsafe { System.dealloc(memory, longer(layout)) }
    }
}

#[global_allocator]
static GENEROUS: Generous = Generous;

const MAX: u64 = 16 << 20;

#[test]
fn what_an_allocator_takes_beyond_what_it_was_asked_for_is_counted() {
    let options = Options { max_bytes: MAX, max_record_bytes: 4 << 20, record_class: CLASS_KV };
    let store = Arc::new(Store::new(options).expect("options"));
    for number in 0..60 {
        let length = [1 << 20, 300_000, 3 << 20][usize::try_from(number % 3).expect("small")];
        let record = record(&key(number), length);
        assert_eq!(put(&store, key(number), &record), ItemStatus::Accepted, "{number}");
        let stats = store.stats();
        assert!(stats.used_bytes + stats.spare_bytes <= MAX, "{stats:?}");
    }
    let stats = store.stats();
    assert!(stats.evicted > 40 && stats.used_bytes > MAX / 2, "{stats:?}");
    store.flush(Scope::default());
    assert_eq!(store.stats().used_bytes, 0);
}
