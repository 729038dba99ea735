//! Dolmen's one binary. Called as `etcd`, or with flags alone, it is etcd's server; called as `etcdctl`, `etcdutl` or
//! `etcd-defrag` it is that tool (`dolmen ctl`, `dolmen utl`, `dolmen defrag`). The other commands are those of [`tool`].
//!
//! Exit codes: 0 stopped as asked; 1 wrong flags or a start that failed; 2 a flag Go's parser would refuse; 65 data on
//! disk is damaged; 74 a disk failed while running. A signal ends the process as that signal.

#![deny(unsafe_code)]
// At the edge the clock and the file system are real.
#![allow(clippy::disallowed_methods)]

mod agreement;
mod bootstrap;
mod cluster_version;
mod config;
mod data_dir;
mod ending;
mod failure;
mod flags;
mod links;
mod logging;
mod memory;
mod network_metrics;
mod ports;
mod serve;
mod server_help;
mod to_leader;
mod tool;
mod up;
mod version;
mod wiring;

use std::path::Path;
use std::process::ExitCode;

use crate::config::Config;
use crate::flags::{FlagError, Values};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let called_as = std::env::args_os().next().unwrap_or_default();
    let called_as = Path::new(&called_as).file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Words need not be text: keys are bytes, and what a server refuses it should not fall over.
    let mut arguments = dolmen_cli::words::of_process();
    match called_as.as_str() {
        "etcd" => {}
        "etcdctl" => return dolmen_ctl::main(arguments),
        "etcdutl" => return dolmen_utl::main(arguments),
        "etcd-defrag" => return dolmen_ctl::defrag_main(arguments),
        _ => match arguments.first().map(String::as_str) {
            Some("ctl") => return dolmen_ctl::main(arguments.split_off(1)),
            Some("utl") => return dolmen_utl::main(arguments.split_off(1)),
            Some("defrag") => return dolmen_ctl::defrag_main(arguments.split_off(1)),
            Some("serve") => {
                arguments.remove(0);
            }
            Some("gateway" | "grpc-proxy") => {}
            // Flags alone are the server's, but for those that ask what this is.
            Some(flag) if flag.starts_with('-') && !matches!(flag, "-h" | "--help" | "-help") => {}
            _ => return tool::TOOL.main(arguments),
        },
    }
    if let Some(word @ ("gateway" | "grpc-proxy")) = arguments.first().map(String::as_str) {
        eprintln!("not yet supported: {word}");
        return ExitCode::FAILURE;
    }
    server(arguments)
}

/// The variables that are text; no flag's value can be anything else.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

fn server(arguments: Vec<String>) -> ExitCode {
    let values = match Values::parse(arguments, environment()) {
        Ok(values) => values,
        Err(error) => return refuse(&error),
    };
    if values.boolean("version") {
        print!("{}", version::text());
        return ExitCode::SUCCESS;
    }
    let logging = config::log_config(&values).and_then(|log| logging::init(&log));
    if let Err(error) = logging {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    memory::refuse_huge_pages();
    for (variable, value) in &values.from_environment {
        tracing::info!(variable_name = variable, variable_value = value, "recognized and used environment variable");
    }
    for (variable, value) in &values.unknown_environment {
        tracing::warn!(environment_variable = format!("{variable}={value}"), "unrecognized environment variable");
    }
    for (flag, why) in values.without_effect() {
        tracing::info!(flag, why, "flag has no effect");
    }
    // Segments are read through mappings; see docs/adr/0001-mmap-sealed-segments.md.
    dolmen_env::fault::end_with_words(failure::EXIT_DATA);
    match Config::new(&values) {
        Ok(config) => serve::run(config),
        Err(error) => {
            tracing::warn!(error, "failed to verify flags");
            ExitCode::FAILURE
        }
    }
}

fn refuse(error: &FlagError) -> ExitCode {
    match error {
        FlagError::Help => {
            print!("{}", server_help::text());
            ExitCode::SUCCESS
        }
        FlagError::Usage(text) => {
            eprint!("{}\n{text}\n", server_help::USAGE);
            ExitCode::from(2)
        }
        FlagError::Shadowed(variable) => {
            let _ = logging::init(&config::LogConfig::default());
            tracing::error!(environment_variable = variable, "{error}");
            ExitCode::FAILURE
        }
        FlagError::Invalid(text) => {
            let _ = logging::init(&config::LogConfig::default());
            tracing::warn!(error = text, "failed to verify flags");
            ExitCode::FAILURE
        }
    }
}
