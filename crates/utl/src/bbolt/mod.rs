//! `etcdutl bbolt`: the reading commands of bbolt's own tool, for looking into a database, broken or not.
//!
//! Pages are shown as they are ([`dolmen_bolt::raw`]): what a command needs is checked where it needs it, so that a
//! page can be looked at in a file that nothing else opens. Output is that of bbolt 1.5.0; where that crashes on a
//! broken page, these say which page and what.

mod check;
mod compact;
mod file;
mod inspect;
mod page;
mod stats;
mod text;

use dolmen_cli::{Args, Call, Command, Failure, Flag, golang, print, words};

use file::Db;
use text::{format_bytes, parse_bytes};

/// What `--format` may be.
const FORMATS: &str = "Output format one of: auto|ascii-encoded|hex|bytes|redacted";

pub(crate) static COMMAND: Command = Command {
    usage: "bbolt",
    short: "A simple command line tool for inspecting bbolt databases",
    commands: &[
        &VERSION, &INSPECT, &CHECK, &BUCKETS, &INFO, &COMPACT, &STATS, &PAGES, &KEYS, &DUMP, &PAGE_ITEM, &PAGE, &GET,
    ],
    ..Command::NEW
};

static VERSION: Command = Command {
    usage: "version",
    short: "print the current version of bbolt",
    run: Some(|_| {
        print("bbolt Version: 1.5.0\n");
        Ok(())
    }),
    ..Command::NEW
};

static INSPECT: Command = Command {
    usage: "inspect <bbolt-file>",
    short: "inspect the structure of the database",
    args: Args::Exactly(1),
    run: Some(inspect::run),
    ..Command::NEW
};

static CHECK: Command = Command {
    usage: "check <bbolt-file>",
    short: "verify integrity of bbolt database data",
    flags: &[Flag::uint64("from-page", "0", "check db integrity starting from the given page ID")],
    args: Args::Exactly(1),
    run: Some(check::run),
    ..Command::NEW
};

static BUCKETS: Command = Command {
    usage: "buckets <bbolt-file>",
    short: "print a list of buckets in bbolt database",
    args: Args::Exactly(1),
    run: Some(buckets),
    ..Command::NEW
};

static INFO: Command = Command {
    usage: "info <bbolt-file>",
    short: "prints basic information about the bbolt database.",
    args: Args::Exactly(1),
    run: Some(info),
    ..Command::NEW
};

static COMPACT: Command = Command {
    usage: "compact [options] -o <dst-bbolt-file> <src-bbolt-file>",
    short: "creates a compacted copy of the database from source path to the destination path, preserving the original.",
    long: "compact opens a database at source path and walks it recursively, copying keys\n\
           as they are found from all buckets, to a newly created database at the destination path.\n\
           The original database is left untouched.",
    flags: &[
        Flag::text("output", "", "").short('o').required(),
        Flag::int64("tx-max-size", "65536", ""),
        Flag::boolean("no-sync", ""),
    ],
    args: Args::AtLeast(1),
    run: Some(compact::run),
    ..Command::NEW
};

static STATS: Command = Command {
    usage: "stats <bbolt-file>",
    short: "print stats of bbolt database",
    long: stats::LONG,
    args: Args::Between(1, 2),
    run: Some(stats::run),
    ..Command::NEW
};

static PAGES: Command = Command {
    usage: "pages <bbolt-file>",
    short: "print a list of pages in bbolt database",
    long: page::PAGES_LONG,
    args: Args::Exactly(1),
    run: Some(page::pages),
    ..Command::NEW
};

static KEYS: Command = Command {
    usage: "keys <bbolt-file> <buckets>",
    short: "print a list of keys in the given (sub)bucket in bbolt database",
    flags: &[Flag::text("format", "auto", FORMATS).short('f')],
    args: Args::AtLeast(2),
    run: Some(keys),
    ..Command::NEW
};

static DUMP: Command = Command {
    usage: "dump <bbolt-file> pageid [pageid...]",
    short: "prints a hexadecimal dump of one or more pages of bbolt database.",
    args: Args::AtLeast(2),
    run: Some(page::dump),
    ..Command::NEW
};

