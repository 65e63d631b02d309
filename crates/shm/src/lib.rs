//! Owns the list of modules of the shared region: records in memory mapped by several processes, without a network between them.

mod audit;
pub mod between;
mod chunks;
#[cfg(target_os = "linux")]
mod cut;
#[cfg(target_os = "linux")]
mod dax;
#[cfg(target_os = "linux")]
pub mod desk;
#[cfg(target_os = "linux")]
pub mod doctor;
mod evict;
#[cfg(target_os = "linux")]
pub mod file;
pub mod flushes;
mod held;
#[cfg(target_os = "linux")]
mod host_lock;
#[cfg(target_os = "linux")]
mod keeper;
pub mod latch;
pub mod layout;
#[cfg(target_os = "linux")]
mod lines;
pub mod manager;
#[cfg(target_os = "linux")]
pub mod mapping;
mod members;
#[cfg(target_os = "linux")]
mod moves;
mod names;
#[cfg(target_os = "linux")]
pub mod opening;
pub mod region;
#[cfg(target_os = "linux")]
mod requests;
#[cfg(target_os = "linux")]
mod seat;
pub mod superblock;
mod table;
pub mod trial;
pub mod visibility;
