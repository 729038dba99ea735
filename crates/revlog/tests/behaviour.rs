//! What callers rely on, one matter a test.

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{World, batch, dir, put, settle, small, sync, tombstone};
use dolmen_env::{Disk, Fault, Mono, PowerLoss, Rng, SimDisk};
use dolmen_revlog::{Batch, Error, Hint, JobKind, Log, Options, Table, TableOp, Tables};
use dolmen_types::Revision;

fn open(disk: &SimDisk, options: Options) -> Log {
    Log::open(Arc::new(disk.clone()), &dir(), options).unwrap().0
}

fn rev(main: i64) -> Revision {
    Revision::new(main, 0)
}

/// Lets time pass only as far as the log says it matters, to at most `until`; answers when it had no more to do.
fn live(log: &mut Log, from: Mono, until: Mono) -> Mono {
    let mut now = from;
    loop {
        while let Some(job) = log.next_job(now, Hint::Normal) {
            log.finish_job(job.run().unwrap());
        }
        match log.next_due() {
            Some(due) if due.max(now) < until => now = due.max(Mono(now.0 + 1_000_000)),
            _ => return now,
        }
    }
}

#[test]
fn a_batch_is_readable_at_once_and_durable_after_its_job() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, Options::default());
    settle(&mut log, Mono(0), Hint::Normal);
    let reader = log.reader();
    log.append(batch(7, vec![put(2, 0, "a", b"1"), put(2, 1, "b", b"2")]));
    assert_eq!(reader.get(Revision::new(2, 1)).unwrap(), Some(common::key_value(b"b", b"2")));
    assert_eq!(reader.get(Revision::new(2, 2)).unwrap(), None);
    assert_eq!((log.durable_index(), log.backlog_bytes() > 0), (0, true));
    assert!(log.next_job(Mono::from_millis(5), Hint::Normal).is_none());
    assert_eq!(log.next_due(), Some(Mono::from_millis(1005)));
    assert!(log.next_job(Mono::from_millis(1004), Hint::Normal).is_none());
    let job = log.next_job(Mono::from_millis(1005), Hint::Normal).unwrap();
    assert_eq!((job.kind(), log.backlog_bytes()), (JobKind::Write, 0));
    assert!(log.next_job(Mono::from_millis(9999), Hint::Sync).is_none(), "one write at a time");
    log.append(batch(8, vec![]));
    log.finish_job(job.run().unwrap());
    assert_eq!(log.durable_index(), 7);
    sync(&mut log, Mono::from_millis(1006));
    assert_eq!((log.durable_index(), log.next_due()), (8, None));
}

#[test]
fn enough_bytes_make_a_write_due_without_waiting() {
    let mut log = open(&SimDisk::new(1), small());
    settle(&mut log, Mono(0), Hint::Normal);
    log.append(batch(1, vec![put(2, 0, "a", &[0; 100])]));
    assert!(log.next_job(Mono(0), Hint::Normal).is_none());
    log.append(batch(2, vec![put(3, 0, "a", &[0; 100]), put(4, 0, "a", &[0; 1300])]));
    assert_eq!(log.next_job(Mono(0), Hint::Normal).unwrap().kind(), JobKind::Write);
}

#[test]
fn tables_survive_rolls_and_reclaim() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, small());
    let op = |key: &'static str, value: Option<&'static str>| TableOp {
        table: Table::AuthUsers,
        key: Bytes::from_static(key.as_bytes()),
        value: value.map(|value| Bytes::from_static(value.as_bytes())),
    };
    log.append(Batch { index: 1, tables: vec![op("root", Some("r")), op("u", Some("1"))], ..Batch::default() });
    for main in 2..200 {
        log.append(batch(main as u64, vec![put(main, 0, "k", &[1; 100])]));
        settle(&mut log, Mono(0), Hint::Normal);
    }
    log.append(Batch { index: 500, tables: vec![op("u", None)], compact: Some(199), ..Batch::default() });
    log.mark_dead(&(2..199).map(rev).collect::<Vec<_>>());
    sync(&mut log, Mono(0));
    settle(&mut log, Mono(1 << 40), Hint::Reclaim);
    let tables = log.tables().clone();
    assert_eq!(tables.iter(Table::AuthUsers).map(|(key, _)| key.clone()).collect::<Vec<_>>(), ["root"]);
    assert!(log.sizes().total_bytes < 5000, "{:?}", log.sizes());
    drop(log);
    disk.power_loss(PowerLoss::LoseAll);
    let log = open(&disk, small());
    assert_eq!(log.tables(), &tables);
    assert_eq!((log.index(), log.compact_revision()), (500, 199));
    assert!(log.reader().get(rev(199)).unwrap().is_some());
}