static PAGE: Command = Command {
    usage: "page <bbolt-file> [pageid...]",
    short: "page prints one or more pages in human readable format.",
    flags: &[
        Flag::boolean("all", "List all pages."),
        Flag::text(
            "format-value",
            "auto",
            "Output format one of: auto|ascii-encoded|hex|bytes|redacted. Applies to values on the leaf page.",
        ),
    ],
    args: Args::AtLeast(1),
    run: Some(page::page),
    ..Command::NEW
};

static PAGE_ITEM: Command = Command {
    usage: "page-item [options] <bbolt-file> pageid itemid",
    short: "print a page item key and value in a bbolt database",
    flags: &[
        Flag::boolean("key-only", "Print only the key"),
        Flag::boolean("value-only", "Print only the value"),
        Flag::text("format", "auto", FORMATS),
    ],
    args: Args::Exactly(3),
    run: Some(page::item),
    ..Command::NEW
};

static GET: Command = Command {
    usage: "get PATH [BUCKET..] KEY",
    short: "get the value of a key from a (sub)bucket in a bbolt database",
    flags: &[
        Flag::text("parse-format", "ascii-encoded", "Input format one of: ascii-encoded|hex"),
        Flag::text("format", "auto", "Output format one of: auto|ascii-encoded|hex|bytes|redacted (default: auto)"),
    ],
    args: Args::AtLeast(3),
    run: Some(get),
    ..Command::NEW
};

/// An error that the Go command returns: text, usage, exit code 1.
fn returned(text: impl std::fmt::Display) -> Failure {
    Failure::with_usage(text)
}

/// Prints bytes as they are.
fn print_bytes(bytes: Vec<u8>) {
    print(words::from_bytes(bytes));
}

/// Lines collected so that stdout is not written to line by line.
#[derive(Default)]
struct Output(Vec<u8>);

impl Output {
    const FULL: usize = 64 << 10;

    fn line(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        self.0.push(b'\n');
        if self.0.len() >= Self::FULL {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.0.is_empty() {
            print_bytes(std::mem::take(&mut self.0));
        }
    }
}

fn buckets(call: &Call) -> Result<(), Failure> {
    let db = Db::open(&call.args()[0], call).map_err(returned)?;
    let mut output = Output::default();
    let outcome = db.for_each(&db.root(), &mut |leaf| {
        if leaf.is_bucket() {
            output.line(leaf.key);
        }
        Ok(())
    });
    output.flush();
    outcome.map_err(returned)
}

fn info(call: &Call) -> Result<(), Failure> {
    let db = Db::open(&call.args()[0], call).map_err(returned)?;
    print(format!("Page Size: {}\n", db.page_size()));
    Ok(())
}

fn keys(call: &Call) -> Result<(), Failure> {
    let db = Db::open(&call.args()[0], call).map_err(returned)?;
    let names: Vec<Vec<u8>> = (1..call.args().len()).map(|at| call.arg_bytes(at)).collect();
    let bucket = db.bucket(&names).map_err(returned)?;
    let format = call.text("format");
    let mut output = Output::default();
    let outcome = db.for_each(&bucket, &mut |leaf| {
        output.line(&format_bytes(leaf.key, format)?);
        Ok(())
    });
    output.flush();
    outcome.map_err(returned)
}

fn get(call: &Call) -> Result<(), Failure> {
    let last = call.args().len() - 1;
    if call.args()[0].is_empty() {
        return Err(returned("path required"));
    }
    let key = parse_bytes(&call.arg_bytes(last), call.text("parse-format")).map_err(returned)?;
    if key.is_empty() {
        return Err(returned("key is required: key required"));
    }
    let db = Db::open(&call.args()[0], call).map_err(returned)?;
    let names: Vec<Vec<u8>> = (1..last).map(|at| call.arg_bytes(at)).collect();
    let bucket = db.bucket(&names).map_err(returned)?;
    let Some(value) = db.get(&bucket, &key).map_err(returned)? else {
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        return Err(returned(format_args!(
            "Error key not found for key: {} hex: \"{hex}\"",
            golang::quote_bytes(&key)
        )));
    };
    let mut line = format_bytes(&value, call.text("format")).map_err(returned)?;
    line.push(b'\n');
    print_bytes(line);
    Ok(())
}
