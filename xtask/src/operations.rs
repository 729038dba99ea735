//! The commands of `docs/operations.md`, run as they stand there, one block after the other, with what the text says of
//! each block looked at behind it.
//!
//! The file is the script. What stands between `sh` fences is cut into commands; [`STEPS`] says for each block what has to
//! be there before, and what must be true after it. A block that no step knows fails the run, so that nobody adds one
//! without its check. What the text cannot know of the machine it runs on stands in [`STAND_INS`], and beyond it only this
//! is different:
//!
//! * a server's line runs in the background, until it says that it is healthy, and until the next one is started;
//! * `systemctl stop NAME` stops it, and `systemctl start NAME` starts the last line of that name again;
//! * where a server's line names no client address, which then is port 2379, the environment names one
//!   (`ETCD_LISTEN_CLIENT_URLS`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::go::{self, Judge};
use crate::import::{self, Release, State, etcdctl};
use crate::member;
use crate::run::{self, Result, Scratch};

const DOCUMENT: &str = "docs/operations.md";

/// What the text says, and what is run in its place; `CLIENT` and `PEER` are free ports, and paths begin in an empty folder.
const STAND_INS: &[(&str, &str)] =
    &[("/var/lib/etcd", "var/lib/etcd"), ("127.0.0.1:2379", "127.0.0.1:CLIENT"), ("127.0.0.1:2380", "127.0.0.1:PEER")];

/// How long a server may take to get ready, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a step does before or after its block.
type Act = fn(&mut World, &Block) -> Result;

/// Which etcd is called `etcd` in a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Etcd {
    /// The one whose data is imported.
    Source,
    Newest,
    /// 3.6.16.
    Last,
}

/// What is known of a block.
struct Step {
    section: &'static str,
    /// How each of its commands begins.
    commands: &'static [&'static str],
    etcd: Etcd,
    before: Act,
    after: Act,
}

const STEPS: &[Step] = &[
    Step {
        section: "Back up",
        commands: &["dolmen ctl --endpoints https://", "dolmen utl snapshot status"],
        etcd: Etcd::Newest,
        before: serve_with_certificates,
        after: backup_is_verified,
    },
    Step {
        section: "Restore a snapshot",
        commands: &["dolmen utl snapshot status", "dolmen utl snapshot restore", "dolmen --name"],
        etcd: Etcd::Newest,
        before: |world, _| world.copy("backup.db", "snapshot.db"),
        after: restored_is_the_same,
    },
    Step {
        section: "Restore a snapshot",
        commands: &["dolmen utl snapshot restore"],
        etcd: Etcd::Newest,
        before: |world, _| world.rename("m1.etcd", "m1.first"),
        after: revisions_are_raised,
    },
    Step {
        section: "Import: from etcd to Dolmen",
        commands: &["systemctl stop etcd", "dolmen --name"],
        etcd: Etcd::Source,
        before: serve_with_etcd,
        after: imported_is_the_same,
    },
    Step {
        section: "Import: from etcd to Dolmen",
        commands: &["etcdctl --endpoints", "etcdctl --endpoints"],
        etcd: Etcd::Newest,
        before: |_, _| Ok(()),
        after: cluster_is_healthy,
    },
    Step {
        section: "Export: from Dolmen to etcd",
        commands: &["dolmen utl export", "etcd --name"],
        etcd: Etcd::Newest,
        before: |world, _| world.stop(None),
        after: exported_is_the_same,
    },
    Step {
        section: "Export: from Dolmen to etcd",
        commands: &["dolmen utl export", "etcd --name"],
        etcd: Etcd::Last,
        before: |world, _| world.stop(None),
        after: exported_is_the_same,
    },
    Step {
        section: "The way back",
        commands: &["systemctl stop dolmen", "mv ", "mv ", "systemctl start etcd"],
        etcd: Etcd::Source,
        before: serve_what_was_imported,
        after: what_was_before_is_back,
    },
    Step {
        section: "The way back",
        commands: &["systemctl stop dolmen", "dolmen utl export", "mv ", "mv ", "systemctl start etcd"],
        etcd: Etcd::Newest,
        before: serve_again,
        after: what_is_now_is_back,
    },
];

