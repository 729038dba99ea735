//! A server in a process of its own, with each kind of port twice: plain and over TLS.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::wire::Wire;

/// How long anything may take on a machine that is busy with something else.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A user that owns nothing.
const NOBODY: u32 = 65_534;

/// One way in.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub address: SocketAddr,
    pub tls: bool,
}

impl Port {
    pub fn connect(self) -> Wire {
        Wire::connect(self).expect("a server that runs accepts connections")
    }
}

pub struct Server {
    child: Child,
    log: PathBuf,
    pub client: [Port; 2],
    pub peer: [Port; 2],
    pub metrics: [Port; 2],
    /// What the directory lies in; kept until the server has ended.
    _scratch: Option<tempfile::TempDir>,
}

/// How a server is started.
pub struct Start<'a> {
    pub dir: &'a Path,
    /// As a user who owns nothing; only where the tests run as root, others are nobody already.
    pub as_nobody: bool,
    pub program: &'a str,
    /// The ports of the time before; a member is known by those of its peers.
    pub ports: Option<[Port; 6]>,
}

impl<'a> Start<'a> {
    pub fn on(dir: &'a Path) -> Self {
        Self { dir, as_nobody: false, program: env!("CARGO_BIN_EXE_dolmen"), ports: None }
    }

    /// Starts the process, on ports that are free at the moment unless they are given.
    pub fn spawn(self) -> Server {
        let [a, b, c, d, e, f] = self.ports.unwrap_or_else(|| {
            let sockets = [(); 6].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
            let mut tls = true;
            sockets.map(|socket| {
                tls = !tls;
                Port { address: socket.local_addr().expect("bound"), tls }
            })
        });
        let [client, peer, metrics] = [[a, b], [c, d], [e, f]];
        let url = |port: &Port| format!("http{}://{}", if port.tls { "s" } else { "" }, port.address);
        let urls = |ports: &[Port; 2]| format!("{},{}", url(&ports[0]), url(&ports[1]));
        let log = self.dir.with_extension("log");
        let output = File::create(&log).expect("a file for the log");
        let mut command = Command::new(self.program);
        command
            .arg("--data-dir")
            .arg(self.dir)
            .args(["--name", "n", "--auto-tls", "--peer-auto-tls"])
            .args(["--listen-client-urls", &urls(&client), "--advertise-client-urls", &url(&client[0])])
            .args(["--listen-peer-urls", &urls(&peer), "--initial-advertise-peer-urls", &url(&peer[0])])
            .args(["--initial-cluster", &format!("n={}", url(&peer[0]))])
            .args(["--listen-metrics-urls", &urls(&metrics)])
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output);
        if self.as_nobody && is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let child = command.spawn().expect("the binary starts");
        Server { child, log, client, peer, metrics, _scratch: None }
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Gives everything below a directory to the user who owns nothing else.
pub fn give_to_nobody(dir: &Path) {
    if !is_root() {
        return;
    }
    std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).expect("root may");
    if dir.is_dir() {
        for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
            give_to_nobody(&entry.path());
        }
    }
}

impl Server {
    /// A new member that serves.
    pub fn start() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut server = Start::on(&scratch.path().join("data")).spawn();
        server._scratch = Some(scratch);
        server.wait_until_ready();
        server
    }

    pub fn ports(&self) -> [Port; 6] {
        let [[a, b], [c, d], [e, f]] = [self.client, self.peer, self.metrics];
        [a, b, c, d, e, f]
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until the client port is open.
    pub fn wait_until_ready(&mut self) {
        let begin = Instant::now();
        while !self.log().contains("ready to serve client requests") {
            let ended = self.child.try_wait().expect("our child");
            assert!(ended.is_none(), "it ended ({ended:?}): {}", self.log());
            assert!(begin.elapsed() < PATIENCE, "it does not serve: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        for port in self.client {
            while Wire::connect(port).is_err() {
                assert!(begin.elapsed() < PATIENCE, "nobody listens on {}", port.address);
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Bytes of memory the process has.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Bytes that the process has asked for, touched or not: a kernel that gives huge pages makes them resident.
    pub fn reserved(&self) -> u64 {
        self.status("VmData:")
    }

    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a process has memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Asserts that it runs, has not panicked, and serves on the client port and the others.
    pub fn is_well(&mut self) {
        assert!(self.child.try_wait().expect("our child").is_none(), "it ended: {}", self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
        for port in self.client {
            port.connect().range("a");
        }
        for port in self.metrics {
            let answer = port.connect().http1("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            assert!(answer.contains("\"health\":\"true\""), "{answer}");
        }
        for port in self.peer {
            let answer = port.connect().http1("GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            assert!(answer.contains("etcdserver"), "{answer}");
        }
    }

    /// Waits for the end of one that cannot serve, and returns the exit code and what the log says.
    pub fn ends(mut self) -> (i32, String) {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                let log = self.log();
                assert!(!log.contains("panicked"), "{log}");
                return (status.code().unwrap_or(-1), log);
            }
            assert!(!self.log().contains("ready to serve client requests"), "it serves: {}", self.log());
            assert!(begin.elapsed() < PATIENCE, "it neither serves nor ends: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it at once, as kill -9 does.
    pub fn kill(&mut self) -> ExitStatus {
        let _gone = self.child.kill();
        self.child.wait().expect("our child")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
