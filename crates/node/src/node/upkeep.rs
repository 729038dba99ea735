//! What goes on beside requests: compaction, watchers that are behind, the store's jobs.

use dolmen_revlog::Hint;
use dolmen_types::error_chain;
use dolmen_watch::Scanned;

use super::Node;
use crate::history::HistoryJob;

const COMPACT_KEYS_PER_TURN: usize = 512;
/// Hashes that wait for their thread at most; each pins a view of the store. Compactions that come faster leave none behind,
/// and whoever asks for theirs is told that there is none.
const MAX_HASHING: usize = 8;

/// What is asked of the background.
#[derive(Default)]
pub(super) struct Upkeep {
    /// Physical compactions whose hash is stored, and whose callers wait for pruning to be done too.
    hashed: Vec<u64>,
    /// Hashes of compactions in the making.
    hashing: usize,
    reclaim: bool,
}

impl Upkeep {
    /// Counts one more hash of a compaction; false when too many are being made, and this one is left out.
    pub(super) fn begin_hash(&mut self) -> bool {
        let begins = self.hashing < MAX_HASHING;
        self.hashing += usize::from(begins);
        begins
    }

    pub(super) fn hash_done(&mut self) {
        self.hashing -= 1;
    }

    /// Somebody wants a pass of space reclaim.
    pub(super) fn ask_reclaim(&mut self) {
        self.reclaim = true;
    }
}

impl Node {
    pub(super) fn background(&mut self) {
        if self.ending.damage().is_some() {
            self.finish_stop();
            return;
        }
        let pruning = self.machine.store_mut().compact_step(COMPACT_KEYS_PER_TURN);
        self.cx.effects.busy |= pruning;
        if !pruning {
            for id in std::mem::take(&mut self.upkeep.hashed) {
                self.answer(id, Ok(self.machine.compacted()));
            }
        }
        self.serve_watchers();
        let hint = if self.ending.wants_flush() {
            Hint::Sync
        } else if std::mem::take(&mut self.upkeep.reclaim) {
            Hint::Reclaim
        } else {
            Hint::Normal
        };
        while let Some(job) = self.machine.store_mut().log().next_job(self.cx.now, hint) {
            self.cx.effects.store.push(job);
        }
        self.cut_log();
        self.finish_stop();
    }

    /// A bounded part of what watchers wait for, and the next slice of history for those that are far behind.
    fn serve_watchers(&mut self) {
        match self.hub.work(&self.history) {
            Ok(more) => self.cx.effects.busy |= more,
            Err(error) => return self.damaged(error_chain(&error)),
        }
        self.cx.effects.history = self.hub.next_scan().map(|scan| HistoryJob::new(scan, self.history.clone()));
    }

    pub(super) fn scanned(&mut self, scanned: Scanned) {
        if let Err(error) = self.hub.scanned(scanned) {
            self.damaged(error_chain(&error));
        }
    }

    /// The hash of a compaction is stored. A caller who asked for a physical one is answered once pruning is done too.
    pub(super) fn hashed(&mut self, id: u64) {
        if self.proposals.is_waiting(id) {
            self.upkeep.hashed.push(id);
        }
    }
}
