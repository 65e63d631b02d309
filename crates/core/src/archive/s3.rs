//! Owns the archive in an S3 bucket: requests signed by rusty-s3, sent by ureq over our TLS, with credentials from the environment.

use std::env;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rusty_s3::actions::{
    CompleteMultipartUploadResponse, CreateMultipartUpload, ListObjectsV2, S3Action,
};
use rusty_s3::{Bucket as Place, Credentials, UrlStyle};
use ureq::http::{Response, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::folder::part_for;
use super::{Archive, Fill};
use crate::error::{Code, Error, Result};
use crate::limits::{ARCHIVE_CONNECT_MS, ARCHIVE_PART_BYTES, ARCHIVE_REQUEST_MS, ARCHIVE_STALL_MS};

/// Validity of a signature.
const SIGNED_FOR: Duration = Duration::from_secs(300);
/// Most bytes read of a server's error text.
const REASON_BYTES_MAX: u64 = 4096;

pub(super) struct Bucket {
    place: Place,
    credentials: Credentials,
    /// Prefix of each object's key; empty, or with a slash at the end.
    prefix: String,
    agent: Agent,
}

impl Bucket {
    /// Opens the objects below `prefix`.
    pub(super) fn open(bucket: &str, prefix: &str) -> Result<Self> {
        let refused = |reason: &str| {
            let text = format!("[vault] archive = \"s3://{bucket}/{prefix}\": {reason}");
            Error::new(Code::DiskFailed, text)
        };
        let credentials = Credentials::from_env().ok_or_else(|| {
            refused("no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for the vault")
        })?;
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let region = set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION"));
        let given = set("AWS_ENDPOINT_URL_S3").or_else(|| set("AWS_ENDPOINT_URL"));
        let (endpoint, region, style) = match (given, region) {
            (Some(url), region) => {
                (url, region.unwrap_or_else(|| "us-east-1".to_owned()), UrlStyle::Path)
            }
            (None, Some(region)) => {
                // The certificates of AWS do not cover bucket names with dots.
                let style =
                    if bucket.contains('.') { UrlStyle::Path } else { UrlStyle::VirtualHost };
                (format!("https://s3.{region}.amazonaws.com"), region, style)
            }
            (None, None) => return Err(refused("no region; set AWS_REGION, or AWS_ENDPOINT_URL")),
        };
        let wrong = |error: &dyn std::fmt::Display| {
            refused(&format!(
                "AWS_ENDPOINT_URL = {endpoint}: {error}; write it like https://host:9000"
            ))
        };
        let url = endpoint.parse().map_err(|error| wrong(&error))?;
        let place = Place::new(url, style, bucket.to_owned(), region);
        let place = place.map_err(|error| wrong(&error))?;
        let prefix = prefix.trim_end_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self { place, credentials, prefix, agent: agent(endpoint.starts_with("https:")) })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn put_whole(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let url = self.place.put_object(Some(&self.credentials), key).sign(SIGNED_FOR);
        checked("PUT", key, self.agent.put(url.as_str()).send(bytes)).map(drop)
    }

    fn put_parts(
        &self,
        key: &str,
        bytes: u64,
        buffer: &mut [u8],
        fill: Fill<'_>,
    ) -> io::Result<()> {
        let credentials = Some(&self.credentials);
        let url = self.place.create_multipart_upload(credentials, key).sign(SIGNED_FOR);
        let text = text("POST", key, self.agent.post(url.as_str()).send_empty())?;
        let begun = CreateMultipartUpload::parse_response(&text).map_err(io::Error::other)?;
        let upload = begun.upload_id();
        let sent = self.send_parts(key, upload, bytes, buffer, fill);
        if sent.is_err() {
            // Uploads that are not aborted here are removed by the bucket's own rules.
            let url = self.place.abort_multipart_upload(credentials, key, upload).sign(SIGNED_FOR);
            let _ = self.agent.delete(url.as_str()).call();
        }
        sent
    }

    fn send_parts(
        &self,
        key: &str,
        upload: &str,
        bytes: u64,
        buffer: &mut [u8],
        fill: Fill<'_>,
    ) -> io::Result<()> {
        let credentials = Some(&self.credentials);
        let mut tags: Vec<String> = Vec::new();
        let mut offset = 0;
        while offset < bytes {
            let length = buffer.len().min(usize::try_from(bytes - offset).unwrap_or(usize::MAX));
            fill(&mut buffer[..length], offset)?;
            let number = u16::try_from(tags.len() + 1).map_err(io::Error::other)?;
            let part = self.place.upload_part(credentials, key, number, upload);
            let url = part.sign(SIGNED_FOR);
            let sent = checked("PUT", key, self.agent.put(url.as_str()).send(&buffer[..length]))?;
            let tag = sent.headers().get("etag").and_then(|tag| tag.to_str().ok());
            tags.push(tag.ok_or_else(|| io::Error::other("a part was given no ETag"))?.to_owned());
            offset += length as u64;
        }
        let all = || tags.iter().map(String::as_str);
        let complete = || self.place.complete_multipart_upload(credentials, key, upload, all());
        let (url, body) = (complete().sign(SIGNED_FOR), complete().body());
        let text = text("POST", key, self.agent.post(url.as_str()).send(&body))?;
        // S3 may answer 200 and report the failure in the body.
        CompleteMultipartUploadResponse::parse(&text).map(drop).map_err(|_| {
            let code = code_in(&text).unwrap_or("an answer without ETag");
            io::Error::other(format!("POST {key}: {code}"))
        })
    }
}

impl Archive for Bucket {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut found = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let mut list = self.place.list_objects_v2(Some(&self.credentials));
            list.with_prefix(self.prefix.as_str());
            list.with_delimiter("/");
            if let Some(token) = token {
                list.with_continuation_token(token);
            }
            let url = list.sign(SIGNED_FOR);
            let text = text("GET", &self.prefix, self.agent.get(url.as_str()).call())?;
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
        let url = self.place.head_object(Some(&self.credentials), &key).sign(SIGNED_FOR);
        match self.agent.head(url.as_str()).call() {
            // The answer has no body that says what is missing, so that a read asks again.
            Ok(answer) if answer.status() == StatusCode::NOT_FOUND => {
                let read = self.read(name, &mut [0], 0);
                Err(read.err().unwrap_or_else(|| io::Error::other(format!("HEAD {key}: 404"))))
            }
            answer => length(&checked("HEAD", &key, answer)?),
        }
    }

    fn read(&self, name: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(last) = (buffer.len() as u64).checked_sub(1) else { return Ok(0) };
        let key = self.key(name);
        let url = self.place.get_object(Some(&self.credentials), &key).sign(SIGNED_FOR);
        let request = self.agent.get(url.as_str());
        let request = request.header("range", format!("bytes={offset}-{}", offset + last));
        let patience = Some(Duration::from_millis(ARCHIVE_STALL_MS));
        let answer = request.config().timeout_global(patience).build().call();
        let answer = match &answer {
            Ok(answer) if answer.status() == StatusCode::RANGE_NOT_SATISFIABLE => return Ok(0),
            _ => checked("GET", &key, answer)?,
        };
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
        let url = self.place.delete_object(Some(&self.credentials), &key).sign(SIGNED_FOR);
        match checked("DELETE", &key, self.agent.delete(url.as_str()).call()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map(drop),
        }
    }
}

