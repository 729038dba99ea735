//! The machine or the process stops at every single disk call, in every shape a power loss has; then the log is opened
//! and compared with a model. Whatever a returned sync covered is there, and nothing else than was written.

mod common;

use common::{History, arc, brief, dir, new_disk, open_newest};
use dolmen_env::{Fault, PowerLoss, Rng, SimDisk};
use dolmen_wal::{Wal, WalError};

const STEPS: usize = 40;

/// Lives through `STEPS` steps, or until the disk refuses. `None`: it refused before there was a log.
fn live(disk: &SimDisk, history: &mut History) -> Option<Result<(), WalError>> {
    let mut wal = match Wal::create(arc(disk), dir(), common::IDS, common::OPTIONS) {
        Ok(wal) => wal,
        Err(_) => return None,
    };
    for _ in 0..STEPS {
        if let Err(e) = history.step(&mut wal) {
            assert!(matches!(e, WalError::Io { .. }), "{e}");
            assert!(matches!(wal.sync(), Err(WalError::Failed)), "after an error the log takes nothing");
            return Some(Err(e));
        }
    }
    Some(Ok(()))
}

/// Opens after a crash, checks against the model, and returns the log for more.
fn check(disk: &SimDisk, history: &mut History, what: &str) -> Wal {
    let (wal, recovered, from) = open_newest(disk).unwrap_or_else(|e| panic!("{what}: {e}"));
    let count = history.model.explains(&recovered, from).unwrap_or_else(|| {
        let model = &history.model;
        let views: Vec<_> = (model.synced..=model.records.len())
            .map(|count| model.view(count, from))
            .map(|view| (view.hard_state, brief(&view.entries), view.committed.last().copied()))
            .collect();
        let found = (recovered.hard_state, brief(&recovered.entries), from);
        panic!("{what}: recovered {found:?}\nexpected one of {views:#?}")
    });
    history.model.records.truncate(count);
    history.model.synced = count;
    history.resume(&recovered, from);
    wal
}

