//! etcdutl as a program of its own.

fn main() -> std::process::ExitCode {
    dolmen_utl::main(dolmen_cli::words::of_process())
}
