//! Reading a log back, and deciding whether a record that does not read is a torn tail or a loss.
//!
//! Segments are read one after the other. All but the last were durable in full before the next one got its name, so
//! anything wrong in them is a loss, and so is a segment that goes on from another chain of checksums than the one
//! before ended with. In the last segment reading stops at the first offset where no record follows. Everything turns
//! on whether the log was ever durable beyond that offset ([`judge`]):
//!
//! ```text
//! head ok | ok | ok | ??? | ok, "durable up to here" | 0 0 0        the third record was durable:    Corrupt
//! head ok | ok | ok | ??? | 0 0 0    and a slot beyond ???          the same, the slot says so:      Corrupt
//! head ok | ok | ok | ??? | ok, durable up to the second | 0 0 0    written after the last sync:     torn tail
//! ```

use std::path::{Path, PathBuf};

use bytes::Bytes;
use dolmen_env::{Disk, DiskFile, OpenMode};
use dolmen_proto::raftpb::{Entry, HardState};
use dolmen_proto::walpb::Snapshot;
use dolmen_types::{Index, Term};
use prost::Message;

use crate::Metadata;
use crate::error::{Context, WalError};
use crate::names::{self, SegmentName};
use crate::record::{self, Bad, Kind, Record};
use crate::slots::{self, Acked};

/// What a log held when it was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    pub metadata: Metadata,
    /// The last recorded one; all zero in a fresh log.
    pub hard_state: HardState,
    /// Without gaps, the first one right after the snapshot the log was opened from.
    pub entries: Vec<Entry>,
    /// Snapshot records the hard state has committed, oldest first, from the first segment that was read.
    pub snapshots: Vec<Snapshot>,
    /// What was cut off at the end: written, never durable, never acknowledged.
    pub repaired: Option<TornTail>,
}

/// Bytes behind the last good record that were zeroed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    pub file: PathBuf,
    pub offset: u64,
    /// From `offset` to the last byte that was not zero.
    pub bytes: u64,
    /// Why no record could be read there.
    pub what: &'static str,
}

/// One record as [`inspect`] shows it.
#[derive(Clone, Copy, Debug)]
pub struct Inspected<'a> {
    pub seq: u64,
    pub offset: u64,
    pub kind: Kind,
    pub crc: u32,
    /// The encoded message: `etcdserverpb.Metadata`, `raftpb.Entry`, `raftpb.HardState` or `walpb.Snapshot`.
    pub data: &'a [u8],
    /// How far the segment was durable when this was written; `None` in records written by etcd.
    pub synced: Option<u64>,
}

/// Reads a log without changing or locking it, and shows every record in order. Returns the torn tail, if there is one.
///
/// # Errors
/// As [`crate::Wal::open`].
pub fn inspect(disk: &dyn Disk, dir: &Path, show: &mut dyn FnMut(Inspected<'_>)) -> Result<Option<TornTail>, WalError> {
    let mut replay = Replay { show: Some(show), ..Replay::default() };
    let segments = names::list(disk, dir).context("list", dir)?;
    let slots = slots::read(disk, dir)?;
    let tail = read(disk, dir, &segments[names::unbroken_from(&segments)..], &slots, &mut replay, OpenMode::Read)?;
    Ok(tail.torn)
}

/// What the records add up to.
#[derive(Default)]
pub(crate) struct Replay<'a> {
    /// The snapshot to start from; without it, entries are checked and not kept.
    pub from: Option<(Index, Term)>,
    show: Option<&'a mut dyn FnMut(Inspected<'_>)>,
    /// As found, because etcd compares the bytes from segment to segment.
    pub metadata_bytes: Option<Vec<u8>>,
    pub metadata: Option<Metadata>,
    pub hard_state: HardState,
    pub entries: Vec<Entry>,
    pub snapshots: Vec<Snapshot>,
    /// A snapshot record equal to `from` was seen.
    pub matched: bool,
    pub last: Index,
    terms: Terms,
}

