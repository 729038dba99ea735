//! What a log is for: what goes in comes out, in every order raft may ask for.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{arc, create, dir, entries, entry, new_disk, open, open_newest, snapshot, state};
use dolmen_env::{Disk, PowerLoss, RealDisk};
use dolmen_proto::raftpb::{ConfState, Entry, HardState};
use dolmen_proto::walpb::Snapshot;
use dolmen_wal::{Kind, Metadata, Wal, WalError, WalOptions, inspect};

#[test]
fn a_fresh_log_is_empty_and_knows_its_member() {
    let disk = new_disk(1);
    assert!(!Wal::exists(&disk, dir()).unwrap());
    assert!(matches!(open(&disk, (0, 0)).map(drop), Err(WalError::Missing { .. })));
    drop(create(&disk));
    assert!(Wal::exists(&disk, dir()).unwrap());
    let again = Wal::create(arc(&disk), dir(), common::IDS, common::OPTIONS);
    assert!(matches!(again.map(drop), Err(WalError::AlreadyExists { .. })));
    let (wal, recovered) = open(&disk, (0, 0)).unwrap();
    assert_eq!(recovered.metadata, common::IDS);
    assert_eq!((recovered.hard_state, recovered.entries.len(), wal.last_index()), (HardState::default(), 0, 0));
    assert_eq!(recovered.snapshots, [Snapshot::default()]);
    assert_eq!(recovered.repaired, None);
}

#[test]
fn entries_come_back_in_order_across_segments_and_restarts() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    let mut all: Vec<Entry> = Vec::new();
    for round in 0..100 {
        let first = all.len() as u64 + 1;
        let mut batch = entries(first, first + 2, 3, 50);
        batch[1].r#type = 1;
        batch[2].data = Default::default();
        wal.append(Some(&state(3, 7, first)), &batch).unwrap();
        wal.sync().unwrap();
        all.extend(batch);
        if round % 10 == 9 {
            drop(wal);
            disk.kill();
            let (opened, recovered) = open(&disk, (0, 0)).unwrap();
            assert_eq!(recovered.entries, all);
            assert_eq!(recovered.hard_state, state(3, 7, first));
            wal = opened;
        }
    }
    assert_eq!(wal.last_index(), 300);
    assert!(wal.segments() > 3);
    assert_eq!(wal.hard_state(), state(3, 7, 298));
    let names = disk.read_dir(dir()).unwrap();
    assert_eq!(names[0], "0000000000000000-0000000000000000.wal");
    for pair in names.iter().filter(|name| name.ends_with(".wal")).collect::<Vec<_>>().windows(2) {
        assert_eq!(disk.read(&dir().join(pair[0])).unwrap().len() % 8, 0, "a sealed segment ends with its last record");
    }
}

#[test]
fn a_later_entry_replaces_an_earlier_one_and_all_behind_it() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    wal.append(Some(&state(1, 1, 2)), &entries(1, 9, 1, 10)).unwrap();
    wal.append(Some(&state(2, 1, 2)), &entries(4, 5, 2, 10)).unwrap();
    wal.sync().unwrap();
    assert_eq!(wal.last_index(), 5);
    drop(wal);
    disk.kill();
    let (_, recovered) = open(&disk, (0, 0)).unwrap();
    let found: Vec<(u64, u64)> = recovered.entries.iter().map(|entry| (entry.index, entry.term)).collect();
    assert_eq!(found, [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]);
}

#[test]
#[should_panic(expected = "entry 5 cannot follow entry 3")]
fn a_gap_is_a_bug_of_the_caller() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    wal.append(None, &entries(1, 3, 1, 1)).unwrap();
    let _ = wal.append(None, &[entry(5, 1, 1)]);
}

