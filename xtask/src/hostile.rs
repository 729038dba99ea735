//! `cargo xtask hostile`: trials of the built server by real processes: members that lose what they held, peers and clients
//! that mean harm, disks that stall. Each has a bar, which is printed with what was measured.
//!
//! One file a trial below `hostile/`; [`TRIALS`] lists them. A trial has a folder and a server of its own name (`etcd` there,
//! with `etcdctl` and `etcdutl` beside it), and whatever it starts from them is killed at its end.

mod divergent;
mod founding;
mod idlers;
mod memory;
mod reads;
mod restored;
mod strangers;
mod wiped;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::interop;
use crate::run::{self, Arguments, Result, Scratch};

/// A trial.
pub struct Trial {
    pub name: &'static str,
    /// What has to hold, in one line.
    pub bar: &'static str,
    /// Whether `--quick` runs it: a minute at most.
    pub quick: bool,
    /// Returns what was measured, in one line.
    pub run: fn(&World) -> Result<String>,
}

const TRIALS: &[Trial] = &[
    divergent::TRIAL,
    divergent::BESIDE_GO,
    founding::TRIAL,
    idlers::TRIAL,
    memory::TRIAL,
    reads::TRIAL,
    restored::TRIAL,
    strangers::TRIAL,
    wiped::BESIDE_DOLMEN,
    wiped::BESIDE_GO,
];

/// Where a trial happens.
pub struct World {
    /// The server, by the name of etcd.
    pub server: PathBuf,
    pub etcdctl: PathBuf,
    pub etcdutl: PathBuf,
    pub quick: bool,
    /// The folder, and what is killed at the end.
    pub scratch: Scratch,
}

impl World {
    fn new(server: &std::path::Path, name: &str, quick: bool) -> Result<Self> {
        let scratch = Scratch::new(&format!("hostile-{name}"))?;
        let bin = scratch.dir.join("bin");
        run::make_dir(&bin)?;
        let place = |name: &str| {
            let at = bin.join(name);
            run::place(server, &at).map(|()| at)
        };
        let (server, etcdctl, etcdutl) = (place("etcd")?, place("etcdctl")?, place("etcdutl")?);
        Ok(Self { server, etcdctl, etcdutl, quick, scratch })
    }

    /// Runs `etcdctl` against an endpoint, and returns what it prints.
    pub fn ctl(&self, endpoints: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.etcdctl);
        command.arg(format!("--endpoints={endpoints}")).args(arguments);
        Ok(run::text(&mut command)?.trim_end().to_owned())
    }
}

pub fn run(arguments: &[String]) -> Result {
    let (mut quick, mut only, mut server) = (false, None, None);
    let mut arguments = Arguments::new(arguments);
    while let Some(name) = arguments.next_name() {
        match name {
            "--quick" => quick = true,
            "--only" => only = Some(arguments.value(name)?.to_owned()),
            "--server" => server = Some(PathBuf::from(arguments.value(name)?)),
            "--list" => {
                TRIALS.iter().for_each(|trial| println!("{:20} {}", trial.name, trial.bar));
                return Ok(());
            }
            other => return Err(format!("unknown argument {other}")),
        }
    }
    let wanted: Vec<&Trial> = TRIALS
        .iter()
        .filter(|trial| only.as_deref().map_or(!quick || trial.quick, |part| trial.name.contains(part)))
        .collect();
    if wanted.is_empty() {
        return Err("no such trial; --list names them".to_owned());
    }
    let server = match server {
        Some(path) => path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?,
        None => interop::build_server()?,
    };
    let mut failures = Vec::new();
    for trial in &wanted {
        println!("{}: {}", trial.name, trial.bar);
        run::flush();
        let begin = Instant::now();
        let outcome = World::new(&server, trial.name, quick).and_then(|world| (trial.run)(&world));
        run::count(u64::from(outcome.is_ok()), u64::from(outcome.is_err()));
        let took = begin.elapsed().as_secs_f64();
        match outcome {
            Ok(measured) => println!("{}: ok in {took:.1} s: {measured}", trial.name),
            Err(why) => {
                println!("{}: FAILED in {took:.1} s: {why}", trial.name);
                failures.push(trial.name);
            }
        }
        run::flush();
    }
    println!("{} passed, {} failed", wanted.len() - failures.len(), failures.len());
    if failures.is_empty() { Ok(()) } else { Err(format!("failed: {}", failures.join(", "))) }
}
