//! Writes a log for another program to read: `write_wal <dir> <entries> [segment bytes]`.
//!
//! Entry n has term 1 + n / 1000 and the data `value-<n>` repeated n % 7 times; the hard state commits all of them, and
//! a snapshot record stands at every 500th.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use dolmen_env::{Disk, RealDisk};
use dolmen_proto::raftpb::{ConfState, Entry, HardState};
use dolmen_proto::walpb::Snapshot;
use dolmen_wal::{Metadata, Wal, WalError, WalOptions};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(dir), Some(count)) = (arguments.next(), arguments.next().and_then(|count| count.parse().ok())) else {
        eprintln!("usage: write_wal <dir> <entries> [segment bytes]");
        return ExitCode::from(2);
    };
    let mut options = WalOptions::default();
    if let Some(bytes) = arguments.next().and_then(|bytes| bytes.parse().ok()) {
        options.segment_bytes = bytes;
    }
    match write(&PathBuf::from(dir), count, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn term(index: u64) -> u64 {
    1 + index / 1000
}

fn write(dir: &std::path::Path, count: u64, options: WalOptions) -> Result<(), WalError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let metadata = Metadata { node_id: 0x1234_5678_9abc_def0, cluster_id: 0xfeed_face };
    let mut wal = if Wal::exists(disk.as_ref(), dir).unwrap_or(false) {
        Wal::open(disk, dir, (0, 0), options)?.0
    } else {
        Wal::create(disk, dir, metadata, options)?
    };
    let first = wal.last_index() + 1;
    for index in first..first + count {
        let data = format!("value-{index}").repeat((index % 7) as usize);
        let entry = Entry { term: term(index), index, r#type: 0, data: data.into() };
        wal.append(Some(&HardState { term: term(index), vote: 7, commit: index }), &[entry])?;
        if index % 500 == 0 {
            let conf_state = ConfState { voters: vec![metadata.node_id], ..ConfState::default() };
            wal.append_snapshot(&Snapshot { index, term: term(index), conf_state: Some(conf_state) })?;
        }
        if index % 16 == 0 {
            wal.sync()?;
        }
        if index % 160 == 0 {
            wal.note_acked()?;
        }
    }
    wal.close()
}
