//! The node turned by hand: three members on simulated disks, every message and answer in the test's hands.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Mono, SimDisk};
use dolmen_mvcc::{RangeError, RangeOptions};
use dolmen_node::driver::append_all;
use dolmen_node::{
    Bootstrap, Completion, Config, Input, Layout, Member, Node, ProposeKind, Reply, Request, RequestError,
    StartOptions, Started, StopReason, Submission,
};
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::{
    DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest, PutRequest, RangeRequest, RequestHeader, RequestOp,
    TxnRequest,
};
use dolmen_proto::raftpb::{
    ConfChange, ConfChangeType, Entry, EntryType, Message, MessageType, Snapshot, SnapshotMetadata,
};
use dolmen_raft::Storage as _;
use dolmen_types::KeyRange;
use dolmen_wal::{Wal, WalOptions};
use prost::Message as _;

const TICK: u64 = 10_000_000;
const ELECTION_TICKS: usize = 10;

struct Turned {
    node: Node,
    wal: Wal,
}

impl Turned {
    fn start(id: u64, disk: &SimDisk, now: u64) -> Self {
        Self::with_budget(id, disk, now, Config::APPLY_BYTES_PER_TURN)
    }

    fn with_budget(id: u64, disk: &SimDisk, now: u64, apply_bytes_per_turn: usize) -> Self {
        let peer = |id| Member { id, peer_urls: vec![format!("http://n{id}:2380")], ..Member::default() };
        let options = StartOptions {
            layout: Layout::new(Path::new("/data"), None),
            bootstrap: Bootstrap::New { members: [1, 2, 3].map(peer).to_vec() },
            machine: dolmen_machine::Config {
                log: dolmen_revlog::Options { segment_bytes: 4096, sync_interval: 1, ..Default::default() },
                ..dolmen_machine::Config::default()
            },
            wal: WalOptions { segment_bytes: 1 << 16 },
        };
        let config = Config {
            member_id: id,
            cluster_id: dolmen_node::cluster_id(&[1, 2, 3]),
            name: format!("n{id}"),
            client_urls: Vec::new(),
            tick_nanos: TICK,
            election_ticks: ELECTION_TICKS,
            pre_vote: true,
            snapshot_count: 1000,
            catch_up_entries: 100,
            log_bytes: dolmen_node::LOG_BYTES,
            max_request_bytes: 1 << 20,
            progress_notify_nanos: 1 << 40,
            apply_bytes_per_turn,
            watch_near_revisions: dolmen_node::Config::WATCH_NEAR_REVISIONS,
            priority_request: true,
            seed: id,
            incarnation: 1 + now,
        };
        let started = dolmen_node::start(Arc::new(disk.clone()), &options, config, Mono(now)).unwrap();
        let Started { node, wal, lock: _ } = started;
        Self { node, wal }
    }
}

struct Group {
    now: u64,
    disks: BTreeMap<u64, SimDisk>,
    members: BTreeMap<u64, Turned>,
    /// Why those stopped that are gone by themselves.
    stopped: BTreeMap<u64, StopReason>,
    replies: BTreeMap<u64, Reply>,
    next_slot: u64,
    /// Members whose log's disk hangs, and what they have given it.
    hanging: BTreeMap<u64, Vec<dolmen_node::WalJob>>,
    /// Messages for which this holds are lost.
    lose: Box<dyn Fn(&Message) -> bool>,
}

impl Group {
    fn new() -> Self {
        Self::with_budget(Config::APPLY_BYTES_PER_TURN)
    }

    fn with_budget(bytes: usize) -> Self {
        let disks = BTreeMap::from([1, 2, 3].map(|id| (id, SimDisk::new(id))));
        let members = disks.iter().map(|(id, disk)| (*id, Turned::with_budget(*id, disk, 0, bytes))).collect();
        Self {
            now: 0,
            disks,
            members,
            stopped: BTreeMap::new(),
            replies: BTreeMap::new(),
            next_slot: 0,
            hanging: BTreeMap::new(),
            lose: Box::new(|_| false),
        }
    }