impl Replay<'_> {
    pub fn new(from: Option<(Index, Term)>) -> Self {
        Self { from, ..Self::default() }
    }

    /// Snapshot records that the hard state has committed: those above it were recorded and never became real.
    pub fn committed_snapshots(&mut self) -> Vec<Snapshot> {
        let mut snapshots = std::mem::take(&mut self.snapshots);
        snapshots.retain(|snapshot| snapshot.index <= self.hard_state.commit);
        snapshots
    }

    /// Takes one record in. The error says what is wrong with a record whose checksums hold.
    fn take(&mut self, seq: u64, offset: u64, record: &Record<'_>) -> Result<(), String> {
        if let Some(show) = &mut self.show {
            let &Record { kind, crc, data, synced, .. } = record;
            show(Inspected { seq, offset, kind, crc, data, synced });
        }
        if self.metadata.is_none() && !matches!(record.kind, Kind::Crc | Kind::Metadata) {
            return Err("no metadata at the head of the segment".into());
        }
        match record.kind {
            Kind::Crc => Ok(()),
            Kind::Metadata => self.take_metadata(record.data),
            Kind::Entry => self.take_entry(record.data),
            Kind::State => {
                self.hard_state =
                    HardState::decode(record.data).map_err(|e| format!("a hard state does not parse: {e}"))?;
                Ok(())
            }
            Kind::Snapshot => self.take_snapshot(record.data),
        }
    }

    fn take_metadata(&mut self, data: &[u8]) -> Result<(), String> {
        match &self.metadata_bytes {
            Some(known) if known != data => Err("this segment names another member than the one before".into()),
            Some(_) => Ok(()),
            None => {
                self.metadata = Some(record::decode_metadata(data).ok_or("the metadata does not parse")?);
                self.metadata_bytes = Some(data.to_vec());
                Ok(())
            }
        }
    }

    /// A later entry replaces an earlier one of its index and everything that followed it.
    fn take_entry(&mut self, data: &[u8]) -> Result<(), String> {
        let (index, term) = record::entry_position(data).ok_or("an entry does not parse")?;
        if index == 0 {
            return Err("an entry has index 0".into());
        }
        if let Some((from, _)) = self.from {
            match index.checked_sub(from).and_then(|above| above.checked_sub(1)) {
                None => self.entries.clear(),
                Some(at) if at > self.entries.len() as u64 => {
                    return Err(format!("entry {index} follows entry {}", from + self.entries.len() as u64));
                }
                Some(at) => {
                    let entry = Entry::decode(data).map_err(|e| format!("an entry does not parse: {e}"))?;
                    self.entries.truncate(at as usize);
                    self.entries.push(entry);
                }
            }
        }
        self.terms.entry(index, term);
        self.last = index;
        Ok(())
    }

    /// A snapshot received from the leader starts the log anew at its index, unless the log holds that very entry. Old
    /// entries above it must not come back to life behind it. This holds only for snapshots the caller has, those up to
    /// `from`: one that was recorded but not kept has not replaced anything.
    fn take_snapshot(&mut self, data: &[u8]) -> Result<(), String> {
        let snapshot = Snapshot::decode(data).map_err(|e| format!("a snapshot record does not parse: {e}"))?;
        let (index, term) = (snapshot.index, snapshot.term);
        match self.from {
            Some(from) if index <= from.0 => {
                self.matched |= (index, term) == from;
                let held = match self.terms.of(index) {
                    Some(found) => found == term,
                    None => index <= self.last,
                };
                if !held {
                    self.entries.clear();
                    self.terms.reset(index, term);
                    self.last = index;
                }
            }
            Some(_) => {}
            None => self.last = self.last.max(index),
        }
        self.snapshots.push(snapshot);
        Ok(())
    }
}

/// Terms of the entries read, as runs.
#[derive(Default)]
struct Terms {
    runs: Vec<(Index, Term)>,
    last: Index,
}

impl Terms {
    fn entry(&mut self, index: Index, term: Term) {
        if index > self.last.saturating_add(1) {
            self.runs.clear();
        }
        while self.runs.last().is_some_and(|run| run.0 >= index) {
            self.runs.pop();
        }
        if self.runs.last().is_none_or(|run| run.1 != term) {
            self.runs.push((index, term));
        }
        self.last = index;
    }

    fn of(&self, index: Index) -> Option<Term> {
        if index > self.last {
            return None;
        }
        self.runs.iter().rfind(|run| run.0 <= index).map(|run| run.1)
    }

    fn reset(&mut self, index: Index, term: Term) {
        self.runs = vec![(index, term)];
        self.last = index;
    }
}

