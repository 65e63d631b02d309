//! Owns a server that speaks as much of Valkey as our client uses, and injects one fault.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Every command is refused with these words.
    Refuses(&'static str),
    /// Stores are refused with these words.
    RefusesStores(&'static str),
    /// Ends the connection in the middle of the second value.
    Dies,
    /// Sends half of the second value and then nothing.
    Freezes,
    /// Sends the second value byte by byte, for ever short of its end.
    Trickles,
    /// One byte of each value at this place differs.
    Flips(usize),
    /// Values are this many bytes short.
    Truncates(usize),
    /// Announces a value of 4 GB.
    Boasts,
    /// Answers in another protocol.
    Babbles,
}

/// Fields and values in order.
type Hash = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Default)]
struct State {
    values: HashMap<Vec<u8>, Vec<u8>>,
    hashes: HashMap<Vec<u8>, Hash>,
    open: Vec<TcpStream>,
}

pub struct Fake {
    pub port: u16,
    fault: Arc<Mutex<Fault>>,
    state: Arc<Mutex<State>>,
    pub commands: Arc<AtomicUsize>,
}

impl Fake {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (fault, state) = (Arc::new(Mutex::new(Fault::None)), Arc::<Mutex<State>>::default());
        let commands = Arc::<AtomicUsize>::default();
        let fake = Self { port, fault, state, commands };
        let (fault, state, commands) =
            (Arc::clone(&fake.fault), Arc::clone(&fake.state), Arc::clone(&fake.commands));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                state.lock().unwrap().open.push(stream.try_clone().unwrap());
                let (fault, state, commands) =
                    (Arc::clone(&fault), Arc::clone(&state), Arc::clone(&commands));
                // A connection that fails is the client's affair.
                thread::spawn(move || serve(&stream, &fault, &state, &commands));
            }
        });
        fake
    }

    pub fn address(&self) -> String {
        format!("valkey://127.0.0.1:{}", self.port)
    }

    pub fn fails_with(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// Closes all connections, as a restart does.
    pub fn drops_connections(&self) {
        for stream in self.state.lock().unwrap().open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Loses what is no record, as an eviction does.
    pub fn loses_hashes(&self) {
        self.state.lock().unwrap().hashes.clear();
    }

    pub fn keys(&self) -> usize {
        self.state.lock().unwrap().values.len()
    }
}

fn command(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let mut number = |kind: char| -> Option<usize> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.trim().strip_prefix(kind)?.parse().ok()
    };
    let count = number('*')?;
    let mut arguments = Vec::new();
    for _ in 0..count {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let length: usize = line.trim().strip_prefix('$')?.parse().ok()?;
        let mut argument = vec![0; length + 2];
        reader.read_exact(&mut argument).ok()?;
        argument.truncate(length);
        arguments.push(argument);
    }
    Some(arguments)
}

fn serve(
    stream: &TcpStream,
    fault: &Mutex<Fault>,
    state: &Mutex<State>,
    commands: &AtomicUsize,
) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut out = stream;
    let mut values = 0;
    loop {
        let arguments = command(&mut reader)?;
        commands.fetch_add(1, Ordering::Relaxed);
        let fault = *fault.lock().unwrap();
        let name = String::from_utf8_lossy(&arguments[0]).to_uppercase();
        if name == "CLUSTER" {
            out.write_all(b"-ERR This instance has cluster support disabled\r\n").ok()?;
            continue;
        }
        match (fault, name.as_str()) {
            (Fault::Refuses(words), _) | (Fault::RefusesStores(words), "SET") => {
                out.write_all(format!("-{words}\r\n").as_bytes()).ok()?;
            }
            (Fault::Babbles, _) => out.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok()?,
            (_, "EXISTS") => {
                let state = state.lock().unwrap();
                let has = arguments[1..].iter().filter(|key| state.values.contains_key(*key));
                out.write_all(format!(":{}\r\n", has.count()).as_bytes()).ok()?;
            }
            (_, "UNLINK") => {
                let had = state.lock().unwrap().values.remove(&arguments[1]).is_some();
                out.write_all(format!(":{}\r\n", u8::from(had)).as_bytes()).ok()?;
            }
            (_, "SET") => {
                let mut state = state.lock().unwrap();
                let is_new = !state.values.contains_key(&arguments[1]);
                if is_new {
                    state.values.insert(arguments[1].clone(), arguments[2].clone());
                }
                out.write_all(if is_new { b"+OK\r\n" } else { b"$-1\r\n" }).ok()?;
            }
            (_, "GET") => {
                let value = state.lock().unwrap().values.get(&arguments[1]).cloned();
                let Some(value) = value else {
                    out.write_all(b"$-1\r\n").ok()?;
                    continue;
                };
                values += 1;
                send(out, value, fault, values)?;
            }
            (_, name) if name.starts_with('H') => {
                let mut state = state.lock().unwrap();
                let hash = state.hashes.entry(arguments[1].clone()).or_default();
                out.write_all(&of_hash(name, hash, &arguments[2..])).ok()?;
            }
            (_, name) => panic!("{name} is no command of our client"),
        }
    }
}

