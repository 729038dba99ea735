//! The node turned by hand: three members on simulated disks, every message and answer in the test's hands.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use dolmen_env::{Mono, SimDisk};
use dolmen_node::driver::append_all;
use dolmen_node::{
    Bootstrap, Completion, Config, Input, Layout, Member, Node, ProposeKind, Reply, Request, StartOptions, Started,
    StopReason, Submission,
};
use dolmen_proto::etcdserverpb::{InternalRaftRequest, LeaseGrantRequest, PutRequest, RequestHeader};
use dolmen_proto::raftpb::{Message, MessageType};
use dolmen_wal::{Wal, WalOptions};
use prost::Message as _;

const TICK: u64 = 10_000_000;
const ELECTION_TICKS: usize = 10;

struct Turned {
    node: Node,
    wal: Wal,
}

struct Group {
    now: u64,
    members: BTreeMap<u64, Turned>,
    replies: BTreeMap<u64, Reply>,
    next_slot: u64,
    /// Messages for which this holds are lost.
    lose: Box<dyn Fn(&Message) -> bool>,
}

impl Group {
    fn new() -> Self {
        let peer = |id| Member { id, peer_urls: vec![format!("http://n{id}:2380")], ..Member::default() };
        let members = [1, 2, 3].map(|id| {
            let options = StartOptions {
                layout: Layout::new(Path::new("/data"), None),
                bootstrap: Bootstrap::New { members: [1, 2, 3].map(peer).to_vec() },
                machine: dolmen_machine::Config {
                    lease: dolmen_lease::Config::default(),
                    log: dolmen_revlog::Options::default(),
                },
                wal: WalOptions { segment_bytes: 1 << 16 },
            };
            let config = Config {
                member_id: id,
                cluster_id: 7,
                name: format!("n{id}"),
                client_urls: Vec::new(),
                tick_nanos: TICK,
                election_ticks: ELECTION_TICKS,
                pre_vote: true,
                snapshot_count: 1000,
                catch_up_entries: 100,
                max_request_bytes: 1 << 20,
                progress_notify_nanos: 1 << 40,
                priority_request: true,
                seed: id,
                incarnation: 1,
            };
            let started = dolmen_node::start(Arc::new(SimDisk::new(id)), &options, config, Mono(0)).unwrap();
            let Started { node, wal, lock: _ } = started;
            (id, Turned { node, wal })
        });
        Self { now: 0, members: members.into(), replies: BTreeMap::new(), next_slot: 0, lose: Box::new(|_| false) }
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
        let mut sent = VecDeque::new();
        loop {
            let mut idle = true;
            for member in self.members.values_mut() {
                let effects = member.node.advance(Mono(self.now));
                idle &= effects.messages.is_empty() && effects.wal.is_empty() && effects.store.is_empty();
                sent.extend(effects.messages);
                append_all(&mut member.wal, &effects.wal).unwrap();
                member.wal.sync().unwrap();
                for job in effects.wal {
                    member.node.step(Mono(self.now), Input::WalDone(job));
                }
                for job in effects.store {
                    let done = job.run().unwrap();
                    member.node.step(Mono(self.now), Input::StoreDone(done));
                }
                self.replies.extend(effects.replies.into_values().flatten());
                assert!(effects.stopped.is_none());
            }
            if idle && sent.is_empty() {
                return;
            }
            for message in sent.drain(..) {
                if !(self.lose)(&message)
                    && let Some(member) = self.members.get_mut(&message.to)
                {
                    member.node.step(Mono(self.now), Input::Peer(message));
                }
            }
        }
    }

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
        self.next_slot += 1;
        let completion = Completion { runtime: 0, slot: self.next_slot };
        let submission = Submission { request, completion, since: Mono(self.now) };
        self.members.get_mut(&id).unwrap().node.step(Mono(self.now), Input::Submit(submission));
        self.settle();
        self.next_slot
    }

    fn propose(&mut self, at: u64, request: InternalRaftRequest) -> u64 {
        let id = self.members[&at].node.shared().next_id();
        let header = Some(RequestHeader { id, ..RequestHeader::default() });
        let data = InternalRaftRequest { header, ..request }.encode_to_vec().into();
        self.submit(at, Request::Propose { id, data, kind: ProposeKind::Normal })
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
    group.lose = Box::new(|_| false);
    for _ in 0..3 {
        group.tick(&[1, 2, 3]);
    }
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

#[test]
fn a_member_that_can_make_no_snapshot_stops() {
    let mut group = Group::new();
    let leader = group.elect(&[1, 2, 3]);
    let member = &mut group.members.get_mut(&leader).unwrap().node;
    member.step(Mono(group.now), Input::StoreDamaged("the record of revision 5.0 does not match".into()));
    let Some(StopReason::Fatal(text)) = member.advance(Mono(group.now)).stopped else { panic!("goes on") };
    assert_eq!(text, "cannot make a snapshot: the record of revision 5.0 does not match");
    group.members.remove(&leader);
    let rest: Vec<u64> = group.members.keys().copied().collect();
    assert_ne!(group.elect(&rest), leader, "the others go on");
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
