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
    places: HashMap<RecordKey, Place>,
    /// Keys by age; one that was forgotten may still stand here.
    ages: VecDeque<RecordKey>,
}

impl Places {
    pub fn get(&self, namespace: &Hash, key: &PackedKey) -> Option<Place> {
        self.known().places.get(&RecordKey::from_packed(*namespace, key)).cloned()
    }

    pub fn add(&self, namespace: &Hash, object: &Arc<str>, entries: &[Entry]) {
        let mut known = self.known();
        for Entry { key, offset, bytes } in entries {
            let key = RecordKey::from_packed(*namespace, key);
            let place = Place { object: Arc::clone(object), offset: *offset, bytes: *bytes };
            if known.places.insert(key, place).is_none() {
                known.ages.push_back(key);
            }
        }
        while known.ages.len() > S3_PLACES_MAX {
            if let Some(oldest) = known.ages.pop_front() {
                known.places.remove(&oldest);
            }
        }
    }

    pub fn forget(&self, namespace: &Hash, key: &PackedKey) {
        self.known().places.remove(&RecordKey::from_packed(*namespace, key));
    }

    pub fn forget_object(&self, object: &str) {
        self.known().places.retain(|_, place| *place.object != *object);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
