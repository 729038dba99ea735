use std::path::Path;

use super::*;

fn disk(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk
}

fn p(path: &str) -> &Path {
    Path::new(path)
}

/// A file with durable content.
fn durable(disk: &SimDisk, path: &str, bytes: &[u8]) -> Box<dyn DiskFile> {
    let file = disk.open(p(path), OpenMode::CreateNew).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(p(path).parent().unwrap()).unwrap();
    file
}

#[test]
fn synced_bytes_and_names_survive_every_shape() {
    for seed in 0..50 {
        for shape in PowerLoss::ALL {
            let disk = disk(seed);
            let file = durable(&disk, "/d/f", &[7; 3000]);
            file.write_all_at(&[8; 100], 5000).unwrap();
            disk.power_loss(shape);
            assert_eq!(&disk.read(p("/d/f")).unwrap()[..3000], &[7; 3000], "seed {seed} {shape:?}");
        }
    }
}

#[test]
fn lose_all_and_keep_all_do_what_they_say() {
    let base = disk(1);
    let file = durable(&base, "/d/f", b"old");
    file.write_all_at(b"newer", 0).unwrap();
    base.open(p("/d/g"), OpenMode::CreateNew).unwrap();
    let lost = base.fork(1);
    lost.power_loss(PowerLoss::LoseAll);
    assert_eq!(lost.read(p("/d/f")).unwrap(), b"old");
    assert_eq!(lost.read_dir(p("/d")).unwrap(), ["f"]);
    base.power_loss(PowerLoss::KeepAll);
    assert_eq!(base.read(p("/d/f")).unwrap(), b"newer");
    assert_eq!(base.read_dir(p("/d")).unwrap(), ["f", "g"]);
}

#[test]
fn a_torn_prefix_ends_at_any_byte() {
    let mut lengths = BTreeSet::new();
    for seed in 0..200 {
        let disk = disk(seed);
        let file = durable(&disk, "/d/f", b"");
        file.write_all_at(b"abc", 0).unwrap();
        file.write_all_at(b"def", 3).unwrap();
        disk.power_loss(PowerLoss::TornPrefix);
        let found = disk.read(p("/d/f")).unwrap();
        assert!(b"abcdef".starts_with(&found), "{found:?}");
        lengths.insert(found.len());
    }
    assert_eq!(lengths.len(), 7);
}

#[test]
fn sectors_are_lost_one_by_one_and_out_of_order() {
    let (mut later_without_earlier, mut old_version) = (false, false);
    for seed in 0..200 {
        let disk = disk(seed);
        let file = durable(&disk, "/d/f", &[0; 2048]);
        file.write_all_at(&[1; 2048], 0).unwrap();
        file.write_all_at(&[2; 2048], 0).unwrap();
        disk.power_loss(PowerLoss::SectorHoles);
        let found = disk.read(p("/d/f")).unwrap();
        for sector in found.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is whole");
        }
        later_without_earlier |= found[0] == 0 && found[1536] == 2;
        old_version |= found[0] == 1;
    }
    assert!(later_without_earlier && old_version);
}

#[test]
fn a_garbage_tail_keeps_a_prefix_then_noise() {
    let mut noisy = false;
    for seed in 0..100 {
        let disk = disk(seed);
        let file = durable(&disk, "/d/f", b"");
        file.write_all_at(&[1; 64], 0).unwrap();
        disk.power_loss(PowerLoss::GarbageTail);
        let found = disk.read(p("/d/f")).unwrap();
        let good = found.iter().take_while(|byte| **byte == 1).count();
        noisy |= good < found.len();
    }
    assert!(noisy);
}

#[test]
fn each_unsynced_name_is_kept_or_lost() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let disk = disk(seed);
        durable(&disk, "/d/a", b"a");
        disk.rename(p("/d/a"), p("/d/b")).unwrap();
        disk.open(p("/d/c"), OpenMode::CreateNew).unwrap();
        disk.power_loss(PowerLoss::TornPrefix);
        seen.insert(disk.read_dir(p("/d")).unwrap().join(" "));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["a", "a c", "b", "b c"]);
}

