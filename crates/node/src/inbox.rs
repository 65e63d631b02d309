//! Owns the one inbox of the process: records that arrive and become pages.

use std::sync::{Arc, LazyLock};

use tierkv_core::inbox::Inbox;

pub static INBOX: LazyLock<Arc<Inbox>> = LazyLock::new(Arc::default);
