//! Confirmed leadership: what a linearizable read waits for, and everything else that only a member sure to lead, or to
//! know the leader's state, may answer. The rounds themselves are kept in [`crate::reads`].

use dolmen_types::LeaseId;

use super::Node;
use super::context::Context;
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

impl Confirm {
    pub(super) fn failed(self, cx: &mut Context, error: RequestError) {
        match self {
            Self::Read(completion) => cx.reply(completion, Reply::ReadReady(Err(error))),
            Self::Renew(completion, _) => cx.reply(completion, Reply::LeaseRenewed(Err(error))),
            Self::TimeToLive(completion, ..) => cx.reply(completion, Reply::LeaseTimeToLive(Err(error))),
            Self::Doubt => {}
        }
    }
}

impl Node {
    pub(super) fn ask_reads(&mut self) {
        if self.leadership.leader().is_some()
            && let Some(context) = self.reads.ask(self.cx.now)
        {
            self.raft.read_index(context);
        }
    }

    pub(super) fn answer_reads(&mut self) {
        for waiting in self.reads.ready(self.machine.applied()) {
            match waiting.what {
                Confirm::Read(completion) => self.cx.reply(completion, Reply::ReadReady(Ok(()))),
                Confirm::Renew(completion, id) => self.renew_confirmed(id, completion),
                Confirm::TimeToLive(completion, id, keys) => {
                    self.answer_time_to_live(id, keys, completion);
                }
                // A quorum has just confirmed that this member leads.
                Confirm::Doubt => self.leadership.confirmed(),
            }
        }
    }
}
