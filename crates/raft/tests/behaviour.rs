//! Rules one at a time: bounds, reads, the doors, and the ways in which this crate is stricter than the library it
//! follows.

#[path = "support/cluster.rs"]
#[allow(dead_code)]
mod cluster;

use bytes::Bytes;
use cluster::Member;
use dolmen_proto::raftpb::{
    ConfChange, ConfChangeType, ConfState, Entry, EntryType, HardState, Message, MessageType, Snapshot,
    SnapshotMetadata,
};
use dolmen_raft::{
    Config, Error, LOCAL_APPEND_THREAD, LOCAL_APPLY_THREAD, MemoryStorage, RawNode, ReadOnlyOption, ReadState, Role,
};

use MessageType::*;

/// The term of the first leader.
const TERM: u64 = 2;

/// Members that begin at index 2 of term 1, all messages delivered at once and in order.
struct Group {
    members: Vec<Member>,
    /// Messages matching it are lost.
    lose: fn(&Message) -> bool,
}

fn storage(voters: &[u64], learners: &[u64]) -> MemoryStorage {
    let members = ConfState { voters: voters.to_vec(), learners: learners.to_vec(), ..ConfState::default() };
    let metadata = SnapshotMetadata { conf_state: Some(members), index: 2, term: 1 };
    let mut storage = MemoryStorage::new();
    storage.apply_snapshot(Snapshot { metadata: Some(metadata), ..Snapshot::default() }).unwrap();
    storage.set_hard_state(HardState { term: 1, vote: 0, commit: 2 });
    storage
}

impl Group {
    fn new(voters: &[u64], learners: &[u64], adjust: impl Fn(&mut Config)) -> Self {
        let members = voters
            .iter()
            .chain(learners)
            .map(|&id| {
                let mut config = Config::new(id);
                adjust(&mut config);
                Member::start(config, storage(voters, learners))
            })
            .collect();
        Self { members, lose: |_| false }
    }

    /// Voters 1 to 3, led by 1.
    fn led(adjust: impl Fn(&mut Config)) -> Self {
        let mut group = Self::new(&[1, 2, 3], &[], adjust);
        group.node(1).campaign().unwrap();
        group.settle();
        assert!(group.node(1).is_leader());
        group
    }

    fn node(&mut self, id: u64) -> &mut RawNode<MemoryStorage> {
        &mut self.members[id as usize - 1].node
    }

    fn settle(&mut self) {
        loop {
            let mut sent = Vec::new();
            for member in &mut self.members {
                sent.extend(member.work());
                sent.extend(member.finish_append());
                sent.extend(member.finish_apply());
            }
            if sent.is_empty() && self.members.iter().all(|member| !member.node.has_ready()) {
                return;
            }
            for message in sent {
                if !(self.lose)(&message)
                    && let Some(member) = self.members.iter_mut().find(|member| member.id() == message.to)
                {
                    member.node.step(message).unwrap();
                }
            }
        }
    }

    fn reads(&mut self, id: u64) -> Vec<ReadState> {
        std::mem::take(&mut self.members[id as usize - 1].reads)
    }
}

