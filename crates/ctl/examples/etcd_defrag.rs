//! `cargo run -p dolmen-ctl --example etcd_defrag -- --endpoints 127.0.0.1:2379 --cluster --dry-run`

use std::process::ExitCode;

fn main() -> ExitCode {
    dolmen_ctl::defrag_main(dolmen_cli::words::of_process())
}
