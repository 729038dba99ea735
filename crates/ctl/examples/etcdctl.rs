//! etcdctl by itself, to try it without the server around it.

fn main() -> std::process::ExitCode {
    dolmen_ctl::main(dolmen_cli::words::of_process())
}
