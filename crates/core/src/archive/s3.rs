//! Owns the archive in an S3 bucket: requests signed by rusty-s3, sent by ureq over our TLS.

use std::env;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rusty_s3::actions::{
    CompleteMultipartUploadResponse, CreateMultipartUpload, ListObjectsV2, S3Action,
};
use rusty_s3::signing::sign;
use rusty_s3::{Bucket as Place, Credentials, Method, UrlStyle};
use ureq::http::{Response, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::credentials::{Chain, Refusal, Vars, element, is_expired};
use super::folder::part_for;
use super::profile::Profile;
use super::{Archive, Fill};
use crate::error::{Code, Error, Result};
use crate::limits::{
    ARCHIVE_CONNECT_MS, ARCHIVE_CONNECTIONS, ARCHIVE_PART_BYTES, ARCHIVE_REQUEST_MS,
    ARCHIVE_STALL_MS,
};

/// Validity of a signature.
pub(super) const SIGNED_FOR: Duration = Duration::from_secs(300);
/// Most bytes read of a server's error text.
const REASON_BYTES_MAX: u64 = 4096;

/// An answer of the server, of whatever status.
pub(super) type Answer = std::result::Result<Response<Body>, ureq::Error>;

/// A bucket, or what lies below a prefix in it.
pub struct Bucket {
    pub(super) place: Place,
    credentials: Chain,
    /// Prefix of each object's key; empty, or with a slash at the end.
    pub(super) prefix: String,
    pub(super) agent: Agent,
}

impl Bucket {
    /// Opens the objects below `prefix`; errors begin with `what`, the configuration's key.
    pub(super) fn open(what: &str, bucket: &str, prefix: &str) -> Result<Self> {
        Self::with(what, bucket, prefix, Box::new(|name| env::var(name).ok()))
    }

    pub(super) fn with(what: &str, bucket: &str, prefix: &str, vars: Vars) -> Result<Self> {
        let refused = |reason: &str| {
            let text = format!("{what} = \"s3://{bucket}/{prefix}\": {reason}");
            Error::new(Code::StoreFailed, text)
        };
        let profile = Profile::read(&vars);
        let set = |name: &str| vars(name).filter(|value| !value.is_empty());
        let region = set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION"));
        let region = region.or_else(|| profile.get("region"));
        let given = set("AWS_ENDPOINT_URL_S3").or_else(|| set("AWS_ENDPOINT_URL"));
        let given = given.or_else(|| profile.get("endpoint_url"));
        // The certificates of AWS do not cover bucket names with dots, and other servers mostly have no name per bucket.
        let is_of_aws = given.is_none() && !bucket.contains('.');
        let style = style(&vars, &profile, is_of_aws).map_err(|reason| refused(&reason))?;
        let (endpoint, region) = match (given, region) {
            (Some(url), region) => (url, region.unwrap_or_else(|| "us-east-1".to_owned())),
            (None, Some(region)) => (format!("https://s3.{region}.amazonaws.com"), region),
            (None, None) => return Err(refused("no region; set AWS_REGION, or AWS_ENDPOINT_URL")),
        };
        let wrong = |error: &dyn std::fmt::Display| {
            refused(&format!(
                "AWS_ENDPOINT_URL = {endpoint}: {error}; write it like https://host:9000"
            ))
        };
        let url = endpoint.parse().map_err(|error| wrong(&error))?;
        // As AWS's own tools do.
        let bundle = set("AWS_CA_BUNDLE").or_else(|| profile.get("ca_bundle"));
        let roots = roots_in(bundle.as_ref().map(PathBuf::from).or_else(roots_file));
        if let Some(path) = bundle.filter(|_| roots.is_empty()) {
            let text = format!(
                "AWS_CA_BUNDLE = {path}: no certificate can be read there; name a PEM file of the CAs to trust"
            );
            return Err(refused(&text));
        }
        let credentials = Chain::open(vars, &profile, &region, agent(true, &roots));
        let credentials = credentials.map_err(|reason| refused(&reason))?;
        let place = Place::new(url, style, bucket.to_owned(), region);
        let place = place.map_err(|error| wrong(&error))?;
        let prefix = prefix.trim_end_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self {
            place,
            credentials,
            prefix,
            agent: agent(endpoint.starts_with("https:"), &roots),
        })
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Sends a request with present credentials, and once more with others where the server no longer takes these.
    pub(super) fn ask(
        &self,
        method: &str,
        key: &str,
        mut send: impl FnMut(&Credentials) -> Answer,
    ) -> io::Result<Response<Body>> {
        let credentials = self.credentials.get().map_err(unreached)?;
        match checked(method, key, send(&credentials)) {
            Err(error) if is_expired(&error) => {
                match self.credentials.instead_of(&credentials).map_err(unreached)? {
                    Some(fresh) => checked(method, key, send(&fresh)),
                    None => Err(error),
                }
            }
            answer => answer,
        }
    }

    fn put_whole(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let put = |credentials: &Credentials| {
            let url = self.place.put_object(Some(credentials), key).sign(SIGNED_FOR);
            self.agent.put(url.as_str()).send(bytes)
        };
        self.ask("PUT", key, put).map(drop)
    }

    fn put_parts(
        &self,
        key: &str,
        bytes: u64,
        buffer: &mut [u8],
        fill: Fill<'_>,
    ) -> io::Result<()> {
        let text = text(self.ask("POST", key, |credentials| {
            let url = self.place.create_multipart_upload(Some(credentials), key).sign(SIGNED_FOR);
            self.agent.post(url.as_str()).send_empty()
        })?)?;
        let begun = CreateMultipartUpload::parse_response(&text).map_err(io::Error::other)?;
        let upload = begun.upload_id();
        let sent = self.send_parts(key, upload, bytes, buffer, fill);
        if sent.is_err() {
            // An upload that cannot be aborted now is aborted at the next start.
            let _ = self.abort(key, upload);
        }
        sent
    }

    fn abort(&self, key: &str, upload: &str) -> io::Result<()> {
        let aborted = self.ask("DELETE", key, |credentials| {
            let place = &self.place;
            let url = place.abort_multipart_upload(Some(credentials), key, upload).sign(SIGNED_FOR);
            self.agent.delete(url.as_str()).call()
        });
        match aborted {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            aborted => aborted.map(drop),
        }
    }

    fn send_parts(
        &self,
        key: &str,
        upload: &str,
        bytes: u64,
        buffer: &mut [u8],
        fill: Fill<'_>,
    ) -> io::Result<()> {
        let mut tags: Vec<String> = Vec::new();
        let mut offset = 0;
        while offset < bytes {
            let length = buffer.len().min(usize::try_from(bytes - offset).unwrap_or(usize::MAX));
            fill(&mut buffer[..length], offset)?;
            let number = u16::try_from(tags.len() + 1).map_err(io::Error::other)?;
            let sent = self.ask("PUT", key, |credentials| {
                let part = self.place.upload_part(Some(credentials), key, number, upload);
                self.agent.put(part.sign(SIGNED_FOR).as_str()).send(&buffer[..length])
            })?;
            let tag = sent.headers().get("etag").and_then(|tag| tag.to_str().ok());
            tags.push(tag.ok_or_else(|| io::Error::other("a part was given no ETag"))?.to_owned());
            offset += length as u64;
        }
        let text = text(self.ask("POST", key, |credentials| {
            let all = || tags.iter().map(String::as_str);
            let complete =
                || self.place.complete_multipart_upload(Some(credentials), key, upload, all());
            let (url, body) = (complete().sign(SIGNED_FOR), complete().body());
            self.agent.post(url.as_str()).send(&body)
        })?)?;
        // S3 may answer 200 and report the failure in the body.
        CompleteMultipartUploadResponse::parse(&text).map(drop).map_err(|_| {
            let code = element(&text, "Code").unwrap_or("an answer without ETag");
            io::Error::other(format!("POST {key}: {code}"))
        })
    }

    /// Multipart uploads below the prefix that are neither complete nor aborted: key and id of each.
    fn uploads(&self) -> io::Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        let mut after = (String::new(), String::new());
        loop {
            // Sorted by name, as the signature needs them.
            let mut query = vec![("delimiter", "/"), ("key-marker", after.0.as_str())];
            query.extend([("prefix", self.prefix.as_str())]);
            query.extend([("upload-id-marker", after.1.as_str()), ("uploads", "")]);
            query.retain(|(name, value)| *name == "uploads" || !value.is_empty());
            let text = text(self.ask("GET", &self.prefix, |credentials| {
                let url = sign(
                    &Timestamp::now(),
                    Method::Get,
                    self.place.base_url().clone(),
                    credentials.key(),
                    credentials.secret(),
                    credentials.token(),
                    self.place.region(),
                    SIGNED_FOR.as_secs(),
                    query.iter().copied(),
                    std::iter::empty(),
                );
                self.agent.get(url.as_str()).call()
            })?)?;
            for upload in text.split("<Upload>").skip(1) {
                let pair = element(upload, "Key").zip(element(upload, "UploadId"));
                found.extend(pair.map(|(key, id)| (plain(key), plain(id))));
            }
            let next = element(&text, "NextKeyMarker").zip(element(&text, "NextUploadIdMarker"));
            let next = next.map(|(key, id)| (plain(key), plain(id)));
            let is_cut = element(&text, "IsTruncated").is_some_and(|is| is == "true");
            match next.filter(|next| is_cut && *next != after) {
                Some(next) => after = next,
                None => return Ok(found),
            }
        }
    }
}

