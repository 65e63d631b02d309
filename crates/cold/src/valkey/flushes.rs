//! Owns the list of flushes in Valkey, and what each client knows of it: the records that a flush takes get another name.
//!
//! A flush is an entry with a random id and a scope. The name of a record has the ids of all flushes in whose scope it lies, so that a
//! flush costs one entry however many records it takes, and a node that was away when it came has nothing of the new name. The list
//! lies in three copies, in different thirds of the slots; a request reads the number of each copy beside its records, and two of three
//! must answer, as two of three must take a flush.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::slice::from_ref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tierkv_core::error::{Error, Result};
use tierkv_core::limits::{
    VALKEY_FLUSH_BYTES_MAX, VALKEY_FLUSH_COPIES, VALKEY_FLUSHES_MAX, VALKEY_MODELS_EVERY_MS,
    VALKEY_MODELS_MAX,
};
use tierkv_core::record::Hash;

use super::flush::{Entry, hex, unhex};
use super::lines::Lines;
use crate::store::{Call, Scope};

/// Hash tags of the copies' keys; each lies in another third of the slots.
const TAGS: [&str; VALKEY_FLUSH_COPIES] = ["b", "c", "a"];
/// Copies that must answer, and take a flush.
const MOST: usize = VALKEY_FLUSH_COPIES / 2 + 1;
/// Field with a copy's number, which rises with each change.
pub const NUMBER: &[u8] = b"n";
/// Field with the id and the entry that a copy begins with.
const BEGIN: &[u8] = b"begin";

/// State of one copy, as a request learnt it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Its node did not answer, or refused with these words.
    Unknown(String),
    /// There is no such copy.
    None,
    /// Its number.
    Number(u64),
}

#[derive(Default)]
struct State {
    /// False until the list was first read.
    is_begun: bool,
    /// By id, without those that a later flush of everything stands for.
    entries: BTreeMap<u64, Entry>,
    /// Number of each copy when it was last read.
    seen: [Option<u64>; VALKEY_FLUSH_COPIES],
    /// Scopes learnt since the first contact, in order.
    news: Vec<Scope>,
    models: HashMap<Hash, HashSet<String>>,
    /// When the models of other clients were last read.
    models_asked: Option<Instant>,
}

pub struct Flushes {
    /// Number of the class of all records of this client.
    class: u8,
    copies: Vec<Vec<u8>>,
    models_key: Vec<u8>,
    state: Mutex<State>,
}

impl Flushes {
    /// `prefix`: that of all keys of the deployment.
    pub fn new(prefix: &str, class: u8) -> Self {
        let copies = TAGS.iter().map(|tag| format!("{prefix}:flushes:{{{tag}}}").into_bytes());
        let models_key = format!("{prefix}:models").into_bytes();
        Self { class, copies: copies.collect(), models_key, state: Mutex::default() }
    }

    /// Keys of the copies, of which a request asks the field `NUMBER`.
    pub fn keys(&self) -> &[Vec<u8>] {
        &self.copies
    }

    /// Part of the names of a tenant's records that the flushes make; `None` before the first contact.
    pub fn cover(&self, namespace: &Hash, tenant: u64) -> Option<u64> {
        let state = self.state();
        let covers = |entry: &&Entry| state.covers(&entry.scope, self.class, namespace, tenant);
        let ids = state.entries.iter().filter(|(_, entry)| covers(entry));
        state.is_begun.then(|| ids.fold(0, |cover, (id, _)| cover ^ id))
    }

    /// Whether a flush after the first `known` concerns a tenant's records.
    pub fn is_flushed_since(&self, known: u64, namespace: &Hash, tenant: u64) -> bool {
        let state = self.state();
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let mut news = state.news.iter().skip(known);
        news.any(|scope| state.covers(scope, self.class, namespace, tenant))
    }

