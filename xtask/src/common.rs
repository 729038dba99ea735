//! etcd's own `tests/common`, run against Dolmen as `etcd`, and held to a committed list of expected failures.
//!
//! Each function runs by itself, so that one that hangs takes only its own time. A test path, `TestKVPut/NoTLS`, is
//! judged when it has no parts of its own. `interop/common-expected.txt` says which may fail and why; the run fails when
//! one fails that is not listed, and when a listed one passes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::go::{self, Judge};
use crate::run::{self, Result, Scratch};

/// Which forms of cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Forms {
    /// Dolmen alone: NoTLS, and TLS from files and self-made.
    OneRelease,
    /// Those and clusters with a minority and with a quorum of Go etcd 3.6.16.
    Mixed,
}

/// The longest any function took with Go's binaries on two cores is four minutes.
const LIMIT: Duration = Duration::from_secs(480);

/// Functions of the quick run: those that are short with Go's binaries and ask for no feature that is missing.
const QUICK: &[&str] = &[
    "TestKVPut",
    "TestKVGet",
    "TestTxnSucc",
    "TestTxnFail",
    "TestLeaseGrantTimeToLive",
    "TestLeaseGrantRevoke",
    "TestCompact",
    "TestEndpointHashKV",
    "TestStatus",
    "TestMemberList",
    "TestWatch",
    "TestSnapshotWithNoAuth",
];

/// Parts of the mixed run, in the tests' own names.
const MIXED: [&str; 2] = ["MinorityLastVersion", "QuorumLastVersion"];

pub fn run(server: &Path, forms: Forms, quick: bool, only: Option<&str>) -> Result {
    let mut judges = vec![Judge::CommonTest, Judge::Etcdctl, Judge::Etcdutl];
    if forms == Forms::Mixed {
        judges.push(Judge::Etcd36);
    }
    go::build(&judges)?;
    let expected = Expected::parse(&run::read(&run::root().join("interop/common-expected.txt"))?)?;
    let scratch = Scratch::new("common")?;
    let bin = scratch.dir.join("bin");
    run::make_dir(&bin)?;
    run::place(server, &bin.join("etcd"))?;
    run::place(&Judge::Etcdctl.path(), &bin.join("etcdctl"))?;
    run::place(&Judge::Etcdutl.path(), &bin.join("etcdutl"))?;
    if forms == Forms::Mixed {
        run::place(&Judge::Etcd36.path(), &bin.join("etcd-last-release"))?;
    }
    // The suite wants to run in its package's folder, beside its fixtures.
    let module = go::module_dir("go.etcd.io/etcd/tests/v3")?;
    let tests = scratch.dir.join("tests");
    run::copy_tree(&module.join("common"), &tests.join("common"))?;
    run::copy_tree(&module.join("fixtures"), &tests.join("fixtures"))?;

    let listed = run::text(Command::new(Judge::CommonTest.path()).args(["-test.list", "."]))?;
    let functions: Vec<&str> = listed.lines().filter(|line| line.starts_with("Test")).collect();
    if let Some(wrong) = expected.entries.iter().find(|entry| !functions.contains(&entry.path[0].as_str())) {
        return Err(format!("interop/common-expected.txt names {}, which is no function", wrong.path[0]));
    }
    let wanted = |function: &&str| match only {
        Some(part) => function.contains(part),
        None => !quick || QUICK.contains(function),
    };
    let mut results = Results::default();
    for function in functions.into_iter().filter(wanted) {
        let mut command = Command::new(Judge::CommonTest.path());
        command.current_dir(tests.join("common")).args(["-test.v", "-test.run", &format!("^{function}$")]);
        command.arg(format!("--bin-dir={}", bin.display()));
        if quick {
            command.env("E2E_TEST_MINIMAL", "true");
        }
        let mut said = Vec::new();
        let begin = std::time::Instant::now();
        let ended = run::watch(scratch.home(&mut command), Some(LIMIT), &mut |line| said.push(line.to_owned()))?;
        scratch.clear();
        let mut found = Results::default();
        said.iter().for_each(|line| found.see(line));
        if ended.code != Some(0) && !found.any(Outcome::Fail) {
            // It panicked, hung, or could not start: nothing is known of its parts.
            found.0.insert(function.to_owned(), Outcome::Fail);
        }
        let leaves = found.leaves();
        let faults: Vec<&String> = leaves
            .iter()
            .filter(|(path, outcome)| expected.judge(path, **outcome).is_err())
            .map(|(path, _)| path)
            .collect();
        let failed = leaves.values().filter(|outcome| **outcome == Outcome::Fail).count();
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{function}: {} results, {failed} failed, {} not as expected, {seconds:.0} s",
            leaves.len(),
            faults.len()
        );
        if !faults.is_empty() {
            let log = run::target().join("xtask").join(format!("{function}.log"));
            run::write(&log, &said.join("\n"))?;
            println!("  its output: {}", log.display());
        }
        run::flush();
        results.0.extend(found.0);
    }
    report(&results, &expected, forms, !quick && only.is_none())
}

