//! Owns a real S3 server for tests: versitygw over a folder.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::server::{free_port, until};

pub struct Gateway {
    child: Child,
    pub port: u16,
    folder: PathBuf,
    program: String,
}

impl Gateway {
    /// Starts the server with an empty bucket named `bucket`; `None`, and a line, where there is no program.
    pub fn start() -> Option<Self> {
        let name = std::env::var("TIERKV_TEST_S3").unwrap_or_else(|_| "versitygw".to_owned());
        let works = Command::new(&name).arg("--version").stdout(Stdio::null()).status();
        if !works.is_ok_and(|status| status.success()) {
            #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
            {
                eprintln!("skipped: there is no versitygw; TIERKV_TEST_S3 names it");
            }
            return None;
        }
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("tierkv-s3-{}-{port}", std::process::id()));
        std::fs::create_dir_all(folder.join("bucket")).unwrap();
        let child = spawn(&name, port, &folder);
        Some(Self { child, port, folder, program: name })
    }

    pub fn freeze(&self, is_frozen: bool) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, if is_frozen { Signal::STOP } else { Signal::CONT }).unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again at the same port, with the objects that it had.
    pub fn restart(&mut self) {
        self.child = spawn(&self.program, self.port, &self.folder);
    }

    /// Removes all objects behind its back.
    pub fn remove_all(&self) {
        for entry in std::fs::read_dir(self.folder.join("bucket")).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().is_some_and(|name| name != ".sgwtmp") {
                std::fs::remove_dir_all(path).unwrap();
            }
        }
    }
}

fn spawn(program: &str, port: u16, folder: &Path) -> Child {
    let mut command = Command::new(program);
    command.args(["--port", &format!("127.0.0.1:{port}"), "posix"]).arg(folder);
    command.env("ROOT_ACCESS_KEY", "tierkv").env("ROOT_SECRET_KEY", "not-a-secret");
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the S3 server to listen", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    child
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
