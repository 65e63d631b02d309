//! Owns the figures of the lanes: restore and save between two processes, against plain TCP over the same loopback in the same rounds.
//!
//! `--json` prints one line; `--quick` moves less, in fewer rounds. `--own` measures a vault of this machine instead, whose
//! records are read where they stand, against the same vault over its socket. `--tls` measures lanes under TLS against lanes in clear
//! instead; `--netns NAME HOST` runs the far side in that network namespace, at that address.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

mod bare;
mod beside;
mod far;
mod near;
mod own;
mod samples;
mod secured;
mod session;
mod tcp;

use std::process::ExitCode;

/// Size of a run.
pub struct Plan {
    /// Blocks of one set, more bytes than any cache holds.
    pub blocks: u32,
    /// Rounds, each with all measures.
    pub rounds: usize,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let after = |name: &str, at: usize| {
        let found = arguments.iter().position(|argument| argument == name);
        found.and_then(|found| arguments.get(found + at)).map(String::as_str)
    };
    if let Some(host) = after("--far", 1) {
        far::serve(host, after("--far", 2).unwrap());
        return ExitCode::SUCCESS;
    }
    let plan = if has("--quick") {
        Plan { blocks: 64, rounds: 3 }
    } else {
        Plan { blocks: 224, rounds: 11 }
    };
    if has("--own") {
        println!("{}", own::run(&plan));
        return ExitCode::SUCCESS;
    }
    if has("--tls") {
        let place = near::Place {
            netns: after("--netns", 1).map(str::to_owned),
            host: after("--netns", 2).unwrap_or("127.0.0.1").to_owned(),
        };
        println!("{}", secured::run(&plan, &place));
        return ExitCode::SUCCESS;
    }
    println!("{}", near::run(&plan));
    ExitCode::SUCCESS
}