fn of_hash(name: &str, hash: &mut Hash, rest: &[Vec<u8>]) -> Vec<u8> {
    let at =
        |hash: &[(Vec<u8>, Vec<u8>)], field: &[u8]| hash.iter().position(|(of, _)| of == field);
    let bulk = |value: &[u8]| [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat();
    match name {
        "HGET" => at(hash, &rest[0]).map_or(b"$-1\r\n".to_vec(), |at| bulk(&hash[at].1)),
        "HGETALL" => {
            let all = hash.iter().flat_map(|(field, value)| [bulk(field), bulk(value)].concat());
            [format!("*{}\r\n", hash.len() * 2).into_bytes(), all.collect()].concat()
        }
        "HKEYS" => {
            let all = hash.iter().flat_map(|(field, _)| bulk(field));
            [format!("*{}\r\n", hash.len()).into_bytes(), all.collect()].concat()
        }
        "HSETNX" | "HSET" => {
            for pair in rest.chunks_exact(2) {
                match at(hash, &pair[0]) {
                    Some(_) if name == "HSETNX" => {}
                    Some(at) => hash[at].1.clone_from(&pair[1]),
                    None => hash.push((pair[0].clone(), pair[1].clone())),
                }
            }
            b":1\r\n".to_vec()
        }
        "HINCRBY" => {
            let at = at(hash, &rest[0]).expect("a number");
            let number: u64 = String::from_utf8_lossy(&hash[at].1).parse().unwrap();
            hash[at].1 = (number + 1).to_string().into_bytes();
            b":1\r\n".to_vec()
        }
        name => panic!("{name} is no command of our client"),
    }
}

fn send(mut out: &TcpStream, mut value: Vec<u8>, fault: Fault, number: usize) -> Option<()> {
    match fault {
        Fault::Flips(at) => {
            let at = at % value.len();
            value[at] ^= 0x10;
        }
        Fault::Truncates(bytes) => value.truncate(value.len() - bytes),
        Fault::Boasts => {
            out.write_all(b"$4294967296\r\n").ok()?;
            return None;
        }
        Fault::Dies | Fault::Freezes | Fault::Trickles if number >= 2 => {
            out.write_all(format!("${}\r\n", value.len()).as_bytes()).ok()?;
            let half = value.len() / 2;
            out.write_all(&value[..half]).ok()?;
            if fault == Fault::Dies {
                out.shutdown(Shutdown::Both).ok()?;
                return None;
            }
            let mut byte = [0];
            let mut inn = out;
            if fault == Fault::Freezes {
                // Until the client has gone.
                let _ = inn.read(&mut byte);
                return None;
            }
            for byte in &value[half..value.len() - 1] {
                out.write_all(&[*byte]).ok()?;
                thread::sleep(std::time::Duration::from_millis(1));
            }
            return None;
        }
        _ => {}
    }
    out.write_all(format!("${}\r\n", value.len()).as_bytes()).ok()?;
    out.write_all(&value).ok()?;
    out.write_all(b"\r\n").ok()
}