/// The goal: four fifths deleted and compacted, nothing else asked for.
#[test]
fn space_comes_back_by_itself() {
    let options = Options {
        segment_bytes: 256 << 10,
        reclaim_bytes_per_second: 256 << 10,
        reclaim_slice_bytes: 8 << 10,
        spare_bytes: 64 << 10,
        ..Options::default()
    };
    let disk = SimDisk::new(1);
    let mut log = open(&disk, options.clone());
    let (mut rng, mut index, count) = (Rng::new(5), 0, 6000);
    let mut now = Mono(0);
    for main in 2..count {
        index += 1;
        log.append(batch(index, vec![put(main, 0, &format!("key/{main}"), &[1; 1000])]));
        settle(&mut log, now, Hint::Normal);
    }
    let (mut main, mut dead, mut kept) = (count, Vec::new(), Vec::new());
    for old in 2..count {
        if rng.below(5) == 0 {
            kept.push(rev(old));
            continue;
        }
        main += 1;
        index += 1;
        log.append(batch(index, vec![tombstone(main, 0, &format!("key/{old}"))]));
        dead.extend([rev(old), rev(main)]);
        settle(&mut log, now, Hint::Normal);
    }
    log.append(Batch { index: index + 1, term: 1, compact: Some(main), ..Batch::default() });
    log.mark_dead(&dead);
    let before = disk.used_bytes();
    now = live(&mut log, now, Mono::from_millis(60_000));
    let live_bytes = log.sizes().live_bytes;
    assert!(before > 5 * live_bytes && live_bytes > 1_000_000);
    assert!(disk.used_bytes() * 10 <= live_bytes * 13, "{} for {live_bytes}", disk.used_bytes());
    // At the budget: about as many seconds as it copied quarters of a megabyte.
    assert!(now.as_millis() > 2000, "faster than the budget: {} ms", now.as_millis());
    let reader = log.reader();
    assert!(kept.iter().all(|rev| reader.get(*rev).unwrap().is_some()));
    assert!(reader.view().metas(rev(0), i64::MAX).count() < kept.len() * 11 / 10);
    drop((log, reader));
    disk.power_loss(PowerLoss::LoseAll);
    let (log, recovered) = Log::open(Arc::new(disk.clone()), &dir(), options).unwrap();
    let revs: Vec<_> = recovered.records.map(|meta| meta.unwrap().rev).collect();
    assert!(kept.iter().all(|rev| revs.binary_search(rev).is_ok()));
    assert!(kept.iter().all(|rev| log.reader().get(*rev).unwrap().is_some()));
}

#[test]
fn little_garbage_is_left_until_a_pass_is_asked_for() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, small());
    for main in 2..100 {
        log.append(batch(main as u64, vec![put(main, 0, &format!("k{main}"), &[1; 100])]));
        settle(&mut log, Mono(0), Hint::Normal);
    }
    log.append(Batch { index: 100, compact: Some(99), ..Batch::default() });
    log.mark_dead(&[rev(2), rev(40), rev(99)]);
    sync(&mut log, Mono(0));
    live(&mut log, Mono(0), Mono::from_millis(60_000));
    assert!(log.reader().get(rev(2)).unwrap().is_some());
    settle(&mut log, Mono::from_millis(60_000), Hint::Reclaim);
    for main in 2..100 {
        assert_eq!(log.reader().get(rev(main)).unwrap().is_none(), matches!(main, 2 | 40 | 99), "{main}");
    }
    assert_eq!(log.next_due(), None);
}

