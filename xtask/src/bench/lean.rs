//! Our own load generator, `dolmen-load`, as a client.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::Bench;
use super::results::Figures;
use crate::member::{self, Cluster};
use crate::run::{self, Result};

/// Puts of the probe, a second: few enough that the servers stay idle beside them.
const PROBE_RATE: &str = "200";

/// Builds it and returns where it is.
///
/// # Errors
/// It does not build.
pub fn build() -> Result<PathBuf> {
    run::run(&mut run::cargo(["build", "-q", "--release", "-p", "dolmen-load"]))?;
    Ok(run::target().join("release/dolmen-load"))
}

/// Runs a workload against a cluster. An operation that fails fails the run.
///
/// # Errors
/// The generator fails, or counted errors.
pub fn run(bench: &Bench, cluster: &Cluster, workload: &str, flags: &[String]) -> Result<Figures> {
    let (servers, client) = (cluster.cpu_us(), member::children_cpu_us());
    let said = run::text(command(bench, cluster, workload).args(flags))?;
    let (mut figures, operations) = parse(&said)?;
    if figures.remove("failed").is_some_and(|failed| failed > 0.0) {
        return Err(format!("operations failed: {}", said.trim()));
    }
    figures.insert("server_us".into(), (cluster.cpu_us() - servers) / operations);
    figures.insert("client_us".into(), (member::children_cpu_us() - client) / operations);
    Ok(figures)
}

/// Keys for other workloads: `load/000...0` and on, `size` bytes each.
///
/// # Errors
/// As [`run`].
pub fn fill(bench: &Bench, cluster: &Cluster, keys: u64, size: u64) -> Result {
    let flags = [format!("--keys={keys}"), format!("--value-size={size}"), "--clients=10".into(), "--conns=2".into()];
    run(bench, cluster, "fill", &flags).map(|_| ())
}

fn command(bench: &Bench, cluster: &Cluster, workload: &str) -> Command {
    let mut command = Command::new(&bench.load);
    command.arg(workload).arg("--endpoints").arg(cluster.endpoints());
    command
}

/// The figures in the generator's line, and the number of operations.
fn parse(said: &str) -> Result<(Figures, f64)> {
    let json: Value = serde_json::from_str(said).map_err(|error| format!("dolmen-load said {said:?}: {error}"))?;
    let number = |name: &str| json[name].as_f64().ok_or_else(|| format!("no {name} in {said}"));
    let operations = number("operations")?;
    if operations == 0.0 {
        return Err(format!("nothing was done: {said}"));
    }
    let names = ["per_second", "p50_ms", "p99_ms", "max_ms"];
    let mut figures = names.iter().map(|name| Ok(((*name).to_owned(), number(name)?))).collect::<Result<Figures>>()?;
    figures.insert("failed".into(), number("errors")?);
    // Who was refused after seven seconds has waited seven seconds.
    figures.insert("max_ms".into(), number("max_ms")?.max(number("failed_max_ms")?));
    Ok((figures, operations))
}

/// Small puts at a steady rate while something else goes on, which is how a store feels to a client.
pub struct Probe(Child);

impl Probe {
    /// # Errors
    /// The generator does not start.
    pub fn start(bench: &Bench, cluster: &Cluster) -> Result<Self> {
        let mut command = command(bench, cluster, "put");
        command.args(["--until-closed", "--clients=10", "--conns=2", "--keys=100", "--value-size=64"]);
        command.args(["--rate", PROBE_RATE]).stdin(Stdio::piped()).stdout(Stdio::piped());
        run::spawn(&mut command).map(Self)
    }

    /// Ends it and returns what it felt; `failed` puts are a result, and not an error.
    ///
    /// # Errors
    /// The generator failed.
    pub fn stop(mut self) -> Result<Figures> {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("the probe ended with {}", output.status));
        }
        parse(&String::from_utf8_lossy(&output.stdout)).map(|(figures, _)| figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_as_long_as_it_took() {
        let line = |operations: u64, errors: u64| {
            format!(
                r#"{{"operations":{operations},"errors":{errors},"first_error":"grpc-status 14: gone","per_second":5.0,
                   "p50_ms":1.0,"p99_ms":2.0,"max_ms":3.5,"failed_max_ms":{}}}"#,
                errors * 7_000
            )
        };
        let (figures, operations) = parse(&line(10, 0)).expect("figures");
        assert_eq!((figures["max_ms"], figures["failed"], operations), (3.5, 0.0, 10.0));
        let (figures, _) = parse(&line(10, 1)).expect("figures");
        assert_eq!((figures["max_ms"], figures["failed"]), (7_000.0, 1.0));
        assert!(parse(&line(0, 0)).is_err() && parse("").is_err());
    }
}