#[test]
fn a_renamed_directory_carries_its_files() {
    let disk = disk(1);
    disk.create_dir_all(p("/d/wal.tmp")).unwrap();
    durable(&disk, "/d/wal.tmp/0", b"x");
    disk.rename(p("/d/wal.tmp"), p("/d/wal")).unwrap();
    assert_eq!(disk.read(p("/d/wal/0")).unwrap(), b"x");
    let synced = disk.fork(1);
    synced.sync_dir(p("/d")).unwrap();
    synced.power_loss(PowerLoss::LoseAll);
    assert_eq!(synced.read_dir(p("/d")).unwrap(), ["wal"]);
    disk.power_loss(PowerLoss::LoseAll);
    assert_eq!(disk.read_dir(p("/d")).unwrap(), ["wal.tmp"]);
}

#[test]
fn a_removal_that_is_not_synced_may_come_back_with_its_bytes() {
    let disk = disk(1);
    durable(&disk, "/d/f", b"x");
    disk.remove_file(p("/d/f")).unwrap();
    assert!(!disk.exists(p("/d/f")).unwrap());
    disk.power_loss(PowerLoss::LoseAll);
    assert_eq!(disk.read(p("/d/f")).unwrap(), b"x");
    disk.remove_dir_all(p("/d")).unwrap();
    disk.sync_dir(p("/")).unwrap();
    disk.power_loss(PowerLoss::LoseAll);
    assert!(!disk.exists(p("/d")).unwrap());
}

#[test]
fn handles_and_locks_end_with_the_power() {
    let disk = disk(1);
    let file = durable(&disk, "/d/f", b"x");
    let held = disk.lock(p("/d/LOCK")).unwrap();
    assert_eq!(disk.lock(p("/d/LOCK")).map(drop).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    disk.kill();
    assert!(SimDisk::is_crash(&file.len().unwrap_err()));
    let again = disk.lock(p("/d/LOCK")).unwrap();
    drop(held);
    assert!(disk.lock(p("/d/LOCK")).is_err(), "a dead lock's end must not free the new one");
    drop(again);
    disk.lock(p("/d/LOCK")).unwrap();
}

#[test]
fn killing_the_process_keeps_the_page_cache_unsynced() {
    let disk = disk(1);
    let file = durable(&disk, "/d/f", b"old");
    file.write_all_at(b"new", 0).unwrap();
    disk.kill();
    assert_eq!(disk.read(p("/d/f")).unwrap(), b"new");
    disk.power_loss(PowerLoss::LoseAll);
    assert_eq!(disk.read(p("/d/f")).unwrap(), b"old");
}

#[test]
fn a_crash_point_stops_every_call_after_it() {
    for after in 0..3 {
        let disk = disk(after);
        let file = durable(&disk, "/d/f", b"");
        disk.inject(Fault::CrashAfter { calls: after });
        for done in 0..5 {
            let result = file.write_all_at(&[1], done);
            assert_eq!(result.is_ok(), done < after);
            assert!(result.map_err(|e| SimDisk::is_crash(&e)) != Err(false));
        }
        assert!(disk.crashed() && SimDisk::is_crash(&disk.sync_dir(p("/d")).unwrap_err()));
        disk.power_loss(PowerLoss::KeepAll);
        assert!(!disk.crashed());
        let len = disk.read(p("/d/f")).unwrap().len() as u64;
        assert!(len == after || len == after + 1, "the call at the crash point is done or not");
    }
}

#[test]
fn one_call_fails_with_eio_and_a_failed_sync_loses_data_for_good() {
    let mut lost = false;
    for seed in 0..50 {
        let disk = disk(seed);
        let file = durable(&disk, "/d/f", &[0; 512]);
        file.write_all_at(&[1; 512], 0).unwrap();
        disk.inject(Fault::Eio { after: 0 });
        let error = file.sync_data().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5));
        assert!(!SimDisk::is_crash(&error));
        file.sync_data().unwrap();
        assert_eq!(disk.read(p("/d/f")).unwrap(), [1; 512]);
        disk.power_loss(PowerLoss::KeepAll);
        lost |= disk.read(p("/d/f")).unwrap() == [0; 512];
    }
    assert!(lost);
}

