//! `cargo xtask bench`: Dolmen beside Go etcd 3.6.16, the faster of etcd's releases; `bench tools`: their tools.
//!
//! A *part* is one thing measured with one client on so many members ([`parts`]); a *round* of it measures both servers
//! one after the other, each on a fresh cluster with the same flags on the same disk, and rounds change the order. What
//! a round found is kept in `target/bench/results.json` ([`results`]), and `docs/bench.md` is written from that file
//! ([`page`]), so a long measurement can be made in pieces: rounds of the same commit add up, another commit begins anew.
//!
//! The clients share the cores with the servers and hold the throughput of both down, so the figure to compare is the
//! servers' CPU per operation, all members summed. Only ratios of one run mean anything.

mod big;
mod gotool;
mod lean;
mod page;
mod parts;
mod results;
mod tools;

pub use lean::build as build_load;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::go::{self, Judge};
use crate::interop;
use crate::run::{self, Arguments, Result, Scratch};
use parts::{Client, WORK, Work};
use results::{Figures, Results};

/// Enough for the largest store here, on both servers.
const QUOTA: &str = "--quota-backend-bytes=8589934592";

/// The two that are compared, in this order everywhere.
const NAMES: [&str; 2] = ["Dolmen", "etcd 3.6.16"];

/// What was asked for.
struct Request {
    rounds: usize,
    members: Vec<usize>,
    clients: Vec<Client>,
    only: Option<Vec<String>>,
    /// Of the operations of each workload.
    scale: f64,
    /// Of the large stores.
    keys: u64,
    server: Option<PathBuf>,
    load: Option<PathBuf>,
    commit: Option<String>,
    /// Write the page from what is there, and measure nothing.
    page: bool,
}

impl Request {
    fn wanted(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name))
    }
}

/// Everything a part needs: the programs, a folder, and where its figures go.
struct Bench {
    request: Request,
    scratch: Scratch,
    /// Called `etcd`, since Dolmen goes by its name.
    servers: [PathBuf; 2],
    load: PathBuf,
    commit: String,
    results: Results,
}

pub fn run(arguments: &[String]) -> Result {
    let (of_tools, arguments) = match arguments.split_first() {
        Some((first, rest)) if first == "tools" => (true, rest),
        _ => (false, arguments),
    };
    let request = parse(arguments)?;
    known(&request, of_tools)?;
    if request.page {
        return write_page(&Results::read()?);
    }
    go::build(&[Judge::Etcd36, Judge::Etcdctl, Judge::Benchmark])?;
    if of_tools {
        go::build(&[Judge::Etcd37, Judge::Etcdutl])?;
    }
    let server = request.server.clone().map_or_else(interop::build_server, Ok)?;
    let load = request.load.clone().map_or_else(lean::build, Ok)?;
    let scratch = Scratch::new("bench")?;
    let place = |from: &Path, folder: &str| -> Result<PathBuf> {
        let dir = scratch.dir.join(folder);
        run::make_dir(&dir)?;
        run::place(from, &dir.join("etcd")).map(|()| dir.join("etcd"))
    };
    let commit = request.commit.clone().map_or_else(commit, Ok)?;
    let mut bench = Bench {
        servers: [place(&server, "dolmen")?, place(&Judge::Etcd36.path(), "etcd36")?],
        results: Results::read()?,
        request,
        scratch,
        load,
        commit,
    };
    if of_tools {
        tools::run(&mut bench, &server)?
    } else {
        bench.servers()?
    }
    write_page(&bench.results)
}

