//! Segment files: the header all of them share, the footer of the sealed ones, and reading a sealed one.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use dolmen_env::{Disk, DiskFile, OpenMode};
use dolmen_types::Revision;

use crate::Error;
use crate::codec::{Get, put_signed, put_varint};
use crate::manifest::SegmentEntry;
use crate::record::{Head, KEY_INSIDE, RecordMeta, Slot, TOMBSTONE, checks};
use crate::store::Trash;

/// The version of every file that is written. Those of version 1 are read.
pub(crate) const VERSION: u32 = 2;
pub(crate) const FILE_HEADER: usize = 32;
pub(crate) const TRAILER: usize = 40;
/// Offsets inside a file are 32 bits wide.
pub(crate) const MAX_FILE: u64 = u32::MAX as u64;

const FILE_MAGIC: [u8; 8] = *b"DOLMENSG";
const FOOTER_MAGIC: [u8; 8] = *b"DOLMENFT";
const TRAILER_MAGIC: [u8; 8] = *b"DOLMENED";
const FOOTER_FIXED: usize = 88;
const FOOTER_FIXED_1: usize = 72;

/// Whether files of a version can be read.
pub(crate) fn known(version: u32) -> bool {
    (1..=VERSION).contains(&version)
}

/// What a file holds between header and footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Frames, as they were appended.
    Frames = 1,
    /// Records one after the other: reclaimed or installed.
    Records = 2,
}

pub(crate) fn file_name(id: u64) -> String {
    format!("{id:016x}.seg")
}

