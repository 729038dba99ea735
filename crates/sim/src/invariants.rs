//! What must hold after every turn, and in every store.

use dolmen_env::Mono;
use dolmen_mvcc::RangeOptions;
use dolmen_node::Input;
use dolmen_raft::Storage as _;
use dolmen_types::{KeyRange, error_chain};

use crate::world::World;

impl World {
    /// A leader that came upon damage hands over, and has stopped within an election timeout.
    pub(crate) fn watch_leaving(&mut self, node: usize, local: Mono, stopped: bool) -> Result<(), String> {
        let member = &mut self.members[node];
        let Some(running) = &mut member.running else { return Ok(()) };
        if let (None, Some(what)) = (running.leaving, running.node.damage()) {
            if !member.rotten && !member.disk_trouble {
                return Err(format!("n{node} is well and says: {what}"));
            }
            running.leaving = Some(local);
            self.stats.led_rotten += 1;
            self.trace.note(self.queue.now, node as u8, "hands over", 0, 0);
        }
        let Some(since) = running.leaving else { return Ok(()) };
        if stopped {
            let leader = running.node.raft().basic_status().leader_id;
            self.stats.handed_over += u64::from(leader != 0 && leader != member.id);
        } else if local.since(since) >= self.plan.tick * self.plan.election_ticks as u64 {
            return Err(format!("n{node} is damaged and does not stop"));
        }
        Ok(())
    }

    /// Compares what the member has applied with everybody else.
    pub(crate) fn observe(&mut self, node: usize) -> Result<(), String> {
        let id = self.members[node].id;
        let Some(running) = &mut self.members[node].running else { return Ok(()) };
        let raft = running.node.raft();
        if raft.is_leader() {
            let leader = *self.leaders.entry(raft.term()).or_insert(id);
            if leader != id {
                return Err(format!("two members lead in term {}", raft.term()));
            }
        }
        let applied = running.node.machine().applied();
        if applied < running.seen {
            return Err(format!("n{node} went back from index {} to {applied}", running.seen));
        }
        if applied == running.seen {
            return Ok(());
        }
        let revision = running.node.machine().store().revision();
        let entries: Vec<_> = running
            .ahead
            .iter()
            .take_while(|entry| entry.index <= applied)
            .filter(|entry| entry.index > running.seen)
            .cloned()
            .collect();
        running.seen = applied;
        for entry in entries {
            let taken = self.model.take(&entry);
            if let Err(what) = &taken {
                return Err(format!("n{node}: {what}{}", self.logs_around(entry.index)));
            }
            if taken == Ok(true) {
                self.stats.applied += 1;
                self.trace.say(self.queue.now, || {
                    format!("n{node} is first to apply {}: {}", entry.index, crate::model::describe(&entry))
                });
                if let Some(lease) = self.model.effect(entry.index).and_then(|effect| effect.revoked) {
                    self.lease_revoked(lease)?;
                }
            }
        }
        let Some(effect) = self.model.effect(applied) else {
            return Err(format!("n{node} stands at index {applied}, which nobody applied"));
        };
        if effect.revision != revision {
            return Err(format!(
                "n{node} is at revision {revision} after index {applied}; it should be {}",
                effect.revision
            ));
        }
        if self.rng.chance(self.plan.deep_check) {
            self.compare_all(node)?;
        }
        Ok(())
    }

    /// What the logs of all members hold near an index, for the report of a failure.
    fn logs_around(&self, index: u64) -> String {
        let mut text = String::new();
        for (node, running) in self.members.iter().enumerate().filter_map(|(at, m)| Some((at, m.running.as_ref()?))) {
            let storage = running.node.raft().storage();
            for at in index.saturating_sub(2)..index + 3 {
                if let Ok(entries) = storage.entries(at, at + 1, u64::MAX) {
                    let entries = entries.iter().map(|e| (e.term, e.data.len(), crc(&e.data))).collect::<Vec<_>>();
                    text.push_str(&format!("\n  n{node} {at}: {entries:?}"));
                }
            }
        }
        text
    }

    /// Compares a member's whole store with the model, and its hash with the others'.
    pub(crate) fn compare_all(&mut self, node: usize) -> Result<(), String> {
        let Some(running) = &self.members[node].running else { return Ok(()) };
        let (machine, rotten) = (running.node.machine(), self.members[node].rotten);
        let reader = machine.store().reader();
        let everything = KeyRange::From(bytes::Bytes::from_static(b"\0"));
        let found = match reader.range(&everything, &RangeOptions::default()) {
            Ok(found) => found,
            Err(error) if rotten => {
                self.found_rot(node, &error);
                return Ok(());
            }
            Err(error) => return Err(format!("n{node} cannot read its store: {}", error_chain(&error))),
        };
        let wanted = self.model.range(&everything, found.revision);
        let given: Vec<dolmen_proto::mvccpb::KeyValue> =
            found.kvs.iter().filter_map(|kv| prost::Message::decode(kv.clone()).ok()).collect();
        if given.len() != wanted.len() || given.iter().zip(&wanted).any(|(a, b)| a != *b) {
            return Err(format!("n{node} holds {given:?} at revision {}, the log says {wanted:?}", found.revision));
        }
        // Keys leave their leases while an entry is carried out; nobody is told of them before it is whole.
        if self.model.last_index() == machine.applied() && !machine.is_busy() {
            let mut leases = machine.lessor().list();
            leases.sort_unstable();
            if leases.iter().ne(self.model.leases.keys()) {
                let wanted: Vec<_> = self.model.leases.keys().collect();
                return Err(format!("n{node} holds leases {leases:?}, the log says {wanted:?}"));
            }
            for (id, lease) in &self.model.leases {
                if machine.lessor().keys(*id).is_none_or(|keys| keys.ne(lease.keys.iter())) {
                    return Err(format!("n{node}: the keys of lease {id} are not {:?}", lease.keys));
                }
            }
        }
        match reader.hash_kv(0) {
            Ok(hash) => {
                let first = *self.hashes.entry((hash.revision, hash.compact_revision)).or_insert((hash.hash, node));
                if first.0 != hash.hash {
                    return Err(format!(
                        "n{node} and n{} differ at revision {}, compacted at {}: hashes {:x} and {:x}",
                        first.1, hash.revision, hash.compact_revision, hash.hash, first.0
                    ));
                }
            }
            Err(error) if rotten => self.found_rot(node, &error),
            Err(error) => return Err(format!("n{node} cannot hash its store: {}", error_chain(&error))),
        }
        self.stats.compared += 1;
        Ok(())
    }

    /// Whoever reads the whole store, as a snapshot does, may tell the node what it came upon.
    fn found_rot(&mut self, node: usize, error: &dyn std::error::Error) {
        let leads = self.members[node].running.as_ref().is_some_and(|running| running.node.raft().is_leader());
        // Followers mostly live on, and may lead before they are found out.
        if self.rng.chance(if leads { 1000 } else { 50 }) {
            self.input(node, Input::StoreDamaged(error_chain(error)));
        }
    }
}

/// A short name for bytes, in what a reader gets.
pub(crate) fn crc(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