fn parse(arguments: &[String]) -> Result<Request> {
    let mut request = Request {
        rounds: 3,
        members: vec![1, 3],
        clients: vec![Client::Lean, Client::Tool],
        only: None,
        scale: 1.0,
        keys: 1_000_000,
        server: None,
        load: None,
        commit: None,
        page: false,
    };
    let mut arguments = Arguments::new(arguments);
    while let Some(name) = arguments.next_name() {
        match name {
            "--rounds" => request.rounds = arguments.parsed(name)?,
            "--members" => request.members = vec![arguments.parsed(name)?],
            "--client" => request.clients = vec![Client::named(arguments.value(name)?)?],
            "--only" => request.only = Some(arguments.value(name)?.split(',').map(str::to_owned).collect()),
            "--scale" => request.scale = arguments.parsed(name)?,
            "--keys" => request.keys = arguments.parsed(name)?,
            "--server" => request.server = Some(PathBuf::from(arguments.value(name)?)),
            "--load" => request.load = Some(PathBuf::from(arguments.value(name)?)),
            "--commit" => request.commit = Some(arguments.value(name)?.to_owned()),
            "--page" => request.page = true,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    if request.rounds == 0 || request.members.iter().any(|n| !matches!(n, 1 | 3)) || request.keys < 1_000 {
        return Err("--rounds is 1 or more, --members is 1 or 3, --keys is 1000 or more".into());
    }
    Ok(request)
}

/// Refuses names that nothing has.
fn known(request: &Request, of_tools: bool) -> Result {
    let names: Vec<&str> = if of_tools {
        tools::PARTS.iter().map(|part| part.name).collect()
    } else {
        WORK.iter().map(|work| work.name).chain(big::NAMES).collect()
    };
    match request.only.iter().flatten().find(|name| !names.contains(&name.as_str())) {
        Some(unknown) => Err(format!("no part {unknown:?}; there are {}", names.join(", "))),
        None => Ok(()),
    }
}

/// The commit the programs are built from; with a `+` when the sources differ from it.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| run::text(Command::new("git").current_dir(run::root()).args(arguments));
    let head = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--", "crates", "Cargo.lock"])?;
    Ok(format!("{}{}", head.trim(), if changed.trim().is_empty() { "" } else { "+" }))
}

fn write_page(results: &Results) -> Result {
    let path = run::root().join("docs/bench.md");
    run::write(&path, &page::render(results))?;
    println!("written to {}", path.display());
    Ok(())
}

impl Bench {
    /// The parts that are about servers.
    fn servers(&mut self) -> Result {
        for members in self.request.members.clone() {
            for client in self.request.clients.clone() {
                for work in WORK.iter().filter(|work| client == Client::Lean || work.tool.is_some()) {
                    if self.request.wanted(work.name) {
                        self.workload(work, members, client)?;
                    }
                }
            }
        }
        for name in big::NAMES {
            if self.request.wanted(name) && self.request.members.contains(&1) {
                self.rounds(&format!("{name}/1/load"), |bench, side| big::measure(bench, side, name))?;
            }
        }
        Ok(())
    }

    fn workload(&mut self, work: &Work, members: usize, client: Client) -> Result {
        let key = format!("{}/{members}/{}", work.name, client.name());
        self.rounds(&key, |bench, side| parts::measure(bench, side, work, members, client))
    }

    /// Measures both sides as often as asked, the first one of them in turn, and keeps what came out.
    fn rounds(&mut self, key: &str, mut measure: impl FnMut(&Self, usize) -> Result<Figures>) -> Result {
        for _ in 0..self.request.rounds {
            let nth = self.results.rounds(key, &self.commit);
            let order = if nth.is_multiple_of(2) { [0, 1] } else { [1, 0] };
            let mut round = [Figures::new(), Figures::new()];
            for side in order {
                let outcome = measure(self, side).map_err(|why| format!("{key}, {}: {why}", NAMES[side]));
                // Killed and removed whatever happened.
                self.scratch.clear();
                round[side] = outcome?;
                println!("{key:22} round {} {:12}{}", nth + 1, NAMES[side], results::shown(&round[side]));
                run::flush();
            }
            self.results.add(key, &self.commit, round);
            self.results.write()?;
        }
        Ok(())
    }

    /// A folder for the data of one cluster.
    fn data(&self) -> PathBuf {
        self.scratch.tmp().join("data")
    }
}
