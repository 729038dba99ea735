//! A snapshot from the leader, installed by a member that had led an older term: cut off by a power loss at every call to
//! the disk, and again while it starts. Store and log agree on terms afterwards, not just on indexes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dolmen_bolt::BoltWriter;
use dolmen_env::{Disk, DiskLock, Fault, Mono, OpenMode, PowerLoss, Rng, SimDisk};
use dolmen_node::driver::append_all;
use dolmen_node::{Bootstrap, Config, Input, Layout, Member, Node, StartError, StartOptions, Started};
use dolmen_proto::etcdserverpb::{InternalRaftRequest, PutRequest};
use dolmen_proto::raftpb::{Entry, Message, MessageType, Snapshot, SnapshotMetadata};
use dolmen_raft::Storage as _;
use dolmen_wal::{Wal, WalOptions};
use prost::Message as _;

const TICK: u64 = 10_000_000;
/// Founders' entries: one a member, of term 1.
const FOUNDED: u64 = 3;
/// The snapshot is of this index, of [`TERM`].
const INDEX: u64 = 8;
const TERM: u64 = 5;

struct Turned {
    node: Node,
    wal: Wal,
    _lock: DiskLock,
}

fn start(id: u64, disk: &SimDisk) -> Result<Turned, StartError> {
    let member = |id| Member { id, peer_urls: vec![format!("http://n{id}:2380")], ..Member::default() };
    let options = StartOptions {
        layout: Layout::new(Path::new("/data"), None),
        bootstrap: Bootstrap::New { members: (1..=FOUNDED).map(member).collect() },
        machine: dolmen_machine::Config {
            lease: dolmen_lease::Config::default(),
            log: dolmen_revlog::Options {
                spare_bytes: 0,
                segment_bytes: 1 << 16,
                sync_interval: 1,
                ..Default::default()
            },
            ..dolmen_machine::Config::default()
        },
        wal: WalOptions { segment_bytes: 2048 },
    };
    let config = Config {
        member_id: id,
        cluster_id: dolmen_node::cluster_id(&[1, 2, 3]),
        name: format!("n{id}"),
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
    let Started { node, wal, lock } = dolmen_node::start(Arc::new(disk.clone()), &options, config, Mono(0))?;
    Ok(Turned { node, wal, _lock: lock })
}

impl Turned {
    /// Hands in one input and works until nothing is left to do; an error is the end of the process.
    fn turn(&mut self, input: Input) -> Result<(), String> {
        self.node.step(Mono(TICK), input);
        loop {
            let effects = self.node.advance(Mono(TICK));
            if let Some(reason) = effects.stopped {
                return Err(format!("{reason:?}"));
            }
            let idle = effects.wal.is_empty() && effects.store.is_empty() && effects.install.is_none();
            if idle && !effects.busy {
                return Ok(());
            }
            append_all(&mut self.wal, &effects.wal).map_err(|error| error.to_string())?;
            self.wal.sync().map_err(|error| error.to_string())?;
            for job in effects.wal {
                self.node.step(Mono(TICK), Input::WalDone(job));
            }
            for job in effects.store {
                let done = job.run().map_err(|error| error.to_string())?;
                self.node.step(Mono(TICK), Input::StoreDone(done));
            }
            if let Some(job) = effects.install {
                self.node.step(Mono(TICK), Input::Installed(job.run()));
            }
        }
    }

    /// Index and term of the last entry, and the index that is applied.
    fn stands_at(&self) -> (u64, u64, u64) {
        let storage = self.node.raft().storage();
        let last = storage.last_index();
        (last, storage.term(last).expect("the last entry"), self.node.machine().applied())
    }
}

/// An append from member 3, the leader of `term`: `count` puts behind index `after` of term `after_term`.
fn puts(to: u64, term: u64, after: (u64, u64), count: u64, commit: u64) -> Input {
    let entry = |index| {
        let put = PutRequest { key: "k".into(), value: vec![index as u8; 100].into(), ..PutRequest::default() };
        let data = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() }.encode_to_vec();
        Entry { term, index, data: data.into(), ..Entry::default() }
    };
    Input::Peer(Message {
        r#type: MessageType::MsgApp as i32,
        from: 3,
        to,
        term,
        index: after.0,
        log_term: after.1,
        entries: (after.0 + 1..=after.0 + count).map(entry).collect(),
        commit,
        ..Message::default()
    })
}

/// The database and the message of a member that stands at the snapshot's index.
fn snapshot() -> (Vec<u8>, Message) {
    let mut donor = start(2, &SimDisk::new(1)).expect("starts");
    donor.turn(puts(2, TERM, (FOUNDED, 1), INDEX - FOUNDED, INDEX)).expect("a good disk");
    let machine = donor.node.machine();
    let position = machine.position();
    assert_eq!((position.index, position.term), (INDEX, TERM));
    let source = machine.snapshot_source().expect("healthy");
    let plan = dolmen_bolt::Plan::new(&source).expect("healthy");
    let bytes = BoltWriter::new(Vec::new()).write(&plan, &source).expect("in memory");
    let metadata = SnapshotMetadata { conf_state: Some(position.conf_state), index: INDEX, term: TERM };
    let message = Message {
        r#type: MessageType::MsgSnap as i32,
        from: 3,
        to: 1,
        term: TERM,
        snapshot: Some(Snapshot { data: machine.snapshot_message_data(), metadata: Some(metadata) }),
        ..Message::default()
    };
    (bytes, message)
}