#[test]
fn space_runs_out_by_fault_and_by_capacity() {
    let disk = disk(1);
    let file = durable(&disk, "/d/f", b"");
    disk.inject(Fault::NoSpace { after: 1 });
    file.len().unwrap();
    file.sync_data().unwrap();
    assert_eq!(file.allocate(10).unwrap_err().kind(), io::ErrorKind::StorageFull);
    disk.set_capacity(Some(100));
    file.allocate(100).unwrap();
    assert_eq!(disk.free_bytes(p("/d")).unwrap(), 0);
    file.write_all_at(&[1; 100], 0).unwrap();
    assert_eq!(file.write_all_at(&[1; 100], 1).unwrap_err().kind(), io::ErrorKind::StorageFull);
    file.set_len(10).unwrap();
    assert_eq!(disk.used_bytes(), 10);
    file.write_all_at(&[1; 60], 30).unwrap();
}

#[test]
fn a_flipped_bit_is_seen_now_and_after_a_restart() {
    let disk = disk(1);
    durable(&disk, "/d/f", &[0, 0]);
    disk.flip_bit(p("/d/f"), 9).unwrap();
    assert_eq!(disk.read(p("/d/f")).unwrap(), [0, 2]);
    disk.power_loss(PowerLoss::LoseAll);
    assert_eq!(disk.read(p("/d/f")).unwrap(), [0, 2]);
    assert_eq!(disk.flip_bit(p("/d/f"), 16).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_lying_sync_makes_nothing_durable_and_syncs_are_counted() {
    let disk = disk(1);
    let file = durable(&disk, "/d/f", b"old");
    let (calls, syncs) = (disk.calls(), disk.syncs());
    disk.lying_sync(true);
    file.write_all_at(b"new", 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(p("/d")).unwrap();
    assert_eq!((disk.calls() - calls, disk.syncs() - syncs), (3, 2));
    disk.power_loss(PowerLoss::LoseAll);
    assert_eq!(disk.read(p("/d/f")).unwrap(), b"old");
}

#[test]
fn a_cut_file_reads_zeroes_when_it_grows_again() {
    let disk = disk(1);
    let file = durable(&disk, "/d/f", b"abcdef");
    file.set_len(2).unwrap();
    file.set_len(4).unwrap();
    assert_eq!(&file.map(4).unwrap()[..], b"ab\0\0");
    disk.power_loss(PowerLoss::KeepAll);
    assert_eq!(disk.read(p("/d/f")).unwrap(), b"ab\0\0");
}

#[test]
fn the_same_seed_has_the_same_accidents() {
    let run = |seed| {
        let disk = disk(seed);
        let file = durable(&disk, "/d/f", &[0; 4096]);
        file.write_all_at(&[1; 9000], 100).unwrap();
        disk.power_loss(PowerLoss::SectorHoles);
        disk.read(p("/d/f")).unwrap()
    };
    assert_eq!(run(3), run(3));
    assert!((0..20).any(|seed| run(seed) != run(3)));
}

#[test]
fn an_atomic_replacement_is_whole_at_every_crash_point() {
    for shape in PowerLoss::ALL {
        for calls in 0..12 {
            let disk = disk(calls);
            disk.write_atomic(p("/d/f"), b"old content").unwrap();
            disk.inject(Fault::CrashAfter { calls });
            let written = disk.write_atomic(p("/d/f"), b"new").is_ok();
            disk.power_loss(shape);
            let found = disk.read(p("/d/f")).unwrap();
            assert!(found == b"new" || (!written && found == b"old content"), "{shape:?} {calls}: {found:?}");
        }
    }
}

#[test]
fn a_file_on_its_way_to_another_directory_is_in_one_of_them() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        for shape in PowerLoss::ALL {
            let disk = SimDisk::new(seed);
            for dir in ["/a", "/b"] {
                disk.create_dir_all(Path::new(dir)).unwrap();
            }
            disk.write_atomic(Path::new("/a/f"), b"kept").unwrap();
            disk.rename(Path::new("/a/f"), Path::new("/b/f")).unwrap();
            if seed % 2 == 0 {
                disk.sync_dir(Path::new("/a")).unwrap();
            }
            disk.power_loss(shape);
            let there = ["/a/f", "/b/f"].map(|path| disk.read(Path::new(path)).is_ok_and(|bytes| bytes == b"kept"));
            assert!(there[0] || there[1], "seed={seed} {shape:?}");
            seen.insert(there);
        }
    }
    assert!(seen.contains(&[true, false]) && seen.contains(&[false, true]));
}