/// The id in a segment's file name.
pub(crate) fn file_id(name: &str) -> Option<u64> {
    let hex = name.strip_suffix(".seg")?;
    (hex.len() == 16 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
        .then(|| u64::from_str_radix(hex, 16).ok())?
}

pub(crate) fn file_header(id: u64, content: Content) -> [u8; FILE_HEADER] {
    let mut out = [0; FILE_HEADER];
    out[..8].copy_from_slice(&FILE_MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&(content as u32).to_le_bytes());
    out[16..24].copy_from_slice(&id.to_le_bytes());
    let crc = crc32c::crc32c(&out[..28]);
    out[28..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Checks a file's first bytes.
pub(crate) fn check_header(file: &Path, bytes: &[u8], id: u64) -> Result<Content, Error> {
    let Some(header) = bytes.get(..FILE_HEADER) else {
        return Err(Error::corrupt(file, bytes.len() as u64, "the file ends inside its header"));
    };
    if header[..8] != FILE_MAGIC {
        return Err(Error::Foreign { file: file.to_owned(), what: "it does not start as a segment does" });
    }
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if word(28) != crc32c::crc32c(&header[..28]) {
        return Err(Error::corrupt(file, 0, "the header does not match its checksum"));
    }
    if !known(word(8)) {
        return Err(Error::Version { file: file.to_owned(), found: word(8), supported: VERSION });
    }
    if header[16..24] != id.to_le_bytes() {
        return Err(Error::corrupt(file, 16, "the header names another segment: the file was renamed"));
    }
    match word(12) {
        1 => Ok(Content::Frames),
        2 => Ok(Content::Records),
        _ => Err(Error::corrupt(file, 12, "the header names an unknown kind of content")),
    }
}

/// Builds a footer while records go by.
#[derive(Default)]
pub(crate) struct FooterBuilder {
    entries: Vec<u8>,
    slots: Vec<Slot>,
    record_bytes: u64,
    /// Where the record before ended.
    end: u32,
    last_main: i64,
    key: Vec<u8>,
}

impl FooterBuilder {
    /// Adds a record; `record` starts with it and `head` describes it.
    pub fn push(&mut self, head: &Head, record: &[u8], offset: u32) {
        let out = &mut self.entries;
        out.push(head.flags);
        put_varint(out, (head.rev.main - self.last_main) as u64);
        put_varint(out, head.rev.sub as u64);
        put_varint(out, u64::from(offset - self.end));
        out.push(head.head as u8);
        put_varint(out, head.len as u64);
        put_signed(out, head.rev.main.wrapping_sub(head.create));
        put_signed(out, head.version);
        put_signed(out, head.lease);
        let payload = &record[head.head..head.head + head.len];
        let key = &record[head.key_range()];
        let shared = self.key.iter().zip(key).take_while(|(a, b)| a == b).count();
        put_varint(out, shared as u64);
        put_varint(out, (key.len() - shared) as u64);
        out.extend_from_slice(&key[shared..]);
        out.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
        self.key.truncate(shared);
        self.key.extend_from_slice(&key[shared..]);
        self.last_main = head.rev.main;
        self.end = offset + head.total() as u32;
        let slot = head.slot(offset);
        self.record_bytes += slot.weight();
        self.slots.push(slot);
    }

    /// Bytes the footer takes so far.
    pub fn len(&self) -> usize {
        FOOTER_FIXED + self.entries.len() + TRAILER
    }

    /// The footer and trailer, to be written at `offset`.
    pub fn finish(self, id: u64, offset: u64) -> (Vec<u8>, FooterParts) {
        let first = self.slots.first().map(Slot::rev).unwrap_or_default();
        let last = self.slots.last().map(Slot::rev).unwrap_or_default();
        let mut out = Vec::with_capacity(self.len());
        out.extend_from_slice(&FOOTER_MAGIC);
        for word in [id, self.slots.len() as u64] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for word in [first.main, first.sub, last.main, last.sub] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.record_bytes.to_le_bytes());
        // Least and greatest time of the records: none carries one yet.
        out.extend_from_slice(&[0; 16]);
        out.extend_from_slice(&(self.entries.len() as u64).to_le_bytes());
        debug_assert_eq!(out.len(), FOOTER_FIXED);
        out.extend_from_slice(&self.entries);
        let len = out.len();
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&(len as u64).to_le_bytes());
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let trailer_crc = crc32c::crc32c(&out[len..]);
        out.extend_from_slice(&trailer_crc.to_le_bytes());
        out.extend_from_slice(&TRAILER_MAGIC);
        let footer = offset as usize..offset as usize + len;
        let (slots, record_bytes) = (self.slots.into(), self.record_bytes);
        (out, FooterParts { slots, record_bytes, footer, footer_crc: crc, version: VERSION })
    }
}

/// What a footer says, without the keys.
pub(crate) struct FooterParts {
    pub slots: Box<[Slot]>,
    pub record_bytes: u64,
    /// Where the footer lies, trailer not included.
    pub footer: Range<usize>,
    pub footer_crc: u32,
    pub version: u32,
}

/// A sealed segment: never changed again, mapped into memory.
pub(crate) struct Segment {
    pub id: u64,
    pub path: PathBuf,
    pub map: Bytes,
    pub parts: FooterParts,
    trash: Arc<Trash>,
    /// No longer in the MANIFEST: the file goes when the last holder of this value does.
    obsolete: AtomicBool,
}

impl Segment {
    pub fn new(id: u64, path: PathBuf, map: Bytes, parts: FooterParts, trash: Arc<Trash>) -> Self {
        Self { id, path, map, parts, trash, obsolete: AtomicBool::new(false) }
    }

    /// Opens a sealed file and checks header, trailer and footer, but no record.
    pub fn open(disk: &dyn Disk, dir: &Path, entry: &SegmentEntry, trash: Arc<Trash>) -> Result<Self, Error> {
        let SegmentEntry { id, len, footer_crc, records, .. } = *entry;
        let path = dir.join(file_name(id));
        let file = match disk.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(Error::Missing { file: path }),
            Err(e) => return Err(Error::io(&path, "open")(e)),
        };
        let found = file.len().map_err(Error::io(&path, "read the length"))?;
        if found != len {
            let what = format!("the file is {found} bytes long, MANIFEST says {len}");
            return Err(Error::corrupt(&path, found.min(len), what));
        }
        let map = file.map(len).map_err(Error::io(&path, "map"))?;
        check_header(&path, &map, id)?;
        let parts = read_footer(&path, &map, id)?;
        if parts.footer_crc != footer_crc {
            let what = "the footer is whole but not the one MANIFEST names";
            return Err(Error::corrupt(&path, parts.footer.start as u64, what));
        }
        let mut segment = Self::new(id, path, map, parts, trash);
        segment.keep(usize::try_from(records).unwrap_or(usize::MAX));
        Ok(segment)
    }

    pub fn slots(&self) -> &[Slot] {
        &self.parts.slots
    }

    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Sealed segments hold at least one record.
    pub fn first(&self) -> Revision {
        self.slots().first().map(Slot::rev).unwrap_or_default()
    }

    pub fn last(&self) -> Revision {
        self.slots().last().map(Slot::rev).unwrap_or_default()
    }

    pub fn find(&self, rev: Revision) -> Option<usize> {
        let at = lower_bound(self.slots(), rev);
        self.slots().get(at).is_some_and(|slot| slot.rev() == rev).then_some(at)
    }

    /// The whole record at a slot, checksum and revision verified.
    pub fn record(&self, slot: &Slot) -> Result<(Head, Bytes), Error> {
        let start = slot.offset as usize;
        let (head, end) = self.checked(slot).ok_or_else(|| self.bad_record(slot))?;
        Ok((head, self.map.slice(start..end)))
    }

    /// The payload of the record at a slot, checksum and revision verified.
    pub fn payload(&self, slot: &Slot) -> Result<Bytes, Error> {
        let start = slot.offset as usize + usize::from(slot.head);
        self.checked(slot).ok_or_else(|| self.bad_record(slot))?;
        Ok(self.map.slice(start..start + slot.len as usize))
    }

    fn checked(&self, slot: &Slot) -> Option<(Head, usize)> {
        let start = slot.offset as usize;
        let bytes = self.map.get(start..self.parts.footer.start)?;
        let head = Head::parse(bytes)?;
        let total = head.total();
        let good = head.rev == slot.rev() && head.slot(slot.offset) == *slot && checks(bytes.get(..total)?);
        good.then_some((head, start + total))
    }

    fn bad_record(&self, slot: &Slot) -> Error {
        Error::Record { file: self.path.clone(), offset: u64::from(slot.offset), revision: slot.rev() }
    }

    /// The metadata of every record, read from the footer.
    pub fn metas(&self) -> FooterEntries {
        let footer = self.map.slice(self.parts.footer.clone());
        FooterEntries::new(footer, self.parts.version, self.slots().len())
    }

    /// The checksum of the payload at a position, as the footer has it; a footer of version 1 has none.
    pub fn payload_crc(&self, at: usize) -> Option<u32> {
        let mut entries = self.metas();
        for _ in 0..=at {
            entries.next_slot().ok()??;
        }
        entries.crc
    }

    /// Leaves out the records of main revision `from` and later: the batch that they belong to never ended.
    pub fn cut(&mut self, from: i64) {
        let kept = self.slots().partition_point(|slot| slot.main < from);
        self.keep(kept);
    }

    fn keep(&mut self, records: usize) {
        if records < self.slots().len() {
            self.parts.slots = self.slots()[..records].into();
            self.parts.record_bytes = self.slots().iter().map(Slot::weight).sum();
        }
    }

    /// Asks for the file to be removed once nobody holds the segment.
    pub fn retire(&self) {
        self.obsolete.store(true, Ordering::Release);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.obsolete.load(Ordering::Acquire) {
            self.trash.push(self.path.clone());
        }
    }
}

