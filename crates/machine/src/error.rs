/// Why an entry changed nothing (or, for `NoSpace`, changed something and still answers with an error). Every replica
/// computes the same one: these are outcomes of the log, not of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("mvcc: required revision has been compacted")]
    Compacted,
    #[error("mvcc: required revision is a future revision")]
    FutureRevision,
    #[error("requested lease not found")]
    LeaseNotFound,
    #[error("lease already exists")]
    LeaseExists,
    #[error("too large lease TTL")]
    LeaseTtlTooLarge,
    #[error("key not found")]
    KeyNotFound,
    #[error("corrupt cluster")]
    Corrupt,
    #[error("mvcc: database space exceeded")]
    NoSpace,
    #[error("member ID already exist")]
    MemberExists,
    #[error("member not found")]
    MemberNotFound,
    #[error("Peer URLs already exists")]
    PeerUrlExists,
    #[error("can only promote a learner member")]
    MemberNotLearner,
    #[error(transparent)]
    Auth(#[from] dolmen_auth::AuthError),
    /// An entry of a kind that this release does not carry out (downgrade). Every member of this
    /// release answers alike; docs/compat.md lists the kinds.
    #[error("not yet supported")]
    NotSupported,
}
