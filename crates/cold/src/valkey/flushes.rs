//! Owns the list of flushes in Valkey, and what each client knows of it: the records that a flush takes get another name.
//!
//! A flush is an entry with a random id and a scope. The name of a record has the ids of all flushes in whose scope it lies, so that a
//! flush costs one entry however many records it takes, and a node that was away when it came has nothing of the new name. The list
//! lies in three copies, in different thirds of the slots; a request reads the number of each copy beside its records, and two of three
//! must answer, as two of three must take a flush.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tierkv_core::error::{Error, Result};
use tierkv_core::limits::{
    VALKEY_FLUSH_BYTES_MAX, VALKEY_FLUSH_COPIES, VALKEY_FLUSHES_MAX, VALKEY_MODELS_EVERY_MS,
    VALKEY_MODELS_MAX,
};
use tierkv_core::record::Hash;

use super::connection::{Connection, Reply};
use super::refusals::Refusals;
use super::spread::{Exchange, Got, Way, end_asking, push_for, spread};
use super::topology::Topology;
use crate::store::{Call, Scope};

/// Hash tags of the copies' keys; each lies in another third of the slots.
const TAGS: [&str; VALKEY_FLUSH_COPIES] = ["b", "c", "a"];
/// Copies that must answer, and take a flush.
const MOST: usize = VALKEY_FLUSH_COPIES / 2 + 1;
/// Field with a copy's number, which rises with each change.
pub const NUMBER: &[u8] = b"n";

/// What a request learnt of one copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Its node did not answer, or refused with these words.
    Unknown(String),
    /// There is no such copy.
    None,
    /// Its number.
    Number(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Wall clock of the flush in ms, but later than all flushes that its client knew.
    at_ms: u64,
    scope: Scope,
}

impl Entry {
    fn is_everything(&self) -> bool {
        self.scope == Scope::default()
    }

    fn text(&self) -> String {
        let Scope { class, namespace, model, tenant } = &self.scope;
        let namespace = namespace.map_or("-".to_owned(), |bytes| hex(&bytes));
        let model = model.as_ref().map_or_else(String::new, |model| format!(" {model}"));
        format!("{} {class} {tenant} {namespace}{model}", self.at_ms)
    }

    /// Reads an entry; what a later version adds counts as a flush of everything.
    fn parse(text: &str) -> Self {
        let whole = || Self { at_ms: u64::MAX, scope: Scope::default() };
        let mut parts = text.splitn(5, ' ');
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
        let (Some(at_ms), Some(class), Some(tenant)) = (number(), number(), number()) else {
            return whole();
        };
        let namespace = match parts.next() {
            Some("-") => None,
            Some(text) => match unhex(text) {
                Some(bytes) => Some(bytes),
                None => return whole(),
            },
            None => return whole(),
        };
        let Ok(class) = u8::try_from(class) else { return whole() };
        let model = parts.next().map(str::to_owned);
        Self { at_ms, scope: Scope { class, namespace, model, tenant } }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Hash> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
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

    /// What names of a tenant's records have from the flushes that concern them; `None` before the first contact.
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
            // Nobody has begun the list, or all copies were lost: what lies there under older names stays out of reach.
            self.add(&[(random(), Entry { at_ms: now_ms(), scope: Scope::default() })], &absent, valkey, call)?;
            self.read(&absent, valkey, call)?;
            lacking.clear();
        }
        for (copy, entries) in lacking {
            // Where it fails, as for a user who may only read, the next request tries again.
            if self.add(&entries, &[copy], valkey, call).is_ok_and(|taken| taken == 1) {
                self.read(&[copy], valkey, call)?;
            }
        }
        self.state().is_begun = true;
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
        let told = valkey.lists(&[self.models_key.clone()], &[vec![command.to_vec()]], call)?;
        match told.first() {
            Some(Some(_)) => Ok(()),
            _ => Err(Error::lane_failed("no node took the model's name")),
        }
    }

    /// The models that clients have named, by namespace.
    fn models(&self, valkey: &Lines<'_>, call: &Call) -> Result<Vec<(Hash, String)>> {
        let command = vec![b"HGETALL".to_vec(), self.models_key.clone()];
        let answers = valkey.lists(&[self.models_key.clone()], &[vec![command]], call)?;
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
            let Ok(id) = u64::from_str_radix(&text(0), 16) else { continue };
            ids.insert(id);
            state.learn(id, Entry::parse(&text(1)));
        }
        ids
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn covers(&self, scope: &Scope, class: u8, namespace: &Hash, tenant: u64) -> bool {
        let is_of_model = |model: &String| {
            self.models.get(namespace).is_none_or(|names| names.contains(model))
        };
        (scope.class == 0 || scope.class == class)
            && scope.namespace.is_none_or(|only| only == *namespace)
            && scope.model.as_ref().is_none_or(is_of_model)
            && (scope.tenant == 0 || scope.tenant == tenant)
    }

    fn learn(&mut self, id: u64, entry: Entry) {
        let whole = self.entries.iter().filter(|(_, entry)| entry.is_everything());
        let latest = whole.map(|(id, entry)| (entry.at_ms, *id)).max();
        if self.entries.contains_key(&id) || latest.is_some_and(|latest| latest > (entry.at_ms, id)) {
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

fn unknown(refusal: Option<&str>) -> Error {
    let why = refusal.filter(|text| !text.is_empty()).unwrap_or("their nodes do not answer");
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

/// The control path to Valkey: few commands, whose answers are short.
pub struct Lines<'a> {
    pub topology: &'a Topology,
    pub refusals: &'a Refusals,
}

impl Lines<'_> {
    /// Sends the commands of each key to its primary; the last answer of each as a list of values. `None` where one was refused, or
    /// none came.
    fn lists(
        &self,
        keys: &[Vec<u8>],
        commands: &[Vec<Vec<Vec<u8>>>],
        call: &Call,
    ) -> Result<Vec<Option<Vec<Vec<u8>>>>> {
        let exchange: Exchange<'_, Vec<Vec<u8>>> = &|connection, part, call, done| {
            let mut out = Vec::new();
            for index in &part.items {
                for command in &commands[*index] {
                    push_for(&mut out, part, &command.iter().map(Vec::as_slice).collect::<Vec<_>>());
                }
            }
            connection.send(&mut [IoSlice::new(&out)], call)?;
            for index in &part.items {
                let mut last = None;
                for _ in &commands[*index] {
                    end_asking(connection, part, call)?;
                    let got = self.list(connection, call)?;
                    // A refusal stands for all commands of its key.
                    if !matches!(last, Some(Got::Refused(_) | Got::Moved(_) | Got::Asked(_))) {
                        last = Some(got);
                    }
                }
                done.extend(last.map(|got| (*index, got)));
            }
            Ok(())
        };
        let way = Way {
            topology: self.topology,
            refusals: self.refusals,
            connections: 1,
            records: keys.len(),
            is_read: false,
            is_absent: &|_| false,
        };
        let outcomes = spread(&way, keys, call, exchange)?;
        let refused = outcomes.iter().find_map(|got| match got {
            Some(Got::Refused(text)) => Some(text.clone()),
            _ => None,
        });
        let answers: Vec<_> = outcomes
            .into_iter()
            .map(|got| match got {
                Some(Got::Value(value)) => Some(value),
                _ => None,
            })
            .collect();
        match refused.filter(|_| answers.iter().all(Option::is_none)) {
            Some(text) => Err(Error::lane_failed(format!("{}{text}", super::connection::REFUSES))),
            None => Ok(answers),
        }
    }

    fn list(&self, connection: &mut Connection, call: &Call) -> Result<Got<Vec<Vec<u8>>>> {
        let count = match connection.reply(call)? {
            Reply::List(count) => count,
            Reply::Refused(text) => return Ok(redirect(text, self)),
            Reply::Bulk(bytes) => return Ok(Got::Value(vec![connection.short(bytes, call)?])),
            Reply::Int(_) | Reply::Status | Reply::Nil => return Ok(Got::Value(Vec::new())),
        };
        let mut values = Vec::new();
        for _ in 0..count {
            match connection.reply(call)? {
                Reply::Bulk(bytes) if values.len() < LIST_MAX => {
                    values.push(connection.short(bytes, call)?);
                }
                other => {
                    let text = format!("Valkey's list cannot be read: {other:?}");
                    return Err(Error::lane_failed(text));
                }
            }
        }
        Ok(Got::Value(values))
    }
}