/// Position of the first slot at or after a revision. Revisions are mostly dense, so a guess by proportion is close,
/// and the search that widens around it touches few cache lines.
pub(crate) fn lower_bound(slots: &[Slot], rev: Revision) -> usize {
    let (Some(first), Some(last)) = (slots.first(), slots.last()) else { return 0 };
    if rev.main <= first.main || rev.main > last.main {
        return slots.partition_point(|slot| slot.rev() < rev);
    }
    let (span, into) = ((last.main - first.main) as u128, (rev.main - first.main) as u128);
    let guess = (into * (slots.len() - 1) as u128 / span) as usize;
    let (mut low, mut high, mut step) = (0, slots.len(), 4);
    if slots[guess].rev() < rev {
        low = guess + 1;
        while low + step < slots.len() {
            if slots[low + step].rev() >= rev {
                high = low + step;
                break;
            }
            (low, step) = (low + step + 1, step * 4);
        }
    } else {
        high = guess;
        while high > step {
            if slots[high - step].rev() < rev {
                low = high - step + 1;
                break;
            }
            (high, step) = (high - step, step * 4);
        }
    }
    low + slots[low..high].partition_point(|slot| slot.rev() < rev)
}

fn read_footer(path: &Path, map: &Bytes, id: u64) -> Result<FooterParts, Error> {
    let corrupt = |at: usize, what: &str| Error::corrupt(path, at as u64, what);
    let Some(trailer_at) = map.len().checked_sub(TRAILER).filter(|at| *at >= FILE_HEADER) else {
        return Err(corrupt(map.len(), "the file is too short for a sealed segment"));
    };
    let trailer = &map[trailer_at..];
    let mut get = Get::new(trailer, 0);
    let fields = (|| Some((get.u64()?, get.u64()?, get.u32()?, get.u32()?, get.u32()?, get.u32()?)))();
    let Some((offset, len, footer_crc, version, _, crc)) = fields else {
        return Err(corrupt(trailer_at, "the trailer is cut"));
    };
    if trailer[32..] != TRAILER_MAGIC || crc != crc32c::crc32c(&trailer[..28]) {
        return Err(corrupt(trailer_at, "the trailer does not match its checksum"));
    }
    if !known(version) {
        return Err(Error::Version { file: path.to_owned(), found: version, supported: VERSION });
    }
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = start.checked_add(usize::try_from(len).unwrap_or(usize::MAX));
    if start < FILE_HEADER || end != Some(trailer_at) || trailer_at - start < fixed(version) {
        return Err(corrupt(trailer_at, "the trailer points outside the file"));
    }
    let footer = map.slice(start..trailer_at);
    if crc32c::crc32c(&footer) != footer_crc {
        return Err(corrupt(start, "the footer does not match its checksum"));
    }
    let bad = || corrupt(start, "the footer has no known form");
    let mut get = Get::new(&footer, 8);
    let (found, count) = (get.u64().ok_or_else(bad)?, get.u64().ok_or_else(bad)?);
    if footer[..8] != FOOTER_MAGIC || found != id {
        return Err(corrupt(start, "the footer belongs to another segment"));
    }
    // Each entry takes at least eleven bytes, so a wrong count cannot ask for much memory.
    if count == 0 || count > (footer.len() / 11) as u64 {
        return Err(bad());
    }
    let mut slots: Vec<Slot> = Vec::with_capacity(count as usize);
    let mut record_bytes = 0;
    let mut entries = FooterEntries::new(footer, version, usize::MAX);
    while let Some(slot) = entries.next_slot().map_err(|()| bad())? {
        if slots.last().is_some_and(|last| last.rev() >= slot.rev()) || entries.end > start {
            return Err(bad());
        }
        record_bytes += slot.weight();
        slots.push(slot);
    }
    if slots.len() as u64 != count {
        return Err(bad());
    }
    Ok(FooterParts { slots: slots.into(), record_bytes, footer: start..trailer_at, footer_crc, version })
}