/// A fence of the document.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    section: String,
    commands: Vec<String>,
}

impl Block {
    /// The first command that begins so.
    fn line(&self, begins: &str) -> Result<&str> {
        let found = self.commands.iter().find(|line| line.starts_with(begins));
        found.map(String::as_str).ok_or_else(|| format!("{}: no command begins with {begins:?}", self.section))
    }
}

/// Runs the document once for each release of etcd that data is taken over from; the quick form leaves out the oldest.
///
/// # Errors
/// A command failed, something is not as the text says, or a block is not known.
pub fn run(server: &Path, quick: bool) -> Result {
    let blocks = blocks(&run::read(&run::root().join(DOCUMENT))?);
    recognise(&blocks)?;
    go::build(&[Judge::Etcdctl, Judge::Etcdutl, Judge::Etcd37, Judge::Etcd36])?;
    let releases = import::releases()?;
    let mut failures = Vec::new();
    for release in releases.iter().take(if quick { 2 } else { 3 }) {
        let outcome = pass(server, release, &blocks);
        let failed = outcome.is_err();
        run::count(u64::from(!failed), u64::from(failed));
        match outcome {
            Ok(commands) => {
                println!(
                    "from etcd {}: {} blocks, {commands} commands, all as the text says",
                    release.name,
                    blocks.len()
                )
            }
            Err(why) => failures.push(format!("from etcd {}: {why}", release.name)),
        }
        run::flush();
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn pass(server: &Path, release: &Release, blocks: &[Block]) -> Result<usize> {
    let scratch = Scratch::new("operations")?;
    let mut world = World::new(server, release, &scratch.dir)?;
    for (block, step) in blocks.iter().zip(STEPS) {
        let told = |why| format!("{:?}, {}: {why}", block.section, block.commands.join("; "));
        world.call_etcd(step.etcd)?;
        world.said.clear();
        (step.before)(&mut world, block).map_err(|why| format!("before {}", told(why)))?;
        for line in &block.commands {
            world.command(line).map_err(told)?;
        }
        (step.after)(&mut world, block).map_err(|why| format!("after {}", told(why)))?;
    }
    Ok(blocks.iter().map(|block| block.commands.len()).sum())
}

/// What stands between fences of `sh`, lines that end in a backslash joined.
fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let (mut section, mut inside, mut joined) = (String::new(), false, String::new());
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
            if inside {
                found.push(Block { section: section.clone(), commands: Vec::new() });
            }
        } else if let (true, Some(block)) = (inside, found.last_mut()) {
            let whole = line.trim_end();
            joined.push_str(whole.trim_end_matches('\\').trim());
            if whole.ends_with('\\') {
                joined.push(' ');
            } else if !joined.is_empty() {
                block.commands.push(std::mem::take(&mut joined));
            }
        } else if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut section);
        }
    }
    found
}

/// Whether every block has its step.
fn recognise(blocks: &[Block]) -> Result {
    for (block, step) in blocks.iter().zip(STEPS) {
        let known = block.section == step.section
            && block.commands.len() == step.commands.len()
            && block.commands.iter().zip(step.commands).all(|(line, begins)| line.starts_with(begins));
        if !known {
            return Err(format!("{DOCUMENT}: a block that no step knows: {block:?}"));
        }
    }
    if blocks.len() == STEPS.len() {
        return Ok(());
    }
    Err(format!("{DOCUMENT} has {} blocks, and there are {} steps", blocks.len(), STEPS.len()))
}

/// A machine on which the document's commands make sense.
struct World<'a> {
    release: &'a Release,
    /// What is on `PATH`.
    bin: PathBuf,
    /// Where commands run.
    work: PathBuf,
    log: PathBuf,
    /// Of clients, peers, metrics, and of clients without certificates.
    ports: Vec<u16>,
    serving: Option<Serving>,
    /// By name, the last line that started a server on etcd's own directory.
    lines: BTreeMap<String, String>,
    /// What the commands of the block at hand have printed.
    said: String,
    /// What was found on the way, by a name.
    found: BTreeMap<&'static str, State>,
    /// Names and sums of an etcd's files when it was stopped.
    left: String,
}

