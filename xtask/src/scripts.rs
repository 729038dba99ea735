//! What operators type (`interop/scripts`), run against three members with client certificates: Dolmen with its tools, Go
//! etcd with Dolmen's tools, and, as the control, Go etcd with its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::go::{self, Judge};
use crate::member::{self, Cluster};
use crate::run::{self, Result, Scratch};

/// The slowest takes half a minute.
const LIMIT: Duration = Duration::from_secs(240);

/// A server, the tools, and whether both are held to what only Dolmen promises.
struct Side {
    name: &'static str,
    server: PathBuf,
    etcdctl: PathBuf,
    etcdutl: PathBuf,
    ours: bool,
}

pub fn run(dolmen: &Path, quick: bool, only: Option<&str>) -> Result {
    let etcd = Judge::Etcd37.build()?;
    let ours = |name, server: &Path| Side {
        name,
        server: server.to_owned(),
        etcdctl: dolmen.to_owned(),
        etcdutl: dolmen.to_owned(),
        ours: true,
    };
    let mut sides = vec![ours("Dolmen", dolmen), ours("Dolmen's tools, Go's server", &etcd)];
    if !quick {
        let (etcdctl, etcdutl) = (Judge::Etcdctl.build()?, Judge::Etcdutl.build()?);
        sides.push(Side { name: "Go etcd", server: etcd, etcdctl, etcdutl, ours: false });
    }
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(run::root().join("interop/scripts"))
        .map_err(|error| format!("interop/scripts: {error}"))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "sh"))
        .filter(|path| only.is_none_or(|part| path.to_string_lossy().contains(part)))
        .collect();
    scripts.sort();
    let certificates = go::module_dir("go.etcd.io/etcd/tests/v3")?.join("fixtures");
    let mut failures = Vec::new();
    for side in &sides {
        for script in &scripts {
            let name = format!("{} on {}", script.file_stem().unwrap_or_default().to_string_lossy(), side.name);
            let outcome = one(side, dolmen, script, &certificates);
            run::count(u64::from(outcome.is_ok()), u64::from(outcome.is_err()));
            match outcome {
                Ok(()) => println!("{name}: ok"),
                Err(why) => {
                    println!("{name}: FAILED: {why}");
                    failures.push(format!("{name}: {why}"));
                }
            }
            run::flush();
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn one(side: &Side, dolmen: &Path, script: &Path, certificates: &Path) -> Result {
    let scratch = Scratch::new("scripts")?;
    let bin = scratch.dir.join("bin");
    run::make_dir(&bin)?;
    let names = [("etcd", &side.server), ("etcdctl", &side.etcdctl), ("etcdutl", &side.etcdutl)];
    for (name, program) in names {
        run::place(program, &bin.join(name))?;
    }
    // No module of etcd-defrag's can be pinned: ours on every side.
    run::place(dolmen, &bin.join("etcd-defrag"))?;
    let cluster = Cluster::start_tls(&bin.join("etcd"), 3, &scratch.dir.join("cluster"), certificates)?;
    let work = scratch.dir.join("work");
    run::make_dir(&work)?;

    let path = std::env::var("PATH").unwrap_or_default();
    let mut bash = Command::new("bash");
    bash.arg(script).current_dir(&work);
    bash.env("PATH", format!("{}:{path}", bin.display())).env("DIR", &work);
    for (name, member) in [("A", 0), ("B", 1), ("C", 2)] {
        bash.env(name, format!("https://{}", cluster.client(member)));
    }
    let files = [("CACERT", "ca.crt"), ("CERT", "server.crt"), ("KEY", "server.key.insecure")];
    for (name, file) in files {
        bash.env(name, certificates.join(file));
    }
    for (i, port) in member::free_ports(6)?.iter().enumerate() {
        bash.env(format!("P{}", i + 1), port.to_string());
    }
    bash.env("DOLMEN", if side.ours { "1" } else { "0" });
    let mut said = Vec::new();
    let ended = run::watch(scratch.home(&mut bash), Some(LIMIT), &mut |line| said.push(line.to_owned()))?;
    scratch.sweep();
    ended.ok(&bash).map_err(|why| {
        let tail: Vec<&str> = said.iter().rev().take(12).rev().map(String::as_str).collect();
        format!("{why}\n  {}", tail.join("\n  "))
    })
}
