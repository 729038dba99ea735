//! Prints every record of a log, then what the log adds up to: `dump_wal <dir> [--quiet]`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dolmen_env::RealDisk;
use dolmen_proto::raftpb::HardState;
use dolmen_proto::walpb::Snapshot;
use dolmen_wal::{Inspected, Kind, Wal, WalError, inspect};
use prost::Message;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(dir) = arguments.next() else {
        eprintln!("usage: dump_wal <dir> [--quiet]");
        return ExitCode::from(2);
    };
    match dump(&PathBuf::from(dir), arguments.next().is_some()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn dump(dir: &Path, quiet: bool) -> Result<(), WalError> {
    let torn = inspect(&RealDisk, dir, &mut |record| {
        if !quiet {
            println!("{}", line(&record));
        }
    })?;
    if let Some(torn) = torn {
        println!("torn tail: {} bytes at {} of {}: {}", torn.bytes, torn.offset, torn.file.display(), torn.what);
    }
    let snapshots = Wal::snapshots(&RealDisk, dir)?;
    let from = snapshots.first().map_or((0, 0), |snapshot| (snapshot.index, snapshot.term));
    let log = Wal::read(&RealDisk, dir, from)?;
    let ends = (log.entries.first().map_or(0, |entry| entry.index), log.entries.last().map_or(0, |entry| entry.index));
    println!("member {:x} of cluster {:x}", log.metadata.node_id, log.metadata.cluster_id);
    println!("{:?}, {} snapshots, entries {} to {}", log.hard_state, snapshots.len(), ends.0, ends.1);
    Ok(())
}

fn line(record: &Inspected<'_>) -> String {
    let text = match record.kind {
        Kind::Entry => match record.entry() {
            Ok(entry) => {
                let head = &entry.data[..entry.data.len().min(24)];
                format!("{}/{} type {} {:?}", entry.term, entry.index, entry.r#type, String::from_utf8_lossy(head))
            }
            Err(e) => e.to_string(),
        },
        Kind::State => format!("{:?}", HardState::decode(record.data)),
        Kind::Snapshot => format!("{:?}", Snapshot::decode(record.data)),
        Kind::Metadata | Kind::Crc => format!("{:02x?}", record.data),
    };
    let synced = record.synced.map_or("etcd's".to_owned(), |synced| format!("synced {synced}"));
    format!("{:x}:{} {:?} crc {:08x} {synced} {text}", record.seq, record.offset, record.kind, record.crc)
}
