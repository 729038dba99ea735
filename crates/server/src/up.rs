//! `dolmen up`: a ready cluster on this machine, for trying things out.

use std::io::{IsTerminal, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

const PATIENCE: Duration = Duration::from_secs(60);

struct Plan {
    members: u16,
    dir: PathBuf,
    base_port: u16,
}

/// Starts the members, tells how to reach them, and waits for Ctrl-C.
pub fn run(arguments: &[String]) -> ExitCode {
    let plan = match parse(arguments) {
        Ok(plan) => plan,
        Err(text) => {
            eprintln!("{text}\nusage: dolmen up [--members 1|3] [--dir DIR] [--base-port 2379]");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(up(&plan)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("dolmen up: {text}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Result<Plan, String> {
    let mut plan = Plan { members: 1, dir: PathBuf::from("dolmen-data"), base_port: 2379 };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let (name, inline) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        let value = inline.or_else(|| arguments.next().cloned());
        let value = value.ok_or_else(|| format!("{name} needs a value"))?;
        match name {
            "--members" => {
                plan.members = value.parse().ok().filter(|n| matches!(n, 1 | 3)).ok_or("--members is 1 or 3")?;
            }
            "--dir" => plan.dir = PathBuf::from(value),
            "--base-port" => {
                plan.base_port = value.parse().map_err(|_| format!("--base-port {value:?} is no port"))?;
            }
            _ => return Err(format!("unknown flag {name}")),
        }
    }
    if u32::from(plan.base_port) + 2 * u32::from(plan.members) > 65_535 {
        return Err(format!("--base-port {} leaves no room for {} members", plan.base_port, plan.members));
    }
    Ok(plan)
}

impl Plan {
    /// Members have two ports each: 2379 and 2380, 2381 and 2382, ...
    fn client_url(&self, member: u16) -> String {
        format!("http://127.0.0.1:{}", self.base_port + 2 * member)
    }

    fn peer_url(&self, member: u16) -> String {
        format!("http://127.0.0.1:{}", self.base_port + 2 * member + 1)
    }

    fn endpoints(&self) -> String {
        (0..self.members).map(|i| self.client_url(i)).collect::<Vec<_>>().join(",")
    }

    fn start(&self, member: u16) -> Result<Child, String> {
        let dir = self.dir.join(format!("m{}", member + 1));
        std::fs::create_dir_all(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("log"));
        let log = log.map_err(|error| format!("cannot write {}: {error}", dir.join("log").display()))?;
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
        for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("ETCD_")) {
            command.env_remove(variable);
        }
        command.spawn().map_err(|error| format!("cannot start a member: {error}"))
    }
}

async fn up(plan: &Plan) -> Result<(), String> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut members = Members(Vec::new());
    for member in 0..plan.members {
        members.0.push(plan.start(member)?);
    }
    tokio::select! {
        ready = ready(plan, &mut members) => ready?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    }
    let count = if plan.members == 1 { "One member is".to_owned() } else { format!("{} members are", plan.members) };
    println!("{count} ready. Data and logs are in {}.\n", plan.dir.display());
    println!("  endpoints  {}", plan.endpoints());
    let program = std::env::args_os().next().unwrap_or_default();
    println!("  try        {} ctl --endpoints={} put greeting hello", program.display(), plan.endpoints());
    println!("\nCtrl-C stops.");
    // The lines may be all that a script waits for.
    let _ = std::io::stdout().flush();
    loop {
        tokio::select! {
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            () = tokio::time::sleep(Duration::from_millis(200)) => members.check(&plan.dir)?,
        }
    }
    if std::io::stderr().is_terminal() {
        eprintln!("stopping");
    }
    Ok(())
}

async fn ready(plan: &Plan, members: &mut Members) -> Result<(), String> {
    let begin = Instant::now();
    for member in 0..plan.members {
        while !answers(&plan.client_url(member)) {
            members.check(&plan.dir)?;
            if begin.elapsed() > PATIENCE {
                return Err(format!(
                    "{} did not become ready within {} s; see the logs in {}",
                    plan.client_url(member),
                    PATIENCE.as_secs(),
                    plan.dir.display()
                ));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// Whether the member says that it is healthy.
fn answers(url: &str) -> bool {
    use std::io::Read;
    let address = url.trim_start_matches("http://");
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let timeout = Some(Duration::from_secs(2));
    let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    if stream.set_read_timeout(timeout).is_err() || stream.write_all(request.as_bytes()).is_err() {
        return false;
    }
    let mut answer = Vec::new();
    // Whatever came before a reset counts.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).contains("\"health\":\"true\"")
}

/// The child processes; gone when this is dropped.
struct Members(Vec<Child>);

impl Members {
    fn check(&mut self, dir: &Path) -> Result<(), String> {
        for (at, member) in self.0.iter_mut().enumerate() {
            if let Some(status) = member.try_wait().map_err(|error| error.to_string())? {
                let log = dir.join(format!("m{}", at + 1)).join("log");
                let last = std::fs::read_to_string(&log).unwrap_or_default();
                let last = last.lines().next_back().unwrap_or("").to_owned();
                return Err(format!("member m{} ended ({status}): {last}\nits log is {}", at + 1, log.display()));
            }
        }
        Ok(())
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for member in &self.0 {
            // It may have had the same Ctrl-C and be gone already.
            if let Some(pid) = rustix::process::Pid::from_raw(member.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
        for member in &mut self.0 {
            let _ = member.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_checked() {
        let plan = |arguments: &[&str]| parse(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>());
        let three = plan(&["--members", "3", "--base-port=3000"]).expect("fine");
        assert_eq!(three.endpoints(), "http://127.0.0.1:3000,http://127.0.0.1:3002,http://127.0.0.1:3004");
        assert_eq!(three.peer_url(2), "http://127.0.0.1:3005");
        for wrong in [&["--members", "2"][..], &["--members"], &["--base-port=65534"], &["--what=1"]] {
            assert!(plan(wrong).is_err(), "{wrong:?}");
        }
    }
}
