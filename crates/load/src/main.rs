//! `dolmen-load`: load on an etcd cluster, and what it felt like, as one line of JSON.
//!
//! A load generator shares the machine with the servers it measures, so its own cost is part of every figure. This one
//! is one thread: HTTP/2 from the `h2` crate, gRPC framed by hand ([`grpc`]), requests encoded once and patched with a
//! number ([`request`]), latencies into a histogram. It believes no server: every call's `grpc-status` is read, the
//! answers are looked into, and each watcher must see each event once and in order ([`watch`]).
//!
//! ```text
//! dolmen-load put --endpoints 127.0.0.1:2379 --clients 100 --total 40000
//! {"workload":"put","operations":40000,"errors":0,"seconds":1.2,"per_second":33333.3,"p50_ms":2.9,...}
//! ```
//!
//! A client is one caller that waits for each answer before it asks again (closed loop). With `--rate` the calls have
//! times at which they are due, and one that starts late because its predecessors were slow counts from when it was due:
//! a server that stalls cannot hide that by being asked less.

#![forbid(unsafe_code)]
// It measures: the clock is its business.
#![allow(clippy::disallowed_methods)]

mod grpc;
mod options;
mod report;
mod request;
mod unary;
mod watch;
mod wire;

use std::process::ExitCode;

use options::Options;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{}", options::USAGE);
        return ExitCode::SUCCESS;
    }
    let outcome = Options::parse(&arguments).and_then(|options| measure(&options));
    match outcome {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("dolmen-load: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one workload to its end on this thread.
fn measure(options: &Options) -> Result<serde_json::Value, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let work = async {
            match options.workload {
                options::Workload::Watch => watch::run(options).await,
                options::Workload::Keepalive => unary::keepalive(options).await,
                _ => unary::run(options).await,
            }
        };
        match tokio::time::timeout(options.patience, work).await {
            Ok(outcome) => outcome.map(|report| report.json(options)),
            Err(_) => Err(format!("not at its end after {} s", options.patience.as_secs())),
        }
    })
}