fn fixed(version: u32) -> usize {
    if version == 1 { FOOTER_FIXED_1 } else { FOOTER_FIXED }
}

/// Walks the entries of a footer.
pub(crate) struct FooterEntries {
    footer: Bytes,
    at: usize,
    main: i64,
    /// Where the last record ends, in the file.
    end: usize,
    key: Vec<u8>,
    rest: (i64, i64, i64),
    crc: Option<u32>,
    version: u32,
    /// Entries still to come.
    left: usize,
}

impl FooterEntries {
    fn new(footer: Bytes, version: u32, count: usize) -> Self {
        let (at, key) = (fixed(version), Vec::new());
        Self { footer, at, main: 0, end: 0, key, rest: (0, 0, 0), crc: None, version, left: count }
    }

    /// The next entry, `None` at the end.
    pub fn next_slot(&mut self) -> Result<Option<Slot>, ()> {
        if self.at >= self.footer.len() || self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.step().map(Some).ok_or(())
    }

    fn step(&mut self) -> Option<Slot> {
        let mut get = Get::new(&self.footer, self.at);
        let flags = get.u8()?;
        let main = self.main.checked_add(i64::try_from(get.varint()?).ok()?)?;
        let sub = u32::try_from(get.varint()?).ok()?;
        let offset = (self.end as u64).checked_add(get.varint()?)?;
        let head = get.u8()?;
        let len = u32::try_from(get.varint()?).ok()?;
        let create = main.wrapping_sub(get.signed()?);
        let rest = (create, get.signed()?, get.signed()?);
        let shared = usize::try_from(get.varint()?).ok()?;
        let suffix = usize::try_from(get.varint()?).ok()?;
        let suffix = get.bytes(suffix)?;
        let crc = if self.version == 1 { None } else { Some(get.u32()?) };
        if shared > self.key.len() {
            return None;
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(suffix);
        let behind = if flags & KEY_INSIDE == 0 { self.key.len() as u64 } else { 0 };
        let end = offset.checked_add(u64::from(head) + u64::from(len) + behind)?;
        (self.at, self.main, self.rest, self.crc) = (get.at, main, rest, crc);
        self.end = usize::try_from(end).ok()?;
        Some(Slot { main, sub, offset: u32::try_from(offset).ok()?, len, head, flags })
    }

    /// The metadata of the entry that [`Self::next_slot`] answered last.
    pub fn meta(&self, slot: &Slot) -> RecordMeta {
        let (create, version, lease) = self.rest;
        RecordMeta {
            rev: slot.rev(),
            tombstone: slot.flags & TOMBSTONE != 0,
            create,
            version,
            lease,
            key: Bytes::copy_from_slice(&self.key),
            len: slot.len,
        }
    }
}

/// Writes a sealed file of records from front to back: what reclaim and snapshot installation make.
pub(crate) struct SegmentWriter {
    id: u64,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    buffer: Vec<u8>,
    written: u64,
    unsynced: u64,
    footer: FooterBuilder,
    trash: Arc<Trash>,
    finished: bool,
}

const WRITE_BYTES: usize = 1 << 20;
const SYNC_BYTES: u64 = 16 << 20;

impl SegmentWriter {
    /// Starts a file. `reserve` bytes are taken on the disk at once, so that a full disk shows before anything is
    /// written; the error is then `StorageFull`.
    pub fn create(disk: &dyn Disk, dir: &Path, id: u64, reserve: u64, trash: Arc<Trash>) -> Result<Self, Error> {
        let path = dir.join(file_name(id));
        let file = disk.open(&path, OpenMode::Truncate).map_err(Error::io(&path, "create"))?;
        let footer = FooterBuilder::default();
        let buffer = file_header(id, Content::Records).to_vec();
        let out = Self { id, path, file, buffer, written: 0, unsynced: 0, footer, trash, finished: false };
        if reserve > 0 {
            out.file.allocate(reserve).map_err(Error::io(&out.path, "reserve space"))?;
        }
        Ok(out)
    }

