//! Restore, import and export on the simulated disk: what they make, and what is there when they are stopped after any
//! call to the disk.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use common::{PEER, SEGMENT, content, disk_of, options, put, snapshot_of};
use dolmen_bolt::MemorySource;
use dolmen_datadir::{
    ExportOptions, ImportError, ImportOptions, MigrateOptions, RestoreOptions, Silent, export_on, import, migrate_on,
    restore_on,
};
use dolmen_env::{Disk, Fault, Mono, PowerLoss, SimDisk};
use dolmen_machine::{Machine, Member, conf_state_json};
use dolmen_mvcc::KeyValueRef;
use dolmen_node::Layout;
use dolmen_proto::etcdserverpb::{InternalRaftRequest, PutRequest};
use dolmen_proto::membershippb::DowngradeInfoSetRequest;
use dolmen_proto::raftpb::{ConfState, Entry, HardState};
use dolmen_types::Revision;
use dolmen_wal::Wal;
use prost::Message;

/// A database as some other cluster left it: its members, its configuration, users, a lease, revisions 2 to 21.
fn database() -> MemorySource {
    let mut all = MemorySource::new();
    let keys = all.entry("key".into()).or_default();
    for main in 2..22 {
        let (name, tombstone) = (format!("k{}", main % 7), main == 15);
        let version = 1 + (main - 2) / 7;
        let value = KeyValueRef {
            key: name.as_bytes(),
            create_revision: if tombstone { 0 } else { 2 + (main - 2) % 7 },
            mod_revision: if tombstone { 0 } else { main },
            version: if tombstone { 0 } else { version },
            value: if tombstone { b"" } else { b"some value" },
            lease: if tombstone { 0 } else { 7 },
        };
        let (key, len) = Revision::new(main, 0).to_bolt_key(tombstone);
        keys.insert(Bytes::copy_from_slice(&key[..len]), value.encode());
    }
    let stale = ConfState { voters: vec![0xaa, 0xbb], learners: vec![0xcc], ..ConfState::default() };
    let number = |n: u64| Bytes::copy_from_slice(&n.to_be_bytes());
    let meta = all.entry("meta".into()).or_default();
    meta.insert("consistent_index".into(), number(99));
    meta.insert("term".into(), number(4));
    meta.insert("confState".into(), conf_state_json(&stale).into());
    meta.insert("storageVersion".into(), "3.6.0".into());
    let old = Member { id: 0xaa, peer_urls: vec!["http://old:1".into()], ..Member::default() };
    let members = all.entry("members".into()).or_default();
    members.insert("aa".into(), serde_json::to_vec(&old).expect("json").into());
    all.entry("members_removed".into()).or_default().insert("dd".into(), "removed".into());
    all.entry("cluster".into()).or_default().insert("clusterVersion".into(), "3.6.0".into());
    all.entry("authUsers".into()).or_default().insert("root".into(), Bytes::from_static(b"\x0a\x04root"));
    all.entry("auth".into()).or_default().insert("authEnabled".into(), Bytes::from_static(&[0]));
    let lease = dolmen_lease::LeaseRecord { id: 7, ttl: 60, remaining_ttl: 42 };
    all.entry("lease".into()).or_default().insert(dolmen_lease::record_key(7), lease.encode());
    all.entry("alarm".into()).or_default();
    all.entry("authRoles".into()).or_default();
    all
}

/// Restored, with three puts in the log that the database has not got, the last one not committed.
fn etcds_directory(seed: u64) -> SimDisk {
    let sim = SimDisk::new(seed);
    let disk = disk_of(&sim);
    put(&*disk, "/s.db", &snapshot_of(&database()));
    restore_on(&disk, &options(), SEGMENT, &mut Silent).expect("restores");
    append(&disk, |_| InternalRaftRequest {
        put: Some(PutRequest { key: "new".into(), value: "v".into(), ..PutRequest::default() }),
        ..InternalRaftRequest::default()
    });
    sim
}

fn append(disk: &Arc<dyn Disk>, request: impl Fn(u64) -> InternalRaftRequest) {
    let dir = Path::new("/d/member/wal");
    let (mut wal, _) = Wal::open(disk.clone(), dir, (1, 1), SEGMENT).expect("opens");
    let entry = |index| Entry { term: 3, index, data: request(index).encode_to_vec().into(), ..Entry::default() };
    let entries: Vec<Entry> = (2..5).map(entry).collect();
    let vote = wal.metadata().node_id;
    wal.append(Some(&HardState { term: 3, vote, commit: 3 }), &entries).expect("appends");
    wal.close().expect("closes");
    Wal::remove_slots(&**disk, dir).expect("removes");
}

