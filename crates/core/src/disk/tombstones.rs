//! Owns the file of tombstones, which keep flushed and bad records away whatever the segments still hold.

use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice};

use super::format::Entry;
use super::storage::{Access, Storage, read_full, write_full};
use crate::crc32c;
use crate::key::Scope;
use crate::limits::DISK_TOMBSTONES_FILE_BYTES;
use crate::memory::pages::Pages;
use crate::tenant::salt_of;

const NAME: &str = "tombstones";
const NAME_NEW: &str = "tombstones.new";
const MAGIC: [u8; 4] = *b"TKVT";
const LINE_BYTES: usize = 64;
const CHECKSUM_AT: usize = LINE_BYTES - 4;
const KIND_FLUSH: u8 = 1;
const KIND_RECORD: u8 = 2;

/// A position in the log of all segments: (segment, page).
pub type Mark = (u32, u32);

/// Records that must not come back.
#[derive(Debug, Default)]
pub struct Tombstones {
    /// Per scope, the mark before which all its records are gone.
    flushed: HashMap<Scope, Mark>,
    /// Places of single bad records.
    bad: HashSet<Mark>,
    /// Scopes flushed before the directory was read, whose marks are not known yet.
    early: HashSet<Scope>,
    file_bytes: u64,
    /// Length of the file after it was last rewritten.
    rewritten_bytes: u64,
    /// Whether the file was read; it must not be written before.
    is_loaded: bool,
    /// Whether the file lacks some tombstones.
    is_dirty: bool,
}

impl Tombstones {
    /// Whether the file has all tombstones.
    #[must_use]
    pub fn is_saved(&self) -> bool {
        self.is_loaded && !self.is_dirty && self.early.is_empty()
    }

    /// Reads the file; skips torn or unsound lines.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn load(&mut self, storage: &dyn Storage) -> io::Result<()> {
        let file = match storage.open(NAME, Access::Direct) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.is_loaded = true;
                return Ok(());
            }
            opened => opened?,
        };
        let bytes = usize::try_from(file.bytes()?).unwrap_or(usize::MAX);
        if let Some(mut pages) = Pages::new(bytes) {
            let filled = read_full(&*file, &mut pages, 0)?;
            for line in pages[..filled].as_chunks::<LINE_BYTES>().0 {
                self.take(line);
            }
        }
        // Rounded up, so that the next line is not appended to a torn one.
        self.file_bytes = bytes.next_multiple_of(LINE_BYTES) as u64;
        self.is_loaded = true;
        Ok(())
    }

    /// Whether the entry of a segment must stay away.
    #[must_use]
    pub fn covers(&self, entry: &Entry, segment: u32) -> bool {
        let at = (segment, entry.page);
        let is_flushed = |scope: &Scope| self.flushed.get(scope).is_some_and(|mark| at < *mark);
        scopes_of(entry).any(|scope| is_flushed(&scope)) || self.bad.contains(&at)
    }

    /// Marks all records of `scope` before `mark` as gone; durable once this returns `Ok`.
    ///
    /// # Errors
    /// Errors of the file system; the tombstone then holds until the process ends, and `save` tries again to write it.
    pub fn flush(&mut self, storage: &dyn Storage, scope: Scope, mark: Mark) -> io::Result<()> {
        self.flushed.insert(scope, mark);
        self.append(storage, &line_of_flush(scope, mark))
    }

    /// Remembers a flush until `settle` can mark its records.
    pub fn flush_early(&mut self, scope: Scope) {
        self.early.insert(scope);
    }

    /// Marks the records of all early flushes before `mark` as gone.
    ///
    /// # Errors
    /// As `flush`.
    pub fn settle(&mut self, storage: &dyn Storage, mark: Mark) -> io::Result<()> {
        let early = std::mem::take(&mut self.early).into_iter();
        let flushed = early.map(|scope| self.flush(storage, scope, mark));
        flushed.fold(Ok(()), io::Result::and)
    }

    /// Marks the record at `at` as gone; durable once this returns `Ok`.
    ///
    /// # Errors
    /// As `flush`.
    pub fn retire(&mut self, storage: &dyn Storage, at: Mark) -> io::Result<()> {
        if !self.bad.insert(at) {
            return Ok(());
        }
        self.append(storage, &line_of_record(at))
    }

    /// Rewrites the file when it lacks tombstones or has doubled; drops tombstones older than every segment.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn save(&mut self, storage: &dyn Storage, oldest: u32) -> io::Result<()> {
        let most = DISK_TOMBSTONES_FILE_BYTES.max(2 * self.rewritten_bytes);
        if !self.is_loaded || !self.is_dirty && self.file_bytes <= most {
            return Ok(());
        }
        self.flushed.retain(|_, mark| mark.0 >= oldest);
        self.bad.retain(|at| at.0 >= oldest);
        let flushes = self.flushed.iter().map(|(scope, mark)| line_of_flush(*scope, *mark));
        let lines: Vec<u8> =
            flushes.chain(self.bad.iter().map(|at| line_of_record(*at))).flatten().collect();
        storage.remove(NAME_NEW)?;
        let file = storage.create(NAME_NEW)?;
        write_full(&*file, &mut [IoSlice::new(&lines)], 0)?;
        file.sync()?;
        storage.rename(NAME_NEW, NAME)?;
        storage.sync()?;
        self.rewritten_bytes = lines.len() as u64;
        (self.file_bytes, self.is_dirty) = (self.rewritten_bytes, false);
        Ok(())
    }

    /// Highest segment id that a tombstone names; 0 for none.
    #[must_use]
    pub fn last_segment(&self) -> u32 {
        self.flushed.values().chain(&self.bad).map(|mark| mark.0).max().unwrap_or(0)
    }

    fn append(&mut self, storage: &dyn Storage, line: &[u8; LINE_BYTES]) -> io::Result<()> {
        let appended = self.try_append(storage, line);
        self.is_dirty |= appended.is_err();
        appended
    }

    fn try_append(&mut self, storage: &dyn Storage, line: &[u8; LINE_BYTES]) -> io::Result<()> {
        if !self.is_loaded {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (file, is_new) = match storage.open(NAME, Access::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (storage.create(NAME)?, true),
            opened => (opened?, false),
        };
        write_full(&*file, &mut [IoSlice::new(line)], self.file_bytes)?;
        file.sync()?;
        self.file_bytes += LINE_BYTES as u64;
        if is_new { storage.sync() } else { Ok(()) }
    }

    fn take(&mut self, line: &[u8; LINE_BYTES]) {
        let word =
            |at: usize| u32::from_le_bytes([line[at], line[at + 1], line[at + 2], line[at + 3]]);
        if line[0..4] != MAGIC || crc32c::checksum(&line[..CHECKSUM_AT]) != word(CHECKSUM_AT) {
            return;
        }
        let mark = (word(40), word(44));
        if line[4] == KIND_RECORD {
            self.bad.insert(mark);
        } else if line[4] == KIND_FLUSH {
            let namespace = line[8..40].try_into().ok().filter(|_| line[6] == 1);
            let record_class = Some(line[5]).filter(|class| *class != 0);
            let salt = Some(word(48)).filter(|_| line[7] == 1);
            let known = self.flushed.entry(Scope { namespace, record_class, salt }).or_default();
            *known = mark.max(*known);
        }
    }
}

