//! Snapshots: a store's worth of bytes, whole or not at all.

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real files")]

mod common;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;
use common::{Member, connect, wait};
use dolmen_bolt::{BoltWriter, MemorySource, Plan, Source};
use dolmen_env::Memory;
use dolmen_proto::raftpb::{Message, MessageType, Snapshot, SnapshotMetadata};
use dolmen_transport::{Lobby, PeerSender};

fn store(megabytes: u32) -> MemorySource {
    let pair = |n: u32| {
        let value: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(n + 1) >> 3) as u8).collect();
        (Bytes::copy_from_slice(&n.to_be_bytes()), Bytes::from(value))
    };
    BTreeMap::from([(Bytes::from_static(b"key"), (0..megabytes).map(pair).collect())])
}

fn message(from: u64, to: u64, index: u64) -> Message {
    let metadata = SnapshotMetadata { index, term: 5, conf_state: None };
    let snapshot = Snapshot { data: Bytes::from_static(b"{}"), metadata: Some(metadata) };
    Message { r#type: MessageType::MsgSnap as i32, from, to, term: 5, snapshot: Some(snapshot), ..Default::default() }
}

fn names(member: &Member) -> Vec<String> {
    let entries = std::fs::read_dir(member.dir.path()).expect("directory");
    entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn fifty_megabytes_arrive_byte_for_byte() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    let source = store(50);
    let plan = Plan::new(&source).expect("plan");
    let expected = BoltWriter::new(Vec::new()).write(&plan, &source).expect("file");
    a.transport.send_snapshot(message(1, 2, 0xabc), Box::new(source));
    wait("it arrives", || !b.sink.snapshots.lock().is_empty());
    wait("the sender hears of it", || *a.sink.statuses.lock() == [(2, true)]);
    let (received, path) = b.sink.snapshots.lock().pop().expect("snapshot");
    assert_eq!(received, message(1, 2, 0xabc));
    let name = path.file_name().expect("a file").to_string_lossy().into_owned();
    assert!(
        path.starts_with(b.dir.path()) && name.starts_with("0000000000000abc") && name.ends_with(".snap.db"),
        "{name}"
    );
    assert!(std::fs::read(path).expect("file") == expected);
    assert_eq!(names(&b).len(), 1);
    let stats = a.transport.stats().get(2).expect("known");
    assert_eq!(stats.snapshot_send.success.load(SeqCst), 1);
    assert_eq!(stats.snapshot_send.inflight.load(SeqCst), 0);
}

/// Fails once it has been read for a while.
struct Failing(MemorySource);

impl Source for Failing {
    fn buckets(&self) -> Vec<Bytes> {
        self.0.buckets()
    }

    fn for_each(&self, bucket: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut pairs = 0;
        self.0.for_each(bucket, &mut |key, value| {
            pairs += 1;
            if pairs > 5 { Err(io::Error::other("disk")) } else { visit(key, value) }
        })
    }

    fn sizes(&self, bucket: &[u8], visit: &mut dyn FnMut(usize, usize) -> io::Result<()>) -> io::Result<()> {
        self.0.sizes(bucket, visit)
    }
}

#[test]
fn a_transfer_that_breaks_off_leaves_nothing() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    a.transport.send_snapshot(message(1, 2, 7), Box::new(Failing(store(8))));
    wait("the sender hears of it", || *a.sink.statuses.lock() == [(2, false)]);
    wait("the receiver cleans up", || names(&b).is_empty());
    assert!(b.sink.snapshots.lock().is_empty());
    assert_eq!(*a.sink.damaged.lock(), ["disk"], "the sender's store is to blame");

    a.transport.send_snapshot(message(1, 9, 7), Box::new(store(1)));
    wait("an unknown receiver is reported", || a.sink.statuses.lock().contains(&(9, false)));
    assert_eq!(a.sink.damaged.lock().len(), 1, "nobody's store is");
}

#[test]
fn a_store_that_cannot_even_be_planned_is_reported() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    // A key that no file can hold.
    let bad = BTreeMap::from([(Bytes::new(), Bytes::new())]);
    a.transport.send_snapshot(message(1, 2, 7), Box::new(BTreeMap::from([(Bytes::from_static(b"key"), bad)])));
    wait("the sender hears of it", || *a.sink.statuses.lock() == [(2, false)]);
    wait("and why", || a.sink.damaged.lock().len() == 1);
}

#[test]
fn a_receiver_that_breaks_off_says_nothing_about_the_store() {
    let (a, b) = (Member::start(1), Member::start(2));
    connect(&a, &b);
    // Its directory is gone: it refuses.
    std::fs::remove_dir_all(b.dir.path()).expect("removes");
    a.transport.send_snapshot(message(1, 2, 7), Box::new(store(20)));
    wait("the sender hears of it", || *a.sink.statuses.lock() == [(2, false)]);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(a.sink.damaged.lock().is_empty());
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let listener = common::bind();
    let dir = tempfile::tempdir().expect("directory");
    std::fs::write(dir.path().join("receiving-0000000000000007-0"), b"half").expect("file");
    std::fs::write(dir.path().join("0000000000000007.snap.db"), b"whole").expect("file");
    let transport = dolmen_transport::Transport::new(dolmen_transport::Config {
        member_id: 1,
        cluster_id: 1,
        peer_urls: vec![],
        server_version: "3.7.3".into(),
        min_cluster_version: "3.0.0".into(),
        snap_dir: dir.path().into(),
        max_snapshot_bytes: 64 << 20,
        dial_timeout: std::time::Duration::from_secs(1),
        tls: None,
        local_addr: None,
        clock: Arc::new(|| dolmen_env::Mono(1)),
        memory: dolmen_env::Memory::untold(),
    });
    let listener = dolmen_transport::PeerListener {
        socket: dolmen_net::Bound::Tcp(listener),
        tls: None,
        room: dolmen_net::Room::new(4096),
    };
    let lobby = Lobby::listen(vec![listener], Memory::untold()).expect("listens");
    transport.start(lobby, Arc::new(common::Recorder::default()), Arc::new(common::EchoApi)).expect("starts");
    transport.stop();
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("directory").collect();
    assert_eq!(left.len(), 1);
}