fn layout() -> Layout {
    Layout::new(Path::new("/d"), None)
}

fn import_options(layout: Layout) -> ImportOptions {
    ImportOptions { wal: SEGMENT, ..ImportOptions::new(layout) }
}

fn machine(disk: &Arc<dyn Disk>, dir: &Path) -> Machine {
    let log = dolmen_revlog::Options { segment_bytes: 64 << 10, spare_bytes: 0, ..dolmen_revlog::Options::default() };
    let config = dolmen_machine::Config { log, ..dolmen_machine::Config::default() };
    Machine::open(disk.clone(), dir, config).expect("opens")
}

/// Everything that an import has to have taken over.
fn check_imported(disk: &Arc<dyn Disk>, layout: &Layout) {
    let mut machine = machine(disk, &layout.store());
    assert_eq!((machine.applied(), machine.applied_term(), machine.store().revision()), (1, 1, 21));
    let own = *machine.membership().members.keys().next().expect("a member");
    assert_eq!((own, machine.membership().members.len()), (0x8e9e_05c5_2164_694d, 1));
    assert_eq!(machine.conf_state(), &ConfState { voters: vec![own], ..ConfState::default() });
    assert_eq!(machine.membership().cluster_version.as_deref(), Some("3.6.0"));
    let tables = machine.store().log_ref().tables();
    assert!(tables.get(dolmen_revlog::Table::AuthUsers, b"root").is_some(), "users are kept");
    let from = Wal::snapshots(&**disk, &layout.wal).expect("marks").pop().expect("a mark");
    let recovered = Wal::read(&**disk, &layout.wal, (from.index, from.term)).expect("reads");
    assert_eq!(recovered.hard_state, HardState { term: 3, vote: own, commit: 3 });
    assert_eq!(recovered.entries.iter().map(|entry| entry.index).collect::<Vec<_>>(), [2, 3, 4]);
    for entry in &recovered.entries {
        machine.apply(entry, Mono::default()).expect("applies");
    }
    machine.commit();
    assert_eq!(machine.store().revision(), 24);
}

/// A log directory below the data directory, in its `member` or beside it, whether the data directory is there or not. When it
/// is cut off anywhere, a second restore finds nothing in its way.
#[test]
fn a_restore_with_its_log_below_the_data_directory_can_be_cut_off_and_begun_again() {
    for wal in ["/d/wal", "/d/member/log", "/d/a/b"] {
        for there in [false, true] {
            let fresh = || {
                let sim = SimDisk::new(1);
                put(&*disk_of(&sim), "/s.db", &snapshot_of(&database()));
                if there {
                    sim.create_dir_all(Path::new("/d")).expect("a good disk");
                }
                sim
            };
            let options = RestoreOptions { wal_dir: Some(wal.into()), ..options() };
            let whole = fresh();
            let before = whole.calls();
            restore_on(&disk_of(&whole), &options, SEGMENT, &mut Silent)
                .unwrap_or_else(|e| panic!("{wal} {there}: {e}"));
            let calls = whole.calls() - before;
            assert!(Wal::exists(&whole, Path::new(wal)).expect("reads"), "{wal} {there}");
            for cut in 0..calls {
                // What has its own name may be there already, and then it is a whole one.
                if there && wal == "/d/a/b" {
                    continue;
                }
                let sim = fresh();
                sim.inject(Fault::CrashAfter { calls: cut });
                let _cut_off = restore_on(&disk_of(&sim), &options, SEGMENT, &mut Silent);
                sim.kill();
                let again = restore_on(&disk_of(&sim), &options, SEGMENT, &mut Silent);
                let member = sim.exists(Path::new("/d/member")).expect("reads");
                assert!(again.is_ok() || member, "{wal} {there}, cut off after {cut} calls: {:?}", again.err());
            }
        }
    }
}

