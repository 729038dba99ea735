//! One batch or a part of one, or one checkpoint, as it lies in the active file. The byte table is in
//! `docs/format-revlog.md`.

use std::path::Path;

use bytes::Bytes;
use dolmen_types::{Index, Term};

use crate::Error;
use crate::codec::{Get, put_varint};
use crate::record::{Head, NewRecord, Slot, put_record};
use crate::tables::{Table, TableOp, Tables};

pub(crate) const HEADER: usize = 104;
const MAGIC: [u8; 4] = *b"DLF2";
/// Of version 1: read, no longer written.
const HEADER_1: usize = 80;
const MAGIC_1: [u8; 4] = *b"DLF1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Batch = 1,
    /// All tables as they stood at the end of the segment before. The first frame of every file.
    Checkpoint = 2,
    /// Records of a batch that goes on in the next frame. They count when its last frame, a [`Kind::Batch`], does.
    Part = 3,
}

/// What a frame's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub kind: Kind,
    /// Counts frames, without a gap inside one file.
    pub seq: u64,
    /// Counts openings of the store: bytes of an earlier life can never continue a later one.
    pub epoch: u64,
    pub index: Index,
    pub term: Term,
    /// The compact revision after this frame.
    pub compact: i64,
    /// Every frame up to this one was durable when this one was made; so one that is broken was damaged, not torn.
    pub durable_seq: u64,
    /// Main revision of the first record of the batch that was under way when this frame was made: its parts may lie in
    /// the files before. 0: none was.
    pub begun: i64,
}

/// One encoded frame and where its records are.
pub(crate) struct Encoded {
    pub bytes: Bytes,
    pub slots: Vec<Slot>,
}

/// Encodes a frame that will lie at `offset` of its file.
pub(crate) fn encode<'a>(
    stamp: &Stamp,
    records: &[NewRecord],
    tables: impl ExactSizeIterator<Item = (Table, &'a Bytes, Option<&'a Bytes>)>,
    offset: u32,
) -> Encoded {
    let room: usize = records.iter().map(|record| record.payload.len() + record.key.len() + 72).sum();
    let mut out = Vec::with_capacity(HEADER + room + tables.len() * 64);
    out.resize(HEADER, 0);
    let table_count = tables.len() as u32;
    let slots = records.iter().map(|record| put_record(&mut out, record, offset)).collect();
    for (table, key, value) in tables {
        out.push(table as u8);
        out.push(u8::from(value.is_some()));
        put_varint(&mut out, key.len() as u64);
        out.extend_from_slice(key);
        if let Some(value) = value {
            put_varint(&mut out, value.len() as u64);
            out.extend_from_slice(value);
        }
    }
    let body_len = u32::try_from(out.len() - HEADER).expect("an apply run is far below 4 GiB");
    let body_crc = crc32c::crc32c(&out[HEADER..]);
    let header = &mut out[..HEADER];
    header[..4].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&body_len.to_le_bytes());
    header[12] = stamp.kind as u8;
    header[16..24].copy_from_slice(&stamp.seq.to_le_bytes());
    header[24..32].copy_from_slice(&stamp.epoch.to_le_bytes());
    header[32..40].copy_from_slice(&stamp.index.to_le_bytes());
    header[40..48].copy_from_slice(&stamp.term.to_le_bytes());
    header[48..56].copy_from_slice(&stamp.compact.to_le_bytes());
    header[56..64].copy_from_slice(&stamp.durable_seq.to_le_bytes());
    header[64..68].copy_from_slice(&(records.len() as u32).to_le_bytes());
    header[68..72].copy_from_slice(&table_count.to_le_bytes());
    header[72..76].copy_from_slice(&body_crc.to_le_bytes());
    // Least and greatest time of the records at 80 and 88: none carries one yet.
    header[96..104].copy_from_slice(&stamp.begun.to_le_bytes());
    let header_crc = crc32c::crc32c(&header[8..]);
    header[4..8].copy_from_slice(&header_crc.to_le_bytes());
    Encoded { bytes: out.into(), slots }
}

/// A header whose own checksum fits.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub stamp: Stamp,
    /// Bytes of the header itself.
    size: usize,
    pub body_len: usize,
    records: u32,
    tables: u32,
    body_crc: u32,
}

