//! Owns the inbox of the process, which receives records and turns them into pages.

use std::sync::{Arc, LazyLock};

use tierkv_core::inbox::Inbox;

pub static INBOX: LazyLock<Arc<Inbox>> = LazyLock::new(Arc::default);
