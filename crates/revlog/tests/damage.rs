//! Files changed behind the store's back: every change is refused by name, or costs nothing that was read.

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use common::{batch, dir, put, settle, small, sync, tombstone};
use dolmen_env::{Disk, Mono, OpenMode, Rng, SimDisk};
use dolmen_revlog::{Batch, Error, Hint, Log, NewRecord, RecordMeta, Table, TableOp};
use dolmen_types::Revision;

struct Made {
    disk: SimDisk,
    records: Vec<NewRecord>,
    index: u64,
}

fn open(disk: &SimDisk) -> Result<(Log, dolmen_revlog::Recovered), Error> {
    Log::open(Arc::new(disk.clone()), &dir(), small())
}

/// A store with two kinds of sealed segments, a marked record that is kept, and an active file of several frames.
fn make() -> Made {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).unwrap();
    let mut records = Vec::new();
    let mut index = 0;
    let mut append = |log: &mut Log, records: &mut Vec<NewRecord>, new: Vec<NewRecord>, compact| {
        index += 1;
        records.extend(new.iter().cloned());
        let value = Some(Bytes::from(vec![index as u8; 9]));
        let tables = vec![TableOp { table: Table::Lease, key: Bytes::from_static(b"lease"), value }];
        log.append(Batch { index, term: 2, records: new, tables, compact });
        sync(log, Mono(0));
        index
    };
    for main in 2..60 {
        let key = format!("key/{}", main % 7);
        let record = if main % 9 == 0 { tombstone(main, 0, &key) } else { put(main, 0, &key, &[main as u8; 90]) };
        append(&mut log, &mut records, vec![record], None);
    }
    append(&mut log, &mut records, vec![], Some(30));
    let history = records.iter().map(|record| (record.rev, record.tombstone, record.key.clone()));
    log.mark_dead(&common::dead(history, 30));
    settle(&mut log, Mono(1 << 40), Hint::Normal);
    for main in 60..93 {
        append(&mut log, &mut records, vec![put(main, 0, "k", &[1; 90]), put(main, 1, "l", &[2; 30])], None);
    }
    let mut index = append(&mut log, &mut records, vec![put(93, 0, "m", b"last")], None);
    index = index.max(log.index());
    let kept: Vec<_> = log.reader().view().metas(Revision::default(), i64::MAX).map(|entry| entry.rev).collect();
    records.retain(|record| kept.contains(&record.rev));
    drop(log);
    Made { disk, records, index }
}

impl Made {
    fn files(&self) -> Vec<(String, u64)> {
        let names = self.disk.read_dir(&dir()).unwrap();
        let names = names.into_iter().filter(|name| name.ends_with(".seg") || name == "MANIFEST");
        names
            .map(|name| (name.clone(), self.disk.open(&dir().join(name), OpenMode::Read).unwrap().len().unwrap()))
            .collect()
    }

    /// Which file grows: the one that opening rewrites.
    fn active(&self) -> String {
        let names = |disk: &SimDisk| disk.read_dir(&dir()).unwrap();
        let fork = self.disk.fork(0);
        drop(open(&fork).unwrap());
        let after = names(&fork);
        names(&self.disk).into_iter().find(|name| !after.contains(name)).expect("the tail is copied at open")
    }

