//! One record as bytes: a frame of 8 bytes, the protobuf message `walpb.Record`, and zeroes up to a multiple of 8.
//!
//! ```text
//! u64 LE: length in the low 56 bits; top byte 0x80 | padding when there is padding
//!   1  varint   type          1 metadata, 2 entry, 3 hard state, 4 crc, 5 snapshot
//!   2  varint   crc           CRC-32C over the data of every record so far, this one included
//!   3  bytes    data          the message itself; none in a crc record
//!   7002 varint synced        below this offset the segment was durable when the record was written
//!   7001 fixed32 check        CRC-32C over segment sequence, offset, and the frame from its first byte to here
//! ```
//!
//! etcd skips the fields it does not know. The check makes a record stand alone: its length, type and place are covered,
//! and it can be told from noise without knowing the chain of checksums before it.

use dolmen_proto::raftpb::{Entry, HardState};
use dolmen_proto::walpb::Snapshot;
use prost::Message;

use crate::Metadata;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Metadata = 1,
    Entry = 2,
    State = 3,
    /// Opens every segment; carries the chain of checksums over from the segment before.
    Crc = 4,
    Snapshot = 5,
}

impl Kind {
    fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Metadata,
            2 => Self::Entry,
            3 => Self::State,
            4 => Self::Crc,
            5 => Self::Snapshot,
            _ => return None,
        })
    }
}

pub(crate) const FRAME: usize = 8;
const SYNCED_FIELD: u64 = 7002;
const CHECK_FIELD: u64 = 7001;
const SYNCED_TAG: [u8; 3] = tag(SYNCED_FIELD, 0);
const CHECK_TAG: [u8; 3] = tag(CHECK_FIELD, 5);
/// The check's tag and value close the record.
const CHECK_LEN: usize = 7;

const fn tag(field: u64, wire: u64) -> [u8; 3] {
    let key = field << 3 | wire;
    [(key & 0x7f | 0x80) as u8, (key >> 7 & 0x7f | 0x80) as u8, (key >> 14) as u8]
}

/// Encodes records one after the other into a buffer that is written in one call.
pub(crate) struct Encoder {
    pub buffer: Vec<u8>,
    /// Where in the segment the buffer begins.
    base: u64,
    seq: u64,
    synced: u64,
    /// The chain of checksums after the last record.
    pub chain: u32,
}

/// A buffer that grew beyond this for one large batch is not kept.
const KEEP_CAPACITY: usize = 8 << 20;

impl Encoder {
    pub fn new(chain: u32) -> Self {
        Self { buffer: Vec::with_capacity(64 << 10), base: 0, seq: 0, synced: 0, chain }
    }

    /// Empties the buffer; what follows goes to `base` of segment `seq`, which is durable below `synced`.
    pub fn begin(&mut self, seq: u64, base: u64, synced: u64) {
        self.buffer.clear();
        self.buffer.shrink_to(KEEP_CAPACITY);
        (self.seq, self.base, self.synced) = (seq, base, synced);
    }

    pub fn crc(&mut self) {
        self.record(Kind::Crc, &[], &[]);
    }

    pub fn metadata(&mut self, bytes: &[u8]) {
        self.record(Kind::Metadata, bytes, &[]);
    }

