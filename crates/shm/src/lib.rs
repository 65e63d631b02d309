//! Owns the list of modules of the shared region: records in memory that several processes map, without a network between them.

pub mod layout;
#[cfg(target_os = "linux")]
mod lines;
#[cfg(target_os = "linux")]
pub mod mapping;
mod members;
pub mod region;
mod table;
pub mod visibility;