#[test]
fn nothing_is_dropped_before_its_compaction_is_durable() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, small());
    for main in 2..60 {
        log.append(batch(main as u64, vec![put(main, 0, "k", &[1; 100])]));
    }
    sync(&mut log, Mono(0));
    // The batch is in memory only: no reclaim, even of a segment that is all dead.
    log.append(Batch { index: 60, compact: Some(59), ..Batch::default() });
    log.mark_dead(&(2..59).map(rev).collect::<Vec<_>>());
    while let Some(job) = log.next_job(Mono(0), Hint::Reclaim) {
        assert_ne!(job.kind(), JobKind::Reclaim);
        if log.durable_index() < 60 && matches!(job.kind(), JobKind::Seal | JobKind::Write) {
            break;
        }
        log.finish_job(job.run().unwrap());
    }
    drop(log);
    disk.power_loss(PowerLoss::LoseAll);
    let (mut log, recovered) = Log::open(Arc::new(disk), &dir(), small()).unwrap();
    assert_eq!((log.compact_revision(), recovered.records.count()), (-1, 58));
    // Marks that come before their batch wait for it.
    log.mark_dead(&(2..59).map(rev).collect::<Vec<_>>());
    settle(&mut log, Mono(1 << 40), Hint::Reclaim);
    assert_eq!(log.reader().view().metas(rev(0), i64::MAX).count(), 58);
    log.append(Batch { index: 60, compact: Some(59), ..Batch::default() });
    settle(&mut log, Mono(1 << 41), Hint::Sync);
    settle(&mut log, Mono(1 << 42), Hint::Reclaim);
    assert_eq!(log.reader().view().metas(rev(0), i64::MAX).count(), 1);
}

#[test]
fn a_view_keeps_its_records_and_files() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, small());
    for main in 2..100 {
        log.append(batch(main as u64, vec![put(main, 0, "k", &[main as u8; 100])]));
        settle(&mut log, Mono(0), Hint::Normal);
    }
    let view = log.reader().view();
    let segments = || disk.read_dir(&dir()).unwrap().iter().filter(|name| name.ends_with(".seg")).count();
    let files = segments();
    assert!(files > 4);
    log.append(Batch { index: 100, compact: Some(99), ..Batch::default() });
    log.mark_dead(&(2..99).map(rev).collect::<Vec<_>>());
    sync(&mut log, Mono(0));
    settle(&mut log, Mono(1 << 40), Hint::Reclaim);
    assert_eq!(log.reader().get(rev(5)).unwrap(), None);
    assert!(segments() >= files);
    log.append(batch(101, vec![put(100, 0, "later", b"x")]));
    assert_eq!(view.get(rev(100)).unwrap(), None, "a view does not grow");
    let seen: Vec<_> = view.scan(rev(0), i64::MAX).map(|item| item.unwrap().0).collect();
    assert_eq!(seen, (2..100).map(rev).collect::<Vec<_>>());
    assert_eq!(view.scan(rev(10), 12).count(), 3);
    settle(&mut log, Mono(1 << 41), Hint::Sync);
    assert!(segments() >= files);
    drop(view);
    settle(&mut log, Mono(1 << 42), Hint::Normal);
    assert!(segments() <= 2, "{} of {files}", segments());
}

#[test]
fn history_keeps_what_died_last() {
    let disk = SimDisk::new(1);
    let options = Options { history_bytes: 2000, ..small() };
    let mut log = open(&disk, options);
    for main in 2..100 {
        log.append(batch(main as u64, vec![put(main, 0, "k", &[main as u8; 100])]));
        settle(&mut log, Mono(0), Hint::Normal);
    }
    log.append(Batch { index: 100, compact: Some(99), ..Batch::default() });
    // An old record that died last.
    let order: Vec<_> = (3..99).chain([2]).map(rev).collect();
    log.mark_dead(&order);
    sync(&mut log, Mono(0));
    settle(&mut log, Mono(1 << 40), Hint::Reclaim);
    let sizes = log.sizes();
    assert!(sizes.history_bytes <= 2000 && sizes.history_bytes > 1800, "{sizes:?}");
    let left: Vec<_> = log.reader().view().metas(rev(0), i64::MAX).map(|entry| entry.rev.main).collect();
    assert_eq!((left[0], left[1] > 80, *left.last().unwrap()), (2, true, 99), "{left:?}");
    assert!(sizes.live_bytes < 200);
}