    /// Opens a changed disk and compares all that can be read. Whether anything was refused.
    fn judge(&self, disk: &SimDisk, active: bool, what: &str) -> bool {
        let (log, recovered) = match open(disk) {
            Ok(opened) => opened,
            Err(error) => {
                let known = matches!(
                    error,
                    Error::Corrupt { .. } | Error::Version { .. } | Error::Foreign { .. } | Error::Missing { .. }
                );
                assert!(known && error.to_string().contains("store/"), "{what}: {error}");
                return true;
            }
        };
        if !active {
            assert_eq!(recovered.index, self.index, "{what}");
        }
        let metas: Result<Vec<RecordMeta>, Error> = recovered.records.collect();
        let metas = metas.unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut refused = false;
        let expected = self.records.iter().filter(|record| metas.iter().any(|meta| meta.rev == record.rev));
        let expected: Vec<_> = expected.collect();
        assert_eq!(expected.len(), metas.len(), "{what}: a record that never was");
        let lost = self.records.len() - metas.len() - self.dead(&metas);
        assert!(active || lost == 0, "{what}: {lost} records lost");
        for (meta, record) in metas.iter().zip(expected) {
            assert_eq!((&meta.key, meta.create, meta.lease), (&record.key, record.create, record.lease), "{what}");
            match log.reader().get(meta.rev) {
                Ok(payload) => assert_eq!(payload.as_ref(), Some(&record.payload), "{what}"),
                Err(Error::Record { revision, .. }) => {
                    assert_eq!(revision, meta.rev);
                    refused = true;
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
        refused
    }

    /// Records kept on disk that opening leaves out because they were dead.
    fn dead(&self, metas: &[RecordMeta]) -> usize {
        let (_, recovered) = open(&self.disk.fork(0)).unwrap();
        let _ = metas;
        self.records.len() - recovered.records.count()
    }
}

#[test]
fn every_flipped_bit_is_refused_or_harmless() {
    let made = make();
    let active = made.active();
    let files = made.files();
    assert!(files.len() >= 5, "{files:?}");
    let mut rng = Rng::new(3);
    let (mut refused, mut tried) = (0, 0);
    for (name, len) in files {
        // All of the MANIFEST and of every end and beginning, a sample of the rest.
        let whole = name == "MANIFEST";
        for bit in 0..len * 8 {
            let byte = bit / 8;
            if !whole && byte > 40 && byte + 160 < len && rng.below(40) != 0 {
                continue;
            }
            let fork = made.disk.fork(bit);
            fork.flip_bit(&dir().join(&name), bit).unwrap();
            let found = made.judge(&fork, name == active, &format!("{name} bit {bit}"));
            assert!(found || !whole, "MANIFEST bit {bit}");
            refused += u64::from(found);
            tried += 1;
        }
    }
    assert!(refused * 10 > tried * 8, "{refused} of {tried}");
}

#[test]
fn every_cut_is_refused_or_an_earlier_point() {
    let made = make();
    let active = made.active();
    for (name, len) in made.files() {
        for cut in 0..len {
            if cut % 7 != 0 && cut + 200 < len && cut > 200 {
                continue;
            }
            let fork = made.disk.fork(cut);
            let path = dir().join(&name);
            let file = fork.open(&path, OpenMode::ReadWrite).unwrap();
            file.set_len(cut).unwrap();
            file.sync_data().unwrap();
            drop(file);
            let refused = made.judge(&fork, name == active, &format!("{name} cut to {cut}"));
            assert!(refused || name == active, "{name} cut to {cut} was not noticed");
        }
    }
}

#[test]
fn a_durable_frame_that_is_broken_is_damage_and_not_a_torn_end() {
    let made = make();
    let name = made.active();
    let len = made.files().into_iter().find(|(file, _)| *file == name).unwrap().1;
    let path = dir().join(&name);
    let bytes = made.disk.read(&path).unwrap();
    let frames: Vec<usize> = (0..bytes.len() - 3).filter(|at| bytes[*at..*at + 4] == *b"DLF2").collect();
    assert!(frames.len() > 3 && len as usize == bytes.len());
    for at in &frames[..frames.len() - 1] {
        for inside in [0, 5, 20, 60, 90] {
            let fork = made.disk.fork(0);
            fork.flip_bit(&path, (*at as u64 + inside) * 8).unwrap();
            let error = open(&fork).map(drop).unwrap_err();
            let Error::Corrupt { file, offset, .. } = &error else { panic!("{error}") };
            assert_eq!((file, *offset), (&path, *at as u64));
        }
    }
    // The last frame has no witness: it counts as torn, and the raft log has it.
    let fork = made.disk.fork(0);
    fork.flip_bit(&path, (*frames.last().unwrap() as u64 + 90) * 8).unwrap();
    let (log, recovered) = open(&fork).unwrap();
    assert_eq!(recovered.index, made.index - 1);
    assert_eq!(log.reader().get(Revision::new(93, 0)).unwrap(), None);
}

#[test]
fn a_value_that_looks_like_a_later_frame_does_not_keep_a_torn_store_shut() {
    let made = make();
    let bytes = made.disk.read(&dir().join(made.active())).unwrap();
    let last = (0..bytes.len() - 3).rfind(|at| bytes[*at..*at + 4] == *b"DLF2").unwrap();
    // A client that knows the format writes a whole header that claims a great deal.
    let disk = made.disk.fork(0);
    let (mut log, _) = open(&disk).unwrap();
    let mut forged = bytes[last..last + 104].to_vec();
    forged[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    forged[56..64].copy_from_slice(&u64::MAX.to_le_bytes());
    let crc = crc32c::crc32c(&forged[8..]);
    forged[4..8].copy_from_slice(&crc.to_le_bytes());
    log.append(batch(made.index + 1, vec![put(94, 0, "x", &forged)]));
    sync(&mut log, Mono(0));
    drop(log);
    let name = disk.read_dir(&dir()).unwrap().into_iter().rfind(|name| name.ends_with(".seg")).unwrap();
    let path = dir().join(name);
    let bytes = disk.read(&path).unwrap();
    let forged_at = (0..bytes.len() - 3).rfind(|at| bytes[*at..*at + 4] == *b"DLF2").unwrap();
    disk.flip_bit(&path, (forged_at as u64 - 8) * 8).unwrap();
    assert_eq!(open(&disk).unwrap().1.index, made.index);
}

fn refused(disk: &SimDisk) -> Error {
    open(disk).map(drop).unwrap_err()
}

#[test]
fn what_is_missing_foreign_or_locked_is_named() {
    let made = make();
    for (name, _) in made.files() {
        let fork = made.disk.fork(0);
        fork.remove_file(&dir().join(&name)).unwrap();
        let error = refused(&fork);
        assert!(matches!(&error, Error::Missing { file } if file.ends_with(&name)), "{name}: {error}");

        let fork = made.disk.fork(0);
        fork.write_atomic(&dir().join(&name), &[b'x'; 5000]).unwrap();
        let error = refused(&fork);
        assert!(error.to_string().contains(&name), "{name}: {error}");
    }
    let sealed: Vec<PathBuf> =
        made.files().into_iter().map(|(name, _)| dir().join(name)).filter(|path| path.extension().is_some()).collect();
    let fork = made.disk.fork(0);
    fork.write_atomic(&sealed[1], &made.disk.read(&sealed[0]).unwrap()).unwrap();
    assert!(matches!(refused(&fork), Error::Corrupt { .. }), "one segment in the place of another");
    let held = open(&made.disk).unwrap();
    assert!(matches!(refused(&made.disk), Error::Locked { .. }));
    drop(held);
    open(&made.disk).unwrap();
}

#[test]
fn reclaim_leaves_a_damaged_segment_alone_and_says_so() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).unwrap();
    for main in 2..80 {
        log.append(batch(main as u64, vec![put(main, 0, "key", &[7; 100])]));
    }
    log.append(Batch { index: 100, term: 1, compact: Some(79), ..Batch::default() });
    sync(&mut log, Mono(0));
    drop(log);
    let name = disk.read_dir(&dir()).unwrap().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    disk.flip_bit(&dir().join(&name), 300 * 8).unwrap();
    let (mut log, _) = open(&disk).unwrap();
    // Every other record dies, so that the damaged one would have to be copied.
    let dead: Vec<_> = (2..80).filter(|main| main % 2 == 1).map(|main| Revision::new(main, 0)).collect();
    log.mark_dead(&dead);
    let before = disk.used_bytes();
    settle(&mut log, Mono(1 << 40), Hint::Reclaim);
    assert_eq!(log.damaged().count(), 1);
    assert!(log.damaged().next().unwrap().to_string().contains(&name));
    assert!(disk.exists(&dir().join(&name)).unwrap());
    assert!(disk.used_bytes() < before * 3 / 4, "{} of {before}", disk.used_bytes());
    assert!(matches!(log.reader().get(Revision::new(2, 0)), Err(Error::Record { .. })));
    for main in 40..80 {
        assert_eq!(log.reader().get(Revision::new(main, 0)).unwrap().is_some(), main % 2 == 0, "{main}");
    }
}

/// The last batch moved the compact revision, and reclaim took what it let go. Were that batch taken for a torn tail, the
/// store would stand at a time whose records are gone.
#[test]
fn what_reclaim_took_vouches_for_the_batch_that_let_it_go() {
    let disk = SimDisk::new(1);
    let (mut log, _) = open(&disk).unwrap();
    for main in 2..60 {
        log.append(batch(main as u64, vec![put(main, 0, "k", &[1; 90])]));
        sync(&mut log, Mono(0));
    }
    log.append(Batch { index: 60, term: 1, compact: Some(20), ..Batch::default() });
    sync(&mut log, Mono(0));
    let segments = |disk: &SimDisk| {
        let names = disk.read_dir(&dir()).unwrap();
        names.into_iter().filter(|name| name.ends_with(".seg")).collect::<Vec<_>>()
    };
    let active = segments(&disk).pop().unwrap();
    let records = |log: &Log| log.reader().view().metas(Revision::default(), i64::MAX).count();
    let before = records(&log);
    log.mark_dead(&(2..20).map(|main| Revision::new(main, 0)).collect::<Vec<_>>());
    settle(&mut log, Mono(1), Hint::Normal);
    assert!(records(&log) < before, "something was reclaimed");
    drop(log);
    let path = dir().join(active);
    let bytes = disk.read(&path).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    disk.flip_bit(&path, last as u64 * 8).unwrap();
    assert!(matches!(open(&disk), Err(Error::Corrupt { .. })));
}
