//! The stored form of a lease: one row of table `lease`, as etcd writes its bucket of that name.
//!
//! ```text
//! key    8 bytes, the id big-endian (a negative id sorts last: the bytes are those of the unsigned number)
//! value  leasepb.Lease { ID = 1, TTL = 2, RemainingTTL = 3 }, zero fields omitted
//! ```

use bytes::Bytes;
use dolmen_proto::leasepb;
use dolmen_types::LeaseId;
use prost::Message;

/// What outlives a restart. The deadline does not: it starts anew with each leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    pub id: LeaseId,
    /// Seconds granted.
    pub ttl: i64,
    /// Seconds left at the last checkpoint, 0 for none.
    pub remaining_ttl: i64,
}

/// A row of table `lease` that no etcd writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("a lease record does not decode: {what}")]
    Malformed { what: String },
    #[error("a lease record carries id 0")]
    NoId,
}

/// The row's key.
pub fn record_key(id: LeaseId) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

impl LeaseRecord {
    /// The row's value.
    pub fn encode(&self) -> Bytes {
        leasepb::Lease { id: self.id, ttl: self.ttl, remaining_ttl: self.remaining_ttl }.encode_to_vec().into()
    }

    /// Reads what [`LeaseRecord::encode`] writes. Unknown fields are skipped, as protobuf has it.
    ///
    /// # Errors
    /// `Malformed` for bytes that are no `leasepb.Lease`, `NoId` for id 0, which means "no lease" everywhere else.
    pub fn decode(value: &[u8]) -> Result<Self, RecordError> {
        let lease =
            leasepb::Lease::decode(value).map_err(|error| RecordError::Malformed { what: error.to_string() })?;
        if lease.id == 0 {
            return Err(RecordError::NoId);
        }
        Ok(Self { id: lease.id, ttl: lease.ttl, remaining_ttl: lease.remaining_ttl })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_refuse_junk() {
        for record in [
            LeaseRecord { id: 1, ttl: 60, remaining_ttl: 0 },
            LeaseRecord { id: -7, ttl: 9_000_000_000, remaining_ttl: 12 },
            LeaseRecord { id: i64::MAX, ttl: 1, remaining_ttl: 1 },
        ] {
            assert_eq!(LeaseRecord::decode(&record.encode()), Ok(record));
        }
        assert_eq!(LeaseRecord::decode(b""), Err(RecordError::NoId));
        assert!(matches!(LeaseRecord::decode(b"\xff\xff"), Err(RecordError::Malformed { .. })));
    }

    #[test]
    fn the_bytes_are_etcds() {
        let record = LeaseRecord { id: 5, ttl: 300, remaining_ttl: 0 };
        assert_eq!(record.encode().as_ref(), [0x08, 0x05, 0x10, 0xac, 0x02]);
        assert_eq!(record_key(-1).as_ref(), [0xff; 8]);
        assert_eq!(record_key(0x0102).as_ref(), [0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
