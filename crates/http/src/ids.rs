//! Owns reading the token ids of a prompt from an engine's answer.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Fields of an answer of `/tokenize` (`tokens`) or of a `/render` route (`token_ids`).
#[derive(Deserialize)]
struct Told {
    tokens: Option<Vec<u32>>,
    token_ids: Option<Vec<u32>>,
    /// Pictures, which tell blocks apart in a way not known here.
    features: Option<IgnoredAny>,
}

/// Returns a prompt's token ids, never none; `None`: the answer has no ids by which its blocks are known.
#[must_use]
pub fn ids_in(answer: &[u8]) -> Option<Vec<u32>> {
    // A list of values would be taken for the fields in their order.
    if answer.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    let told: Told = serde_json::from_slice(answer).ok()?;
    let rendered = if told.features.is_none() { told.token_ids } else { None };
    let mut ids = told.tokens.or(rendered).filter(|ids| !ids.is_empty())?;
    // Ids may be remembered for long.
    ids.shrink_to_fit();
    Some(ids)
}

#[cfg(test)]
mod tests {
    use super::ids_in;

    #[test]
    fn ids_come_from_either_field() {
        let cases: [(&str, Option<&[u32]>); 14] = [
            (r#"{"count":2,"max_model_len":9,"tokens":[5,4294967295]}"#, Some(&[5, u32::MAX])),
            (r#" {"tokens": [ 1 , 2 ], "token_strs": ["a", "\u00e9"]}"#, Some(&[1, 2])),
            (r#"{"request_id":"r","token_ids":[7],"features":null}"#, Some(&[7])),
            (r#"{"tokens":null,"token_ids":[7]}"#, Some(&[7])),
            (r#"{"tokens":[1],"token_ids":[7],"features":{"a":[{}]}}"#, Some(&[1])),
            (r#"{"token_ids":[7],"features":{"mm_hashes":{"image":["a"]}}}"#, None),
            (r#"{"tokens":[]}"#, None),
            (r#"{"tokens":[1,-2]}"#, None),
            (r#"{"tokens":[1,4294967296]}"#, None),
            (r#"{"tokens":["1"]}"#, None),
            (r#"{"tokens":[1.5]}"#, None),
            (r#"{"tokens":[1,2"#, None),
            (r#"[{"token_ids":[7]}]"#, None),
            ("[[1,2],null,null]", None),
        ];
        for (answer, expected) in cases {
            assert_eq!(ids_in(answer.as_bytes()).as_deref(), expected, "{answer}");
        }
    }
}
