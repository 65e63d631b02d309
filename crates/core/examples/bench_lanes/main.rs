//! Owns the figures of the lanes: restore and save between two processes, beside plain TCP over the same loopback in the same rounds.
//!
//! `--json` prints one line; `--quick` moves less, in fewer rounds.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

mod far;
mod near;
mod tcp;

use std::process::ExitCode;

/// What is measured.
pub struct Plan {
    /// Blocks of one set: more than any cache holds.
    pub blocks: u32,
    /// Rounds, each with all measures in turn.
    pub rounds: usize,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if has("--far") {
        far::serve();
        return ExitCode::SUCCESS;
    }
    let plan = if has("--quick") {
        Plan { blocks: 64, rounds: 3 }
    } else {
        Plan { blocks: 224, rounds: 11 }
    };
    println!("{}", near::run(&plan));
    ExitCode::SUCCESS
}
