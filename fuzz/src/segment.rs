//! The store's files: segments and MANIFEST.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Mono, OpenMode, Rng, SimDisk};
use dolmen_mvcc::Store;
use dolmen_proto::mvccpb::KeyValue;
use dolmen_revlog::{Batch, Hint, Log, NewRecord, Options};
use dolmen_types::Revision;
use prost::Message;

use crate::mutate::mutate;
use crate::{Reached, Target};

const DIR: &str = "/member/store";

pub struct Segment {
    files: Vec<(PathBuf, Vec<u8>)>,
}

fn options() -> Options {
    Options { segment_bytes: 3000, sync_bytes: 1500, part_bytes: 150, spare_bytes: 0, ..Options::default() }
}

impl Segment {
    pub fn new() -> Self {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = Arc::new(disk);
        let (mut log, _) = Log::open(shared.clone(), Path::new(DIR), options()).expect("an empty folder");
        for main in 2..60i64 {
            let records = (0..1 + main % 3).map(|sub| put(main, sub)).collect();
            log.append(Batch { index: main as u64, term: 1, records, ..Batch::default() });
            while let Some(job) = log.next_job(Mono::from_millis(main as u64), Hint::Sync) {
                log.finish_job(job.run().expect("a healthy disk"));
            }
        }
        drop(log);
        let names = shared.read_dir(Path::new(DIR)).expect("a simulated disk");
        let files = names.into_iter().filter(|name| name == "MANIFEST" || name.ends_with(".seg"));
        let read = |name: String| {
            let path = Path::new(DIR).join(name);
            let bytes = shared.read(&path).expect("a simulated disk");
            (path, bytes)
        };
        Self { files: files.map(read).collect() }
    }
}

fn put(main: i64, sub: i64) -> NewRecord {
    let key = Bytes::from(format!("key{}", (main * 7 + sub) % 20));
    let payload = KeyValue {
        key: key.clone(),
        create_revision: main,
        mod_revision: main,
        version: 1,
        value: vec![main as u8; (main * 13 % 200) as usize].into(),
        lease: 0,
    };
    NewRecord {
        rev: Revision::new(main, sub),
        tombstone: false,
        create: main,
        version: 1,
        lease: 0,
        key,
        payload: payload.encode_to_vec().into(),
    }
}

impl Target for Segment {
    fn case(&mut self, rng: &mut Rng) -> Reached {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(rng.next_u64()));
        disk.create_dir_all(Path::new(DIR)).expect("a simulated disk");
        let damaged = rng.below(self.files.len() as u64) as usize;
        for (at, (path, bytes)) in self.files.iter().enumerate() {
            let mut bytes = bytes.clone();
            if at == damaged {
                mutate(rng, &mut bytes);
            }
            let file = disk.open(path, OpenMode::Truncate).expect("a simulated disk");
            file.write_all_at(&bytes, 0).and_then(|()| file.sync_data()).expect("a simulated disk");
        }
        let Ok((log, recovered)) = Log::open(disk, Path::new(DIR), options()) else { return Reached::Refused };
        let reader = log.reader();
        let mut good = true;
        for main in 2..60 {
            good &= reader.get(Revision::new(main, 0)).is_ok();
        }
        good &= Store::open(log, recovered).is_ok();
        if good { Reached::Accepted } else { Reached::Refused }
    }
}
