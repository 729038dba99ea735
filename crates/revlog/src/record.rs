use bytes::Bytes;
use dolmen_types::{Index, Revision, Term};

use crate::codec::{Get, put_signed, put_varint, varint_len};
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
    /// The encoded `KeyValue`; opaque here. When it begins with the key, as protobuf field 1, the key is stored once.
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

pub(crate) const TOMBSTONE: u8 = 1;
/// The payload starts with the key as protobuf field 1; it is not stored again behind the payload.
pub(crate) const KEY_INSIDE: u8 = 2;
const KNOWN_FLAGS: u8 = TOMBSTONE | KEY_INSIDE;

/// A record's payload and key together stay below this.
pub(crate) const MAX_RECORD: usize = 1 << 30;

/// Where a record lies in its file, and nothing that can be read there: 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub main: i64,
    pub sub: u32,
    /// Of the record's first byte, in the file.
    pub offset: u32,
    /// Bytes of the payload.
    pub len: u32,
    /// Bytes before the payload.
    pub head: u8,
    pub flags: u8,
}

const _: () = assert!(size_of::<Slot>() == 24);

impl Slot {
    pub fn rev(&self) -> Revision {
        Revision { main: self.main, sub: i64::from(self.sub) }
    }

    pub fn tombstone(&self) -> bool {
        self.flags & TOMBSTONE != 0
    }

    /// What the record counts for in live and garbage sums.
    pub fn weight(&self) -> u64 {
        u64::from(self.head) + u64::from(self.len)
    }
}

/// A record's head, decoded.
pub(crate) struct Head {
    pub flags: u8,
    pub rev: Revision,
    pub create: i64,
    pub version: i64,
    pub lease: i64,
    pub key_len: usize,
    pub len: usize,
    /// Bytes before the payload.
    pub head: usize,
}

impl Head {
    /// Reads the head at the start of `bytes`. `None` when it cannot be one; nothing is said of the checksum.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut get = Get::new(bytes, 4);
        let flags = get.u8()?;
        let main = i64::try_from(get.varint()?).ok()?;
        let sub = u32::try_from(get.varint()?).ok()?;
        let (create, version, lease) = (get.signed()?, get.signed()?, get.signed()?);
        let key_len = usize::try_from(get.varint()?).ok()?;
        let len = usize::try_from(get.varint()?).ok()?;
        if flags & !KNOWN_FLAGS != 0 || key_len > MAX_RECORD || len > MAX_RECORD {
            return None;
        }
        let rev = Revision { main, sub: i64::from(sub) };
        let out = Self { flags, rev, create, version, lease, key_len, len, head: get.at };
        (out.total() <= bytes.len() && out.key_range().end <= out.total()).then_some(out)
    }

    /// Bytes of the whole record.
    pub fn total(&self) -> usize {
        self.head + self.len + if self.flags & KEY_INSIDE == 0 { self.key_len } else { 0 }
    }

    /// Where the key is, counted from the record's start.
    pub fn key_range(&self) -> std::ops::Range<usize> {
        let start =
            self.head + if self.flags & KEY_INSIDE == 0 { self.len } else { 1 + varint_len(self.key_len as u64) };
        start..start + self.key_len
    }

    pub fn slot(&self, offset: u32) -> Slot {
        Slot {
            main: self.rev.main,
            sub: self.rev.sub as u32,
            offset,
            len: self.len as u32,
            head: self.head as u8,
            flags: self.flags,
        }
    }

    pub fn meta(&self, record: &Bytes) -> RecordMeta {
        RecordMeta {
            rev: self.rev,
            tombstone: self.flags & TOMBSTONE != 0,
            create: self.create,
            version: self.version,
            lease: self.lease,
            key: Bytes::copy_from_slice(&record[self.key_range()]),
            len: self.len as u32,
        }
    }
}

/// Appends a record to `out` and says where it went, counted from `base`. The caller has checked the sizes.
pub(crate) fn put_record(out: &mut Vec<u8>, record: &NewRecord, base: u32) -> Slot {
    let start = out.len();
    let inside = starts_with_key(&record.payload, &record.key);
    let flags = if record.tombstone { TOMBSTONE } else { 0 } | if inside { KEY_INSIDE } else { 0 };
    out.extend_from_slice(&[0; 4]);
    out.push(flags);
    put_varint(out, record.rev.main as u64);
    put_varint(out, record.rev.sub as u64);
    put_signed(out, record.create);
    put_signed(out, record.version);
    put_signed(out, record.lease);
    put_varint(out, record.key.len() as u64);
    put_varint(out, record.payload.len() as u64);
    let head = out.len() - start;
    out.extend_from_slice(&record.payload);
    if !inside {
        out.extend_from_slice(&record.key);
    }
    let crc = crc32c::crc32c(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    Slot {
        main: record.rev.main,
        sub: record.rev.sub as u32,
        offset: base + start as u32,
        len: record.payload.len() as u32,
        head: head as u8,
        flags,
    }
}

/// Whether the record's checksum, its first four bytes, fits the rest.
pub(crate) fn checks(record: &[u8]) -> bool {
    record.len() > 4 && crc32c::crc32c(&record[4..]).to_le_bytes() == record[..4]
}

fn starts_with_key(payload: &[u8], key: &[u8]) -> bool {
    if key.is_empty() || payload.first() != Some(&0x0a) {
        return false;
    }
    let mut get = Get::new(payload, 1);
    get.varint() == Some(key.len() as u64)
        && get.at == 1 + varint_len(key.len() as u64)
        && get.bytes(key.len()) == Some(key)
}

/// Whether the format can hold the record at all.
pub(crate) fn fits(record: &NewRecord) -> bool {
    record.rev.main >= 0
        && u32::try_from(record.rev.sub).is_ok()
        && record.key.len().saturating_add(record.payload.len()) <= MAX_RECORD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &[u8], payload: Vec<u8>) -> NewRecord {
        NewRecord {
            rev: Revision::new(i64::MAX, 7),
            tombstone: payload.is_empty(),
            create: -3,
            version: 1 << 40,
            lease: i64::MIN,
            key: Bytes::copy_from_slice(key),
            payload: payload.into(),
        }
    }

    #[test]
    fn records_round_trip_with_the_key_inside_or_behind() {
        let inside = [&[0x0a, 3][..], b"key", &[0x10, 1]].concat();
        for (record, flag) in [
            (record(b"key", inside.clone()), KEY_INSIDE),
            (record(b"kez", inside.clone()), 0),
            (record(b"", inside), 0),
            (record(b"gone", Vec::new()), 0),
            (record(&[b'x'; 300], vec![b'y'; 1000]), 0),
        ] {
            let mut out = b"before".to_vec();
            let slot = put_record(&mut out, &record, 100);
            assert_eq!(slot.offset, 106);
            assert_eq!(slot.flags & KEY_INSIDE, flag);
            let bytes = Bytes::from(out.split_off(6));
            assert!(checks(&bytes));
            let head = Head::parse(&bytes).unwrap();
            assert_eq!(head.total(), bytes.len());
            assert_eq!(head.slot(106), slot);
            assert_eq!(bytes[head.head..head.head + head.len], record.payload);
            let meta = head.meta(&bytes);
            assert_eq!((meta.rev, meta.tombstone, meta.create), (record.rev, record.tombstone, record.create));
            assert_eq!((meta.version, meta.lease, meta.key), (record.version, record.lease, record.key));
            for cut in 0..bytes.len() {
                assert!(Head::parse(&bytes[..cut]).is_none());
            }
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.to_vec();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(!checks(&bad));
                let _ = Head::parse(&bad);
            }
        }
    }
}
