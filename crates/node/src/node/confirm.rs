//! Confirmed leadership: what a linearizable read waits for, and everything else that only a member sure to lead, or to
//! know the leader's state, may answer. The rounds themselves are kept in [`crate::reads`].

use dolmen_types::LeaseId;

use super::Node;
use crate::reads::Reader;
use crate::request::{Completion, Reply, RequestError};

/// What waits for confirmed leadership.
pub(super) enum Confirm {
    Read(Completion),
    /// A lease renewal that came just after this process had been paused.
    Renew(Completion, LeaseId),
    /// What is left of a lease that this member has not heard of.
    TimeToLive(Completion, LeaseId, bool),
    /// Nobody: the node itself wants to know whether it still leads.
    Doubt,
}

impl Node {
    pub(super) fn ask_reads(&mut self) {
        if self.leader != 0
            && let Some(context) = self.reads.ask(self.now)
        {
            self.raft.read_index(context);
        }
    }

    pub(super) fn answer_reads(&mut self) {
        for reader in self.reads.ready(self.machine.applied()) {
            match reader.what {
                Confirm::Read(completion) => self.reply(completion, Reply::ReadReady(Ok(()))),
                Confirm::Renew(completion, id) => self.renew_confirmed(id, completion),
                Confirm::TimeToLive(completion, id, keys) => {
                    let reply = self.time_to_live(id, keys);
                    self.reply(completion, Reply::LeaseTimeToLive(reply));
                }
                // A quorum has just confirmed that this member leads.
                Confirm::Doubt => self.was_paused = false,
            }
        }
    }

    pub(super) fn confirm_failed(&mut self, reader: Reader<Confirm>, error: RequestError) {
        match reader.what {
            Confirm::Read(completion) => self.reply(completion, Reply::ReadReady(Err(error))),
            Confirm::Renew(completion, _) => self.reply(completion, Reply::LeaseRenewed(Err(error))),
            Confirm::TimeToLive(completion, ..) => self.reply(completion, Reply::LeaseTimeToLive(Err(error))),
            Confirm::Doubt => {}
        }
    }
}