fn report(results: &Results, expected: &Expected, forms: Forms, whole: bool) -> Result {
    let leaves = results.leaves();
    let (mut good, mut faults) = (0, Vec::new());
    let mut lines = String::new();
    for (path, outcome) in &leaves {
        lines.push_str(&format!("{outcome:?} {path}\n"));
        match expected.judge(path, *outcome) {
            Ok(()) => good += 1,
            Err(why) => faults.push(format!("{path}: {why}")),
        }
    }
    run::write(&run::target().join("xtask/common-results.txt"), &lines)?;
    // After a whole run every line of the list has to have been of use.
    let used = |entry: &&Entry| leaves.iter().any(|(path, outcome)| *outcome == Outcome::Fail && entry.covers(path));
    for entry in expected.entries.iter().filter(|_| whole).filter(|entry| !entry.either && !used(entry)) {
        faults.push(format!("{}: listed in interop/common-expected.txt, and did not fail", entry.path.join("/")));
    }
    for part in MIXED.iter().filter(|_| forms == Forms::Mixed) {
        let of = |outcome| leaves.iter().filter(|(path, o)| path.contains(part) && **o == outcome).count();
        println!("{part}: {} passed, {} failed, {} skipped", of(Outcome::Pass), of(Outcome::Fail), of(Outcome::Skip));
    }
    let of = |outcome| leaves.values().filter(|found| **found == outcome).count();
    println!(
        "tests/common: {} passed, {} failed, {} skipped; {} not as expected",
        of(Outcome::Pass),
        of(Outcome::Fail),
        of(Outcome::Skip),
        faults.len()
    );
    run::count(good, faults.len() as u64);
    if leaves.is_empty() {
        return Err("nothing ran".into());
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Pass,
    Fail,
    Skip,
}

/// What each path came to.
#[derive(Default)]
struct Results(BTreeMap<String, Outcome>);

impl Results {
    /// `    --- PASS: TestKVPut/NoTLS (0.53s)`
    fn see(&mut self, line: &str) {
        // A program's output may stand before it on the same line.
        let Some((_, rest)) = line.split_once("--- ") else { return };
        let Some((word, rest)) = rest.split_once(": ") else { return };
        let outcome = match word {
            "PASS" => Outcome::Pass,
            "FAIL" => Outcome::Fail,
            "SKIP" => Outcome::Skip,
            _ => return,
        };
        let Some((path, time)) = rest.rsplit_once(" (") else { return };
        if path.starts_with("Test") && time.ends_with("s)") {
            self.0.insert(path.to_owned(), outcome);
        }
    }

    fn any(&self, outcome: Outcome) -> bool {
        self.0.values().any(|found| *found == outcome)
    }

    /// Those without parts of their own, and those that failed although none of their parts did.
    fn leaves(&self) -> BTreeMap<String, Outcome> {
        let below = |path: &str| {
            let prefix = format!("{path}/");
            self.0.range(prefix.clone()..).take_while(move |(other, _)| other.starts_with(&prefix))
        };
        let leaf = |(path, outcome): &(&String, &Outcome)| {
            let mut parts = below(path).peekable();
            parts.peek().is_none() || (**outcome == Outcome::Fail && !parts.any(|(_, part)| *part == Outcome::Fail))
        };
        self.0.iter().filter(leaf).map(|(path, outcome)| (path.clone(), *outcome)).collect()
    }
}

/// The committed list.
struct Expected {
    entries: Vec<Entry>,
}

struct Entry {
    /// Split at `/`; `*` stands for any one part. Everything below a listed path is listed.
    path: Vec<String>,
    why: String,
    /// The line begins with `?`: it may also pass.
    either: bool,
}

impl Expected {
    fn parse(text: &str) -> Result<Self> {
        let mut entries = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (rest, either) = match line.strip_prefix('?') {
                Some(rest) => (rest.trim_start(), true),
                None => (line, false),
            };
            let (path, why) = rest
                .split_once("  ")
                .ok_or_else(|| format!("interop/common-expected.txt: {line:?} has no reason behind two spaces"))?;
            let path = path.split('/').map(str::to_owned).collect();
            entries.push(Entry { path, why: why.trim().to_owned(), either });
        }
        Ok(Self { entries })
    }

    fn judge(&self, path: &str, outcome: Outcome) -> Result {
        let entry = self.entries.iter().find(|entry| entry.covers(path));
        match (outcome, entry) {
            (Outcome::Fail, None) => Err("failed".into()),
            (Outcome::Pass, Some(entry)) if !entry.either => {
                Err(format!("passes, and interop/common-expected.txt says it cannot: {}", entry.why))
            }
            _ => Ok(()),
        }
    }
}

impl Entry {
    fn covers(&self, path: &str) -> bool {
        let parts: Vec<&str> = path.split('/').collect();
        parts.len() >= self.path.len() && self.path.iter().zip(parts).all(|(mine, part)| mine == "*" || mine == part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
=== RUN   TestA/NoTLS
noise --- PASS: TestC (0.10s)
--- FAIL: TestA (1.00s)
    --- PASS: TestA/NoTLS (0.50s)
    --- FAIL: TestA/TLS_1 (0.50s)
--- FAIL: TestB (0.00s)
    --- PASS: TestB/x (0.00s)
--- SKIP: TestD (0.00s)";

    fn results() -> Results {
        let mut results = Results::default();
        OUTPUT.lines().for_each(|line| results.see(line));
        results
    }

    #[test]
    fn leaves_are_judged() {
        let leaves: Vec<String> = results().leaves().keys().cloned().collect();
        assert_eq!(leaves, ["TestA/NoTLS", "TestA/TLS_1", "TestB", "TestB/x", "TestC", "TestD"]);
    }

    #[test]
    fn both_kinds_of_surprise_are_faults() {
        let expected = Expected::parse("# list\nTestA/*  why\n? TestB  flaky by itself\n").expect("fine");
        assert!(expected.judge("TestA/TLS_1", Outcome::Fail).is_ok());
        assert!(expected.judge("TestA/NoTLS", Outcome::Pass).is_err());
        assert!(expected.judge("TestA/NoTLS/deeper", Outcome::Skip).is_ok());
        assert!(expected.judge("TestB", Outcome::Pass).is_ok());
        assert!(expected.judge("TestC", Outcome::Fail).is_err());
        assert!(expected.judge("TestC", Outcome::Pass).is_ok());
        assert!(Expected::parse("TestA no reason").is_err());
    }
}
