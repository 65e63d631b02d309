//! Owns the list of the client's modules: requests to engines out, answers in, each answer's bytes on to the client's own socket.

mod address;
mod answer;
mod call;
mod client;
mod connection;
mod events;
mod framing;
mod head;
mod ids;
mod limits;
mod meter;
mod pace;
mod pass;
mod pool;
mod reactor;

pub use address::Address;
pub use answer::Answer;
pub use client::{Asked, Client, News, Outcome, Times, Want};
pub use framing::{Chunks, Framing};
pub use head::Head;
pub use ids::ids_in;
pub use limits::{HEAD_BYTES_MAX, PIECE_BYTES, WHOLE_BYTES_MAX};
pub use meter::Meter;
