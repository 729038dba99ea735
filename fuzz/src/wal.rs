//! The write-ahead log as a crash, a rotten disk or a bad copy leaves it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dolmen_env::{Disk, OpenMode, Rng, SimDisk};
use dolmen_proto::raftpb::{Entry, HardState};
use dolmen_wal::{Metadata, WalOptions};

use crate::mutate::mutate;
use crate::{Reached, Target};

const DIR: &str = "/member/wal";

pub struct Wal {
    disk: SimDisk,
}

impl Wal {
    pub fn new() -> Self {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = Arc::new(disk.fork(1));
        fill(&shared).expect("a healthy disk");
        // What `fill` wrote is in the fork; it is read back file by file.
        copy(&*shared, &disk).expect("a healthy disk");
        Self { disk }
    }
}

fn options() -> WalOptions {
    WalOptions { segment_bytes: 4096, ..WalOptions::default() }
}

/// Three segments of entries, hard states, and both slots.
fn fill(disk: &Arc<dyn Disk>) -> Result<(), Box<dyn std::error::Error>> {
    disk.create_dir_all(Path::new("/member"))?;
    let metadata = Metadata { node_id: 7, cluster_id: 9 };
    let mut wal = dolmen_wal::Wal::create(disk.clone(), Path::new(DIR), metadata, options())?;
    for index in 1..=80u64 {
        let data = vec![index as u8; (index * 37 % 300) as usize];
        let entry = Entry { term: 1 + index / 30, index, data: data.into(), ..Entry::default() };
        let state = HardState { term: 1 + index / 30, vote: 7, commit: index - 1 };
        wal.append(Some(&state), &[entry])?;
        if index % 3 == 0 {
            wal.sync()?;
        }
    }
    wal.sync()?;
    wal.close()?;
    Ok(())
}

fn files(disk: &dyn Disk) -> std::io::Result<Vec<PathBuf>> {
    let segments = disk.read_dir(Path::new(DIR))?.into_iter().map(|name| Path::new(DIR).join(name));
    let slots = ["/member/acked-0", "/member/acked-1"].map(PathBuf::from).into_iter();
    Ok(segments.chain(slots).filter(|path| disk.exists(path).unwrap_or(false)).collect())
}

fn copy(from: &dyn Disk, to: &dyn Disk) -> std::io::Result<()> {
    to.create_dir_all(Path::new(DIR))?;
    for path in files(from)? {
        replace(to, &path, &from.read(&path)?)?;
    }
    Ok(())
}

fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file = disk.open(path, OpenMode::Truncate)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()
}

impl Target for Wal {
    fn case(&mut self, rng: &mut Rng) -> Reached {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.fork(rng.next_u64()));
        let all = files(&*disk).expect("a simulated disk");
        let path = rng.pick(&all).clone();
        let mut bytes = disk.read(&path).expect("a simulated disk");
        // Most of a segment is allocated and not written; damage belongs where the records are.
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 9).min(bytes.len());
        let rest = bytes.split_off(used);
        mutate(rng, &mut bytes);
        bytes.extend_from_slice(&rest);
        replace(&*disk, &path, &bytes).expect("a simulated disk");
        let _either = dolmen_wal::Wal::snapshots(&*disk, Path::new(DIR));
        let _either = dolmen_wal::Wal::read(&*disk, Path::new(DIR), (0, 0));
        match dolmen_wal::Wal::open(disk, Path::new(DIR), (0, 0), options()) {
            Ok((mut wal, recovered)) => {
                // What opens has to go on working.
                let index = recovered.entries.last().map_or(0, |entry| entry.index) + 1;
                let term = recovered.hard_state.term.max(1);
                let entry = Entry { term, index, ..Entry::default() };
                wal.append(None, &[entry]).and_then(|()| wal.sync()).expect("an opened log takes entries");
                Reached::Accepted
            }
            Err(_) => Reached::Refused,
        }
    }
}
