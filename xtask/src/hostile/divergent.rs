//! One member's store holds another value than those of the others, with checksums that are right.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Trial, World};
use crate::go::Judge;
use crate::member::{self, Cluster};
use crate::run::Result;

pub const TRIAL: Trial = Trial {
    name: "divergent",
    bar: "a member of three that holds a wrong value serves no keys 10 s after it serves at all, leading or not; the others go on",
    quick: true,
    run: |world| run(world, false),
};

pub const BESIDE_GO: Trial = Trial {
    name: "divergent-beside-go",
    bar: "the same, the other two members being Go's etcd 3.7",
    quick: false,
    run: |world| run(world, true),
};

const FOUND: Duration = Duration::from_secs(10);
const RIGHT: &[u8] = b"the value that everybody agreed on";
const WRONG: &[u8] = b"the value that nobody agreed on ..";

fn run(world: &World, beside_go: bool) -> Result<String> {
    let dir = world.scratch.dir.join("cluster");
    let mut cluster = Cluster::prepare(&world.server, &member::free_ports(9)?, &dir, &[], None)?;
    if beside_go {
        let etcd = Judge::Etcd37.build()?;
        (0..2).for_each(|member| cluster.set_program_of(member, &etcd));
    }
    cluster.restart()?;
    world.ctl(cluster.client(0), &["put", "a", &String::from_utf8_lossy(RIGHT)])?;
    // The third member leads when it can: a wrong leader is the worse one.
    lead(world, &cluster, 2)?;
    cluster.stop();
    alter(&cluster.data(2).join("member/store"))?;
    cluster.spawn_one(2)?;
    cluster.spawn_one(0)?;
    cluster.spawn_one(1)?;
    cluster.wait_one(0)?;
    cluster.wait_one(1)?;

    let begin = Instant::now();
    let mut served = None;
    loop {
        let answer = world.ctl(cluster.client(2), &["get", "a", "--consistency=s", "--print-value-only"]);
        match answer {
            Ok(value) if value.as_bytes() == WRONG => {
                served.get_or_insert_with(Instant::now);
            }
            Ok(value) => return Err(format!("the altered member reads {value:?}: nothing was altered")),
            Err(why) if why.contains("corrupt cluster") => break,
            Err(_) => {}
        }
        if served.unwrap_or(begin).elapsed() > FOUND + if served.is_some() { Duration::ZERO } else { FOUND * 3 } {
            return Err(format!("not found: {}", cluster.said(2)));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let took = served.map_or(Duration::ZERO, |served| served.elapsed());
    let status = world.ctl(cluster.client(2), &["endpoint", "status", "--write-out=json"])?;
    if !status.contains("CORRUPT") || member::healthy(cluster.client(2)) {
        return Err(format!("it calls itself well: {status}"));
    }
    if !cluster.said(2).contains("CORRUPT") {
        return Err(format!("its log says nothing: {}", cluster.said(2)));
    }
    for member in 0..2 {
        world.ctl(cluster.client(member), &["put", "b", "1"])?;
        let said = world.ctl(cluster.client(member), &["get", "a", "--print-value-only"])?;
        if said.as_bytes() != RIGHT {
            return Err(format!("member {member} reads {said:?}"));
        }
    }
    let leader = world.ctl(cluster.client(0), &["endpoint", "status", "--write-out=fields"])?;
    Ok(format!("found {} ms after its first wrong answer; {}", took.as_millis(), line(&leader, "\"Leader\"")))
}

fn line<'a>(text: &'a str, begins: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(begins)).unwrap_or_default()
}

/// Makes a member lead, asking whoever leads.
fn lead(world: &World, cluster: &Cluster, member: usize) -> Result {
    let fields = world.ctl(cluster.client(member), &["endpoint", "status", "--write-out=fields"])?;
    let id = line(&fields, "\"MemberID\"").rsplit(' ').next().unwrap_or_default().to_owned();
    let id = id.parse::<u64>().map(|id| format!("{id:x}")).map_err(|error| format!("{error}: {fields}"))?;
    for asked in 0..3 {
        if world.ctl(cluster.client(asked), &["move-leader", &id]).is_ok() {
            return Ok(());
        }
    }
    // It led already.
    Ok(())
}

const HEADER: usize = 104;

/// Changes the value in a store's files, and the checksums of the frame that holds it (docs/format-revlog.md).
fn alter(store: &Path) -> Result {
    for entry in std::fs::read_dir(store).map_err(|error| error.to_string())?.flatten() {
        let path = entry.path();
        let mut bytes = std::fs::read(&path).map_err(|error| error.to_string())?;
        let Some(at) = bytes.windows(RIGHT.len()).position(|part| part == RIGHT) else { continue };
        let Some(frame) = bytes[..at].windows(3).rposition(|part| part == b"DLF") else { continue };
        let len = u32::from_le_bytes([8, 9, 10, 11].map(|field| bytes[frame + field])) as usize;
        let end = frame + HEADER + len;
        let record = record(&bytes[..end], frame + HEADER, at).ok_or("the value is in no record")?;
        bytes[at..at + WRONG.len()].copy_from_slice(WRONG);
        let sum = crc32c(&bytes[record.0 + 4..record.1]);
        bytes[record.0..record.0 + 4].copy_from_slice(&sum.to_le_bytes());
        let body = crc32c(&bytes[frame + HEADER..frame + HEADER + len]);
        bytes[frame + 72..frame + 76].copy_from_slice(&body.to_le_bytes());
        let header = crc32c(&bytes[frame + 8..frame + HEADER]);
        bytes[frame + 4..frame + 8].copy_from_slice(&header.to_le_bytes());
        return std::fs::write(&path, bytes).map_err(|error| error.to_string());
    }
    Err(format!("no file of {} holds the value", store.display()))
}

/// Where the record around `at` begins, with its checksum, and ends.
fn record(bytes: &[u8], from: usize, at: usize) -> Option<(usize, usize)> {
    (from..at).find_map(|start| {
        let sum = u32::from_le_bytes(bytes.get(start..start + 4)?.try_into().ok()?);
        let mut crc = !0;
        (start + 4..bytes.len()).find_map(|end| {
            crc = step(crc, bytes[end]);
            (end + 1 >= at + RIGHT.len() && !crc == sum).then_some((start, end + 1))
        })
    })
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| step(crc, *byte))
}

fn step(mut crc: u32, byte: u8) -> u32 {
    crc ^= u32::from(byte);
    for _ in 0..8 {
        crc = (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1));
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