    /// Ticks the named members, then lets everybody work until nothing is left to do.
    fn tick(&mut self, ids: &[u64]) {
        self.now += TICK;
        for id in ids {
            if let Some(member) = self.members.get_mut(id) {
                member.node.step(Mono(self.now), Input::Tick);
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        while self.turn() {}
    }

    /// Lets everybody work once, and delivers; whether there is more to do.
    fn turn(&mut self) -> bool {
        let mut sent = VecDeque::new();
        let mut idle = true;
        for (id, member) in &mut self.members {
            let effects = member.node.advance(Mono(self.now));
            let mut jobs = effects.wal;
            if let Some(held) = self.hanging.get_mut(id) {
                held.append(&mut jobs);
            }
            idle &= effects.messages.is_empty() && jobs.is_empty() && effects.store.is_empty() && !effects.busy;
            sent.extend(effects.messages);
            append_all(&mut member.wal, &jobs).unwrap();
            member.wal.sync().unwrap();
            for job in jobs {
                member.node.step(Mono(self.now), Input::WalDone(job));
            }
            for job in effects.store {
                let done = job.run().unwrap();
                member.node.step(Mono(self.now), Input::StoreDone(done));
            }
            self.replies.extend(effects.replies.into_values().flatten());
            if let Some(reason) = effects.stopped {
                self.stopped.insert(*id, reason);
            }
        }
        self.members.retain(|id, _| !self.stopped.contains_key(id));
        for message in sent {
            if !(self.lose)(&message)
                && let Some(member) = self.members.get_mut(&message.to)
            {
                member.node.step(Mono(self.now), Input::Peer(message));
            }
        }
        !idle
    }

    /// The disk of a member's log hangs until it is well again.
    fn hang(&mut self, id: u64) {
        self.hanging.insert(id, Vec::new());
    }

    fn recover(&mut self, id: u64) {
        let jobs = self.hanging.remove(&id).unwrap();
        let member = self.members.get_mut(&id).unwrap();
        append_all(&mut member.wal, &jobs).unwrap();
        member.wal.sync().unwrap();
        for job in jobs {
            member.node.step(Mono(self.now), Input::WalDone(job));
        }
        self.settle();
    }

    /// Of those that run, who leads.
    fn leader(&self) -> Option<u64> {
        self.members.iter().find(|(_, member)| member.node.raft().is_leader()).map(|(id, _)| *id)
    }

    /// Ticks until somebody leads.
    fn elect(&mut self, ids: &[u64]) -> u64 {
        for _ in 0..10 * ELECTION_TICKS {
            self.tick(ids);
            if let Some(leader) = self.leader() {
                return leader;
            }
        }
        panic!("nobody leads");
    }

    /// Hands a request in; the slot its answer will come to.
    fn submit(&mut self, id: u64, request: Request) -> u64 {
        let slot = self.hand_in(id, request);
        self.settle();
        slot
    }

    fn hand_in(&mut self, id: u64, request: Request) -> u64 {
        self.next_slot += 1;
        let completion = Completion { runtime: 0, slot: self.next_slot };
        let submission = Submission { request, completion, since: Mono(self.now) };
        self.members.get_mut(&id).unwrap().node.step(Mono(self.now), Input::Submit(submission));
        self.next_slot
    }

    fn put(&mut self, at: u64, key: &str, value: &str) -> u64 {
        let put = PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..PutRequest::default() };
        self.propose(at, InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() })
    }

    /// A member's answer to a serializable read of a key, as the edge gives it beside the node.
    fn get(&self, at: u64, key: &str) -> Result<Vec<Bytes>, RangeError> {
        let key = KeyRange::Single(key.to_owned().into());
        self.members[&at].node.machine().store().reader().range(&key, &RangeOptions::default()).map(|found| found.kvs)
    }

    /// Says in `at`'s name that its store could not be read while a snapshot was made.
    fn damage(&mut self, at: u64) {
        let what = String::from("the record of revision 5.0 does not match");
        self.members.get_mut(&at).unwrap().node.step(Mono(self.now), Input::StoreDamaged(what));
    }

    fn propose(&mut self, at: u64, request: InternalRaftRequest) -> u64 {
        let proposal = self.proposal(at, request);
        self.submit(at, proposal)
    }

    fn proposal(&self, at: u64, request: InternalRaftRequest) -> Request {
        let id = self.members[&at].node.shared().next_id();
        let header = Some(RequestHeader { id, ..RequestHeader::default() });
        let data = InternalRaftRequest { header, ..request }.encode_to_vec().into();
        Request::Propose { id, data, kind: ProposeKind::Normal }
    }
}