#[test]
fn the_log_opens_from_any_snapshot_it_has_and_from_no_other() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    wal.append(Some(&state(1, 1, 20)), &entries(1, 30, 1, 10)).unwrap();
    wal.append_snapshot(&snapshot(10, 1)).unwrap();
    wal.append_snapshot(&snapshot(20, 1)).unwrap();
    wal.append_snapshot(&snapshot(25, 1)).unwrap();
    wal.close().unwrap();
    let found: Vec<u64> = Wal::snapshots(&disk, dir()).unwrap().iter().map(|snapshot| snapshot.index).collect();
    assert_eq!(found, [0, 10, 20], "25 is not committed");
    for from in [(0, 0), (10, 1), (20, 1)] {
        let (wal, recovered) = open(&disk, from).unwrap();
        let indexes: Vec<u64> = recovered.entries.iter().map(|entry| entry.index).collect();
        assert_eq!(indexes, (from.0 + 1..=30).collect::<Vec<_>>());
        assert_eq!(recovered.snapshots[1], snapshot(10, 1));
        drop(wal);
    }
    for from in [(10, 2), (11, 1), (99, 1)] {
        let error = open(&disk, from).map(drop).unwrap_err();
        assert!(matches!(error, WalError::NoSnapshot { index, .. } if index == from.0), "{error}");
    }
}

/// The leader's snapshot replaces a log that does not hold its entry. What the log had beyond it must stay dead.
#[test]
fn a_received_snapshot_begins_the_log_anew() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    wal.append(Some(&state(1, 1, 3)), &entries(1, 12, 1, 10)).unwrap();
    wal.append_snapshot(&snapshot(10, 2)).unwrap();
    wal.append(Some(&state(2, 0, 10)), &[]).unwrap();
    wal.sync().unwrap();
    drop(wal);
    disk.kill();
    let (mut wal, recovered, from) = open_newest(&disk).unwrap();
    assert_eq!((from, recovered.entries.len(), wal.last_index()), ((10, 2), 0, 10));
    wal.append(Some(&state(2, 0, 11)), &entries(11, 11, 2, 10)).unwrap();
    wal.close().unwrap();
    assert_eq!(open(&disk, (10, 2)).unwrap().1.entries, entries(11, 11, 2, 10));
}

#[test]
fn a_snapshot_ahead_of_the_log_is_followed_by_the_entry_behind_it() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    wal.append_snapshot(&snapshot(1000, 5)).unwrap();
    wal.append(Some(&state(5, 0, 1000)), &[]).unwrap();
    wal.append(Some(&state(5, 0, 1001)), &entries(1001, 1003, 5, 2000)).unwrap();
    wal.sync().unwrap();
    wal.append(None, &entries(1004, 1004, 5, 10)).unwrap();
    wal.close().unwrap();
    let (_, recovered, from) = open_newest(&disk).unwrap();
    assert_eq!((from, recovered.entries.len()), ((1000, 5), 4));
    assert!(disk.exists(&dir().join("0000000000000001-00000000000003ec.wal")).unwrap());
}

#[test]
fn release_drops_whole_segments_in_front() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    for index in 1..=100 {
        wal.append(Some(&state(1, 1, index)), &[entry(index, 1, 200)]).unwrap();
        wal.sync().unwrap();
    }
    wal.append_snapshot(&snapshot(60, 1)).unwrap();
    wal.sync().unwrap();
    let before = wal.segments();
    common::release(&mut wal, 0).unwrap();
    assert_eq!(wal.segments(), before);
    common::release(&mut wal, 60).unwrap();
    let kept = wal.segments();
    assert!(kept < before && kept > 1);
    drop(wal);
    disk.power_loss(PowerLoss::LoseAll);
    assert!(matches!(open(&disk, (0, 0)).map(drop), Err(WalError::NoSnapshot { .. })));
    let (mut wal, recovered, from) = open_newest(&disk).unwrap();
    assert_eq!((from, recovered.entries.first().unwrap().index, wal.segments()), ((60, 1), 61, kept));
    common::release(&mut wal, u64::MAX).unwrap();
    assert_eq!(wal.segments(), 1);
}

