//! Owns the sealing of records, which hides them from vaults: AES-256-GCM, one key per epoch, one nonce per record.
//!
//! The byte layout is in docs/protocol.md, section 1.1.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{hkdf, hmac};

use crate::crc32c;
use crate::error::{Code, Error, Result};
use crate::limits::{SEAL_EPOCH_RECORDS_MAX, SEAL_KEYS_MAX};
use crate::record::{self, HEADER_BYTES, Hash, Header, LAYOUT_OPAQUE};

/// Length of the prefix before the sealed bytes: magic, version, key, epoch, number.
pub const PREFIX_BYTES: usize = 32;
/// Bytes that a sealed record has more than the record inside it.
pub const SEALED_EXTRA_BYTES: usize = SEALED_AROUND.0 + SEALED_AROUND.1;
/// Bytes of these before and behind the record.
pub const SEALED_AROUND: (usize, usize) = (HEADER_BYTES + PREFIX_BYTES, TAG_BYTES);

const TAG_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
const EPOCH_BYTES: usize = 16;
const KEY_ID_BYTES: usize = 2;
const MAGIC: [u8; 4] = *b"TKVS";
const VERSION: u16 = 1;
/// Bytes of the outer header that the tag covers: all but its checksums, which follow from the sealed bytes.
const BOUND_HEADER_BYTES: usize = HEADER_BYTES - 8;

/// The keys of one sidecar: the first seals, all open, and the last derives names.
pub struct RecordKeys {
    masters: Vec<Master>,
    names: hmac::Key,
    epoch: Mutex<Option<Epoch>>,
    epoch_records: u64,
    unopened: AtomicU64,
}

/// One key of the operator.
struct Master {
    id: [u8; KEY_ID_BYTES],
    key: [u8; KEY_BYTES],
}

/// A key used for a limited number of records. Its salt is random, so that no other epoch of any process has the same key.
struct Epoch {
    salt: [u8; EPOCH_BYTES],
    key: Arc<LessSafeKey>,
    next: u64,
}

/// Key and nonce of one sealed record, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seal {
    /// Salt of the key.
    pub epoch: [u8; EPOCH_BYTES],
    /// The nonce.
    pub number: u64,
}