/// Where the log ends, in its last segment.
pub(crate) struct Tail {
    pub name: SegmentName,
    pub file: Box<dyn DiskFile>,
    /// The whole segment.
    pub bytes: Vec<u8>,
    /// Behind the last good record.
    pub end: u64,
    /// The chain of checksums there.
    pub chain: u32,
    /// Known to have been durable, by a record or a slot; at most `end`.
    pub synced: u64,
    /// Behind the last record that says something new: only repetitions of the hard state may follow it, and
    /// `chain_meaningful` is the chain of checksums there.
    pub meaningful_end: u64,
    pub chain_meaningful: u32,
    pub torn: Option<TornTail>,
}

/// Reads segments, which follow each other, into `replay`. The last one is opened in `mode`.
///
/// # Errors
/// `Corrupt` with the place; `Missing` without segments; `Io`.
pub(crate) fn read(
    disk: &dyn Disk,
    dir: &Path,
    segments: &[SegmentName],
    slots: &[Option<Acked>; 2],
    replay: &mut Replay<'_>,
    mode: OpenMode,
) -> Result<Tail, WalError> {
    let (&last, sealed) = segments.split_last().ok_or_else(|| WalError::Missing { dir: dir.to_owned() })?;
    let mut bytes = Vec::new();
    let mut before: Option<Scan> = None;
    for &name in sealed {
        let path = name.path(dir);
        let file = disk.open(&path, OpenMode::Read).context("open", &path)?;
        load(file.as_ref(), &path, &mut bytes)?;
        let scan = scan(dir, name, &bytes, before.as_ref(), replay)?;
        if !matches!(scan.stopped, Bad::End | Bad::Zero) || scan.records < HEAD_RECORDS {
            return Err(corrupt(&path, scan.end, replay, scan.stopped.what()));
        }
        before = Some(scan);
    }
    let path = last.path(dir);
    let file = disk.open(&path, mode).context("open", &path)?;
    load(file.as_ref(), &path, &mut bytes)?;
    let scan = scan(dir, last, &bytes, before.as_ref(), replay)?;
    let acked = replay.metadata.and_then(|metadata| slots::newest(slots, metadata));
    let used = used_len(&bytes);
    let synced = judge(dir, &scan, &bytes, used, acked, replay)?;
    if let Some(acked) = acked.filter(|acked| acked.term > replay.hard_state.term) {
        let (wanted, found) = (acked.term, replay.hard_state.term);
        let what =
            format!("the log stands in term {found}, though it was durable in term {wanted}: it is an older copy");
        return Err(corrupt(&path, scan.end, replay, &what));
    }
    let torn = (used as u64).checked_sub(scan.end).filter(|len| *len > 0).map(|len| TornTail {
        file: path,
        offset: scan.end,
        bytes: len,
        what: scan.stopped.what(),
    });
    Ok(Tail {
        name: last,
        file,
        end: scan.end,
        chain: scan.chain,
        synced: synced.min(scan.end),
        meaningful_end: scan.meaningful_end,
        chain_meaningful: scan.chain_meaningful,
        torn,
        bytes,
    })
}

/// Every segment opens with a crc record and the metadata, durable before the segment gets its name.
const HEAD_RECORDS: u64 = 2;

/// One segment, read as far as it reads.
struct Scan {
    name: SegmentName,
    records: u64,
    end: u64,
    chain: u32,
    meaningful_end: u64,
    chain_meaningful: u32,
    stopped: Bad,
    /// The most any record so far says was durable.
    synced: u64,
    /// Whether the last good record was written by etcd.
    last_is_foreign: bool,
}

fn load(file: &dyn DiskFile, path: &Path, bytes: &mut Vec<u8>) -> Result<(), WalError> {
    let len = file.len().context("read", path)?;
    let grow = usize::try_from(len).map_err(|_| std::io::ErrorKind::OutOfMemory.into());
    let grow = grow.and_then(|len| {
        bytes.clear();
        bytes.try_reserve_exact(len).map_err(|_| std::io::ErrorKind::OutOfMemory.into()).map(|()| len)
    });
    bytes.resize(grow.context("read", path)?, 0);
    file.read_exact_at(bytes, 0).context("read", path)
}

