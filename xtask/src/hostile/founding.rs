//! First starts: members on empty directories, alone, together, and one after the other.

use std::time::{Duration, Instant};

use super::{Trial, World};
use crate::member::{self, Cluster};
use crate::run::Result;

pub const TRIAL: Trial = Trial {
    name: "founding",
    bar: "a member alone serves in 1 s, three started together in 3 s, three started one by one as soon as two are there",
    // Its bars are times, which a busy machine misses.
    quick: false,
    run,
};

const ALONE: Duration = Duration::from_secs(1);
const TOGETHER: Duration = Duration::from_secs(3);

fn run(world: &World) -> Result<String> {
    let alone = started(world, 1)?;
    let together = started(world, 3)?;
    let by_two = one_by_one(world)?;
    let measured = format!(
        "alone {} ms, together {} ms, one by one {} ms after the second",
        alone.as_millis(),
        together.as_millis(),
        by_two.as_millis()
    );
    if alone > ALONE || together > TOGETHER || by_two > TOGETHER { Err(measured) } else { Ok(measured) }
}

fn started(world: &World, count: usize) -> Result<Duration> {
    let dir = world.scratch.dir.join(format!("founding-{count}"));
    let mut cluster = Cluster::prepare(&world.server, &member::free_ports(3 * count)?, &dir, &[], None)?;
    cluster.restart()
}

/// The third comes when the first two serve.
fn one_by_one(world: &World) -> Result<Duration> {
    let dir = world.scratch.dir.join("one-by-one");
    let mut cluster = Cluster::prepare(&world.server, &member::free_ports(9)?, &dir, &[], None)?;
    cluster.spawn_one(2)?;
    // Long enough to find out that it is alone.
    std::thread::sleep(Duration::from_secs(if world.quick { 1 } else { 5 }));
    cluster.spawn_one(0)?;
    let begin = Instant::now();
    cluster.wait_one(0)?;
    cluster.wait_one(2)?;
    let took = begin.elapsed();
    cluster.spawn_one(1)?;
    cluster.wait_one(1)?;
    world.ctl(cluster.client(2), &["put", "a", "1"])?;
    let said = world.ctl(cluster.client(1), &["get", "a", "--print-value-only"])?;
    if said == "1" { Ok(took) } else { Err(format!("the third member reads {said:?}")) }
}
