//! Owns the places of records that this process has seen in a bucket: object, offset and length of each, the oldest dropped first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tierkv_core::key::RecordKey;
use tierkv_core::limits::S3_PLACES_MAX;
use tierkv_core::record::Hash;

use super::object::Entry;
use crate::store::PackedKey;

/// Where a record lies.
#[derive(Debug, Clone)]
pub struct Place {
    pub object: Arc<str>,
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Default)]
pub struct Places(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Each place with the number of its addition.
    places: HashMap<RecordKey, (u64, Place)>,
    /// Additions by age. An entry whose number differs from its place's belongs to a forgotten place.
    ages: VecDeque<(u64, RecordKey)>,
    added: u64,
}

impl Known {
    fn drop_oldest(&mut self) {
        let Some((number, key)) = self.ages.pop_front() else { return };
        if self.places.get(&key).is_some_and(|(added, _)| *added == number) {
            self.places.remove(&key);
        }
    }
}

impl Places {
    pub fn get(&self, namespace: &Hash, key: &PackedKey) -> Option<Place> {
        self.known()
            .places
            .get(&RecordKey::from_packed(*namespace, key))
            .map(|(_, place)| place.clone())
    }

    pub fn add(&self, namespace: &Hash, object: &Arc<str>, entries: &[Entry]) {
        let mut known = self.known();
        for Entry { key, offset, bytes } in entries {
            let key = RecordKey::from_packed(*namespace, key);
            let place = Place { object: Arc::clone(object), offset: *offset, bytes: *bytes };
            if let Some((_, seen)) = known.places.get_mut(&key) {
                *seen = place;
                continue;
            }
            known.added += 1;
            let number = known.added;
            known.places.insert(key, (number, place));
            known.ages.push_back((number, key));
        }
        while known.ages.len() > S3_PLACES_MAX {
            known.drop_oldest();
        }
    }

    pub fn forget(&self, namespace: &Hash, key: &PackedKey) {
        self.known().places.remove(&RecordKey::from_packed(*namespace, key));
    }

    pub fn forget_object(&self, object: &str) {
        self.known().places.retain(|_, (_, place)| *place.object != *object);
    }

    pub fn forget_all(&self) {
        *self.known() = Known::default();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tierkv_core::header::PACKED_KEY_BYTES;

    use super::*;

    const NAMESPACE: Hash = [7; 32];

    fn entry(number: usize) -> Entry {
        let mut key: PackedKey = [0; PACKED_KEY_BYTES];
        key[..8].copy_from_slice(&(number as u64).to_le_bytes());
        Entry { key, offset: number as u64, bytes: 1 }
    }

    #[test]
    fn a_place_that_was_forgotten_and_added_again_is_as_young_as_its_addition() {
        let (places, object) = (Places::default(), Arc::from("object"));
        places.add(&NAMESPACE, &object, &[entry(0), entry(1)]);
        places.forget(&NAMESPACE, &entry(0).key);
        places.add(&NAMESPACE, &object, &[entry(0)]);
        let others: Vec<Entry> = (2..S3_PLACES_MAX).map(entry).collect();
        places.add(&NAMESPACE, &object, &others);
        assert!(places.get(&NAMESPACE, &entry(0).key).is_some());
        places.add(&NAMESPACE, &object, &[entry(S3_PLACES_MAX)]);
        assert!(places.get(&NAMESPACE, &entry(1).key).is_none(), "the oldest");
        assert!(places.get(&NAMESPACE, &entry(0).key).is_some());
    }
}
