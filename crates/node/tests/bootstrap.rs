//! The first start of a member, cut off by a power loss at every call to its disk: the next start always gives a member
//! that leads, however much of the first one is there.

use std::path::Path;
use std::sync::Arc;

use dolmen_env::{Disk, Fault, Mono, PowerLoss, SimDisk};
use dolmen_node::driver::append_all;
use dolmen_node::{Bootstrap, Config, Input, Layout, Member, StartError, StartOptions, Started};
use dolmen_wal::WalOptions;

const TICK: u64 = 10_000_000;

fn start(disk: &SimDisk, founders: u64) -> Result<Started, StartError> {
    let member = |id| Member { id, peer_urls: vec![format!("http://n{id}:2380")], ..Member::default() };
    let options = StartOptions {
        layout: Layout::new(Path::new("/data"), None),
        bootstrap: Bootstrap::New { members: (1..=founders).map(member).collect() },
        machine: dolmen_machine::Config {
            log: dolmen_revlog::Options {
                spare_bytes: 0,
                segment_bytes: 1 << 16,
                sync_interval: TICK,
                ..dolmen_revlog::Options::default()
            },
            ..dolmen_machine::Config::default()
        },
        wal: WalOptions { segment_bytes: 4096 },
    };
    let config = Config {
        member_id: 1,
        cluster_id: dolmen_node::cluster_id(&(1..=founders).collect::<Vec<_>>()),
        name: "n1".into(),
        client_urls: Vec::new(),
        tick_nanos: TICK,
        election_ticks: 10,
        pre_vote: true,
        snapshot_count: 1000,
        catch_up_entries: 100,
        log_bytes: dolmen_node::LOG_BYTES,
        max_request_bytes: 1 << 20,
        progress_notify_nanos: 1 << 40,
        apply_bytes_per_turn: dolmen_node::Config::APPLY_BYTES_PER_TURN,
        watch_near_revisions: dolmen_node::Config::WATCH_NEAR_REVISIONS,
        priority_request: false,
        seed: 1,
        incarnation: 1,
    };
    dolmen_node::start(Arc::new(disk.clone()), &options, config, Mono(0))
}

/// Ticks a started member until it has done what its log tells it; the members its configuration then has.
fn members_after(started: Started, what: &str) -> usize {
    let Started { mut node, mut wal, lock: _lock } = started;
    let mut now = 0;
    for _ in 0..50 {
        now += TICK;
        node.step(Mono(now), Input::Tick);
        loop {
            let effects = node.advance(Mono(now));
            assert!(effects.stopped.is_none(), "{what}: {:?}", effects.stopped);
            if effects.wal.is_empty() && effects.store.is_empty() {
                break;
            }
            append_all(&mut wal, &effects.wal).expect("the disk is well again");
            wal.sync().expect("the disk is well again");
            for job in effects.wal {
                node.step(Mono(now), Input::WalDone(job));
            }
            for job in effects.store {
                node.step(Mono(now), Input::StoreDone(job.run().expect("the disk is well again")));
            }
        }
    }
    let members = node.machine().membership().members.len();
    assert!(members > 1 || node.raft().is_leader(), "{what}: a lone member leads");
    members
}

#[test]
fn a_first_start_cut_off_anywhere_is_begun_again() {
    for founders in [1, 3] {
        let whole = SimDisk::new(0);
        drop(start(&whole, founders).expect("starts"));
        let calls = whole.calls();
        assert!(calls > 20, "there is something to cut off");
        for cut in 0..calls {
            for shape in PowerLoss::ALL {
                let what = format!("{founders} founders, cut off after {cut} of {calls} calls, {shape:?}");
                let disk = SimDisk::new(cut);
                disk.inject(Fault::CrashAfter { calls: cut });
                assert!(start(&disk, founders).is_err(), "{what}: the cut is not felt");
                disk.power_loss(shape);
                let again = start(&disk, founders).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(members_after(again, &what), founders as usize, "{what}");
            }
        }
    }
}

#[test]
fn a_first_start_that_was_for_others_is_not_continued() {
    let whole = SimDisk::new(0);
    drop(start(&whole, 3).expect("starts"));
    let mut refused = 0;
    for cut in 0..whole.calls() {
        for shape in PowerLoss::ALL {
            let what = format!("cut off after {cut} calls, {shape:?}");
            let disk = SimDisk::new(cut);
            disk.inject(Fault::CrashAfter { calls: cut });
            assert!(start(&disk, 3).is_err(), "{what}: the cut is not felt");
            disk.power_loss(shape);
            match start(&disk, 5) {
                // Nothing was there yet, or everything.
                Ok(started) => assert!([3, 5].contains(&members_after(started, &what)), "{what}"),
                Err(StartError::Unfinished { .. }) => refused += 1,
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    assert!(refused > 0, "none was cut off in between");
}

/// A store that has applied something, and no log at all: whoever is configured now, its votes are not known.
#[test]
fn a_store_without_its_log_is_refused() {
    let disk = SimDisk::new(0);
    assert_eq!(members_after(start(&disk, 1).expect("starts"), "a first start"), 1);
    disk.remove_dir_all(Path::new("/data/member/wal")).expect("there is a log");
    for slot in ["acked-0", "acked-1"] {
        let _absent = disk.remove_file(&Path::new("/data/member").join(slot));
    }
    for founders in [1, 3] {
        assert!(matches!(start(&disk, founders), Err(StartError::MissingLog { .. })), "{founders} founders");
    }
}
