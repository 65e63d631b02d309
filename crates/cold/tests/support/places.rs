//! Owns where servers of a test run: on the loopback, or each on a machine of its own, which is a network namespace behind a cable.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use super::server::{Server, is_whole, until};

/// Set within the namespaces.
const INSIDE: &str = "TIERKV_TEST_INSIDE";
const TRY: &str = "ip link add br0 type bridge && ip link add cable type veth peer name eth0";
const ISOLATED: [&str; 3] = ["-rnpf", "--mount-proc", "--kill-child"];
/// From the range reserved for benchmarks (RFC 2544).
const NETWORK: &str = "198.18.95";
pub const PORT: u16 = 6379;

/// Runs a test of this binary again, alone and in namespaces of its own, and returns `true` there. Elsewhere it returns `false` when
/// that run has succeeded, or with a line where this machine makes no namespaces.
pub fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let may = Command::new("unshare").args(ISOLATED).args(["sh", "-c", TRY]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
        {
            eprintln!("skipped: this machine does not let us make network namespaces");
        }
        return false;
    }
    let mut again = Command::new("unshare");
    again.args(ISOLATED).arg(std::env::current_exe().unwrap()).env(INSIDE, "yes");
    let status = again.args(["--exact", test, "--nocapture"]).status().unwrap();
    assert!(status.success(), "{test} in namespaces: {status:?} {:?}", status.signal());
    false
}

fn run(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
}

/// A machine of its own.
pub struct Machine {
    holder: Child,
    cable: String,
    pub host: String,
}

impl Machine {
    /// Makes machines on one switch, with this process beside them. Only within [`is_inside`].
    pub fn all(count: usize) -> Vec<Self> {
        run(&["ip", "link", "set", "lo", "up"]);
        run(&["ip", "link", "add", "br0", "type", "bridge"]);
        run(&["ip", "addr", "add", &format!("{NETWORK}.254/24"), "dev", "br0"]);
        run(&["ip", "link", "set", "br0", "up"]);
        (1..=count).map(Self::new).collect()
    }

    fn new(number: usize) -> Self {
        let holder = Command::new("unshare").args(["-n", "sleep", "infinity"]).spawn().unwrap();
        let machine =
            Self { holder, cable: format!("cable{number}"), host: format!("{NETWORK}.{number}") };
        let space = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        let pid = machine.pid();
        until("a namespace of its own", || space(&pid) != space("self"));
        let cable = machine.cable.as_str();
        run(&["ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", &pid]);
        run(&["ip", "link", "set", cable, "master", "br0", "up"]);
        let enter: &[&str] = &["nsenter", "-t", &pid, "-n"];
        let inside = |words: &[&str]| run(&[enter, words].concat());
        inside(&["ip", "link", "set", "lo", "up"]);
        inside(&["ip", "addr", "add", &format!("{}/24", machine.host), "dev", "eth0"]);
        inside(&["ip", "link", "set", "eth0", "up"]);
        machine
    }

    fn pid(&self) -> String {
        self.holder.id().to_string()
    }

    /// Words before a command that is to run there.
    pub fn under(&self) -> Vec<String> {
        ["nsenter", "-t", &self.pid(), "-n"].map(str::to_owned).to_vec()
    }

    /// Pulls the cable: packets vanish, in both directions, and nobody is told.
    pub fn pull(&self) {
        run(&["ip", "link", "set", &self.cable, "down"]);
    }

    pub fn plug(&self) {
        run(&["ip", "link", "set", &self.cable, "up"]);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It ends with the test in any case.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// `master` or `slave`.
pub fn role(server: &Server) -> String {
    let info: String = redis::cmd("INFO").arg("replication").query(&mut server.client()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("role:").map(str::to_owned));
    line.unwrap_or_default()
}

/// Index of a server that is a primary with keys.
pub fn primary(servers: &[Server]) -> usize {
    let has_keys = |server: &Server| {
        let keys: u64 = redis::cmd("DBSIZE").query(&mut server.client()).unwrap();
        keys > 1
    };
    let is = |server: &&Server| role(server) == "master" && has_keys(server);
    servers.iter().position(|server| is(&server)).unwrap()
}

/// Waits until all servers see three primaries that own all slots.
pub fn all_agree(servers: &[Server]) {
    for server in servers {
        until("the cluster to be whole", || is_whole(server));
    }
    until("three primaries", || {
        servers.iter().filter(|server| role(server) == "master").count() == 3
    });
}
