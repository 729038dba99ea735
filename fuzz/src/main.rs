//! Damaged bytes to everything that reads bytes: nothing may panic, hang or take memory without bound.
//!
//! ```text
//! dolmen-fuzz TARGET [--seconds 60] [--seed N] [--cases N]
//! ```
//!
//! Each case is drawn from its own seed: a valid input, mutated, and handed to the code that has to survive it. A panic
//! prints the line that repeats the case. In process and without instrumentation, so that it needs no other compiler.

// What this measures is how long it has run.
#![allow(clippy::disallowed_methods)]

mod bolt;
mod http2;
mod mutate;
mod peer;
mod request;
mod segment;
mod wal;

/// The checks of requests are the edge's own and private to it; here they run as they are, without the edge.
#[allow(dead_code, clippy::duplicate_mod)]
#[path = "../../crates/api/src/status.rs"]
mod status;
#[allow(dead_code)]
#[path = "../../crates/api/src/validate.rs"]
mod validate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dolmen_env::Rng;
use rustix::process::{Resource, Rlimit, setrlimit};

/// Address space of the process. What asks for more is aborted, and that counts as a finding.
const MEMORY_BYTES: u64 = 4 << 30;
/// No case may take longer.
const CASE_LIMIT: Duration = Duration::from_secs(5);

/// Something that reads bytes.
trait Target {
    /// Runs one case. A panic is a finding; what is returned says how far the input came, for the summary.
    fn case(&mut self, rng: &mut Rng) -> Reached;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    /// Refused at the door.
    Refused,
    /// Taken for good, though damaged; or damage that says nothing.
    Accepted,
}

fn target(name: &str) -> Option<Box<dyn Target>> {
    Some(match name {
        "wal" => Box::new(wal::Wal::new()),
        "segment" => Box::new(segment::Segment::new()),
        "bolt" => Box::new(bolt::Bolt::new()),
        "peer" => Box::new(peer::Peer::new()),
        "request" => Box::new(request::Requests::new()),
        "http2" => Box::new(http2::Http2::new()),
        _ => return None,
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!(
                "{text}\nusage: dolmen-fuzz wal|segment|bolt|peer|request|http2 [--seconds 60] [--seed N] [--cases N]"
            );
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> Result<bool, String> {
    let (name, rest) = arguments.split_first().ok_or("which target?")?;
    let (mut seconds, mut seed, mut cases) = (60, None, u64::MAX);
    for pair in rest.chunks(2) {
        let [flag, value] = pair else { return Err(format!("{} needs a value", pair[0])) };
        let value: u64 = value.parse().map_err(|_| format!("{flag}: {value} is no number"))?;
        match flag.as_str() {
            "--seconds" => seconds = value,
            "--seed" => seed = Some(value),
            "--cases" => cases = value,
            _ => return Err(format!("unknown argument {flag}")),
        }
    }
    let limit = Rlimit { current: Some(MEMORY_BYTES), maximum: Some(MEMORY_BYTES) };
    setrlimit(Resource::As, limit).map_err(|error| format!("cannot bound memory: {error}"))?;
    let first = seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |age| age.as_secs()) << 20
    });
    let mut target = target(name).ok_or_else(|| format!("no target {name:?}"))?;
    println!("{name}: seeds from {first}");

    let (begin, mut accepted, mut ran) = (Instant::now(), 0u64, 0u64);
    while ran < cases && begin.elapsed() < Duration::from_secs(seconds) {
        let seed = first + ran;
        let again = format!("cargo run --release --manifest-path fuzz/Cargo.toml -- {name} --seed {seed} --cases 1");
        let since = Instant::now();
        match catch_unwind(AssertUnwindSafe(|| target.case(&mut Rng::new(seed)))) {
            Ok(reached) => accepted += u64::from(reached == Reached::Accepted),
            Err(_) => {
                println!("{name}: panicked; repeat with\n  {again}");
                return Ok(false);
            }
        }
        if since.elapsed() > CASE_LIMIT {
            println!("{name}: took {:.1} s; repeat with\n  {again}", since.elapsed().as_secs_f64());
            return Ok(false);
        }
        ran += 1;
    }
    println!("{name}: {ran} cases, {accepted} taken, {} refused, no panic", ran - accepted);
    Ok(true)
}
