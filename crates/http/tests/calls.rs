//! Owns the proof that requests reach an engine, and that its answers arrive whole, paced, or known to be broken.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tierkv_http::{Address, Asked, Client, Meter, News, Outcome, Times, Want};

const POOL: u32 = 1;
/// Longest wait of a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);

struct Engine {
    listener: TcpListener,
}

impl Engine {
    fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    fn accept(&self) -> TcpStream {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// Reads one request with a body of `length` bytes.
fn request(stream: &mut TcpStream, length: usize) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8([read, body].concat()).unwrap()
}

/// A client with one engine.
struct Scene {
    engine: Engine,
    client: Client,
    news: Receiver<News>,
}

impl Scene {
    /// At most so many connections.
    fn new(most: usize) -> Self {
        let engine = Engine::new();
        let address = engine.address();
        Self::at(&address, engine, most)
    }

    /// The client is told another address of the engine.
    fn at(address: &str, engine: Engine, most: usize) -> Self {
        let (tell, news) = channel();
        let second = Duration::from_secs(1);
        let times = Times { connect: second, kept_idle: second, stall: 2 * PATIENCE };
        let client = Client::start(times, move |all| {
            for one in all {
                let _ = tell.send(one);
            }
        });
        let client = client.unwrap();
        let _ = client.open(POOL, Address::parse(address).unwrap(), most);
        Self { engine, client, news }
    }

    fn ask(&self, call: u32, want: Want, body: &[u8]) {
        let length = body.len();
        let head = format!("POST /v1 HTTP/1.1\r\nhost: e\r\ncontent-length: {length}\r\n\r\n");
        let (head, body) = (head.into_bytes(), body.to_vec());
        self.client.request(Asked { call, pool: POOL, head, body, has_body: true, want });
        self.client.wake();
    }

    /// Asks on a new connection; returns the engine's side of it, behind the request.
    fn asked(&self, call: u32, want: Want, body: &[u8]) -> TcpStream {
        self.ask(call, want, body);
        let mut stream = self.engine.accept();
        assert!(request(&mut stream, body.len()).as_bytes().ends_with(body));
        stream
    }

    /// The same, where the answer has begun with an event.
    fn begun(&self, call: u32) -> TcpStream {
        let mut stream = self.asked(call, Want::Pieces, b"");
        send(&mut stream, &format!("{EVENTS}{}", chunk(FIRST)));
        assert_eq!(begun(self.next()), (200, FIRST.into(), false));
        stream
    }

    fn next(&self) -> News {
        self.news.recv_timeout(PATIENCE).unwrap()
    }

    /// Begins to pass a call's answer to a new client, and returns that client's side.
    fn pass(&self, call: u32, is_chunked: bool, meter: Option<Arc<Mutex<Meter>>>) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        self.client.pass(call, OwnedFd::from(ours), is_chunked, meter);
        self.client.wake();
        theirs
    }
}

fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

