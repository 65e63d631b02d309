//! Owns the list of the stores that others run and that hold our records: Valkey and S3, behind one desk.

pub mod desk;
pub mod goal;
pub mod store;
pub mod valkey;
