//! Models the locks of a host and between hosts on memory whose caches are kept together: loom runs them in every order that the
//! memory model allows.
//! `npm run test:loom`.
#![cfg(loom)]
#![expect(clippy::cast_possible_truncation, reason = "numbers of models are small")]

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;
use tierkv_core::error::Result;
use tierkv_shm::between::{Between, Turn};
use tierkv_shm::latch::{Ground, give_back, try_take};
use tierkv_shm::layout::{BITMAP_AT, HOST_BYTES, HOSTS_AT, host};
use tierkv_shm::manager::{Manager, stand};
use tierkv_shm::visibility::{Coherence, Fabric, LastOwner, Rule};

/// The words of the lock, and what it guards.
struct Memory {
    words: Vec<AtomicU64>,
    guarded: UnsafeCell<u64>,
}

// SAFETY: loom finds who is in it at once with another one.
unsafe impl Sync for Memory {}

impl Memory {
    fn word(&self, at: u64) -> &AtomicU64 {
        &self.words[((at - HOSTS_AT) / 8) as usize]
    }

    fn change(&self) {
        // SAFETY: whoever has the lock is alone; loom says where not.
        self.guarded.with_mut(|guarded| unsafe { *guarded += 1 });
    }
}

impl Fabric for Memory {
    fn coherence(&self) -> Coherence {
        Coherence::Hardware
    }
    fn load(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }
    fn store(&self, at: u64, word: u64) {
        self.word(at).store(word, Ordering::Release);
    }
    fn settle(&self) {
        fence(Ordering::SeqCst);
    }
    fn copy_in(&self, _at: u64, _bytes: &[u8]) {}
    fn copy_out(&self, _at: u64, _bytes: &mut [u8]) {}
    fn write_back(&self, _rule: Rule, _at: u64, _bytes: u64) {}
    fn fence(&self, _rule: Rule) {}
    fn invalidate(&self, _rule: Rule, _at: u64, _bytes: u64) {}
    fn lock(&self) -> Result<LastOwner> {
        Ok(LastOwner::Left)
    }
    fn repaired(&self) {}
    fn unlock(&self) {}
    fn claim(&self) -> Result<Option<u64>> {
        Ok(Some(0))
    }
    fn is_vacant(&self, _member: u64) -> bool {
        false
    }
}

fn memory() -> Arc<Memory> {
    let words = (0..(BITMAP_AT - HOSTS_AT) / 8).map(|_| AtomicU64::new(0)).collect();
    Arc::new(Memory { words, guarded: UnsafeCell::new(0) })
}

/// A host that has asked looks so often for its turn, and changes what is guarded.
fn takes_a_turn(memory: &Memory, number: u64, mut turn: u64, looks: usize) {
    let between = Between::new(memory, number);
    for _ in 0..looks {
        match between.poll(turn) {
            Turn::Inside => {
                memory.change();
                between.gives_back(turn);
                return;
            }
            Turn::Again(next) => turn = next,
            Turn::Waits => thread::yield_now(),
        }
    }
}

/// One host was granted its turn by a manager that another one replaces; that one serves both.
fn replaced() {
    let memory = memory();
    stand(&*memory, 1);
    let [first, second] = [0, 1].map(|number| Between::new(&*memory, number).asks());
    let grant = HOSTS_AT + host::GRANT;
    memory.store(grant, 1 << 32 | first);
    let threads = [(0, first), (1, second)].map(|(number, turn)| {
        let memory = Arc::clone(&memory);
        thread::spawn(move || takes_a_turn(&memory, number, turn, 2))
    });
    stand(&*memory, 2);
    if let Some(mut manager) = Manager::elected(&*memory, 2) {
        for _ in 0..2 {
            manager.step(&*memory, 0);
        }
    }
    for thread in threads {
        thread.join().expect("a host");
    }
    assert!(memory.load(HOSTS_AT + HOST_BYTES + host::REQUEST) > 0, "it has asked");
}

#[test]
fn a_new_manager_and_who_enters_by_an_older_grant_see_one_another() {
    let mut builder = Builder::new();
    (builder.preemption_bound, builder.max_branches) = (Some(2), 100_000);
    builder.check(replaced);
}

/// A host's lock, who of its processes lives, and what it guards.
struct Host {
    word: AtomicU32,
    lives: [AtomicBool; 3],
    is_admitted: AtomicBool,
    guarded: UnsafeCell<u64>,
}

// SAFETY: loom finds who is in it at once with another one.
unsafe impl Sync for Host {}

impl Ground for Host {
    fn load(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }
    fn replace(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
    // The kernel's answer is never an older one, as that of a read-modify-write.
    fn is_dead(&self, number: u32) -> bool {
        !self.lives[number as usize].fetch_or(false, Ordering::AcqRel)
    }
    fn begin_takeover(&self) -> bool {
        !self.is_admitted.swap(true, Ordering::AcqRel)
    }
    fn end_takeover(&self) {
        self.is_admitted.store(false, Ordering::Release);
    }
    fn sleep(&self, _word: u32) {}
    fn wake(&self) {}
}

/// Tries twice to take the lock, and changes what is guarded.
fn takes_the_lock(host: &Host, number: u32) {
    for _ in 0..2 {
        if try_take(host, number).is_some() {
            // SAFETY: whoever has the lock is alone; loom says where not.
            host.guarded.with_mut(|guarded| unsafe { *guarded += 1 });
            assert!(give_back(host, number), "nobody else writes the word");
        }
        thread::yield_now();
    }
}

/// A process died with the lock; two others want it, and a new process that has the dead one's number.
fn taken_over() {
    let alive = |is_alive| AtomicBool::new(is_alive);
    let host = Arc::new(Host {
        word: AtomicU32::new(3),
        lives: [alive(true), alive(true), alive(false)],
        is_admitted: AtomicBool::new(false),
        guarded: UnsafeCell::new(0),
    });
    let others = [0, 2].map(|number| {
        let host = Arc::clone(&host);
        thread::spawn(move || {
            // A process takes its number behind the same admission.
            if host.begin_takeover() {
                host.lives[number as usize].fetch_or(true, Ordering::AcqRel);
                host.end_takeover();
                takes_the_lock(&host, number);
            }
        })
    });
    takes_the_lock(&host, 1);
    for other in others {
        other.join().expect("a process");
    }
}

#[test]
fn one_process_takes_over_the_lock_of_a_dead_one() {
    let mut builder = Builder::new();
    (builder.preemption_bound, builder.max_branches) = (Some(2), 100_000);
    builder.check(taken_over);
}