impl Archive for Bucket {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut found = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let text = text(self.ask("GET", &self.prefix, |credentials| {
                let mut list = self.place.list_objects_v2(Some(credentials));
                list.with_prefix(self.prefix.as_str());
                list.with_delimiter("/");
                if let Some(token) = &token {
                    list.with_continuation_token(token.as_str());
                }
                self.agent.get(list.sign(SIGNED_FOR).as_str()).call()
            })?)?;
            let page = ListObjectsV2::parse_response(&text).map_err(io::Error::other)?;
            found.extend(page.contents.into_iter().filter_map(|object| {
                let name = object.key.strip_prefix(&self.prefix)?.to_owned();
                Some((name, object.size?))
            }));
            token = page.next_continuation_token;
            if token.is_none() {
                return Ok(found);
            }
        }
    }

    fn bytes(&self, name: &str) -> io::Result<u64> {
        let key = self.key(name);
        let head = |credentials: &Credentials| {
            let url = self.place.head_object(Some(credentials), &key).sign(SIGNED_FOR);
            self.agent.head(url.as_str()).call()
        };
        let answer = self.ask("HEAD", &key, head);
        // The answer has no body that says what is missing or refused, so that a read asks again.
        let answer = answer.or_else(|error| {
            let is_refused = error.get_ref().and_then(|of| of.downcast_ref::<Refusal>()).is_some();
            if !is_refused {
                return Err(error);
            }
            self.read(name, &mut [0], 0)?;
            self.ask("HEAD", &key, head)
        });
        length(&answer?)
    }

    fn read(&self, name: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(last) = (buffer.len() as u64).checked_sub(1) else { return Ok(0) };
        let key = self.key(name);
        let patience = Some(Duration::from_millis(ARCHIVE_STALL_MS));
        let mut is_behind = false;
        let answer = self.ask("GET", &key, |credentials| {
            let url = self.place.get_object(Some(credentials), &key).sign(SIGNED_FOR);
            let request = self.agent.get(url.as_str());
            let request = request.header("range", format!("bytes={offset}-{}", offset + last));
            let answer = request.config().timeout_global(patience).build().call();
            let status = answer.as_ref().ok().map(Response::status);
            is_behind = status == Some(StatusCode::RANGE_NOT_SATISFIABLE);
            answer
        });
        if is_behind {
            return Ok(0);
        }
        let answer = answer?;
        if answer.status() != StatusCode::PARTIAL_CONTENT && offset > 0 {
            return Err(io::Error::other(format!("GET {key}: the server knows no ranges")));
        }
        let bytes = usize::try_from(length(&answer)?).unwrap_or(usize::MAX).min(buffer.len());
        answer.into_body().into_reader().read_exact(&mut buffer[..bytes])?;
        Ok(bytes)
    }

    fn put(&self, name: &str, bytes: u64, fill: Fill<'_>) -> io::Result<()> {
        let key = self.key(name);
        let mut part = part_for(bytes)?;
        if bytes > ARCHIVE_PART_BYTES {
            return self.put_parts(&key, bytes, &mut part, fill);
        }
        let part = &mut part[..usize::try_from(bytes).unwrap_or(usize::MAX)];
        fill(part, 0)?;
        self.put_whole(&key, part)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let key = self.key(name);
        let removed = self.ask("DELETE", &key, |credentials| {
            let url = self.place.delete_object(Some(credentials), &key).sign(SIGNED_FOR);
            self.agent.delete(url.as_str()).call()
        });
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map(drop),
        }
    }

    fn clear(&self) -> io::Result<usize> {
        let mut uploads = self.uploads()?;
        // Another vault's objects may lie in a prefix below this one.
        let is_own =
            |key: &str| key.strip_prefix(&self.prefix).is_some_and(|name| !name.contains('/'));
        uploads.retain(|(key, _)| is_own(key));
        for (key, upload) in &uploads {
            self.abort(key, upload)?;
        }
        Ok(uploads.len())
    }
}

