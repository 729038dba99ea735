//! `cargo xtask ci`: everything a change must pass, quick parts first, sized for two cores.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::run::{self, Result, stage};
use crate::{crash, dist, go, hostile, interop, sim, tidy, tools_diff};

/// Seeds every run simulates; the same ones always.
const FIXED_SEEDS: &str = "300";
/// Seeds besides, that are others every day: over the year CI goes where nobody has been, and all runs of a day agree.
const FRESH_SEEDS: u64 = 300;

pub fn run(arguments: &[String]) -> Result {
    if let Some(unknown) = arguments.first() {
        return Err(format!("unknown argument {unknown}"));
    }
    let begin = std::time::Instant::now();
    let outcome = stages();
    let (passed, failed) = (run::PASSED.load(Ordering::Relaxed), run::FAILED.load(Ordering::Relaxed));
    println!("\nci took {:.0} s", begin.elapsed().as_secs_f64());
    if let Err(why) = &outcome {
        println!("ci failed: {why}");
    }
    // A stage may fail without a test that does, a formatter for one.
    let failed = if outcome.is_err() { failed.max(1) } else { failed };
    println!("{passed} passed, {failed} failed");
    run::flush();
    outcome
}

/// The first seed of the day, far from the fixed ones and short enough to type; no two days share one.
fn seed_of_the_day() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
    1_000_000 + now / 86_400 * FRESH_SEEDS
}

fn stages() -> Result {
    // Before anything is built: half an hour later is late to learn that Go is missing.
    stage("go", go::check)?;
    stage("format", || {
        run::run(&mut run::cargo(["fmt", "--all", "--check"]))?;
        for manifest in ["fuzz/Cargo.toml", "tools/codegen/Cargo.toml"] {
            run::run(&mut run::cargo(["fmt", "--check", "--manifest-path", manifest]))?;
        }
        Ok(())
    })?;
    stage("tidy", || tidy::run(&[]))?;
    stage("clippy", || {
        run::run(&mut run::cargo(["clippy", "-q", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    })?;
    // Among them etcd's 41 raft scripts.
    stage("tests", || run::run(&mut run::cargo(["test", "--workspace", "--no-fail-fast"])))?;
    // Built exactly as the later stages ask for it, since other features would mean another build.
    stage("release build", || interop::build_server().map(|_| ()))?;
    stage("simulator, fixed seeds", || sim::run(&["--seeds".into(), FIXED_SEEDS.into()]))?;
    stage("simulator, seeds of the day", || {
        let first = seed_of_the_day();
        println!("seeds of the day: {first} to {}", first + FRESH_SEEDS - 1);
        sim::run(&["--from".into(), first.to_string(), "--seeds".into(), FRESH_SEEDS.to_string()])
    })?;
    stage("simulator, a seed twice is the same", || sim::run(&["--twice".into(), "--seeds".into(), "20".into()]))?;
    match dist::missing()? {
        None => stage("dist", || dist::run(&["--quick".into()]))?,
        Some(what) => println!("\n=== dist: NOT CHECKED: {what}"),
    }
    stage("crash", || crash::run(&["--quick".into()]))?;
    stage("hostile", || hostile::run(&["--quick".into()]))?;
    stage("interop", || interop::run(&["--quick".into()]))?;
    stage("tools-diff", || tools_diff::run(&[]))
}