    /// Bytes the file will have, about.
    pub fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64 + self.footer.len() as u64
    }

    /// Appends an encoded record.
    pub fn push(&mut self, head: &Head, record: &[u8]) -> Result<(), Error> {
        let offset = self.written + self.buffer.len() as u64;
        self.footer.push(head, record, u32::try_from(offset).expect("callers end a file long before 4 GiB"));
        self.buffer.extend_from_slice(record);
        if self.buffer.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.write_all_at(&self.buffer, self.written).map_err(Error::io(&self.path, "write"))?;
        self.written += self.buffer.len() as u64;
        self.unsynced += self.buffer.len() as u64;
        self.buffer.clear();
        // Often, so that no later sync of the log has to wait behind tens of megabytes.
        if self.unsynced >= SYNC_BYTES {
            self.file.sync_data().map_err(Error::io(&self.path, "sync"))?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Writes the footer; the file's bytes are durable on return, its name after a sync of the directory.
    pub fn finish(mut self) -> Result<Segment, Error> {
        let offset = self.written + self.buffer.len() as u64;
        let (footer, parts) = std::mem::take(&mut self.footer).finish(self.id, offset);
        self.buffer.extend_from_slice(&footer);
        self.flush()?;
        self.file.set_len(self.written).map_err(Error::io(&self.path, "cut"))?;
        self.file.sync_data().map_err(Error::io(&self.path, "sync"))?;
        let map = self.file.map(self.written).map_err(Error::io(&self.path, "map"))?;
        self.finished = true;
        Ok(Segment::new(self.id, self.path.clone(), map, parts, Arc::clone(&self.trash)))
    }
}

impl Drop for SegmentWriter {
    fn drop(&mut self) {
        if !self.finished {
            self.trash.push(self.path.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guessing_search_finds_what_the_plain_one_finds() {
        for spread in [1, 2, 7, 1000] {
            let mut main = 5;
            let mut slots = Vec::new();
            for at in 0..500_i64 {
                // Uneven on purpose: runs of one revision, gaps, and a jump.
                main += if at % 11 < 3 { 0 } else { at % spread + 1 } + if at == 300 { 1 << 40 } else { 0 };
                slots.push(Slot { main, sub: at as u32, offset: 0, len: 0, head: 0, flags: 0 });
            }
            for len in [0, 1, 2, 3, 50, 500] {
                let slots = &slots[..len];
                for slot in slots.iter().chain([&Slot { main: 0, sub: 0, offset: 0, len: 0, head: 0, flags: 0 }]) {
                    for rev in [-1, 0, 1].map(|by| Revision::new(slot.main + by, i64::from(slot.sub))) {
                        assert_eq!(lower_bound(slots, rev), slots.partition_point(|slot| slot.rev() < rev), "{rev:?}");
                    }
                }
            }
        }
    }
}
