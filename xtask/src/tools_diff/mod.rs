//! `cargo xtask tools-diff`: the same command lines given to Go's tools and to ours, and what came of them compared.
//!
//! A scenario is a list of command lines and the servers they meet. It is played twice from a fresh start on the same
//! ports, first with the tools of etcd 3.7.3 (and etcd-defrag 0.42), then with Dolmen's; the servers are Go etcd 3.7.3
//! both times. Because names, ports and the order of the lines are the same, so are member ids, revisions and hashes;
//! what differs from run to run (times, lease ids, sizes of files) is masked by name, see [`mask`]. `--self` plays both
//! sides with Go's tools, which shows that the masks are enough.
//!
//! Compared are stdout to the byte, the exit code, and the lines of stderr that begin with `Error:`; in scenarios
//! without a server all of stderr, since usage goes there. A difference that is meant stands in the table with its
//! reason ([`Line::kept`]); when it no longer differs, that is a fault too.
//!
//! The table is `misc` (help, mistakes, completion, environment), `kv`, `txn`, `lease`, `watch`, `cluster`, `auth`,
//! `utl`, `defrag`. etcd-defrag is in no module that this repository pins, so its judge is named by `--defrag PATH`;
//! without it, its lines are counted as not compared.

mod auth;
mod cluster;
mod defrag;
mod kv;
mod lease;
mod line;
mod mask;
mod misc;
mod play;
mod txn;
mod utl;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::go::{self, Judge};
use crate::run::{self, Result};

use line::{Line, Scenario, Tool};
use play::{Outcome, Tools};

/// Scenarios that run at once: each waits for its servers and processes most of the time.
const AT_ONCE: usize = 3;

struct Options {
    only: String,
    list: bool,
    /// Both sides are Go's.
    control: bool,
    verbose: bool,
    tools: Option<PathBuf>,
    judges: Option<PathBuf>,
    defrag: Option<PathBuf>,
}