impl Header {
    pub fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        let magic = bytes.get(at..at.checked_add(4)?)?;
        let size = if magic == MAGIC {
            HEADER
        } else if magic == MAGIC_1 {
            HEADER_1
        } else {
            return None;
        };
        let bytes = bytes.get(at..at.checked_add(size)?)?;
        let mut get = Get::new(bytes, 4);
        if get.u32()? != crc32c::crc32c(&bytes[8..]) {
            return None;
        }
        let body_len = get.u32()? as usize;
        let kind = match get.u32()? {
            1 => Kind::Batch,
            2 => Kind::Checkpoint,
            3 if size == HEADER => Kind::Part,
            _ => return None,
        };
        let mut stamp = Stamp {
            kind,
            seq: get.u64()?,
            epoch: get.u64()?,
            index: get.u64()?,
            term: get.u64()?,
            compact: get.i64()?,
            durable_seq: get.u64()?,
            begun: 0,
        };
        let (records, tables, body_crc) = (get.u32()?, get.u32()?, get.u32()?);
        if size == HEADER {
            stamp.begun = Get::new(bytes, 96).i64()?;
        }
        Some(Self { stamp, size, body_len, records, tables, body_crc })
    }

    /// Bytes of the whole frame.
    pub fn total(&self) -> usize {
        self.size.saturating_add(self.body_len)
    }

    /// The body after a header at `at`, when it is all there and its checksum fits.
    pub fn body(&self, bytes: &Bytes, at: usize) -> Option<Bytes> {
        let start = at + self.size;
        let end = start.checked_add(self.body_len)?;
        let body = bytes.get(start..end)?;
        (crc32c::crc32c(body) == self.body_crc).then(|| bytes.slice(start..end))
    }

    /// Reads the body: calls `record` for each record, and applies the table changes.
    ///
    /// # Errors
    /// `Corrupt` when the bytes, whose checksum fits, make no sense.
    pub fn replay(&self, file: &Path, at: usize, body: &Bytes, tables: &mut Tables) -> Result<Vec<Slot>, Error> {
        let base = at + self.size;
        let broken = |at: usize| Error::corrupt(file, (base + at) as u64, "a frame's content has no known form");
        let mut at = 0;
        let mut slots = Vec::with_capacity((self.records as usize).min(body.len()));
        for _ in 0..self.records {
            let head = Head::parse(&body[at..]).ok_or_else(|| broken(at))?;
            let offset = u32::try_from(base + at).map_err(|_| broken(at))?;
            slots.push(head.slot(offset));
            at += head.total();
        }
        let mut get = Get::new(body, at);
        for _ in 0..self.tables {
            let at = get.at;
            let op = table_op(body, &mut get).ok_or_else(|| broken(at))?;
            tables.apply(op);
        }
        if get.left() != 0 {
            return Err(broken(get.at));
        }
        Ok(slots)
    }
}

fn table_op(body: &Bytes, get: &mut Get<'_>) -> Option<TableOp> {
    let table = Table::from_number(get.u8()?)?;
    let present = get.u8()?;
    let key = copied(body, get)?;
    let value = match present {
        0 => None,
        1 => Some(copied(body, get)?),
        _ => return None,
    };
    Some(TableOp { table, key, value })
}

/// Copied, not sliced: a table row must not keep a whole segment in memory.
fn copied(_body: &Bytes, get: &mut Get<'_>) -> Option<Bytes> {
    let len = usize::try_from(get.varint()?).ok()?;
    get.bytes(len).map(Bytes::copy_from_slice)
}

/// Whether the bytes behind a broken frame prove that it was damaged after it was durable: a whole header further on
/// that says so. `at` is where to look first: after the broken frame if its header can be trusted, else right behind.
pub(crate) fn claimed_durable(bytes: &[u8], mut at: usize, seq: u64, epochs: std::ops::RangeInclusive<u64>) -> bool {
    while at + HEADER_1 <= bytes.len() {
        let Some(found) = bytes[at..].iter().position(|byte| *byte == MAGIC[0]) else { return false };
        at += found;
        if let Some(header) = Header::parse(bytes, at)
            && header.stamp.durable_seq >= seq
            && header.stamp.seq > seq
            && epochs.contains(&header.stamp.epoch)
        {
            return true;
        }
        at += 1;
    }
    false
}