/// Whoever appends next waits for what giving segments up costs: that is nothing, and taking them off the disk is one file
/// and one sync of the directory a call, whose space is not freed before the caller says so.
#[test]
fn segments_that_were_given_up_go_one_at_a_time() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    for index in 1..=100 {
        wal.append(Some(&state(1, 1, index)), &[entry(index, 1, 200)]).unwrap();
        wal.sync().unwrap();
    }
    wal.append_snapshot(&snapshot(100, 1)).unwrap();
    wal.close().unwrap();
    let (mut wal, ..) = open_newest(&disk).unwrap();
    let before = (disk.calls(), disk.syncs());
    wal.release(100);
    assert_eq!((disk.calls(), disk.syncs()), before);
    let whole = wal.segments();
    assert!(whole > 3 && wal.released() == whole - 1);
    for gone in 1..whole {
        let syncs = disk.syncs();
        assert!(wal.remove_released().unwrap().is_some());
        assert_eq!((wal.segments(), disk.syncs()), (whole - gone, syncs + 1));
        assert_eq!(disk.read_dir(dir()).unwrap().iter().filter(|name| name.ends_with(".wal")).count(), whole - gone);
    }
    let calls = disk.calls();
    assert!(wal.remove_released().unwrap().is_none());
    assert_eq!(disk.calls(), calls);
}

/// The disk is full when the next segment is to be reserved, and half of this one is free: the log goes on in it, and where
/// there is space again by its end nobody notices.
#[test]
fn a_full_disk_is_no_end_while_there_is_room_in_the_segment() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    wal.append(Some(&state(1, 1, 1)), &entries(1, 2, 1, 20)).unwrap();
    wal.sync().unwrap();
    // Both slots have been written once, and take no more space from here on.
    wal.note_acked().unwrap();
    wal.append(Some(&state(1, 1, 2)), &entries(3, 12, 1, 200)).unwrap();
    wal.sync().unwrap();
    assert_eq!(wal.segments(), 1);
    disk.set_capacity(Some(disk.used_bytes()));
    for index in 13..=15 {
        wal.note_acked().unwrap();
        wal.append(Some(&state(1, 1, index)), &[entry(index, 1, 100)]).unwrap();
        wal.sync().unwrap();
    }
    assert!(!disk.exists(&dir().join("0.tmp")).unwrap(), "what was begun is gone");
    disk.set_capacity(None);
    for index in 16..=40 {
        wal.append(Some(&state(1, 1, index)), &[entry(index, 1, 200)]).unwrap();
        wal.sync().unwrap();
    }
    wal.note_acked().unwrap();
    assert!(wal.segments() > 1);
    drop(wal);
    assert_eq!(open(&disk, (0, 0)).unwrap().1.entries.len(), 40);
}

/// A directory in which no file can be made is refused at the start, not at the first cut, hours later.
#[test]
fn a_log_directory_that_takes_no_file_is_refused_at_the_start() {
    let disk = new_disk(1);
    create(&disk).close().unwrap();
    disk.create_dir_all(&dir().join("0.tmp")).unwrap();
    let refused = open(&disk, (0, 0)).map(drop).unwrap_err();
    assert!(matches!(refused, WalError::Io { .. }) && refused.to_string().contains("cannot create"), "{refused}");
}

#[test]
fn a_log_has_one_user() {
    let disk = new_disk(1);
    let wal = create(&disk);
    assert!(matches!(open(&disk, (0, 0)).map(drop), Err(WalError::Locked { .. })));
    drop(wal);
    let (wal, _) = open(&disk, (0, 0)).unwrap();
    assert!(matches!(open(&disk, (0, 0)).map(drop), Err(WalError::Locked { .. })));
    drop(wal);
}

#[test]
fn a_segment_in_the_making_is_locked_from_its_first_moment() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    wal.append(None, &entries(1, 30, 1, 200)).unwrap();
    wal.sync().unwrap();
    assert_eq!(wal.segments(), 2);
    let error = open(&disk, (0, 0)).map(drop).unwrap_err();
    assert!(matches!(error, WalError::Locked { .. }), "{error}");
}

