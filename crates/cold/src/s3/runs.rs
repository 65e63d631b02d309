//! Owns the names of objects, which follow from the hashes of blocks alone: a prompt's blocks are cut into runs at hashes that end one.

use std::collections::HashMap;

use tierkv_core::header::{HASH_BYTES, PACKED_KEY_BYTES};
use tierkv_core::record::Hash;

use crate::store::PackedKey;

/// A block whose hash ends with this many zero bits is the last of its run: 16 blocks on average, at the same places for
/// everybody whatever of the prompt they ask for.
const END_BITS: u32 = 4;

/// Whether a run ends with this block.
pub fn is_end(hash: &[u8]) -> bool {
    hash.last().is_some_and(|byte| byte.trailing_zeros() >= END_BITS)
}

pub fn hash_of(key: &PackedKey) -> &Hash {
    key.first_chunk::<HASH_BYTES>().expect("a packed key begins with a hash")
}

/// Group and shard: records of different ones lie in different objects.
fn place_of(key: &PackedKey) -> &[u8] {
    &key[HASH_BYTES..]
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// Folder of a namespace's objects.
pub fn folder_of(namespace: &Hash) -> String {
    format!("{}/", hex(namespace))
}

/// Whether a name is that of an object of ours; others may keep theirs below the same prefix.
pub fn is_object(name: &str) -> bool {
    let is_hex = |text: &str, bytes: usize| {
        text.len() == 2 * bytes
            && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let Some((namespace, (first, place))) =
        name.split_once('/').and_then(|(folder, of)| Some((folder, of.split_once('-')?)))
    else {
        return false;
    };
    is_hex(namespace, HASH_BYTES)
        && is_hex(first, HASH_BYTES)
        && is_hex(place, PACKED_KEY_BYTES - HASH_BYTES)
}

/// Name of the object that begins with this record.
pub fn object_of(namespace: &Hash, first: &PackedKey) -> String {
    format!("{}/{}-{}", hex(namespace), hex(hash_of(first)), hex(place_of(first)))
}

/// Keys of one run, group and shard, in the order of the prompt: numbers in the request.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// Key of the run's first block, asked for or not.
    pub first: PackedKey,
    pub keys: Vec<usize>,
}

/// Cuts keys, which are in the order of the prompt within their group and shard, into runs. A group that is asked for its last blocks
/// alone gets the starts of its runs from the group with the most keys.
pub fn runs_of(keys: &[PackedKey]) -> Vec<Run> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut numbers = HashMap::new();
    for (index, key) in keys.iter().enumerate() {
        let number = *numbers.entry(place_of(key)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[number].push(index);
    }
    let longest = groups.iter().max_by_key(|group| group.len()).cloned().unwrap_or_default();
    let mut starts = HashMap::new();
    let mut start = None;
    for index in longest {
        let hash = hash_of(&keys[index]);
        starts.entry(*hash).or_insert(*start.get_or_insert(*hash));
        if is_end(hash) {
            start = None;
        }
    }
    let mut runs: Vec<Run> = Vec::new();
    for group in groups {
        let (mut last, mut own) = (None, None);
        for index in group {
            let hash = hash_of(&keys[index]);
            let start = starts.get(hash).copied().unwrap_or(*own.get_or_insert(*hash));
            if is_end(hash) {
                own = None;
            }
            if last == Some(start) {
                runs.last_mut().expect("a run has begun").keys.push(index);
                continue;
            }
            last = Some(start);
            let mut first = keys[index];
            first[..HASH_BYTES].copy_from_slice(&start);
            runs.push(Run { first, keys: vec![index] });
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(group: u8, hash: u8) -> PackedKey {
        let mut key = [hash; 36];
        key[32..].copy_from_slice(&[group, 0, 0, 0]);
        key
    }

    #[test]
    fn runs_end_where_hashes_say_so_and_groups_share_their_starts() {
        // 0x10 and 0x20 end a run.
        let hashes = [0x01, 0x10, 0x02, 0x03, 0x20, 0x04];
        let mut keys: Vec<_> = hashes.iter().map(|hash| key(1, *hash)).collect();
        // A window of the last three blocks.
        keys.extend([0x03, 0x20, 0x04].map(|hash| key(2, hash)));
        let run = |first, keys: &[usize]| Run { first, keys: keys.to_vec() };
        let expected = [
            run(key(1, 0x01), &[0, 1]),
            run(key(1, 0x02), &[2, 3, 4]),
            run(key(1, 0x04), &[5]),
            run(key(2, 0x02), &[6, 7]),
            run(key(2, 0x04), &[8]),
        ];
        assert_eq!(runs_of(&keys), expected);
        assert_eq!(runs_of(&[]), []);
    }

    #[test]
    fn names_of_objects_are_told_from_those_of_others() {
        let (namespace, first) = ([0xab; 32], key(1, 2));
        let name = object_of(&namespace, &first);
        assert!(is_object(&name) && name.starts_with(&folder_of(&namespace)), "{name}");
        for other in
            ["", "notes.txt", "a/b-c", &name[1..], &format!("{name}0"), &format!("x/{name}")]
        {
            assert!(!is_object(other), "{other}");
        }
        assert!(!is_object(&name.to_uppercase()));
    }

    #[test]
    fn hashes_of_another_grain_have_runs_of_their_own() {
        let keys = [key(1, 0x01), key(1, 0x02), key(1, 0x03), key(2, 0x50), key(2, 0x51)];
        let firsts: Vec<_> = runs_of(&keys).into_iter().map(|run| run.first).collect();
        assert_eq!(firsts, [key(1, 0x01), key(2, 0x50), key(2, 0x51)]);
    }
}
