//! Owns what a node says of its memory: limit, use, policy, keys and how many of them expire.

use redis::Value;
use tierkv_core::error::Result;

use super::topology::Node;
use crate::store::{Call, NodeFacts};

/// Asks one node; where it does not say, the facts have the reason.
pub fn facts_of(node: &Node, call: &Call) -> NodeFacts {
    let address = node.address.clone();
    match ask(node, &call.part(None)) {
        Ok(text) => NodeFacts { address, ..parse(&text) },
        Err(error) => NodeFacts { address, trouble: error.text, ..NodeFacts::default() },
    }
}

fn ask(node: &Node, call: &Call) -> Result<String> {
    let mut connection = node.dial(call)?;
    let answer = connection.ask(&redis::cmd("INFO"), call)?;
    node.keep(connection);
    Ok(match answer {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::VerbatimString { text, .. } => text,
        _ => String::new(),
    })
}

fn parse(info: &str) -> NodeFacts {
    let mut facts = NodeFacts::default();
    for line in info.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let number = || value.trim().parse().unwrap_or_default();
        match name {
            "used_memory" => facts.used_bytes = number(),
            "maxmemory" => facts.max_bytes = number(),
            "maxmemory_policy" => value.trim().clone_into(&mut facts.policy),
            _ if name.starts_with("db") => {
                // db0:keys=12,expires=3,avg_ttl=0
                for pair in value.trim().split(',') {
                    let Some((of, count)) = pair.split_once('=') else { continue };
                    let count: u64 = count.parse().unwrap_or_default();
                    match of {
                        "keys" => facts.keys += count,
                        "expires" => facts.expiring += count,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_an_answer_become_facts() {
        let info = "# Memory\r\nused_memory:1048576\r\nused_memory_human:1.00M\r\nmaxmemory:2097152\r\nmaxmemory_policy:allkeys-lfu\r\n# Keyspace\r\ndb0:keys=12,expires=3,avg_ttl=0\r\ndb1:keys=1,expires=1,avg_ttl=0\r\n";
        let facts = parse(info);
        assert_eq!((facts.used_bytes, facts.max_bytes), (1_048_576, 2_097_152));
        assert_eq!((facts.policy.as_str(), facts.keys, facts.expiring), ("allkeys-lfu", 13, 4));
    }
}
