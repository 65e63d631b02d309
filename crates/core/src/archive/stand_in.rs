//! Owns small HTTP servers for the tests of an archive, which answer as told, and files of credentials.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::credentials::Vars;

/// A request.
pub(super) struct Asked {
    pub(super) line: String,
    pub(super) headers: Vec<String>,
    pub(super) body: String,
}

/// Serves until the process ends; returns its URL. `answer` gives a status and a body.
pub(super) fn serve(answer: impl Fn(&Asked) -> (u16, String) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
                    break;
                }
                lines.push(line.trim().to_owned());
            }
            let Some((line, headers)) = lines.split_first() else { continue };
            let length = headers.iter().find_map(|header| {
                header.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
            });
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).unwrap();
            let body = String::from_utf8_lossy(&body).into_owned();
            let asked = Asked { line: line.clone(), headers: headers.to_vec(), body };
            let (status, body) = answer(&asked);
            let sent = if asked.line.starts_with("HEAD") { "" } else { &body };
            let head = format!(
                "HTTP/1.1 {status} Said\r\nconnection: close\r\ncontent-length: {}",
                body.len()
            );
            let _ = write!(stream, "{head}\r\n\r\n{sent}");
        }
    });
    url
}

/// An environment of these variables alone.
pub(super) fn vars(pairs: &[(&str, &str)]) -> Vars {
    let pairs: Vec<_> =
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Box::new(move |name| {
        pairs.iter().rfind(|(other, _)| other == name).map(|(_, value)| value.clone())
    })
}

/// The answer of a token service.
pub(super) fn session(number: u64, expires: &str) -> String {
    format!(
        "<R><Credentials><AccessKeyId>key-{number}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>\
         <SessionToken>token-{number}</SessionToken><Expiration>{expires}</Expiration></Credentials></R>"
    )
}

/// A file of a profile `default`, removed at the end.
pub(super) struct Files(PathBuf);

static LAST: AtomicU32 = AtomicU32::new(0);

impl Files {
    pub(super) fn new(keys: &str) -> Self {
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("tierkv-profile-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, format!("[default]\n{keys}")).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(super) fn write(&self, keys: &str) {
        std::fs::write(&self.0, format!("[default]\n{keys}")).unwrap();
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