/// A deletion that takes longer than an election timeout: the leader goes on leading, readers see all of it or nothing, and
/// who asks for a lease's keys waits until it is whole.
#[test]
fn a_long_entry_keeps_nobody_from_their_work() {
    const KEYS: usize = 5 * ELECTION_TICKS;
    let mut group = Group::with_budget(100);
    let leader = group.elect(&[1, 2, 3]);
    let term = group.members[&leader].node.raft().status().basic.term;
    let grant = LeaseGrantRequest { id: 7, ttl: 1000 };
    group.propose(leader, InternalRaftRequest { lease_grant: Some(grant), ..InternalRaftRequest::default() });
    for at in 0..KEYS {
        let put = PutRequest { key: format!("k{at:03}").into(), lease: 7, ..PutRequest::default() };
        group.propose(leader, InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() });
    }
    let delete = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
    let delete = InternalRaftRequest { delete_range: Some(delete), ..InternalRaftRequest::default() };
    let other = 1 + leader % 3;
    let proposal = group.proposal(other, delete);
    let deleted = group.hand_in(other, proposal);
    let put = PutRequest { key: "behind".into(), ..PutRequest::default() };
    let put = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
    let proposal = group.proposal(leader, put);
    let behind = group.hand_in(leader, proposal);
    let (mut turns, mut asked) = (0, None);
    while !group.replies.contains_key(&deleted) || !group.replies.contains_key(&behind) {
        group.now += TICK;
        for member in group.members.values_mut() {
            member.node.step(Mono(group.now), Input::Tick);
        }
        group.turn();
        turns += 1;
        assert!(turns < 100 * KEYS, "it ends");
        for member in group.members.values() {
            let reader = member.node.machine().store().reader();
            let range = KeyRange::parse("k".into(), "l".into());
            let found = reader.range(&range, &RangeOptions::default()).unwrap();
            assert!([0, KEYS as i64].contains(&found.count) && found.kvs.len() as i64 == found.count);
        }
        let machine = group.members[&leader].node.machine();
        if asked.is_none() && machine.is_busy() && machine.lessor().keys(7).unwrap().count() < KEYS {
            asked = Some(group.hand_in(leader, Request::LeaseTimeToLive { id: 7, keys: true }));
        }
    }
    group.settle();
    assert!(turns > 3 * ELECTION_TICKS, "{turns} turns");
    assert_eq!((group.leader(), group.members[&leader].node.raft().status().basic.term), (Some(leader), term));
    let Some(Reply::LeaseTimeToLive(Ok(lease))) = asked.and_then(|slot| group.replies.remove(&slot)) else {
        panic!("asked midway, and answered");
    };
    assert!(lease.keys.is_empty());
    let Some(Reply::Applied(Ok(dolmen_node::Response::DeleteRange(answer)))) = group.replies.remove(&deleted) else {
        panic!("deleted");
    };
    assert_eq!((answer.deleted, answer.prev_kvs.len()), (KEYS as i64, KEYS));
    for id in [1, 2, 3] {
        assert_eq!(group.get(id, "k000").unwrap().len(), 0);
        assert_eq!(group.get(id, "behind").unwrap().len(), 1);
    }
}

#[test]
fn writes_go_on_when_leadership_cannot_be_handed_over() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    let dead = if leader == 3 { 2 } else { 3 };
    let other = 6 - leader - dead;
    group.members.remove(&dead);
    group.submit(leader, Request::MoveLeader { target: dead });
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    let slot = group.propose(leader, InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() });
    assert!(!group.replies.contains_key(&slot), "a leader that hands over proposes nothing");
    for _ in 0..2 * ELECTION_TICKS {
        group.tick(&[leader, other]);
    }
    assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Ok(_)))), "given up after an election timeout");
}

#[test]
fn a_change_of_the_membership_is_answered_when_it_is_in_force() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    let follower = if leader == 1 { 2 } else { 1 };
    let member = Member { id: 4, peer_urls: vec!["http://n4:2380".into()], is_learner: true, ..Member::default() };
    let context = dolmen_machine::ConfChangeContext { member, is_promote: false }.to_json();
    let r#type = ConfChangeType::ConfChangeAddLearnerNode as i32;
    let id = group.members[&follower].node.shared().next_id();
    let slot =
        group.submit(follower, Request::ChangeMembers { change: ConfChange { id, r#type, node_id: 4, context } });
    group.tick(&[1, 2, 3]);
    assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Ok(_)))));
    assert_eq!(group.members[&follower].node.machine().conf_state().learners, [4]);
}