    /// As `Store::news`.
    pub fn news(&self, known: u64) -> (u64, Vec<Scope>) {
        let state = self.state();
        let from = usize::try_from(known).unwrap_or(usize::MAX).min(state.news.len());
        (state.news.len() as u64, state.news[from..].to_vec())
    }

    /// Notes a namespace's model.
    pub fn note_model(&self, namespace: &Hash, model: &str) {
        let mut state = self.state();
        if state.models.len() >= VALKEY_MODELS_MAX && !state.models.contains_key(namespace) {
            return;
        }
        let names = state.models.entry(*namespace).or_default();
        if names.len() < VALKEY_MODELS_MAX {
            names.insert(model.to_owned());
        }
    }

    /// Whether names of records depend on a namespace's model, which this client does not know. A flush by model takes such a
    /// namespace, so that at worst a record is not found.
    pub fn is_model_wanted(&self, namespace: &Hash) -> bool {
        let state = self.state();
        let is_due = state.models_asked.is_none_or(|asked| asked.elapsed() >= pause());
        is_due
            && !state.models.contains_key(namespace)
            && state.entries.values().any(|entry| entry.scope.model.is_some())
    }

    /// Reads the models that other clients have named.
    pub fn read_models(&self, namespace: &Hash, valkey: &Lines<'_>, call: &Call) -> Result<()> {
        let named = self.models(valkey, call)?;
        self.state().models_asked = Some(Instant::now());
        for (of, model) in named.iter().filter(|(of, _)| of == namespace) {
            self.note_model(of, model);
        }
        Ok(())
    }