struct Serving {
    name: String,
    process: Child,
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        if let Some(mut serving) = self.serving.take() {
            let _gone = serving.process.kill();
            let _gone = serving.process.wait();
        }
    }
}

impl<'a> World<'a> {
    fn new(server: &Path, release: &'a Release, dir: &Path) -> Result<Self> {
        let (bin, work, log) = (dir.join("bin"), dir.join("work"), dir.join("server.log"));
        run::make_dir(&bin)?;
        run::make_dir(&work.join("var/lib"))?;
        run::place(server, &bin.join("dolmen"))?;
        run::place(&Judge::Etcdctl.path(), &bin.join("etcdctl"))?;
        let ports = member::free_ports(4)?;
        Ok(Self {
            release,
            bin,
            work,
            log,
            ports,
            serving: None,
            lines: BTreeMap::new(),
            said: String::new(),
            found: BTreeMap::new(),
            left: String::new(),
        })
    }

    /// Puts an etcd on `PATH`.
    fn call_etcd(&mut self, which: Etcd) -> Result {
        let program = match which {
            Etcd::Source => self.release.program.clone(),
            Etcd::Newest => Judge::Etcd37.path(),
            Etcd::Last => Judge::Etcd36.path(),
        };
        run::place(&program, &self.bin.join("etcd"))
    }

