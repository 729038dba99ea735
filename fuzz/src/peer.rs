//! Messages of other members, and what they carry.

use bytes::Bytes;
use dolmen_env::Rng;
use dolmen_proto::raftpb::{ConfState, Entry, EntryType, Message, MessageType, Snapshot, SnapshotMetadata};
use dolmen_raft::{Config, MemoryStorage, RawNode};
use prost::Message as _;

use crate::mutate::mutate;
use crate::{Reached, Target};

pub struct Peer {
    node: RawNode<MemoryStorage>,
    /// Messages the node has taken since it was made.
    taken: u32,
}

impl Peer {
    pub fn new() -> Self {
        Self { node: node(), taken: 0 }
    }
}

/// Member 1 of three, with a short log.
fn node() -> RawNode<MemoryStorage> {
    let mut storage = MemoryStorage::new();
    let conf_state = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
    let metadata = SnapshotMetadata { conf_state: Some(conf_state), index: 5, term: 1 };
    storage.apply_snapshot(Snapshot { data: Bytes::new(), metadata: Some(metadata) }).expect("an empty storage");
    let entries = (6..10).map(|index| Entry { term: 1, index, ..Entry::default() }).collect();
    storage.append(entries).expect("entries that follow");
    RawNode::new(&Config { pre_vote: true, check_quorum: true, ..Config::new(1) }, storage)
        .expect("a sound configuration")
}

/// What a member may send, with numbers near those that mean something here.
fn message(rng: &mut Rng, near: u64) -> Message {
    let types: Vec<i32> = (0..64).filter(|kind| MessageType::try_from(*kind).is_ok()).collect();
    let number = |rng: &mut Rng| near.saturating_sub(3) + rng.below(7);
    let index = number(rng);
    let entries = (1..=rng.below(4)).map(|at| Entry {
        term: 1 + rng.below(3),
        index: index + at,
        r#type: EntryType::EntryNormal as i32,
        data: Bytes::from(vec![1; rng.below(40) as usize]),
    });
    let entries = entries.collect();
    let snapshot = rng.chance(200).then(|| {
        let conf_state = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
        let metadata = SnapshotMetadata { conf_state: Some(conf_state), index: number(rng), term: 1 + rng.below(3) };
        Snapshot { data: Bytes::from_static(b"{}"), metadata: Some(metadata) }
    });
    Message {
        r#type: *rng.pick(&types),
        to: 1,
        from: 2 + rng.below(2),
        term: rng.below(6),
        log_term: rng.below(3),
        index,
        entries,
        commit: number(rng),
        snapshot,
        reject: rng.chance(300),
        reject_hint: number(rng),
        context: Bytes::from_static(b"12345678"),
        ..Message::default()
    }
}

impl Target for Peer {
    fn case(&mut self, rng: &mut Rng) -> Reached {
        // A case by itself has to be repeatable, so state is not carried over for ever.
        *self = Self::new();
        let mut reached = Reached::Refused;
        for _ in 0..12 {
            if rng.chance(300) {
                self.node.tick();
            }
            let last = self.node.basic_status().applied.max(8);
            let mut bytes = message(rng, last).encode_to_vec();
            if rng.chance(600) {
                mutate(rng, &mut bytes);
            }
            let Ok(message) = Message::decode(Bytes::from(bytes)) else { continue };
            if self.node.step(message).is_ok() {
                reached = Reached::Accepted;
                self.taken += 1;
            }
            self.settle();
        }
        reached
    }
}

impl Peer {
    /// Carries out what the node is ready for, as a server would.
    fn settle(&mut self) {
        for _ in 0..100 {
            if !self.node.has_ready() {
                return;
            }
            let mut ready = self.node.ready();
            if let Some(snapshot) = ready.snapshot.take() {
                self.node.storage_mut().apply_snapshot(snapshot).expect("raft asks for nothing older");
            }
            self.node.storage_mut().append(std::mem::take(&mut ready.entries)).expect("raft leaves no gap");
            if let Some(state) = ready.hard_state {
                self.node.storage_mut().set_hard_state(state);
            }
            self.node.advance(ready);
        }
        panic!("raft is ready for ever after {} messages", self.taken);
    }
}