#[test]
fn a_leader_whose_log_hangs_makes_room_and_comes_back() {
    // Whether anybody asks for more after the write that hangs.
    for busy in [false, true] {
        let mut group = Group::new();
        let old = group.elect(&[1, 2, 3]);
        group.hang(old);
        let stuck = group.put(old, "k", "v");
        for tick in 0..2 * ELECTION_TICKS {
            if busy && tick % 3 == 0 {
                group.put(old, "l", "v");
            }
            group.tick(&[1, 2, 3]);
        }
        let new = group.members.iter().find(|(id, m)| **id != old && m.node.raft().is_leader()).map(|(id, _)| *id);
        let new = new.expect("another leads within two election timeouts");
        let slot = group.put(new, "m", "v");
        assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Ok(_)))));
        assert!(!group.replies.contains_key(&stuck), "its own log does not hold it");
        group.recover(old);
        group.tick(&[1, 2, 3]);
        assert!(matches!(group.replies.get(&stuck), Some(Reply::Applied(Ok(_)))), "done, and once");
        assert_eq!(group.get(old, "m").unwrap().len(), 1);
        group.submit(new, Request::MoveLeader { target: old });
        group.tick(&[1, 2, 3]);
        assert_eq!(group.leader(), Some(old), "it is as good as any");
    }
}

#[test]
fn a_leader_stays_when_everybodys_log_hangs() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    let term = group.members[&leader].node.raft().term();
    for id in [1, 2, 3] {
        group.hang(id);
    }
    let slot = group.put(leader, "k", "v");
    for _ in 0..10 * ELECTION_TICKS {
        group.tick(&[1, 2, 3]);
    }
    assert_eq!((group.leader(), group.members[&leader].node.raft().term()), (Some(leader), term));
    for id in [1, 2, 3] {
        group.recover(id);
    }
    assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Ok(_)))));
}

/// Tells everybody that is left of a process that has died.
fn show_death(group: &mut Group, id: u64) {
    group.members.remove(&id);
    for member in group.members.values_mut() {
        member.node.step(Mono(group.now), Input::PeerGone(id));
    }
    group.settle();
}

/// Time passes, and no tick.
fn pass(group: &mut Group, ticks: u64) {
    for _ in 0..ticks {
        group.now += TICK;
        group.settle();
    }
}

fn all_are_dolmens(group: &mut Group) {
    for member in group.members.values_mut() {
        for id in [1, 2, 3] {
            member.node.step(Mono(group.now), Input::PeerIsDolmen(id, true));
        }
    }
}

#[test]
fn a_leader_whose_process_has_died_is_followed_without_a_timeout() {
    let mut group = Group::new();
    let old = group.elect(&[1, 2, 3]);
    show_death(&mut group, old);
    pass(&mut group, 50);
    let new = group.leader().expect("no tick has passed, but a moment");
    let slot = group.put(new, "k", "v");
    assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Ok(_)))));
}

#[test]
fn a_leader_that_others_hear_is_not_deposed_by_a_hint() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    let term = group.members[&leader].node.raft().term();
    let misled = if leader == 1 { 2 } else { 1 };
    for _ in 0..3 {
        let node = &mut group.members.get_mut(&misled).unwrap().node;
        node.step(Mono(group.now), Input::PeerGone(leader));
        group.settle();
        pass(&mut group, 100);
        for _ in 0..2 * ELECTION_TICKS {
            group.tick(&[1, 2, 3]);
        }
        assert_eq!((group.leader(), group.members[&leader].node.raft().term()), (Some(leader), term));
        let slot = group.put(misled, "k", "v");
        assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Ok(_)))), "it has heard the leader again");
    }
}