/// A member with a tail of so many entries of term 2 that nobody has committed.
fn with_tail(tail: u64) -> SimDisk {
    let disk = SimDisk::new(tail);
    let mut member = start(1, &disk).expect("starts");
    member.turn(puts(1, 2, (FOUNDED, 1), tail, FOUNDED)).expect("a good disk");
    assert_eq!(member.stands_at(), (FOUNDED + tail, 2, FOUNDED));
    disk
}

fn save(disk: &SimDisk, bytes: &[u8]) -> PathBuf {
    let path = Path::new("/data/member/snap").join(format!("{INDEX:016x}.snap.db"));
    let file = disk.open(&path, OpenMode::Truncate).expect("a good disk");
    file.write_all_at(bytes, 0).expect("a good disk");
    file.sync_data().expect("a good disk");
    disk.sync_dir(Path::new("/data/member/snap")).expect("a good disk");
    path
}

#[test]
fn an_installation_cut_off_anywhere_leaves_store_and_log_of_one_history() {
    let (bytes, message) = snapshot();
    let mut rng = Rng::new(1);
    // Shorter than the snapshot, as long, and longer.
    for tail in [2, INDEX - FOUNDED, 40] {
        let before = with_tail(tail);
        let mut outcomes = [0, 0];
        for cut in 0.. {
            let disk = before.fork(cut);
            let mut member = start(1, &disk).expect("starts");
            let db = save(&disk, &bytes);
            disk.inject(Fault::CrashAfter { calls: cut });
            let whole = member.turn(Input::PeerSnapshot(message.clone(), db)).is_ok() && !disk.crashed();
            drop(member);
            for shape in PowerLoss::ALL {
                let what = format!("tail of {tail}, cut off after {cut} calls, {shape:?}");
                let disk = disk.fork(cut);
                disk.power_loss(shape);
                // And once more, while it starts from there.
                disk.inject(Fault::CrashAfter { calls: rng.below(60) });
                let _cut_off = start(1, &disk);
                disk.power_loss(*rng.pick(&PowerLoss::ALL));
                let mut member = start(1, &disk).unwrap_or_else(|error| panic!("{what}: {error}"));
                let installed = member.node.machine().applied() >= INDEX;
                outcomes[usize::from(installed)] += 1;
                if !installed {
                    assert!(!whole, "{what}: it is forgotten");
                    let (last, term, applied) = member.stands_at();
                    assert_eq!((last, term), (FOUNDED + tail, 2), "{what}");
                    assert!(applied <= FOUNDED, "{what}: the tail was never committed");
                    continue;
                }
                assert_eq!(member.stands_at(), (INDEX, TERM, INDEX), "{what}");
                let state = member.node.raft().storage().hard_state();
                assert_eq!((state.term, state.commit), (TERM, INDEX), "{what}");
                member.turn(puts(1, TERM, (INDEX, TERM), 2, INDEX)).unwrap_or_else(|error| panic!("{what}: {error}"));
                drop(member);
                disk.power_loss(PowerLoss::LoseAll);
                let member = start(1, &disk).unwrap_or_else(|error| panic!("{what}, and once more: {error}"));
                assert_eq!(member.stands_at(), (INDEX + 2, TERM, INDEX), "{what}, and once more");
            }
            if whole {
                break;
            }
        }
        assert!(outcomes.iter().all(|count| *count > 20), "{outcomes:?}");
    }
}

/// A log that has committed another entry where the store stands: no installation leaves that.
#[test]
fn a_store_and_a_log_of_two_histories_are_refused() {
    let disk = with_tail(2);
    let mut member = start(1, &disk).expect("starts");
    member.turn(puts(1, 2, (FOUNDED + 2, 2), 10, FOUNDED + 12)).expect("a good disk");
    member.wal.close().expect("a good disk");
    let donor = SimDisk::new(1);
    let mut other = start(2, &donor).expect("starts");
    other.turn(puts(2, TERM, (FOUNDED, 1), INDEX - FOUNDED, INDEX)).expect("a good disk");
    other.turn(Input::Stop { transfer: false }).expect_err("stopped, with a durable store");
    drop(other);
    let store = Path::new("/data/member/store");
    disk.kill();
    donor.kill();
    disk.remove_dir_all(store).expect("there is one");
    disk.create_dir_all(store).expect("a good disk");
    for name in donor.read_dir(store).expect("there is one") {
        disk.write_atomic(&store.join(&name), &donor.read(&store.join(&name)).expect("a file")).expect("a good disk");
    }
    let refused = start(1, &disk).map(drop).expect_err("the log has committed term 2 there");
    assert!(matches!(refused, StartError::Disagree { applied: (INDEX, TERM), in_log: 2, .. }), "{refused}");
}
