//! Owns a proxy before a real S3 server, which injects one fault.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Bodies that are torn are longer than an index or an error.
const LONG: usize = 8192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Every second request is refused with this status and code, as S3 does.
    Refuses(u16, &'static str),
    /// Bodies of records end half way.
    Tears,
}

pub struct Proxy {
    pub port: u16,
    fault: Arc<Mutex<Fault>>,
    /// Requests that met the fault.
    acted: Arc<AtomicUsize>,
}

impl Proxy {
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let fault = Arc::new(Mutex::new(Fault::None));
        let proxy = Self { port, fault, acted: Arc::default() };
        let (fault, acted) = (Arc::clone(&proxy.fault), Arc::clone(&proxy.acted));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (fault, acted) = (Arc::clone(&fault), Arc::clone(&acted));
                // A connection that fails is the client's affair.
                thread::spawn(move || serve(&client, server, &fault, &acted));
            }
        });
        proxy
    }

    pub fn fails_with(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    pub fn acted(&self) -> usize {
        self.acted.load(Ordering::Relaxed)
    }
}

/// A head with its last empty line, and the body behind it.
struct Message {
    head: Vec<u8>,
    body: Vec<u8>,
}

fn read(from: &mut impl BufRead, has_body: bool) -> Option<Message> {
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line).ok().filter(|bytes| *bytes > 0)?;
        let text = String::from_utf8_lossy(&line).to_lowercase();
        if let Some(value) = text.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        head.extend_from_slice(&line);
        if text.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; if has_body { length } else { 0 }];
    from.read_exact(&mut body).ok()?;
    Some(Message { head, body })
}

fn serve(client: &TcpStream, server: u16, fault: &Mutex<Fault>, acted: &AtomicUsize) -> Option<()> {
    let mut asked = BufReader::new(client);
    let mut out = client;
    let server = TcpStream::connect(("127.0.0.1", server)).ok()?;
    let mut answers = BufReader::new(&server);
    let mut on = &server;
    let mut number = 0;
    loop {
        let request = read(&mut asked, true)?;
        let fault = *fault.lock().unwrap();
        number += 1;
        if let Fault::Refuses(status, code) = fault
            && number % 2 == 1
        {
            acted.fetch_add(1, Ordering::Relaxed);
            let body = format!("<Error><Code>{code}</Code></Error>");
            let length = body.len();
            let head = format!("HTTP/1.1 {status} Refused\r\ncontent-length: {length}\r\n\r\n");
            out.write_all(&[head.as_bytes(), body.as_bytes()].concat()).ok()?;
            continue;
        }
        on.write_all(&request.head).ok()?;
        on.write_all(&request.body).ok()?;
        let is_empty = request.head.starts_with(b"HEAD ");
        let Message { head, body } = read(&mut answers, !is_empty)?;
        out.write_all(&head).ok()?;
        if fault == Fault::Tears && body.len() > LONG {
            acted.fetch_add(1, Ordering::Relaxed);
            // The connection ends with it.
            return out.write_all(&body[..body.len() / 2]).ok();
        }
        out.write_all(&body).ok()?;
    }
}
