//! A snapshot restored with the URLs and token of a cluster that lives has the ids of that cluster.

use super::{Trial, World};
use crate::member::{self, Cluster};
use crate::run::{self, Result};

pub const TRIAL: Trial = Trial {
    name: "restored",
    bar: "a restored directory is refused beside the living cluster; all members restored from one snapshot serve it",
    quick: true,
    run,
};

fn run(world: &World) -> Result<String> {
    let dir = world.scratch.dir.join("cluster");
    let ports = member::free_ports(9)?;
    let mut cluster = Cluster::start_at(&world.server, &ports, &dir, &[], None)?;
    world.ctl(cluster.client(0), &["put", "a", "then"])?;
    let snapshot = world.scratch.dir.join("snapshot.db");
    let snapshot = snapshot.display().to_string();
    world.ctl(cluster.client(0), &["snapshot", "save", &snapshot])?;
    world.ctl(cluster.client(0), &["put", "a", "now"])?;

    cluster.stop_one(2);
    restore(world, &cluster, &ports, &snapshot, 2)?;
    // Once more: what the first attempt made of the directory does not let the second one pass.
    for _ in 0..2 {
        cluster.spawn_one(2)?;
        let (code, said) = cluster.ended(2)?;
        if code != 1 || !said.contains("has already been bootstrapped") || !said.contains("restored snapshot") {
            return Err(format!("beside the living cluster it ended with {code}: {said}"));
        }
    }
    expect(world, &cluster, 0, "now")?;

    cluster.stop();
    for member in 0..3 {
        restore(world, &cluster, &ports, &snapshot, member)?;
    }
    let took = cluster.restart()?;
    for member in 0..3 {
        expect(world, &cluster, member, "then")?;
    }
    cluster.kill();
    cluster.restart()?;
    expect(world, &cluster, 1, "then")?;
    Ok(format!("three restored members served after {} ms", took.as_millis()))
}

fn restore(world: &World, cluster: &Cluster, ports: &[u16], snapshot: &str, member: usize) -> Result {
    let data = cluster.data(member);
    if data.exists() {
        run::remove(data)?;
    }
    let peer = |member: usize| format!("http://127.0.0.1:{}", ports[3 * member + 1]);
    let initial: Vec<String> = (0..3).map(|member| format!("m{member}={}", peer(member))).collect();
    let mut command = std::process::Command::new(&world.etcdutl);
    command.args(["snapshot", "restore", snapshot]).arg(format!("--name=m{member}"));
    command.arg(format!("--data-dir={}", data.display())).arg(format!("--initial-cluster={}", initial.join(",")));
    command.arg(format!("--initial-advertise-peer-urls={}", peer(member)));
    run::text(&mut command).map(|_| ())
}

fn expect(world: &World, cluster: &Cluster, member: usize, value: &str) -> Result {
    let said = world.ctl(cluster.client(member), &["get", "a", "--print-value-only"])?;
    if said == value { Ok(()) } else { Err(format!("member {member} reads {said:?}, not {value:?}")) }
}
