//! `snapshot save`: a copy of one member's store in a file, or on stdout.
//!
//! The copy is written to `<file>.part`, which becomes `<file>` once it is complete and on the disk, so that whatever
//! has the name of a backup is one. `-` as file means stdout: the same bytes, and nothing else there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use dolmen_cli::progress::Bar;
use dolmen_cli::zap::{Field, Level, Logger};
use dolmen_cli::{Call, Command, Failure, golang, humanize, words};
use dolmen_client::{Client, Error, Streaming};
use dolmen_proto::etcdserverpb as pb;

use crate::connect::{self, Options};
use crate::hints;
use crate::output::say;
use crate::tool::CLUSTER_MAINTENANCE;

const EXAMPLE: &str = "  # Save snapshot to a given file
  etcdctl snapshot save /backup/etcd-snapshot.db
  
  # Get snapshot from given address and save it to file
  etcdctl snapshot save --endpoints=127.0.0.1:3000 /backup/etcd-snapshot.db
  
  # Get snapshot from given address with certificates
  etcdctl --endpoints=https://127.0.0.1:2379 --cacert=/etc/etcd/ca.crt --cert=/etc/etcd/etcd.crt --key=/etc/etcd/etcd.key snapshot save /backup/etcd-snapshot.db
  
  # Get snapshot with certain user and password
  etcdctl --user=root --password=password123 snapshot save /backup/etcd-snapshot.db
  
  # Get snapshot from given address with timeout
  etcdctl --endpoints=https://127.0.0.1:2379 --dial-timeout=20s snapshot save /backup/etcd-snapshot.db
  
  # Save snapshot with desirable time format
  etcdctl snapshot save /mnt/backup/etcd/backup_$(date +%Y%m%d_%H%M%S).db";

/// `snapshot`
pub static COMMAND: Command = Command {
    usage: "snapshot <subcommand>",
    short: "Manages etcd node snapshots",
    example: EXAMPLE,
    group: CLUSTER_MAINTENANCE,
    commands: &[&SAVE],
    ..Command::NEW
};

static SAVE: Command = Command {
    usage: "save <filename>",
    short: "Stores an etcd node backend snapshot to a given file",
    example: EXAMPLE,
    run: Some(save),
    ..Command::NEW
};

const LOGGER: Logger = Logger::json();
const CLIENT_LOGGER: Logger = Logger::json().named("client");

const EXISTS: &str = "file exists";

/// The file that means stdout.
const STDOUT: &str = "-";

fn save(call: &Call) -> Result<(), Failure> {
    let [file] = call.args() else {
        return Err(Failure::bad_args("snapshot save expects one argument <filename>"));
    };
    connect::block_on(async {
        let options = Options::read(call).await?;
        let config = options.config()?;
        let [endpoint] = &options.endpoints[..] else {
            let all = options.endpoints.join(" ");
            return Err(Failure::interrupted(format!(
                "snapshot must be requested to one selected node, not multiple [{all}]"
            )));
        };
        if file == STDOUT && io::stdout().is_terminal() {
            return Err(Failure::bad_args("a snapshot is binary: stdout must be a file or a pipe, not a terminal"));
        }
        let limit = options.command_timeout_given.then_some(options.command_timeout);
        let client = Client::connect(config).await.map_err(|e| interrupted(&e))?.with_timeout(limit);
        if file == STDOUT {
            fetch(&client, endpoint, io::stdout().lock()).await?;
            return Ok(());
        }
        let version = save_to(&client, endpoint, file).await?;
        say(format_args!("Snapshot saved at {file}"))?;
        if version.is_empty() { Ok(()) } else { say(format_args!("Server version {version}")) }
    })
}

fn interrupted(error: &Error) -> Failure {
    hints::failure_with(5, error, "")
}

/// What the operating system says, in Go's spelling: lower case, without the number.
fn errno(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

fn path_of(file: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    PathBuf::from(std::ffi::OsString::from_vec(words::bytes(file)))
}

/// Saves to a file by way of `<file>.part`, of which nothing is left however it ends. The server's version, if it
/// tells.
async fn save_to(client: &Client, endpoint: &str, file: &str) -> Result<String, Failure> {
    let part_name = format!("{file}.part");
    let part_path = path_of(&part_name);
    let outcome = save_by_way_of(client, endpoint, file, &part_name).await;
    match fs::remove_file(&part_path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound && e.kind() != io::ErrorKind::NotADirectory => {
            let text = format!("unlinkat {part_name}: {}", errno(&e));
            LOGGER.log(
                Level::Error,
                "snapshot/v3_snapshot.go:66",
                "Failed to cleanup .part file",
                &[("error", Field::text(&text))],
            );
        }
        _ => {}
    }
    outcome
}

async fn save_by_way_of(client: &Client, endpoint: &str, file: &str, part_name: &str) -> Result<String, Failure> {
    let (path, part_path) = (path_of(file), path_of(part_name));
    let open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part_path);
    let mut part = open
        .map_err(|e| Failure::interrupted(format!("could not open {part_name} (open {part_name}: {})", errno(&e))))?;
    LOGGER.log(
        Level::Info,
        "snapshot/v3_snapshot.go:83",
        "created temporary db file",
        &[("path", Field::text(part_name))],
    );
    let Fetched { version, size, start } = fetch(client, endpoint, &mut part).await?;
    part.sync_all()
        .map_err(|e| Failure::interrupted(format!("could not fsync snapshot: sync {part_name}: {}", errno(&e))))?;
    drop(part);
    LOGGER.log(
        Level::Info,
        "snapshot/v3_snapshot.go:111",
        "fetched snapshot",
        &[
            ("endpoint", Field::text(endpoint)),
            ("size", Field::text(&humanize::bytes(size))),
            (
                "took",
                Field::text(&golang::format_duration(i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX))),
            ),
            ("etcd-version", Field::text(&version)),
        ],
    );
    // Go looks first, and has its own word for a folder in the way.
    let renamed =
        if path.is_dir() { Err(EXISTS.to_owned()) } else { fs::rename(&part_path, &path).map_err(|e| errno(&e)) };
    renamed.map_err(|why| {
        Failure::interrupted(format!("could not rename {part_name} to {file} (rename {part_name} {file}: {why})"))
    })?;
    sync_folder_of(&path);
    LOGGER.log(Level::Info, "snapshot/v3_snapshot.go:121", "saved", &[("path", Field::text(file))]);
    Ok(version)
}

