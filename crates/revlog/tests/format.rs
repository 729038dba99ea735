//! Version 1 of the format, and batches in parts.

mod common;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use common::{batch, dir, put, settle, small, sync};
use dolmen_env::{Disk, Mono, OpenMode, PowerLoss, SimDisk};
use dolmen_revlog::{Batch, Error, Hint, Log, NewRecord, Options, Recovered, Table};
use dolmen_types::Revision;

/// What `tests/data/v1` was made of, by a release that knew no other version: revision r writes `key/(r % 10)`, every
/// fifth deletes it, each fourth writes `other/(r % 7)` as well; 20 is compacted, and what it killed was reclaimed.
fn old_record(main: i64, sub: i64) -> NewRecord {
    let key = if sub == 0 { format!("key/{}", main % 10) } else { format!("other/{}", main % 7) };
    let tombstone = sub == 0 && main % 5 == 0;
    let mut payload = [&[0x0a, key.len() as u8][..], key.as_bytes()].concat();
    if !tombstone {
        let value = vec![main as u8; (main as usize * 7) % 90];
        payload.extend_from_slice(&[0x2a, value.len() as u8]);
        payload.extend_from_slice(&value);
    }
    let number = |value: i64| if tombstone { 0 } else { value };
    NewRecord {
        rev: Revision::new(main, sub),
        tombstone,
        create: number(main - 1),
        version: number(2),
        lease: number(main % 3),
        key: key.into(),
        payload: payload.into(),
    }
}

const V1: [(&str, &[u8]); 8] = [
    ("MANIFEST", include_bytes!("data/v1/MANIFEST")),
    ("0000000000000002.seg", include_bytes!("data/v1/0000000000000002.seg")),
    ("0000000000000003.seg", include_bytes!("data/v1/0000000000000003.seg")),
    ("0000000000000004.seg", include_bytes!("data/v1/0000000000000004.seg")),
    ("0000000000000005.seg", include_bytes!("data/v1/0000000000000005.seg")),
    ("0000000000000006.seg", include_bytes!("data/v1/0000000000000006.seg")),
    ("0000000000000007.seg", include_bytes!("data/v1/0000000000000007.seg")),
    ("0000000000000008.seg", include_bytes!("data/v1/0000000000000008.seg")),
];

fn version_1() -> SimDisk {
    let disk = SimDisk::new(1);
    disk.create_dir_all(&dir()).unwrap();
    for (name, bytes) in V1 {
        let file = disk.open(&dir().join(name), OpenMode::Truncate).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync_data().unwrap();
    }
    disk.sync_dir(&dir()).unwrap();
    disk
}

fn options() -> Options {
    Options { segment_bytes: 1500, spare_bytes: 0, sync_interval: 1, ..small() }
}

fn open(disk: &SimDisk, options: Options) -> (Log, Recovered) {
    Log::open(Arc::new(disk.clone()), &dir(), options).unwrap()
}

fn scan(log: &Log) -> Vec<(Revision, bool, Bytes)> {
    log.reader().view().scan(Revision::default(), i64::MAX).map(Result::unwrap).collect()
}

#[test]
fn a_directory_of_version_1_opens_and_goes_on_in_version_2() {
    let disk = version_1();
    let mut now = Mono(1);
    let mut expected: Vec<_> = (2..=60)
        .flat_map(|main| (0..=i64::from(main % 4 == 0)).map(move |sub| old_record(main, sub)))
        // Compacted at 20: what a reclaim dropped.
        .filter(|record| !(2..=10).contains(&record.rev.main) || record.rev.sub == 1)
        .collect();
    for life in 0..4_i64 {
        let (mut log, recovered) = open(&disk, options());
        assert_eq!((recovered.index, recovered.term, recovered.compact_revision), (70 + life as u64, 3, 20));
        let metas: Vec<_> = recovered.records.map(Result::unwrap).collect();
        assert_eq!(metas.len(), expected.len());
        for (meta, record) in metas.iter().zip(&expected) {
            let found = (meta.rev, meta.tombstone, meta.create, meta.version, meta.lease, &meta.key);
            let wanted = (record.rev, record.tombstone, record.create, record.version, record.lease, &record.key);
            assert_eq!(found, wanted);
        }
        let wanted: Vec<_> =
            expected.iter().map(|record| (record.rev, record.tombstone, record.payload.clone())).collect();
        assert_eq!(scan(&log), wanted);
        assert_eq!(log.tables().get(Table::Meta, b"last"), Some(&Bytes::from_static(b"60")));
        if life == 0 {
            assert_eq!(log.reader().checksum(Revision::new(30, 0)), None);
        }
        // Written on: more than a segment in each life, so that files of both versions are sealed and reclaimed.
        let main = 61 + life;
        let records: Vec<_> = (0..20).map(|sub| put(main, sub, "more", &[7; 90])).collect();
        expected.extend(records.iter().cloned());
        log.append(Batch { index: 71 + life as u64, term: 3, records, ..Batch::default() });
        for _ in 0..20 {
            now.0 += 1_000_000_000;
            settle(&mut log, now, Hint::Sync);
            settle(&mut log, now, Hint::Reclaim);
        }
        assert_eq!(disk.read(&dir().join("MANIFEST")).unwrap()[8], 2);
        // A record of version 2 has its checksum in the footer, one of version 1 none.
        if life == 1 {
            let crc = log.reader().checksum(Revision::new(61, 3));
            assert_eq!(crc, Some(crc32c::crc32c(&put(61, 3, "more", &[7; 90]).payload)));
        }
    }
}

