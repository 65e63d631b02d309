//! Owns real Valkey servers for tests: one alone, or a cluster of three.

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
    folder: PathBuf,
    arguments: Vec<String>,
    program: String,
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
        let mut server = Self::spawn(program, free_port(), more);
        // A cluster's second port may be taken, then another pair is tried.
        for _ in 0..5 {
            let mut ended = false;
            until("the server to listen", || {
                ended = server.child.try_wait().unwrap().is_some();
                ended || TcpStream::connect(("127.0.0.1", server.port)).is_ok()
            });
            if !ended {
                return server;
            }
            server = Self::spawn(program, free_port(), more);
        }
        panic!("{program} does not start");
    }

    fn spawn(program: &str, port: u16, more: &[&str]) -> Self {
        let folder =
            std::env::temp_dir().join(format!("tierkv-valkey-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        // The bus of a cluster lies 10,000 ports above, which may be past the last one.
        let bus = free_port().to_string();
        let text = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
        let port_of = if more.contains(&"--tls-cert-file") { "--tls-port" } else { "--port" };
        let mut arguments =
            text(&[port_of, &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        if port_of == "--tls-port" {
            arguments.extend(text(&["--port", "0"]));
        }
        arguments.extend(text(&["--dir", folder.to_str().unwrap(), "--daemonize", "no"]));
        if more.contains(&"--cluster-enabled") {
            arguments.extend(text(&["--cluster-port", &bus]));
        }
        arguments.extend(text(more));
        let program = program.to_owned();
        let child = Command::new(&program).args(&arguments).stdout(Stdio::null()).spawn().unwrap();
        Self { child, port, folder, arguments, program }
    }

    /// Starts it again at the same port, without what it had in memory.
    pub fn restart(&mut self) {
        let mut command = Command::new(&self.program);
        self.child = command.args(&self.arguments).stdout(Stdio::null()).spawn().unwrap();
        until("the server to listen again", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    pub fn address(&self) -> String {
        format!("valkey://127.0.0.1:{}", self.port)
    }

    pub fn client(&self) -> Connection {
        Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap().get_connection().unwrap()
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
    let mut servers = cluster(program);
    for primary in 0..3 {
        let server = Server::start(program, &CLUSTERED);
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
    let options = CLUSTERED;
    let servers: Vec<_> = (0..3).map(|_| Server::start(program, &options)).collect();
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
    meet.arg("MEET").arg("127.0.0.1").arg(other.port).arg(bus_port(other));
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
        migrate.arg("127.0.0.1").arg(to.port).arg("").arg(0).arg(5000).arg("KEYS");
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
