//! Plays a scenario with the tools of one side.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::line::{Line, Scenario, Stop, Tool};
use crate::member::{self, Cluster};
use crate::run::{self, Result, Scratch};

/// No line may take longer.
const LIMIT: Duration = Duration::from_secs(30);

/// A command that says nothing for so long is not going to say more.
const IDLE: Duration = Duration::from_secs(3);

/// The programs of a side.
#[derive(Clone)]
pub struct Tools {
    pub side: &'static str,
    pub etcd: PathBuf,
    pub etcdctl: PathBuf,
    pub etcdutl: PathBuf,
    pub defrag: Option<PathBuf>,
    /// etcd's certificates for tests.
    pub certificates: PathBuf,
    /// Go's, for the lines that set the stage; `None` when these are Go's.
    pub judges: Option<Box<Tools>>,
}

/// What came of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// `0`, or `signal 2`.
    pub code: String,
    pub stdout: String,
    /// Lines that begin with `Error:`, or all.
    pub stderr: String,
    /// The tool is not there.
    pub absent: bool,
    pub took: Took,
}

/// How long a line took; no two are told apart by it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took(pub Duration);

impl PartialEq for Took {
    fn eq(&self, _: &Took) -> bool {
        true
    }
}

impl Eq for Took {}

impl Outcome {
    pub fn shown(&self) -> String {
        format!("  exit {} after {:.2} s\n{}{}", self.code, self.took.0.as_secs_f64(), self.stdout, self.stderr)
    }
}

/// The outcome of each line, in order.
///
/// # Errors
/// The servers do not start, a line that sets the stage fails, or one takes too long.
pub fn play(scenario: &Scenario, tools: &Tools) -> Result<Vec<Outcome>> {
    let scratch = Scratch::new(&format!("tools-diff-{}", scenario.name.replace(' ', "-")))?;
    let stage = Stage::new(scenario, tools, &scratch)?;
    stage.play()
}

struct Stage<'a> {
    scenario: &'a Scenario,
    tools: &'a Tools,
    bin: PathBuf,
    judges_bin: PathBuf,
    work: PathBuf,
    /// Names in braces, and what they stand for.
    names: BTreeMap<String, String>,
    running: BTreeMap<&'static str, (Process, Line)>,
    /// The members, held while the lines are played.
    _cluster: Option<Cluster>,
}

/// Ports that a scenario has on both sides, so that ids are the same.
fn ports(scenario: &Scenario) -> Result<Vec<u16>> {
    use std::sync::Mutex;
    static TAKEN: Mutex<BTreeMap<&'static str, Vec<u16>>> = Mutex::new(BTreeMap::new());
    let mut taken = TAKEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(ports) = taken.get(scenario.name) {
        return Ok(ports.clone());
    }
    let mut ports = member::free_ports(3 * scenario.members + 6)?;
    while ports.iter().any(|port| taken.values().flatten().any(|other| other == port)) {
        ports = member::free_ports(3 * scenario.members + 6)?;
    }
    taken.insert(scenario.name, ports.clone());
    Ok(ports)
}