/// How a bucket is named in requests: as the environment or the profile says, else as suits the server.
fn style(vars: &Vars, profile: &Profile, is_of_aws: bool) -> std::result::Result<UrlStyle, String> {
    let set = |name: &str| vars(name).filter(|value| !value.is_empty());
    let fit = if is_of_aws { UrlStyle::VirtualHost } else { UrlStyle::Path };
    if let Some(value) = set(VIRTUAL) {
        return match value.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(UrlStyle::VirtualHost),
            "false" | "0" => Ok(UrlStyle::Path),
            _ => Err(format!("{VIRTUAL} = {value}: write true or false")),
        };
    }
    match profile.get("s3.addressing_style").as_deref() {
        None | Some("auto") => Ok(fit),
        Some("virtual") => Ok(UrlStyle::VirtualHost),
        Some("path") => Ok(UrlStyle::Path),
        Some(other) => Err(format!(
            "profile {}: addressing_style = {other}; write auto, path or virtual",
            profile.name
        )),
    }
}

/// Whether a bucket's name is part of the host's.
const VIRTUAL: &str = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST";

/// Text of an XML element without its escapes.
fn plain(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    text.replace("&apos;", "'").replace("&amp;", "&")
}

/// Files of trusted roots: Debian, Fedora, openSUSE; Alpine and macOS.
const ROOT_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The file of the trusted roots of the system, or of `SSL_CERT_FILE`, where there is one.
#[must_use]
pub fn roots_file() -> Option<PathBuf> {
    let own = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    own.or_else(|| ROOT_FILES.iter().map(PathBuf::from).find(|path| path.exists()))
}