/// A put that its leader took along is done by the next one, once, without its caller asking again.
#[test]
fn what_a_dead_leader_took_along_is_done_once() {
    // Whether the leader had passed the entry on before it died.
    for arrived in [false, true] {
        let mut group = Group::new();
        let old = group.elect(&[1, 2, 3]);
        all_are_dolmens(&mut group);
        let at = if old == 1 { 2 } else { 1 };
        let lost = if arrived { MessageType::MsgAppResp } else { MessageType::MsgProp };
        group.lose = Box::new(move |message| message.r#type == lost as i32);
        let slot = group.put(at, "k", "v");
        assert!(!group.replies.contains_key(&slot));
        group.lose = Box::new(|_| false);
        show_death(&mut group, old);
        pass(&mut group, 50);
        assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Ok(_)))), "arrived: {arrived}");
        let found = group.get(at, "k").unwrap();
        let kv = dolmen_proto::mvccpb::KeyValue::decode(found[0].clone()).unwrap();
        assert_eq!(kv.version, 1);
    }
}

/// A member of etcd may do at any time what it was passed: its caller is told that nobody knows.
#[test]
fn beside_a_member_of_etcd_nothing_is_proposed_again() {
    let mut group = Group::new();
    let old = group.elect(&[1, 2, 3]);
    all_are_dolmens(&mut group);
    let at = if old == 1 { 2 } else { 1 };
    let member = &mut group.members.get_mut(&at).unwrap().node;
    member.step(Mono(group.now), Input::PeerIsDolmen(old, false));
    group.lose = Box::new(|message| message.r#type == MessageType::MsgProp as i32);
    let slot = group.put(at, "k", "v");
    group.lose = Box::new(|_| false);
    group.members.remove(&old);
    let rest: Vec<u64> = group.members.keys().copied().collect();
    group.elect(&rest);
    group.tick(&rest);
    assert!(!group.replies.contains_key(&slot));
    group.now += 6_000_000_000;
    group.tick(&rest);
    let Some(Reply::Applied(Err(error))) = group.replies.get(&slot) else { panic!("an answer") };
    assert_eq!(*error, RequestError::TimeoutLeaderFailure);
}

/// A proposal is good in the term it was passed on in, at the member it was passed to.
#[test]
fn a_proposal_of_another_term_is_not_taken_and_none_is_passed_on_twice() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    let term = group.members[&leader].node.raft().term();
    let (follower, other) = if leader == 1 { (2, 3) } else { (1, if leader == 2 { 3 } else { 2 }) };
    let last = |group: &Group| dolmen_raft::Storage::last_index(group.members[&leader].node.raft().storage());
    let passed_on = |to, sent_term| Message {
        r#type: MessageType::MsgProp as i32,
        from: other,
        to,
        entries: vec![dolmen_proto::raftpb::Entry::default()],
        sent_term,
        ..Message::default()
    };
    let before = last(&group);
    for (to, sent_term, taken) in
        [(leader, term - 1, 0), (leader, term + 1, 0), (follower, term, 0), (leader, term, 1), (leader, 0, 2)]
    {
        let node = &mut group.members.get_mut(&to).unwrap().node;
        node.step(Mono(group.now), Input::Peer(passed_on(to, sent_term)));
        group.settle();
        assert_eq!(last(&group) - before, taken, "passed to {to} in term {sent_term}");
    }
}

#[test]
fn a_new_leader_does_not_deny_a_lease_that_it_has_not_applied_yet() {
    let mut group = Group::new();
    let old = group.elect(&[1, 2, 3]);
    for _ in 0..3 {
        group.tick(&[1, 2, 3]);
    }
    // The followers store the grant and do not hear that it is committed.
    group.lose = Box::new(move |message| message.from == old && message.entries.is_empty());
    let lease_grant = Some(LeaseGrantRequest { id: 42, ttl: 60 });
    let slot = group.propose(old, InternalRaftRequest { lease_grant, ..InternalRaftRequest::default() });
    assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Ok(_)))));
    group.members.remove(&old);
    // One of them leads, but nobody tells it that anything it sends is stored.
    group.lose = Box::new(|message| message.r#type == MessageType::MsgAppResp as i32);
    let rest: Vec<u64> = group.members.keys().copied().collect();
    let new = group.elect(&rest);
    assert!(!group.members[&new].node.machine().lessor().contains(42), "the grant is not applied yet");
    let renewed = group.submit(new, Request::LeaseRenew { id: 42 });
    let asked = group.submit(new, Request::LeaseTimeToLive { id: 42, keys: false });
    assert!(!group.replies.contains_key(&renewed) && !group.replies.contains_key(&asked));
    group.lose = Box::new(|_| false);
    for _ in 0..3 {
        group.tick(&rest);
    }
    assert!(matches!(group.replies.get(&renewed), Some(Reply::LeaseRenewed(Ok(60)))));
    let Some(Reply::LeaseTimeToLive(Ok(left))) = group.replies.get(&asked) else { panic!("an answer") };
    assert_eq!(left.granted_ttl, 60);
}

