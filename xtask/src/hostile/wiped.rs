//! A member loses its directory and comes back under its id: it must not vote, since it has forgotten what it acknowledged.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Trial, World};
use crate::go::Judge;
use crate::member::{self, Cluster};
use crate::run::{self, Result};

pub const BESIDE_DOLMEN: Trial = Trial {
    name: "wiped",
    bar: "a wiped member is refused under new and existing, and none of 200 acknowledged puts is lost",
    quick: true,
    run: |world| run(world, None),
};

pub const BESIDE_GO: Trial = Trial {
    name: "wiped-beside-go",
    bar: "the same, the other two members being Go's etcd 3.7; removed and added, it comes back",
    quick: false,
    run: |world| run(world, Some(&Judge::Etcd37.build()?)),
};

const KEYS: usize = 200;
/// For a cluster to be well again.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for an election between two members.
const ELECTION: Duration = Duration::from_secs(4);

/// Members 0 and 1 are of `others`; member 2 is wiped.
fn run(world: &World, others: Option<&Path>) -> Result<String> {
    let dir = world.scratch.dir.join("cluster");
    let mut cluster = Cluster::prepare(&world.server, &member::free_ports(9)?, &dir, &["--log-level=warn"], None)?;
    if let Some(program) = others {
        (0..2).for_each(|member| cluster.set_program_of(member, program));
    }
    cluster.restart()?;
    // Member 1 misses what the other two acknowledge.
    cluster.stop_one(1);
    put(world, &cluster)?;
    cluster.kill_one(0);
    cluster.kill_one(2);
    wipe(&cluster, 2)?;

    cluster.spawn_one(1)?;
    refused(&mut cluster, "new")?;
    refused(&mut cluster, "existing")?;
    cluster.set_flag(2, "--initial-cluster-state", "new");
    cluster.spawn_one(0)?;
    cluster.wait_one(0)?;
    cluster.wait_one(1)?;
    whole(world, &cluster, 1)?;

    // Beside a cluster that is well: a volume that was not mounted, a pod's emptyDir.
    refused(&mut cluster, "new")?;
    refused(&mut cluster, "existing")?;
    // Dolmen's members cannot be removed and added yet.
    if others.is_some() {
        re_add(world, &mut cluster)?;
        whole(world, &cluster, 2)?;
    }
    // Alone it waits, and can be told to stop.
    cluster.kill();
    wipe(&cluster, 2)?;
    cluster.spawn_one(2)?;
    std::thread::sleep(ELECTION);
    if !cluster.runs(2) || member::healthy(cluster.client(2)) {
        return Err(format!("a wiped member that nobody knows of serves or ends: {}", cluster.said(2)));
    }
    let said = cluster.said(2);
    if !said.contains("waiting for other members") {
        return Err(format!("it does not say that it waits: {said}"));
    }
    cluster.stop_one(2);
    Ok(format!("{KEYS} of {KEYS} puts there"))
}

fn put(world: &World, cluster: &Cluster) -> Result {
    for key in 0..KEYS {
        world.ctl(cluster.client(0), &["put", &format!("k{key:03}"), "v"])?;
    }
    Ok(())
}

fn whole(world: &World, cluster: &Cluster, member: usize) -> Result {
    let found = world.ctl(cluster.client(member), &["get", "k", "--prefix", "--count-only", "--write-out=fields"])?;
    if found.lines().any(|line| line == format!("\"Count\" : {KEYS}")) {
        return Ok(());
    }
    Err(format!("member {member} has not all {KEYS} keys: {found}"))
}

fn wipe(cluster: &Cluster, member: usize) -> Result {
    run::remove(cluster.data(member))
}

/// Starts the wiped member, which has to end by itself and say why, and never to serve.
fn refused(cluster: &mut Cluster, state: &str) -> Result {
    cluster.set_flag(2, "--initial-cluster-state", state);
    cluster.spawn_one(2)?;
    let (code, said) = cluster.ended(2)?;
    for words in ["has already been bootstrapped", "--data-dir", "member remove"] {
        if code != 1 || !said.contains(words) {
            return Err(format!("{state}: ended with {code}, not saying {words:?}: {said}"));
        }
    }
    Ok(())
}

/// The way out that the refusal names.
fn re_add(world: &World, cluster: &mut Cluster) -> Result {
    let list = world.ctl(cluster.client(0), &["member", "list"])?;
    let line = list.lines().find(|line| line.contains(", m2, ")).ok_or(format!("m2 is not listed: {list}"))?;
    let id = line.split(',').next().unwrap_or_default();
    world.ctl(cluster.client(0), &["member", "remove", id])?;
    let peer = line.split(", ").nth(3).unwrap_or_default();
    let add = ["member", "add", "m2", &format!("--peer-urls={peer}")];
    // Refused until the remaining two have been connected for five seconds.
    let begin = Instant::now();
    while let Err(why) = world.ctl(cluster.client(0), &add) {
        if begin.elapsed() > PATIENCE {
            return Err(why);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    cluster.set_flag(2, "--initial-cluster-state", "existing");
    cluster.spawn_one(2)?;
    cluster.wait_one(2)
}
