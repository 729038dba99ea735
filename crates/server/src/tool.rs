//! `dolmen` by its own name: what it is, and the commands that are no program of etcd's.

use dolmen_cli::{Args, Command, Failure, Flag, Tool, completion, print};

use crate::{links, up, version};

const SERVERS: &str = "servers";
const TOOLS: &str = "tools";
const SETUP: &str = "setup";

/// The table of commands.
pub static TOOL: Tool = Tool { help_group: SETUP, ..Tool::new(&ROOT) };

const LONG: &str = "\
Dolmen is etcd v3 in one binary: the server, its client for the command line, and its tools.

Flags without a command are the server's, as `dolmen serve` has them. The flags of a program: dolmen serve --help,
dolmen ctl --help, dolmen utl --help, dolmen defrag --help.";

static ROOT: Command = Command {
    usage: "dolmen",
    short: "Dolmen is etcd v3 in one binary: the server, its client for the command line, and its tools.",
    long: LONG,
    groups: &[(SERVERS, "Servers"), (TOOLS, "etcd's tools"), (SETUP, "About this binary")],
    commands: &[&UP, &SERVE, &CTL, &UTL, &DEFRAG, &INSTALL_LINKS, &VERSION, &COMPLETION],
    ..Command::NEW
};

static UP: Command = Command {
    usage: "up",
    short: "Start a ready cluster on this machine, for trying things out",
    long: "Starts one member or three on 127.0.0.1, waits until they serve, and says how to reach them. Ctrl-C stops them; their data\n\
           stays and is found again.\n\n\
           A member that ends is told of, and the others go on: kill one of three to see a failover.",
    example: "  dolmen up\n  dolmen up --members 3 --restart",
    group: SERVERS,
    flags: &[
        Flag::int("members", "1", "How many members, 1 or 3"),
        Flag::text("dir", "dolmen-data", "Where their data and logs are").dir(),
        Flag::int("base-port", "2379", "The first of two ports for each member"),
        Flag::boolean("restart", "Start a member again when it ends"),
    ],
    args: Args::None,
    run: Some(up::run),
    ..Command::NEW
};

/// A program with a command line of its own: `main` hands it the words before this table sees them.
const fn program(usage: &'static str, short: &'static str, long: &'static str, group: &'static str) -> Command {
    Command { usage, short, long, group, raw: true, run: Some(elsewhere), no_flags_in_usage: true, ..Command::NEW }
}

static SERVE: Command = program(
    "serve [flags]",
    "Run one member: etcd's server, with etcd's flags and ETCD_ variables",
    "Runs one member, as `etcd` does. Its flags: dolmen serve --help",
    SERVERS,
);

static CTL: Command = program(
    "ctl [command]",
    "Read and write keys, watch, look after a cluster: etcdctl",
    "Is etcdctl. Its commands: dolmen ctl --help",
    TOOLS,
);

static UTL: Command = program(
    "utl [command]",
    "Work on snapshots and data directories as files: etcdutl",
    "Is etcdutl. Its commands: dolmen utl --help",
    TOOLS,
);

static DEFRAG: Command = program(
    "defrag [flags]",
    "Defragment members one after the other, by rules: etcd-defrag",
    "Is etcd-defrag. Its flags: dolmen defrag --help",
    TOOLS,
);

static INSTALL_LINKS: Command = Command {
    usage: "install-links <dir>",
    short: "Make the names etcd, etcdctl, etcdutl and etcd-defrag",
    long: "Makes etcd, etcdctl, etcdutl and etcd-defrag in a folder, each a link to this binary, which does what the name says that it\n\
           was called by. Files that are there already stay.",
    example: "  dolmen install-links /usr/local/bin",
    group: SETUP,
    flags: &[Flag::boolean("create", "Make the folder if it is not there")],
    args: Args::Exactly(1),
    run: Some(links::run),
    ..Command::NEW
};

static VERSION: Command = Command {
    usage: "version",
    short: "Print the versions: etcd's that it behaves as, and its own",
    group: SETUP,
    args: Args::None,
    run: Some(|_| {
        print(version::text());
        Ok(())
    }),
    ..Command::NEW
};

static COMPLETION: Command = Command {
    usage: "completion [bash|zsh|fish|powershell]",
    short: "Print a script that completes these commands in a shell",
    long: "Prints a script that teaches a shell dolmen's commands and flags:\n\n  $ source <(dolmen completion bash)\n\n\
           `dolmen ctl completion` does so for etcdctl, `dolmen utl completion` for etcdutl.",
    group: SETUP,
    args: Args::ExactlyValid(1),
    valid_args: completion::SHELLS,
    no_flags_in_usage: true,
    run: Some(completion::run),
    ..Command::NEW
};

/// Reached when flags of nobody's stand before the name of a program.
fn elsewhere(call: &dolmen_cli::Call) -> Result<(), Failure> {
    Err(Failure::bad_args(format!("`{}` has to come first on the line", call.command_path())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_faults() {
        assert_eq!(ROOT.faults(), Vec::<String>::new());
    }

    #[test]
    fn every_command_answers_help() {
        for words in
            [&["help"][..], &["-h"], &["--help"], &["up", "--help"], &["help", "up"], &["help", "ctl"], &["version"]]
        {
            let words = words.iter().map(ToString::to_string).collect();
            assert_eq!(TOOL.main(words), std::process::ExitCode::SUCCESS);
        }
    }
}
