//! Owns a server that speaks as much of S3 as our store uses, and injects one fault.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use tierkv_core::archive::Vars;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Every request is refused with this status and code.
    Refuses(u16, &'static str),
    /// Bodies of records end half way.
    Tears,
    /// Takes requests for records and answers nothing.
    Freezes,
    /// One byte of each range of records differs.
    Flips(usize),
    /// Refuses `If-None-Match`.
    NoConditions,
    /// Says of each object once that it is not there, as before another client has written it.
    HidesOnce,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    requests: Vec<String>,
    hidden: BTreeSet<String>,
}

pub struct Bucket {
    pub port: u16,
    fault: Arc<Mutex<Fault>>,
    state: Arc<Mutex<State>>,
}

/// Variables that lead to a server on this machine.
pub fn vars(port: u16) -> Vars {
    let endpoint = format!("http://127.0.0.1:{port}");
    Box::new(move |name| {
        let value = match name {
            "AWS_ENDPOINT_URL" => &endpoint,
            "AWS_ACCESS_KEY_ID" => "tierkv",
            "AWS_SECRET_ACCESS_KEY" => "not-a-secret",
            "AWS_EC2_METADATA_DISABLED" => "true",
            _ => return None,
        };
        Some(value.to_owned())
    })
}

impl Bucket {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (fault, state) = (Arc::new(Mutex::new(Fault::None)), Arc::<Mutex<State>>::default());
        let bucket = Self { port, fault, state };
        let (fault, state) = (Arc::clone(&bucket.fault), Arc::clone(&bucket.state));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (fault, state) = (Arc::clone(&fault), Arc::clone(&state));
                // A connection that fails is the client's affair.
                thread::spawn(move || serve(&stream, &fault, &state));
            }
        });
        bucket
    }

    pub fn fails_with(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// Lengths of the objects, by name.
    pub fn objects(&self) -> BTreeMap<String, usize> {
        let state = self.state.lock().unwrap();
        state.objects.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect()
    }

    /// Stores an object of somebody else.
    pub fn put(&self, name: &str) {
        self.state.lock().unwrap().objects.insert(name.to_owned(), vec![0]);
    }

    pub fn remove_all(&self) {
        self.state.lock().unwrap().objects.clear();
    }

    /// Methods of the requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

/// Names in one page of a list.
const PAGE: usize = 3;

struct Request {
    method: String,
    name: String,
    query: String,
    is_conditional: bool,
    range: Option<(usize, usize)>,
    body: Vec<u8>,
}

fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|bytes| *bytes > 0)?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let range = headers.get("range").and_then(|text| {
        let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
        Some((from.parse().ok()?, to.parse().ok()?))
    });
    let (name, query) = path.split_once('?').unwrap_or((&path, ""));
    let (name, query) = (name.to_owned(), query.to_owned());
    let is_conditional = headers.contains_key("if-none-match");
    Some(Request { method, name, query, is_conditional, range, body })
}

/// Status and body.
fn answer(request: Request, fault: Fault, state: &mut State) -> (u16, Vec<u8>) {
    let Request { method, name, query, is_conditional, range, body } = request;
    state.requests.push(method.clone());
    match (fault, method.as_str()) {
        (Fault::Refuses(status, code), _) => (status, error(code)),
        (Fault::NoConditions, "PUT") if is_conditional => (501, error("NotImplemented")),
        (_, "PUT") if is_conditional && state.objects.contains_key(&name) => {
            (412, error("PreconditionFailed"))
        }
        (_, "PUT") => {
            state.objects.insert(name, body);
            (200, Vec::new())
        }
        (_, "DELETE") => {
            state.objects.remove(&name);
            (204, Vec::new())
        }
        (_, "GET") if query.contains("list-type=2") => (200, listed(&name, &query, state)),
        (Fault::HidesOnce, "GET") if state.hidden.insert(name.clone()) => (404, error("NoSuchKey")),
        (_, "GET") => match (state.objects.get(&name), range) {
            (None, _) => (404, error("NoSuchKey")),
            (Some(object), Some((from, to))) if from < object.len() => {
                (206, object[from..object.len().min(to + 1)].to_vec())
            }
            (Some(_), _) => (416, error("InvalidRange")),
        },
        (_, other) => panic!("{other} is no request of our store"),
    }
}

/// A page of the names below the query's prefix, in their order; a name is the token of what follows it.
fn listed(bucket: &str, query: &str, state: &State) -> Vec<u8> {
    let value = |name: &str| {
        let pair = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        pair.unwrap_or_default().replace("%2F", "/")
    };
    let bucket = format!("{}/", bucket.trim_end_matches('/'));
    let (prefix, after) = (value("prefix"), value("continuation-token"));
    let keys = state.objects.keys().filter_map(|name| name.strip_prefix(&bucket));
    let below: Vec<_> =
        keys.filter(|key| key.starts_with(&prefix) && *key > after.as_str()).collect();
    let page: Vec<_> = below.iter().take(PAGE).collect();
    let next = page.last().filter(|_| below.len() > PAGE);
    let next = next
        .map(|key| format!("<NextContinuationToken>{key}</NextContinuationToken>"))
        .unwrap_or_default();
    let content = |key: &&&str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
    let contents = page.iter().map(content).collect::<Vec<_>>().concat();
    let is_cut = !next.is_empty();
    let space = "http://s3.amazonaws.com/doc/2006-03-01/";
    format!("<ListBucketResult xmlns=\"{space}\"><IsTruncated>{is_cut}</IsTruncated>{next}{contents}</ListBucketResult>")
        .into_bytes()
}

fn serve(stream: &TcpStream, fault: &Mutex<Fault>, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut out = stream;
    loop {
        let request = read(&mut reader)?;
        let fault = *fault.lock().unwrap();
        // Ranges at the front are of the index.
        let is_behind = request.range.is_some_and(|(from, _)| from > 0);
        let (status, mut bytes) = answer(request, fault, &mut state.lock().unwrap());
        let is_of_records = status == 206 && is_behind;
        let mut sent = bytes.len();
        match fault {
            Fault::Freezes if is_of_records => {
                // Until the client has gone.
                let _ = out.read(&mut [0]);
                return None;
            }
            Fault::Flips(at) if is_of_records => bytes[at % sent] ^= 0x10,
            Fault::Tears if is_of_records => sent /= 2,
            _ => {}
        }
        let length = bytes.len();
        let head = format!("HTTP/1.1 {status} As told\r\ncontent-length: {length}\r\n\r\n");
        out.write_all(head.as_bytes()).ok()?;
        out.write_all(&bytes[..sent]).ok()?;
        if sent < length {
            return None;
        }
    }
}

fn error(code: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code></Error>").into_bytes()
}
