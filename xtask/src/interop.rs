//! `cargo xtask interop`: whether Dolmen is etcd, asked of etcd's own programs, client and tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{self, Forms};
use crate::files;
use crate::go::{self, Judge};
use crate::import;
use crate::operations;
use crate::run::{self, Arguments, Result, Scratch, stage};
use crate::scripts;

/// What differs between 3.6.16 and 3.7 and is known; `differential --list` explains each.
const KNOWN_DIFFERENCES: &str =
    "keys-only-lease,range-stream,malformed-code,oversize-text,check-order,not-yet-supported";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Suite {
    Client,
    Common,
    Mixed,
    Differential,
    Kill9,
    Files,
    Import,
    Tools,
    Scripts,
    Operations,
}

const SUITES: &[(&str, Suite)] = &[
    ("client", Suite::Client),
    ("files", Suite::Files),
    ("import", Suite::Import),
    ("differential", Suite::Differential),
    ("kill9", Suite::Kill9),
    ("common", Suite::Common),
    ("mixed", Suite::Mixed),
    ("tools", Suite::Tools),
    ("scripts", Suite::Scripts),
    ("operations", Suite::Operations),
];

pub fn run(arguments: &[String]) -> Result {
    let (mut quick, mut only) = (false, None);
    // A run that takes an hour is worth a second binary: any server can be judged, Go's as the control.
    let mut server = None;
    let mut functions = None;
    let mut control = false;
    let mut arguments = Arguments::new(arguments);
    while let Some(name) = arguments.next_name() {
        match name {
            "--quick" => quick = true,
            "--control" => control = true,
            "--server" => server = Some(PathBuf::from(arguments.value(name)?)),
            "--run" => functions = Some(arguments.value(name)?.to_owned()),
            "--suite" => {
                let wanted = arguments.value(name)?;
                let found = SUITES.iter().find(|(known, _)| *known == wanted);
                only = Some(found.ok_or_else(|| format!("no suite {wanted:?}"))?.1);
            }
            other => return Err(format!("unknown argument {other}")),
        }
    }
    go::check()?;
    let server = match server {
        Some(path) => path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?,
        None => build_server()?,
    };
    let mut failures = Vec::new();
    for (name, suite) in SUITES {
        // Mixed clusters take too long to be quick, and kills have a command of their own.
        let left_out = quick && matches!(suite, Suite::Mixed | Suite::Kill9);
        if only.map_or(left_out, |only| only != *suite) {
            continue;
        }
        let outcome = stage(&format!("interop {name}"), || match suite {
            Suite::Client => client(&server),
            Suite::Files => files::run(&server),
            Suite::Import => import::run(&server, if quick { import::QUICK } else { 50 }, functions.as_deref()),
            Suite::Differential => differential(&server, quick),
            Suite::Kill9 => kill9(&server, quick),
            Suite::Common => common::run(&server, Forms::OneRelease, quick, functions.as_deref()),
            Suite::Mixed => common::run(&server, Forms::Mixed, quick, functions.as_deref()),
            Suite::Tools => common::run_tools((!control).then_some(&server), quick, functions.as_deref()),
            Suite::Scripts => scripts::run(&server, quick, functions.as_deref()),
            Suite::Operations => operations::run(&server, quick),
        });
        failures.extend(outcome.err());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Builds the server for release and returns where it is.
///
/// # Errors
/// It does not build.
pub fn build_server() -> Result<PathBuf> {
    run::run(&mut run::cargo(["build", "-q", "--release", "-p", "dolmen"]))?;
    Ok(run::target().join("release/dolmen"))
}

/// Runs a judge whose verdict is its exit code, with its temporary files and servers in `scratch`.
fn judge(scratch: &Scratch, command: &mut Command, tests: bool) -> Result {
    let mut last = String::new();
    let ended = run::watch(scratch.home(command), None, &mut |line| {
        println!("{line}");
        let word = line.trim_start();
        if tests && !line.starts_with(' ') {
            run::count(u64::from(word.starts_with("--- PASS")), u64::from(word.starts_with("--- FAIL")));
        }
        if !word.is_empty() {
            last = line.to_owned();
        }
    })?;
    let left = scratch.sweep();
    if left > 0 {
        println!("{left} processes were left over");
    }
    if !tests {
        let good = u64::from(ended.code == Some(0));
        run::count(good, 1 - good);
    }
    ended.ok(command)
}

/// Our tests with the Go client, on one member and on three, and those of bbolt files.
fn client(server: &Path) -> Result {
    go::build(&[Judge::InteropTest, Judge::Etcdutl])?;
    run::run(&mut run::cargo(["build", "-q", "-p", "dolmen-bolt", "--example", "bolt"]))?;
    let scratch = Scratch::new("client")?;
    for members in ["1", "3"] {
        println!("--- members: {members}");
        let mut tests = Command::new(Judge::InteropTest.path());
        tests.current_dir(run::root().join("interop")).arg("-test.v").arg("-test.timeout=15m");
        tests.env("DOLMEN_SERVER", server).env("DOLMEN_MEMBERS", members);
        tests.env("DOLMEN_BOLT_TOOL", run::target().join("debug/examples/bolt"));
        tests.env("DOLMEN_ETCDUTL", Judge::Etcdutl.path());
        judge(&scratch, &mut tests, true)?;
    }
    Ok(())
}

/// One random sequence of requests to Dolmen and to the last release, every answer compared.
fn differential(server: &Path, quick: bool) -> Result {
    go::build(&[Judge::Differential, Judge::Etcd36])?;
    let scratch = Scratch::new("differential")?;
    // Several seeds of moderate length reach more states than one long run, whose key space fills up.
    let (seeds, operations) = if quick { (1, 5_000) } else { (5, 20_000) };
    for seed in 1..=seeds {
        let mut command = Command::new(Judge::Differential.path());
        command.arg("--a").arg(server).arg("--b").arg(Judge::Etcd36.path());
        command.args(["--ops", &operations.to_string(), "--seed", &seed.to_string(), "--allow", KNOWN_DIFFERENCES]);
        judge(&scratch, &mut command, false)?;
        scratch.clear();
    }
    Ok(())
}

/// SIGKILL under load, of the leader and of all members: nothing acknowledged is lost.
///
/// # Errors
/// Something is.
pub fn kill9(server: &Path, quick: bool) -> Result {
    go::build(&[Judge::Kill9])?;
    let scratch = Scratch::new("kill9")?;
    let rounds = if quick { "3" } else { "30" };
    for (members, victim) in [("3", "leader"), ("3", "all"), ("1", "all")] {
        println!("--- {victim} of {members}");
        let mut command = Command::new(Judge::Kill9.path());
        command.arg("--server").arg(server).args(["--members", members, "--rounds", rounds, "--victim", victim]);
        judge(&scratch, &mut command, false)?;
        scratch.clear();
    }
    Ok(())
}