    pub fn entry(&mut self, entry: &Entry) {
        let mut head = Small::default();
        if entry.r#type != 0 {
            head.field(1, i64::from(entry.r#type) as u64);
        }
        head.field(2, entry.term);
        head.field(3, entry.index);
        if !entry.data.is_empty() {
            head.varint(4 << 3 | 2);
            head.varint(entry.data.len() as u64);
        }
        self.record(Kind::Entry, head.as_slice(), &entry.data);
    }

    pub fn hard_state(&mut self, state: &HardState) {
        let mut head = Small::default();
        head.field(1, state.term);
        head.field(2, state.vote);
        head.field(3, state.commit);
        self.record(Kind::State, head.as_slice(), &[]);
    }

    pub fn snapshot(&mut self, snapshot: &Snapshot) {
        let mut head = Small::default();
        // etcd counts on index and term being there even when 0.
        head.field(1, snapshot.index);
        head.field(2, snapshot.term);
        let conf_state = snapshot.conf_state.as_ref().map(Message::encode_to_vec);
        if let Some(conf_state) = &conf_state {
            head.varint(3 << 3 | 2);
            head.varint(conf_state.len() as u64);
        }
        self.record(Kind::Snapshot, head.as_slice(), conf_state.as_deref().unwrap_or_default());
    }

    /// Appends one record whose data is `head` followed by `body`.
    fn record(&mut self, kind: Kind, head: &[u8], body: &[u8]) {
        let data_len = head.len() + body.len();
        self.chain = crc32c::crc32c_append(crc32c::crc32c_append(self.chain, head), body);
        let mut len = 3 + varint_len(self.chain.into()) + SYNCED_TAG.len() + varint_len(self.synced) + CHECK_LEN;
        if data_len > 0 {
            len += 1 + varint_len(data_len as u64) + data_len;
        }
        let pad = len.wrapping_neg() % 8;
        let start = self.buffer.len();
        let offset = self.base + start as u64;
        let buffer = &mut self.buffer;
        buffer.reserve(FRAME + len + pad);
        buffer.extend_from_slice(&frame_header(len as u64, pad as u64).to_le_bytes());
        buffer.extend_from_slice(&[1 << 3, kind as u8, 2 << 3]);
        put_varint(buffer, self.chain.into());
        if data_len > 0 {
            buffer.push(3 << 3 | 2);
            put_varint(buffer, data_len as u64);
            buffer.extend_from_slice(head);
            buffer.extend_from_slice(body);
        }
        buffer.extend_from_slice(&SYNCED_TAG);
        put_varint(buffer, self.synced);
        let check = check(self.seq, offset, &buffer[start..]);
        buffer.extend_from_slice(&CHECK_TAG);
        buffer.extend_from_slice(&check.to_le_bytes());
        buffer.extend_from_slice(&[0; 8][..pad]);
        debug_assert_eq!(buffer.len() - start, FRAME + len + pad);
    }
}

fn frame_header(len: u64, pad: u64) -> u64 {
    if pad == 0 { len } else { len | (0x80 | pad) << 56 }
}

fn check(seq: u64, offset: u64, frame: &[u8]) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&seq.to_le_bytes());
    place[8..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), frame)
}

/// One record that reads well by itself; the chain is for the caller to check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub kind: Kind,
    pub crc: u32,
    pub data: &'a [u8],
    /// Set in records written by this crate, whose check has held. `None`: nothing but the chain vouches for it.
    pub synced: Option<u64>,
    /// Has exactly the fields etcd writes.
    pub foreign: bool,
    /// Bytes to the next frame.
    pub frame_len: u64,
}

/// Why there is no record at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// The file ends here.
    End,
    /// The frame header is 0: allocated, not written.
    Zero,
    /// Fewer bytes than a frame header are left.
    Short,
    /// The frame claims more bytes than the file has.
    Overlong,
    /// The padding is not what the length asks for.
    Padding,
    /// Not a `walpb.Record`.
    Malformed,
    /// The frame does not match its own check.
    Check,
    /// A type no version of etcd writes.
    UnknownKind,
    /// The chain of checksums breaks.
    Chain,
}

impl Bad {
    pub fn what(self) -> &'static str {
        match self {
            Self::End => "the file ends",
            Self::Zero => "the record length is zero",
            Self::Short => "a record header is cut short",
            Self::Overlong => "a record is longer than the rest of the file",
            Self::Padding => "a record header is malformed",
            Self::Malformed => "a record does not parse",
            Self::Check => "a record does not match its check",
            Self::UnknownKind => "a record has an unknown type",
            Self::Chain => "a record breaks the chain of checksums",
        }
    }
}

/// Reads the record at `offset` of segment `seq`, whose bytes are `segment`.
pub(crate) fn decode(segment: &[u8], seq: u64, offset: u64) -> Result<Record<'_>, Bad> {
    let rest = usize::try_from(offset).ok().and_then(|start| segment.get(start..)).ok_or(Bad::End)?;
    let Some((header, body)) = rest.split_first_chunk::<FRAME>() else {
        return Err(if rest.iter().all(|byte| *byte == 0) { Bad::End } else { Bad::Short });
    };
    let (len, pad) = frame_size(u64::from_le_bytes(*header))?;
    let Some(record) = body.get(..len) else { return Err(Bad::Overlong) };
    let Some(padding) = body.get(len..len + pad) else { return Err(Bad::Overlong) };
    if padding.iter().any(|byte| *byte != 0) {
        return Err(Bad::Padding);
    }
    let fields = RecordFields::parse(record).ok_or(Bad::Malformed)?;
    match (fields.synced, fields.check) {
        (None, None) => {}
        (Some(_), Some(value)) => {
            // The check is the last field, or the sum below is over something else and fails.
            let covered = &rest[..(FRAME + len).saturating_sub(CHECK_LEN)];
            if value != check(seq, offset, covered) {
                return Err(Bad::Check);
            }
        }
        _ => return Err(Bad::Check),
    }
    let kind = Kind::from_number(fields.kind).ok_or(Bad::UnknownKind)?;
    let frame_len = (FRAME + len + pad) as u64;
    let foreign = fields.synced.is_none() && !fields.others;
    Ok(Record { kind, crc: fields.crc, data: fields.data, synced: fields.synced, foreign, frame_len })
}

