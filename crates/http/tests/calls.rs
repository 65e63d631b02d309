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

struct Scene {
    client: Client,
    news: Receiver<News>,
}

impl Scene {
    fn new(address: &str, most: usize) -> Self {
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
        Self { client, news }
    }

    fn ask(&self, call: u32, want: Want, body: &[u8]) {
        let length = body.len();
        let head = format!("POST /v1 HTTP/1.1\r\nhost: e\r\ncontent-length: {length}\r\n\r\n");
        let (head, body) = (head.into_bytes(), body.to_vec());
        self.client.request(Asked { call, pool: POOL, head, body, has_body: true, want });
        self.client.wake();
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

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

#[test]
fn a_short_answer_is_told_once_and_its_connection_serves_the_next() {
    let engine = Engine::new();
    let scene = Scene::new(&engine.address(), 4);
    scene.ask(1, Want::Pieces, b"one");
    let mut stream = engine.accept();
    assert!(request(&mut stream, 3).ends_with("\r\n\r\none"));
    let body = "{\"usage\":{\"completion_tokens\": 7}}";
    let answer = format!("HTTP/1.1 200 OK\r\nX-A: b\r\ncontent-length: {}\r\n\r\n", body.len());
    for piece in format!("{answer}{body}").as_bytes().chunks(11) {
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
    stream.write_all(b"HTTP/1.1 404 No\r\ncontent-length: 2\r\n\r\nno").unwrap();
    assert_eq!(scene.next(), News::Text { call: 2, status: 404, text: "no".into() });
}

#[test]
fn a_long_body_is_sent_whole_to_an_engine_that_reads_slowly() {
    let engine = Engine::new();
    let scene = Scene::new(&engine.address(), 1);
    let body = vec![b'x'; 8 << 20];
    scene.ask(1, Want::Text(64), &body);
    let mut stream = engine.accept();
    assert!(request(&mut stream, body.len()).ends_with("xxx"));
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
    assert_eq!(scene.next(), News::Text { call: 1, status: 200, text: "ok".into() });
}

#[test]
fn pieces_come_when_they_are_asked_for() {
    let engine = Engine::new();
    let scene = Scene::new(&engine.address(), 1);
    scene.ask(1, Want::Pieces, b"");
    let mut stream = engine.accept();
    request(&mut stream, 0);
    stream.write_all(format!("{EVENTS}{}", chunk(": ping\n\ndata: 1\n\n")).as_bytes()).unwrap();
    assert_eq!(begun(scene.next()), (200, b"data: 1\n\n".to_vec(), false));
    stream.write_all(format!("{}0\r\n\r\n", chunk("data: 2\n\n")).as_bytes()).unwrap();
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
    let engine = Engine::new();
    let scene = Scene::new(&engine.address(), 1);
    scene.ask(1, Want::Pieces, b"");
    let mut stream = engine.accept();
    request(&mut stream, 0);
    stream.write_all(format!("{EVENTS}{}", chunk("data: 0\n\n")).as_bytes()).unwrap();
    assert_eq!(begun(scene.next()).1, b"data: 0\n\n");
    let meter = Arc::new(Mutex::new(Meter::default()));
    let mut client = scene.pass(1, true, Some(Arc::clone(&meter)));
    let event = format!("data: {}\n\n", "x".repeat(500));
    let sent = Arc::new(Mutex::new(0));
    let writer = {
        let (event, sent) = (event.clone(), Arc::clone(&sent));
        thread::spawn(move || {
            for _ in 0..EVENTS_SENT {
                stream.write_all(chunk(&event).as_bytes()).unwrap();
                *sent.lock().unwrap() += 1;
            }
            stream.write_all(b"0\r\n\r\n").unwrap();
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
    let engine = Engine::new();
    let scene = Scene::new(&engine.address(), 1);
    for (call, (last, is_at_border)) in (1..).zip([("data: 1\n\n", true), ("data: 1\n", false)]) {
        scene.ask(call, Want::Pieces, b"");
        let mut stream = engine.accept();
        request(&mut stream, 0);
        stream.write_all(format!("{EVENTS}{}", chunk("data: 0\n\n")).as_bytes()).unwrap();
        begun(scene.next());
        let mut client = scene.pass(call, false, None);
        stream.write_all(chunk(last).as_bytes()).unwrap();
        let mut passed = vec![0; last.len()];
        client.read_exact(&mut passed).unwrap();
        assert_eq!(passed, last.as_bytes());
        drop(stream);
        let outcome = Outcome::Broken;
        assert_eq!(scene.next(), News::Passed { call, outcome, is_at_border });
    }
    // Before the first byte it is a failure, and one that may be tried again.
    scene.ask(9, Want::Pieces, b"");
    let mut stream = engine.accept();
    request(&mut stream, 0);
    stream.write_all(EVENTS.as_bytes()).unwrap();
    drop(stream);
    assert_eq!(failed(scene.next()), "ECONNRESET");
}

#[test]
fn a_client_that_left_ends_the_engines_answer() {
    let engine = Engine::new();
    let scene = Scene::new(&engine.address(), 1);
    scene.ask(1, Want::Pieces, b"");
    let mut stream = engine.accept();
    request(&mut stream, 0);
    stream.write_all(format!("{EVENTS}{}", chunk("data: 0\n\n")).as_bytes()).unwrap();
    begun(scene.next());
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
    let engine = Engine::new();
    let scene = Scene::new(&engine.address(), 1);
    scene.ask(1, Want::Pieces, b"");
    // Waits for the one connection.
    scene.ask(2, Want::Text(64), b"");
    scene.ask(3, Want::Text(64), b"");
    let mut stream = engine.accept();
    request(&mut stream, 0);
    scene.client.abort(2);
    scene.client.abort(1);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    let mut stream = engine.accept();
    request(&mut stream, 0);
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nuntil the end").unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    assert_eq!(scene.next(), News::Text { call: 3, status: 200, text: "until the end".into() });
}

#[test]
fn what_cannot_be_reached_or_read_has_a_name() {
    let engine = Engine::new();
    let address = engine.address();
    let scene = Scene::new(&address, 1);
    scene.ask(1, Want::Text(4), b"");
    let mut stream = engine.accept();
    request(&mut stream, 0);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n12345").unwrap();
    assert_eq!(failed(scene.next()), "EMSGSIZE");
    scene.ask(2, Want::Text(4), b"");
    let mut stream = engine.accept();
    request(&mut stream, 0);
    stream.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap();
    assert_eq!(failed(scene.next()), "EPROTO");
    drop(engine);
    scene.ask(3, Want::Text(4), b"");
    assert_eq!(failed(scene.next()), "ECONNREFUSED");
    let nowhere = Scene::new("unix:/nonexistent/socket", 1);
    nowhere.ask(4, Want::Text(4), b"");
    assert_eq!(failed(nowhere.next()), "ENOENT");
}

#[test]
fn a_host_is_found_by_its_name() {
    let engine = Engine::new();
    let (_, port) = engine
        .address()
        .rsplit_once(':')
        .map(|(host, port)| (host.to_owned(), port.to_owned()))
        .unwrap();
    let scene = Scene::new(&format!("localhost:{port}"), 1);
    scene.ask(1, Want::Text(64), b"");
    let mut stream = engine.accept();
    request(&mut stream, 0);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
    assert_eq!(scene.next(), News::Text { call: 1, status: 200, text: "ok".into() });
}

#[test]
fn an_engine_that_is_removed_fails_its_calls_and_takes_no_more() {
    let engine = Engine::new();
    let scene = Scene::new(&engine.address(), 1);
    scene.ask(1, Want::Pieces, b"");
    scene.ask(2, Want::Pieces, b"");
    let mut stream = engine.accept();
    request(&mut stream, 0);
    scene.client.close(POOL);
    assert_eq!(failed(scene.next()), "ECANCELED");
    assert_eq!(failed(scene.next()), "ECANCELED");
    scene.ask(3, Want::Pieces, b"");
    assert_eq!(failed(scene.next()), "ECANCELED");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}
