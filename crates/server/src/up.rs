//! `dolmen up`: a ready cluster on this machine, for trying things out.
//!
//! The members are processes of this binary. When one ends, the others go on: that is what a cluster is for, and it can be
//! seen here. With `--restart` it is started again.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use dolmen_cli::{Call, Failure, print};
use tokio::signal::unix::{SignalKind, signal};

const PATIENCE: Duration = Duration::from_secs(60);
/// How often members are looked at.
const INTERVAL: Duration = Duration::from_millis(200);
/// Between a member's end and its next start; doubled each time that it ended before [`SOUND`].
const RESTART: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A member that ran for so long had started well.
const SOUND: Duration = Duration::from_secs(10);

struct Plan {
    members: u16,
    dir: PathBuf,
    base_port: u16,
    restart: bool,
}

/// Starts the members, tells how to reach them, and waits for Ctrl-C.
///
/// # Errors
/// They cannot be started, do not get ready, or have all ended.
pub fn run(call: &Call) -> Result<(), Failure> {
    let plan = Plan::new(call.int("members"), call.text("dir"), call.int("base-port"), call.boolean("restart"))
        .map_err(Failure::bad_args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(up(&plan))
}

impl Plan {
    fn new(members: i64, dir: &str, base_port: i64, restart: bool) -> Result<Self, String> {
        let members = match members {
            1 => 1,
            3 => 3,
            other => return Err(format!("--members is 1 or 3, not {other}")),
        };
        let base_port = u16::try_from(base_port)
            .ok()
            .filter(|port| *port > 0 && u32::from(*port) + 2 * u32::from(members) <= 65_536)
            .ok_or_else(|| format!("--base-port {base_port} leaves no room for two ports a member"))?;
        Ok(Self { members, dir: PathBuf::from(dir), base_port, restart })
    }

    /// Members have two ports each: 2379 and 2380, 2381 and 2382, ...
    fn client_port(&self, member: u16) -> u16 {
        self.base_port + 2 * member
    }

    fn client_url(&self, member: u16) -> String {
        format!("http://127.0.0.1:{}", self.client_port(member))
    }

    fn peer_url(&self, member: u16) -> String {
        format!("http://127.0.0.1:{}", self.client_port(member) + 1)
    }

    fn endpoints(&self) -> String {
        (0..self.members).map(|i| self.client_url(i)).collect::<Vec<_>>().join(",")
    }

    fn log(&self, member: u16) -> PathBuf {
        self.dir.join(format!("m{}.log", member + 1))
    }

    /// Nobody else may listen where the members are to: whoever does would be taken for one of them.
    fn check_ports(&self) -> Result<(), Failure> {
        for port in self.base_port..=self.client_port(self.members - 1) + 1 {
            if let Err(error) = TcpListener::bind(("127.0.0.1", port)) {
                return Err(Failure::error(format!("port {port} of 127.0.0.1 cannot be had: {error}"))
                    .hint(in_use(port, self.base_port)));
            }
        }
        Ok(())
    }

    fn start(&self, member: u16) -> Result<Child, String> {
        let dir = self.dir.join(format!("m{}", member + 1));
        std::fs::create_dir_all(&self.dir).map_err(|error| format!("cannot make {}: {error}", self.dir.display()))?;
        let path = self.log(member);
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let log = log.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        let cluster: Vec<String> = (0..self.members).map(|i| format!("m{}={}", i + 1, self.peer_url(i))).collect();
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg(format!("--name=m{}", member + 1))
            .arg(format!("--data-dir={}", dir.display()))
            .arg(format!("--listen-client-urls={}", self.client_url(member)))
            .arg(format!("--advertise-client-urls={}", self.client_url(member)))
            .arg(format!("--listen-peer-urls={}", self.peer_url(member)))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url(member)))
            .arg(format!("--initial-cluster={}", cluster.join(",")))
            .arg("--initial-cluster-token=dolmen-up")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(variable);
        }
        command.spawn().map_err(|error| format!("cannot start a member: {error}"))
    }
}

fn in_use(port: u16, base_port: u16) -> String {
    let other = if base_port < 60_000 { base_port + 1000 } else { 12_379 };
    let what = if answers(port) { "a server answers there already" } else { "another program listens there" };
    format!("{what}: stop it, or choose other ports with --base-port {other}")
}

async fn up(plan: &Plan) -> Result<(), Failure> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    plan.check_ports()?;
    let mut members = Members { plan, all: Vec::new() };
    for member in 0..plan.members {
        members.all.push(Process::new(plan.start(member).map_err(Failure::error)?));
    }
    tokio::select! {
        ready = members.ready() => ready?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    }
    introduce(plan);
    loop {
        tokio::select! {
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            () = tokio::time::sleep(INTERVAL) => members.look_after()?,
        }
    }
    say(&format!("Stopping. The data stays in {}.", plan.dir.display()));
    Ok(())
}

fn introduce(plan: &Plan) {
    let count = if plan.members == 1 { "One member is".to_owned() } else { format!("{} members are", plan.members) };
    let program = std::env::args_os().next().unwrap_or_default();
    let (program, endpoints, dir) = (program.display(), plan.endpoints(), plan.dir.display());
    let failover = if plan.members == 3 { "\nKill one of them to see a failover: the other two go on.\n" } else { "" };
    say(&format!(
        "{count} ready. Data and logs are in {dir}.\n\n  endpoints  {endpoints}\n  try        {program} ctl \
         --endpoints={endpoints} put greeting hello\n{failover}\nCtrl-C stops everything; the data stays."
    ));
}

/// A line on stdout, at once: it may be all that a script waits for.
fn say(text: &str) {
    print(format!("{text}\n"));
    let _ = std::io::stdout().flush();
}