    /// Runs a line of the document.
    fn command(&mut self, line: &str) -> Result {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["systemctl", "stop", name] => self.stop(Some(name)),
            ["systemctl", "start", name] => {
                let line = self.lines.get(name).ok_or_else(|| format!("no {name} was ever started"))?;
                self.start(&line.clone())
            }
            ["dolmen" | "etcd", flag, ..] if flag.starts_with("--") => self.start(line),
            _ => {
                let said = self.tell(line)?;
                self.said.push_str(&said);
                Ok(())
            }
        }
    }

    /// Runs a line in bash and returns what it prints.
    fn tell(&self, line: &str) -> Result<String> {
        let mut bash = self.bash(line);
        run::text(&mut bash).map_err(|why| why.replacen("`bash -euo pipefail -c ", "`", 1))
    }

    /// Runs a line that must fail and returns what it says on the way.
    fn fails(&self, line: &str) -> Result<String> {
        match self.tell(line) {
            Err(said) => Ok(said),
            Ok(said) => Err(format!("`{line}` should have failed, and said: {said}")),
        }
    }

    fn bash(&self, line: &str) -> Command {
        let mut line = line.to_owned();
        for (text, stand_in) in STAND_INS {
            line = line.replace(text, stand_in);
        }
        line = line.replace("CLIENT", &self.ports[0].to_string()).replace("PEER", &self.ports[1].to_string());
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &line]).current_dir(&self.work);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD")) {
            bash.env_remove(name);
        }
        bash.env("PATH", format!("{}:{}", self.bin.display(), std::env::var("PATH").unwrap_or_default()));
        bash
    }

    /// Starts a server's line, in place of the one that serves, and waits until it is healthy.
    fn start(&mut self, line: &str) -> Result {
        self.stop(None)?;
        let name = line.split(' ').next().unwrap_or_default().to_owned();
        if line.contains("--data-dir /var/lib/etcd") {
            self.lines.insert(name.clone(), line.to_owned());
        }
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.map_err(|error| format!("cannot write {}: {error}", self.log.display()))?;
        let same = log.try_clone().map_err(|error| error.to_string())?;
        let mut server = self.bash(&format!("exec {line}"));
        let (client, metrics) = (self.client(), format!("127.0.0.1:{}", self.ports[2]));
        // A flag and its variable together are refused.
        if !line.contains("--listen-client-urls") {
            server.env("ETCD_LISTEN_CLIENT_URLS", format!("http://{client}"));
            server.env("ETCD_ADVERTISE_CLIENT_URLS", format!("http://{client}"));
        }
        server.env("ETCD_LISTEN_METRICS_URLS", format!("http://{metrics}"));
        server.env("ETCD_LOG_LEVEL", "error").stdin(Stdio::null()).stdout(log).stderr(same);
        self.serving = Some(Serving { name, process: run::spawn(&mut server)? });
        let begin = Instant::now();
        while !member::healthy(&metrics) {
            let ended = self.serving.as_mut().map(|serving| serving.process.try_wait());
            if matches!(ended, Some(Ok(Some(_)))) || begin.elapsed() > PATIENCE {
                let said = run::read(&self.log)?;
                let last: Vec<&str> = said.lines().rev().take(3).collect();
                return Err(format!("`{line}` does not serve: {}", last.join(" | ")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Stops what serves; with a name, it has to be that which serves.
    fn stop(&mut self, name: Option<&str>) -> Result {
        if let Some(name) = name
            && self.serving.as_ref().is_none_or(|serving| serving.name != name)
        {
            return Err(format!("no {name} serves"));
        }
        let Some(mut serving) = self.serving.take() else { return Ok(()) };
        run::signal(serving.process.id(), Signal::TERM);
        let begin = Instant::now();
        while matches!(serving.process.try_wait(), Ok(None)) {
            if begin.elapsed() > PATIENCE {
                let _gone = serving.process.kill();
                let _gone = serving.process.wait();
                return Err(format!("{} does not stop", serving.name));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let member = self.work.join("var/lib/etcd/member");
        if serving.name == "etcd" && member.exists() {
            self.left = self.digest("var/lib/etcd/member")?;
        }
        Ok(())
    }

    /// Where clients without certificates are served.
    fn client(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// Go's etcdctl, to the server that serves.
    fn ask(&self, arguments: &[&str]) -> Result<String> {
        run::text(etcdctl(&self.client()).args(arguments))
    }

    /// Keys with a history, a lease, and a compaction, under a prefix.
    fn fill(&self, endpoint: &str, prefix: &str) -> Result {
        let run = |arguments: &[&str]| run::text(etcdctl(endpoint).args(arguments));
        let granted = run(&["lease", "grant", "6000"])?;
        let lease = granted.split(' ').nth(1).unwrap_or_default();
        for at in 0..20 {
            run(&["put", &format!("{prefix}/{:02}", at % 13), &format!("value {at}")])?;
        }
        run(&["put", &format!("{prefix}/leased"), "value", "--lease", lease])?;
        run(&["del", &format!("{prefix}/03")])?;
        run(&["compact", "9"]).map(|_| ())
    }

    fn remember(&mut self, name: &'static str) -> Result {
        self.found.insert(name, State::of(&self.client())?);
        Ok(())
    }

    fn remembered(&self, name: &str) -> Result<&State> {
        self.found.get(name).ok_or_else(|| format!("nothing was found as {name}"))
    }

    /// Whether all is as it was found before.
    fn expect(&self, name: &str, what: &str) -> Result {
        self.remembered(name)?.expect(what, &State::of(&self.client())?)
    }

    fn copy(&self, from: &str, to: &str) -> Result {
        let copied = std::fs::copy(self.work.join(from), self.work.join(to));
        copied.map(|_| ()).map_err(|error| format!("cannot copy {from} to {to}: {error}"))
    }

    fn rename(&self, from: &str, to: &str) -> Result {
        let renamed = std::fs::rename(self.work.join(from), self.work.join(to));
        renamed.map_err(|error| format!("cannot rename {from} to {to}: {error}"))
    }

    fn exists(&self, path: &str) -> Result {
        let there = self.work.join(path).exists();
        if there { Ok(()) } else { Err(format!("there is no {path}")) }
    }

    /// Names and sums of all files below a folder.
    fn digest(&self, dir: &str) -> Result<String> {
        self.tell(&format!("cd {dir} && find . -type f -exec sha256sum {{}} + | sort"))
    }
}

/// A Dolmen whose clients need certificates, with something to back up.
fn serve_with_certificates(world: &mut World, _: &Block) -> Result {
    let fixtures = go::module_dir("go.etcd.io/etcd/tests/v3")?.join("fixtures");
    let (pair, key) = ("server.crt", "server.key.insecure");
    for (from, to) in
        [("ca.crt", "ca.crt"), (pair, "server.crt"), (key, "server.key"), (pair, "client.crt"), (key, "client.key")]
    {
        let bytes = std::fs::read(fixtures.join(from)).map_err(|error| format!("cannot read {from}: {error}"))?;
        std::fs::write(world.work.join(to), bytes).map_err(|error| format!("cannot write {to}: {error}"))?;
    }
    let plain = format!("127.0.0.1:{}", world.ports[3]);
    world.start(&format!(
        "dolmen --name backed --data-dir backed.etcd --listen-client-urls https://127.0.0.1:2379,http://{plain} \
         --advertise-client-urls https://127.0.0.1:2379 --cert-file server.crt --key-file server.key \
         --trusted-ca-file ca.crt --client-cert-auth --listen-peer-urls http://127.0.0.1:2380 \
         --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster backed=http://127.0.0.1:2380"
    ))?;
    world.fill(&plain, "backed")?;
    world.found.insert("backed", State::of(&plain)?);
    Ok(())
}

fn backup_is_verified(world: &mut World, block: &Block) -> Result {
    let theirs = run::text(
        Command::new(Judge::Etcdutl.path())
            .args(["snapshot", "status", "-w", "json"])
            .arg(world.work.join("backup.db")),
    )?;
    let number = |json: &str, name: &str| {
        let json = json.lines().last().unwrap_or_default();
        let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
        value[name].as_i64().ok_or_else(|| format!("no {name} in {json:?}"))
    };
    for name in ["revision", "totalKey"] {
        let (ours, theirs) = (number(&world.said, name)?, number(&theirs, name)?);
        if ours != theirs || ours == 0 {
            return Err(format!("{name} is {ours}; etcdutl says {theirs}"));
        }
    }
    let revision = format!(" at {},", number(&world.said, "revision")?);
    if !world.remembered("backed")?.hash().contains(&revision) {
        return Err(format!("the backup is not{revision} but the server is: {:?}", world.remembered("backed")));
    }
    world.stop(Some("dolmen"))?;

    // Damage is found.
    let path = world.work.join("damaged.db");
    world.copy("backup.db", "damaged.db")?;
    let mut bytes = std::fs::read(&path).map_err(|error| error.to_string())?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&path, bytes).map_err(|error| error.to_string())?;
    let line = block.line("dolmen utl snapshot status")?;
    let said = world.fails(&line.replace("backup.db", "damaged.db"))?;
    if said.contains("exit status: 1") { Ok(()) } else { Err(said) }
}

fn restored_is_the_same(world: &mut World, block: &Block) -> Result {
    let same = |world: &World, what: &str| world.remembered("backed")?.expect_keys(what, &State::of(&world.client())?);
    same(world, "restored")?;
    world.stop(Some("dolmen"))?;
    // What is there is refused and left alone.
    let line = block.line("dolmen utl snapshot restore")?;
    let before = world.digest("m1.etcd")?;
    let said = world.fails(line)?;
    if !said.contains("not empty") || world.digest("m1.etcd")? != before {
        return Err(format!("restored over what was there, or touched it: {said}"));
    }
    // Both start from it.
    world.rename("m1.etcd", "m1.dolmen")?;
    world.tell(line)?;
    let server = block.line("dolmen --name")?.replacen("dolmen", "etcd", 1);
    world.start(&server)?;
    same(world, "restored, and started by etcd")?;
    world.stop(Some("etcd"))?;
    let server = block.line("dolmen --name")?.to_owned();
    world.lines.insert("restored".into(), server);
    Ok(())
}

fn revisions_are_raised(world: &mut World, _: &Block) -> Result {
    let server = world.lines.get("restored").cloned().ok_or("no server was started")?;
    world.start(&server)?;
    let header = world.ask(&["get", "backed/", "--prefix", "-w", "json"])?;
    let header: serde_json::Value = serde_json::from_str(&header).map_err(|error| error.to_string())?;
    if header["header"]["revision"].as_i64().is_none_or(|revision| revision <= 1_000_000_000) {
        return Err(format!("revisions are not raised: {}", header["header"]));
    }
    if header["count"].as_i64() != Some(13) {
        return Err(format!("{} keys of 13", header["count"]));
    }
    let said = world.ask(&["get", "backed/00", "--rev", "20"]).err().unwrap_or_default();
    if !said.contains("required revision has been compacted") {
        return Err(format!("a revision of before can be read: {said:?}"));
    }
    world.remember("raised")
}

/// The etcd that is going to be left, from the same flags.
fn serve_with_etcd(world: &mut World, block: &Block) -> Result {
    world.start(&block.line("dolmen --name")?.replacen("dolmen", "etcd", 1))?;
    world.fill(&world.client(), "imported")?;
    world.remember("imported")
}

fn imported_is_the_same(world: &mut World, _: &Block) -> Result {
    world.expect("imported", "imported")?;
    // Byte for byte.
    if world.digest("var/lib/etcd/member.etcd")? == world.left { Ok(()) } else { Err("member.etcd differs".into()) }
}

fn cluster_is_healthy(world: &mut World, _: &Block) -> Result {
    let hash = world.remembered("imported")?.hash().split(' ').next().unwrap_or_default().to_owned();
    // The health goes to stderr where it is bad, and fails.
    if world.said.contains("is healthy") && world.said.contains(&hash) { Ok(()) } else { Err(world.said.clone()) }
}

fn exported_is_the_same(world: &mut World, _: &Block) -> Result {
    world.expect("raised", "exported")?;
    world.stop(Some("etcd"))?;
    // The member itself is as it was.
    let server = world.lines.get("restored").cloned().ok_or("no server was started")?;
    world.start(&server)?;
    world.expect("raised", "started after an export")
}

fn serve_what_was_imported(world: &mut World, _: &Block) -> Result {
    world.command("systemctl start dolmen")?;
    world.expect("imported", "started again")?;
    world.ask(&["put", "since", "value"])?;
    world.remember("since")
}

fn what_was_before_is_back(world: &mut World, _: &Block) -> Result {
    world.expect("imported", "back")?;
    world.exists("var/lib/etcd/member.dolmen/store")?;
    let since = world.ask(&["get", "since"])?;
    if since.is_empty() { Ok(()) } else { Err("what was written since is there".into()) }
}

/// The other way back begins where the first one did.
fn serve_again(world: &mut World, _: &Block) -> Result {
    world.stop(Some("etcd"))?;
    world.rename("var/lib/etcd/member", "var/lib/etcd/member.etcd")?;
    world.rename("var/lib/etcd/member.dolmen", "var/lib/etcd/member")?;
    world.command("systemctl start dolmen")?;
    world.expect("since", "started again")
}

fn what_is_now_is_back(world: &mut World, _: &Block) -> Result {
    world.expect("since", "exported")?;
    world.exists("var/lib/etcd.dolmen/member/store")?;
    let since = world.ask(&["get", "since", "--print-value-only"])?;
    world.stop(Some("etcd"))?;
    if since.trim() == "value" { Ok(()) } else { Err("what was written since is gone".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_the_document_has_its_step() {
        let text = run::read(&run::root().join(DOCUMENT)).expect("is there");
        assert_eq!(recognise(&blocks(&text)), Ok(()));
        let more = format!("{text}\n```sh\nrm -r /\n```\n");
        assert!(recognise(&blocks(&more)).is_err_and(|why| why.contains("there are")));
        let other = text.replacen("dolmen utl export", "dolmen utl exhort", 1);
        assert!(recognise(&blocks(&other)).is_err_and(|why| why.contains("exhort")));
    }

    #[test]
    fn commands_are_joined_and_belong_to_their_section() {
        let text = "## One\n\ntext\n\n```sh\na --b \\\n  c\nd\n```\n\n```text\nno\n```\n## Two\n```sh\ne\n```\n";
        let block = |section: &str, commands: &[&str]| Block {
            section: section.into(),
            commands: commands.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(blocks(text), [block("One", &["a --b c", "d"]), block("Two", &["e"])]);
    }
}