#[test]
fn syncs_are_paid_for_once() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    let cost = |wal: &mut Wal, act: &dyn Fn(&mut Wal)| {
        let before = (disk.calls(), disk.syncs());
        act(wal);
        (disk.calls() - before.0, disk.syncs() - before.1)
    };
    assert_eq!(cost(&mut wal, &|wal| wal.append(Some(&state(1, 1, 0)), &entries(1, 8, 1, 20)).unwrap()), (1, 0));
    assert_eq!(cost(&mut wal, &|wal| wal.sync().unwrap()), (1, 1));
    assert_eq!(cost(&mut wal, &|wal| wal.sync().unwrap()), (0, 0));
    assert_eq!(cost(&mut wal, &|wal| wal.append(None, &[]).unwrap()), (0, 0));
    assert_eq!(cost(&mut wal, &|wal| wal.append(Some(&HardState::default()), &[]).unwrap()), (0, 0));
    assert_eq!(cost(&mut wal, &|wal| wal.note_acked().unwrap()), (3, 1));
    assert_eq!(cost(&mut wal, &|wal| wal.note_acked().unwrap()), (0, 0));
    assert_eq!(cost(&mut wal, &|wal| wal.sync().unwrap()), (0, 0), "a mark alone is not worth a sync");
}

#[test]
fn an_idle_log_says_how_far_it_is_durable() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    wal.append(Some(&state(1, 1, 2)), &entries(1, 3, 1, 20)).unwrap();
    wal.sync().unwrap();
    wal.note_acked().unwrap();
    wal.note_acked().unwrap();
    let mut seen = Vec::new();
    inspect(&disk, dir(), &mut |record| seen.push((record.kind, record.offset, record.synced))).unwrap();
    let kinds: Vec<Kind> = seen.iter().map(|record| record.0).collect();
    let head = [Kind::Crc, Kind::Metadata, Kind::Snapshot];
    assert_eq!(kinds, [&head[..], &[Kind::Entry; 3], &[Kind::State; 2]].concat());
    let (_, mark, synced) = *seen.last().unwrap();
    assert_eq!(synced, Some(mark), "everything before the mark");
    assert_eq!(seen[0].2, seen[2].2, "the head speaks for itself");
    drop(wal);
    // The mark may go; a restart does not rewrite a segment for it.
    disk.kill();
    let before = disk.calls();
    let (_, recovered) = open(&disk, (0, 0)).unwrap();
    assert_eq!((recovered.entries.len(), recovered.repaired), (3, None));
    assert!(disk.calls() - before < 25, "{}", disk.calls() - before);
}

#[test]
fn the_next_segment_is_reserved_ahead() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    wal.append(Some(&state(1, 1, 0)), &entries(1, 10, 1, 220)).unwrap();
    wal.sync().unwrap();
    assert!(!disk.exists(&dir().join("0.tmp")).unwrap());
    wal.note_acked().unwrap();
    assert!(disk.exists(&dir().join("0.tmp")).unwrap());
    wal.append(None, &entries(11, 20, 1, 220)).unwrap();
    wal.sync().unwrap();
    assert!(!disk.exists(&dir().join("0.tmp")).unwrap());
    drop(wal);
    disk.power_loss(PowerLoss::LoseAll);
    assert_eq!(open(&disk, (0, 0)).unwrap().1.entries.len(), 20);
}

