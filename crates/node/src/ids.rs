//! Owns the ids by which JavaScript threads name the core's objects.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::limits::IDS_MAX;

/// A process-wide table of objects of one kind. An id is reused only after all others.
pub struct Ids<T> {
    what: &'static str,
    table: LazyLock<Mutex<Table<T>>>,
}

struct Table<T> {
    last: u32,
    objects: HashMap<u32, T>,
}

impl<T> Table<T> {
    fn insert(&mut self, object: T) -> u32 {
        let mut id = self.last.wrapping_add(1).max(1);
        while self.objects.contains_key(&id) {
            id = id.wrapping_add(1).max(1);
        }
        self.last = id;
        self.objects.insert(id, object);
        id
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { last: 0, objects: HashMap::new() }
    }
}

impl<T> Ids<T> {
    /// Returns an empty table; errors call its objects `what`.
    pub const fn new(what: &'static str) -> Self {
        Self { what, table: LazyLock::new(Mutex::default) }
    }

    /// Gives `object` an id; never 0.
    pub fn insert(&self, object: T) -> Result<u32> {
        Ok(self.insert_all(vec![object])?[0])
    }

    /// Gives each of `objects` an id, or drops all of them.
    pub fn insert_all(&self, objects: Vec<T>) -> Result<Vec<u32>> {
        let mut table = self.table();
        if objects.len() > IDS_MAX - table.objects.len() {
            let text = format!("{IDS_MAX} of {} are open at most: close some", self.what);
            return Err(Error::new(Code::NoMemory, text));
        }
        Ok(objects.into_iter().map(|object| table.insert(object)).collect())
    }

    /// Calls `work` with the object of `id`.
    pub fn with<R>(&self, id: u32, work: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let mut table = self.table();
        work(table.objects.get_mut(&id).ok_or_else(|| self.unknown(id))?)
    }

    /// Removes the object of `id`, if it exists.
    pub fn remove(&self, id: u32) -> Option<T> {
        self.table().objects.remove(&id)
    }

    /// Number of objects.
    #[cfg(feature = "test-exports")]
    pub fn len(&self) -> usize {
        self.table().objects.len()
    }

    fn unknown(&self, id: u32) -> Error {
        let text = format!("{} {id} is unknown: it was never opened, or is closed", self.what);
        Error::new(Code::UnknownId, text)
    }

    fn table(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> Ids<T> {
    /// Returns a clone of the object of `id`.
    pub fn get(&self, id: u32) -> Result<T> {
        self.with(id, |object| Ok(object.clone()))
    }
}