/// Makes the new name last, where the file system can do that; the copy itself is safe already.
fn sync_folder_of(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

struct Fetched {
    version: String,
    size: u64,
    start: Instant,
}

/// Receives a snapshot into `sink`, with a bar on a terminal.
async fn fetch(client: &Client, endpoint: &str, mut sink: impl Write) -> Result<Fetched, Failure> {
    let start = Instant::now();
    let opened = || {
        let text = "opened snapshot stream; downloading";
        CLIENT_LOGGER.log(Level::Info, "v3@v3.7.3/maintenance.go:236", text, &[]);
    };
    let refused = |e: Error| {
        tell_lost(&e);
        hints::advise(Failure::interrupted(e.with_code()), &e)
    };
    let mut chunks = match client.snapshot().await {
        Ok(chunks) => chunks,
        // The server's own refusal comes, to Go's client, as the first thing on the stream.
        Err(e) if e.is_known() => {
            opened();
            return Err(refused(e));
        }
        Err(e) => return Err(interrupted(&e)),
    };
    opened();
    let first = match chunks.next().await {
        Some(Ok(first)) => first,
        Some(Err(e)) => return Err(refused(e)),
        None => {
            CLIENT_LOGGER.log(Level::Info, "v3@v3.7.3/maintenance.go:302", "completed snapshot read; closing", &[]);
            return Err(Failure::interrupted("EOF"));
        }
    };
    LOGGER.log(Level::Info, "snapshot/v3_snapshot.go:96", "fetching snapshot", &[("endpoint", Field::text(endpoint))]);
    let version = first.version.clone();
    let size = copy(first, &mut chunks, &mut sink).await?;
    if !has_checksum(size) {
        return Err(Failure::interrupted(format!("sha256 checksum not found [bytes: {size}]")));
    }
    Ok(Fetched { version, size, start })
}

/// Writes `first` and what follows it; returns how many bytes there were.
async fn copy(
    first: pb::SnapshotResponse,
    chunks: &mut Streaming<pb::SnapshotResponse>,
    sink: &mut impl Write,
) -> Result<u64, Failure> {
    let not_written = |why: String| Failure::interrupted(format!("could not write snapshot: {why}"));
    let length = |chunk: &pb::SnapshotResponse| chunk.blob.len() as u64;
    let bar = Bar::bytes("snapshot", Some(first.remaining_bytes.saturating_add(length(&first))));
    let mut size = 0;
    let mut chunk = first;
    loop {
        sink.write_all(&chunk.blob).map_err(|e| not_written(errno(&e)))?;
        size += length(&chunk);
        bar.set(size);
        chunk = match chunks.next().await {
            Some(Ok(next)) => next,
            Some(Err(e)) => {
                bar.finish();
                tell_lost(&e);
                return Err(not_written(e.with_code()));
            }
            None => break,
        };
    }
    bar.finish();
    sink.flush().map_err(|e| not_written(errno(&e)))?;
    CLIENT_LOGGER.log(Level::Info, "v3@v3.7.3/maintenance.go:302", "completed snapshot read; closing", &[]);
    Ok(size)
}

fn tell_lost(error: &Error) {
    let fields = [("error", Field::text(&error.with_code()))];
    let text = "failed to receive from snapshot stream; closing";
    CLIENT_LOGGER.log(Level::Warn, "v3@v3.7.3/maintenance.go:304", text, &fields);
}

/// Whether a copy of so many bytes ends in a SHA-256: a store is a whole number of pages.
fn has_checksum(size: u64) -> bool {
    size % 512 == 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_seen_by_the_size() {
        assert!(has_checksum(20480 + 32) && !has_checksum(20480) && !has_checksum(0));
    }

    #[test]
    fn the_system_speaks_as_in_go() {
        let missing = File::open("/no such folder/f").expect_err("it does not exist");
        assert_eq!(errno(&missing), "no such file or directory");
        assert_eq!(errno(&io::Error::other("Odd")), "odd");
    }
}