/// Files of trusted roots: Debian, Fedora, openSUSE; Alpine and macOS.
const ROOT_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The trusted roots of the system, or of `SSL_CERT_FILE`; empty without such a file.
fn roots() -> Vec<Certificate<'static>> {
    let own = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    roots_in(own.or_else(|| ROOT_FILES.iter().map(PathBuf::from).find(|path| path.exists())))
}

fn roots_in(file: Option<PathBuf>) -> Vec<Certificate<'static>> {
    let found = file.and_then(|file| CertificateDer::pem_file_iter(file).ok());
    found
        .into_iter()
        .flatten()
        .flatten()
        .map(|root| Certificate::from_der(&root).to_owned())
        .collect()
}

fn agent(is_secure: bool) -> Agent {
    let mut tls = TlsConfig::builder();
    if is_secure {
        tls = tls
            .root_certs(RootCerts::new_with_certs(&roots()))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
    }
    let within = |ms| Some(Duration::from_millis(ms));
    let config = Agent::config_builder()
        .tls_config(tls.build())
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_connect(within(ARCHIVE_CONNECT_MS))
        .timeout_global(within(ARCHIVE_REQUEST_MS));
    config.build().new_agent()
}

/// Returns the answer if its status is a success.
fn checked(
    method: &str,
    key: &str,
    answer: std::result::Result<Response<Body>, ureq::Error>,
) -> io::Result<Response<Body>> {
    let mut answer = answer.map_err(|error| {
        let error = error.into_io();
        io::Error::new(error.kind(), format!("{method} {key}: {error}"))
    })?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let mut text = String::new();
    let mut body = answer.body_mut().as_reader().take(REASON_BYTES_MAX);
    let code = match body.read_to_string(&mut text) {
        Ok(_) => code_in(&text),
        Err(_) => None,
    };
    // A missing bucket, or a proxy without its server, does not mean that the object is missing.
    let is_missing = status == StatusCode::NOT_FOUND && code == Some("NoSuchKey");
    let kind = if is_missing { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
    let code = code.unwrap_or_default();
    Err(io::Error::new(kind, format!("{method} {key}: {} {code}", status.as_u16())))
}

fn text(
    method: &str,
    key: &str,
    answer: std::result::Result<Response<Body>, ureq::Error>,
) -> io::Result<String> {
    let mut answer = checked(method, key, answer)?;
    answer.body_mut().read_to_string().map_err(ureq::Error::into_io)
}

fn code_in(text: &str) -> Option<&str> {
    text.split_once("<Code>")?.1.split_once("</Code>").map(|(code, _)| code)
}

fn length(answer: &Response<Body>) -> io::Result<u64> {
    let length = answer.headers().get("content-length");
    let length = length.and_then(|text| text.to_str().ok()?.parse().ok());
    length.ok_or_else(|| io::Error::other("an answer without Content-Length"))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::Mutex;

    use super::*;

    /// Answers every request with 404 and the body of `says`.
    fn bucket_without_objects(says: &Arc<Mutex<&'static str>>) -> Bucket {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let says = Arc::clone(says);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let asked: Vec<_> =
                    lines.map_while(io::Result::ok).take_while(|line| !line.is_empty()).collect();
                let body = *says.lock().unwrap();
                let sent = if asked[0].starts_with("HEAD") { "" } else { body };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: {length}"
                );
                write!(stream, "{head}\r\n\r\n{sent}").unwrap();
            }
        });
        let place = Place::new(url.parse().unwrap(), UrlStyle::Path, "bucket", "here").unwrap();
        let (credentials, prefix) = (Credentials::new("key", "secret"), String::new());
        Bucket { place, credentials, prefix, agent: agent(false) }
    }

    #[test]
    fn an_object_is_missing_only_where_the_server_says_so() {
        let says = Arc::new(Mutex::new(""));
        let bucket = bucket_without_objects(&says);
        let asks = |body: &'static str| {
            *says.lock().unwrap() = body;
            let kind = |error: io::Error| error.kind();
            let read = bucket.read("name", &mut [0; 8], 0).map_err(kind).unwrap_err();
            (bucket.bytes("name").map_err(kind).unwrap_err(), read, bucket.remove("name").is_ok())
        };
        let missing = (io::ErrorKind::NotFound, io::ErrorKind::NotFound, true);
        assert_eq!(asks("<Error><Code>NoSuchKey</Code></Error>"), missing);
        let unknown = (io::ErrorKind::Other, io::ErrorKind::Other, false);
        for body in ["<Error><Code>NoSuchBucket</Code></Error>", "default backend - 404", ""] {
            assert_eq!(asks(body), unknown, "{body:?}");
        }
    }

    #[test]
    fn roots_of_trust_come_from_a_file_of_them() {
        let folder = std::env::temp_dir().join(format!("tierkv-roots-{}", std::process::id()));
        let made = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap().cert;
        std::fs::write(&folder, format!("# own\n{}{}", made("a").pem(), made("b").pem())).unwrap();
        assert_eq!(roots_in(Some(folder.clone())).len(), 2);
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(roots_in(Some(folder)).len(), 0);
        assert_eq!(roots_in(None).len(), 0);
    }
}
