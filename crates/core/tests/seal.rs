//! Owns the proof that sealed records are read by nobody else, changed by nobody unnoticed, and never sealed twice alike.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashSet;
use std::thread;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::{hkdf, hmac};
use tierkv_core::crc32c;
use tierkv_core::error::Code;
use tierkv_core::record::{
    self, CLASS_KV, CLASS_SSM, HEADER_BYTES, Header, LAYOUT_CANONICAL, LAYOUT_OPAQUE,
};
use tierkv_core::seal::{PREFIX_BYTES, RecordKeys, SEALED_AROUND, SEALED_EXTRA_BYTES};

const ONE: &str = "0101010101010101010101010101010101010101010101010101010101010101";
const TWO: &str = "abcdefABCDEF0202020202020202020202020202020202020202020202020202";
const BYTES: usize = 16 * 2 * 2 * 64 * 2;

fn keys(text: &str) -> RecordKeys {
    RecordKeys::parse(text.as_bytes()).unwrap()
}

fn inner() -> Header {
    Header {
        codec: 0,
        record_class: CLASS_KV,
        fidelity: 0,
        layout: LAYOUT_CANONICAL,
        group: 3,
        shard: 1,
        shard_count: 2,
        dtype: 1,
        parts: 2,
        tokens: 16,
        layers: 1,
        heads: 2,
        dim_k: 64,
        dim_v: 64,
        end_tokens: 4096,
        payload_bytes: BYTES as u64,
        source_bytes: BYTES as u64,
        namespace: [4; 32],
        block_hash: [5; 32],
        parent_hash: [6; 32],
    }
}

/// A record, and the same sealed.
fn sealed(keys: &RecordKeys) -> (Vec<u8>, Vec<u8>) {
    let payload: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at % 253).unwrap()).collect();
    let plain = [&inner().encode(crc32c::checksum(&payload))[..], &payload].concat();
    let mut record = vec![0; plain.len() + SEALED_EXTRA_BYTES];
    record[SEALED_AROUND.0..][..plain.len()].copy_from_slice(&plain);
    keys.seal(&mut record, &inner()).unwrap();
    (plain, record)
}

fn open(keys: &RecordKeys, record: &[u8]) -> Result<(Header, Vec<u8>), Code> {
    let (outer, payload) = record.split_at(HEADER_BYTES);
    let mut payload = payload.to_vec();
    let (header, place) = keys.open(outer, &mut payload).map_err(|error| error.code)?;
    Ok((header, payload[place].to_vec()))
}

/// With the checksums that a vault could give it.
fn repaired(mut record: Vec<u8>) -> Vec<u8> {
    let payload = crc32c::checksum(&record[HEADER_BYTES..]).to_le_bytes();
    record[HEADER_BYTES - 8..HEADER_BYTES - 4].copy_from_slice(&payload);
    let header = crc32c::checksum(&record[..HEADER_BYTES - 4]).to_le_bytes();
    record[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&header);
    record
}

#[test]
fn a_vault_sees_where_a_record_belongs_and_no_more() {
    let keys = keys(ONE);
    let (plain, record) = sealed(&keys);
    let header = record::verify(&record).unwrap();
    let same = |of: &Header| {
        (of.record_class, of.group, of.shard, of.shard_count, of.namespace, of.block_hash)
    };
    assert_eq!(same(&header), same(&inner()));
    assert_eq!((header.codec, header.layout, header.dtype), (0, LAYOUT_OPAQUE, 0));
    assert_eq!((header.tokens, header.layers, header.heads, header.end_tokens), (1, 1, 0, 0));
    assert_eq!(header.parent_hash, [0; 32]);
    let windows: HashSet<&[u8]> = plain.windows(12).collect();
    let sealed = &record[HEADER_BYTES + PREFIX_BYTES..];
    assert!(sealed.windows(12).all(|window| !windows.contains(window)));
    let (opened, payload) = open(&keys, &record).unwrap();
    assert_eq!(opened, inner());
    assert!(payload == plain[HEADER_BYTES..]);
    assert_eq!(keys.unopened(), 0);
    // The class of a state stands outside, too: vaults may hold one class alone.
    let state = Header { record_class: CLASS_SSM, ..inner() };
    let mut record = vec![0; plain.len() + SEALED_EXTRA_BYTES];
    keys.seal(&mut record, &state).unwrap();
    assert_eq!(record::verify(&record).unwrap().record_class, CLASS_SSM);
}

