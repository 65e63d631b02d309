//! Owns a table of numbers by hash: open addressing with the fingerprints beside the numbers, so that a look-up waits for memory once.
//!
//! Words are sorted by tag, each as close to its tag's evenly spread place as earlier words leave room (Robin Hood hashing,
//! Celis 1986). A missing tag is thus known at the first larger one, and growing reads no entry again.

/// Load at which the table grows by a quarter.
const FULL: (usize, usize) = (7, 8);
const HOMES_MIN: usize = 16;
/// Words beyond the last home, for words displaced past it.
const TAIL: usize = 64;

/// A number that is never in a table.
pub const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    tag: u32,
    number: u32,
}

const EMPTY: Word = Word { tag: 0, number: NONE };

/// Numbers below [`NONE`], each under a tag of 32 bits of a keyed hash. Tags may repeat.
#[derive(Debug, Default)]
pub struct Table {
    words: Vec<Word>,
    homes: usize,
    len: usize,
}

impl Table {
    /// Count of the numbers.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Memory of the table, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<Word>()
    }

    /// Returns the number under `tag` that `is` accepts.
    pub fn find(&self, tag: u32, is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.position(tag, is).map(|at| self.words[at].number)
    }

    /// Reads the word that finding `tag` reads first, to begin the memory access; the result is unused.
    #[must_use]
    pub fn begin(&self, tag: u32) -> u32 {
        self.words.get(self.home(tag)).map_or(0, |word| word.tag)
    }

    /// Inserts a number.
    pub fn insert(&mut self, tag: u32, number: u32) {
        if (self.len + 1) * FULL.1 > self.homes * FULL.0 {
            self.grow();
        }
        let start = self.home(tag);
        let is_before = |word: &&Word| word.number != NONE && word.tag <= tag;
        let at = start + self.words[start..].iter().take_while(is_before).count();
        let run = self.words[at..].iter().take_while(|word| word.number != NONE).count();
        if at + run == self.words.len() {
            self.words.push(EMPTY);
        }
        self.words.copy_within(at..at + run, at + 1);
        self.words[at] = Word { tag, number };
        self.len += 1;
    }

    /// Removes the number under `tag` that `is` accepts.
    pub fn remove(&mut self, tag: u32, is: impl FnMut(u32) -> bool) -> Option<u32> {
        let at = self.position(tag, is)?;
        let number = self.words[at].number;
        let rest = self.words[at + 1..].iter().enumerate();
        // Displaced words move back by one, up to the first one at home.
        let is_displaced = |(after, word): &(usize, &Word)| {
            word.number != NONE && self.home(word.tag) <= at + after
        };
        let run = rest.take_while(is_displaced).count();
        self.words.copy_within(at + 1..=at + run, at);
        self.words[at + run] = EMPTY;
        self.len -= 1;
        Some(number)
    }

    fn position(&self, tag: u32, mut is: impl FnMut(u32) -> bool) -> Option<usize> {
        let start = self.home(tag);
        for (after, word) in self.words.get(start..)?.iter().enumerate() {
            if word.number == NONE || word.tag > tag {
                return None;
            }
            if word.tag == tag && is(word.number) {
                return Some(start + after);
            }
        }
        None
    }

    /// Place of a tag in an otherwise empty table.
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.homes as u64) >> u32::BITS) as usize
    }

    fn grow(&mut self) {
        self.homes = (self.homes + self.homes / 4).max(HOMES_MIN);
        let mut words = vec![EMPTY; self.homes + TAIL];
        let mut next = 0;
        for word in self.words.iter().filter(|word| word.number != NONE) {
            next = next.max(self.home(word.tag));
            if next == words.len() {
                words.push(EMPTY);
            }
            words[next] = *word;
            next += 1;
        }
        self.words = words;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Tags repeat, and crowd at the end of the table.
        #[test]
        fn any_history_is_that_of_a_set(
            steps in prop::collection::vec((any::<bool>(), 0..400_u32, 1..4_u32), 1..1500),
        ) {
            let (mut table, mut model) = (Table::default(), HashSet::new());
            let tag_of = |number: u32, crowd: u32| u32::MAX / crowd - (number / 3) * (1 << 20);
            for (adds, number, crowd) in steps {
                let (tag, key) = (tag_of(number, crowd), number * 4 + crowd);
                if adds && model.insert(key) {
                    table.insert(tag, key);
                } else if !adds {
                    let removed = table.remove(tag, |other| other == key);
                    prop_assert_eq!(removed.is_some(), model.remove(&key));
                }
                prop_assert_eq!(table.len(), model.len());
            }
            for number in 0..400 {
                for crowd in 1..4 {
                    let key = number * 4 + crowd;
                    let found = table.find(tag_of(number, crowd), |other| other == key);
                    prop_assert_eq!(found.is_some(), model.contains(&key));
                }
            }
        }
    }

    #[test]
    fn it_takes_less_than_12_bytes_each() {
        let mut table = Table::default();
        for number in 0..100_000_u32 {
            table.insert(number.wrapping_mul(0x9e37_79b9), number);
            assert!(number < 1000 || table.memory_bytes() < 12 * table.len(), "{number}");
        }
    }
}
