//! The raft log on disk, in etcd's own files, with one thing more: it knows what it has lost.
//!
//! A log is a directory of segments, `<sequence>-<first index>.wal`, each a run of framed, checksummed records: entries,
//! hard states (term, vote, commit), snapshot marks. Records are appended to the last segment; once it has grown past its
//! size the next one is begun, and whole segments at the front go when the store no longer needs them. etcd reads what
//! this crate writes, and this crate reads what etcd writes.
//!
//! ```text
//! member/
//!   acked-0 acked-1                  where the log was last known durable (two slots, written in turn)
//!   wal/
//!     0000000000000000-0000000000000000.wal    crc meta snap(0,0) | entry entry state | entry state ...
//!     0000000000000001-0000000000004e21.wal    crc meta state     | entry entry state | 0 0 0 0 (allocated)
//!     0.tmp                                    the next segment, in the making
//! ```
//!
//! **Append, then sync.** [`Wal::append`] writes, [`Wal::sync`] makes durable. Nothing may be sent or acknowledged that
//! rests on a record before the `sync` after it has returned. After an error the log takes no more calls: the process
//! stops, and the next [`Wal::open`] finds out what is there.
//!
//! **A torn tail, or a lost log?** A crash may leave anything behind the last sync, so recovery has to cut a tail that
//! does not read. etcd cuts wherever reading stops; when a sector or a length in the middle rots, everything after it is
//! gone without a word, votes and acknowledged writes included. Here each record also says how far the segment was
//! durable when it was written, and the slots beside the log say it for the last records. What reads badly below such a
//! point was there once: that is [`WalError::Corrupt`], and the member stays down. Only above it may a tail be cut.
//!
//! The byte tables and the argument stand in `docs/format-wal.md`. Left out: encryption, compression, reading while
//! another process writes.

#![forbid(unsafe_code)]

mod error;
mod names;
mod record;
mod recover;
mod slots;
mod wal;

pub use error::WalError;
pub use record::Kind;
pub use recover::{Inspected, Recovered, TornTail, inspect};
pub use wal::{Released, Wal, WalOptions};

/// Whose log this is; recorded at the head of every segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub node_id: dolmen_types::MemberId,
    pub cluster_id: dolmen_types::ClusterId,
}