impl<'a> Stage<'a> {
    fn new(scenario: &'a Scenario, tools: &'a Tools, scratch: &Scratch) -> Result<Stage<'a>> {
        let [bin, judges_bin, work] = ["bin", "judges", "work"].map(|name| scratch.dir.join(name));
        for dir in [&bin, &judges_bin, &work] {
            run::make_dir(dir)?;
        }
        let judges = tools.judges.as_deref().unwrap_or(tools);
        for (dir, tools) in [(&bin, tools), (&judges_bin, judges)] {
            let programs = [
                (Tool::Ctl, Some(&tools.etcdctl)),
                (Tool::Utl, Some(&tools.etcdutl)),
                (Tool::Defrag, tools.defrag.as_ref()),
            ];
            for (tool, program) in programs {
                if let Some(program) = program.filter(|program| program.exists()) {
                    run::place(program, &dir.join(tool.name()))?;
                }
            }
        }
        run::place(&tools.etcd, &judges_bin.join("etcd"))?;
        let ports = ports(scenario)?;
        let (member_ports, spare) = ports.split_at(3 * scenario.members);
        let mut names = BTreeMap::new();
        for (at, port) in spare.iter().enumerate() {
            names.insert(format!("port{at}"), port.to_string());
        }
        names.insert("certs".to_owned(), tools.certificates.display().to_string());
        let mut cluster = None;
        if scenario.members > 0 {
            let tls = scenario.tls.then_some(tools.certificates.as_path());
            let dir = scratch.dir.join("cluster");
            let started = Cluster::start_at(&judges_bin.join("etcd"), member_ports, &dir, scenario.flags, tls)?;
            let scheme = if scenario.tls { "https://" } else { "" };
            let endpoints: Vec<String> =
                (0..scenario.members).map(|at| format!("{scheme}{}", started.client(at))).collect();
            names.insert("e".to_owned(), endpoints.join(","));
            for (at, endpoint) in endpoints.iter().enumerate() {
                names.insert(format!("e{at}"), endpoint.clone());
                names.insert(format!("peer{at}"), format!("http://127.0.0.1:{}", member_ports[3 * at + 1]));
                names.insert(format!("data{at}"), started.data(at).display().to_string());
            }
            cluster = Some(started);
        }
        let running = BTreeMap::new();
        let mut stage = Stage { scenario, tools, bin, judges_bin, work, names, running, _cluster: cluster };
        if scenario.members > 0 {
            stage.learn_ids()?;
            stage.wait_for_versions()?;
        }
        Ok(stage)
    }

    /// Member ids and the leader: the first member is made to lead, so that both sides begin alike.
    fn learn_ids(&mut self) -> Result {
        let listed = self.judge(&["member", "list"])?;
        for line in listed.lines() {
            let fields: Vec<&str> = line.split(", ").collect();
            if let [id, _, name, ..] = fields.as_slice() {
                self.names.insert(format!("id{}", name.trim_start_matches('m')), (*id).to_owned());
            }
        }
        if self.scenario.members > 1 {
            let first = self.names.get("id0").cloned().unwrap_or_default();
            let leads =
                |status: &str| status.lines().next().is_some_and(|line| line.split(", ").any(|part| part == "true"));
            if !leads(&self.judge(&["endpoint", "status"])?) {
                self.judge(&["move-leader", &first])?;
            }
        }
        Ok(())
    }

    /// Members that have just started agree on their version, and write it down, a little later.
    fn wait_for_versions(&self) -> Result {
        let begin = Instant::now();
        loop {
            let status = self.judge(&["endpoint", "status"])?;
            let settled = status.lines().all(|line| {
                let fields: Vec<&str> = line.split(", ").collect();
                let minor =
                    |at: usize| fields.get(at).and_then(|version| version.rsplit_once('.')).map(|(minor, _)| minor);
                minor(2).is_some() && minor(2) == minor(3)
            });
            if settled || begin.elapsed() > LIMIT {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs Go's etcdctl, which has to succeed.
    fn judge(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(self.judges_bin.join("etcdctl"));
        command.args(words);
        self.surround(&mut command, "", &[]);
        run::text(&mut command)
    }

    /// The environment of a tool: its endpoints and certificates where the line has none, and nothing of ours.
    fn surround(&self, command: &mut Command, words: &str, env: &[(&str, &str)]) {
        command.current_dir(&self.work).env_clear();
        for name in ["PATH", "HOME"] {
            command.env(name, std::env::var_os(name).unwrap_or_default());
        }
        if let Some(endpoints) = self.names.get("e") {
            if !words.contains("--endpoints") {
                command.env("ETCDCTL_ENDPOINTS", endpoints).env("ETCD_DEFRAG_ENDPOINTS", endpoints);
            }
            if self.scenario.tls && !words.contains("--cacert") {
                for (name, file) in [("CACERT", "ca.crt"), ("CERT", "server.crt"), ("KEY", "server.key.insecure")] {
                    let path = self.tools.certificates.join(file);
                    command.env(format!("ETCDCTL_{name}"), &path).env(format!("ETCD_DEFRAG_{name}"), &path);
                }
            }
        }
        if self.scenario.members == 0 {
            // Nobody is there, and nobody is waited for.
            for (flag, value) in [("endpoints", "127.0.0.1:1"), ("command-timeout", "300ms"), ("dial-timeout", "200ms")]
            {
                if !words.contains(flag) {
                    command.env(format!("ETCDCTL_{}", flag.to_uppercase().replace('-', "_")), value);
                }
            }
        }
        for (name, value) in env {
            command.env(name, self.filled(value));
        }
    }

    /// With names in braces replaced.
    fn filled(&self, text: &str) -> String {
        let mut out = text.to_owned();
        for (name, value) in &self.names {
            out = out.replace(&format!("{{{name}}}"), value);
        }
        out
    }

    fn play(mut self) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for line in &self.scenario.lines {
            let outcome = self.line(line).map_err(|why| format!("{} ({}): {why}", line.shown(), self.tools.side))?;
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    fn line(&mut self, line: &Line) -> Result<Outcome> {
        if let Some(name) = line.ends {
            let Some((process, begun)) = self.running.remove(name) else {
                return Ok(Outcome { absent: true, ..Outcome::default() });
            };
            return self.finish(process, &Line { stop: line.stop, tool: begun.tool, ..begun }, line);
        }
        let judges = !line.compared && line.begins.is_none();
        let dir = if judges { &self.judges_bin } else { &self.bin };
        let program = dir.join(line.tool.name());
        if !program.exists() {
            return Ok(Outcome { absent: true, ..Outcome::default() });
        }
        let mut command = Command::new(program);
        for word in line.split()? {
            command.arg(self.filled(&word));
        }
        self.surround(&mut command, &line.words, line.env);
        let process = Process::start(&mut command, &self.filled(line.stdin), line.holds)?;
        if let Some(name) = line.begins {
            process.wait_for(line.stop)?;
            self.running.insert(name, (process, line.clone()));
            return Ok(Outcome::default());
        }
        let outcome = self.finish(process, line, line)?;
        if judges && outcome.code != "0" {
            return Err(format!("sets the stage, and failed: {}", outcome.shown()));
        }
        Ok(outcome)
    }

    /// Waits for the end and masks what was said.
    fn finish(&mut self, process: Process, line: &Line, masked: &Line) -> Result<Outcome> {
        let begin = process.begin;
        process.wait_for(line.stop)?;
        if line.stop != Stop::Never {
            run::signal(process.child.id(), Signal::INT);
        }
        let (code, stdout, stderr) = process.end()?;
        if let Some((name, before)) = line.capture {
            let part = |c: char| c.is_ascii_alphanumeric();
            // Ids are padded to a width.
            let found =
                stdout.split_once(before).map(|(head, rest)| (head, rest.trim_start())).map(
                    |(head, rest)| match before.strip_prefix(", ") {
                        Some(_) => head[head.rfind(|c| !part(c)).map_or(0, |at| at + 1)..].to_owned(),
                        None => rest[..rest.find(|c| !part(c)).unwrap_or(rest.len())].to_owned(),
                    },
                );
            self.names.insert(name.to_owned(), found.ok_or_else(|| format!("{name} is not in {stdout:?}"))?);
        }
        let counts = |said: &&str| match line.stderr {
            // Hints are ours alone; logs hold times and places in the source; stty is what asks Go's for a password.
            true => !["hint: ", "{", "stty: "].iter().any(|begin| said.starts_with(begin)),
            false => said.starts_with("Error:"),
        };
        let stderr: String = stderr.lines().filter(counts).map(|line| format!("{line}\n")).collect();
        let mask = |text: &str| {
            let mut text = self.without_captured(text);
            for mask in self.scenario.masks.iter().chain(line.masks).chain(masked.masks) {
                text = mask.apply(&text);
            }
            text
        };
        let took = Took(begin.elapsed());
        Ok(Outcome { code, stdout: mask(&stdout), stderr: mask(&stderr), absent: false, took })
    }

    /// Captured ids, in hexadecimal or decimal, as their names.
    fn without_captured(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let known = |name: &str| name.starts_with(char::is_uppercase);
        for (name, value) in self.names.iter().filter(|(name, value)| known(name) && value.len() > 5) {
            text = text.replace(value, &format!("<{name}>"));
            if let Ok(number) = u64::from_str_radix(value, 16) {
                text = text.replace(&number.to_string(), &format!("<{name}>"));
            }
        }
        text
    }
}

/// A tool at work.
struct Process {
    child: Child,
    stdout: Stream,
    stderr: Stream,
    begin: Instant,
    /// Held open, so that the end of the input does not end the program.
    _stdin: Option<ChildStdin>,
}

/// What a pipe has delivered so far.
struct Stream {
    parts: Receiver<Vec<u8>>,
    bytes: std::cell::RefCell<Vec<u8>>,
}

impl Stream {
    fn new(mut end: impl Read + Send + 'static) -> Stream {
        let (sender, parts) = channel();
        std::thread::spawn(move || {
            let mut space = [0; 1 << 16];
            while let Ok(length @ 1..) = end.read(&mut space) {
                if sender.send(space[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Stream { parts, bytes: Default::default() }
    }

    /// Lines so far.
    fn lines(&self) -> usize {
        let mut bytes = self.bytes.borrow_mut();
        self.parts.try_iter().for_each(|part| bytes.extend(part));
        bytes.iter().filter(|byte| **byte == b'\n').count()
    }

    /// All of it, once the other end is closed, or `until`.
    fn all(self, until: Instant) -> String {
        let mut bytes = self.bytes.into_inner();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.parts.recv_timeout(left.max(Duration::from_millis(1))) {
                Ok(part) => bytes.extend(part),
                Err(_) => break,
            }
        }
        shown(&bytes)
    }
}

/// Bytes that are not UTF-8 as `\xff`, so that no two outputs look alike that are not.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

impl Process {
    fn start(command: &mut Command, stdin: &str, holds: bool) -> Result<Process> {
        let mut child = run::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        let mut pipe = child.stdin.take();
        if let Some(held) = pipe.as_mut().filter(|_| holds) {
            held.write_all(stdin.as_bytes()).map_err(|error| error.to_string())?;
        } else if let Some(mut pipe) = pipe.take() {
            let text = stdin.to_owned();
            // It may end without reading.
            std::thread::spawn(move || pipe.write_all(text.as_bytes()));
        }
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err("no pipes".to_owned());
        };
        let (stdout, stderr) = (Stream::new(stdout), Stream::new(stderr));
        Ok(Process { child, stdout, stderr, begin: Instant::now(), _stdin: pipe })
    }

    /// Waits until it is time to stop it. One that ends before is not waited for longer.
    fn wait_for(&self, stop: Stop) -> Result {
        match stop {
            Stop::Never => {}
            Stop::Millis(millis) => {
                let until = Instant::now() + Duration::from_millis(millis);
                while Instant::now() < until && alive(self.child.id()) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            Stop::Lines(lines) => {
                let (mut seen, mut since) = (0, Instant::now());
                while seen < lines && since.elapsed() < IDLE && alive(self.child.id()) {
                    std::thread::sleep(Duration::from_millis(2));
                    let now = self.stdout.lines();
                    if now != seen {
                        (seen, since) = (now, Instant::now());
                    }
                }
                // What should not follow may still come.
                std::thread::sleep(Duration::from_millis(30));
            }
        }
        Ok(())
    }

    fn end(mut self) -> Result<(String, String, String)> {
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                break status;
            }
            // The pipes are drained by their threads.
            if self.begin.elapsed() > LIMIT {
                self.child.kill().map_err(|error| error.to_string())?;
                self.child.wait().map_err(|error| error.to_string())?;
                let until = Instant::now() + Duration::from_secs(1);
                return Ok(("took too long".to_owned(), self.stdout.all(until), self.stderr.all(until)));
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let code = match (status.code(), status.signal()) {
            (Some(code), _) => code.to_string(),
            (None, signal) => format!("signal {}", signal.unwrap_or_default()),
        };
        // A command that was started for an event may outlive it and hold the pipe.
        let until = Instant::now() + Duration::from_secs(2);
        Ok((code, self.stdout.all(until), self.stderr.all(until)))
    }
}

/// Whether a process is neither gone nor waiting to be reaped.
fn alive(id: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some(None | Some('Z' | 'X')))
}
