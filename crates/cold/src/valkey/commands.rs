//! Owns the commands for records: asked, fetched and stored, many on one connection, and beside them the numbers of the list of flushes.

use std::io::IoSlice;

use tierkv_core::error::Result;
use tierkv_core::lane::client::Content;
use tierkv_core::lane::wire::Alive;
use tierkv_core::limits::VALKEY_EXISTS_KEYS;
use tierkv_core::store::ItemStatus;

use super::Valkey;
use super::connection::{Connection, Reply, push_argument, push_command};
use super::flushes::NUMBER;
use super::lines::redirect;
use super::spread::{Got, Part, Way, end_asking, push_for, spread};
use crate::goal::{Goal, skip};
use crate::store::{Call, made};

/// Answer to one command.
pub enum Told {
    /// Whether the record is, or was, there.
    Is(bool),
    /// Outcome of a fetch.
    Status(ItemStatus),
    /// How many of several records are there.
    Count(i64),
    /// Number of a copy of the list of flushes; none: there is no such copy.
    Number(Option<u64>),
}

impl Told {
    fn is_absent(&self) -> bool {
        matches!(self, Self::Is(false) | Self::Status(ItemStatus::Missing))
    }
}

enum Head {
    Reply(Reply),
    Ended(Got<Told>),
}

impl Valkey {
    fn way(&self, records: usize, is_read: bool) -> Way<'_, Told> {
        Way {
            topology: &self.topology,
            refusals: &self.refusals,
            records,
            is_read,
            is_absent: &Told::is_absent,
        }
    }

    /// Reads the head of one answer; redirections and refusals end there.
    fn head(&self, connection: &mut Connection, call: &Call) -> Result<Head> {
        Ok(match connection.reply(call)? {
            Reply::Refused(text) => Head::Ended(redirect(text, &self.lines())),
            reply => Head::Reply(reply),
        })
    }

    /// Sends `command` with each key of a record, and asks each key behind the first `records` for its number.
    pub(super) fn ask(
        &self,
        command: &[u8],
        keys: &[Vec<u8>],
        records: usize,
        call: &Call,
    ) -> Result<Vec<Option<Got<Told>>>> {
        let way = self.way(records, command == b"EXISTS");
        spread(&way, keys, call, &|connection, part, call, done| {
            let mut out = Vec::with_capacity(part.items.len() * 128);
            for index in part.in_order(records) {
                push_asked(&mut out, part, command, &keys[index], index < records);
            }
            connection.send(&mut [IoSlice::new(&out)], call)?;
            for index in part.in_order(records) {
                end_asking(connection, part, call)?;
                let got = match self.head(connection, call)? {
                    Head::Ended(got) => got,
                    Head::Reply(Reply::Int(count)) => Got::Value(Told::Is(count > 0)),
                    Head::Reply(reply) => Got::Value(number(&reply, connection, call)?),
                };
                done.push((index, got));
            }
            Ok(())
        })
    }

    /// Asks one server for many records with one command each, and once more for those of which a part is there: of a prompt's blocks
    /// usually the first ones are, up to some block.
    pub(super) fn exist(
        &self,
        keys: &[Vec<u8>],
        records: usize,
        call: &Call,
    ) -> Result<Vec<Option<Got<Told>>>> {
        let (names, lists) = keys.split_at(records);
        let chunks: Vec<_> = names.chunks(VALKEY_EXISTS_KEYS).collect();
        let firsts: Vec<_> =
            chunks.iter().map(|chunk| chunk[0].clone()).chain(lists.iter().cloned()).collect();
        let way = self.way(chunks.len(), true);
        let asked = spread(&way, &firsts, call, &|connection, part, call, done| {
            let mut out = Vec::with_capacity(names.len() * 160);
            for index in part.in_order(chunks.len()) {
                match chunks.get(index) {
                    Some(chunk) => {
                        let names = chunk.iter().map(Vec::as_slice);
                        let words = std::iter::once(&b"EXISTS"[..]).chain(names);
                        push_for(&mut out, part, &words.collect::<Vec<_>>());
                    }
                    None => push_for(&mut out, part, &[b"HGET", &firsts[index], NUMBER]),
                }
            }
            connection.send(&mut [IoSlice::new(&out)], call)?;
            for index in part.in_order(chunks.len()) {
                end_asking(connection, part, call)?;
                let got = match self.head(connection, call)? {
                    Head::Ended(got) => got,
                    Head::Reply(Reply::Int(count)) => Got::Value(Told::Count(count)),
                    Head::Reply(reply) => Got::Value(number(&reply, connection, call)?),
                };
                done.push((index, got));
            }
            Ok(())
        })?;
        let mut outcomes: Vec<Option<Got<Told>>> = Vec::with_capacity(keys.len());
        let mut open = Vec::new();
        for (at, outcome) in asked.into_iter().enumerate() {
            let Some(chunk) = chunks.get(at) else {
                outcomes.push(outcome);
                continue;
            };
            let count = match &outcome {
                Some(Got::Value(Told::Count(count))) => usize::try_from(*count).ok(),
                _ => None,
            };
            let from = outcomes.len();
            for place in 0..chunk.len() {
                outcomes.push(match (&outcome, count) {
                    (_, Some(count)) => Some(Got::Value(Told::Is(count == chunk.len()))),
                    (Some(Got::Refused(text)), None) => Some(Got::Refused(text.clone())),
                    _ => None,
                });
                if count.is_some_and(|count| count > 0 && count < chunk.len()) {
                    open.push(from + place);
                }
            }
        }
        if !open.is_empty() {
            let names: Vec<_> = open.iter().map(|at| keys[*at].clone()).collect();
            let told = self.ask(b"EXISTS", &names, names.len(), call)?;
            for (at, got) in open.into_iter().zip(told) {
                outcomes[at] = got;
            }
        }
        Ok(outcomes)
    }

    /// Fetches the records of the first keys to their places, and asks the further keys for their numbers.
    pub(super) fn get(
        &self,
        goal: &Goal,
        keys: &[Vec<u8>],
        records: usize,
        call: &Call,
    ) -> Result<Vec<Option<Got<Told>>>> {
        let way = self.way(records, true);
        spread(&way, keys, call, &|connection, part, call, done| {
            let mut out = Vec::with_capacity(part.items.len() * 128);
            for index in part.in_order(records) {
                push_asked(&mut out, part, b"GET", &keys[index], index < records);
            }
            connection.send(&mut [IoSlice::new(&out)], call)?;
            for index in part.in_order(records) {
                end_asking(connection, part, call)?;
                let got = match self.head(connection, call)? {
                    Head::Ended(got) => got,
                    Head::Reply(reply) if index >= records => {
                        Got::Value(number(&reply, connection, call)?)
                    }
                    Head::Reply(Reply::Bulk(bytes)) => {
                        let status = goal.receive(index, bytes, connection, call)?;
                        connection.end_of_value(call)?;
                        Got::Value(Told::Status(status))
                    }
                    Head::Reply(_) => Got::Value(Told::Status(ItemStatus::Missing)),
                };
                done.push((index, got));
            }
            Ok(())
        })
    }

    /// Stores records put-if-absent, one per key.
    pub(super) fn set(
        &self,
        keys: &[Vec<u8>],
        contents: &[&Content],
        call: &Call,
    ) -> Result<Vec<Option<Got<ItemStatus>>>> {
        let ttl = self.ttl_s.map(|seconds| seconds.to_string());
        let way = Way {
            topology: &self.topology,
            refusals: &self.refusals,
            records: keys.len(),
            is_read: false,
            is_absent: &|_| false,
        };
        spread(&way, keys, call, &|connection, part, call, done| {
            let mut sent = Vec::with_capacity(part.items.len());
            for index in &part.items {
                call.tick()?;
                let Ok(record) = made(contents[*index]) else {
                    // The slot of a deferred record was released.
                    done.push((*index, Got::Value(ItemStatus::Incomplete)));
                    continue;
                };
                let bytes = record.bytes();
                send_set(connection, part, &keys[*index], bytes, ttl.as_deref(), call)?;
                sent.push((*index, bytes.len() as u64));
            }
            for (index, bytes) in sent {
                end_asking(connection, part, call)?;
                let got = match self.head(connection, call)? {
                    Head::Ended(Got::Refused(text)) => Got::Refused(text),
                    Head::Ended(Got::Moved(address)) => Got::Moved(address),
                    Head::Ended(Got::Asked(address)) => Got::Asked(address),
                    Head::Ended(Got::Value(_)) => Got::Value(ItemStatus::Incomplete),
                    Head::Reply(Reply::Status) => {
                        call.moved(bytes);
                        Got::Value(ItemStatus::Accepted)
                    }
                    Head::Reply(Reply::Bulk(bytes)) => {
                        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
                        skip(length, connection, call)?;
                        connection.end_of_value(call)?;
                        Got::Value(ItemStatus::Present)
                    }
                    Head::Reply(_) => Got::Value(ItemStatus::Present),
                };
                done.push((index, got));
            }
            Ok(())
        })
    }
}

