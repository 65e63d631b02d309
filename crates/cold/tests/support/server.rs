//! Owns real Valkey servers for tests: one alone, or a cluster of three, with replicas or without.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Client, Connection};
use rustix::process::{Pid, Signal, kill_process};

/// A server that ends with the test.
pub struct Server {
    child: Child,
    pub port: u16,
    place: Place,
    folder: PathBuf,
    arguments: Vec<String>,
    program: String,
}

/// Where a server runs.
#[derive(Clone)]
pub struct Place {
    pub host: String,
    /// Words before its command.
    pub under: Vec<String>,
    /// `None`: a free one.
    pub port: Option<u16>,
}

impl Default for Place {
    fn default() -> Self {
        Self { host: "127.0.0.1".to_owned(), under: Vec::new(), port: None }
    }
}

impl Place {
    fn command(&self, program: &str, arguments: &[String]) -> Command {
        let mut words = self.under.iter().map(String::as_str).chain([program]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(arguments).stdout(Stdio::null());
        command
    }
}

/// The program, where there is one; says so where there is none.
pub fn program() -> Option<String> {
    program_of("TIERKV_TEST_VALKEY", "valkey-server")
}

/// A server that speaks TLS, such as Debian's Redis 7.
pub fn program_with_tls() -> Option<String> {
    program_of("TIERKV_TEST_REDIS", "redis-server")
}

fn program_of(variable: &str, usual: &str) -> Option<String> {
    let name = std::env::var(variable).unwrap_or_else(|_| usual.to_owned());
    let works = Command::new(&name).arg("--version").stdout(Stdio::null()).status();
    if works.is_ok_and(|status| status.success()) {
        return Some(name);
    }
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    {
        eprintln!("skipped: there is no {usual}; {variable} names it");
    }
    None
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits for a condition; only a hung test fails here.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Server {
    pub fn start(program: &str, more: &[&str]) -> Self {
        Self::start_at(program, &Place::default(), more)
    }

    pub fn start_at(program: &str, place: &Place, more: &[&str]) -> Self {
        let port = || place.port.unwrap_or_else(free_port);
        let mut server = Self::spawn(program, place, port(), more);
        // A cluster's second port may be taken, then another pair is tried.
        for _ in 0..5 {
            let mut ended = false;
            until("the server to listen", || {
                ended = server.child.try_wait().unwrap().is_some();
                ended || server.listens()
            });
            if !ended {
                return server;
            }
            server = Self::spawn(program, place, port(), more);
        }
        panic!("{program} does not start");
    }

    fn listens(&self) -> bool {
        TcpStream::connect((self.place.host.as_str(), self.port)).is_ok()
    }

    fn spawn(program: &str, place: &Place, port: u16, more: &[&str]) -> Self {
        let name = format!("tierkv-valkey-{}-{}-{port}", std::process::id(), place.host);
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        // The bus of a cluster lies 10,000 ports above, which may be past the last one.
        let bus = free_port().to_string();
        let text = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
        let port_of = if more.contains(&"--tls-cert-file") { "--tls-port" } else { "--port" };
        let mut arguments =
            text(&[port_of, &port.to_string(), "--bind", &place.host, "--save", ""]);
        // Machines of a test are protected by their namespaces.
        arguments.extend(text(&["--protected-mode", "no"]));
        if port_of == "--tls-port" {
            arguments.extend(text(&["--port", "0"]));
        }
        arguments.extend(text(&["--dir", folder.to_str().unwrap(), "--daemonize", "no"]));
        if more.contains(&"--cluster-enabled") {
            arguments.extend(text(&["--cluster-port", &bus]));
        }
        arguments.extend(text(more));
        let program = program.to_owned();
        let child = place.command(&program, &arguments).spawn().unwrap();
        Self { child, port, place: place.clone(), folder, arguments, program }
    }

    /// Starts it again at the same port, without what it had in memory.
    pub fn restart(&mut self) {
        self.child = self.place.command(&self.program, &self.arguments).spawn().unwrap();
        until("the server to listen again", || self.listens());
    }

    pub fn address(&self) -> String {
        format!("valkey://{}:{}", self.place.host, self.port)
    }

    pub fn client(&self) -> Connection {
        let address = format!("redis://{}:{}", self.place.host, self.port);
        let client = Client::open(address).unwrap();
        let mut connection = None;
        // A link that has just come back may lead nowhere yet.
        until("a connection", || {
            connection = client.get_connection().ok();
            connection.is_some()
        });
        connection.unwrap()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn freeze(&self, is_frozen: bool) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, if is_frozen { Signal::STOP } else { Signal::CONT }).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Three primaries that share all slots, and behind them a replica of each.
pub fn cluster_with_replicas(program: &str) -> Vec<Server> {
    cluster_with_replicas_at(program, &<[Place; 6]>::default())
}

/// The same at six places, the replicas at the last three.
pub fn cluster_with_replicas_at(program: &str, places: &[Place]) -> Vec<Server> {
    let mut servers = cluster_at(program, &places[..3]);
    for (primary, place) in places[3..].iter().enumerate() {
        let server = Server::start_at(program, place, &CLUSTERED);
        meet(&servers[0], &server);
        let mut asked = servers[primary].client();
        let id: String = redis::cmd("CLUSTER").arg("MYID").query(&mut asked).unwrap();
        until("the replica to follow", || {
            let mut follow = redis::cmd("CLUSTER");
            follow.arg("REPLICATE").arg(&id).exec(&mut server.client()).is_ok()
        });
        until("the replica to be in step", || {
            let info: String = redis::cmd("INFO").query(&mut server.client()).unwrap();
            info.contains("master_link_status:up")
        });
        servers.push(server);
    }
    for server in &servers {
        until("all to know the replicas", || {
            let slots: Vec<Vec<redis::Value>> =
                redis::cmd("CLUSTER").arg("SLOTS").query(&mut server.client()).unwrap();
            slots.len() == 3 && slots.iter().all(|range| range.len() == 4)
        });
    }
    servers
}

/// Whether every slot has an owner that answers, as this server sees it.
pub fn is_whole(server: &Server) -> bool {
    let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut server.client()).unwrap();
    info.contains("cluster_state:ok")
}

const CLUSTERED: [&str; 8] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1000",
    "--cluster-require-full-coverage",
    "no",
    "--repl-diskless-sync-delay",
    "0",
];

/// Three primaries that share all slots.
pub fn cluster(program: &str) -> Vec<Server> {
    cluster_at(program, &<[Place; 3]>::default())
}

fn cluster_at(program: &str, places: &[Place]) -> Vec<Server> {
    let start = |place| Server::start_at(program, place, &CLUSTERED);
    let servers: Vec<_> = places.iter().map(start).collect();
    for (number, server) in servers.iter().enumerate() {
        let mut client = server.client();
        let (first, last) = (number * 16384 / 3, (number + 1) * 16384 / 3 - 1);
        redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(first).arg(last).exec(&mut client).unwrap();
        let info: String = redis::cmd("CLUSTER").arg("MYID").query(&mut client).unwrap();
        assert!(!info.is_empty());
    }
    for server in &servers[1..] {
        meet(&servers[0], server);
    }
    for server in &servers {
        until("the cluster to agree", || {
            let info: String =
                redis::cmd("CLUSTER").arg("INFO").query(&mut server.client()).unwrap();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        });
    }
    servers
}

fn meet(one: &Server, other: &Server) {
    let mut meet = redis::cmd("CLUSTER");
    meet.arg("MEET").arg(&other.place.host).arg(other.port).arg(bus_port(other));
    meet.exec(&mut one.client()).unwrap();
}

/// Moves up to `most` slots that have keys from one primary to another; calls `within` while each is half moved, and after it.
pub fn move_slots(from: &Server, to: &Server, most: usize, mut within: impl FnMut()) -> usize {
    let (mut source, mut target) = (from.client(), to.client());
    let id: fn(&mut Connection) -> String =
        |client| redis::cmd("CLUSTER").arg("MYID").query(client).unwrap();
    let ids = (id(&mut source), id(&mut target));
    let mut moved = 0;
    for slot in 0..16384 {
        let mut list = redis::cmd("CLUSTER");
        let keys: Vec<Vec<u8>> =
            list.arg("GETKEYSINSLOT").arg(slot).arg(9).query(&mut source).unwrap_or_default();
        if keys.is_empty() {
            continue;
        }
        let set = |client: &mut Connection, how: &str, id: &str| {
            redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(how).arg(id).exec(client).unwrap();
        };
        set(&mut target, "IMPORTING", &ids.0);
        set(&mut source, "MIGRATING", &ids.1);
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg(&to.place.host).arg(to.port).arg("").arg(0).arg(5000).arg("KEYS");
        migrate.arg(&keys).exec(&mut source).unwrap();
        within();
        set(&mut target, "NODE", &ids.1);
        set(&mut source, "NODE", &ids.1);
        within();
        moved += 1;
        if moved == most {
            break;
        }
    }
    moved
}

fn bus_port(server: &Server) -> u16 {
    let mut client = server.client();
    let (_, port): (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("cluster-port").query(&mut client).unwrap();
    port.parse().unwrap()
}
