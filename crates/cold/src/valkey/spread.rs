//! Owns the spreading of commands over the nodes that own their keys: side by side, redirected, one outcome for each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use tierkv_core::error::{Code, Error, Result};
use tierkv_core::lane::wire::Alive;
use tierkv_core::limits::VALKEY_REDIRECTS_MAX;

use super::connection::{Connection, push_command};
use super::topology::{Node, Topology};
use crate::store::Call;

/// Outcome of one command.
pub enum Got<T> {
    Value(T),
    Refused(String),
    /// The slot lies at another node, for good or for this command.
    Moved(String),
    Asked(String),
}

/// Commands to one node over one connection: numbers of the items, and whether each follows ASKING.
pub struct Part {
    node: Arc<Node>,
    pub asking: bool,
    pub items: Vec<usize>,
}

/// Outcomes by item.
pub type Done<T> = Vec<(usize, Got<T>)>;

/// Sends the commands of some items and reads their answers in order.
pub type Exchange<'a, T> = &'a (dyn Fn(&mut Connection, &Part, &mut Done<T>) -> Result<()> + Sync);

/// Runs one command per key at the nodes that own them, over at most `most` connections to each; follows redirections.
/// `None` where a node did not answer.
pub fn spread<T: Send>(
    topology: &Topology,
    keys: &[Vec<u8>],
    most: usize,
    call: &Call,
    exchange: Exchange<'_, T>,
) -> Result<Vec<Option<Got<T>>>> {
    let mut outcomes: Vec<Option<Got<T>>> = keys.iter().map(|_| None).collect();
    let owners = topology.owners_of(keys, call)?;
    let mut parts = cut(owners.into_iter().enumerate(), most, false);
    let mut failure = None;
    for _ in 0..=VALKEY_REDIRECTS_MAX {
        let mut redirected = Vec::new();
        for (done, error) in run(&parts, call, exchange) {
            for (index, got) in done {
                match &got {
                    Got::Moved(address) => redirected.push((index, address.clone(), false)),
                    Got::Asked(address) => redirected.push((index, address.clone(), true)),
                    Got::Value(_) | Got::Refused(_) => {}
                }
                outcomes[index] = Some(got);
            }
            failure = failure.or(error);
        }
        if redirected.is_empty() {
            break;
        }
        call.tick()?;
        parts = Vec::new();
        for asking in [false, true] {
            let to = redirected.iter().filter(|(.., asks)| *asks == asking);
            let nodes: Vec<_> =
                to.map(|(index, address, _)| (*index, topology.node_at(address).ok())).collect();
            parts.extend(cut(nodes.into_iter(), most, asking));
        }
    }
    if let Some(error) = failure {
        topology.is_stale();
        if error.code == Code::Cancelled || outcomes.iter().all(Option::is_none) {
            return Err(error);
        }
    }
    Ok(outcomes)
}

/// Runs the parts side by side; each ends with what came and the error that ended it.
fn run<T: Send>(
    parts: &[Part],
    call: &Call,
    exchange: Exchange<'_, T>,
) -> Vec<(Done<T>, Option<Error>)> {
    let one = |part: &Part| {
        let mut done = Vec::new();
        let error = over_connection(part, call, &mut done, exchange).err();
        (done, error)
    };
    let [first, others @ ..] = parts else { return Vec::new() };
    thread::scope(|scope| {
        let others: Vec<_> = others.iter().map(|part| scope.spawn(move || one(part))).collect();
        let mut all = vec![one(first)];
        let lost = || (Vec::new(), Some(Error::lane_failed("a thread of the client ended")));
        all.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|_| lost())));
        all
    })
}

/// Turns outcomes into values, with `none` where there is none; fails where the server refuses every one.
pub fn values<T>(outcomes: Vec<Option<Got<T>>>, none: impl Fn(&str) -> T) -> Result<Vec<T>> {
    let is_refused = |got: &Option<Got<T>>| matches!(got, Some(Got::Refused(_)));
    let refusal = outcomes.iter().all(is_refused);
    let mut said = None;
    let values = outcomes.into_iter().map(|got| match got {
        Some(Got::Value(value)) => value,
        Some(Got::Refused(text)) => {
            let value = none(&text);
            said.get_or_insert(text);
            value
        }
        Some(Got::Moved(_) | Got::Asked(_)) | None => none(""),
    });
    let values: Vec<T> = values.collect();
    match said.filter(|text| refusal && !text.starts_with("OOM")) {
        Some(text) => Err(Error::lane_failed(format!("Valkey refuses: {text}"))),
        None => Ok(values),
    }
}

/// Gathers items by node, the first ones first on each connection.
fn cut(
    owners: impl Iterator<Item = (usize, Option<Arc<Node>>)>,
    most: usize,
    asking: bool,
) -> Vec<Part> {
    let mut by_node: BTreeMap<String, (Arc<Node>, Vec<usize>)> = BTreeMap::new();
    for (index, node) in owners {
        let Some(node) = node else { continue };
        by_node.entry(node.address.clone()).or_insert((node, Vec::new())).1.push(index);
    }
    let mut parts = Vec::new();
    for (node, items) in by_node.into_values() {
        let count = most.clamp(1, items.len());
        for first in 0..count {
            let items = items.iter().skip(first).step_by(count).copied().collect();
            parts.push(Part { node: Arc::clone(&node), asking, items });
        }
    }
    parts
}

/// Runs a part over a connection that waits, or over a new one where there is none or the server has closed it meanwhile.
fn over_connection<T>(
    part: &Part,
    call: &Call,
    done: &mut Done<T>,
    exchange: Exchange<'_, T>,
) -> Result<()> {
    if let Some(mut connection) = part.node.waiting() {
        match exchange(&mut connection, part, done) {
            Ok(()) => {
                part.node.keep(connection);
                return Ok(());
            }
            Err(error) if error.code == Code::Cancelled || !done.is_empty() => return Err(error),
            Err(_) => call.tick()?,
        }
    }
    let mut connection = part.node.dial(call)?;
    exchange(&mut connection, part, done)?;
    part.node.keep(connection);
    Ok(())
}

pub fn push_for(out: &mut Vec<u8>, part: &Part, arguments: &[&[u8]]) {
    if part.asking {
        push_command(out, &[b"ASKING"]);
    }
    push_command(out, arguments);
}

pub fn end_asking(connection: &mut Connection, part: &Part, call: &Call) -> Result<()> {
    if part.asking {
        connection.reply(call)?;
    }
    Ok(())
}