fn scan(
    dir: &Path,
    name: SegmentName,
    bytes: &[u8],
    before: Option<&Scan>,
    replay: &mut Replay<'_>,
) -> Result<Scan, WalError> {
    let path = name.path(dir);
    let mut scan = Scan {
        name,
        records: 0,
        end: 0,
        chain: before.map_or(0, |before| before.chain),
        meaningful_end: 0,
        chain_meaningful: 0,
        stopped: Bad::End,
        synced: 0,
        last_is_foreign: false,
    };
    loop {
        let record = match record::decode(bytes, name.seq, scan.end) {
            Ok(record) => record,
            Err(bad) => {
                scan.stopped = bad;
                return Ok(scan);
            }
        };
        if scan.records == 0 {
            if record.kind != Kind::Crc {
                return Err(corrupt(&path, 0, replay, "the segment does not begin with a crc record"));
            }
            match before {
                Some(before) if record.crc != scan.chain => {
                    let what = format!("the segment ends here, but {} goes on from another place", name.file_name());
                    return Err(corrupt(&before.name.path(dir), before.end, replay, &what));
                }
                _ => scan.chain = record.crc,
            }
        }
        let chain = crc32c::crc32c_append(scan.chain, record.data);
        if record.crc != chain || (record.kind == Kind::Crc && !record.data.is_empty()) {
            scan.stopped = Bad::Chain;
            return Ok(scan);
        }
        let state_before = replay.hard_state;
        replay.take(name.seq, scan.end, &record).map_err(|what| corrupt(&path, scan.end, replay, &what))?;
        scan.chain = chain;
        scan.end += record.frame_len;
        scan.records += 1;
        scan.synced = scan.synced.max(record.synced.unwrap_or(0));
        scan.last_is_foreign = record.foreign;
        if record.kind != Kind::State || replay.hard_state != state_before {
            scan.meaningful_end = scan.end;
            scan.chain_meaningful = chain;
        }
    }
}

/// Bytes up to the last one that is not zero.
fn used_len(bytes: &[u8]) -> usize {
    let mut len = bytes.len();
    for chunk in bytes.rchunks(4096) {
        // A sum rather than a search, so that the compiler goes through tens of megabytes by the vector.
        if chunk.iter().fold(0, |any, byte| any | byte) != 0 {
            return len - chunk.iter().rev().take_while(|byte| **byte == 0).count();
        }
        len -= chunk.len();
    }
    len
}

/// Decides about the end of the log: `Corrupt`, or how far the last segment is known to have been durable.
fn judge(
    dir: &Path,
    scan: &Scan,
    bytes: &[u8],
    used: usize,
    acked: Option<Acked>,
    replay: &Replay<'_>,
) -> Result<u64, WalError> {
    let path = scan.name.path(dir);
    if let Some(acked) = acked
        && acked.seq > scan.name.seq
    {
        let what = format!("segment {:016x} is missing, which was durable up to index {}", acked.seq, acked.index);
        return Err(corrupt(&path, scan.end, replay, &what));
    }
    if scan.records < HEAD_RECORDS {
        return Err(corrupt(&path, scan.end, replay, scan.stopped.what()));
    }
    let slot = acked.filter(|acked| acked.seq == scan.name.seq).map_or(0, |acked| acked.offset);
    let synced = scan.synced.max(slot).max(later_claim(bytes, used, scan));
    if synced > scan.end {
        let what = format!("{}, though the log was durable up to offset {synced}", scan.stopped.what());
        return Err(corrupt(&path, scan.end, replay, &what));
    }
    // A slot that ends exactly here was written before our first record behind etcd's.
    let seq = scan.name.seq;
    let etcd_wrote_here = record::is_foreign(bytes, seq, scan.end)
        || (record::looks_foreign(bytes, seq, scan.end) && has_later_pair(bytes, used, scan, |pair| pair.foreign))
        || (scan.last_is_foreign && slot != scan.end);
    if etcd_wrote_here && !etcd_would_cut(bytes, used, scan) {
        return Err(corrupt(&path, scan.end, replay, scan.stopped.what()));
    }
    Ok(synced)
}