/// An etcd went on for a while with a log directory that was ours, and the slots beside it stayed.
#[test]
fn slots_that_have_outlived_their_log_do_not_make_an_import_refuse() {
    let sim = etcds_directory(1);
    let disk = disk_of(&sim);
    let layout = Layout::new(Path::new("/d"), Some(Path::new("/logs/wal")));
    sim.create_dir_all(Path::new("/logs")).expect("a good disk");
    sim.rename(Path::new("/d/member/wal"), Path::new("/logs/wal")).expect("a good disk");
    let metadata = Wal::identify(&*disk, &layout.wal).expect("a log");
    let ours = Path::new("/logs/ours/wal");
    sim.create_dir_all(Path::new("/logs/ours")).expect("a good disk");
    let mut wal = Wal::create(disk.clone(), ours, metadata, SEGMENT).expect("a good disk");
    wal.append(Some(&HardState { term: 9, vote: 1, commit: 0 }), &[]).expect("a good disk");
    wal.close().expect("a good disk");
    for slot in ["acked-0", "acked-1"] {
        sim.rename(&Path::new("/logs/ours").join(slot), &Path::new("/logs").join(slot)).expect("a good disk");
    }
    import(&disk, &import_options(layout.clone()), &mut Silent).expect("imports").expect("something to import");
    check_imported(&disk, &layout);
}