/// HKDF-SHA256 of the key `ONE`.
fn derived(salt: &[u8], info: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    let key = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&[1; 32]);
    key.expand(&[info], hkdf::HKDF_SHA256).unwrap().fill(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_sealed_is_what_the_protocol_says() {
    let keys = keys(ONE);
    let first = sealed(&keys).1;
    let (plain, record) = sealed(&keys);
    let (outer, payload) = record.split_at(HEADER_BYTES);
    let (prefix, body) = payload.split_at(PREFIX_BYTES);
    assert_eq!(prefix[..6], *b"TKVS\x01\0");
    assert_eq!(prefix[6..8], derived(b"", b"tierkv record key id")[..2]);
    assert_eq!(prefix[8..24], first[HEADER_BYTES..][8..24], "one epoch");
    assert_eq!(prefix[24..32], 1_u64.to_le_bytes());

    let key = UnboundKey::new(&AES_256_GCM, &derived(&prefix[8..24], b"tierkv record")).unwrap();
    let nonce = Nonce::assume_unique_for_key([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let bound = [&outer[..HEADER_BYTES - 8], prefix].concat();
    let mut body = body.to_vec();
    let opened = LessSafeKey::new(key).open_in_place(nonce, Aad::from(bound), &mut body).unwrap();
    assert_eq!(opened, plain);

    let names = hmac::Key::new(hmac::HMAC_SHA256, &derived(b"", b"tierkv names"));
    assert_eq!(keys.namespace(&[4; 32]), hmac::sign(&names, &[4; 32]).as_ref());
    let digest = hmac::sign(&names, &7_u64.to_le_bytes());
    let tenant = [&[0, 0], &digest.as_ref()[..6]].concat();
    assert_eq!(keys.tenant(7).to_be_bytes(), tenant[..]);
    assert_eq!(keys.tenant(0), 0, "nobody in particular");
}

#[test]
fn keys_are_the_same_where_all_are_and_in_that_order() {
    let both = format!("{ONE}\n{TWO}");
    assert!(keys(&both).is_same(&keys(&format!("{both}  # again\n"))));
    for other in [ONE.to_owned(), TWO.to_owned(), format!("{TWO}\n{ONE}")] {
        assert!(!keys(&both).is_same(&keys(&other)));
    }
}

#[test]
fn the_same_record_is_never_sealed_twice_alike() {
    let keys = keys(ONE);
    let (first, second) = (sealed(&keys).1, sealed(&keys).1);
    assert_eq!(first[HEADER_BYTES..][..24], second[HEADER_BYTES..][..24], "one epoch");
    let rest = HEADER_BYTES + PREFIX_BYTES;
    let alike = first[rest..].iter().zip(&second[rest..]).filter(|(one, two)| one == two).count();
    assert!(alike < BYTES / 64, "{alike} of {BYTES} bytes are the same");
}

#[test]
fn another_key_opens_nothing_and_an_old_one_does_until_it_is_gone() {
    let (old, new) = (keys(ONE), keys(TWO));
    let both = keys(&format!("# rotated\n{TWO}  # seals\n\n{ONE}\n"));
    let (by_old, by_both) = (sealed(&old).1, sealed(&both).1);
    assert!(open(&both, &by_old).is_ok() && open(&both, &by_both).is_ok());
    assert!(open(&new, &by_both).is_ok(), "the first seals");
    assert_eq!(open(&new, &by_old), Err(Code::RecordUnopened));
    assert_eq!(open(&old, &by_both), Err(Code::RecordUnopened));
    assert_eq!((old.unopened(), new.unopened(), both.unopened()), (1, 1, 0));
    // Names outlive a rotation, and tell nobody which namespace they stand for.
    let name = old.namespace(&[4; 32]);
    assert_eq!(both.namespace(&[4; 32]), name);
    assert_ne!(new.namespace(&[4; 32]), name);
    assert_ne!(old.namespace(&[5; 32]), name);
    assert_ne!(name, [4; 32]);
}

#[test]
fn what_was_changed_moved_or_never_sealed_is_not_opened() {
    let keys = keys(ONE);
    let (plain, record) = sealed(&keys);
    // Every byte of header and prefix that a checksum does not make again, and some of the rest; then every length.
    let bound = (0..HEADER_BYTES - 8).chain(HEADER_BYTES..HEADER_BYTES + PREFIX_BYTES);
    let rest = (HEADER_BYTES + PREFIX_BYTES..record.len()).step_by(97);
    for at in bound.chain(rest).chain([record.len() - 1]) {
        for bit in [1, 0x80] {
            let mut changed = record.clone();
            changed[at] ^= bit;
            let changed = repaired(changed);
            assert_eq!(open(&keys, &changed), Err(Code::RecordUnopened), "byte {at}");
        }
    }
    let short = HEADER_BYTES..HEADER_BYTES + 80;
    for bytes in short.chain((HEADER_BYTES..record.len()).step_by(61)) {
        assert!(open(&keys, &record[..bytes]).is_err(), "{bytes} bytes");
    }
    let (outer, payload) = record.split_at(HEADER_BYTES);
    assert!(keys.open(&outer[1..], &mut payload.to_vec()).is_err(), "no whole header");
    let mut elsewhere = record.clone();
    elsewhere[96..128].copy_from_slice(&[9; 32]);
    let elsewhere = repaired(elsewhere);
    assert!(record::verify(&elsewhere).is_ok(), "a vault cannot know");
    assert_eq!(open(&keys, &elsewhere), Err(Code::RecordUnopened));
    assert_eq!(open(&keys, &plain), Err(Code::RecordUnopened));
    assert!(keys.unopened() > 500);
}

#[test]
fn no_nonce_comes_twice_in_ten_million_records_and_a_hundred_restarts() {
    const RESTARTS: usize = 100;
    const THREADS: usize = 4;
    const RECORDS: usize = 100_000;
    let mut epochs = HashSet::new();
    for _ in 0..RESTARTS {
        // Short epochs, so that their ends are passed, too.
        let keys = keys(ONE).with_epoch_records(30_000);
        let draw = || (0..RECORDS / THREADS).map(|_| keys.draw().unwrap()).collect::<Vec<_>>();
        let mut seals: Vec<_> = thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| scope.spawn(draw));
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        seals.sort_unstable_by_key(|seal| (seal.epoch, seal.number));
        assert!(seals.windows(2).all(|pair| pair[0] != pair[1]), "a nonce twice under one key");
        seals.dedup_by_key(|seal| seal.epoch);
        assert_eq!(seals.len(), RECORDS.div_ceil(30_000));
        for seal in seals {
            assert!(epochs.insert(seal.epoch), "an epoch twice");
        }
    }
    assert_eq!(epochs.len(), RESTARTS * RECORDS.div_ceil(30_000));
}

#[test]
fn a_file_that_holds_no_keys_says_which_line_and_never_what_is_in_it() {
    let some = |count: u8| -> String {
        (0..count).map(|digit| ONE.replace('1', &digit.to_string()) + "\n").collect()
    };
    assert!(RecordKeys::parse(some(8).as_bytes()).is_ok());
    for (text, reason) in [
        (String::new(), "0 of them"),
        ("# none\n\n".to_owned(), "0 of them"),
        (format!("{ONE}\nsecret"), "line 2 is not 64 hexadecimal digits"),
        (format!("{ONE}0"), "line 1 is not 64"),
        (ONE.replace("01", "0g"), "line 1 is not 64"),
        (format!("{ONE}\n{TWO}\n{ONE}"), "line 3 cannot be told from one before"),
        (some(9), "9 of them, 1 to 8"),
    ] {
        let error = RecordKeys::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error.code, Code::BadArgument);
        assert!(error.text.contains(reason), "{}", error.text);
        assert!(!error.text.contains("secret") && !error.text.contains("0101"), "{}", error.text);
    }
    assert!(RecordKeys::parse(&[0xFF; 64]).is_err());
    assert!(!format!("{:?}", keys(ONE)).contains("01"), "no key is ever shown");
}
