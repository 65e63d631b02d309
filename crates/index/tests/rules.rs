//! Owns the proof of what the gateway's tests do not reach: sets beyond one word, bounds, and bytes of any kind.

use tierkv_index::{Bounds, Index, Tier, View, names_of};

const BOUNDS: Bounds = Bounds { blocks: 1_000, guess_ms: 10.0, found_ms: 10.0, found: 4 };

/// A batch of one event that stores single-token blocks of these hashes.
fn stored(hashes: &[u8]) -> Vec<u8> {
    let text = |word: &str| {
        let mut bytes = vec![0xa0 | u8::try_from(word.len()).expect("a short word")];
        bytes.extend(word.as_bytes());
        bytes
    };
    let count = 0x90 | u8::try_from(hashes.len()).expect("a short list");
    let mut bytes = vec![0x92, 0x00, 0x91, 0x84];
    for (name, value) in [("block_hashes", hashes), ("token_ids", hashes)] {
        bytes.extend(text(name));
        bytes.push(count);
        bytes.extend(value);
    }
    bytes.extend(text("block_size"));
    bytes.push(1);
    bytes.extend(text("type"));
    bytes.extend(text("BlockStored"));
    bytes
}

fn view(hashes: &[u64]) -> View {
    let bytes: Vec<u8> =
        hashes.iter().flat_map(|low| [[0; 24].as_slice(), &low.to_be_bytes()].concat()).collect();
    let tokens = u32::try_from(hashes.len()).expect("a short prompt") + 1;
    View::of_hashes(&bytes, 1, tokens)
}

#[test]
fn a_thousand_holders_are_told_apart() {
    let mut index = Index::new(BOUNDS);
    let ids: Vec<u16> = (0..700).map(|_| index.add().expect("room")).collect();
    for id in &ids {
        index.trust(*id, true);
    }
    for id in [0_u16, 63, 64, 300, 699] {
        index.apply(id, &stored(&[1, 2])).expect("a batch");
    }
    index.apply(65, &stored(&[1])).expect("a batch");
    let held = |index: &mut Index| -> Vec<(u16, u32)> {
        let spans = index.spans(&ids, &[], &view(&[1, 2]), 0.0);
        let all = ids.iter().copied().zip(spans.iter().map(|span| span.held));
        all.filter(|(_, held)| *held > 0).collect()
    };
    assert_eq!(held(&mut index), [(0, 2), (63, 2), (64, 2), (65, 1), (300, 2), (699, 2)]);
    index.remove(64);
    index.clear(300);
    assert_eq!(held(&mut index), [(0, 2), (63, 2), (65, 1), (699, 2)]);
    // The number is given to the next, which knows nothing.
    assert_eq!(index.add(), Some(64));
    assert_eq!(index.blocks(64, Tier::Gpu), 0);
}

#[test]
fn beliefs_end_and_are_bounded() {
    let mut index = Index::new(BOUNDS);
    let id = index.add().expect("room");
    index.guess(id, &view(&[7, 8]), 0.0);
    let held = |index: &mut Index, now: f64| index.spans(&[id], &[], &view(&[7, 8]), now)[0].held;
    assert_eq!([held(&mut index, 9.0), held(&mut index, 11.0)], [2, 0]);
    index.found(&[id], &[1, 2, 3, 4, 5, 6], 0.0);
    assert_eq!(index.found_blocks(), 4);
}

#[test]
fn names_chain_and_tell_inputs_apart() {
    let plain = names_of(&[1, 2, 3, 4], 2, &[], None);
    assert_eq!(plain.len(), 2);
    assert_eq!(names_of(&[1, 2, 9, 9], 2, &[], None)[0], plain[0]);
    assert_ne!(names_of(&[9, 9, 3, 4], 2, &[], None)[1], plain[1]);
    let salted = names_of(&[1, 2, 3, 4], 2, &[], Some("s"));
    assert!(salted.iter().zip(&plain).all(|(one, other)| one != other));
    let adapter = names_of(&[1, 2, 3, 4], 2, &["s".into()], None);
    assert_eq!(adapter[0], salted[0]);
    assert_ne!(adapter[1], salted[1]);
}

#[test]
fn bytes_of_any_kind_end_in_a_reason() {
    let whole = stored(&[1, 2, 3]);
    for cut in 0..whole.len() {
        let mut index = Index::new(BOUNDS);
        let id = index.add().expect("room");
        assert!(index.apply(id, &whole[..cut]).is_err(), "{cut}");
    }
    for at in 0..whole.len() {
        for flip in 0..=255_u8 {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            let mut index = Index::new(BOUNDS);
            let id = index.add().expect("room");
            // Whatever it is read as, it ends.
            drop(index.apply(id, &bytes));
        }
    }
}
