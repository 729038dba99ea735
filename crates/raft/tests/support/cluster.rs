//! A group of members with everything around them that a server would do: disks that lose unfinished writes, storage
//! work that lags, a state machine with snapshots. One seed draws all of it.
//!
//! The state machine is a running hash over applied entries, so equal hashes at an index mean equal histories.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use dolmen_proto::raftpb::{
    ConfChange, ConfChangeV2, ConfState, Entry, EntryType, HardState, Message, MessageType, Snapshot,
};
use dolmen_raft::{Config, Error, MemoryStorage, RawNode, ReadState, Storage, snapshot_index};
use prost::Message as _;

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// The state machine: the last applied index, the hash of all applied entries, the membership.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    pub index: u64,
    pub hash: u64,
    pub members: ConfState,
}

impl Machine {
    fn apply(&mut self, entry: &Entry) {
        assert_eq!(entry.index, self.index + 1, "entries are applied in order");
        self.index = entry.index;
        self.hash = hash(&[self.hash, entry.term, u64::from(entry.r#type as u32)], &entry.data);
    }

    fn of(snapshot: &Snapshot) -> Self {
        let metadata = snapshot.metadata.clone().unwrap_or_default();
        let hash = snapshot.data.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self { index: metadata.index, hash, members: metadata.conf_state.unwrap_or_default() }
    }
}

pub fn hash(words: &[u64], bytes: &[u8]) -> u64 {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    words
        .chain(bytes.iter().copied())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

pub struct Member {
    pub node: RawNode<MemoryStorage>,
    pub config: Config,
    pub machine: Machine,
    pub reads: Vec<ReadState>,
    append_work: VecDeque<Message>,
    apply_work: VecDeque<Message>,
}

impl Member {
    /// Starts from what the disk has.
    pub fn start(config: Config, mut storage: MemoryStorage) -> Self {
        let machine = Machine::of(&storage.snapshot().unwrap());
        let state = storage.hard_state();
        storage.set_hard_state(HardState { commit: state.commit.max(machine.index), ..state });
        let config = Config { applied: machine.index, ..config };
        Self {
            node: RawNode::new(&config, storage).unwrap(),
            config,
            machine,
            reads: Vec::new(),
            append_work: VecDeque::new(),
            apply_work: VecDeque::new(),
        }
    }

    /// The process dies: what was not written is lost, the state machine is back at the last snapshot.
    pub fn restart(&mut self, seed: u64) {
        let storage = self.node.storage().clone();
        *self = Self::start(Config { seed, ..self.config.clone() }, storage);
    }

    pub fn id(&self) -> u64 {
        self.config.id
    }

    /// Carries out what is ready. Gives the messages to send.
    pub fn work(&mut self) -> Vec<Message> {
        let mut out = Vec::new();
        if self.node.has_ready() {
            let asynchronous = self.config.async_storage_writes;
            let mut ready = if asynchronous { self.node.ready_messages() } else { self.node.ready() };
            self.reads.append(&mut ready.read_states);
            let messages = std::mem::take(&mut ready.messages);
            if asynchronous {
                for message in messages {
                    match MessageType::try_from(message.r#type).unwrap() {
                        MessageType::MsgStorageAppend => self.append_work.push_back(message),
                        MessageType::MsgStorageApply => self.apply_work.push_back(message),
                        _ => out.push(message),
                    }
                }
            } else {
                self.write(ready.hard_state, std::mem::take(&mut ready.entries), ready.snapshot.take());
                self.apply(&ready.committed_entries);
                out.extend(messages);
                self.node.advance(ready);
            }
        }
        out
    }

    /// Finishes one piece of storage work, if there is any.
    pub fn finish_append(&mut self) -> Vec<Message> {
        let Some(work) = self.append_work.pop_front() else {
            return Vec::new();
        };
        let state = HardState { term: work.term, vote: work.vote, commit: work.commit };
        self.write((state != HardState::default()).then_some(state), work.entries, work.snapshot);
        self.deliver_responses(work.responses)
    }

    pub fn finish_apply(&mut self) -> Vec<Message> {
        let Some(work) = self.apply_work.pop_front() else {
            return Vec::new();
        };
        self.apply(&work.entries);
        self.deliver_responses(work.responses)
    }

    fn deliver_responses(&mut self, responses: Vec<Message>) -> Vec<Message> {
        let (own, others): (Vec<_>, Vec<_>) = responses.into_iter().partition(|message| message.to == self.id());
        for response in own {
            match self.node.step_local(response) {
                Ok(()) | Err(Error::PeerNotFound) => {}
                Err(error) => panic!("storage's answer was refused: {error}"),
            }
        }
        others
    }

    fn write(&mut self, state: Option<HardState>, entries: Vec<Entry>, snapshot: Option<Snapshot>) {
        let storage = self.node.storage_mut();
        if let Some(state) = state {
            storage.set_hard_state(state);
        }
        if let Some(snapshot) = snapshot {
            storage.apply_snapshot(snapshot.clone()).unwrap();
            self.machine = Machine::of(&snapshot);
        }
        storage.append(entries).unwrap();
    }

    fn apply(&mut self, entries: &[Entry]) {
        for entry in entries {
            // Work that was queued before a snapshot arrived is done already.
            if entry.index <= self.machine.index {
                continue;
            }
            self.machine.apply(entry);
            let applied = match EntryType::try_from(entry.r#type).unwrap() {
                EntryType::EntryNormal => continue,
                EntryType::EntryConfChange => {
                    self.node.apply_conf_change(&ConfChange::decode(entry.data.clone()).unwrap())
                }
                EntryType::EntryConfChangeV2 => {
                    self.node.apply_conf_change_v2(&ConfChangeV2::decode(entry.data.clone()).unwrap())
                }
            };
            // A change that does not apply is refused by everybody alike.
            if let Ok(members) = applied {
                self.machine.members = members;
            }
        }
    }

    /// Makes a snapshot of what is applied and drops the log up to `keep` entries before it.
    pub fn snapshot(&mut self, keep: u64) {
        // What storage does not have cannot be cut.
        let index = self.machine.index;
        let storage = self.node.storage_mut();
        if index > storage.last_index() || index <= snapshot_index(&storage.snapshot().unwrap()) {
            return;
        }
        let data = Bytes::copy_from_slice(&self.machine.hash.to_le_bytes());
        storage.create_snapshot(index, Some(self.machine.members.clone()), data).unwrap();
        if self.node.applied() >= index && index.saturating_sub(keep) >= self.node.storage().first_index() {
            self.node.storage_mut().compact(index - keep).unwrap();
        }
    }
}

/// What must hold over the whole life of a group, whatever happens to it.
#[derive(Default)]
pub struct Invariants {
    leaders: BTreeMap<u64, u64>,
    /// By index and term: hash of the entry, and the term before it. Same id, same entry, same entry before: log
    /// matching.
    entries: BTreeMap<(u64, u64), (u64, u64)>,
    applied: BTreeMap<u64, u64>,
    commits: BTreeMap<u64, u64>,
}

impl Invariants {
    pub fn check(&mut self, member: &Member) {
        let status = member.node.basic_status();
        if member.node.is_leader() {
            let leader = *self.leaders.entry(status.term).or_insert(status.id);
            assert_eq!(leader, status.id, "two leaders in term {}", status.term);
        }
        assert!(status.applied <= status.commit && status.commit <= member.node.raft().last_index());
        let hash = *self.applied.entry(member.machine.index).or_insert(member.machine.hash);
        assert_eq!(hash, member.machine.hash, "histories differ at {}", member.machine.index);
    }

    /// Checks what is written; slower.
    pub fn check_log(&mut self, member: &Member) {
        let storage = member.node.storage();
        let (first, last) = (storage.first_index(), storage.last_index());
        if first > last {
            return;
        }
        let mut before = storage.term(first - 1).unwrap();
        for entry in storage.entries(first, last + 1, u64::MAX).unwrap() {
            let found = (hash(&[u64::from(entry.r#type as u32)], &entry.data), before);
            let known = *self.entries.entry((entry.index, entry.term)).or_insert(found);
            assert_eq!(known, found, "entry {} of term {} differs", entry.index, entry.term);
            assert!(entry.term >= before, "terms go back at {}", entry.index);
            before = entry.term;
        }
        // Above what is applied, storage may still have a tail that is being replaced.
        let committed = member.machine.index.min(last);
        for index in first..=committed {
            let term = storage.term(index).unwrap();
            let known = *self.commits.entry(index).or_insert(term);
            assert_eq!(known, term, "committed entry {index} was replaced");
        }
    }
}
