//! Owns the list of the index's modules: events of engines in, tokens that each engine would reuse out.

mod batch;
mod fleeting;
pub mod forms;
mod hit;
mod holder;
mod index;
mod limits;
mod names;
mod reader;
mod saved;
mod table;

pub use batch::{Tier, VaultName};
pub use holder::{Report, Sample};
pub use index::{Bounds, Index, Span, View};
pub use names::names_of;
pub use table::HolderId;