/// Length and padding out of a frame header.
fn frame_size(header: u64) -> Result<(usize, usize), Bad> {
    if header == 0 {
        return Err(Bad::Zero);
    }
    let len = header & (u64::MAX >> 8);
    let pad = match header >> 56 {
        0 => 0,
        top @ 0x81..=0x87 => top & 7,
        _ => return Err(Bad::Padding),
    };
    if !(len + pad).is_multiple_of(8) {
        return Err(Bad::Padding);
    }
    Ok((usize::try_from(len).map_err(|_| Bad::Overlong)?, pad as usize))
}

/// Whether the frame at `offset` has the shape of etcd's.
pub(crate) fn looks_foreign(segment: &[u8], seq: u64, offset: u64) -> bool {
    decode(segment, seq, offset).is_ok_and(|record| record.foreign)
}

/// Whether the frame at `offset` is one that only etcd can have written. The shape alone does not tell: where noise begins
/// at the length of the data of a torn record of ours, it needs one byte to be the one that has the data swallow our own
/// two fields. So the data has to be what the type says, too.
pub(crate) fn is_foreign(segment: &[u8], seq: u64, offset: u64) -> bool {
    decode(segment, seq, offset).is_ok_and(|record| record.foreign && holds_message(record.kind, record.data))
}

/// Whether `data` has the fields of the message that a record of this kind carries, each once and in order, as every
/// encoder writes them.
fn holds_message(kind: Kind, data: &[u8]) -> bool {
    let mut before = 0;
    Fields(data).all(|field| {
        let Some((number, value)) = field else { return false };
        let expected = match (kind, number, value) {
            (Kind::Metadata, 1..=2, Value::Varint(_))
            | (Kind::Entry | Kind::State, 1..=3, Value::Varint(_))
            | (Kind::Entry, 4, Value::Bytes(_))
            | (Kind::Snapshot, 1..=2, Value::Varint(_))
            | (Kind::Snapshot, 3, Value::Bytes(_)) => number > before,
            _ => false,
        };
        before = number;
        expected
    })
}

/// Whether a record of ours may begin here: cheap, and true for about one in 2^24 of other bytes.
pub(crate) fn may_be_own(segment: &[u8], offset: usize) -> bool {
    let Some((header, body)) = segment.get(offset..).and_then(<[u8]>::split_first_chunk::<FRAME>) else { return false };
    let Ok((len, _)) = frame_size(u64::from_le_bytes(*header)) else { return false };
    len >= CHECK_LEN && body.get(len - CHECK_LEN..).is_some_and(|tail| tail.starts_with(&CHECK_TAG))
}

/// etcd's test for a torn write: cut along 512-byte sectors of the file, some piece of the record is all zeroes.
pub(crate) fn has_zero_sector(segment: &[u8], offset: u64) -> bool {
    let Some((header, body)) = usize::try_from(offset)
        .ok()
        .and_then(|start| segment.get(start..))
        .and_then(<[u8]>::split_first_chunk::<FRAME>)
    else {
        return false;
    };
    // As loosely as etcd takes the header: what is torn may be the header itself.
    let header = u64::from_le_bytes(*header);
    let pad = if header >> 63 == 1 { header >> 56 & 7 } else { 0 };
    let len = usize::try_from((header & (u64::MAX >> 8)) + pad).unwrap_or(usize::MAX);
    let mut data = &body[..body.len().min(len)];
    let mut position = offset + FRAME as u64;
    while !data.is_empty() {
        let (sector, rest) = data.split_at(data.len().min((512 - position % 512) as usize));
        if sector.iter().all(|byte| *byte == 0) {
            return true;
        }
        position += sector.len() as u64;
        data = rest;
    }
    false
}

#[derive(Default)]
struct RecordFields<'a> {
    kind: u64,
    crc: u32,
    data: &'a [u8],
    synced: Option<u64>,
    check: Option<u32>,
    others: bool,
}