#[test]
fn a_full_disk_still_gives_space_back() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, small());
    for main in 2..100 {
        log.append(batch(main as u64, vec![put(main, 0, &format!("k{main}"), &[main as u8; 100])]));
        settle(&mut log, Mono(0), Hint::Normal);
    }
    settle(&mut log, Mono(0), Hint::Sync);
    assert!(disk.exists(&dir().join("spare")).unwrap());
    disk.set_capacity(Some(disk.used_bytes()));
    log.append(Batch { index: 100, compact: Some(99), ..Batch::default() });
    log.mark_dead(&(2..100).filter(|main| main % 3 != 0).map(rev).collect::<Vec<_>>());
    let full = disk.used_bytes();
    settle(&mut log, Mono(0), Hint::Sync);
    for second in 1..200 {
        settle(&mut log, Mono::from_millis(second * 1000), Hint::Normal);
    }
    assert!(disk.used_bytes() < full / 2, "{} of {full}", disk.used_bytes());
    for main in (3..100).step_by(3) {
        assert!(log.reader().get(rev(main)).unwrap().is_some());
    }
    assert!(disk.exists(&dir().join("spare")).unwrap(), "set aside again");
}

#[test]
fn a_disk_with_no_room_at_all_stops_the_writer_and_loses_nothing() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, small());
    for main in 2..30 {
        log.append(batch(main as u64, vec![put(main, 0, "k", &[main as u8; 100])]));
    }
    sync(&mut log, Mono(0));
    disk.set_capacity(Some(disk.used_bytes()));
    let mut main = 30;
    let error = loop {
        log.append(batch(main as u64, vec![put(main, 0, "k", &[main as u8; 100])]));
        main += 1;
        match log.next_job(Mono(0), Hint::Sync).map(|job| job.run()) {
            Some(Ok(done)) => log.finish_job(done),
            Some(Err(error)) => break error,
            None => {}
        }
        assert!(main < 200);
    };
    assert!(matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull), "{error}");
    let durable = log.durable_index();
    drop(log);
    disk.power_loss(PowerLoss::SectorHoles);
    assert!(open(&disk, small()).index() >= durable, "opens on the full disk");
}

#[test]
fn a_full_disk_anywhere_is_handled_or_fatal_but_never_a_loss() {
    for seed in 0..150 {
        for k in [20, 60, 150, 300] {
            let disk = SimDisk::new(seed);
            let mut world = World::new(disk.clone(), seed, small());
            disk.inject(Fault::NoSpace { after: k });
            let result = (0..120).try_for_each(|_| world.step());
            disk.clear_faults();
            if result.is_err() {
                world.close();
                disk.kill();
                world.open().unwrap();
            }
            world.drain(Hint::Sync).unwrap();
            world.close();
            disk.power_loss(PowerLoss::LoseAll);
            world.open().unwrap();
        }
    }
}

