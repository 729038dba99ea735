//! Snapshots: made for followers and backups, installed when the leader sends one, and the marks between which the log is
//! cut.
//!
//! The state itself never passes through here: a source is pinned and read elsewhere, a received database lies in a file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::Disk;
use dolmen_machine::{InstallError, Installed, OpenError, Position};
use dolmen_proto::raftpb::Message;
use dolmen_proto::walpb;
use dolmen_types::{Index, error_chain};

use super::{Node, WalJob};
use crate::history::History;

/// Snapshots on their way in, and where the log may be cut behind our own.
pub(super) struct SnapshotExchange {
    disk: Arc<dyn Disk>,
    /// Databases that have arrived, by the index of the message that they came with.
    received: BTreeMap<Index, PathBuf>,
    installing: Option<(Message, PathBuf)>,
    /// Appends that wait for the installation.
    held: VecDeque<Message>,
    /// A mark that becomes a WAL snapshot once the store holds it durably.
    mark: Option<Position>,
    /// The newest mark that did.
    marked: Index,
    /// Bytes of the entries applied since the newest mark, pending or not.
    unmarked_bytes: u64,
}

/// Of the snapshot that a message carries; 0 for none.
fn index_of(message: &Message) -> Index {
    message.snapshot.as_ref().and_then(|snapshot| snapshot.metadata.as_ref()).map_or(0, |metadata| metadata.index)
}

impl SnapshotExchange {
    pub(super) fn new(disk: Arc<dyn Disk>, marked: Index) -> Self {
        Self {
            disk,
            received: BTreeMap::new(),
            installing: None,
            held: VecDeque::new(),
            mark: None,
            marked,
            unmarked_bytes: 0,
        }
    }

    /// Notes a database that arrived; gives the one that it replaces.
    pub(super) fn arrived(&mut self, message: &Message, db: PathBuf) -> Option<PathBuf> {
        self.received.insert(index_of(message), db)
    }

    /// Those that raft, having had its turn, did not ask to be installed: nobody will.
    pub(super) fn ignored(&mut self) -> Vec<PathBuf> {
        let mut ignored = Vec::new();
        if !self.received.is_empty() {
            let wanted: BTreeSet<Index> = self.held.iter().map(index_of).collect();
            self.received.retain(|index, db| {
                let keep = wanted.contains(index);
                if !keep {
                    ignored.push(std::mem::take(db));
                }
                keep
            });
        }
        ignored
    }

    /// Gives an append back unless it has to wait for an installation.
    fn pass_or_hold(&mut self, append: Message) -> Option<Message> {
        if self.installing.is_none() {
            return Some(append);
        }
        self.held.push_back(append);
        None
    }

    /// The next append that waited, once nothing is being installed.
    fn next_held(&mut self) -> Option<Message> {
        if self.installing.is_none() { self.held.pop_front() } else { None }
    }
}

impl Node {
    /// The whole state, pinned; `None` when the store cannot be read, which is the end of this node.
    pub(super) fn snapshot_source(&mut self) -> Option<Box<dyn dolmen_bolt::Source + Send>> {
        if self.ending.damage().is_some() || self.ending.is_here() {
            return None;
        }
        match self.machine.snapshot_source() {
            Ok(source) => Some(Box::new(source)),
            Err(error) => {
                self.damaged(error_chain(&error));
                None
            }
        }
    }

    /// An append for our own WAL: entries and hard state, maybe a snapshot that has to be installed first.
    pub(super) fn persist(&mut self, message: Message) {
        let Some(message) = self.snapshots.pass_or_hold(message) else { return };
        let metadata = message.snapshot.as_ref().and_then(|s| s.metadata.as_ref());
        let (index, term) = metadata.map_or((0, 0), |metadata| (metadata.index, metadata.term));
        if index == 0 {
            self.append(message);
            return;
        }
        match self.snapshots.received.remove(&index) {
            Some(db) => {
                let job = self.machine.begin_install(self.snapshots.disk.clone(), &db, (index, term));
                self.cx.effects.install = Some(job);
                self.snapshots.installing = Some((message, db));
            }
            None => self.ending.fatal(format!("the database of the snapshot at index {index} is gone")),
        }
    }

    pub(super) fn installed(&mut self, result: Result<Installed, InstallError>) {
        let Some((message, db)) = self.snapshots.installing.take() else { return };
        let outcome: Result<(), String> = match result {
            Ok(installed) => self.machine.finish_install(installed).map_err(|error: OpenError| error_chain(&error)),
            Err(error) => Err(error_chain(&error)),
        };
        if let Err(error) = outcome {
            self.ending.fatal(error);
            return;
        }
        self.cx.shared.metrics.snapshots_applied.add(1);
        self.cx.effects.remove.push(db);
        self.history = History::new(self.machine.store().reader());
        self.cx.shared.set_reader(self.machine.store().reader());
        self.hub.on_restore(self.machine.store().revision());
        self.proposals.lost_track();
        self.snapshots.marked = self.machine.applied();
        self.snapshots.mark = None;
        self.snapshots.unmarked_bytes = 0;
        self.note_chain();
        self.publish_configuration();
        self.append(message);
        while let Some(message) = self.snapshots.next_held() {
            self.persist(message);
        }
    }

    /// Notes a place that the log may be cut at once the store holds it durably, behind so many bytes of entries more.
    pub(super) fn remember_mark(&mut self, bytes: u64) {
        let (snapshots, config) = (&mut self.snapshots, &self.cx.config);
        snapshots.unmarked_bytes += bytes;
        let due = self.machine.applied() >= snapshots.marked + config.snapshot_count
            || snapshots.unmarked_bytes >= config.log_bytes;
        if snapshots.mark.is_none() && due {
            snapshots.mark = Some(self.machine.position());
            snapshots.unmarked_bytes = 0;
        }
    }

    /// Keeps what raft holds in memory within its bytes. The entries are in the log on disk, and need not wait for the store.
    pub(super) fn trim_log(&mut self) {
        let (most, told) = (self.cx.config.log_bytes, self.raft.applied());
        let storage = self.raft.storage_mut();
        if storage.size_bytes() <= most {
            return;
        }
        let applied = self.machine.position();
        // Refused when an installed snapshot has overtaken it, which then is the newer one.
        let _outdated = storage.create_snapshot(applied.index, Some(applied.conf_state), Bytes::new());
        // Some at a time: each time costs a snapshot's metadata.
        storage.compact_to_bytes(most - most / 4, applied.index.min(told));
    }

    pub(super) fn cut_log(&mut self) {
        let durable = self.machine.store().log_ref().durable_index();
        let Some(mark) = self.snapshots.mark.take_if(|mark| mark.index <= durable) else { return };
        self.snapshots.marked = mark.index;
        // What raft has not been told of yet it may want to read once more.
        let cut = mark.index.saturating_sub(self.cx.config.catch_up_entries).min(self.raft.applied());
        let storage = self.raft.storage_mut();
        // Both refuse only what an installed snapshot has overtaken.
        let _outdated = storage.create_snapshot(mark.index, Some(mark.conf_state.clone()), Bytes::new());
        let _outdated = storage.compact(cut);
        self.send_wal(WalJob {
            snapshot: Some(walpb::Snapshot { index: mark.index, term: mark.term, conf_state: Some(mark.conf_state) }),
            release: Some(mark.index),
            must_sync: true,
            ..WalJob::default()
        });
    }
}
