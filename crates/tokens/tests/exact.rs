//! Owns the proof that a text cut in pieces, some of them from before, becomes the ids that the model makes of the whole.

use std::path::PathBuf;

use tierkv_tokens::tokenizer::Tokenizer;
use tokenizers::Tokenizer as Model;

/// Added tokens that hide, reach into and swallow what is beside them, and some that stand alone.
const ADDED: [(&str, &str); 12] = [
    ("<|turn|>", ""),
    ("<|end|>", ""),
    ("<|end|>!", ""),
    ("a<|turn", ""),
    ("[x]", r#","rstrip":true"#),
    ("{y}", r#","lstrip":true"#),
    ("word", r#","single_word":true"#),
    ("~w", r#","single_word":true"#),
    ("((", ""),
    ("<N>", r#","normalized":true"#),
    ("_u_", ""),
    ("#h#", ""),
];

const LETTERS: &str = "abcdeghlmnortuwxyz<>|![]{}()#_N ▁";
const MERGES: [&str; 8] = ["a b", "> a", "a <", "▁ a", "w o", "! <", "| >", "] a"];

fn tokenizer(name: &str, around: &str) -> (PathBuf, Model) {
    let mut vocab: Vec<String> = LETTERS.chars().map(String::from).collect();
    vocab.extend(MERGES.iter().map(|merge| merge.replace(' ', "")));
    let ids: Vec<String> =
        vocab.iter().enumerate().map(|(id, token)| format!("{token:?}:{id}")).collect();
    let merges: Vec<String> = MERGES.iter().map(|merge| format!("{merge:?}")).collect();
    let added: Vec<String> = ADDED
        .iter()
        .enumerate()
        .map(|(at, (content, more))| {
            let plain = [("single_word", false), ("lstrip", false), ("rstrip", false)];
            let mut flags: Vec<String> = plain
                .iter()
                .filter(|(flag, _)| !more.contains(flag))
                .map(|(flag, is)| format!(r#","{flag}":{is}"#))
                .collect();
            if !more.contains("normalized") {
                flags.push(r#","normalized":false"#.into());
            }
            let flags = flags.concat();
            format!(r#"{{"id":{},"content":{content:?},"special":true{flags}{more}}}"#, 100 + at)
        })
        .collect();
    let json = format!(
        r#"{{"version":"1.0","truncation":{{"direction":"Right","max_length":4,"strategy":"LongestFirst","stride":0}},
        "padding":null,"added_tokens":[{}],{around},"decoder":null,
        "model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,
        "end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,
        "vocab":{{{}}},"merges":[{}]}}}}"#,
        added.join(","),
        ids.join(","),
        merges.join(",")
    );
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("tokenizer.json"), &json).expect("a file");
    let mut model = Model::from_bytes(json).expect("a tokenizer");
    model.with_truncation(None).expect("no truncation");
    (folder, model)
}

const FRAMED: &str = r#""post_processor":{"type":"TemplateProcessing",
    "single":[{"SpecialToken":{"id":"<|turn|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"<|end|>","type_id":0}}],
    "pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],
    "special_tokens":{"<|turn|>":{"id":"<|turn|>","ids":[100],"tokens":["<|turn|>"]},"<|end|>":{"id":"<|end|>","ids":[101],"tokens":["<|end|>"]}}}"#;

/// Of small numbers that follow from the last one.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).expect("31 bits") % most
    }
}

fn text(chance: &mut Chance, words: usize) -> String {
    let letters: Vec<char> = LETTERS.chars().collect();
    let mut text = String::new();
    for _ in 0..words {
        match chance.below(3) {
            0 => text.push_str(ADDED[chance.below(ADDED.len())].0),
            1 => text.push_str(&" ".repeat(chance.below(3))),
            _ => {}
        }
        for _ in 0..chance.below(12) {
            text.push(letters[chance.below(letters.len())]);
        }
    }
    text
}

#[test]
fn what_is_cut_and_kept_becomes_what_the_whole_becomes() {
    let kinds = [
        ("bare", r#""normalizer":null,"pre_tokenizer":null,"post_processor":null"#.to_string()),
        ("framed", format!(r#""normalizer":null,"pre_tokenizer":null,{FRAMED}"#)),
        (
            "first",
            format!(
                r#""normalizer":null,"pre_tokenizer":{{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}},{FRAMED}"#
            ),
        ),
        (
            "prepend",
            format!(
                r#""normalizer":{{"type":"Prepend","prepend":"▁"}},"pre_tokenizer":null,{FRAMED}"#
            ),
        ),
    ];
    let mut chance = Chance(23);
    for (name, around) in kinds {
        let (folder, model) = tokenizer(name, &around);
        let ours = Tokenizer::open(&folder).unwrap();
        let mut growing = String::new();
        for turn in 0..80 {
            let words = if turn % 10 == 0 { chance.below(3) } else { 10 + chance.below(300) };
            let added = text(&mut chance, words);
            // A conversation goes on for some turns, so that its beginning comes from before.
            growing = if turn % 6 == 0 { added } else { growing + &added };
            // Pieces that begin alike and end otherwise are told apart.
            let changed = growing.replace('b', "h");
            for (text, is_framed) in [(&growing, false), (&growing, true), (&changed, true)] {
                let whole = model.encode(text.as_str(), is_framed).unwrap();
                let made = ours.encode(text, is_framed).unwrap();
                assert_eq!(made, whole.get_ids(), "{name} {is_framed} {text}");
            }
        }
    }
}

#[test]
fn texts_are_cut_before_tokens_that_nothing_hides() {
    let (_, model) =
        tokenizer("cuts", r#""normalizer":null,"pre_tokenizer":null,"post_processor":null"#);
    let added = model.get_added_tokens_decoder();
    let cuts = tierkv_tokens::cuts::Cuts::new(added.values());
    let filler = "b".repeat(2_000);
    let found: Vec<&str> = ADDED
        .iter()
        .map(|(content, _)| *content)
        .filter(|content| cuts.pieces(&format!("{filler}{content}")).len() == 2)
        .collect();
    // `<|turn|>` is hidden by `a<|turn`, `<|end|>` by `<|end|>!`, `((` and `#h#` by themselves; the others look at what is beside them.
    assert_eq!(found, ["<|end|>!", "[x]"]);
}

#[test]
fn a_folder_without_a_tokenizer_is_told_by_its_path() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("none");
    std::fs::create_dir_all(&folder).unwrap();
    let missing = Tokenizer::open(&folder).err().unwrap().to_string();
    assert!(missing.contains("none/tokenizer.json: No such file"), "{missing}");
    std::fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    let broken = Tokenizer::open(&folder).err().unwrap().to_string();
    std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
    assert!(broken.contains("none/tokenizer.json: "), "{broken}");
}
