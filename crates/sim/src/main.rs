//! `dolmen-sim`: runs seeds, prints what broke and how to repeat it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use dolmen_sim::{Mutant, Options, Report, Stats, run};

const HELP: &str = "\
dolmen-sim: whole clusters in one thread from one seed

  --seed N       run one seed, print its last events if it breaks
  --seeds N      run so many seeds (default 100; with --mutants, at most 10000)
  --from N       beginning at this one (default 0)
  --jobs N       on so many threads (default: all)
  --mutant NAME  with a planted bug, which is to be found
  --mutants      with each planted bug in turn, until it is found and a hundred seeds have run; prints how many of
                 them found it
  --short        a shorter time of faults
  --twice        run each seed twice and compare the traces
  --keep-going   do not stop at the first seed that breaks
  --verbose      print every event (with --seed)
";

/// A planted bug has to be found within so many seeds.
const MUTANT_SEEDS: u64 = 10_000;
/// Of a planted bug, so many seeds are run even if the first finds it: how many do tells how well it is found.
const COUNTED_SEEDS: u64 = 100;

struct Arguments {
    from: u64,
    seeds: u64,
    jobs: usize,
    options: Options,
    mutants: bool,
    twice: bool,
    keep_going: bool,
}

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

fn parse() -> Result<Arguments, String> {
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut arguments = Arguments {
        from: 0,
        seeds: 100,
        jobs,
        options: Options::default(),
        mutants: false,
        twice: false,
        keep_going: false,
    };
    let mut seeds_given = false;
    let mut rest = std::env::args().skip(1);
    while let Some(flag) = rest.next() {
        let (flag, given) = match flag.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (flag, None),
        };
        let mut value = || given.clone().or_else(|| rest.next()).ok_or_else(|| format!("{flag} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is not a number"));
        match flag.as_str() {
            "--seed" => (arguments.from, arguments.seeds) = (number(value()?)?, 1),
            "--seeds" => (arguments.seeds, seeds_given) = (number(value()?)?, true),
            "--from" => arguments.from = number(value()?)?,
            "--jobs" => arguments.jobs = number(value()?)?.max(1) as usize,
            "--mutant" => {
                let name = value()?;
                let known = || Mutant::ALL.map(Mutant::name).join(", ");
                let mutant = Mutant::parse(&name).ok_or_else(|| format!("no mutant {name}; there are {}", known()))?;
                arguments.options.mutant = Some(mutant);
            }
            "--mutants" => arguments.mutants = true,
            "--short" => arguments.options.short = true,
            "--twice" => arguments.twice = true,
            "--keep-going" => arguments.keep_going = true,
            "--verbose" => arguments.options.verbose = true,
            "--help" | "-h" => return Err(HELP.to_owned()),
            other => return Err(format!("unknown flag {other}\n\n{HELP}")),
        }
    }
    if arguments.mutants && !seeds_given {
        arguments.seeds = MUTANT_SEEDS;
    }
    Ok(arguments)
}

/// Runs seeds on threads until one says stop. `each` sees every report.
fn run_all(arguments: &Arguments, options: &Options, each: &(dyn Fn(&Report) -> bool + Sync)) -> (u64, Stats) {
    let next = AtomicU64::new(arguments.from);
    let end = arguments.from.saturating_add(arguments.seeds);
    let stop = AtomicBool::new(false);
    let total = Mutex::new((0u64, Stats::default()));
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.min(arguments.seeds.max(1) as usize) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    SEED.set(seed);
                    let mut report = run(seed, options);
                    if arguments.twice && report.failure.is_none() {
                        let again = run(seed, options);
                        if (again.trace, again.events) != (report.trace, report.events) {
                            report.failure = Some(dolmen_sim::Failure {
                                what: "two runs of this seed differ".into(),
                                at: report.stats.virtual_nanos,
                                last: Vec::new(),
                            });
                        }
                    }
                    let mut total = total.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    total.0 += 1;
                    total.1.add(&report.stats);
                    drop(total);
                    if !each(&report) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    total.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs all planted bugs; `true` when each was found.
fn run_mutants(arguments: &Arguments) -> bool {
    println!("{:<20} {:>8} {:>8} {:>12}", "mutant", "seeds", "caught", "first");
    let mut all = true;
    for mutant in Mutant::ALL {
        let options = Options { mutant: Some(mutant), ..arguments.options.clone() };
        let caught: Mutex<BTreeMap<u64, String>> = Mutex::default();
        let (seeds, _) = run_all(arguments, &options, &|report| {
            let mut caught = caught.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(failure) = &report.failure {
                caught.insert(report.seed, failure.what.clone());
            }
            caught.is_empty() || report.seed < arguments.from + COUNTED_SEEDS
        });
        let caught = caught.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (first, what) = caught.first_key_value().map_or((String::from("-"), ""), |(s, w)| (s.to_string(), w));
        let what: String = what.chars().take(100).collect();
        println!("{:<20} {seeds:>8} {:>8} {first:>12}  {what}", mutant.name(), caught.len());
        all &= !caught.is_empty();
    }
    all
}

#[allow(clippy::disallowed_methods, reason = "a run is timed by the wall clock")]
fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    let quiet = arguments.mutants || arguments.options.mutant.is_some();
    let options = arguments.options.clone();
    std::panic::set_hook(Box::new(move |info| {
        if !quiet || cfg!(panic = "abort") {
            let report = Report { seed: SEED.get(), failure: None, trace: 0, events: 0, stats: Stats::default() };
            eprintln!("{info}\n{}", report.rerun(&options));
        }
    }));
    if arguments.mutants {
        return if run_mutants(&arguments) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let begin = Instant::now();
    let failures = AtomicU64::new(0);
    let (seeds, stats) = run_all(&arguments, &arguments.options, &|report| {
        if report.failure.is_none() {
            return true;
        }
        failures.fetch_add(1, Ordering::Relaxed);
        println!("{}\n", report.text(&arguments.options));
        arguments.keep_going
    });
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds in {seconds:.1} s ({:.0} a minute), {} broke; {:.0} virtual seconds",
        seeds as f64 * 60.0 / seconds.max(1e-9),
        failures.load(Ordering::Relaxed),
        stats.virtual_nanos as f64 / 1e9
    );
    println!("{stats:?}");
    if failures.into_inner() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