    /// The names of all models, each once.
    pub fn model_names(&self, valkey: &Lines<'_>, call: &Call) -> Result<Vec<String>> {
        let mut names: Vec<_> =
            self.models(valkey, call)?.into_iter().map(|(_, model)| model).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Takes what a request saw of the copies, and reads or mends them where they changed.
    ///
    /// # Errors
    /// `LANE_FAILED` where so few copies answer that flushes may be unknown; errors of `spread`.
    pub fn heed(&self, seen: &[Seen], valkey: &Lines<'_>, call: &Call) -> Result<()> {
        let mut refusal = None;
        let (mut changed, mut absent, mut known) = (Vec::new(), Vec::new(), 0);
        {
            let mut state = self.state();
            for (copy, seen) in seen.iter().enumerate() {
                match seen {
                    Seen::Unknown(text) => {
                        refusal.get_or_insert(text.clone());
                        // Read again when it is back, because it may have missed a flush.
                        state.seen[copy] = None;
                        continue;
                    }
                    Seen::None => absent.push(copy),
                    Seen::Number(number) if state.seen[copy] == Some(*number) => {}
                    Seen::Number(_) => changed.push(copy),
                }
                known += 1;
            }
        }
        if known < MOST {
            return Err(unknown(refusal.as_deref()));
        }
        if changed.is_empty() && absent.is_empty() {
            return Ok(());
        }
        self.read(&changed, valkey, call)?;
        let mut lacking = self.lacking(&absent);
        if self.state().entries.is_empty() {
            // The list was never begun, or all copies were lost: records under older names stay out of reach.
            self.begin(&absent, valkey, call)?;
            self.read(&absent, valkey, call)?;
            lacking.clear();
        }
        for (copy, entries) in lacking {
            // Where it fails, as for a user who may only read, the next request tries again.
            if self.add(&entries, &[copy], valkey, call).is_ok_and(|taken| taken == 1) {
                self.read(&[copy], valkey, call)?;
            }
        }
        if !absent.is_empty() {
            // The models' names went with it; where it fails, the next client that loses a copy tells its own.
            let _ = self.tell_models(valkey, call);
        }
        self.state().is_begun = true;
        Ok(())
    }

    /// Names again the models that this client knows, after a node has lost its memory.
    fn tell_models(&self, valkey: &Lines<'_>, call: &Call) -> Result<()> {
        let mut command = vec![b"HSET".to_vec(), self.models_key.clone()];
        for (namespace, names) in &self.state().models {
            let pairs =
                names.iter().flat_map(|name| [hex(namespace).into_bytes(), name.clone().into()]);
            command.extend(pairs);
        }
        if command.len() > 2 {
            valkey.lists(from_ref(&self.models_key), &[vec![command]], call)?;
        }
        Ok(())
    }

    /// Adds a flush. Returns the copies that took it, and whether it takes everything, because the list is full.
    ///
    /// # Errors
    /// `LANE_FAILED` where too few copies took it.
    pub fn flush(&self, scope: Scope, valkey: &Lines<'_>, call: &Call) -> Result<(usize, bool)> {
        let (entry, is_full) = {
            let state = self.state();
            let latest = state.entries.values().map(|entry| entry.at_ms).max().unwrap_or_default();
            let is_full = state.entries.len() >= VALKEY_FLUSHES_MAX;
            let scope = if is_full { Scope::default() } else { scope };
            (Entry { at_ms: now_ms().max(latest.saturating_add(1)), scope }, is_full)
        };
        if entry.text().len() > VALKEY_FLUSH_BYTES_MAX {
            let text = format!("a model's name of over {VALKEY_FLUSH_BYTES_MAX} bytes");
            return Err(Error::bad_argument(text));
        }
        let all: Vec<_> = (0..VALKEY_FLUSH_COPIES).collect();
        let taken = self.add(&[(random(), entry)], &all, valkey, call)?;
        self.read(&all, valkey, call)?;
        if taken < MOST {
            let text = format!(
                "{taken} of {VALKEY_FLUSH_COPIES} copies of the list of flushes took note, and {MOST} must: flush again"
            );
            return Err(Error::lane_failed(text));
        }
        Ok((taken, is_full))
    }

    /// Names a namespace's model for all clients.
    pub fn tell_model(
        &self,
        namespace: &Hash,
        model: &str,
        valkey: &Lines<'_>,
        call: &Call,
    ) -> Result<()> {
        let field = hex(namespace).into_bytes();
        let command = [b"HSET".to_vec(), self.models_key.clone(), field, model.into()];
        let told = valkey.lists(from_ref(&self.models_key), &[vec![command.to_vec()]], call)?;
        match told.first() {
            Some(Some(_)) => Ok(()),
            _ => Err(Error::lane_failed("no node took the model's name")),
        }
    }

    /// The models that clients have named, by namespace.
    fn models(&self, valkey: &Lines<'_>, call: &Call) -> Result<Vec<(Hash, String)>> {
        let command = vec![b"HGETALL".to_vec(), self.models_key.clone()];
        let answers = valkey.lists(from_ref(&self.models_key), &[vec![command]], call)?;
        let fields: Vec<_> = answers.into_iter().flatten().flatten().collect();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let pairs = fields.chunks_exact(2);
        let named = pairs.filter_map(|pair| Some((unhex(&text(&pair[0]))?, text(&pair[1]))));
        Ok(named.collect())
    }

    /// Entries that each of the copies lacks, where it lacks any.
    fn lacking(&self, absent: &[usize]) -> Vec<(usize, Vec<(u64, Entry)>)> {
        let state = self.state();
        let all: Vec<_> = state.entries.iter().map(|(id, entry)| (*id, entry.clone())).collect();
        if all.is_empty() {
            return Vec::new();
        }
        absent.iter().map(|copy| (*copy, all.clone())).collect()
    }

    /// Begins the list in copies that there are not. Of several clients at once one wins in each copy, and all read who it was.
    fn begin(&self, copies: &[usize], valkey: &Lines<'_>, call: &Call) -> Result<()> {
        let entry = Entry { at_ms: now_ms(), scope: Scope::default() };
        let first = format!("{:016x} {}", random(), entry.text()).into_bytes();
        let number = (random() >> 16).to_string().into_bytes();
        let keys: Vec<_> = copies.iter().map(|copy| self.copies[*copy].clone()).collect();
        let set = |key: &Vec<u8>, field: &[u8], value: &[u8]| {
            vec![b"HSETNX".to_vec(), key.clone(), field.to_vec(), value.to_vec()]
        };
        let commands: Vec<_> = keys
            .iter()
            .map(|key| vec![set(key, BEGIN, &first), set(key, NUMBER, &number)])
            .collect();
        valkey.lists(&keys, &commands, call).map(drop)
    }

    /// Writes entries to copies; returns how many took them.
    fn add(
        &self,
        entries: &[(u64, Entry)],
        copies: &[usize],
        valkey: &Lines<'_>,
        call: &Call,
    ) -> Result<usize> {
        if copies.is_empty() {
            return Ok(0);
        }
        let keys: Vec<_> = copies.iter().map(|copy| self.copies[*copy].clone()).collect();
        let commands: Vec<_> = keys
            .iter()
            .map(|key| {
                // A copy that is made anew gets a number that no client has seen.
                let first = (random() >> 16).to_string().into_bytes();
                let mut set = vec![b"HSET".to_vec(), key.clone()];
                for (id, entry) in entries {
                    set.extend([format!("{id:016x}").into_bytes(), entry.text().into_bytes()]);
                }
                let command = |parts: [&[u8]; 4]| parts.map(<[u8]>::to_vec).to_vec();
                let begin = command([b"HSETNX", key, NUMBER, &first]);
                vec![begin, set, command([b"HINCRBY", key, NUMBER, b"1"])]
            })
            .collect();
        let answers = valkey.lists(&keys, &commands, call)?;
        Ok(answers.iter().flatten().count())
    }

    /// Reads copies, and mends those that lack entries of the others.
    fn read(&self, copies: &[usize], valkey: &Lines<'_>, call: &Call) -> Result<()> {
        if copies.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = copies.iter().map(|copy| self.copies[*copy].clone()).collect();
        let ask = |key: &Vec<u8>| vec![vec![b"HGETALL".to_vec(), key.clone()]];
        let commands: Vec<_> = keys.iter().map(ask).collect();
        let answers = valkey.lists(&keys, &commands, call)?;
        let mut had = Vec::new();
        for (copy, fields) in copies.iter().zip(answers) {
            let Some(fields) = fields else { continue };
            had.push((*copy, self.take(*copy, &fields)));
        }
        let missing: Vec<_> = {
            let state = self.state();
            let live = had.into_iter().map(|(copy, ids)| {
                let lacks = state.entries.iter().filter(|(id, _)| !ids.contains(id));
                (copy, lacks.map(|(id, entry)| (*id, entry.clone())).collect::<Vec<_>>())
            });
            live.filter(|(_, lacks)| !lacks.is_empty()).collect()
        };
        for (copy, entries) in missing {
            // As above.
            let _ = self.add(&entries, &[copy], valkey, call);
        }
        Ok(())
    }

    /// Takes the fields of a copy; returns the ids that it has.
    fn take(&self, copy: usize, fields: &[Vec<u8>]) -> HashSet<u64> {
        let mut state = self.state();
        let mut ids = HashSet::new();
        for pair in fields.chunks_exact(2) {
            let text = |at: usize| String::from_utf8_lossy(&pair[at]).into_owned();
            if pair[0] == NUMBER {
                state.seen[copy] = text(1).parse().ok();
                continue;
            }
            let (id, entry) = match text(1).split_once(' ') {
                Some((id, entry)) if pair[0] == BEGIN => (id.to_owned(), entry.to_owned()),
                _ => (text(0), text(1)),
            };
            let Ok(id) = u64::from_str_radix(&id, 16) else { continue };
            ids.insert(id);
            state.learn(id, Entry::parse(&entry));
        }
        ids
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn covers(&self, scope: &Scope, class: u8, namespace: &Hash, tenant: u64) -> bool {
        let is_of_model =
            |model: &String| self.models.get(namespace).is_none_or(|names| names.contains(model));
        (scope.class == 0 || scope.class == class)
            && scope.namespace.is_none_or(|only| only == *namespace)
            && scope.model.as_ref().is_none_or(is_of_model)
            && (scope.tenant == 0 || scope.tenant == tenant)
    }

    fn learn(&mut self, id: u64, entry: Entry) {
        let whole = self.entries.iter().filter(|(_, entry)| entry.is_everything());
        let latest = whole.map(|(id, entry)| (entry.at_ms, *id)).max();
        if self.entries.contains_key(&id) || latest.is_some_and(|latest| latest > (entry.at_ms, id))
        {
            return;
        }
        if self.is_begun {
            self.news.push(entry.scope.clone());
        }
        if entry.is_everything() {
            let rank = (entry.at_ms, id);
            self.entries.retain(|id, entry| (entry.at_ms, *id) > rank);
        }
        self.entries.insert(id, entry);
    }
}

fn pause() -> Duration {
    Duration::from_millis(VALKEY_MODELS_EVERY_MS)
}

/// Why a copy was not read, where no node has refused.
const NO_NODE: &str = "no node serves the slots of its copies at present, or those nodes do not answer (`CLUSTER INFO` says which)";

fn unknown(refusal: Option<&str>) -> Error {
    let why = refusal.filter(|text| !text.is_empty()).unwrap_or(NO_NODE);
    let text = format!("the list of flushes cannot be read, so that no record is used: {why}");
    Error::lane_failed(text)
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A number that no other client draws: the system seeds the hasher.
fn random() -> u64 {
    RandomState::new().hash_one(now_ms())
}

#[cfg(test)]
mod tests {
    use redis::cluster_routing::Slot;

    use super::*;

    #[test]
    fn the_copies_lie_in_different_thirds_of_the_slots() {
        let flushes = Flushes::new("tierkv", 1);
        for (third, key) in (0_u16..).zip(flushes.keys()) {
            let slots = (third * 5461)..(third + 1) * 5461;
            let is_in = slots.map(Slot::new).any(|slot| slot == Some(Slot::for_key(key)));
            assert!(is_in, "copy {third}");
        }
    }

    #[test]
    fn a_flush_changes_the_names_that_it_takes_and_no_other() {
        let flushes = Flushes::new("t", 1);
        flushes.state().is_begun = true;
        let (one, other) = ([1; 32], [2; 32]);
        flushes.note_model(&one, "m");
        flushes.note_model(&other, "another");
        let names = || {
            [(one, 0), (one, 5), (other, 0), (other, 5)]
                .map(|(namespace, tenant)| flushes.cover(&namespace, tenant).unwrap())
        };
        let mut at_ms = 0;
        let mut flush = |scope: Scope| {
            at_ms += 1;
            let before = names();
            flushes.state().learn(random(), Entry { at_ms, scope });
            let after = names();
            [0, 1, 2, 3].map(|at| before[at] != after[at])
        };
        let all = Scope::default();
        assert_eq!(
            flush(Scope { namespace: Some(one), ..all.clone() }),
            [true, true, false, false]
        );
        assert_eq!(
            flush(Scope { model: Some("m".into()), ..all.clone() }),
            [true, true, false, false]
        );
        assert_eq!(flush(Scope { model: Some("n".into()), ..all.clone() }), [false; 4]);
        assert_eq!(flush(Scope { tenant: 5, ..all.clone() }), [false, true, false, true]);
        assert_eq!(flush(Scope { class: 2, ..all.clone() }), [false; 4]);
        assert_eq!(flush(Scope { class: 1, ..all.clone() }), [true; 4]);
        assert_eq!(flush(all), [true; 4]);
        assert_eq!(
            flushes.state().entries.len(),
            1,
            "what a flush of everything stands for is dropped"
        );
        assert_eq!(flushes.news(5).1.len(), 2);
        assert!(flushes.is_flushed_since(6, &one, 0) && !flushes.is_flushed_since(7, &one, 0));
    }
}