impl RecordKeys {
    /// Parses a key file: one key per line, 64 hexadecimal digits. The first key seals, the others only open. Empty lines
    /// and text behind a `#` are skipped.
    ///
    /// # Errors
    /// `BAD_ARGUMENT` naming the line, never its content.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let wrong = |what: &str| Error::bad_argument(format!("the record keys: {what}"));
        let text = std::str::from_utf8(text).map_err(|_| wrong("they are no text"))?;
        let mut masters: Vec<Master> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let key = key_of(line).ok_or_else(|| {
                wrong(&format!("line {} is not {} hexadecimal digits", index + 1, KEY_BYTES * 2))
            })?;
            let mut id = [0; KEY_ID_BYTES];
            id.copy_from_slice(&derive(&key, b"", b"tierkv record key id")?[..KEY_ID_BYTES]);
            if masters.iter().any(|master| master.id == id) {
                return Err(wrong(&format!("line {} cannot be told from one before", index + 1)));
            }
            masters.push(Master { id, key });
        }
        if masters.is_empty() || masters.len() > SEAL_KEYS_MAX {
            return Err(wrong(&format!("{} of them, 1 to {SEAL_KEYS_MAX}", masters.len())));
        }
        let names = derive(&masters[masters.len() - 1].key, b"", b"tierkv names")?;
        Ok(Self {
            masters,
            names: hmac::Key::new(hmac::HMAC_SHA256, &names),
            epoch: Mutex::new(None),
            epoch_records: SEAL_EPOCH_RECORDS_MAX,
            unopened: AtomicU64::new(0),
        })
    }

    /// Returns the keys with shorter epochs, for tests.
    #[must_use]
    pub fn with_epoch_records(self, epoch_records: u64) -> Self {
        Self { epoch_records, ..self }
    }

    /// Whether both have the same keys in the same order.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.masters
            .iter()
            .map(|master| master.key)
            .eq(other.masters.iter().map(|master| master.key))
    }

    /// The name of a namespace for vaults.
    #[must_use]
    pub fn namespace(&self, namespace: &Hash) -> Hash {
        let mut name = [0; 32];
        name.copy_from_slice(hmac::sign(&self.names, namespace).as_ref());
        name
    }

    /// The name of a tenant for vaults, 48 bits; 0, no tenant in particular, stays 0.
    #[must_use]
    pub fn tenant(&self, tenant: u64) -> u64 {
        if tenant == 0 {
            return 0;
        }
        let digest = hmac::sign(&self.names, &tenant.to_le_bytes());
        let bits = digest.as_ref()[..6].iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        bits.max(1)
    }

    /// Number of records that none of the keys opened.
    #[must_use]
    pub fn unopened(&self) -> u64 {
        self.unopened.load(Ordering::Relaxed)
    }

    /// Returns the next epoch and number; each pair is used once.
    ///
    /// # Errors
    /// `NO_MEMORY` where the system has no random bytes.
    pub fn draw(&self) -> Result<Seal> {
        self.take().map(|(seal, _)| seal)
    }

    fn take(&self) -> Result<(Seal, Arc<LessSafeKey>)> {
        let mut epoch = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        if epoch.as_ref().is_none_or(|epoch| epoch.next >= self.epoch_records) {
            *epoch = Some(self.new_epoch()?);
        }
        let Some(epoch) = epoch.as_mut() else { return Err(broken("an epoch")) };
        let seal = Seal { epoch: epoch.salt, number: epoch.next };
        epoch.next += 1;
        Ok((seal, Arc::clone(&epoch.key)))
    }

    fn new_epoch(&self) -> Result<Epoch> {
        let mut salt = [0; EPOCH_BYTES];
        SystemRandom::new().fill(&mut salt).map_err(|_| broken("random bytes"))?;
        let key = Arc::new(record_key(&self.masters[0], &salt)?);
        Ok(Epoch { salt, key, next: 0 })
    }

    /// Seals a record in place. `record` has the length of the sealed record, with the plain record, header included,
    /// behind room for outer header and prefix, and before room for the tag.
    ///
    /// # Errors
    /// `NO_MEMORY` where the system has no random bytes.
    ///
    /// # Panics
    /// If `record` does not have that length.
    pub fn seal(&self, record: &mut [u8], inner: &Header) -> Result<()> {
        let (seal, key) = self.take()?;
        let (head, payload) = record.split_at_mut(HEADER_BYTES);
        let outer = outer_of(inner, payload.len() as u64);
        let (prefix, sealed) = payload.split_at_mut(PREFIX_BYTES);
        prefix.copy_from_slice(&encode_prefix(self.masters[0].id, seal));
        let (plain, tag) = sealed.split_at_mut(sealed.len() - TAG_BYTES);
        let bound = bound(&outer.encode(0), prefix);
        let made = key
            .seal_in_place_separate_tag(nonce(seal.number), Aad::from(bound), plain)
            .map_err(|_| broken("a cipher that takes a record"))?;
        tag.copy_from_slice(made.as_ref());
        head.copy_from_slice(&outer.encode(crc32c::checksum(payload)));
        Ok(())
    }

    /// Opens the payload of a sealed record in place; its checksums have been verified. Returns the header of the inner
    /// record, and the range of its payload.
    ///
    /// # Errors
    /// `RECORD_UNOPENED` for a record sealed with another key, changed since, or not sealed at all.
    pub fn open(&self, outer: &[u8], payload: &mut [u8]) -> Result<(Header, Range<usize>)> {
        let opened = self.try_open(outer, payload);
        if opened.is_err() {
            self.unopened.fetch_add(1, Ordering::Relaxed);
        }
        opened
    }

    fn try_open(&self, outer: &[u8], payload: &mut [u8]) -> Result<(Header, Range<usize>)> {
        if outer.len() < HEADER_BYTES || payload.len() < PREFIX_BYTES + TAG_BYTES {
            return Err(unopened("it is not sealed"));
        }
        let (prefix, sealed) = payload.split_at_mut(PREFIX_BYTES);
        let (id, seal) = parse_prefix(prefix).ok_or_else(|| unopened("it is not sealed"))?;
        let master = self.masters.iter().find(|master| master.id == id);
        let master = master.ok_or_else(|| unopened("it is sealed with a key that is not ours"))?;
        let key = record_key(master, &seal.epoch)?;
        let plain = key
            .open_in_place(nonce(seal.number), Aad::from(bound(outer, prefix)), sealed)
            .map_err(|_| unopened("it is not as it was sealed"))?;
        let header = record::parse(plain).map_err(|_| unopened("there is no record in it"))?.header;
        if header.payload_bytes != (plain.len() - HEADER_BYTES) as u64 {
            return Err(unopened("the record in it is of another length"));
        }
        let end = PREFIX_BYTES + plain.len();
        Ok((header, PREFIX_BYTES + HEADER_BYTES..end))
    }
}