#[test]
fn renewals_beside_the_loop_end_with_certainty() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    for _ in 0..3 {
        group.tick(&[1, 2, 3]);
    }
    let lease_grant = Some(LeaseGrantRequest { id: 42, ttl: 60 });
    group.propose(leader, InternalRaftRequest { lease_grant, ..InternalRaftRequest::default() });
    let renew =
        |group: &Group, at: u64, later: u64| group.members[&at].node.shared().renew_lease(42, Mono(group.now + later));
    assert_eq!(renew(&group, leader, 2 * TICK), Some(60));
    let follower = group.members.keys().copied().find(|id| *id != leader).unwrap();
    assert_eq!(renew(&group, follower, 0), None, "only the leader knows deadlines");
    assert_eq!(renew(&group, leader, 3 * TICK), None, "this process may have been paused, and replaced");
    group.now += 5 * TICK;
    group.lose = Box::new(|_| true);
    group.tick(&[leader]);
    assert_eq!(renew(&group, leader, 0), None, "it was paused, and no quorum has said that it leads");
    let asked = group.submit(leader, Request::LeaseTimeToLive { id: 42, keys: true });
    assert!(!group.replies.contains_key(&asked), "what it knows of a lease may be old as well");
    group.lose = Box::new(|_| false);
    for _ in 0..3 {
        group.tick(&[1, 2, 3]);
    }
    assert!(matches!(group.replies.get(&asked), Some(Reply::LeaseTimeToLive(Ok(_)))));
    assert_eq!(renew(&group, leader, 0), Some(60));

    // Asked to stop, it renews nothing; neither does one that was replaced.
    group.submit(leader, Request::MoveLeader { target: follower });
    group.tick(&[1, 2, 3]);
    assert_eq!(group.leader(), Some(follower));
    assert_eq!(renew(&group, leader, 0), None);
    assert_eq!(renew(&group, follower, 0), None, "a new leader has given it more time than a renewal gives");
    let renewed = group.submit(follower, Request::LeaseRenew { id: 42 });
    assert!(matches!(group.replies.get(&renewed), Some(Reply::LeaseRenewed(Ok(60)))));
    assert_eq!(renew(&group, follower, 0), Some(60));
    let stopping = &mut group.members.get_mut(&follower).unwrap().node;
    stopping.step(Mono(group.now), Input::Stop { transfer: false });
    stopping.advance(Mono(group.now));
    assert_eq!(renew(&group, follower, 0), None);
}

const DAMAGE: &str = "cannot make a snapshot: the record of revision 5.0 does not match";

#[test]
fn a_follower_that_can_make_no_snapshot_stops() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    let follower = if leader == 1 { 2 } else { 1 };
    group.damage(follower);
    group.settle();
    assert!(matches!(&group.stopped[&follower], StopReason::Fatal(what) if what == DAMAGE));
    assert_eq!(group.leader(), Some(leader), "the others go on");
}

#[test]
fn a_leader_with_a_damaged_store_hands_over_before_it_stops() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    group.put(leader, "k", "v");
    group.damage(leader);
    let refused = group.put(leader, "k", "w");
    assert!(matches!(group.replies.get(&refused), Some(Reply::Applied(Err(RequestError::Stopped)))));
    // No tick has passed: nobody waited for an election.
    let StopReason::Fatal(what) = &group.stopped[&leader] else { panic!("it says what it found") };
    assert_eq!(what, DAMAGE);
    let next = group.leader().expect("leadership was handed over");
    let slot = group.put(next, "k", "x");
    assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Ok(_)))));
}