/// Records that fill several frames, and with small segments several files.
fn many(main: i64, count: i64) -> Vec<NewRecord> {
    (0..count).map(|sub| put(main, sub, &format!("k{sub}"), &[main as u8; 100])).collect()
}

#[test]
fn a_batch_in_parts_counts_when_its_last_frame_does() {
    for (segment_bytes, count) in [(1 << 20, 40), (1000, 40), (1000, 3)] {
        let options = Options { segment_bytes, ..small() };
        let disk = SimDisk::new(7);
        let (mut log, _) = open(&disk, options.clone());
        let mut records = many(2, 5);
        log.append(batch(1, records.clone()));
        sync(&mut log, Mono(0));
        let unended = many(3, count);
        for part in unended.chunks(2) {
            log.append_part(part);
            sync(&mut log, Mono(0));
        }
        // Readable for who knows of it, and nothing the raft log may be released for.
        assert_eq!((log.index(), log.durable_index(), log.sizes().live_bytes > 0), (1, 1, true));
        assert_eq!(log.reader().get(unended[2].rev).unwrap(), Some(unended[2].payload.clone()));
        log.close().unwrap();
        disk.power_loss(PowerLoss::KeepAll);

        // A second start must find what the first one left.
        for _ in 0..2 {
            let (log, recovered) = open(&disk, options.clone());
            assert_eq!(recovered.index, 1);
            assert_eq!(recovered.records.count(), records.len());
            assert_eq!(scan(&log).len(), records.len());
            assert_eq!(log.reader().get(unended[2].rev).unwrap(), None);
        }

        // The same batch again, whole this time.
        let (mut log, _) = open(&disk, options.clone());
        for part in unended.chunks(3) {
            log.append_part(part);
            sync(&mut log, Mono(0));
        }
        let last = many(4, 1);
        log.append(batch(2, last.clone()));
        sync(&mut log, Mono(0));
        records.extend(unended.into_iter().chain(last));
        drop(log);
        disk.power_loss(PowerLoss::LoseAll);
        let (mut log, recovered) = open(&disk, options);
        assert_eq!((recovered.index, log.durable_index()), (2, 2));
        assert_eq!(
            recovered.records.map(|meta| meta.unwrap().rev).collect::<Vec<_>>(),
            records.iter().map(|r| r.rev).collect::<Vec<_>>()
        );
        log.append(batch(3, many(5, 1)));
        sync(&mut log, Mono(0));
        assert_eq!(scan(&log).len(), records.len() + 1);
    }
}

#[test]
fn what_reclaim_commits_meanwhile_promises_no_part() {
    let options = Options { segment_bytes: 1000, ..small() };
    let disk = SimDisk::new(3);
    let (mut log, _) = open(&disk, options.clone());
    for main in 2..30 {
        log.append(batch(main as u64, vec![put(main, 0, "k", &[1; 100])]));
        sync(&mut log, Mono(0));
    }
    log.append(Batch { index: 30, compact: Some(29), ..Batch::default() });
    for part in many(30, 30).chunks(4) {
        log.append_part(part);
        sync(&mut log, Mono(0));
    }
    log.mark_dead(&(2..29).map(|main| Revision::new(main, 0)).collect::<Vec<_>>());
    for second in 1..200 {
        settle(&mut log, Mono(second << 33), Hint::Normal);
    }
    drop(log);
    for shape in [PowerLoss::LoseAll, PowerLoss::KeepAll] {
        disk.power_loss(shape);
        let (log, recovered) = open(&disk, options.clone());
        assert_eq!((recovered.index, recovered.compact_revision), (30, 29));
        assert_eq!(scan(&log).iter().map(|(rev, ..)| rev.main).collect::<Vec<_>>(), [29]);
    }
}

#[test]
fn a_later_version_is_refused_by_name() {
    let disk = version_1();
    let path = dir().join("MANIFEST");
    let mut bytes = disk.read(&path).unwrap();
    bytes[8] = 3;
    disk.write_atomic(&path, &bytes).unwrap();
    let error = Log::open(Arc::new(disk), Path::new(common::DIR), small()).map(drop).unwrap_err();
    assert!(matches!(error, Error::Version { found: 3, supported: 2, .. }), "{error}");
}
