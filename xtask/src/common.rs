//! etcd's own suites, run against Dolmen and held to committed lists.
//!
//! `tests/common` with Dolmen as `etcd` and Go's tools judges the server; `tests/common` and `tests/e2e` with Go's `etcd` and
//! Dolmen as `etcdctl` and `etcdutl` judge the tools.
//!
//! Each function runs by itself, so that one that hangs takes only its own time. A test path, `TestKVPut/NoTLS`, is
//! judged when it has no parts of its own. The list says which may fail and why; the run fails when one fails that is not
//! listed, and when a listed one passes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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

/// How long one may take to say where it hangs.
const GRACE: Duration = Duration::from_secs(20);

const NOTHING_RAN: &str = "nothing ran";

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

/// What of `tests/e2e` asks something of the tools.
const TOOL_FUNCTIONS: [&str; 4] = ["TestCtlV3", "TestUtl", "TestMakeMirror", "TestAuthority"];

/// Of these, the quick run's: short ones that between them call most commands.
const QUICK_TOOL_FUNCTIONS: &[&str] = &[
    "TestCtlV3GetFormat",
    "TestCtlV3GetRev",
    "TestCtlV3GetKeysOnly",
    "TestCtlV3PutIgnoreLease",
    "TestCtlV3PutTimeout",
    "TestCtlV3WatchNoTLS",
    "TestCtlV3WatchInteractiveNoTLS",
    "TestCtlV3LeaseKeepAliveNoTLS",
    "TestCtlV3Lock",
    "TestCtlV3Elect",
    "TestCtlV3MakeMirror",
    "TestCtlV3MemberListWithHex",
    "TestCtlV3AuthCertCN",
    "TestCtlV3SnapshotCorrupt",
    "TestCtlV3SnapshotStatusBeforeRestore",
    "TestCtlV3CompletionBash",
    "TestCtlV3Version",
];

/// Parts of the mixed run, in the tests' own names.
const MIXED: [&str; 2] = ["MinorityLastVersion", "QuorumLastVersion"];

/// A suite with what it is run against.
struct Suite<'a> {
    /// Folder of the package below the module `tests`.
    package: &'static str,
    judge: Judge,
    /// By the names the suite calls them.
    binaries: Vec<(&'static str, PathBuf)>,
    /// The committed list, in `interop`.
    list: &'static str,
    forms: Forms,
    /// One member without TLS only.
    minimal: bool,
    wanted: &'a dyn Fn(&str) -> bool,
    /// Whether everything the list names was asked for.
    whole: bool,
}

/// `tests/common` against `server`, with Go's tools.
pub fn run(server: &Path, forms: Forms, quick: bool, only: Option<&str>) -> Result {
    let mut binaries =
        vec![("etcd", server.to_owned()), ("etcdctl", Judge::Etcdctl.build()?), ("etcdutl", Judge::Etcdutl.build()?)];
    if forms == Forms::Mixed {
        binaries.push(("etcd-last-release", Judge::Etcd36.build()?));
    }
    Suite {
        package: "common",
        judge: Judge::CommonTest,
        binaries,
        list: "common-expected.txt",
        forms,
        minimal: quick,
        wanted: &|function| match only {
            Some(part) => function.contains(part),
            None => !quick || QUICK.contains(&function),
        },
        whole: !quick && only.is_none(),
    }
    .run()
}