#[test]
fn the_same_history_makes_the_same_bytes() {
    let run = || {
        let disk = new_disk(1);
        let mut wal = create(&disk);
        for index in 1..50 {
            wal.append(Some(&state(1, 1, index - 1)), &[entry(index, 1, 150)]).unwrap();
            wal.sync().unwrap();
        }
        let names = disk.read_dir(dir()).unwrap();
        names.into_iter().map(|name| (disk.read(&dir().join(&name)).unwrap(), name)).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn a_log_works_on_the_real_disk() {
    let root = std::env::temp_dir().join(format!("dolmen-wal-{}", std::process::id()));
    let wal_dir = root.join("member/wal");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    disk.create_dir_all(&root.join("member")).unwrap();
    let options = WalOptions { segment_bytes: 100_000 };
    let metadata = Metadata { node_id: 1, cluster_id: 2 };
    let conf_state = Some(ConfState { voters: vec![1], ..ConfState::default() });
    let mut wal = Wal::create(disk.clone(), &wal_dir, metadata, options).unwrap();
    for index in 1..=1000 {
        wal.append(Some(&state(1, 1, index - 1)), &[entry(index, 1, 400)]).unwrap();
        if index % 50 == 0 {
            wal.sync().unwrap();
            wal.note_acked().unwrap();
        }
    }
    wal.append_snapshot(&Snapshot { index: 900, term: 1, conf_state }).unwrap();
    wal.sync().unwrap();
    assert!(matches!(Wal::open(disk.clone(), &wal_dir, (0, 0), options).map(drop), Err(WalError::Locked { .. })));
    common::release(&mut wal, 900).unwrap();
    drop(wal);
    let (wal, recovered) = Wal::open(disk.clone(), &wal_dir, (900, 1), options).unwrap();
    assert_eq!((recovered.entries.len(), recovered.metadata), (100, metadata));
    wal.close().unwrap();
    assert_eq!(Wal::read(disk.as_ref(), &wal_dir, (900, 1)).unwrap().entries, recovered.entries);
    disk.remove_dir_all(Path::new(&root)).unwrap();
}

#[test]
fn a_log_may_move_between_threads() {
    fn send<T: Send>() {}
    send::<Wal>();
}

/// The slots of another member's log stand in the directory already, so nothing has to be made beside the new one.
#[test]
fn a_created_log_is_durable_by_its_own_syncs() {
    let disk = new_disk(1);
    create(&disk).close().unwrap();
    disk.remove_dir_all(dir()).unwrap();
    disk.sync_dir(Path::new("/m")).unwrap();
    let metadata = Metadata { node_id: 1, cluster_id: 2 };
    drop(Wal::create(arc(&disk), dir(), metadata, common::OPTIONS).unwrap());
    disk.power_loss(PowerLoss::LoseAll);
    assert_eq!(open(&disk, (0, 0)).unwrap().1.metadata, metadata);
}

/// What a new leader has replaced stays dead for a reader that starts above the first replaced entry.
#[test]
fn entries_replaced_below_the_snapshot_take_those_above_it_along() {
    let disk = new_disk(1);
    let mut wal = create(&disk);
    wal.append(Some(&state(1, 1, 7)), &entries(1, 12, 1, 10)).unwrap();
    wal.append(Some(&state(2, 1, 9)), &entries(8, 9, 2, 10)).unwrap();
    wal.append_snapshot(&snapshot(9, 2)).unwrap();
    wal.close().unwrap();
    let (wal, recovered) = open(&disk, (9, 2)).unwrap();
    assert_eq!((recovered.entries.len(), wal.last_index()), (0, 9));
}

#[test]
fn a_log_tells_whose_it_is_when_its_older_marks_can_no_longer_be_opened_from() {
    let disk = new_disk(5);
    let options = WalOptions { segment_bytes: 4096 };
    let dir = Path::new("/member/wal");
    let metadata = Metadata { node_id: 7, cluster_id: 9 };
    let mut wal = Wal::create(Arc::new(disk.clone()), dir, metadata, options).expect("create");
    // Marks trail the entries, as they wait for the store: each may lie segments behind the entries it is about.
    for index in 1..=400u64 {
        let entry = Entry { index, term: 1, data: vec![b'x'; 100].into(), ..Entry::default() };
        let state = HardState { term: 1, vote: 7, commit: index };
        wal.append(Some(&state), &[entry]).expect("append");
        wal.sync().expect("sync");
        if index % 40 == 0 && index > 120 {
            let mark = Snapshot { index: index - 120, term: 1, conf_state: None };
            wal.append_snapshot(&mark).expect("mark");
            wal.sync().expect("sync");
            common::release(&mut wal, mark.index).expect("release");
        }
    }
    drop(wal);
    assert_eq!(Wal::identify(&disk, dir).expect("identify"), metadata);
    let newest = Wal::snapshots(&disk, dir).expect("marks").pop().expect("a mark");
    let opened = Wal::open(Arc::new(disk), dir, (newest.index, newest.term), options);
    assert_eq!(opened.expect("opens from the newest mark").1.metadata, metadata);
}
