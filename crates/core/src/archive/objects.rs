//! Owns what stores of packed records ask of a bucket: ranges that arrive as a stream, and objects that are written once.

use std::io::{self, Read};
use std::time::Duration;

use rusty_s3::actions::{ListObjectsV2, S3Action};
use ureq::http::{Response, StatusCode};

use super::credentials::Vars;
use super::s3::{Bucket, SIGNED_FOR, length, text};
use crate::error::{Code, Error, Result};

impl Bucket {
    /// Opens `s3://bucket/prefix`; errors begin with `what`, the configuration's key. `vars` gives environment variables. Asks nothing yet.
    ///
    /// # Errors
    /// `STORE_FAILED` naming the key, its value, the reason and the fix.
    pub fn at(what: &str, url: &str, vars: Vars) -> Result<Self> {
        let place = url.strip_prefix("s3://").unwrap_or_default();
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        if bucket.is_empty() {
            let text =
                format!("{what} = \"{url}\": there is no bucket; write \"s3://bucket/prefix\"");
            return Err(Error::new(Code::StoreFailed, text));
        }
        Self::with(what, bucket, prefix, vars)
    }

    /// Reads `bytes` bytes of an object from `offset` on, or fewer where it ends before; passes them to `take` as they arrive, with
    /// their number.
    ///
    /// # Errors
    /// `NotFound` when there is no such object, or it ends before `offset`; errors of the archive and of `take`.
    pub fn stream<T>(
        &self,
        name: &str,
        offset: u64,
        bytes: u64,
        within: Duration,
        take: impl FnOnce(&mut dyn Read, u64) -> io::Result<T>,
    ) -> io::Result<T> {
        let key = self.key(name);
        let mut is_behind = false;
        let last = offset + bytes.max(1) - 1;
        let answer = self.ask("GET", &key, |credentials| {
            let url = self.place.get_object(Some(credentials), &key).sign(SIGNED_FOR);
            let request =
                self.agent.get(url.as_str()).header("range", format!("bytes={offset}-{last}"));
            let answer = request.config().timeout_global(Some(within)).build().call();
            let status = answer.as_ref().ok().map(Response::status);
            is_behind = status == Some(StatusCode::RANGE_NOT_SATISFIABLE);
            answer
        });
        if is_behind {
            return Err(io::ErrorKind::NotFound.into());
        }
        let answer = answer?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            return Err(io::Error::other(format!("GET {key}: the server knows no ranges")));
        }
        let length = length(&answer)?.min(bytes);
        take(&mut answer.into_body().into_reader(), length)
    }

    /// Names of some objects below `folder`, and what the next call goes on from; none: there are no more.
    ///
    /// # Errors
    /// Errors of the archive.
    pub fn below(
        &self,
        folder: &str,
        from: Option<&str>,
        within: Duration,
    ) -> io::Result<(Vec<String>, Option<String>)> {
        let key = self.key(folder);
        let text = text(self.ask("GET", &key, |credentials| {
            let mut list = self.place.list_objects_v2(Some(credentials));
            list.with_prefix(key.as_str());
            if let Some(from) = from {
                list.with_continuation_token(from);
            }
            let request = self.agent.get(list.sign(SIGNED_FOR).as_str());
            request.config().timeout_global(Some(within)).build().call()
        })?)?;
        let page = ListObjectsV2::parse_response(&text).map_err(io::Error::other)?;
        let relative = |key: String| key.strip_prefix(&self.prefix).map(str::to_owned);
        let names = page.contents.into_iter().filter_map(|object| relative(object.key)).collect();
        Ok((names, page.next_continuation_token))
    }

    /// Stores an object unless there is one of that name; returns false where there is. `is_checked` false: a server that does not
    /// know the condition replaces it.
    ///
    /// # Errors
    /// `Unsupported` from a server that refuses the condition; errors of the archive.
    pub fn put_new(
        &self,
        name: &str,
        bytes: &[u8],
        is_checked: bool,
        within: Duration,
    ) -> io::Result<bool> {
        let key = self.key(name);
        let mut is_there = false;
        let put = self.ask("PUT", &key, |credentials| {
            let url = self.place.put_object(Some(credentials), &key).sign(SIGNED_FOR);
            let mut request = self.agent.put(url.as_str());
            if is_checked {
                request = request.header("if-none-match", "*");
            }
            let answer = request.config().timeout_global(Some(within)).build().send(bytes);
            let status = answer.as_ref().ok().map(Response::status);
            // The second one: another client is writing it.
            is_there = [Some(StatusCode::PRECONDITION_FAILED), Some(StatusCode::CONFLICT)]
                .contains(&status);
            answer
        });
        if is_there {
            return Ok(false);
        }
        put.map(|_| true)
    }
}
