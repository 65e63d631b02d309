//! Owns the queues of an eviction policy: records in numbered places, each in one doubly linked list.

use tierkv_core::store::{RecordKey, Stored};

/// Number of a record's place.
pub type Place = u32;

const NONE: Place = Place::MAX;

/// A record in a policy's hands.
pub struct Node {
    /// Its key.
    pub key: RecordKey,
    /// Itself.
    pub record: Stored,
    /// Key of the block before; of nothing for the first one.
    pub parent: RecordKey,
    /// Which list it stands in.
    pub list: usize,
    /// Uses since it was last looked at.
    pub uses: u8,
    before: Place,
    after: Place,
}

/// Ends and bytes of one list.
#[derive(Clone, Copy)]
struct Ends {
    newest: Place,
    oldest: Place,
    bytes: u64,
}

/// Records in `LISTS` lists.
pub struct Lists<const LISTS: usize> {
    nodes: Vec<Option<Node>>,
    free: Vec<Place>,
    ends: [Ends; LISTS],
    len: usize,
}

impl<const LISTS: usize> Lists<LISTS> {
    /// Empty lists.
    pub fn new() -> Self {
        let ends = [Ends { newest: NONE, oldest: NONE, bytes: 0 }; LISTS];
        Self { nodes: Vec::new(), free: Vec::new(), ends, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the records in a list.
    pub fn bytes(&self, list: usize) -> u64 {
        self.ends[list].bytes
    }

    pub fn get(&self, place: Place) -> Option<&Node> {
        self.nodes.get(place as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, place: Place) -> Option<&mut Node> {
        self.nodes.get_mut(place as usize)?.as_mut()
    }

    /// All records.
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flatten()
    }

    /// The one that is next to go.
    pub fn oldest(&self, list: usize) -> Option<Place> {
        Some(self.ends[list].oldest).filter(|place| *place != NONE)
    }

    /// Takes a record in, as the newest of a list.
    pub fn insert(
        &mut self,
        list: usize,
        key: RecordKey,
        record: Stored,
        parent: RecordKey,
    ) -> Place {
        let node = Node { key, record, parent, list, uses: 0, before: NONE, after: NONE };
        let place = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            Place::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        });
        self.nodes[place as usize] = Some(node);
        self.len += 1;
        self.link(place, list);
        place
    }

    /// Takes a record out.
    pub fn remove(&mut self, place: Place) -> Option<Node> {
        self.get(place)?;
        self.unlink(place);
        self.free.push(place);
        self.len -= 1;
        self.nodes[place as usize].take()
    }

    /// Makes a record the newest of a list.
    pub fn move_to(&mut self, place: Place, list: usize) {
        self.unlink(place);
        self.link(place, list);
    }

    fn link(&mut self, place: Place, list: usize) {
        let (before, after) = (NONE, self.ends[list].newest);
        let Some(node) = self.get_mut(place) else { return };
        (node.list, node.before, node.after) = (list, before, after);
        let charge = node.record.charge();
        self.ends[list].newest = place;
        match self.get_mut(after) {
            Some(other) => other.before = place,
            None => self.ends[list].oldest = place,
        }
        self.ends[list].bytes += charge;
    }

    fn unlink(&mut self, place: Place) {
        let Some(node) = self.get(place) else { return };
        let (list, before, after, charge) =
            (node.list, node.before, node.after, node.record.charge());
        match self.get_mut(before) {
            Some(other) => other.after = after,
            None => self.ends[list].newest = after,
        }
        match self.get_mut(after) {
            Some(other) => other.before = before,
            None => self.ends[list].oldest = before,
        }
        self.ends[list].bytes -= charge;
    }
}