fn message(kind: MessageType, from: u64, to: u64, term: u64) -> Message {
    Message { r#type: kind as i32, from, to, term, ..Message::default() }
}

fn is(message: &Message, kind: MessageType) -> bool {
    message.r#type == kind as i32
}

fn entry(index: u64, term: u64) -> Entry {
    Entry { index, term, ..Entry::default() }
}

#[test]
fn uncommitted_bytes_are_bounded() {
    let mut group = Group::led(|config| config.max_uncommitted_entries_size = 10);
    group.lose = |_| true;
    let node = group.node(1);
    // Whatever its size, the first is taken; then the bound holds; empty payloads always pass.
    node.propose(Bytes::from(vec![0; 50])).unwrap();
    assert_eq!(node.propose(Bytes::from_static(b"x")), Err(Error::ProposalDropped));
    node.propose(Bytes::new()).unwrap();
    group.settle();
    group.lose = |_| false;
    group.node(1).tick();
    group.settle();
    group.node(1).propose(Bytes::from_static(b"x")).unwrap();
}

#[test]
fn a_batch_is_one_append_and_shares_payloads() {
    let mut group = Group::led(|_| {});
    let payloads: Vec<Bytes> = (0..100).map(|i| Bytes::from(vec![i; 100])).collect();
    let entries = payloads.iter().map(|data| Entry { data: data.clone(), ..Entry::default() }).collect();
    group.node(1).propose_entries(entries).unwrap();
    let ready = group.node(1).ready();
    let shared = |entries: &[Entry]| {
        entries.iter().zip(&payloads).all(|(entry, payload)| entry.data.as_ptr() == payload.as_ptr())
    };
    assert_eq!((ready.entries.len(), shared(&ready.entries)), (100, true));
    assert_eq!(ready.messages.len(), 2);
    for append in &ready.messages {
        assert!(is(append, MsgApp) && append.entries.len() == 100 && shared(&append.entries));
    }
}

#[test]
fn messages_in_flight_are_bounded_in_number_and_bytes() {
    for (max_inflight_msgs, max_inflight_bytes, sent) in [(3, 0, 3), (100, 40, 4), (100, 41, 5)] {
        let mut group = Group::led(|config| {
            config.max_inflight_msgs = max_inflight_msgs;
            config.max_inflight_bytes = max_inflight_bytes;
            config.max_size_per_msg = 0;
        });
        let node = group.node(1);
        for _ in 0..10 {
            node.propose(Bytes::from(vec![0; 10])).unwrap();
        }
        let appends = node.ready().messages.into_iter().filter(|append| append.to == 2 && !append.entries.is_empty());
        assert_eq!(appends.count(), sent);
    }
}

#[test]
fn a_follower_catches_up_in_messages_of_bounded_size() {
    let mut group = Group::led(|config| config.max_size_per_msg = 40);
    group.lose = |message| message.to == 3;
    for _ in 0..20 {
        group.node(1).propose(Bytes::from(vec![0; 10])).unwrap();
        group.settle();
    }
    assert!(group.node(3).raft().last_index() < group.node(1).raft().last_index());
    group.lose = |message| is(message, MsgApp) && message.entries.len() > 3;
    for _ in 0..20 {
        group.node(1).tick();
        group.settle();
    }
    assert_eq!(group.node(3).raft().last_index(), group.node(1).raft().last_index());
}

#[test]
fn reads_are_confirmed_by_a_quorum() {
    let mut group = Group::led(|_| {});
    let committed = group.node(1).committed();
    for id in [1, 2] {
        let request_ctx = Bytes::from(vec![id as u8]);
        group.node(id).read_index(request_ctx.clone());
        group.settle();
        assert_eq!(group.reads(id), [ReadState { index: committed, request_ctx }]);
    }
    group.lose = |message| is(message, MsgHeartbeatResp);
    group.node(1).read_index(Bytes::from_static(b"lost"));
    group.settle();
    assert_eq!(group.reads(1), []);
    // The next round confirms what the lost one did not.
    group.lose = |_| false;
    group.node(1).tick();
    group.settle();
    assert_eq!(group.reads(1).len(), 1);
}

#[test]
fn lease_based_reads_ask_nobody() {
    let mut group = Group::led(|config| config.read_only_option = ReadOnlyOption::LeaseBased);
    group.lose = |_| true;
    group.node(1).read_index(Bytes::from_static(b"r"));
    group.settle();
    assert_eq!(group.reads(1).len(), 1);
}

#[test]
fn reads_wait_until_the_leader_knows_the_commit_index() {
    let mut group = Group::new(&[1, 2, 3], &[], |_| {});
    group.lose = |message| is(message, MsgAppResp);
    group.node(1).campaign().unwrap();
    group.settle();
    assert!(group.node(1).is_leader());
    group.node(1).read_index(Bytes::from_static(b"early"));
    group.settle();
    assert_eq!(group.reads(1), []);
    group.lose = |_| false;
    group.node(1).tick();
    group.settle();
    let reads = group.reads(1);
    assert_eq!((reads.len(), reads[0].index), (1, 3));
}

/// After a restart the only voter may hold entries that it committed and answered for without having written that down.
#[test]
fn the_only_voter_answers_no_read_before_it_knows_the_commit_index() {
    let mut storage = storage(&[1], &[]);
    storage.append(vec![Entry { term: 1, index: 3, data: "acknowledged".into(), ..Entry::default() }]).unwrap();
    let mut member = Member::start(Config::new(1), storage);
    member.node.campaign().unwrap();
    for _ in 0..4 {
        if !member.node.is_leader() {
            member.work();
            member.finish_append();
        }
    }
    assert!(member.node.is_leader());
    member.node.read_index(Bytes::from_static(b"early"));
    for _ in 0..4 {
        member.work();
        member.finish_append();
        member.finish_apply();
    }
    let indexes: Vec<u64> = member.reads.iter().map(|read| read.index).collect();
    assert_eq!(indexes, [4], "behind entry 3 and the leader's own");
}

#[test]
fn a_late_echo_confirms_only_what_came_before_it() {
    let mut group = Group::led(|_| {});
    let node = group.node(1);
    node.read_index(Bytes::from_static(b"same"));
    let ready = node.ready();
    let echo = |beat: &Message| Message { context: beat.context.clone(), ..message(MsgHeartbeatResp, 2, 1, beat.term) };
    let beats: Vec<_> = ready.messages.iter().filter(|beat| is(beat, MsgHeartbeat)).cloned().collect();
    node.advance(ready);
    node.step(echo(&beats[0])).unwrap();
    let ready = node.ready();
    assert_eq!(ready.read_states.len(), 1);
    node.advance(ready);
    // The same context again: what is still on its way from the first round proves nothing about it.
    node.read_index(Bytes::from_static(b"same"));
    node.step(Message { from: 3, ..echo(&beats[1]) }).unwrap();
    node.step(echo(&beats[0])).unwrap();
    assert!(node.ready().read_states.is_empty());
}

/// A removed leader that leads on does not take the one voter that is left for itself. (The library this crate follows
/// does, and answers stale.)
#[test]
fn a_removed_leader_asks_the_last_voter() {
    let mut group = Group::new(&[1, 2], &[], |_| {});
    group.node(1).campaign().unwrap();
    group.settle();
    let remove =
        ConfChange { r#type: ConfChangeType::ConfChangeRemoveNode as i32, node_id: 1, ..ConfChange::default() };
    group.node(1).propose_conf_change(&remove).unwrap();
    group.settle();
    assert!(group.node(1).is_leader() && group.node(1).progress().all(|(id, _)| id != 1));
    group.lose = |message| message.to == 1;
    group.node(1).read_index(Bytes::from_static(b"r"));
    group.settle();
    assert_eq!(group.reads(1), []);
    group.lose = |_| false;
    group.node(1).read_index(Bytes::from_static(b"r"));
    group.settle();
    assert_eq!(group.reads(1).len(), 2);
}

#[test]
fn proposals_reach_the_leader_or_are_dropped() {
    let mut group = Group::led(|config| config.disable_proposal_forwarding = config.id == 3);
    group.node(2).propose(Bytes::from_static(b"forwarded")).unwrap();
    assert_eq!(group.node(3).propose(Bytes::from_static(b"kept")), Err(Error::ProposalDropped));
    group.settle();
    assert_eq!(group.node(3).committed(), 4);
    group.node(2).forget_leader();
    assert_eq!(group.node(2).propose(Bytes::from_static(b"whom to?")), Err(Error::ProposalDropped));
}

#[test]
fn learners_follow_and_do_not_stand() {
    let mut group = Group::new(&[1, 2], &[3], |_| {});
    group.node(1).campaign().unwrap();
    group.settle();
    for _ in 0..100 {
        group.node(3).tick();
    }
    assert_eq!((group.node(3).role(), group.node(3).term()), (Role::Follower, TERM));
    assert!(group.node(3).raft().is_learner());
    group.node(1).transfer_leader(3);
    group.settle();
    assert!(group.node(1).is_leader());
    group.node(1).transfer_leader(2);
    group.settle();
    assert_eq!((group.node(2).role(), group.node(3).leader_id()), (Role::Leader, 2));
    assert_eq!(group.node(2).most_caught_up_voter(), Some(1));
}

#[test]
fn a_leader_without_a_quorum_steps_down() {
    let mut group = Group::led(|_| {});
    group.lose = |_| true;
    for _ in 0..20 {
        group.node(1).tick();
        group.settle();
    }
    assert_eq!((group.node(1).role(), group.node(1).leader_id()), (Role::Follower, 0));
}

#[test]
fn heartbeat_contexts_come_back_as_they_came() {
    let mut group = Group::led(|_| {});
    let context = Bytes::from_static(b"any length");
    group.node(2).step(Message { context: context.clone(), ..message(MsgHeartbeat, 1, 2, TERM) }).unwrap();
    let ready = group.node(2).ready();
    assert_eq!((ready.messages.len(), &ready.messages[0].context), (1, &context));
}

#[test]
fn a_log_that_contradicts_the_group_is_reported() {
    let mut group = Group::led(|_| {});
    let beyond = Message { commit: 9, ..message(MsgHeartbeat, 1, 2, TERM) };
    assert_eq!(group.node(2).step(beyond), Err(Error::CommitOutOfRange { commit: 9, last_index: 3 }));
}

#[test]
fn a_member_without_a_term_rejects_in_silence() {
    let mut stored = storage(&[1, 2], &[]);
    stored.set_hard_state(HardState::default());
    let mut node = RawNode::new(&Config::new(1), stored).unwrap();
    node.step(message(MsgPreVote, 2, 1, 1)).unwrap();
    assert!(!node.has_ready());
    node.step(Message { log_term: 1, index: 2, ..message(MsgPreVote, 2, 1, 1) }).unwrap();
    assert_eq!(node.ready().messages.len(), 1);
}

#[test]
fn what_is_committed_is_not_replaced() {
    let mut group = Group::led(|_| {});
    let append =
        |index, log_term, entries, commit| Message { index, log_term, entries, commit, ..message(MsgApp, 1, 2, TERM) };
    group.node(2).step(append(3, TERM, vec![entry(4, TERM)], 4)).unwrap();
    // Another history below the commit index is answered with that index, whatever it holds.
    let other = Message { term: 9, ..append(2, 1, vec![entry(3, 9), entry(4, 9), entry(5, 9)], 5) };
    group.node(2).step(other).unwrap();
    let ready = group.node(2).ready();
    assert_eq!(ready.entries.iter().map(|entry| (entry.index, entry.term)).collect::<Vec<_>>(), [(4, TERM)]);
    assert_eq!(ready.messages.last().map(|answer| (answer.index, answer.reject)), Some((4, false)));
}

#[test]
fn the_wire_door_refuses_what_no_member_sends() {
    let mut group = Group::led(|_| {});
    let term = group.node(1).term();
    let last = group.node(1).raft().last_index();
    let good = |kind| message(kind, 2, 1, term);
    let huge = u64::MAX;
    let conf = |data: &'static [u8]| Entry {
        r#type: EntryType::EntryConfChange as i32,
        data: Bytes::from_static(data),
        ..Entry::default()
    };
    let prop = |entry| Message { entries: vec![entry], ..message(MsgProp, 2, 1, 0) };
    let bad = [
        Message { from: 0, ..good(MsgApp) },
        Message { from: LOCAL_APPEND_THREAD, ..good(MsgAppResp) },
        Message { from: LOCAL_APPLY_THREAD, ..good(MsgVote) },
        Message { from: 1, ..good(MsgAppResp) },
        Message { to: 3, ..good(MsgVote) },
        Message { term: 0, ..good(MsgApp) },
        Message { term: 0, ..good(MsgVote) },
        Message { term: huge, ..good(MsgVote) },
        Message { index: huge, ..good(MsgApp) },
        Message { commit: huge, ..good(MsgHeartbeat) },
        Message { index: last + 1, ..good(MsgAppResp) },
        Message { context: Bytes::from_static(b"short"), ..good(MsgHeartbeatResp) },
        Message { context: Bytes::from_static(&[1, 0, 0, 0, 0, 0, 0, 0]), ..good(MsgHeartbeatResp) },
        Message { responses: vec![Message::default()], ..good(MsgHeartbeat) },
        Message { index: 5, entries: vec![entry(7, 1)], ..good(MsgApp) },
        Message { index: 5, entries: vec![entry(6, 2), entry(7, 1)], term: 2, ..good(MsgApp) },
        Message { index: 5, entries: vec![entry(6, 9)], ..good(MsgApp) },
        Message { index: 5, entries: vec![Entry { r#type: 7, ..entry(6, 1) }], ..good(MsgApp) },
        Message { index: 5, entries: vec![Entry { term: 1, index: 6, ..conf(b"\xff") }], ..good(MsgApp) },
        good(MsgSnap),
        message(MsgProp, 2, 1, 0),
        Message { term, ..prop(Entry::default()) },
        prop(conf(b"\xff\xff")),
        prop(conf(b"\x10\x63")),
        prop(Entry { r#type: 3, ..Entry::default() }),
        message(MsgReadIndex, 2, 1, 0),
        Message { entries: vec![Entry::default(); 2], ..message(MsgReadIndex, 2, 1, 0) },
    ];
    let before = group.node(1).status();
    for (row, bad) in bad.into_iter().enumerate() {
        let outcome = group.node(1).step(bad);
        assert!(matches!(outcome, Err(Error::InvalidMessage { .. })), "row {row}: {outcome:?}");
        assert_eq!(group.node(1).status().basic, before.basic, "row {row}");
    }
    for kind in [-1, 24, i32::MAX, i32::MIN] {
        let outcome = group.node(1).step(Message { r#type: kind, ..good(MsgApp) });
        assert_eq!(outcome, Err(Error::UnknownMessageType(kind)));
    }
    let local = [
        MsgHup,
        MsgBeat,
        MsgUnreachable,
        MsgSnapStatus,
        MsgCheckQuorum,
        MsgStorageAppend,
        MsgStorageAppendResp,
        MsgStorageApply,
        MsgStorageApplyResp,
        MsgForgetLeader,
    ];
    for kind in local {
        for from in [2, LOCAL_APPEND_THREAD, LOCAL_APPLY_THREAD] {
            assert_eq!(group.node(1).step(Message { from, ..good(kind) }), Err(Error::LocalMessage));
        }
    }
    for kind in [MsgAppResp, MsgVoteResp, MsgPreVoteResp, MsgHeartbeatResp, MsgReadIndexResp] {
        assert_eq!(group.node(1).step(Message { from: 9, ..good(kind) }), Err(Error::PeerNotFound));
    }
}

#[test]
fn a_snapshot_with_a_bad_membership_changes_nothing() {
    let mut group = Group::led(|_| {});
    let snap = |members| {
        let metadata = SnapshotMetadata { conf_state: Some(members), index: 50, term: 1 };
        let snapshot = Some(Snapshot { metadata: Some(metadata), ..Snapshot::default() });
        Message { snapshot, ..message(MsgSnap, 1, 2, TERM) }
    };
    let twice = ConfState { voters: vec![1, 2, 2], ..ConfState::default() };
    let no_voter = ConfState { learners: vec![2], ..ConfState::default() };
    for members in [twice, no_voter] {
        assert!(matches!(group.node(2).step(snap(members)), Err(Error::ConfChange(_))));
        assert_eq!((group.node(2).committed(), group.node(2).raft().last_index()), (3, 3));
    }
    // One that this member is not in is none of its business.
    group.node(2).step(snap(ConfState { voters: vec![1, 3], ..ConfState::default() })).unwrap();
    assert_eq!(group.node(2).committed(), 3);
    group.node(2).step(snap(ConfState { voters: vec![1, 2], ..ConfState::default() })).unwrap();
    assert_eq!(group.node(2).committed(), 50);
}

#[test]
fn the_local_door_takes_storage_alone() {
    let mut sync = Group::led(|_| {});
    let response = message(MsgStorageAppendResp, LOCAL_APPEND_THREAD, 1, TERM);
    assert_eq!(sync.node(1).step_local(response.clone()), Err(Error::LocalMessage));

    let mut group = Group::led(|config| config.async_storage_writes = true);
    let node = group.node(1);
    node.step_local(response).unwrap();
    for kind in [MsgApp, MsgHeartbeat, MsgProp, MsgStorageApply, MsgHup] {
        assert_eq!(node.step_local(message(kind, 1, 1, TERM)), Err(Error::LocalMessage));
    }
    assert_eq!(node.step_local(message(MsgAppResp, 2, 1, TERM)), Err(Error::LocalMessage));
    let never = [
        Message { entries: vec![entry(99, 1)], ..message(MsgStorageApplyResp, LOCAL_APPLY_THREAD, 1, 0) },
        Message { index: 99, ..message(MsgAppResp, 1, 1, TERM) },
        message(MsgVoteResp, 1, 1, 99),
    ];
    for response in never {
        assert!(matches!(node.step_local(response), Err(Error::InvalidMessage { .. })));
    }
}

#[test]
fn async_writes_pipeline_and_promise_only_what_is_durable() {
    let mut group = Group::led(|config| config.async_storage_writes = true);
    let node = group.node(1);
    node.propose(Bytes::from_static(b"a")).unwrap();
    let first = node.ready();
    node.propose(Bytes::from_static(b"b")).unwrap();
    let second = node.ready();
    for (ready, index) in [(&first, 4), (&second, 5)] {
        assert_eq!(ready.entries.iter().map(|entry| entry.index).collect::<Vec<_>>(), [index]);
        let appends: Vec<_> = ready.messages.iter().filter(|message| is(message, MsgStorageAppend)).collect();
        let [append] = appends[..] else { panic!("one write a Ready") };
        let promised: Vec<_> = append.responses.iter().map(|response| (response.to, response.index)).collect();
        assert_eq!(promised, [(1, index), (1, index)]);
        // A leader's appends travel while its own disk still writes.
        assert!(ready.messages.iter().any(|message| is(message, MsgApp) && message.to == 2));
    }
}

/// Won by the others' votes alone and forgotten in a crash, an election could be won twice in one term.
#[test]
fn a_candidate_asks_for_votes_once_its_own_is_durable() {
    let mut group = Group::new(&[1, 2, 3], &[], |config| {
        config.async_storage_writes = true;
        config.durable_candidacies = true;
        config.pre_vote = false;
    });
    let node = group.node(1);
    node.campaign().unwrap();
    let ready = node.ready();
    let (append, others): (Vec<_>, Vec<_>) =
        ready.messages.into_iter().partition(|message| is(message, MsgStorageAppend));
    assert!(!others.iter().any(|message| is(message, MsgVote)), "nobody is asked before the write");
    let asked: Vec<_> = append[0].responses.iter().filter(|message| is(message, MsgVote)).map(|m| m.to).collect();
    assert_eq!((append.len(), append[0].vote, asked), (1, 1, vec![2, 3]));
}

#[test]
fn a_membership_change_that_cannot_be_applied_is_an_error() {
    let mut group = Group::new(&[1], &[], |_| {});
    let change = |kind: i32, node_id| ConfChange { r#type: kind, node_id, ..ConfChange::default() };
    let before = group.node(1).raft().tracker().conf_state();
    let remove = ConfChangeType::ConfChangeRemoveNode as i32;
    for bad in [change(remove, 1), change(9, 2)] {
        assert!(matches!(group.node(1).apply_conf_change(&bad), Err(Error::ConfChange(_))));
        assert_eq!(group.node(1).raft().tracker().conf_state(), before);
    }
    assert_eq!(group.node(1).apply_conf_change(&change(remove, 0)), Ok(before));
}

#[test]
fn a_restart_continues_from_what_is_stored() {
    let mut group = Group::led(|_| {});
    group.node(1).propose(Bytes::from_static(b"x")).unwrap();
    group.settle();
    let stored = group.node(1).storage().clone();
    let config = Config { applied: 3, ..Config::new(1) };
    let mut node = RawNode::new(&config, stored.clone()).unwrap();
    assert_eq!((node.term(), node.committed(), node.applied(), node.role()), (TERM, 4, 3, Role::Follower));
    let again: Vec<_> = node.ready().committed_entries.iter().map(|entry| entry.index).collect();
    assert_eq!(again, [4]);

    let refused = |config: &Config, storage| RawNode::new(config, storage).err();
    assert!(matches!(refused(&Config { applied: 5, ..config.clone() }, stored.clone()), Some(Error::StoredState(_))));
    let mut ahead = stored.clone();
    ahead.set_hard_state(HardState { term: 1, vote: 0, commit: 9 });
    assert!(matches!(refused(&config, ahead), Some(Error::StoredState(_))));
    for bad in [
        Config { id: 0, ..config.clone() },
        Config { id: LOCAL_APPEND_THREAD, ..config.clone() },
        Config { heartbeat_tick: 0, ..config.clone() },
        Config { election_tick: 1, ..config.clone() },
        Config { max_inflight_msgs: 0, ..config.clone() },
        Config { max_inflight_bytes: 1, ..config.clone() },
        Config { check_quorum: false, read_only_option: ReadOnlyOption::LeaseBased, ..config.clone() },
    ] {
        assert!(matches!(refused(&bad, stored.clone()), Some(Error::Config(_))), "{bad:?}");
    }
}

#[test]
fn a_group_bootstraps_from_nothing() {
    let peers = [(1, Bytes::from_static(b"one")), (2, Bytes::from_static(b"two"))];
    let start = |id| {
        let mut member = Member::start(Config::new(id), MemoryStorage::new());
        member.node.bootstrap(&peers).unwrap();
        member
    };
    let mut group = Group { members: vec![start(1), start(2)], lose: |_| false };
    group.settle();
    assert_eq!(group.node(1).storage().hard_state(), HardState { term: 1, vote: 0, commit: 2 });
    group.node(1).campaign().unwrap();
    group.settle();
    assert_eq!((group.node(2).leader_id(), group.node(2).committed()), (1, 3));
    assert_eq!(group.members[0].machine, group.members[1].machine);
    assert!(group.node(1).bootstrap(&peers).is_err());
}