/// All scopes that an entry may belong to.
fn scopes_of(entry: &Entry) -> impl Iterator<Item = Scope> {
    let namespaces = [None, Some(entry.key.namespace)];
    let classes = [None, Some(entry.record_class)];
    let salts = [None, Some(salt_of(entry.tenant))];
    (0..8_usize).map(move |number| Scope {
        namespace: namespaces[number & 1],
        record_class: classes[number >> 1 & 1],
        salt: salts[number >> 2],
    })
}

fn line_of_flush(scope: Scope, mark: Mark) -> [u8; LINE_BYTES] {
    let mut line = [0; LINE_BYTES];
    line[4] = KIND_FLUSH;
    line[5] = scope.record_class.unwrap_or_default();
    line[6] = u8::from(scope.namespace.is_some());
    line[7] = u8::from(scope.salt.is_some());
    line[8..40].copy_from_slice(&scope.namespace.unwrap_or_default());
    line[48..52].copy_from_slice(&scope.salt.unwrap_or_default().to_le_bytes());
    sealed(line, mark)
}

fn line_of_record(at: Mark) -> [u8; LINE_BYTES] {
    let mut line = [0; LINE_BYTES];
    line[4] = KIND_RECORD;
    sealed(line, at)
}

fn sealed(mut line: [u8; LINE_BYTES], mark: Mark) -> [u8; LINE_BYTES] {
    line[0..4].copy_from_slice(&MAGIC);
    line[40..44].copy_from_slice(&mark.0.to_le_bytes());
    line[44..48].copy_from_slice(&mark.1.to_le_bytes());
    let checksum = crc32c::checksum(&line[..CHECKSUM_AT]);
    line[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    line
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::storage::Directory;
    use super::*;

    #[test]
    fn many_tombstones_that_are_all_needed_are_not_rewritten_each_time() {
        let path = std::env::temp_dir().join(format!("tierkv-tombstones-{}", std::process::id()));
        let storage = Directory::open(&path).expect("a directory");
        let mut tombstones = Tombstones::default();
        tombstones.load(&storage).expect("none are there");
        let count = u32::try_from(DISK_TOMBSTONES_FILE_BYTES).expect("small") / 64 + 10;
        tombstones.bad.extend((0..count).map(|page| (1, page)));
        tombstones.is_dirty = true;
        let mut saved = |oldest| {
            tombstones.save(&storage, oldest).expect("saved");
            let found = std::fs::metadata(path.join(NAME)).expect("the file");
            (found.ino(), found.len())
        };
        let first = saved(1);
        assert_eq!(first.1, u64::from(count) * LINE_BYTES as u64);
        assert_eq!(saved(1), first, "it is as it was written");
        tombstones.file_bytes = 2 * first.1 + 1;
        tombstones.save(&storage, 2).expect("saved");
        assert_eq!(
            std::fs::metadata(path.join(NAME)).expect("the file").len(),
            0,
            "it had doubled"
        );
        std::fs::remove_dir_all(&path).expect("removed");
    }
}
