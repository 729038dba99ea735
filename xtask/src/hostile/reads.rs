//! Long reads: what others feel while clients ask for everything, sorted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Trial, World};
use crate::bench;
use crate::member::{self, Cluster};
use crate::run::{self, Result};

pub const TRIAL: Trial = Trial {
    name: "long-reads",
    bar: "beside 8 clients that read 60,000 keys sorted by value: /livez p99 <= 50 ms, gets of one key p99 <= 100 ms",
    // Its bars are times, which a busy machine misses.
    quick: false,
    run,
};

const KEYS: &str = "--keys=60000";
const LIVEZ: Duration = Duration::from_millis(50);
const GET_MS: f64 = 100.0;

fn run(world: &World) -> Result<String> {
    let load = bench::build_load()?;
    let dir = world.scratch.dir.join("reads");
    let mut cluster = Cluster::prepare(&world.server, &member::free_ports(3)?, &dir, &[], None)?;
    cluster.restart()?;
    let of = |workload: &str, flags: &[&str]| {
        let mut command = Command::new(&load);
        command.arg(workload).arg("--endpoints").arg(cluster.endpoints()).arg(KEYS).args(flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    };
    figures(&run::output(&mut of("fill", &["--clients=4"]))?.stdout)?;
    let seconds = if world.quick { 10 } else { 30 };
    let readers = run::spawn(&mut of("range", &["--sorted", "--until-closed", "--clients=8", "--conns=8"]))?;
    let gets =
        run::spawn(&mut of("get", &["--clients=4", "--conns=2", "--rate=100", &format!("--seconds={seconds}")]))?;
    let asked = livez(cluster.client(0), Duration::from_secs(seconds));
    let gets = figures(&gets.wait_with_output().map_err(|error| error.to_string())?.stdout)?;
    // Its standard input closes, and it ends.
    let readers = figures(&readers.wait_with_output().map_err(|error| error.to_string())?.stdout)?;
    let livez = asked?;
    let measured = format!(
        "/livez p50 {} ms, p99 {} ms; gets p99 {:.1} ms, slowest {:.1} ms; {:.1} long reads a second",
        livez.0.as_millis(),
        livez.1.as_millis(),
        gets.p99,
        gets.max,
        readers.per_second
    );
    if livez.1 > LIVEZ || gets.p99 > GET_MS { Err(measured) } else { Ok(measured) }
}

struct Figures {
    per_second: f64,
    p99: f64,
    max: f64,
}

fn figures(said: &[u8]) -> Result<Figures> {
    let said = String::from_utf8_lossy(said);
    let json: serde_json::Value =
        serde_json::from_str(&said).map_err(|error| format!("dolmen-load said {said:?}: {error}"))?;
    let number = |name: &str| json[name].as_f64().ok_or_else(|| format!("no {name} in {said}"));
    if number("errors")? > 0.0 || number("operations")? == 0.0 {
        return Err(format!("operations failed: {}", said.trim()));
    }
    Ok(Figures { per_second: number("per_second")?, p99: number("p99_ms")?, max: number("max_ms")? })
}

/// Asks `/livez` on a connection of its own each time; p50 and p99.
fn livez(address: &str, during: Duration) -> Result<(Duration, Duration)> {
    let begin = Instant::now();
    let mut took = Vec::new();
    while begin.elapsed() < during {
        let asked = Instant::now();
        let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        let request = format!("GET /livez HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
        if !answer.starts_with("HTTP/1.1 200") {
            return Err(format!("/livez answered {answer:?}"));
        }
        took.push(asked.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    took.sort_unstable();
    Ok((took[took.len() / 2], took[took.len() * 99 / 100]))
}