/// The trusted roots in a file; empty without one.
fn roots_in(file: Option<PathBuf>) -> Vec<Certificate<'static>> {
    let found = file.and_then(|file| CertificateDer::pem_file_iter(file).ok());
    found
        .into_iter()
        .flatten()
        .flatten()
        .map(|root| Certificate::from_der(&root).to_owned())
        .collect()
}

/// `roots`: certificates of the trusted authorities.
fn agent(is_secure: bool, roots: &[Certificate<'static>]) -> Agent {
    let mut tls = TlsConfig::builder();
    if is_secure {
        tls = tls
            .root_certs(RootCerts::new_with_certs(roots))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
    }
    let within = |ms| Some(Duration::from_millis(ms));
    let config = Agent::config_builder()
        .tls_config(tls.build())
        .http_status_as_error(false)
        .max_redirects(0)
        .max_idle_connections(ARCHIVE_CONNECTIONS)
        .max_idle_connections_per_host(ARCHIVE_CONNECTIONS)
        .timeout_connect(within(ARCHIVE_CONNECT_MS))
        .timeout_global(within(ARCHIVE_REQUEST_MS));
    config.build().new_agent()
}

/// A failure before the server answered says nothing about an object, even if a file was missing for it.
fn unreached(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound { io::Error::other(error) } else { error }
}

/// Returns the answer if its status is a success.
fn checked(method: &str, key: &str, answer: Answer) -> io::Result<Response<Body>> {
    let mut answer = answer.map_err(|error| {
        let error = error.into_io();
        unreached(io::Error::new(error.kind(), format!("{method} {key}: {error}")))
    })?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let mut text = String::new();
    let mut body = answer.body_mut().as_reader().take(REASON_BYTES_MAX);
    let code = match body.read_to_string(&mut text) {
        Ok(_) => element(&text, "Code").map(str::to_owned),
        Err(_) => None,
    };
    let is = |wanted: &[&str]| code.as_deref().is_some_and(|code| wanted.contains(&code));
    let kind = match status {
        // A missing bucket, or a proxy without its server, does not mean that the object is missing.
        StatusCode::NOT_FOUND if is(&["NoSuchKey", "NoSuchUpload"]) => io::ErrorKind::NotFound,
        StatusCode::FORBIDDEN => io::ErrorKind::PermissionDenied,
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    let text =
        format!("{method} {key}: {} {}", status.as_u16(), code.as_deref().unwrap_or_default());
    Err(io::Error::new(kind, Refusal { text, code }))
}

pub(super) fn text(mut answer: Response<Body>) -> io::Result<String> {
    answer.body_mut().read_to_string().map_err(ureq::Error::into_io)
}

pub(super) fn length(answer: &Response<Body>) -> io::Result<u64> {
    let length = answer.headers().get("content-length");
    let length = length.and_then(|text| text.to_str().ok()?.parse().ok());
    length.ok_or_else(|| io::Error::other("an answer without Content-Length"))
}

#[cfg(test)]
#[path = "s3_tests.rs"]
mod tests;
