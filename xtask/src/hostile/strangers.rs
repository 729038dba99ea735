//! Somebody who reaches the peer port, which has no TLS, and means harm.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Trial, World};
use crate::member::{self, Cluster};
use crate::run::Result;

pub const TRIAL: Trial = Trial {
    name: "strangers",
    bar: "garbage proposals stop nobody, refused snapshots leave no file, hanging uploads keep nobody else out",
    quick: true,
    run,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn run(world: &World) -> Result<String> {
    let dir = world.scratch.dir.join("cluster");
    let ports = member::free_ports(9)?;
    let mut cluster = Cluster::start_at(&world.server, &ports, &dir, &[], None)?;
    let (ids, id_of_cluster) = ids(world, &cluster)?;
    let peer = |member: usize| format!("127.0.0.1:{}", ports[3 * member + 1]);
    for member in 0..3 {
        let from = ids[(member + 1) % 3];
        for entry in [&b"\x22\x07garbage"[..], b"\x08\x01\x22\x07garbage", b"\x08\x02", b"\x08\x4d\x22\x01x"] {
            // MsgProp of this one entry.
            let mut message = vec![0x08, 2];
            put_varint(&mut message, 0x10, ids[member]);
            put_varint(&mut message, 0x18, from);
            message.extend([0x3a, entry.len() as u8]);
            message.extend(entry);
            let answer = post(&peer(member), "/raft", id_of_cluster, &message)?;
            if !answer.starts_with("HTTP/1.1 204") {
                return Err(format!("a proposal was answered {answer}"));
            }
        }
    }
    world.ctl(cluster.client(0), &["put", "a", "1"])?;
    std::thread::sleep(Duration::from_secs(2));
    if let Some(member) = (0..3).find(|member| !cluster.runs(*member)) {
        return Err(format!("member {member} ended: {}", cluster.said(member)));
    }

    let mut hanging = Vec::new();
    for number in 0..4_u64 {
        let upload = snapshot(ids[0], 77_000 + number, 1);
        let mut stream = connect(&peer(0))?;
        stream
            .write_all(head("/raft/snapshot", id_of_cluster, 1 << 20).as_bytes())
            .map_err(|error| error.to_string())?;
        stream.write_all(&upload).map_err(|error| error.to_string())?;
        hanging.push(stream);
    }
    let mut uploads = 0;
    for index in 1..=20 {
        let upload = snapshot(ids[0], ids[1], index);
        let answer = post(&peer(0), "/raft/snapshot", id_of_cluster, &upload)?;
        if answer.starts_with("HTTP/1.1 503") {
            return Err(format!("an upload was kept out: {answer}"));
        }
        uploads += u64::from(answer.starts_with("HTTP/1.1 204"));
    }
    drop(hanging);
    let snap = cluster.data(0).join("member/snap");
    let begin = Instant::now();
    while files(&snap) > 0 {
        if begin.elapsed() > PATIENCE {
            return Err(format!("{} files are left in {}", files(&snap), snap.display()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.wait_one(0)?;
    Ok(format!("12 proposals refused, {uploads} of 20 snapshots taken and none kept"))
}

/// Of the members, and of the cluster.
fn ids(world: &World, cluster: &Cluster) -> Result<(Vec<u64>, u64)> {
    let (mut ids, mut id_of_cluster) = (Vec::new(), 0);
    for member in 0..3 {
        let fields = world.ctl(cluster.client(member), &["endpoint", "status", "--write-out=fields"])?;
        let number = |name: &str| {
            let line = fields.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.rsplit(' ').next().unwrap_or_default().parse().map_err(|_| format!("no {name}: {fields}"))
        };
        ids.push(number("\"MemberID\"")?);
        id_of_cluster = number("\"ClusterID\"")?;
    }
    Ok((ids, id_of_cluster))
}

/// A length, a MsgSnap of term 1, and the beginning of something that is no database.
fn snapshot(to: u64, from: u64, index: u64) -> Vec<u8> {
    let mut metadata = Vec::new();
    put_varint(&mut metadata, 0x10, index);
    put_varint(&mut metadata, 0x18, 1);
    let mut snapshot = vec![0x12, metadata.len() as u8];
    snapshot.extend(metadata);
    let mut message = vec![0x08, 7];
    put_varint(&mut message, 0x10, to);
    put_varint(&mut message, 0x18, from);
    put_varint(&mut message, 0x20, 1);
    message.extend([0x4a, snapshot.len() as u8]);
    message.extend(snapshot);
    let mut framed = (message.len() as u64).to_be_bytes().to_vec();
    framed.extend(message);
    framed.extend([7; 4096]);
    framed
}

fn put_varint(out: &mut Vec<u8>, tag: u8, mut value: u64) {
    out.push(tag);
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn connect(address: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).map_err(|error| format!("{address}: {error}"))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
    Ok(stream)
}

fn head(path: &str, cluster: u64, len: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nX-Server-Version: 3.7.0\r\nX-Min-Cluster-Version: 3.0.0\r\n\
         X-Etcd-Cluster-ID: {cluster:x}\r\nContent-Type: application/octet-stream\r\nContent-Length: {len}\r\n\r\n"
    )
}

/// Sends a request and returns the first bytes of the answer.
fn post(address: &str, path: &str, cluster: u64, body: &[u8]) -> Result<String> {
    let mut stream = connect(address)?;
    stream.write_all(head(path, cluster, body.len()).as_bytes()).map_err(|error| error.to_string())?;
    stream.write_all(body).map_err(|error| error.to_string())?;
    let mut answer = [0; 512];
    let read = stream.read(&mut answer).map_err(|error| format!("no answer: {error}"))?;
    Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
}

fn files(dir: &Path) -> usize {
    std::fs::read_dir(dir).into_iter().flatten().count()
}
