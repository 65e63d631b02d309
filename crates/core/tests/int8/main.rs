//! Owns the proof of codec 2: one arithmetic on every instruction set, a bound that holds, refusals that are told.

mod bound;
mod data;
mod isa;
mod record;
mod snr;
mod trip;