impl<'a> RecordFields<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut found = Self::default();
        for field in Fields(bytes) {
            match field? {
                (1, Value::Varint(kind)) => found.kind = kind,
                (2, Value::Varint(crc)) => found.crc = u32::try_from(crc).ok()?,
                (3, Value::Bytes(data)) => found.data = data,
                (SYNCED_FIELD, Value::Varint(synced)) => found.synced = Some(synced),
                (CHECK_FIELD, Value::Fixed32(check)) => found.check = Some(check),
                // Another version's fields are skipped, as etcd skips ours; ours in another shape are damage.
                (1..=3 | SYNCED_FIELD | CHECK_FIELD, _) => return None,
                _ => found.others = true,
            }
        }
        Some(found)
    }
}

/// Index and term of an encoded entry, without touching its data.
pub(crate) fn entry_position(data: &[u8]) -> Option<(u64, u64)> {
    let (mut term, mut index) = (0, 0);
    for field in Fields(data) {
        match field? {
            (2, Value::Varint(value)) => term = value,
            (3, Value::Varint(value)) => index = value,
            (1, Value::Varint(_)) | (4, Value::Bytes(_)) => {}
            (1..=4, _) => return None,
            _ => {}
        }
    }
    Some((index, term))
}

/// What etcd's `etcdserverpb.Metadata` holds.
pub(crate) fn decode_metadata(data: &[u8]) -> Option<Metadata> {
    let mut metadata = Metadata { node_id: 0, cluster_id: 0 };
    for field in Fields(data) {
        match field? {
            (1, Value::Varint(id)) => metadata.node_id = id,
            (2, Value::Varint(id)) => metadata.cluster_id = id,
            (1 | 2, _) => return None,
            _ => {}
        }
    }
    Some(metadata)
}

pub(crate) fn encode_metadata(metadata: Metadata) -> Vec<u8> {
    let mut bytes = Small::default();
    bytes.field(1, metadata.node_id);
    bytes.field(2, metadata.cluster_id);
    bytes.as_slice().to_vec()
}