/// The most that good records of ours behind the end say was durable.
fn later_claim(bytes: &[u8], used: usize, scan: &Scan) -> u64 {
    let mut most = 0;
    let mut at = scan.end as usize + record::FRAME;
    while at < used {
        if record::may_be_own(bytes, at)
            && let Ok(record) = record::decode(bytes, scan.name.seq, at as u64)
        {
            most = most.max(record.synced.unwrap_or(0));
        }
        at += record::FRAME;
    }
    most
}

/// etcd's own rule for its own records: zeroes end the log, a record that is longer than the file or has a sector of
/// zeroes is torn, anything else is damage. One case is judged harder than etcd does: when good records follow a length
/// that is too long, that length has rotted, and etcd would cut them all.
fn etcd_would_cut(bytes: &[u8], used: usize, scan: &Scan) -> bool {
    match scan.stopped {
        Bad::End | Bad::Zero | Bad::Short => true,
        Bad::Overlong => !has_later_pair(bytes, used, scan, |_| true),
        Bad::Padding | Bad::Malformed | Bad::Check | Bad::UnknownKind | Bad::Chain => {
            record::has_zero_sector(bytes, scan.end)
        }
    }
}

/// Whether two records that continue each other's checksum, and that `wanted` takes, follow anywhere behind the end.
fn has_later_pair(bytes: &[u8], used: usize, scan: &Scan, wanted: impl Fn(&Record<'_>) -> bool) -> bool {
    let decode = |at| record::decode(bytes, scan.name.seq, at).ok().filter(&wanted);
    (scan.end + 8..used as u64).step_by(record::FRAME).any(|at| {
        decode(at).is_some_and(|first| {
            decode(at + first.frame_len).is_some_and(|second| {
                !second.data.is_empty() && crc32c::crc32c_append(first.crc, second.data) == second.crc
            })
        })
    })
}

fn corrupt(file: &Path, offset: u64, replay: &Replay<'_>, what: &str) -> WalError {
    WalError::Corrupt { file: file.to_owned(), offset, index: replay.last.saturating_add(1), what: what.to_owned() }
}

/// Reads the log for `from` and checks that what was read belongs together.
pub(crate) fn recover(
    disk: &dyn Disk,
    dir: &Path,
    segments: &[SegmentName],
    slots: &[Option<Acked>; 2],
    from: (Index, Term),
    mode: OpenMode,
) -> Result<(Tail, Recovered, Vec<u8>, Index), WalError> {
    if segments.is_empty() {
        return Err(WalError::Missing { dir: dir.to_owned() });
    }
    let no_snapshot = || WalError::NoSnapshot { index: from.0, term: from.1 };
    let start = names::holding(segments, from.0).ok_or_else(no_snapshot)?;
    let unbroken = names::unbroken_from(segments);
    let mut replay = Replay::new(Some(from));
    if start < unbroken {
        replay.last = segments[unbroken - 1].first.saturating_sub(1);
        let what = format!("the segment before it, {:016x}, is missing", segments[unbroken].seq.wrapping_sub(1));
        return Err(corrupt(&segments[unbroken].path(dir), 0, &replay, &what));
    }
    let mut tail = read(disk, dir, &segments[start..], slots, &mut replay, mode)?;
    if !replay.matched {
        return Err(no_snapshot());
    }
    let last = replay.last.max(from.0);
    if replay.hard_state.commit > last {
        let what = format!("index {} is committed, but the log ends at index {last}", replay.hard_state.commit);
        return Err(corrupt(&tail.name.path(dir), tail.end, &replay, &what));
    }
    let (Some(metadata), Some(metadata_bytes)) = (replay.metadata, replay.metadata_bytes.take()) else {
        return Err(corrupt(&tail.name.path(dir), tail.end, &replay, "no metadata at the head of the segment"));
    };
    let recovered = Recovered {
        metadata,
        hard_state: replay.hard_state,
        snapshots: replay.committed_snapshots(),
        entries: replay.entries,
        repaired: tail.torn.take(),
    };
    Ok((tail, recovered, metadata_bytes, last))
}

/// Bytes as read from the file, for callers that want to keep a record.
impl Inspected<'_> {
    /// The entry in an entry record.
    ///
    /// # Errors
    /// When the data does not parse.
    pub fn entry(&self) -> Result<Entry, prost::DecodeError> {
        Entry::decode(Bytes::copy_from_slice(self.data))
    }
}