#[test]
fn a_damaged_leader_that_cannot_hand_over_stops_all_the_same() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    group.lose = Box::new(|message| message.r#type == MessageType::MsgTimeoutNow as i32);
    group.damage(leader);
    let read = group.submit(leader, Request::ReadIndex);
    assert!(matches!(group.replies.get(&read), Some(Reply::ReadReady(Err(RequestError::Stopped)))));
    let mut ticks = 0;
    while group.stopped.is_empty() {
        ticks += 1;
        assert!(ticks <= ELECTION_TICKS, "it waits no longer than the others' election would take");
        assert_eq!(group.members[&leader].node.damage(), Some(DAMAGE));
        group.tick(&[1, 2, 3]);
    }
    assert!(ticks > 1, "it has tried");
    assert!(matches!(&group.stopped[&leader], StopReason::Fatal(what) if what == DAMAGE));
    let rest: Vec<u64> = group.members.keys().copied().collect();
    group.lose = Box::new(|_| false);
    assert_ne!(group.elect(&rest), leader);

    // With nobody who has kept up there is nothing to try.
    let last = group.leader().unwrap();
    group.members.retain(|id, _| *id == last);
    for _ in 0..2 * ELECTION_TICKS {
        group.tick(&[last]);
    }
    group.damage(last);
    group.settle();
    assert!(group.stopped.contains_key(&last));
}

/// A transaction that comes upon a damaged record midway: nobody sees the half of it, and the others apply it whole.
#[test]
fn damage_found_while_applying_shows_nothing_and_hands_over() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    let mark = "a value that stands alone";
    group.put(leader, "a", mark);
    for n in 0..40 {
        group.put(leader, "other", &format!("{n} {}", "x".repeat(200)));
    }
    for _ in 0..3 {
        group.tick(&[1, 2, 3]);
    }
    // The process starts anew over a store with a flipped bit in a sealed segment, which it has no reason to read.
    let disk = group.disks[&leader].clone();
    group.members.remove(&leader);
    let dir = Layout::new(Path::new("/data"), None).store();
    let place = |name: &String| {
        let bytes = disk.read(&dir.join(name)).unwrap();
        bytes.windows(mark.len()).position(|window| window == mark.as_bytes())
    };
    let names = disk.read_dir(&dir).unwrap();
    let (name, at) = names.iter().find_map(|name| Some((name, place(name)?))).expect("the value is in a file");
    disk.flip_bit(&dir.join(name), at as u64 * 8).unwrap();
    group.members.insert(leader, Turned::start(leader, &disk, group.now));
    for _ in 0..3 * ELECTION_TICKS {
        group.tick(&[1, 2, 3]);
    }
    let leads = group.leader().unwrap();
    if leads != leader {
        group.submit(leads, Request::MoveLeader { target: leader });
        for _ in 0..3 {
            group.tick(&[1, 2, 3]);
        }
    }
    assert_eq!(group.leader(), Some(leader));

    group.lose = Box::new(|message| message.r#type == MessageType::MsgTimeoutNow as i32);
    let op = |request| Some(RequestOp { request: Some(request) });
    let put = PutRequest { key: "b".into(), value: "w".into(), ..PutRequest::default() };
    let range = RangeRequest { key: "a".into(), ..RangeRequest::default() };
    let success = [op(Op::RequestPut(put)), op(Op::RequestRange(range))].into_iter().flatten().collect();
    let txn = Some(TxnRequest { success, ..TxnRequest::default() });
    let slot = group.propose(leader, InternalRaftRequest { txn, ..InternalRaftRequest::default() });
    let node = &group.members[&leader].node;
    assert!(node.damage().is_some_and(|what| what.contains("does not match its checksum")), "{:?}", node.damage());
    assert!(!group.replies.contains_key(&slot), "its outcome is not known here");
    assert_eq!(group.get(leader, "b").unwrap(), Vec::<Bytes>::new(), "half a transaction is never seen");
    assert!(group.get(leader, "a").is_err(), "a damaged value is never given");
    group.tick(&[1, 2, 3]);
    assert_eq!(group.get(leader, "b").unwrap(), Vec::<Bytes>::new());

    let others: Vec<u64> = group.members.keys().copied().filter(|id| *id != leader).collect();
    for _ in 0..ELECTION_TICKS {
        group.tick(&[1, 2, 3]);
    }
    assert!(matches!(group.stopped.get(&leader), Some(StopReason::Fatal(_))));
    assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Err(RequestError::Stopped)))));
    group.lose = Box::new(|_| false);
    group.elect(&others);
    for id in others {
        assert_eq!(group.get(id, "b").unwrap().len(), 1, "n{id} has applied it");
        assert_eq!(group.get(id, "a").unwrap().len(), 1);
    }
}

