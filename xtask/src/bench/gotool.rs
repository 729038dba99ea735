//! etcd's own load tool, `benchmark`, as a client.

use std::process::Command;

use super::results::Figures;
use crate::go::Judge;
use crate::member::{self, Cluster};
use crate::run::{self, Result};

/// Runs the tool: `arguments` behind the flags that all its commands share. `operations`: what it is asked for.
///
/// # Errors
/// The tool fails, or reports that calls did.
pub fn run(cluster: &Cluster, clients: u64, arguments: &[String], operations: f64) -> Result<Figures> {
    let mut tool = Command::new(Judge::Benchmark.path());
    tool.arg("--endpoints").arg(cluster.endpoints());
    tool.arg(format!("--conns={}", (clients / 10).max(1))).arg(format!("--clients={clients}")).args(arguments);
    let (servers, client) = (cluster.cpu_us(), member::children_cpu_us());
    let said = run::text(&mut tool)?;
    let mut figures = parse(&said)?;
    figures.insert("server_us".into(), (cluster.cpu_us() - servers) / operations);
    figures.insert("client_us".into(), (member::children_cpu_us() - client) / operations);
    Ok(figures)
}

/// Reads the tool's report; the last block of it, since for watches it prints two.
fn parse(said: &str) -> Result<Figures> {
    if let Some((_, errors)) = said.split_once("Error distribution:") {
        return Err(format!("calls failed: {}", errors.trim()));
    }
    let last = |name: &str, factor: f64| {
        let rest = said.rsplit_once(name).map_or("", |(_, rest)| rest);
        let number = rest.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        number.map(|number| number * factor).ok_or_else(|| format!("no {name:?} in {said}"))
    };
    Ok(Figures::from([
        ("per_second".to_owned(), last("Requests/sec:", 1.0)?),
        ("p50_ms".to_owned(), last("50% in ", 1e3)?),
        // Behind a blank, so that 99.9% is another line.
        ("p99_ms".to_owned(), last(" 99% in ", 1e3)?),
        ("max_ms".to_owned(), last("Slowest:", 1e3)?),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let said = "Summary:\n  Total:\t1.5 secs.\n  Slowest:\t0.0250 secs.\n  Requests/sec:\t6,0\n\n\
                    Summary:\n  Slowest:\t0.0150 secs.\n  Requests/sec:\t1234.5\n\nLatency distribution:\n  \
                    50% in 0.0010 secs.\n  99% in 0.0040 secs.\n  99.9% in 0.0100 secs.\n";
        let figures = parse(said).expect("figures");
        assert_eq!((figures["per_second"], figures["p50_ms"], figures["p99_ms"]), (1234.5, 1.0, 4.0));
        assert_eq!(figures["max_ms"], 15.0);
        assert!(parse("nothing").is_err());
        let failed = format!("{said}\nError distribution:\n  [3]\trpc error: code = Unavailable\n");
        assert!(parse(&failed).is_err_and(|why| why.contains("Unavailable")));
    }
}
