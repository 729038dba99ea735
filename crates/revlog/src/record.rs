use bytes::Bytes;
use dolmen_types::{Index, Revision, Term};

use crate::tables::TableOp;

/// One revision of one key, as the writer hands it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRecord {
    pub rev: Revision,
    pub tombstone: bool,
    /// Revision that created this generation of the key; 0 for a tombstone.
    pub create: i64,
    pub version: i64,
    pub lease: i64,
    pub key: Bytes,
    /// The encoded `KeyValue`; opaque here.
    pub payload: Bytes,
}

/// A record without its payload: what footers hold and what start-up replays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordMeta {
    pub rev: Revision,
    pub tombstone: bool,
    pub create: i64,
    pub version: i64,
    pub lease: i64,
    pub key: Bytes,
    /// Bytes of the payload.
    pub len: u32,
}

/// What one apply run did: kept whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Raft index and term of the last entry applied.
    pub index: Index,
    pub term: Term,
    /// In revision order, all after every record appended before.
    pub records: Vec<NewRecord>,
    pub tables: Vec<TableOp>,
    /// A new compact revision.
    pub compact: Option<i64>,
}
