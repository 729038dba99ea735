use crate::error::Error;
use crate::logger::Logger;
use crate::{LOCAL_APPEND_THREAD, LOCAL_APPLY_THREAD, NONE};

/// For size bounds: none.
pub const NO_LIMIT: u64 = u64::MAX;

/// How the leader makes sure that it still leads before it answers a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadOnlyOption {
    /// A round of heartbeats per batch of reads. Needs no clock.
    #[default]
    Safe,
    /// Trusts its lease: the quorum check within an election timeout. Wrong when clocks drift or a process stalls
    /// without bound; needs `check_quorum`.
    LeaseBased,
}

/// Parameters of one member. [`Config::new`] fills in etcd's.
#[derive(Clone, Debug)]
pub struct Config {
    /// This member; neither 0 nor one of the two local thread ids.
    pub id: u64,
    /// Ticks without word from a leader before a follower stands for election; the timeout in force is drawn from
    /// `election_tick..2 * election_tick`. Greater than `heartbeat_tick`.
    pub election_tick: usize,
    /// Ticks between a leader's heartbeats; at least 1.
    pub heartbeat_tick: usize,
    /// On restart, the index the state machine has applied; entries up to it are not handed out again. 0: everything
    /// after the snapshot is.
    pub applied: u64,
    /// Storage work leaves as `MsgStorageAppend` and `MsgStorageApply` messages, whose responses come back when the
    /// work is done, instead of as fields of a Ready that `advance` closes. See the crate page.
    pub async_storage_writes: bool,
    /// Bytes of entries in one append message; a single larger entry still goes alone. 0: one entry a message.
    pub max_size_per_msg: u64,
    /// Bytes of committed entries handed out and not yet applied; 0: as `max_size_per_msg`.
    pub max_committed_size_per_ready: u64,
    /// Payload bytes in a leader's log beyond the commit index; proposals above it are dropped. 0: no bound.
    pub max_uncommitted_entries_size: u64,
    /// Append messages in flight to one member; at least 1.
    pub max_inflight_msgs: usize,
    /// Payload bytes in flight to one member; 0: no bound, else at least `max_size_per_msg`.
    pub max_inflight_bytes: u64,
    /// A leader that hears from no quorum for an election timeout steps down, and members in touch with a leader ignore
    /// candidates.
    pub check_quorum: bool,
    /// Ask whether an election could be won before raising the term for it (thesis 9.6), so that a member coming back
    /// from a partition disturbs nobody.
    pub pre_vote: bool,
    pub read_only_option: ReadOnlyOption,
    /// Followers drop proposals instead of passing them to the leader.
    pub disable_proposal_forwarding: bool,
    /// Take membership change proposals without looking at the membership in force. Only for a caller that validates
    /// and serialises changes itself.
    pub disable_conf_change_validation: bool,
    /// A leader that is removed or becomes a learner steps down at once.
    pub step_down_on_removal: bool,
    /// With `async_storage_writes`: a candidate asks for votes only once its term and its own vote are durable. The library
    /// this crate follows asks at once; an election may then be won by the others' votes alone, forgotten in a crash, and
    /// won a second time in the same term with another log. Servers want this on.
    pub durable_candidacies: bool,
    /// Where election timeouts are drawn from. Members need different seeds; one run with one seed draws the same.
    pub seed: u64,
    /// Where log lines go; by default nowhere, at no cost.
    pub logger: Logger,
}

impl Config {
    /// etcd's parameters: election after 10 ticks, heartbeat each tick, pre-vote and quorum check on, 1 MiB a message,
    /// 512 messages in flight, no bound on uncommitted bytes.
    pub fn new(id: u64) -> Self {
        Self {
            id,
            election_tick: 10,
            heartbeat_tick: 1,
            applied: 0,
            async_storage_writes: false,
            max_size_per_msg: 1 << 20,
            max_committed_size_per_ready: 0,
            max_uncommitted_entries_size: 0,
            max_inflight_msgs: 512,
            max_inflight_bytes: 0,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            disable_proposal_forwarding: false,
            disable_conf_change_validation: false,
            step_down_on_removal: false,
            durable_candidacies: false,
            seed: id,
            logger: Logger::none(),
        }
    }

    /// # Errors
    /// `Config`, naming the rule that is broken.
    pub fn validate(&self) -> Result<(), Error> {
        if self.id == NONE {
            return Err(Error::Config("cannot use none as id"));
        }
        if self.id == LOCAL_APPEND_THREAD || self.id == LOCAL_APPLY_THREAD {
            return Err(Error::Config("cannot use local target as id"));
        }
        if self.heartbeat_tick == 0 {
            return Err(Error::Config("heartbeat tick must be greater than 0"));
        }
        if self.election_tick <= self.heartbeat_tick {
            return Err(Error::Config("election tick must be greater than heartbeat tick"));
        }
        if self.max_inflight_msgs == 0 {
            return Err(Error::Config("max inflight messages must be greater than 0"));
        }
        if self.max_inflight_bytes != 0 && self.max_inflight_bytes < self.max_size_per_msg {
            return Err(Error::Config("max inflight bytes must be >= max message size"));
        }
        if self.read_only_option == ReadOnlyOption::LeaseBased && !self.check_quorum {
            return Err(Error::Config("check quorum must be enabled for lease based reads"));
        }
        Ok(())
    }
}
