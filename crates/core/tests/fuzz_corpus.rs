//! Owns the replay of what fuzzing starts from, in every build: `crates/fuzz/corpus/TARGET/`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[expect(dead_code, reason = "nobody dials from here")]
#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/payloads.rs"]
mod payloads;
#[expect(dead_code, reason = "nothing is put here")]
#[path = "support/records.rs"]
mod records;
#[path = "support/secured.rs"]
mod secured;
#[path = "support/segments.rs"]
mod segments;
#[path = "support/targets.rs"]
mod targets;

use std::path::Path;

use targets::TARGETS;

#[test]
fn every_target_takes_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, target) in TARGETS {
        let files = std::fs::read_dir(corpus.join(name)).expect("every target has a corpus");
        let mut count = 0;
        for file in files {
            let bytes = std::fs::read(file.expect("an entry").path()).expect("a file");
            target(&bytes);
            // What a mutation may do first: cut it.
            target(&bytes[..bytes.len() / 2]);
            count += 1;
        }
        assert!(count > 1, "{name}: {count}");
    }
}