enum Value<'a> {
    Varint(u64),
    Fixed64,
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// The fields of a protobuf message; `None` once, where it stops making sense.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(len)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        let field = key >> 3;
        if field == 0 { None } else { Some((field, value)) }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for (at, &byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f).checked_shl(7 * at as u32)?;
            if byte < 0x80 {
                // The tenth byte has room for one bit.
                if at == 9 && byte > 1 {
                    return None;
                }
                self.0 = &self.0[at + 1..];
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// The few fixed fields of a message, on the stack.
struct Small {
    bytes: [u8; 64],
    len: usize,
}

impl Default for Small {
    fn default() -> Self {
        Self { bytes: [0; 64], len: 0 }
    }
}

impl Small {
    /// A varint field; at most 11 bytes, and no message here has more than five.
    fn field(&mut self, number: u64, value: u64) {
        self.varint(number << 3);
        self.varint(value);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes[self.len] = value as u8 | 0x80;
            self.len += 1;
            value >>= 7;
        }
        self.bytes[self.len] = value as u8;
        self.len += 1;
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

fn put_varint(buffer: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        buffer.push(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.push(value as u8);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dolmen_env::Rng;
    use dolmen_proto::raftpb::ConfState;
    use dolmen_proto::walpb;

    use super::*;

    fn one(fill: impl FnOnce(&mut Encoder)) -> Vec<u8> {
        let mut encoder = Encoder::new(5);
        encoder.begin(3, 4096, 1000);
        fill(&mut encoder);
        encoder.buffer
    }

    /// A segment with the record at 4096, where `one` thinks it is.
    fn placed(bytes: &[u8]) -> Vec<u8> {
        let mut segment = vec![0; 4096];
        segment.extend_from_slice(bytes);
        segment
    }

    #[test]
    fn the_extra_fields_have_the_tags_protobuf_gives_them() {
        let mut key = Vec::new();
        put_varint(&mut key, 7001 << 3 | 5);
        assert_eq!(key, CHECK_TAG);
        key.clear();
        put_varint(&mut key, 7002 << 3);
        assert_eq!(key, SYNCED_TAG);
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(varint_len(value), bytes.len());
            assert_eq!(Fields(&bytes).varint(), Some(value));
        }
        assert_eq!(Fields(&[0xff; 10]).varint(), None);
    }

    #[test]
    fn a_record_is_etcds_message_with_two_fields_more() {
        let entry = Entry { term: 7, index: 300, r#type: 1, data: Bytes::from(vec![9; 200]) };
        let bytes = one(|e| e.entry(&entry));
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let len = (header & (u64::MAX >> 8)) as usize;
        let record = walpb::Record::decode(&bytes[8..8 + len]).unwrap();
        assert_eq!((record.r#type, record.crc), (2, crc32c::crc32c_append(5, &record.data)));
        assert_eq!(Entry::decode(record.data).unwrap(), entry);
        assert_eq!(bytes.len() % 8, 0);
        let segment = placed(&bytes);
        let decoded = decode(&segment, 3, 4096).unwrap();
        assert_eq!((decoded.kind, decoded.synced, decoded.frame_len), (Kind::Entry, Some(1000), bytes.len() as u64));
        assert_eq!(entry_position(decoded.data), Some((300, 7)));
        assert!(may_be_own(&segment, 4096) && !is_foreign(&segment, 3, 4096));
    }

    #[test]
    fn every_kind_reads_back() {
        let state = HardState { term: u64::MAX, vote: 0, commit: 3 };
        let bytes = placed(&one(|e| e.hard_state(&state)));
        assert_eq!(HardState::decode(decode(&bytes, 3, 4096).unwrap().data).unwrap(), state);
        let conf_state = ConfState { voters: vec![1, u64::MAX], ..ConfState::default() };
        for conf_state in [None, Some(conf_state)] {
            let snapshot = Snapshot { index: 0, term: 5, conf_state };
            let bytes = placed(&one(|e| e.snapshot(&snapshot)));
            assert_eq!(Snapshot::decode(decode(&bytes, 3, 4096).unwrap().data).unwrap(), snapshot);
        }
        let ids = Metadata { node_id: u64::MAX, cluster_id: 0 };
        let bytes = placed(&one(|e| e.metadata(&encode_metadata(ids))));
        assert_eq!(decode_metadata(decode(&bytes, 3, 4096).unwrap().data), Some(ids));
        let bytes = placed(&one(Encoder::crc));
        let crc = decode(&bytes, 3, 4096).unwrap();
        assert_eq!((crc.kind, crc.crc, crc.data), (Kind::Crc, 5, &[][..]));
    }

    #[test]
    fn a_record_is_bound_to_its_bytes_and_its_place() {
        let bytes = placed(&one(|e| e.entry(&Entry { term: 1, index: 2, data: Bytes::from(vec![3; 40]), r#type: 0 })));
        assert!(decode(&bytes, 3, 4096).is_ok());
        assert_eq!(decode(&bytes, 4, 4096).unwrap_err(), Bad::Check);
        let moved = [&[0; 8], &bytes[..]].concat();
        assert_eq!(decode(&moved, 3, 4104).unwrap_err(), Bad::Check);
        for bit in 4096 * 8..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            match decode(&bad, 3, 4096) {
                Err(_) => {}
                // The check's own tag is hit: now it looks like a foreign record with a field nobody knows, unless
                // the other field gives it away, which it does.
                Ok(record) => panic!("bit {bit}: {record:?}"),
            }
        }
    }

    #[test]
    fn noise_and_cut_records_never_panic() {
        let mut rng = Rng::new(11);
        let good = one(|e| e.entry(&Entry { term: 1, index: 2, data: Bytes::from(vec![3; 90]), r#type: 0 }));
        for len in 0..good.len() {
            let cut = placed(&good[..len]);
            assert!(decode(&cut, 3, 4096).is_err());
            may_be_own(&cut, 4096);
            has_zero_sector(&cut, 4096);
        }
        for _ in 0..20_000 {
            let len = rng.below(60) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            if len > 8 && rng.chance(700) {
                bytes[1..8].fill(0);
                bytes[0] = rng.below(len as u64) as u8;
            }
            let _ = decode(&bytes, 0, 0);
            let _ = (may_be_own(&bytes, 0), has_zero_sector(&bytes, 0), is_foreign(&bytes, 0, 0));
            let _ = (entry_position(&bytes), decode_metadata(&bytes));
        }
    }

    #[test]
    fn a_zero_sector_is_told_along_the_file() {
        let mut bytes = placed(&one(|e| e.entry(&Entry { term: 1, index: 2, data: vec![3; 2000].into(), r#type: 0 })));
        assert!(!has_zero_sector(&bytes, 4096));
        bytes[4096 + 600..4096 + 1100].fill(0);
        assert!(!has_zero_sector(&bytes, 4096));
        bytes[4096 + 512..4096 + 1024].fill(0);
        assert!(has_zero_sector(&bytes, 4096));
    }
}