#[test]
fn an_abandoned_or_superseded_content_leaves_no_file() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, small());
    log.append(batch(1, vec![put(2, 0, "k", b"v")]));
    sync(&mut log, Mono(0));
    let files = disk.read_dir(&dir()).unwrap();
    let mut builder = log.replace();
    for main in 5..90 {
        builder.push(put(main, 0, "k", &[1; 100])).unwrap();
    }
    assert!(matches!(builder.push(put(5, 0, "k", b"")), Err(Error::Order { .. })));
    drop(builder);
    let mut builder = log.replace();
    builder.push(put(9, 0, "k", &[1; 100])).unwrap();
    drop(builder.finish(Tables::default(), 5, 1, -1).unwrap());
    settle(&mut log, Mono(0), Hint::Normal);
    assert_eq!(disk.read_dir(&dir()).unwrap(), files);

    // Jobs of the old content that are still out change nothing.
    log.append(batch(2, vec![put(3, 0, "k", b"v")]));
    let write = log.next_job(Mono(0), Hint::Sync).unwrap();
    let mut builder = log.replace();
    builder.push(put(50, 0, "n", b"new")).unwrap();
    let replacement = builder.finish(Tables::default(), 40, 3, 49).unwrap();
    let recovered = log.install(replacement).unwrap();
    assert_eq!((recovered.index, recovered.term, recovered.compact_revision), (40, 3, 49));
    assert_eq!(recovered.records.map(|meta| meta.unwrap().rev).collect::<Vec<_>>(), [rev(50)]);
    log.finish_job(write.run().unwrap());
    assert_eq!((log.durable_index(), log.index()), (40, 40));
    assert_eq!(log.reader().get(rev(3)).unwrap(), None);
    log.append(batch(41, vec![put(51, 0, "n", b"newer")]));
    sync(&mut log, Mono(0));
    drop(log);
    disk.power_loss(PowerLoss::LoseAll);
    let log = open(&disk, small());
    assert_eq!(log.index(), 41);
    assert!(log.reader().get(rev(50)).unwrap().is_some() && log.reader().get(rev(51)).unwrap().is_some());
}

#[test]
fn readers_on_other_threads_see_every_appended_record() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, small());
    let reader = log.reader();
    let newest = std::sync::atomic::AtomicI64::new(1);
    std::thread::scope(|scope| {
        let (newest, reader) = (&newest, &reader);
        for _ in 0..2 {
            scope.spawn(move || {
                let mut rng = Rng::new(1);
                loop {
                    let last = newest.load(std::sync::atomic::Ordering::Acquire);
                    if last == 3000 {
                        return;
                    }
                    if last > 1 {
                        // Only odd revisions are ever marked dead.
                        let main = (2 + rng.below(last as u64 - 1) as i64) & !1;
                        assert!(reader.get(rev(main)).unwrap().is_some(), "{main} of {last}");
                        assert!(last % 2 == 1 || reader.get(rev(last)).unwrap().is_some(), "the newest, {last}");
                    }
                }
            });
        }
        for main in 2..=3000_i64 {
            log.append(batch(main as u64, vec![put(main, 0, "k", &[1; 50])]));
            newest.store(main, std::sync::atomic::Ordering::Release);
            if main % 50 == 0 {
                log.append(Batch { index: main as u64, compact: Some(main - 20), ..Batch::default() });
                log.mark_dead(&(2..main - 20).filter(|main| main % 2 == 1).map(rev).collect::<Vec<_>>());
            }
            settle(&mut log, Mono(main as u64 * 1_000_000), Hint::Sync);
        }
    });
}

#[test]
fn values_travel_between_threads() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<(Log, dolmen_revlog::Job, dolmen_revlog::JobDone, dolmen_revlog::Builder, dolmen_revlog::Replacement)>();
    send::<(dolmen_revlog::Recovered, dolmen_revlog::Scan, dolmen_revlog::Metas)>();
    send::<(dolmen_revlog::Reader, dolmen_revlog::View)>();
    sync::<(dolmen_revlog::Reader, dolmen_revlog::View, Log)>();
}

