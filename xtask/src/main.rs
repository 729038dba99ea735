//! `cargo xtask`: everything that is run on this repository and is not the server itself.
//!
//! One file a command. `run` starts programs and counts tests, `go` builds the outside judges, `member` starts servers.
//! Plain Rust: no shell, no scripting language.

#![forbid(unsafe_code)]
// The tools of a developer meet real clocks, files and processes; what the ban protects is the core.
#![allow(clippy::disallowed_methods)]

mod bench;
mod ci;
mod codegen;
mod common;
mod crash;
mod dist;
mod files;
mod fuzz;
mod go;
mod hostile;
mod import;
mod interop;
mod member;
mod operations;
mod run;
mod scripts;
mod sim;
mod tidy;
mod tools_diff;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask COMMAND

  ci                        what CI runs, quick parts first
  tidy                      crate arrows, leftovers, line width
  codegen [--check]         generate crates/proto/src/gen from the .proto files, or compare
  interop [--quick] [--suite client|files|import|differential|kill9|common|mixed|tools|scripts|operations]
          [--run FUNCTION] [--server PATH] [--control]
                            etcd's own programs, client and tests against this server (or another), and against these tools
                            (--control: etcd's own tools); needs Go
  tools-diff [--only PART] [--list] [--self] [--verbose] [--tools PATH] [--judges DIR] [--defrag PATH]
                            the same command lines given to etcd's tools and to ours; needs Go
  sim [ARGUMENTS]           the simulator, in release; arguments are its own
  crash [--quick]           power loss and kill -9
  hostile [--only TRIAL] [--quick] [--list] [--server PATH]
                            trials by real processes: members that lose what they held, peers that mean harm
  dist [--quick] [--out DIR]
                            a static binary on musl, its manual pages and completions, as a tarball and a Debian package, run
                            in a bare chroot (--quick: not optimised, and only that); needs the musl target of Rust
  fuzz [--seconds N] [--target NAME]
                            damaged bytes to everything that reads bytes, a minute each
  bench [tools] [--only NAME,NAME] [--members 1|3] [--client load|benchmark] [--rounds N] [--scale X] [--keys N]
        [--server PATH] [--load PATH] [--commit NAME] [--page]
                            side by side with etcd 3.6, or with etcd's tools; writes docs/bench.md
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match command.as_str() {
        "ci" => ci::run(rest),
        "tidy" => tidy::run(rest),
        "codegen" => codegen::run(rest),
        "interop" => interop::run(rest),
        "sim" => sim::run(rest),
        "crash" => crash::run(rest),
        "hostile" => hostile::run(rest),
        "dist" => dist::run(rest),
        "fuzz" => fuzz::run(rest),
        "bench" => bench::run(rest),
        "tools-diff" => tools_diff::run(rest),
        "-h" | "--help" | "help" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprint!("unknown command {other:?}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask {command}: {why}");
            ExitCode::FAILURE
        }
    }
}