fn push_asked(out: &mut Vec<u8>, part: &Part, command: &[u8], key: &[u8], is_record: bool) {
    if is_record {
        push_for(out, part, &[command, key]);
    } else {
        push_for(out, part, &[b"HGET", key, NUMBER]);
    }
}

/// Reads a short value that is a number.
fn number(reply: &Reply, connection: &mut Connection, call: &Call) -> Result<Told> {
    let Reply::Bulk(bytes) = reply else { return Ok(Told::Number(None)) };
    let value = connection.short(*bytes, call)?;
    Ok(Told::Number(String::from_utf8_lossy(&value).parse().ok()))
}

/// Sends `SET key record NX`, with a time to live where there is one.
fn send_set(
    connection: &mut Connection,
    part: &Part,
    key: &[u8],
    record: &[u8],
    ttl: Option<&str>,
    call: &Call,
) -> Result<()> {
    let mut head = Vec::with_capacity(160);
    if part.asking {
        push_command(&mut head, &[b"ASKING"]);
    }
    head.extend_from_slice(if ttl.is_some() { b"*6\r\n" } else { b"*4\r\n" });
    push_argument(&mut head, b"SET");
    push_argument(&mut head, key);
    head.extend_from_slice(format!("${}\r\n", record.len()).as_bytes());
    let mut tail = b"\r\n".to_vec();
    push_argument(&mut tail, b"NX");
    if let Some(ttl) = ttl {
        push_argument(&mut tail, b"EX");
        push_argument(&mut tail, ttl.as_bytes());
    }
    let mut parts = [IoSlice::new(&head), IoSlice::new(record), IoSlice::new(&tail)];
    connection.send(&mut parts, call)
}
