//! Owns one flush as an entry of the list in Valkey: its text, and what it takes.

use tierkv_core::record::Hash;

use crate::store::Scope;

/// A flush.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Wall clock of the flush in ms, but later than all flushes that its client knew.
    pub at_ms: u64,
    /// Records that it takes.
    pub scope: Scope,
}

impl Entry {
    pub fn is_everything(&self) -> bool {
        self.scope == Scope::default()
    }

    pub fn text(&self) -> String {
        let Scope { class, namespace, model, tenant } = &self.scope;
        let namespace = namespace.map_or("-".to_owned(), |bytes| hex(&bytes));
        let model = model.as_ref().map_or_else(String::new, |model| format!(" {model}"));
        format!("{} {class} {tenant} {namespace}{model}", self.at_ms)
    }

    /// Reads an entry; what a later version adds counts as a flush of everything.
    pub fn parse(text: &str) -> Self {
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
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

pub fn unhex(text: &str) -> Option<Hash> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
