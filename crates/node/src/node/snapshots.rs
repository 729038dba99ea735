//! Snapshots: made for followers and backups, installed when the leader sends one, and the marks between which the log is
//! cut.
//!
//! The state itself never passes through here: a source is pinned and read elsewhere, a received database lies in a file.

use bytes::Bytes;
use dolmen_machine::{InstallError, Installed, OpenError};
use dolmen_proto::walpb;
use dolmen_types::error_chain;

use super::{Node, StopReason, WalJob};
use crate::history::History;

impl Node {
    /// The whole state, pinned; `None` when the store cannot be read, which is the end of this node.
    pub(super) fn snapshot_source(&mut self) -> Option<Box<dyn dolmen_bolt::Source + Send>> {
        if self.damage.is_some() || self.stop.is_some() {
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

    pub(super) fn installed(&mut self, result: Result<Installed, InstallError>) {
        let Some((message, db)) = self.installing.take() else { return };
        let outcome: Result<(), String> = match result {
            Ok(installed) => self.machine.finish_install(installed).map_err(|error: OpenError| error_chain(&error)),
            Err(error) => Err(error_chain(&error)),
        };
        if let Err(error) = outcome {
            self.stop = Some(StopReason::Fatal(error));
            return;
        }
        self.shared.metrics.snapshots_applied.add(1);
        self.effects.remove = Some(db);
        self.history = History::new(self.machine.store().reader());
        self.shared.set_reader(self.machine.store().reader());
        self.hub.on_restore(self.machine.store().revision());
        self.marked = self.machine.applied();
        self.mark = None;
        self.publish_configuration();
        self.append(message);
        while self.installing.is_none()
            && let Some(message) = self.held.pop_front()
        {
            self.persist(message);
        }
    }

    /// Notes a place that the log may be cut at once the store holds it durably.
    pub(super) fn remember_mark(&mut self) {
        if self.mark.is_none() && self.machine.applied() >= self.marked + self.config.snapshot_count {
            self.mark = Some(self.machine.position());
        }
    }

    pub(super) fn cut_log(&mut self) {
        let durable = self.machine.store().log_ref().durable_index();
        let Some(mark) = self.mark.take_if(|mark| mark.index <= durable) else { return };
        self.marked = mark.index;
        let storage = self.raft.storage_mut();
        let cut = mark.index.saturating_sub(self.config.catch_up_entries);
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