/// Whether somebody there says that it is healthy.
fn answers(port: u16) -> bool {
    use std::io::Read;
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let timeout = Some(Duration::from_secs(2));
    let request = format!("GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
    if stream.set_read_timeout(timeout).is_err() || stream.write_all(request.as_bytes()).is_err() {
        return false;
    }
    let mut answer = Vec::new();
    // Whatever came before a reset counts.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).contains("\"health\":\"true\"")
}

/// A member as a process.
struct Process {
    child: Child,
    started: Instant,
    /// How it ended, and when it is to be started again.
    ended: Option<Instant>,
    pause: Duration,
}

impl Process {
    fn new(child: Child) -> Self {
        Self { child, started: Instant::now(), ended: None, pause: RESTART.0 }
    }

    /// How it ended, if it did so since the last time it was asked.
    fn end(&mut self) -> std::io::Result<Option<ExitStatus>> {
        if self.ended.is_some() {
            return Ok(None);
        }
        let status = self.child.try_wait()?;
        if status.is_some() {
            self.ended = Some(Instant::now());
            self.pause = if self.started.elapsed() > SOUND { RESTART.0 } else { (2 * self.pause).min(RESTART.1) };
        }
        Ok(status)
    }
}

/// The child processes; gone when this is dropped.
struct Members<'a> {
    plan: &'a Plan,
    all: Vec<Process>,
}

impl Members<'_> {
    /// Returns when all serve.
    async fn ready(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        for member in 0..self.plan.members {
            loop {
                let answered = answers(self.plan.client_port(member));
                // Looked at after the answer: it was given by a process of ours, or by whoever took its port.
                self.all_run()?;
                if answered {
                    break;
                }
                if begin.elapsed() > PATIENCE {
                    return Err(Failure::error(format!(
                        "{} did not become ready within {} s",
                        self.plan.client_url(member),
                        PATIENCE.as_secs()
                    ))
                    .hint(format!("its log is {}", self.plan.log(member).display())));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    fn all_run(&mut self) -> Result<(), Failure> {
        for member in 0..self.plan.members {
            if let Some(status) = self.all[usize::from(member)].end()? {
                return Err(Failure::error(self.obituary(member, status)));
            }
        }
        Ok(())
    }

    fn obituary(&self, member: u16, status: ExitStatus) -> String {
        let log = self.plan.log(member);
        format!("m{} ended ({status}); {} ends with: {}", member + 1, log.display(), last_line(&log))
    }

    /// Tells of members that have ended, and starts them again where that is wanted.
    ///
    /// # Errors
    /// None is left.
    fn look_after(&mut self) -> Result<(), Failure> {
        for member in 0..self.plan.members {
            let at = usize::from(member);
            if let Some(status) = self.all[at].end()? {
                let left = self.all.iter().filter(|process| process.ended.is_none()).count();
                let obituary = self.obituary(member, status);
                if self.plan.restart {
                    say(&format!("{obituary}\nIt is started again in {} s.", self.all[at].pause.as_secs()));
                } else if left == 0 {
                    return Err(Failure::error(obituary).hint("no member is left; --restart would start it again"));
                } else {
                    let verdict = if 2 * left > usize::from(self.plan.members) {
                        "a majority: reads and writes go on"
                    } else {
                        "no majority: only serializable reads go on"
                    };
                    say(&format!(
                        "{obituary}\n{left} of {} go on, {verdict}. --restart would start it again.",
                        self.all.len()
                    ));
                }
            }
            if self.plan.restart && self.all[at].ended.is_some_and(|ended| ended.elapsed() >= self.all[at].pause) {
                let pause = self.all[at].pause;
                let child = self.plan.start(member).map_err(Failure::error)?;
                self.all[at] = Process { pause, ..Process::new(child) };
                say(&format!("m{} is started again.", member + 1));
            }
        }
        Ok(())
    }
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().next_back().unwrap_or_default().to_owned()
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        for process in self.all.iter().filter(|process| process.ended.is_none()) {
            // It may have had the same Ctrl-C and be gone already.
            if let Some(pid) = rustix::process::Pid::from_raw(process.child.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
        for process in &mut self.all {
            let _ = process.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_checked() {
        let three = Plan::new(3, "d", 3000, false).expect("fine");
        assert_eq!(three.endpoints(), "http://127.0.0.1:3000,http://127.0.0.1:3002,http://127.0.0.1:3004");
        assert_eq!(three.peer_url(2), "http://127.0.0.1:3005");
        assert!(Plan::new(1, "d", 65_534, false).is_ok());
        for (members, port) in [(2, 2379), (0, 2379), (1, 65_535), (3, 65_534), (1, 0), (1, -1), (1, 70_000)] {
            assert!(Plan::new(members, "d", port, false).is_err(), "{members} {port}");
        }
    }

    #[test]
    fn a_port_in_use_is_found_before_anything_starts() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = taken.local_addr().expect("bound").port();
        let plan = Plan::new(1, "d", i64::from(port.min(65_534)), false).expect("fine");
        let refused = plan.check_ports().expect_err("in use");
        assert!(refused.text().is_some_and(|text| text.contains(&format!("port {port} "))), "{refused:?}");
    }

    #[test]
    fn a_member_that_ends_at_once_is_given_longer_each_time() {
        let ended = |mut process: Process| {
            let begin = Instant::now();
            while process.end().expect("a child").is_none() {
                assert!(begin.elapsed() < PATIENCE, "`true` ends");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(process.end().expect("a child").is_none(), "told once");
            process.pause
        };
        let start = || Process::new(Command::new("true").spawn().expect("there is such a program"));
        assert_eq!(ended(start()), 2 * RESTART.0);
        assert_eq!(ended(Process { pause: RESTART.1, ..start() }), RESTART.1);
    }
}