/// `tests/common` and what `tests/e2e` has for tools, with Go's server, and `tools` (the binary `dolmen`, or `None` for Go's
/// own as the control) called as `etcdctl` and `etcdutl`.
pub fn run_tools(tools: Option<&Path>, quick: bool, only: Option<&str>) -> Result {
    let tool = |judge: Judge| match tools {
        Some(dolmen) => Ok(dolmen.to_owned()),
        None => judge.build(),
    };
    let binaries =
        vec![("etcd", Judge::Etcd37.build()?), ("etcdctl", tool(Judge::Etcdctl)?), ("etcdutl", tool(Judge::Etcdutl)?)];
    let (mut failures, mut idle) = (Vec::new(), 0);
    for (package, judge) in [("e2e", Judge::E2eTest), ("common", Judge::CommonTest)] {
        let suite = Suite {
            package,
            judge,
            binaries: binaries.clone(),
            list: "tools-expected.txt",
            forms: Forms::OneRelease,
            minimal: true,
            wanted: &|function| match only {
                Some(part) => function.contains(part),
                None if package == "e2e" && quick => QUICK_TOOL_FUNCTIONS.contains(&function),
                None if package == "e2e" => TOOL_FUNCTIONS.iter().any(|prefix| function.starts_with(prefix)),
                None => !quick || QUICK.contains(&function),
            },
            whole: false,
        };
        match suite.run() {
            // One suite may have no function of that name, though not both.
            Err(why) if only.is_some() && why == NOTHING_RAN => idle += 1,
            outcome => failures.extend(outcome.err()),
        }
    }
    if idle == 2 {
        return Err(NOTHING_RAN.into());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

impl Suite<'_> {
    fn run(&self) -> Result {
        go::check()?;
        self.judge.build()?;
        let expected = Expected::read(self.list)?;
        let scratch = Scratch::new(self.package)?;
        let bin = scratch.dir.join("bin");
        run::make_dir(&bin)?;
        for (name, path) in &self.binaries {
            run::place(path, &bin.join(name))?;
        }
        // The suite wants to run in its package's folder, beside its fixtures.
        let module = go::module_dir("go.etcd.io/etcd/tests/v3")?;
        let tests = scratch.dir.join("tests");
        run::copy_tree(&module.join(self.package), &tests.join(self.package))?;
        run::copy_tree(&module.join("fixtures"), &tests.join("fixtures"))?;

        let mut list = Command::new(self.judge.path());
        list.current_dir(tests.join(self.package))
            .args(["-test.list", "."])
            .arg(format!("--bin-dir={}", bin.display()));
        let listed = run::text(&mut list)?;
        let functions: Vec<&str> = listed.lines().filter(|line| line.starts_with("Test")).collect();
        if let Some(wrong) =
            expected.entries.iter().find(|entry| self.whole && !functions.contains(&entry.path[0].as_str()))
        {
            return Err(format!("interop/{} names {}, which is no function", self.list, wrong.path[0]));
        }
        let mut results = Results::default();
        for function in functions.into_iter().filter(|function| (self.wanted)(function)) {
            let found = self.one(function, &scratch, &bin, &tests, &expected)?;
            results.0.extend(found.0);
        }
        self.report(&results, &expected)
    }

    /// Runs one function and says what came of it.
    fn one(&self, function: &str, scratch: &Scratch, bin: &Path, tests: &Path, expected: &Expected) -> Result<Results> {
        let log = run::target().join("xtask").join(format!("{function}.log"));
        let mut said = Vec::new();
        let begin = std::time::Instant::now();
        let once = |said: &mut Vec<String>| {
            let mut command = Command::new(self.judge.path());
            command.current_dir(tests.join(self.package)).args(["-test.v", "-test.run", &format!("^{function}$")]);
            command.arg(format!("-test.timeout={}s", LIMIT.as_secs())).arg(format!("--bin-dir={}", bin.display()));
            if self.minimal {
                command.env("E2E_TEST_MINIMAL", "true");
            }
            said.clear();
            let limit = Some(LIMIT + GRACE);
            let ended = run::watch(scratch.home(&mut command), limit, &mut |line| said.push(line.to_owned()))?;
            scratch.clear();
            Result::Ok((ended, said.iter().any(|line| line.starts_with("panic: test timed out"))))
        };
        let (mut ended, hung) = once(&mut said)?;
        if hung {
            // Every call of a tool has a deadline of its own. The suite waits for ever on one that has ended well without
            // the line it waits for, which was seen once in some 100,000 calls, and not since its stacks are kept.
            let stacks = log.with_extension("hung.log");
            run::write(&stacks, &said.join("\n"))?;
            println!("{function}: HUNG, where: {}; once more", stacks.display());
            (ended, _) = once(&mut said)?;
        }
        let mut found = Results::default();
        said.iter().for_each(|line| found.see(line));
        if ended.code != Some(0) && !found.any(Outcome::Fail) {
            // It panicked, hung, or could not start: nothing is known of its parts.
            found.0.insert(function.to_owned(), Outcome::Fail);
        }
        let leaves = found.leaves();
        let faults = leaves.iter().filter(|(path, outcome)| expected.judge(path, **outcome).is_err()).count();
        let failed = leaves.values().filter(|outcome| **outcome == Outcome::Fail).count();
        let seconds = begin.elapsed().as_secs_f64();
        println!("{function}: {} results, {failed} failed, {faults} not as expected, {seconds:.0} s", leaves.len());
        if faults > 0 {
            run::write(&log, &said.join("\n"))?;
            println!("  its output: {}", log.display());
        }
        run::flush();
        Ok(found)
    }

    fn report(&self, results: &Results, expected: &Expected) -> Result {
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
        run::write(&run::target().join(format!("xtask/{}-results.txt", self.package)), &lines)?;
        // After a whole run every line of the list has to have been of use.
        let used =
            |entry: &&Entry| leaves.iter().any(|(path, outcome)| *outcome == Outcome::Fail && entry.covers(path));
        let idle = expected.entries.iter().filter(|_| self.whole).filter(|entry| !entry.either && !used(entry));
        faults
            .extend(idle.map(|entry| format!("{}: in interop/{}, and did not fail", entry.path.join("/"), self.list)));
        for part in MIXED.iter().filter(|_| self.forms == Forms::Mixed) {
            let of = |outcome| leaves.iter().filter(|(path, o)| path.contains(part) && **o == outcome).count();
            println!(
                "{part}: {} passed, {} failed, {} skipped",
                of(Outcome::Pass),
                of(Outcome::Fail),
                of(Outcome::Skip)
            );
        }
        let of = |outcome| leaves.values().filter(|found| **found == outcome).count();
        println!(
            "tests/{}: {} passed, {} failed, {} skipped; {} not as expected",
            self.package,
            of(Outcome::Pass),
            of(Outcome::Fail),
            of(Outcome::Skip),
            faults.len()
        );
        run::count(good, faults.len() as u64);
        if leaves.is_empty() {
            return Err(NOTHING_RAN.into());
        }
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
    }
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
    /// File name, below `interop`.
    list: String,
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
    fn read(list: &str) -> Result<Self> {
        Self::parse(list, &run::read(&run::root().join("interop").join(list))?)
    }

    fn parse(list: &str, text: &str) -> Result<Self> {
        let mut entries = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (rest, either) = match line.strip_prefix('?') {
                Some(rest) => (rest.trim_start(), true),
                None => (line, false),
            };
            let (path, why) = rest
                .split_once("  ")
                .ok_or_else(|| format!("interop/{list}: {line:?} has no reason behind two spaces"))?;
            let path = path.split('/').map(str::to_owned).collect();
            entries.push(Entry { path, why: why.trim().to_owned(), either });
        }
        Ok(Self { list: list.to_owned(), entries })
    }

    fn judge(&self, path: &str, outcome: Outcome) -> Result {
        let entry = self.entries.iter().find(|entry| entry.covers(path));
        match (outcome, entry) {
            (Outcome::Fail, None) => Err("failed".into()),
            // In a mixed cluster the member that is asked may be Go's, which can.
            (Outcome::Pass, Some(_)) if MIXED.iter().any(|part| path.contains(part)) => Ok(()),
            (Outcome::Pass, Some(entry)) if !entry.either => {
                Err(format!("passes, and interop/{} says it cannot: {}", self.list, entry.why))
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
        let expected = Expected::parse("list", "# list\nTestA/*  why\n? TestB  flaky by itself\n").expect("fine");
        assert!(expected.judge("TestA/TLS_1", Outcome::Fail).is_ok());
        assert!(expected.judge("TestA/NoTLS", Outcome::Pass).is_err());
        assert!(expected.judge("TestA/NoTLS/deeper", Outcome::Skip).is_ok());
        assert!(expected.judge("TestA/QuorumLastVersion", Outcome::Pass).is_ok(), "Go's member was asked");
        assert!(expected.judge("TestB", Outcome::Pass).is_ok());
        assert!(expected.judge("TestC", Outcome::Fail).is_err());
        assert!(expected.judge("TestC", Outcome::Pass).is_ok());
        assert!(Expected::parse("list", "TestA no reason").is_err());
    }
}
