//! Owns the algorithm of a host's lock: one word that names its owner. It holds no pointer, because every process that maps
//! the region can write it.

/// Bit of a word for whose owner others wait; the owner's number plus one stands below it, 0 without an owner.
const WAITED: u32 = 1 << 31;
/// Looks at a taken word before a thread sleeps.
const SPINS: u32 = 100;
/// Attempts to replace the word of a dead owner; only its bit for waiting processes changes meanwhile.
const REPLACES_MAX: u32 = 8;

/// End of the lock's last owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The lock was free.
    Free,
    /// Its owner died with it.
    FromDead,
}

/// The word, and what the system says about its owner. A process has one number; its threads come here one at a time.
pub trait Ground {
    /// Loads the word.
    fn load(&self) -> u32;
    /// Replaces the word if it is `from`.
    fn replace(&self, from: u32, to: u32) -> bool;
    /// Whether no living process has this number.
    fn is_dead(&self, number: u32) -> bool;
    /// Admits one process at a time to the lock of a dead owner, or to a number of its own; false while another is admitted.
    fn begin_takeover(&self) -> bool;
    /// Ends what `begin_takeover` began.
    fn end_takeover(&self);
    /// Sleeps for a short time at most, and only while the word is `word`.
    fn sleep(&self, word: u32);
    /// Wakes a sleeping process.
    fn wake(&self);
}

/// Takes the lock for the process `number`; `None` once `is_late`.
pub fn take<G: Ground>(ground: &G, number: u32, is_late: impl Fn() -> bool) -> Option<Taken> {
    let (me, mut waited, mut looks) = (number + 1, 0, 0_u32);
    loop {
        let word = ground.load();
        if word & !WAITED == 0 {
            // Others may sleep beside this process, so that it wakes one when it leaves.
            if ground.replace(word, me | waited | word & WAITED) {
                return Some(Taken::Free);
            }
            continue;
        }
        looks = looks.saturating_add(1);
        if looks < SPINS {
            std::hint::spin_loop();
            continue;
        }
        if is_without_owner(ground, me, word) && takes_over(ground, me, word) {
            return Some(Taken::FromDead);
        }
        if is_late() {
            return None;
        }
        waited = WAITED;
        if word & WAITED != 0 || ground.replace(word, word | WAITED) {
            ground.sleep(word | WAITED);
        }
    }
}

/// Takes the lock if it is free or its owner is dead.
pub fn try_take<G: Ground>(ground: &G, number: u32) -> Option<Taken> {
    let (me, word) = (number + 1, ground.load());
    if word & !WAITED == 0 {
        return ground.replace(word, me | word & WAITED).then_some(Taken::Free);
    }
    let is_taken = is_without_owner(ground, me, word) && takes_over(ground, me, word);
    is_taken.then_some(Taken::FromDead)
}

/// Gives the lock back; false where the word names another owner, which only a damaged region does.
pub fn give_back<G: Ground>(ground: &G, number: u32) -> bool {
    for _ in 0..REPLACES_MAX {
        let word = ground.load();
        if word & !WAITED != number + 1 {
            return false;
        }
        if ground.replace(word, 0) {
            if word & WAITED != 0 {
                ground.wake();
            }
            return true;
        }
    }
    false
}

/// Whether nobody will give the lock back. A word that names this process is left from a dead process of its number, or was
/// written by nobody who may, because this process does not have the lock.
fn is_without_owner<G: Ground>(ground: &G, me: u32, word: u32) -> bool {
    let owner = word & !WAITED;
    owner == me || ground.is_dead(owner - 1)
}

/// Takes the lock of a dead owner. The death is checked again behind the admission, where no process takes a number: before,
/// another could have taken over, repaired and left, and a new process of the dead one's number could have the lock.
fn takes_over<G: Ground>(ground: &G, me: u32, word: u32) -> bool {
    if !ground.begin_takeover() {
        return false;
    }
    let is_taken = is_without_owner(ground, me, word)
        && (0..REPLACES_MAX).any(|_| {
            let now = ground.load();
            now & !WAITED == word & !WAITED && ground.replace(now, me | WAITED)
        });
    ground.end_takeover();
    is_taken
}
