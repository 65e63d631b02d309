//! Owns the skin over a vault's end of the lanes.

use std::collections::HashMap;
use std::sync::Arc;

use napi_derive::napi;
use tierkv_core::error::Error;
use tierkv_core::lane::frame::TOKEN_BYTES;
use tierkv_core::lane::server::{Options, Server};

use crate::ids::Ids;
use crate::lane_tls::LaneServerTls;
use crate::skin::{count, number, run, size};
use crate::store::STORES;

static SERVERS: Ids<Arc<Server>> = Ids::new("lane server");

/// A vault's lanes.
#[napi(object)]
pub struct LaneServerInfo {
    pub id: u32,
    /// What a client adds to the host it knows: `:port`; or `unix:/path`.
    pub address: String,
}

/// How they are doing.
#[napi(object)]
pub struct LaneServerStatus {
    pub lanes: f64,
    pub sessions: f64,
    /// Fetches and stores under way.
    pub requests: f64,
    /// Since the start, by name.
    pub counts: HashMap<String, f64>,
}

/// Listens on `host:port` (0: the system chooses) or `unix:/path`, and serves the store to whoever brings a token; without
/// `tls` in clear.
#[napi]
pub fn lane_server_open(
    store_id: u32,
    address: String,
    max_record_bytes: f64,
    max_reserved_bytes: f64,
    tls: Option<LaneServerTls>,
) -> napi::Result<LaneServerInfo> {
    run(|| {
        let max_record_bytes = count("maxRecordBytes", max_record_bytes)?;
        let max_reserved_bytes = count("maxReservedBytes", max_reserved_bytes)?;
        let mut options = Options::new(&address, max_record_bytes, max_reserved_bytes);
        options.tls = tls.as_ref().map(LaneServerTls::build).transpose()?;
        let server = Server::open(STORES.get(store_id)?, options)?;
        let address = server.address()?;
        Ok(LaneServerInfo { id: SERVERS.insert(Arc::new(server))?, address })
    })
}

/// `token` (32 bytes, not to be guessed) opens one session, soon; without `may_store` it only reads.
#[napi]
pub fn lane_server_admit(id: u32, token: &[u8], may_store: bool) -> napi::Result<()> {
    run(|| {
        let (server, token) = (SERVERS.get(id)?, token_of(token)?);
        if may_store {
            server.admit(token);
        } else {
            server.admit_reader(token);
        }
        Ok(())
    })
}

/// How it is doing now.
#[napi]
pub fn lane_server_status(id: u32) -> napi::Result<LaneServerStatus> {
    run(|| {
        let status = SERVERS.get(id)?.status();
        let counts = status.counts.into_iter().map(|(name, n)| (name.to_owned(), number(n)));
        Ok(LaneServerStatus {
            lanes: size(status.lanes),
            sessions: size(status.sessions),
            requests: size(status.requests),
            counts: counts.collect(),
        })
    })
}

/// From now on nothing new is begun; what is under way goes on.
#[napi]
pub fn lane_server_drain(id: u32) -> napi::Result<()> {
    run(|| {
        SERVERS.get(id)?.drain();
        Ok(())
    })
}

/// Ends every lane; idempotent.
#[napi]
pub fn lane_server_close(id: u32) -> napi::Result<()> {
    run(|| {
        SERVERS.remove(id);
        Ok(())
    })
}

/// A session's token.
pub fn token_of(bytes: &[u8]) -> Result<[u8; TOKEN_BYTES], Error> {
    bytes.try_into().map_err(|_| {
        Error::bad_argument(format!("token has {} bytes: it must have {TOKEN_BYTES}", bytes.len()))
    })
}