fn more(wal: &mut Wal, history: &mut History, steps: usize, what: &str) {
    for _ in 0..steps {
        history.step(wal).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    wal.sync().unwrap();
    history.model.synced = history.model.records.len();
}

fn calls_of(seed: u64) -> u64 {
    let disk = new_disk(seed);
    let before = disk.calls();
    live(&disk, &mut History::new(seed)).unwrap().unwrap();
    disk.calls() - before
}

#[test]
fn every_crash_point_and_shape_keeps_what_was_synced() {
    let mut cases = 0;
    for seed in 0..24 {
        for calls in 0..calls_of(seed) {
            let disk = new_disk(seed);
            let mut history = History::new(seed);
            disk.inject(Fault::CrashAfter { calls });
            let lived = live(&disk, &mut history);
            for (at, shape) in PowerLoss::ALL.into_iter().enumerate() {
                let what = format!("seed={seed} calls={calls} shape={shape:?}");
                let disk = disk.fork(seed * 1_000_003 + calls * 17 + at as u64);
                disk.power_loss(shape);
                if lived.is_none() && !Wal::exists(&disk, dir()).unwrap() {
                    let wal = Wal::create(arc(&disk), dir(), common::IDS, common::OPTIONS);
                    wal.unwrap_or_else(|e| panic!("{what}: {e}"));
                    continue;
                }
                let mut history = history.fork(calls);
                let mut wal = check(&disk, &mut history, &what);
                more(&mut wal, &mut history, 6, &what);
                drop(wal);
                disk.power_loss(PowerLoss::LoseAll);
                check(&disk, &mut history, &format!("{what}, second life"));
                cases += 1;
            }
        }
    }
    println!("{cases} crashes");
    assert!(cases > 5_000, "{cases}");
}

#[test]
fn a_crash_during_recovery_loses_nothing_either() {
    for seed in 100..400 {
        let mut rng = Rng::new(seed);
        let total = calls_of(seed);
        let disk = new_disk(seed);
        let mut history = History::new(seed);
        disk.inject(Fault::CrashAfter { calls: rng.range(12, total) });
        if live(&disk, &mut history).is_none() {
            continue;
        }
        let mut shapes = Vec::new();
        for _ in 0..4 {
            let shape = *rng.pick(&PowerLoss::ALL);
            shapes.push(shape);
            disk.power_loss(shape);
            disk.inject(Fault::CrashAfter { calls: rng.below(40) });
            let opened = open_newest(&disk);
            if let Ok((mut wal, recovered, from)) = opened {
                let what = format!("seed={seed} shapes={shapes:?}");
                let count = history.model.explains(&recovered, from).unwrap_or_else(|| panic!("{what}"));
                history.model.records.truncate(count);
                history.model.synced = count;
                history.resume(&recovered, from);
                while history.step(&mut wal).is_ok() && !disk.crashed() && rng.chance(900) {}
            } else {
                assert!(disk.crashed(), "seed={seed} shapes={shapes:?}: {}", opened.err().unwrap());
            }
        }
        disk.power_loss(PowerLoss::KeepAll);
        check(&disk, &mut history, &format!("seed={seed} shapes={shapes:?} at last"));
    }
}

/// A failed sync leaves pages that read back and never reach the medium. The process dies, the machine does not; the
/// next process must not take what it reads for durable.
#[test]
fn a_process_that_dies_of_an_error_is_followed_by_one_that_trusts_no_page_cache() {
    let mut errors = 0;
    for seed in 0..6 {
        for after in 0..calls_of(seed) {
            let what = format!("seed={seed} after={after}");
            let disk = new_disk(seed);
            let mut history = History::new(seed);
            disk.inject(Fault::Eio { after });
            match live(&disk, &mut history) {
                None => continue,
                Some(Ok(())) => {}
                Some(Err(_)) => errors += 1,
            }
            disk.kill();
            let mut wal = check(&disk, &mut history, &what);
            let acked = history.model.clone();
            // Everything the new process was told counts as durable now: it may vote and answer on the strength of it.
            disk.power_loss(PowerLoss::LoseAll);
            drop(wal);
            wal = check(&disk, &mut history, &format!("{what}, power lost right after opening"));
            assert_eq!(history.model.records, acked.records, "{what}");
            more(&mut wal, &mut history, 4, &what);
            drop(wal);
            disk.power_loss(PowerLoss::SectorHoles);
            check(&disk, &mut history, &format!("{what}, at last"));
        }
    }
    assert!(errors > 300, "{errors}");
}

#[test]
fn a_full_disk_is_an_error_and_not_a_loss() {
    for seed in 0..20 {
        let disk = new_disk(seed);
        let mut history = History::new(seed);
        disk.set_capacity(Some(4096 * (2 + seed % 5)));
        let lived = live(&disk, &mut history);
        disk.set_capacity(None);
        disk.kill();
        if lived.is_some() {
            check(&disk, &mut history, &format!("seed={seed}"));
        }
    }
}

/// Long lives: many crashes after each other on one disk, with seeds that can be given by hand.
#[test]
fn random_lives_lose_nothing() {
    let first = std::env::var("WAL_SEED").ok().map(|seed| seed.parse().expect("WAL_SEED is a number"));
    let seeds = first.map_or(1_000..1_060, |seed: u64| seed..seed + 1);
    for seed in seeds {
        println!("WAL_SEED={seed}");
        let disk = new_disk(seed);
        let mut rng = Rng::new(!seed);
        let mut history = History::new(seed);
        drop(common::create(&disk));
        for life in 0..25 {
            let what = format!("WAL_SEED={seed} life={life}");
            let mut wal = check(&disk, &mut history, &what);
            if rng.chance(800) {
                disk.inject(Fault::CrashAfter { calls: rng.below(120) });
            }
            let mut crashed = false;
            for _ in 0..rng.below(60) {
                if history.step(&mut wal).is_err() {
                    crashed = true;
                    break;
                }
            }
            match (crashed, rng.below(4)) {
                (false, 0) if !disk.crashed() => {
                    disk.clear_faults();
                    wal.close().unwrap_or_else(|e| panic!("{what}: {e}"));
                    history.model.synced = history.model.records.len();
                }
                (_, 1) => {
                    drop(wal);
                    disk.kill();
                }
                _ => {
                    drop(wal);
                    disk.power_loss(*rng.pick(&PowerLoss::ALL));
                }
            }
            disk.kill();
        }
    }
}
