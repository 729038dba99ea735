//! Servers as processes on loopback: started, asked whether they are ready, measured, stopped.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::run::{self, Result};

/// How long a member may take to answer; a large store has to be read first.
const PATIENCE: Duration = Duration::from_secs(180);

/// A cluster of members of one binary.
pub struct Cluster {
    members: Vec<Member>,
}

struct Member {
    program: PathBuf,
    arguments: Vec<String>,
    client: String,
    /// Where it answers `/health` in the clear; its client address, unless that speaks TLS.
    health: String,
    data: PathBuf,
    log: PathBuf,
    /// Where the log stood when the process was started.
    said_before: u64,
    process: Option<Child>,
}

impl Cluster {
    /// Starts `count` members with fresh data below `dir` and waits until each answers. `program` has to be called `etcd`
    /// for Dolmen to know what is asked of it.
    ///
    /// # Errors
    /// They do not get ready; names the log.
    pub fn start(program: &Path, count: usize, dir: &Path, extra: &[&str]) -> Result<Self> {
        Self::start_at(program, &free_ports(3 * count)?, dir, extra, None)
    }

    /// As [`Cluster::start`], with client ports that want certificates of etcd's test fixtures in `tls`: `server.crt` serves
    /// and is taken from clients, `ca.crt` vouches for it, and the host is `localhost`.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start_tls(program: &Path, count: usize, dir: &Path, tls: &Path) -> Result<Self> {
        Self::start_at(program, &free_ports(3 * count)?, dir, &[], Some(tls))
    }

    /// As [`Cluster::start`], on known ports, three a member: for clients, for peers, and for metrics where clients want
    /// TLS. A second cluster there has the same ids. `tls`: as [`Cluster::start_tls`] has it.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start_at(program: &Path, ports: &[u16], dir: &Path, extra: &[&str], tls: Option<&Path>) -> Result<Self> {
        let mut cluster = Self::prepare(program, ports, dir, extra, tls)?;
        cluster.restart()?;
        Ok(cluster)
    }

    /// The same, and nothing is started yet.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn prepare(program: &Path, ports: &[u16], dir: &Path, extra: &[&str], tls: Option<&Path>) -> Result<Self> {
        let count = ports.len() / 3;
        let mut extra: Vec<String> = extra.iter().map(ToString::to_string).collect();
        if let Some(tls) = tls {
            let file = |name: &str| tls.join(name).display().to_string();
            extra.push(format!("--cert-file={}", file("server.crt")));
            extra.push(format!("--key-file={}", file("server.key.insecure")));
            extra.push(format!("--trusted-ca-file={}", file("ca.crt")));
            extra.push("--client-cert-auth".to_owned());
        }
        let tls = tls.is_some();
        let peer = |i: usize| format!("http://127.0.0.1:{}", ports[3 * i + 1]);
        let initial: Vec<String> = (0..count).map(|i| format!("m{i}={}", peer(i))).collect();
        let (scheme, host) = if tls { ("https", "localhost") } else { ("http", "127.0.0.1") };
        run::make_dir(dir)?;
        let mut members = Vec::new();
        for i in 0..count {
            let client = format!("{host}:{}", ports[3 * i]);
            let metrics = format!("127.0.0.1:{}", ports[3 * i + 2]);
            let data = dir.join(format!("m{i}"));
            let mut arguments = vec![
                format!("--name=m{i}"),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={scheme}://127.0.0.1:{}", ports[3 * i]),
                format!("--advertise-client-urls={scheme}://{client}"),
                format!("--listen-peer-urls={}", peer(i)),
                format!("--initial-advertise-peer-urls={}", peer(i)),
                format!("--initial-cluster={}", initial.join(",")),
                "--log-level=error".to_owned(),
            ];
            if tls {
                arguments.push(format!("--listen-metrics-urls=http://{metrics}"));
            }
            arguments.extend(extra.iter().cloned());
            let log = dir.join(format!("m{i}.log"));
            let health = if tls { metrics } else { client.clone() };
            members.push(Member {
                program: program.to_owned(),
                arguments,
                client,
                health,
                data,
                log,
                said_before: 0,
                process: None,
            });
        }
        Ok(Self { members })
    }

    /// Starts a member on a data folder that is there already, such as a restored snapshot. `name` and `token` are
    /// those the folder was made with.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start_on(program: &Path, data: &Path, restored: &Restored) -> Result<Self> {
        let ports = free_ports(1)?;
        let client = format!("127.0.0.1:{}", ports[0]);
        let arguments = vec![
            format!("--name={}", restored.name),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls=http://{client}"),
            format!("--advertise-client-urls=http://{client}"),
            format!("--listen-peer-urls={}", restored.peer),
            format!("--initial-advertise-peer-urls={}", restored.peer),
            format!("--initial-cluster={}={}", restored.name, restored.peer),
        ];
        let log = data.with_extension("log");
        let (program, data, health) = (program.to_owned(), data.to_owned(), client.clone());
        let member = Member { program, arguments, client, health, data, log, said_before: 0, process: None };
        let mut cluster = Self { members: vec![member] };
        cluster.restart()?;
        Ok(cluster)
    }

    /// Starts members that do not run, waits until all answer, and returns how long that took.
    ///
    /// # Errors
    /// They do not get ready.
    pub fn restart(&mut self) -> Result<Duration> {
        let begin = Instant::now();
        for member in self.members.iter_mut().filter(|member| member.process.is_none()) {
            member.spawn()?;
        }
        for member in &mut self.members {
            member.wait_ready(begin)?;
        }
        Ok(begin.elapsed())
    }

    /// What members are started from next time: another program takes over their data.
    pub fn set_program(&mut self, program: &Path) {
        (0..self.members.len()).for_each(|member| self.set_program_of(member, program));
    }

    /// The same for one member.
    pub fn set_program_of(&mut self, member: usize, program: &Path) {
        self.members[member].program = program.to_owned();
    }

    /// Starts one member, and waits for nothing.
    ///
    /// # Errors
    /// There is no such program.
    pub fn spawn_one(&mut self, member: usize) -> Result {
        self.members[member].spawn()
    }

    /// Waits until one member serves.
    ///
    /// # Errors
    /// It ends or does not get ready.
    pub fn wait_one(&mut self, member: usize) -> Result {
        self.members[member].wait_ready(Instant::now())
    }

    /// Waits for the end of a member that cannot serve: its exit code, and what it said since it was started.
    ///
    /// # Errors
    /// It runs on for as long as a member may take.
    pub fn ended(&mut self, member: usize) -> Result<(i32, String)> {
        let member = &mut self.members[member];
        let Some(process) = &mut member.process else { return Err("it was not started".to_owned()) };
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = process.try_wait().map_err(|error| error.to_string())? {
                member.process = None;
                return Ok((status.code().unwrap_or(-1), member.said()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!("it neither serves nor ends: {}", member.last_words()))
    }

    /// Whether a member's process runs.
    pub fn runs(&mut self, member: usize) -> bool {
        self.members[member].process.as_mut().is_some_and(|process| matches!(process.try_wait(), Ok(None)))
    }

    /// What a member said since it was last started.
    pub fn said(&self, member: usize) -> String {
        self.members[member].said()
    }

    /// Gives a member a flag, or another value to one it has, for the next start.
    pub fn set_flag(&mut self, member: usize, name: &str, value: &str) {
        let arguments = &mut self.members[member].arguments;
        arguments.retain(|argument| argument.split_once('=').is_none_or(|(known, _)| known != name));
        arguments.push(format!("{name}={value}"));
    }

    /// kill -9 to one member.
    pub fn kill_one(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].process.take() {
            // It may have ended by itself; then both say so.
            let _gone = process.kill();
            let _gone = process.wait();
        }
    }

    /// SIGTERM to one member, and SIGKILL if it does not obey.
    pub fn stop_one(&mut self, member: usize) {
        let Some(mut process) = self.members[member].process.take() else { return };
        run::signal(process.id(), Signal::TERM);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) && matches!(process.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _gone = process.kill();
        let _gone = process.wait();
    }

    /// Client addresses, comma separated, as the tools want them.
    pub fn endpoints(&self) -> String {
        self.members.iter().map(|member| member.client.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Client address of one member.
    pub fn client(&self, member: usize) -> &str {
        &self.members[member].client
    }

    pub fn data(&self, member: usize) -> &Path {
        &self.members[member].data
    }

    /// CPU the members have used, in microseconds, all threads, user and system.
    pub fn cpu_us(&self) -> f64 {
        self.ids().map(|id| cpu(&format!("/proc/{id}/stat"), 11)).sum()
    }

    /// Anonymous memory of the largest member, in MiB: what it holds for itself, mapped files left out.
    pub fn anonymous_mib(&self) -> f64 {
        self.ids().map(|id| status_kib(id, "RssAnon:") / 1024.0).fold(0.0, f64::max)
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().filter_map(|member| member.process.as_ref().map(Child::id))
    }

    /// kill -9 to all.
    pub fn kill(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill_one(member));
    }

    /// SIGTERM to all, and SIGKILL to those that do not obey.
    pub fn stop(&mut self) {
        for id in self.ids() {
            run::signal(id, Signal::TERM);
        }
        let begin = Instant::now();
        for member in &mut self.members {
            let Some(process) = &mut member.process else { continue };
            while begin.elapsed() < Duration::from_secs(20) && matches!(process.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a restored data folder was made for.
pub struct Restored {
    pub name: String,
    pub peer: String,
}

impl Restored {
    /// # Errors
    /// No port is free.
    pub fn new() -> Result<Self> {
        Ok(Self { name: "restored".into(), peer: format!("http://127.0.0.1:{}", free_ports(1)?[0]) })
    }
}

impl Member {
    fn spawn(&mut self) -> Result {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.map_err(|error| format!("cannot write {}: {error}", self.log.display()))?;
        self.said_before = log.metadata().map_err(|error| error.to_string())?.len();
        let same = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log).stderr(same);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(name);
        }
        self.process = Some(run::spawn(&mut command)?);
        Ok(())
    }

    fn wait_ready(&mut self, begin: Instant) -> Result {
        while !healthy(&self.health) {
            let ended = self.process.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                return Err(format!("{} ended ({status}): {}", self.program.display(), self.last_words()));
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("{} is not ready: {}", self.program.display(), self.last_words()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn said(&self) -> String {
        let all = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(all.get(self.said_before as usize..).unwrap_or_default()).into_owned()
    }

    /// The end of the log.
    fn last_words(&self) -> String {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let mut lines: Vec<&str> = said.lines().rev().take(3).collect();
        lines.reverse();
        lines.join(" | ")
    }
}

/// Whether a member serves: `/health` answers after a linearizable read.
pub fn healthy(address: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let asked =
        stream.set_read_timeout(Some(Duration::from_secs(5))).and_then(|()| stream.write_all(request.as_bytes()));
    if asked.is_err() {
        return false;
    }
    let mut answer = Vec::new();
    // What came before a reset counts.
    let _reset = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    // A full quota makes a member unhealthy, and keeps it from answering nobody.
    answer.contains("\"health\":\"true\"") || answer.contains("\"reason\":\"ALARM NOSPACE\"")
}

/// Where ports for servers begin, and how many there are: below those that a system gives to whoever asks for any, so that
/// none is taken between being found and being listened on.
const PORTS: (u32, u32) = (10_000, 10_000);

/// Ports nobody listens on now.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut found: Vec<u16> = Vec::new();
    for _ in 0..PORTS.1 {
        if found.len() == count {
            break;
        }
        // Several of us may run at once, each from another place on.
        let from = std::process::id().wrapping_mul(101).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.0 + from % PORTS.1;
        let port = u16::try_from(port).map_err(|error| error.to_string())?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            found.push(port);
        }
    }
    if found.len() == count { Ok(found) } else { Err("no free port".to_owned()) }
}

/// User and system time of a `stat` file of /proc, in microseconds; `at` is the field of the user time, counted from
/// the one behind the program's name.
fn cpu(path: &str, at: usize) -> f64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(at) + ticks(at + 1)) * 1e6 / rustix::param::clock_ticks_per_second() as f64
}

/// CPU of the programs this process has waited for, in microseconds.
pub fn children_cpu_us() -> f64 {
    cpu("/proc/self/stat", 13)
}

/// The most memory a process has had so far, mapped files among it, in MiB; 0 when it is gone.
pub fn peak_mib(id: u32) -> f64 {
    status_kib(id, "VmHWM:") / 1024.0
}

fn status_kib(id: u32, field: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

/// Bytes on disk below a folder, holes left out, in MiB.
pub fn disk_mib(dir: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let mut total = 0.0;
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            total += disk_mib(&path);
        } else if let Ok(metadata) = entry.metadata() {
            total += metadata.blocks() as f64 * 512.0 / f64::from(1 << 20);
        }
    }
    total
}