#[test]
fn the_real_disk_works_the_same() {
    let root = std::env::temp_dir().join(format!("dolmen-revlog-{}", std::process::id()));
    let _ = dolmen_env::RealDisk.remove_dir_all(&root);
    let path = root.join("member/store");
    let open = || Log::open(Arc::new(dolmen_env::RealDisk), &path, small()).unwrap();
    let (mut log, _) = open();
    for main in 2..300 {
        log.append(batch(main as u64, vec![put(main, 0, &format!("k{}", main % 5), &[main as u8; 100])]));
        settle(&mut log, Mono(0), Hint::Normal);
    }
    log.append(Batch { index: 300, compact: Some(299), ..Batch::default() });
    log.mark_dead(&(2..295).map(rev).collect::<Vec<_>>());
    sync(&mut log, Mono(0));
    settle(&mut log, Mono(1 << 40), Hint::Reclaim);
    assert!(matches!(Log::open(Arc::new(dolmen_env::RealDisk), &path, small()).map(drop), Err(Error::Locked { .. })));
    let view = log.reader().view();
    drop(log);
    let (log, recovered) = open();
    let metas: Vec<_> = recovered.records.map(|meta| meta.unwrap().rev.main).collect();
    assert_eq!(metas, (295..300).collect::<Vec<_>>());
    for main in metas {
        assert_eq!(log.reader().get(rev(main)).unwrap(), view.get(rev(main)).unwrap());
    }
    drop((log, view));
    dolmen_env::RealDisk.remove_dir_all(&root).unwrap();
}

/// A tombstone may go before the put it hides, when that lies in a segment not worth rewriting.
#[test]
fn a_put_whose_tombstone_was_reclaimed_stays_dead_after_a_start() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, small());
    log.append(batch(2, vec![put(2, 0, "victim", b"old")]));
    for main in 3..40 {
        log.append(batch(main as u64, vec![put(main, 0, &format!("k{main}"), &[1; 100])]));
        settle(&mut log, Mono(0), Hint::Normal);
    }
    log.append(batch(40, vec![tombstone(40, 0, "victim")]));
    for main in 41..80 {
        log.append(batch(main as u64, vec![put(main, 0, "often", &[1; 100])]));
        settle(&mut log, Mono(0), Hint::Normal);
    }
    log.append(Batch { index: 80, compact: Some(79), ..Batch::default() });
    log.mark_dead(&[rev(2), rev(40)]);
    log.mark_dead(&(41..79).map(rev).collect::<Vec<_>>());
    sync(&mut log, Mono(0));
    live(&mut log, Mono(0), Mono::from_millis(60_000));
    assert!(log.reader().get(rev(2)).unwrap().is_some(), "its segment has too little garbage");
    assert!(log.reader().get(rev(40)).unwrap().is_none(), "its segment had enough");
    let sizes = log.sizes();
    for shape in [PowerLoss::LoseAll, PowerLoss::KeepAll] {
        drop(log);
        disk.power_loss(shape);
        let recovered;
        (log, recovered) = Log::open(Arc::new(disk.clone()), &dir(), small()).unwrap();
        let revs: Vec<_> = recovered.records.map(|meta| meta.unwrap().rev.main).collect();
        assert_eq!(revs, (3..40).chain([79]).collect::<Vec<_>>());
        assert_eq!(log.sizes().live_bytes, sizes.live_bytes);
        // Marking again what is known changes nothing.
        log.mark_dead(&[rev(2), rev(40)]);
        assert_eq!(log.sizes().live_bytes, sizes.live_bytes);
    }
}

#[test]
fn an_orderly_end_saves_the_copy_and_witnesses_the_last_frame() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, small());
    for main in 2..10 {
        log.append(batch(main as u64, vec![put(main, 0, "k", &[1; 100])]));
    }
    sync(&mut log, Mono(0));
    log.close().unwrap();
    let files = disk.read_dir(&dir()).unwrap();
    let log = open(&disk, small());
    assert_eq!((log.index(), disk.read_dir(&dir()).unwrap()), (9, files.clone()));
    drop(log);
    let active = dir().join(files.iter().rfind(|name| name.ends_with(".seg")).unwrap());
    let bytes = disk.read(&active).unwrap();
    let last = (0..bytes.len() - 3).rfind(|at| bytes[*at..*at + 4] == *b"DLF2").unwrap();
    disk.flip_bit(&active, last as u64 * 8 + 3).unwrap();
    let error = Log::open(Arc::new(disk), &dir(), small()).map(drop).unwrap_err();
    assert!(matches!(error, Error::Corrupt { offset, .. } if offset == last as u64), "{error}");
}
