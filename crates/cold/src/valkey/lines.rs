//! Owns the control path to Valkey: few commands, whose answers are short lists.

use std::io::IoSlice;

use tierkv_core::error::{Error, Result};
use tierkv_core::limits::VALKEY_FLUSHES_MAX;

use super::connection::{Connection, REFUSES, Reply};
use super::refusals::Refusals;
use super::spread::{Exchange, Got, Way, end_asking, push_for, spread};
use super::topology::Topology;
use crate::store::Call;

/// The control path to Valkey: few commands, whose answers are short.
pub struct Lines<'a> {
    pub topology: &'a Topology,
    pub refusals: &'a Refusals,
}

impl Lines<'_> {
    /// Sends the commands of each key to its primary; the last answer of each as a list of values. `None` where one was refused, or
    /// none came.
    pub fn lists(
        &self,
        keys: &[Vec<u8>],
        commands: &[Vec<Vec<Vec<u8>>>],
        call: &Call,
    ) -> Result<Vec<Option<Vec<Vec<u8>>>>> {
        let exchange: Exchange<'_, Vec<Vec<u8>>> = &|connection, part, call, done| {
            let mut out = Vec::new();
            for index in &part.items {
                for command in &commands[*index] {
                    push_for(
                        &mut out,
                        part,
                        &command.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                    );
                }
            }
            connection.send(&mut [IoSlice::new(&out)], call)?;
            for index in &part.items {
                let mut last = None;
                for _ in &commands[*index] {
                    end_asking(connection, part, call)?;
                    let got = self.list(connection, call)?;
                    // A refusal stands for all commands of its key.
                    if !matches!(last, Some(Got::Refused(_) | Got::Moved(_) | Got::Asked(_))) {
                        last = Some(got);
                    }
                }
                done.extend(last.map(|got| (*index, got)));
            }
            Ok(())
        };
        let way = Way {
            topology: self.topology,
            refusals: self.refusals,
            records: keys.len(),
            is_read: false,
            is_absent: &|_| false,
        };
        let outcomes = spread(&way, keys, call, exchange)?;
        let refused = outcomes.iter().find_map(|got| match got {
            Some(Got::Refused(text)) => Some(text.clone()),
            _ => None,
        });
        let answers: Vec<_> = outcomes
            .into_iter()
            .map(|got| match got {
                Some(Got::Value(value)) => Some(value),
                _ => None,
            })
            .collect();
        match refused.filter(|_| answers.iter().all(Option::is_none)) {
            Some(text) => Err(Error::lane_failed(format!("{REFUSES}{text}"))),
            None => Ok(answers),
        }
    }

    fn list(&self, connection: &mut Connection, call: &Call) -> Result<Got<Vec<Vec<u8>>>> {
        let count = match connection.reply(call)? {
            Reply::List(count) => count,
            Reply::Refused(text) => return Ok(redirect(text, self)),
            Reply::Bulk(bytes) => return Ok(Got::Value(vec![connection.short(bytes, call)?])),
            Reply::Int(_) | Reply::Status | Reply::Nil => return Ok(Got::Value(Vec::new())),
        };
        let mut values = Vec::new();
        for _ in 0..count {
            match connection.reply(call)? {
                Reply::Bulk(bytes) if values.len() < LIST_MAX => {
                    values.push(connection.short(bytes, call)?);
                }
                other => {
                    let text = format!("Valkey's list cannot be read: {other:?}");
                    return Err(Error::lane_failed(text));
                }
            }
        }
        Ok(Got::Value(values))
    }
}

/// Values of a list: fields and values of all flushes that two clients add at once, or names of models.
const LIST_MAX: usize = 8 * VALKEY_FLUSHES_MAX;

/// The outcome of a refused command: where to ask instead, or the refusal, counted.
pub fn redirect<T>(text: String, lines: &Lines<'_>) -> Got<T> {
    let mut words = text.split(' ');
    match (words.next(), words.nth(1)) {
        (Some("MOVED"), Some(address)) => {
            lines.topology.is_stale();
            Got::Moved(address.to_owned())
        }
        (Some("ASK"), Some(address)) => Got::Asked(address.to_owned()),
        _ => {
            if lines.refusals.note(&text) {
                lines.topology.is_stale();
            }
            Got::Refused(text)
        }
    }
}