#[test]
fn a_restore_changes_what_belongs_to_the_cluster_and_nothing_else() {
    let sim = SimDisk::new(1);
    let disk = disk_of(&sim);
    put(&*disk, "/s.db", &snapshot_of(&database()));
    let bumped = RestoreOptions { bump_revision: 1000, mark_compacted: true, ..options() };
    restore_on(&disk, &bumped, SEGMENT, &mut Silent).expect("restores");
    assert_eq!(disk.read_dir(Path::new("/d/member")).expect("reads"), ["snap", "wal"]);
    assert_eq!(
        disk.read_dir(Path::new("/d/member/snap")).expect("reads"),
        ["0000000000000001-0000000000000001.snap", "db"]
    );

    let mut wanted = database();
    let number = |n: u64| Bytes::copy_from_slice(&n.to_be_bytes());
    let revision = Bytes::copy_from_slice(&Revision::new(1021, 0).to_bolt_key(false).0[..17]);
    wanted.get_mut(&b"key"[..]).expect("there").insert(revision.clone(), Bytes::new());
    let meta = wanted.get_mut(&b"meta"[..]).expect("there");
    meta.insert("consistent_index".into(), number(1));
    meta.insert("term".into(), number(1));
    meta.insert("scheduledCompactRev".into(), revision);
    let json = format!(r#"{{"id":10276657743932975437,"peerURLs":["{PEER}"],"name":"default"}}"#);
    wanted.insert("members".into(), [("8e9e05c52164694d".into(), json.into())].into());
    wanted.insert("members_removed".into(), BTreeMap::new());
    assert_eq!(content(&*disk, Path::new("/d/member/snap/db")), Some(wanted));

    // What was made above can be taken over: the bumped revision is compacted and stands.
    import(&disk, &import_options(layout()), &mut Silent).expect("imports").expect("something to import");
    let machine = machine(&disk, &layout().store());
    assert_eq!((machine.store().revision(), machine.store().compact_revision()), (1021, 1021));

    let again = restore_on(&disk, &bumped, SEGMENT, &mut Silent).expect_err("not empty");
    assert_eq!(again.to_string(), "data-dir \"/d\" not empty or could not be read");
}

#[test]
fn damaged_snapshots_are_refused() {
    let snapshot = snapshot_of(&database());
    let refused = |bytes: &[u8], skip_hash_check| {
        let sim = SimDisk::new(1);
        let disk = disk_of(&sim);
        put(&*disk, "/s.db", bytes);
        let options = RestoreOptions { skip_hash_check, ..options() };
        let result = restore_on(&disk, &options, SEGMENT, &mut Silent);
        let there = disk.exists(Path::new("/d")).expect("looks");
        assert_eq!(result.is_ok(), there, "all or nothing");
        result.err().map(|error| error.to_string())
    };
    assert_eq!(refused(&snapshot, false), None);
    for len in (0..snapshot.len()).step_by(7) {
        assert!(refused(&snapshot[..len], false).is_some(), "cut at {len}");
    }
    for at in (0..snapshot.len() * 8).step_by(1009) {
        let mut bytes = snapshot.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        let text = refused(&bytes, false).expect("refused");
        assert!(text.starts_with("expected sha256 ["), "bit {at}: {text}");
        // Without the hash a damaged value passes, as it does in etcd; what matters is that nothing panics.
        let _whatever = refused(&bytes, true);
    }
    let plain = &snapshot[..snapshot.len() - 32];
    assert_eq!(refused(plain, false).as_deref(), Some("snapshot missing hash but --skip-hash-check=false"));
    assert_eq!(refused(plain, true), None);
}

/// Runs `work` on forks of `start`, stopped after each of its disk calls in every shape of a power loss.
fn stop_everywhere(start: &SimDisk, work: impl Fn(&SimDisk) -> bool, after: impl Fn(&SimDisk, String)) {
    for shape in PowerLoss::ALL {
        for calls in 0.. {
            let fork = start.fork(calls);
            fork.inject(Fault::CrashAfter { calls });
            let done = work(&fork);
            let crashed = fork.crashed();
            fork.power_loss(shape);
            after(&fork, format!("{shape:?} after {calls} calls"));
            if done && !crashed {
                break;
            }
        }
    }
}

#[test]
fn a_restore_that_is_cut_off_leaves_nothing_to_start_from() {
    for (exists, wal_dir) in [(false, None), (true, None), (false, Some(PathBuf::from("/w/log")))] {
        let start = SimDisk::new(3);
        let disk = disk_of(&start);
        put(&*disk, "/s.db", &snapshot_of(&database()));
        if exists {
            disk.create_dir_all(Path::new("/d")).expect("makes");
        }
        let options = RestoreOptions { wal_dir: wal_dir.clone(), ..options() };
        let restored = |disk: &SimDisk| restore_on(&disk_of(disk), &options, SEGMENT, &mut Silent).is_ok();
        stop_everywhere(&start, restored, |sim, at| {
            let disk = disk_of(sim);
            let db = Path::new("/d/member/snap/db");
            let wal = wal_dir.clone().unwrap_or_else(|| "/d/member/wal".into());
            if !disk.exists(db).expect("looks") {
                assert!(!disk.exists(Path::new("/d/member")).expect("looks"), "{at}: a part");
                if wal_dir.is_none() {
                    assert!(restored(sim), "{at}: a second one succeeds");
                }
            } else if let Some(found) = content(&*disk, db) {
                assert_eq!(found[&b"members"[..]].len(), 1, "{at}");
                let recovered = Wal::read(&*disk, &wal, (1, 1)).expect("a whole log");
                assert_eq!((recovered.entries.len(), recovered.hard_state.commit), (0, 1), "{at}");
            } else {
                assert!(wal_dir.is_some(), "{at}: only a log elsewhere makes a database wait");
            }
        });
    }
}

#[test]
fn an_import_that_is_cut_off_begins_again_or_is_completed() {
    for wal_dir in [None, Some(PathBuf::from("/w"))] {
        let start = etcds_directory(5);
        let disk = disk_of(&start);
        if let Some(dir) = &wal_dir {
            disk.rename(Path::new("/d/member/wal"), dir).expect("moves");
            for parent in ["/d/member", "/"] {
                disk.sync_dir(Path::new(parent)).expect("syncs");
            }
        }
        let layout = Layout::new(Path::new("/d"), wal_dir.as_deref());
        let db = disk.read(&layout.snap().join("db")).expect("reads");
        let segment = "0000000000000000-0000000000000000.wal";
        let log = disk.read(&layout.wal.join(segment)).expect("reads");
        let options = import_options(layout.clone());
        let imported = |disk: &SimDisk| import(&disk_of(disk), &options, &mut Silent).is_ok();
        stop_everywhere(&start, imported, |sim, at| {
            let disk = disk_of(sim);
            import(&disk, &options, &mut Silent).unwrap_or_else(|error| panic!("{at}: {error:?}"));
            check_imported(&disk, &layout);
            assert_eq!(disk.read_dir(Path::new("/d")).expect("reads"), ["member", "member.etcd"], "{at}");
            let aside = Path::new("/d/member.etcd");
            assert_eq!(disk.read(&aside.join("snap/db")).expect("reads"), db, "{at}: unharmed");
            let moved = if wal_dir.is_some() { PathBuf::from("/w/member.etcd") } else { aside.join("wal") };
            assert_eq!(disk.read(&moved.join(segment)).expect("reads"), log, "{at}: unharmed");
            let second = import(&disk, &options, &mut Silent).expect("nothing more to do");
            assert_eq!(second, None, "{at}");
        });
    }
}

#[test]
fn an_export_holds_what_was_committed_and_goes_round() {
    let sim = etcds_directory(7);
    let disk = disk_of(&sim);
    import(&disk, &import_options(layout()), &mut Silent).expect("imports").expect("something to import");
    let options = ExportOptions { data_dir: "/d".into(), wal_dir: None, to: "/e".into(), target_version: None };
    export_on(&disk, &options, SEGMENT, &mut Silent).expect("exports");
    let found = content(&*disk, Path::new("/e/member/snap/db")).expect("a database");
    // Two of the three puts in the log are committed.
    assert_eq!(found[&b"key"[..]].len(), 22);
    for name in ["authUsers", "members", "lease", "cluster"] {
        let original = content(&*disk, Path::new("/d/member.etcd/snap/db")).expect("a database");
        assert_eq!(found[name.as_bytes()], original[name.as_bytes()], "{name}");
    }
    let recovered = Wal::read(&*disk, Path::new("/e/member/wal"), (3, 3)).expect("reads");
    assert_eq!((recovered.entries.len(), recovered.hard_state.term, recovered.hard_state.commit), (1, 3, 3));

    let older = ExportOptions { to: "/f".into(), target_version: Some("3.7".into()), ..options };
    export_on(&disk, &older, SEGMENT, &mut Silent).expect("exports");
    let found = content(&*disk, Path::new("/f/member/snap/db")).expect("a database");
    assert_eq!(found[&b"meta"[..]][&b"storageVersion"[..]], "3.7.0");
    assert_eq!(found[&b"cluster"[..]][&b"clusterVersion"[..]], "3.7.0");

    // And back in again.
    let again = Layout::new(Path::new("/e"), None);
    import(&disk, &import_options(again.clone()), &mut Silent).expect("imports").expect("something to import");
    assert_eq!(machine(&disk, &again.store()).store().revision(), 23);
}

#[test]
fn what_cannot_be_carried_out_is_refused_by_name() {
    let refused = |prepare: &dyn Fn(&mut MemorySource)| {
        let sim = SimDisk::new(9);
        let disk = disk_of(&sim);
        let mut database = database();
        prepare(&mut database);
        put(&*disk, "/s.db", &snapshot_of(&database));
        restore_on(&disk, &options(), SEGMENT, &mut Silent).expect("restores");
        let before = disk.read(Path::new("/d/member/snap/db")).expect("reads");
        let error = import(&disk, &import_options(layout()), &mut Silent).expect_err("refused");
        assert_eq!(disk.read(Path::new("/d/member/snap/db")).expect("reads"), before, "untouched");
        error.to_string()
    };
    let set = |bucket: &'static str, key: &'static str, value: &'static [u8]| {
        move |all: &mut MemorySource| {
            all.entry(bucket.into()).or_default().insert(key.into(), Bytes::from_static(value));
        }
    };
    let newer = refused(&set("meta", "storageVersion", b"3.8.0"));
    assert!(newer.contains("storage version 3.8, which this release does not know"), "{newer}");
    let downgrade = refused(&set("cluster", "downgrade", br#"{"target-version":"3.5.0","enabled":true}"#));
    assert!(downgrade.starts_with("a downgrade to 3.5.0 is under way"), "{downgrade}");

    let sim = SimDisk::new(9);
    let disk = disk_of(&sim);
    put(&*disk, "/s.db", &snapshot_of(&database()));
    restore_on(&disk, &options(), SEGMENT, &mut Silent).expect("restores");
    append(&disk, |_| InternalRaftRequest {
        downgrade_info_set: Some(DowngradeInfoSetRequest { enabled: true, ver: "3.5".into() }),
        ..InternalRaftRequest::default()
    });
    let error = import(&disk, &import_options(layout()), &mut Silent).expect_err("refused");
    assert!(matches!(error, ImportError::Kind { index: 2, kind: "downgrade_info_set" }), "{error}");
}

#[test]
fn a_migration_that_is_cut_off_leaves_one_version_or_the_other() {
    let start = etcds_directory(11);
    let options = MigrateOptions { data_dir: "/d".into(), target_version: "3.7".into(), force: false };
    let migrated = |disk: &SimDisk| migrate_on(&*disk_of(disk), &options, &mut Silent).is_ok();
    stop_everywhere(&start, migrated, |sim, at| {
        let disk = disk_of(sim);
        let found = content(&*disk, Path::new("/d/member/snap/db")).unwrap_or_else(|| panic!("{at}: no database"));
        let version = &found[&b"meta"[..]][&b"storageVersion"[..]];
        assert!(version == "3.6.0" || version == "3.7.0", "{at}: {version:?}");
        assert_eq!(found[&b"key"[..]].len(), 20, "{at}");
        assert!(migrated(sim), "{at}: a second one succeeds");
    });
    let back = MigrateOptions { target_version: "3.5".into(), ..options };
    let disk = disk_of(&start);
    migrate_on(&*disk, &back, &mut Silent).expect("migrates");
    let found = content(&*disk, Path::new("/d/member/snap/db")).expect("a database");
    assert!(!found[&b"meta"[..]].contains_key(&b"storageVersion"[..]));
}