/// An answer of known length.
fn sized(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn begun(news: News) -> (u16, Vec<u8>, bool) {
    match news {
        News::Began { status, first, is_whole, .. } => (status, first, is_whole),
        other => panic!("{other:?}"),
    }
}

fn failed(news: News) -> &'static str {
    match news {
        News::Failed { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

const EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

const FIRST: &str = "data: 0\n\n";

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

#[test]
fn a_short_answer_is_told_once_and_its_connection_serves_the_next() {
    let scene = Scene::new(4);
    let mut stream = scene.asked(1, Want::Pieces, b"one");
    let body = "{\"usage\":{\"completion_tokens\": 7}}";
    for piece in sized("200 OK\r\nX-A: b", body).as_bytes().chunks(11) {
        stream.write_all(piece).unwrap();
        stream.flush().unwrap();
    }
    let News::Began { status, fields, first, is_whole, tokens, .. } = scene.next() else {
        panic!("no beginning");
    };
    assert_eq!((status, first, is_whole, tokens), (200, body.into(), true, Some(7)));
    assert_eq!(fields, format!("x-a\nb\ncontent-length\n{}", body.len()).as_bytes());
    scene.ask(2, Want::Text(64), b"");
    request(&mut stream, 0);
    send(&mut stream, &sized("404 No", "no"));
    assert_eq!(scene.next(), News::Text { call: 2, status: 404, text: "no".into() });
}

#[test]
fn ids_are_told_once_the_answer_is_whole_and_none_of_any_other_answer() {
    let scene = Scene::new(1);
    let mut stream = scene.asked(1, Want::Ids(64), b"");
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for piece in [head, &chunk("{\"tokens\":[5,"), &chunk("6]}"), "0\r\n\r\n"] {
        send(&mut stream, piece);
    }
    assert_eq!(scene.next(), News::Ids { call: 1, status: 200, ids: vec![5, 6] });
    scene.ask(2, Want::Ids(64), b"");
    request(&mut stream, 0);
    send(&mut stream, &sized("404 No", "no"));
    assert_eq!(scene.next(), News::Ids { call: 2, status: 404, ids: vec![] });
    scene.ask(3, Want::Ids(8), b"");
    request(&mut stream, 0);
    send(&mut stream, &sized("200 OK", "{\"tokens\":[5,6]}"));
    assert!(matches!(scene.next(), News::Failed { call: 3, code: "EMSGSIZE", .. }));
}

#[test]
fn a_long_body_is_sent_whole_to_an_engine_that_reads_slowly() {
    let scene = Scene::new(1);
    let mut stream = scene.asked(1, Want::Text(64), &vec![b'x'; 8 << 20]);
    send(&mut stream, &sized("200 OK", "ok"));
    assert_eq!(scene.next(), News::Text { call: 1, status: 200, text: "ok".into() });
}

#[test]
fn pieces_come_when_they_are_asked_for() {
    let scene = Scene::new(1);
    let mut stream = scene.asked(1, Want::Pieces, b"");
    send(&mut stream, &format!("{EVENTS}{}", chunk(": ping\n\ndata: 1\n\n")));
    assert_eq!(begun(scene.next()), (200, b"data: 1\n\n".to_vec(), false));
    send(&mut stream, &format!("{}0\r\n\r\n", chunk("data: 2\n\n")));
    let mut rest = Vec::new();
    loop {
        scene.client.more(1);
        scene.client.wake();
        let News::Piece { bytes, is_last, .. } = scene.next() else { panic!("no piece") };
        rest.extend(bytes);
        if is_last {
            break;
        }
    }
    assert_eq!(rest, b"data: 2\n\n");
}

#[test]
fn an_answer_passes_to_a_client_at_its_pace_and_is_counted() {
    const EVENTS_SENT: usize = 20_000;
    let scene = Scene::new(1);
    let mut stream = scene.begun(1);
    let meter = Arc::new(Mutex::new(Meter::default()));
    let mut client = scene.pass(1, true, Some(Arc::clone(&meter)));
    let event = format!("data: {}\n\n", "x".repeat(500));
    let sent = Arc::new(Mutex::new(0));
    let writer = {
        let (event, sent) = (event.clone(), Arc::clone(&sent));
        thread::spawn(move || {
            for _ in 0..EVENTS_SENT {
                send(&mut stream, &chunk(&event));
                *sent.lock().unwrap() += 1;
            }
            send(&mut stream, "0\r\n\r\n");
            stream
        })
    };
    // The writer stands still once all buffers on the way are full.
    let (mut before, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        let now = *sent.lock().unwrap();
        if now != before {
            (before, since) = (now, Instant::now());
        }
        thread::yield_now();
    }
    assert!(before < EVENTS_SENT, "the engine is not held back");
    let mut framed = Vec::new();
    let reader = thread::spawn(move || {
        // The last chunk is not the core's to write, so that the socket's end ends it.
        client.read_to_end(&mut framed).unwrap();
        framed
    });
    let whole = News::Passed { call: 1, outcome: Outcome::Whole, is_at_border: true };
    assert_eq!(scene.next(), whole);
    let framed = reader.join().unwrap();
    let mut rest = framed.as_slice();
    let mut body = Vec::new();
    while !rest.is_empty() {
        let line = rest.iter().position(|byte| *byte == b'\r').unwrap();
        let text = std::str::from_utf8(&rest[..line]).unwrap();
        let size = usize::from_str_radix(text, 16).unwrap();
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        assert_eq!(&rest[line + 2 + size..line + 4 + size], b"\r\n");
        rest = &rest[line + 4 + size..];
    }
    assert!(body == event.repeat(EVENTS_SENT).into_bytes());
    // The first event's line begins without a line feed before it, as after the first bytes.
    assert_eq!(meter.lock().unwrap().events, EVENTS_SENT as u64);
    drop(writer.join().unwrap());
}

#[test]
fn an_engine_that_breaks_off_is_told_with_the_place() {
    let scene = Scene::new(1);
    for (call, (last, is_at_border)) in (1..).zip([("data: 1\n\n", true), ("data: 1\n", false)]) {
        let mut stream = scene.begun(call);
        let mut client = scene.pass(call, false, None);
        send(&mut stream, &chunk(last));
        let mut passed = vec![0; last.len()];
        client.read_exact(&mut passed).unwrap();
        assert_eq!(passed, last.as_bytes());
        drop(stream);
        let outcome = Outcome::Broken;
        assert_eq!(scene.next(), News::Passed { call, outcome, is_at_border });
    }
    // Before the first byte it is a failure, and one that may be tried again.
    let mut stream = scene.asked(9, Want::Pieces, b"");
    send(&mut stream, EVENTS);
    drop(stream);
    assert_eq!(failed(scene.next()), "ECONNRESET");
}

#[test]
fn a_client_that_left_ends_the_engines_answer() {
    let scene = Scene::new(1);
    let mut stream = scene.begun(1);
    drop(scene.pass(1, true, None));
    let end = Instant::now() + PATIENCE;
    while stream.write_all(chunk("data: 1\n\n").as_bytes()).is_ok() {
        assert!(Instant::now() < end, "the engine never hears of it");
    }
    let News::Passed { outcome, .. } = scene.next() else { panic!("not passed") };
    assert_eq!(outcome, Outcome::Gone);
}

#[test]
fn an_aborted_call_is_cut_off_and_tells_nothing_more() {
    let scene = Scene::new(1);
    let mut stream = scene.asked(1, Want::Pieces, b"");
    // Waits for the one connection.
    scene.ask(2, Want::Text(64), b"");
    scene.ask(3, Want::Text(64), b"");
    scene.client.abort(2);
    scene.client.abort(1);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    let mut stream = scene.engine.accept();
    request(&mut stream, 0);
    send(&mut stream, "HTTP/1.1 200 OK\r\n\r\nuntil the end");
    stream.shutdown(Shutdown::Both).unwrap();
    assert_eq!(scene.next(), News::Text { call: 3, status: 200, text: "until the end".into() });
}

#[test]
fn what_cannot_be_reached_or_read_has_a_name() {
    let scene = Scene::new(1);
    let mut stream = scene.asked(1, Want::Text(4), b"");
    send(&mut stream, &sized("200 OK", "12345"));
    assert_eq!(failed(scene.next()), "EMSGSIZE");
    let mut stream = scene.asked(2, Want::Text(4), b"");
    send(&mut stream, "SSH-2.0-OpenSSH\r\n");
    assert_eq!(failed(scene.next()), "EPROTO");
    let Scene { engine, client, news } = scene;
    let gone = Scene { engine: Engine::new(), client, news };
    drop(engine);
    gone.ask(3, Want::Text(4), b"");
    assert_eq!(failed(gone.next()), "ECONNREFUSED");
    let nowhere = Scene::at("unix:/nonexistent/socket", Engine::new(), 1);
    nowhere.ask(4, Want::Text(4), b"");
    assert_eq!(failed(nowhere.next()), "ENOENT");
}

#[test]
fn a_host_is_found_by_its_name() {
    let engine = Engine::new();
    let port = engine.listener.local_addr().unwrap().port();
    let scene = Scene::at(&format!("localhost:{port}"), engine, 1);
    let mut stream = scene.asked(1, Want::Text(64), b"");
    send(&mut stream, &sized("200 OK", "ok"));
    assert_eq!(scene.next(), News::Text { call: 1, status: 200, text: "ok".into() });
}

#[test]
fn an_engine_that_is_removed_fails_its_calls_and_takes_no_more() {
    let scene = Scene::new(1);
    let mut stream = scene.asked(1, Want::Pieces, b"");
    scene.ask(2, Want::Pieces, b"");
    scene.client.close(POOL);
    assert_eq!(failed(scene.next()), "ECANCELED");
    assert_eq!(failed(scene.next()), "ECANCELED");
    scene.ask(3, Want::Pieces, b"");
    assert_eq!(failed(scene.next()), "ECANCELED");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}
