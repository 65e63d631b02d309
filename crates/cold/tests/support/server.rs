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
}

/// The program, where there is one; says so where there is none.
pub fn program() -> Option<String> {
    let name = std::env::var("TIERKV_TEST_VALKEY").unwrap_or_else(|_| "valkey-server".to_owned());
    let works = Command::new(&name).arg("--version").stdout(Stdio::null()).status();
    if works.is_ok_and(|status| status.success()) {
        return Some(name);
    }
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    {
        eprintln!("skipped: there is no valkey-server; TIERKV_TEST_VALKEY names it");
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
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--dir", folder.to_str().unwrap(), "--daemonize", "no"]);
        if more.contains(&"--cluster-enabled") {
            command.args(["--cluster-port", &bus]);
        }
        let child = command.args(more).stdout(Stdio::null()).spawn().unwrap();
        Self { child, port, folder }
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

/// Three primaries that share all slots.
pub fn cluster(program: &str) -> Vec<Server> {
    let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
    let servers: Vec<_> = (0..3).map(|_| Server::start(program, &options)).collect();
    for (number, server) in servers.iter().enumerate() {
        let mut client = server.client();
        let (first, last) = (number * 16384 / 3, (number + 1) * 16384 / 3 - 1);
        redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(first).arg(last).exec(&mut client).unwrap();
        let info: String = redis::cmd("CLUSTER").arg("MYID").query(&mut client).unwrap();
        assert!(!info.is_empty());
    }
    let mut first = servers[0].client();
    for server in &servers[1..] {
        let mut meet = redis::cmd("CLUSTER");
        meet.arg("MEET").arg("127.0.0.1").arg(server.port);
        let bus = bus_port(server);
        meet.arg(bus).exec(&mut first).unwrap();
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

fn bus_port(server: &Server) -> u16 {
    let mut client = server.client();
    let (_, port): (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("cluster-port").query(&mut client).unwrap();
    port.parse().unwrap()
}