impl fmt::Debug for RecordKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordKeys").field("keys", &self.masters.len()).finish_non_exhaustive()
    }
}

/// Outer header, which shows a vault only the record's key and length.
fn outer_of(inner: &Header, payload_bytes: u64) -> Header {
    Header {
        codec: 0,
        record_class: inner.record_class,
        fidelity: 0,
        layout: LAYOUT_OPAQUE,
        group: inner.group,
        shard: inner.shard,
        shard_count: inner.shard_count,
        dtype: 0,
        parts: 0,
        tokens: 1,
        layers: 1,
        heads: 0,
        dim_k: 0,
        dim_v: 0,
        end_tokens: 0,
        payload_bytes,
        source_bytes: payload_bytes,
        namespace: inner.namespace,
        block_hash: inner.block_hash,
        parent_hash: [0; 32],
    }
}

type Prefix = [u8; PREFIX_BYTES];

fn encode_prefix(id: [u8; KEY_ID_BYTES], seal: Seal) -> Prefix {
    let mut prefix = [0; PREFIX_BYTES];
    prefix[0..4].copy_from_slice(&MAGIC);
    prefix[4..6].copy_from_slice(&VERSION.to_le_bytes());
    prefix[6..8].copy_from_slice(&id);
    prefix[8..24].copy_from_slice(&seal.epoch);
    prefix[24..32].copy_from_slice(&seal.number.to_le_bytes());
    prefix
}

fn parse_prefix(prefix: &[u8]) -> Option<([u8; KEY_ID_BYTES], Seal)> {
    let (magic, rest) = prefix.split_first_chunk::<4>()?;
    let (version, rest) = rest.split_first_chunk::<2>()?;
    let (id, rest) = rest.split_first_chunk::<KEY_ID_BYTES>()?;
    let (epoch, rest) = rest.split_first_chunk::<EPOCH_BYTES>()?;
    let number = u64::from_le_bytes(*rest.first_chunk::<8>()?);
    let is_known = *magic == MAGIC && u16::from_le_bytes(*version) == VERSION;
    is_known.then_some((*id, Seal { epoch: *epoch, number }))
}

/// Bytes that the tag covers besides the sealed ones: the outer header without its checksums, and the prefix.
fn bound(outer: &[u8], prefix: &[u8]) -> [u8; BOUND_HEADER_BYTES + PREFIX_BYTES] {
    let mut bound = [0; BOUND_HEADER_BYTES + PREFIX_BYTES];
    bound[..BOUND_HEADER_BYTES].copy_from_slice(&outer[..BOUND_HEADER_BYTES]);
    bound[BOUND_HEADER_BYTES..].copy_from_slice(prefix);
    bound
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

fn record_key(master: &Master, salt: &[u8]) -> Result<LessSafeKey> {
    let key = derive(&master.key, salt, b"tierkv record")?;
    let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|_| broken("a key"))?;
    Ok(LessSafeKey::new(key))
}

fn derive(key: &[u8], salt: &[u8], info: &[u8]) -> Result<[u8; KEY_BYTES]> {
    let mut derived = [0; KEY_BYTES];
    hkdf::Salt::new(hkdf::HKDF_SHA256, salt)
        .extract(key)
        .expand(&[info], hkdf::HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut derived))
        .map_err(|_| broken("a derived key"))?;
    Ok(derived)
}

fn key_of(text: &str) -> Option<[u8; KEY_BYTES]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != KEY_BYTES || !rest.is_empty() {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    for (byte, pair) in key.iter_mut().zip(pairs) {
        let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
        *byte = u8::try_from(high? * 16 + low?).ok()?;
    }
    Some(key)
}

fn unopened(why: &str) -> Error {
    Error::new(Code::RecordUnopened, why)
}

fn broken(what: &str) -> Error {
    Error::new(Code::NoMemory, format!("there is not {what}: no record can be sealed"))
}
