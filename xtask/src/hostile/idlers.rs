//! Idle strangers on every port of a member that may open 1,024 files and no more.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{Trial, World};
use crate::member::{self, Cluster};
use crate::run::{self, Result};

pub const TRIAL: Trial = Trial {
    name: "idlers",
    bar: "1,024 open files, 1,500 idle connections to clients' and 500 to peers' ports of each of three members: 100 MiB are \
          written, a watch goes on, and a new client waits 3 s at most",
    quick: true,
    run,
};

const TO_CLIENTS: usize = 1500;
const TO_PEERS: usize = 500;
const NEW_CLIENT: Duration = Duration::from_secs(3);
const VALUE_BYTES: usize = 1 << 20;
/// Enough for a second segment of the log and of the store.
const VALUES: usize = 100;
const EVENT: Duration = Duration::from_secs(30);

fn run(world: &World) -> Result<String> {
    raise_own_limit(3 * (TO_CLIENTS + TO_PEERS) as u64 + 100)?;
    let few = few_files(world)?;
    let ports = member::free_ports(9)?;
    let mut cluster = Cluster::start_at(&few, &ports, &world.scratch.dir.join("idlers"), &[], None)?;
    let endpoint = cluster.client(0).to_owned();

    let mut watch = Command::new(&world.etcdctl)
        .args([&format!("--endpoints={endpoint}"), "watch", "watched"])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let lines = BufReader::new(watch.stdout.take().ok_or("no output")?).lines();
    let (tell, events) = mpsc::channel();
    std::thread::spawn(move || lines.map_while(std::result::Result::ok).all(|line| tell.send(line).is_ok()));
    // A watch is open once it has brought something.
    let begin = Instant::now();
    loop {
        world.ctl(&endpoint, &["put", "watched", "before"])?;
        if events.recv_timeout(Duration::from_millis(500)).is_ok() {
            break;
        }
        if begin.elapsed() > EVENT {
            return Err("the watch brings nothing".into());
        }
    }

    let mut held = Vec::new();
    for member in 0..3 {
        idle(ports[3 * member], TO_CLIENTS, &mut held);
        idle(ports[3 * member + 1], TO_PEERS, &mut held);
    }
    let begin = Instant::now();
    world.ctl(&endpoint, &["put", "new", "client"])?;
    let new_client = begin.elapsed();

    let value = world.scratch.dir.join("value");
    std::fs::write(&value, vec![b'v'; VALUE_BYTES]).map_err(|error| error.to_string())?;
    for number in 0..VALUES {
        let input = std::fs::File::open(&value).map_err(|error| error.to_string())?;
        let mut put = Command::new(&world.etcdctl);
        put.args([&format!("--endpoints={endpoint}"), "put", &format!("large-{}", number % 10)]);
        let ended = put.stdin(input).stdout(Stdio::null()).status().map_err(|error| error.to_string())?;
        if !ended.success() {
            return Err(format!("put {number} of {VALUES} failed: {ended}"));
        }
    }
    while events.try_recv().is_ok() {}
    world.ctl(&endpoint, &["put", "watched", "after"])?;
    let seen = std::iter::from_fn(|| events.recv_timeout(EVENT).ok()).any(|line| line == "after");
    run::signal(watch.id(), rustix::process::Signal::KILL);
    let _gone = watch.wait();
    for member in 0..3 {
        cluster.wait_one(member)?;
        world.ctl(cluster.client(member), &["get", "new"])?;
    }
    let measured = format!("{} idle connections, a new client served in {} ms", held.len(), new_client.as_millis());
    if !seen {
        return Err(format!("the watch was cut off; {measured}"));
    }
    if new_client > NEW_CLIENT { Err(measured) } else { Ok(measured) }
}

/// Connections that say nothing, or only hello, and never hang up.
fn idle(port: u16, count: usize, held: &mut Vec<TcpStream>) {
    for number in 0..count {
        // Refused, or broken off: that is what the member may do.
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
        if number % 2 == 0 {
            let _broken = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        }
        held.push(stream);
    }
}

/// The server in a shell whose limit of open files it cannot raise.
fn few_files(world: &World) -> Result<std::path::PathBuf> {
    let dir = world.scratch.dir.join("few");
    run::make_dir(&dir)?;
    let path = dir.join("etcd");
    let text = format!("#!/bin/sh\nulimit -n 1024 && exec {} \"$@\"\n", world.server.display());
    let written = std::fs::write(&path, text)
        .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)));
    written.map_err(|error| error.to_string())?;
    Ok(path)
}

fn raise_own_limit(wanted: u64) -> Result {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })
        .map_err(|error| format!("this trial needs {wanted} open files: {error}"))
}