/// What a leader decided about a lease and could not propose is forgotten with its leadership: the next leader may have
/// renewed the lease since (etcd issue 17465).
#[test]
fn a_leader_that_was_replaced_revokes_nothing() {
    let mut group = Group::new();
    let old = group.elect(&[1, 2, 3]);
    for _ in 0..3 {
        group.tick(&[1, 2, 3]);
    }
    let lease_grant = Some(LeaseGrantRequest { id: 42, ttl: 1 });
    group.propose(old, InternalRaftRequest { lease_grant, ..InternalRaftRequest::default() });
    let target = if old == 1 { 2 } else { 1 };
    // While it hands over nothing is proposed, and the lease expires meanwhile.
    group.lose = Box::new(|message| message.r#type == MessageType::MsgTimeoutNow as i32);
    group.submit(old, Request::MoveLeader { target });
    group.now += 3_000_000_000;
    group.tick(&[old]);
    let others: Vec<u64> = [1, 2, 3].into_iter().filter(|id| *id != old).collect();
    group.lose = Box::new(move |message| message.from == old && message.r#type != MessageType::MsgProp as i32);
    for _ in 0..10 * ELECTION_TICKS {
        group.tick(&others);
        if others.iter().any(|id| group.members[id].node.raft().is_leader()) {
            break;
        }
    }
    group.lose = Box::new(|_| false);
    for _ in 0..3 {
        group.tick(&[1, 2, 3]);
    }
    assert_ne!(group.leader(), Some(old));
    for (id, member) in &group.members {
        assert!(member.node.machine().lessor().contains(42), "n{id} holds the lease that the new leader keeps");
    }
}

#[test]
fn what_could_not_be_applied_is_refused_before_it_is_in_the_log() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    let from = if leader == 1 { 2 } else { 1 };
    let before = group.members[&leader].node.raft().storage().last_index();
    let entry = |r#type: EntryType, data: &'static [u8]| Entry {
        r#type: r#type as i32,
        data: Bytes::from_static(data),
        ..Entry::default()
    };
    for bad in [
        entry(EntryType::EntryNormal, b"no request"),
        entry(EntryType::EntryConfChange, b"no change"),
        entry(EntryType::EntryConfChangeV2, b""),
        Entry { r#type: 77, ..Entry::default() },
    ] {
        for at in [leader, from] {
            let r#type = MessageType::MsgProp as i32;
            let message = Message { r#type, from, to: at, entries: vec![bad.clone()], ..Message::default() };
            group.members.get_mut(&at).unwrap().node.step(Mono(group.now), Input::Peer(message));
            group.settle();
        }
    }
    assert!(group.stopped.is_empty(), "{:?}", group.stopped);
    assert_eq!(group.members[&leader].node.raft().storage().last_index(), before);
    let slot = group.put(from, "k", "v");
    group.tick(&[1, 2, 3]);
    assert!(matches!(group.replies.get(&slot), Some(Reply::Applied(Ok(_)))));
}

#[test]
fn a_snapshot_that_raft_ignores_leaves_no_file() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    let follower = if leader == 1 { 2 } else { 1 };
    let term = group.members[&leader].node.raft().basic_status().term;
    let now = Mono(group.now);
    let node = &mut group.members.get_mut(&follower).unwrap().node;
    // One of an earlier term, and one of what it has already.
    for (number, (term, index)) in [(term - 1, 1_000), (term, 1)].into_iter().enumerate() {
        let metadata = Some(SnapshotMetadata { conf_state: None, index, term });
        let snapshot = Some(Snapshot { data: Bytes::new(), metadata });
        let r#type = MessageType::MsgSnap as i32;
        let message = Message { r#type, from: leader, to: follower, term, snapshot, ..Message::default() };
        let path = Path::new("/data/member/snap").join(format!("{number}.snap.db"));
        node.step(now, Input::PeerSnapshot(message, path.clone()));
        assert_eq!(node.advance(now).remove, [path]);
    }
}