/// Values of a list: fields and values of all flushes that two clients add at once, or names of models.
const LIST_MAX: usize = 8 * VALKEY_FLUSHES_MAX;

/// The outcome of a refused command: where to ask instead, or the refusal, counted.
pub fn redirect<T>(text: String, lines: &Lines<'_>) -> Got<T> {
    let mut words = text.split(' ');
    match (words.next(), words.nth(1)) {
        (Some("MOVED"), Some(address)) => {
            lines.topology.is_stale();
            Got::Moved(address.to_owned())
        }
        (Some("ASK"), Some(address)) => Got::Asked(address.to_owned()),
        _ => {
            if lines.refusals.note(&text) {
                lines.topology.is_stale();
            }
            Got::Refused(text)
        }
    }
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
    fn an_entry_is_read_as_it_was_written_and_a_strange_one_takes_everything() {
        let scopes = [
            Scope::default(),
            Scope { class: 2, namespace: Some([0xAB; 32]), model: None, tenant: 77 },
            Scope { class: 0, namespace: None, model: Some("a model of ours".into()), tenant: 0 },
        ];
        for scope in scopes {
            let entry = Entry { at_ms: 1_700_000_000_000, scope };
            assert_eq!(Entry::parse(&entry.text()), entry);
        }
        for text in ["", "x", "1 0 0", "1 0 0 zz", "1 900 0 -"] {
            assert!(Entry::parse(text).is_everything(), "{text}");
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
        assert_eq!(flush(Scope { namespace: Some(one), ..all.clone() }), [true, true, false, false]);
        assert_eq!(flush(Scope { model: Some("m".into()), ..all.clone() }), [true, true, false, false]);
        assert_eq!(flush(Scope { model: Some("n".into()), ..all.clone() }), [false; 4]);
        assert_eq!(flush(Scope { tenant: 5, ..all.clone() }), [false, true, false, true]);
        assert_eq!(flush(Scope { class: 2, ..all.clone() }), [false; 4]);
        assert_eq!(flush(Scope { class: 1, ..all.clone() }), [true; 4]);
        assert_eq!(flush(all), [true; 4]);
        assert_eq!(flushes.state().entries.len(), 1, "what a flush of everything stands for is dropped");
        assert_eq!(flushes.news(5).1.len(), 2);
        assert!(flushes.is_flushed_since(6, &one, 0) && !flushes.is_flushed_since(7, &one, 0));
    }
}