fn options(arguments: &[String]) -> Result<Options> {
    let (only, list, control, verbose) = (String::new(), false, false, false);
    let mut options = Options { only, list, control, verbose, tools: None, judges: None, defrag: None };
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        let mut value = || rest.next().cloned().ok_or_else(|| format!("{name} needs a value"));
        match name.as_str() {
            "--only" => options.only = value()?,
            "--tools" => options.tools = Some(PathBuf::from(value()?)),
            "--judges" => options.judges = Some(PathBuf::from(value()?)),
            "--defrag" => options.defrag = Some(PathBuf::from(value()?)),
            "--list" => options.list = true,
            "--self" => options.control = true,
            "--verbose" => options.verbose = true,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(options)
}

fn scenarios() -> Vec<Scenario> {
    let mut all = misc::scenarios();
    all.extend(kv::scenarios());
    all.extend(txn::scenarios());
    all.extend(lease::scenarios());
    all.extend(watch::scenarios());
    all.extend(cluster::scenarios());
    all.extend(auth::scenarios());
    all.extend(utl::scenarios());
    all.extend(defrag::scenarios());
    all
}

/// What was found about all lines.
#[derive(Default)]
struct Tally {
    lines: usize,
    equal: usize,
    kept: usize,
    /// By tool: there is no judge.
    not_compared: BTreeMap<&'static str, usize>,
    faults: Vec<String>,
}

/// Programs started in the background of a script ignore SIGINT, and so do those they start; tools are ended by it here. What
/// has a handler in this process starts with the default in its children.
fn obey_interrupts() -> Result {
    let always = Arc::new(AtomicBool::new(true));
    let done = signal_hook::flag::register_conditional_default(signal_hook::consts::SIGINT, always);
    done.map(|_| ()).map_err(|error| format!("SIGINT: {error}"))
}

pub fn run(arguments: &[String]) -> Result {
    let options = options(arguments)?;
    obey_interrupts()?;
    let mut chosen = scenarios();
    chosen.retain(|scenario| scenario.lines.iter().any(|line| wanted(&options, scenario, line)));
    if options.list {
        for scenario in &chosen {
            for line in scenario.lines.iter().filter(|line| wanted(&options, scenario, line)) {
                println!("{}", label(scenario, line));
            }
        }
        return Ok(());
    }
    let (go, ours) = tools(&options)?;
    let begin = Instant::now();
    // The long ones first.
    chosen.sort_by_key(|scenario| std::cmp::Reverse(scenario.lines.len() + 20 * scenario.members));
    let next = AtomicUsize::new(0);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(scenario) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let before = Instant::now();
                    let played = play::play(scenario, &go).and_then(|first| Ok((first, play::play(scenario, &ours)?)));
                    let mut tally = tally.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    match played {
                        Ok((first, second)) => judge(&options, scenario, &first, &second, &mut tally),
                        Err(why) => tally.faults.push(format!("{}: {why}", scenario.name)),
                    }
                    println!("{}: {:.1} s", scenario.name, before.elapsed().as_secs_f64());
                    run::flush();
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    for fault in &tally.faults {
        println!("\n{fault}");
    }
    let Tally { lines, equal, kept, not_compared, faults } = &tally;
    for (tool, count) in not_compared {
        println!(
            "{tool}: NOT COMPARED, {count} command lines: there is no program to compare with; see --defrag and --tools"
        );
    }
    println!(
        "tools-diff: {lines} command lines, {equal} equal, {kept} kept on purpose, {} unlisted, in {:.0} s",
        faults.len(),
        begin.elapsed().as_secs_f64()
    );
    if faults.is_empty() { Ok(()) } else { Err(format!("{} unlisted differences, shown above", faults.len())) }
}

fn label(scenario: &Scenario, line: &Line) -> String {
    format!("{}: {}", scenario.name, line.shown())
}

fn wanted(options: &Options, scenario: &Scenario, line: &Line) -> bool {
    label(scenario, line).contains(&options.only)
}

/// The tools of both sides.
fn tools(options: &Options) -> Result<(Tools, Tools)> {
    let judge = |judge: Judge| match &options.judges {
        Some(dir) => Ok(dir.join(judge.path().file_name().unwrap_or_default())),
        None => judge.build(),
    };
    if options.judges.is_none() {
        go::check()?;
    }
    let known = run::target().join("judges/etcd-defrag");
    let defrag = options.defrag.clone().or_else(|| known.is_file().then_some(known));
    let [etcd, etcdctl, etcdutl] = [judge(Judge::Etcd37)?, judge(Judge::Etcdctl)?, judge(Judge::Etcdutl)?];
    let certificates = go::module_dir("go.etcd.io/etcd/tests/v3")?.join("fixtures");
    let go = Tools { side: "Go", etcd, etcdctl, etcdutl, defrag, certificates, judges: None };
    if options.control {
        let again = Tools { side: "Go again", judges: None, ..go.clone() };
        return Ok((go, again));
    }
    let dolmen = match &options.tools {
        Some(path) => path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?,
        None => crate::interop::build_server()?,
    };
    // A folder holds a program for each tool, and may hold fewer.
    let program = |tool: Tool| if dolmen.is_dir() { dolmen.join(tool.name()) } else { dolmen.clone() };
    let ours = Tools {
        side: "ours",
        etcdctl: program(Tool::Ctl),
        etcdutl: program(Tool::Utl),
        // Without a judge there is nothing to compare with.
        defrag: go.defrag.is_some().then(|| program(Tool::Defrag)),
        judges: Some(Box::new(go.clone())),
        ..go.clone()
    };
    Ok((go, ours))
}

/// Compares what the two sides answered to the lines of a scenario.
fn judge(options: &Options, scenario: &Scenario, go: &[Outcome], ours: &[Outcome], tally: &mut Tally) {
    for ((line, go), ours) in scenario.lines.iter().zip(go).zip(ours).filter(|((line, _), _)| line.compared) {
        if !wanted(options, scenario, line) {
            continue;
        }
        if go.absent || ours.absent {
            *tally.not_compared.entry(line.tool.name()).or_default() += 1;
            continue;
        }
        tally.lines += 1;
        if options.verbose {
            println!("{}\n{}", label(scenario, line), go.shown());
        }
        match (go == ours, line.reason) {
            (true, None) => tally.equal += 1,
            (true, Some(_)) if options.control => tally.kept += 1,
            (false, Some(_)) => tally.kept += 1,
            (true, Some(reason)) => {
                tally.faults.push(format!("{}\n  is kept on purpose ({reason}), and equal", label(scenario, line)));
            }
            (false, None) => {
                tally.faults.push(format!("{}\n{}", label(scenario, line), difference(go, ours)));
            }
        }
    }
}

/// Both sides of what differs.
fn difference(go: &Outcome, ours: &Outcome) -> String {
    let mut text = String::new();
    for (name, go, ours) in
        [("exit", &go.code, &ours.code), ("stdout", &go.stdout, &ours.stdout), ("stderr", &go.stderr, &ours.stderr)]
    {
        if go != ours {
            text.push_str(&format!("  {name}\n{}{}", indented("- ", go), indented("+ ", ours)));
        }
    }
    text
}

/// Lines with a sign before them; long outputs are cut.
fn indented(sign: &str, text: &str) -> String {
    const MOST: usize = 40;
    let mut shown: String = text.lines().take(MOST).map(|line| format!("    {sign}{line}\n")).collect();
    if text.lines().count() > MOST {
        shown.push_str(&format!("    {sign}... {} lines more\n", text.lines().count() - MOST));
    }
    if !text.is_empty() && !text.ends_with('\n') {
        shown.push_str(&format!("    {sign}(no line feed at the end)\n"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_large_and_well_formed() {
        let all = scenarios();
        let lines = all.iter().flat_map(|scenario| &scenario.lines).filter(|line| line.compared).count();
        assert!(lines >= 600, "only {lines} command lines");
        let mut names: Vec<&str> = all.iter().map(|scenario| scenario.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len(), "two scenarios have one name");
        for (scenario, line) in all.iter().flat_map(|scenario| scenario.lines.iter().map(move |line| (scenario, line)))
        {
            assert!(line.split().is_ok(), "{}: {:?}", label(scenario, line), line.split());
        }
    }
}
