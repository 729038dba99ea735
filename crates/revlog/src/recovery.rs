//! Opening: which files count, and how far the active one can be trusted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dolmen_env::{Disk, DiskFile, OpenMode};
use dolmen_types::{Index, Revision, Term};
use parking_lot::Mutex;

use crate::active::Active;
use crate::frame::{self, HEADER, Header, Kind, Stamp};
use crate::install::{FIRST_SEQ, checkpoint};
use crate::jobs::{Tail, begin_file};
use crate::manifest::{self, Manifest, SegmentEntry};
use crate::record::Slot;
use crate::segment::{Content, FILE_HEADER, MAX_FILE, Segment, check_header, file_id};
use crate::store::{Current, LOCK, MANIFEST, SPARE, Store, Trash, is_full, unlink};
use crate::tables::Tables;
use crate::{Error, Options};

/// Everything the writer starts from.
pub(crate) struct Opened {
    pub store: Arc<Store>,
    pub manifest: Manifest,
    pub sealed: Vec<Arc<Segment>>,
    pub tip: Tip,
}

/// The active file, read.
pub(crate) struct Tip {
    pub active: Arc<Active>,
    pub tail: Tail,
    pub tables: Tables,
    pub seq: u64,
    pub index: Index,
    pub term: Term,
    pub compact: i64,
    pub last: Option<Revision>,
    /// Sum of the weights of its records.
    pub record_bytes: u64,
}

pub(crate) fn open(disk: Arc<dyn Disk>, dir: &Path, options: Options) -> Result<Opened, Error> {
    disk.create_dir_all(dir).map_err(Error::io(dir, "make the directory"))?;
    let lock = match disk.lock(&dir.join(LOCK)) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(Error::Locked { dir: dir.to_owned() }),
        result => result.map_err(Error::io(&dir.join(LOCK), "lock"))?,
    };
    let names = disk.read_dir(dir).map_err(Error::io(dir, "list"))?;
    let spare = if names.iter().any(|name| name == SPARE) { length(&*disk, &dir.join(SPARE))? } else { 0 };
    let found = read_manifest(&*disk, dir, &names)?;
    let highest = names.iter().filter_map(|name| file_id(name)).max().unwrap_or(0);
    let next_id = found.as_ref().map_or(1, |manifest| manifest.next_id).max(highest.saturating_add(1));
    let mut store = Store {
        disk,
        dir: dir.to_owned(),
        options,
        trash: Arc::new(Trash::default()),
        next_id: AtomicU64::new(next_id),
        spare: AtomicU64::new(spare),
        current: Mutex::new(Current { manifest: Manifest::default(), generation: 0 }),
        _lock: lock,
    };
    let (mut manifest, mut tip) = match found {
        Some(manifest) => (manifest, None),
        None => {
            let (manifest, tip) = create(&store)?;
            (manifest, Some(tip))
        }
    };
    let mut sealed = Vec::with_capacity(manifest.segments.len());
    for entry in &manifest.segments {
        let segment = store.open_segment(entry)?;
        let words = segment.slots().len().div_ceil(64);
        if segment.first() != entry.first || segment.last() != entry.last || entry.dead.len() > words {
            let what = "the footer covers other revisions than MANIFEST says";
            return Err(Error::corrupt(&segment.path, segment.parts.footer.start as u64, what));
        }
        sealed.push(segment);
    }
    let tip = match tip.take() {
        Some(tip) => tip,
        None => {
            let tip = read_active(&store, &manifest, &mut sealed)?;
            manifest.segments.truncate(sealed.len());
            for (entry, segment) in manifest.segments.iter_mut().zip(&sealed) {
                *entry = SegmentEntry::of(segment, std::mem::take(&mut entry.dead));
            }
            renew_manifest(&store, &mut manifest, &tip, &names)?;
            tip
        }
    };
    store.current.get_mut().manifest = manifest.clone();
    let sealed = sealed.into_iter().map(Arc::new).collect();
    Ok(Opened { store: Arc::new(store), manifest, sealed, tip })
}

fn read_manifest(disk: &dyn Disk, dir: &Path, names: &[String]) -> Result<Option<Manifest>, Error> {
    let path = dir.join(MANIFEST);
    if !names.iter().any(|name| name == MANIFEST) {
        return no_manifest(disk, dir, names).map(|()| None);
    }
    let file = disk.open(&path, OpenMode::Read).map_err(Error::io(&path, "open"))?;
    let len = file.len().map_err(Error::io(&path, "read the length"))?;
    if len > manifest::MAX_BYTES {
        return Err(Error::corrupt(&path, 0, format!("{len} bytes are too many for a MANIFEST")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0).map_err(Error::io(&path, "read"))?;
    Manifest::decode(&path, &bytes).map(Some)
}

fn length(disk: &dyn Disk, path: &Path) -> Result<u64, Error> {
    let file = disk.open(path, OpenMode::Read).map_err(Error::io(path, "open"))?;
    file.len().map_err(Error::io(path, "read the length"))
}

/// No MANIFEST: either nothing was ever stored, or somebody removed it. A first start that was cut short leaves one
/// segment file with nothing but its beginning.
fn no_manifest(disk: &dyn Disk, dir: &Path, names: &[String]) -> Result<(), Error> {
    for name in names.iter().filter(|name| file_id(name).is_some()) {
        let path = dir.join(name);
        let file = disk.open(&path, OpenMode::Read).map_err(Error::io(&path, "open"))?;
        let len = file.len().map_err(Error::io(&path, "read the length"))?;
        let mut bytes = vec![0; len.min((FILE_HEADER + 3 * HEADER) as u64) as usize];
        file.read_exact_at(&mut bytes, 0).map_err(Error::io(&path, "read"))?;
        let second = FILE_HEADER + HEADER;
        if file_id(name) != Some(1) || Header::parse(&bytes, second).is_some() {
            return Err(Error::Missing { file: dir.join(MANIFEST) });
        }
    }
    Ok(())
}

/// An empty store: the first active file, then the MANIFEST that names it.
fn create(store: &Store) -> Result<(Manifest, Tip), Error> {
    // A file left by a first start that was cut short has this name and is emptied.
    let id = 1;
    store.next_id.store(2, Ordering::Relaxed);
    let stamp = Stamp {
        kind: Kind::Checkpoint,
        seq: FIRST_SEQ,
        epoch: 1,
        index: 0,
        term: 0,
        compact: -1,
        durable_seq: 0,
        begun: 0,
    };
    let frame = checkpoint(&stamp, &Tables::default());
    let tail = begin_file(store, id, &frame)?;
    store.sync_dir()?;
    let manifest = Manifest { epoch: 1, next_id: 2, active: id, durable_seq: FIRST_SEQ, segments: Vec::new() };
    store.write_manifest(&manifest)?;
    let active = Arc::new(Active::new(id, tail.path.clone()));
    active.push(FILE_HEADER as u32, frame, &[]);
    let tip = Tip {
        active,
        tail,
        tables: Tables::default(),
        seq: FIRST_SEQ,
        index: 0,
        term: 0,
        compact: -1,
        last: None,
        record_bytes: 0,
    };
    Ok((manifest, tip))
}

/// Reads the active file frame by frame, stops at the first that does not follow, and cuts there for good, together with
/// the parts of a batch that did not end: those in sealed segments are left out as well.
fn read_active(store: &Store, manifest: &Manifest, sealed: &mut Vec<Segment>) -> Result<Tip, Error> {
    let path = store.path(manifest.active);
    let file = match store.disk.open(&path, OpenMode::ReadWrite) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::Missing { file: path }),
        result => result.map_err(Error::io(&path, "open"))?,
    };
    let len = file.len().map_err(Error::io(&path, "read the length"))?;
    if len > MAX_FILE {
        return Err(Error::corrupt(&path, 0, format!("{len} bytes are too many for a segment")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0).map_err(Error::io(&path, "read"))?;
    let bytes = Bytes::from(bytes);
    if check_header(&path, &bytes, manifest.active)? != Content::Frames {
        return Err(Error::corrupt(&path, 12, "the active file holds no frames"));
    }
    let mut tables = Tables::default();
    let mut frames = read_frames(&path, &bytes, manifest, sealed.last().map(Segment::last), &mut tables)?;
    let claimed = frames.last().map_or(0, |frame| frame.stamp.durable_seq).max(manifest.durable_seq);
    while frames.last().is_some_and(|frame| frame.stamp.kind == Kind::Part) {
        frames.pop();
    }
    let first =
        frames.first().map(|frame| frame.stamp).expect("the first frame is a checkpoint, or the file is refused");
    let begun_before = frames.len() == 1 && first.begun != 0;
    if begun_before {
        sealed.iter_mut().for_each(|segment| segment.cut(first.begun));
        sealed.retain(|segment| !segment.slots().is_empty());
    }
    let stamp = frames.last().map_or(first, |frame| frame.stamp);
    let end = frames.last().map_or(FILE_HEADER, |frame| frame.end);
    let unclaimed = usize::try_from(stamp.seq.saturating_sub(claimed)).unwrap_or(usize::MAX);
    // The first frame was durable before the MANIFEST named the file.
    let certain = frames.len().saturating_sub(unclaimed).max(1);
    let uncertain = frames.get(certain).map_or(end, |frame| frame.start);
    let fresh = if begun_before {
        Some(begin_anew(store, &stamp, &tables)?)
    } else if uncertain < end {
        copy_active(store, &bytes[..end])?
    } else {
        None
    };
    let (id, tail) = match fresh {
        Some(fresh) => fresh,
        None => (manifest.active, settle_in_place(path, file.into(), &bytes, uncertain, end)?),
    };
    let active = Active::new(id, tail.path.clone());
    let mut last = sealed.last().map(Segment::last);
    let mut record_bytes = 0;
    // The checkpoint of a file begun anew is on disk, and holds no record.
    for frame in frames.iter().filter(|_| !begun_before) {
        active.push(frame.start as u32, bytes.slice(frame.start..frame.end), &frame.slots);
        last = frame.slots.last().map(Slot::rev).or(last);
        record_bytes += frame.slots.iter().map(Slot::weight).sum::<u64>();
    }
    tail.settle(&active)?;
    Ok(Tip {
        active: Arc::new(active),
        tail,
        tables,
        seq: stamp.seq,
        index: stamp.index,
        term: stamp.term,
        compact: stamp.compact,
        last,
        record_bytes,
    })
}

/// A frame of the active file.
struct Frame {
    start: usize,
    end: usize,
    stamp: Stamp,
    slots: Vec<Slot>,
}

/// All frames from the first on that are whole and follow each other.
fn read_frames(
    path: &Path,
    bytes: &Bytes,
    manifest: &Manifest,
    mut last: Option<Revision>,
    tables: &mut Tables,
) -> Result<Vec<Frame>, Error> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut at = FILE_HEADER;
    loop {
        let before = frames.last().map(|frame| &frame.stamp);
        let header = Header::parse(bytes, at);
        let follows = header.filter(|header| follows(&header.stamp, before, manifest.epoch));
        let Some((header, body)) = follows.and_then(|header| Some((header, header.body(bytes, at)?))) else {
            let Some(before) = before else {
                return Err(Error::corrupt(path, at as u64, "the first frame, once durable, is not there"));
            };
            // A header that can be trusted tells where the next frame would be; values, which a client chooses, are
            // then not searched for something that looks like a frame.
            let next = follows.map_or(at + 1, |header| at.saturating_add(header.total()));
            let seq = before.seq + 1;
            let claimed =
                seq <= manifest.durable_seq || frame::claimed_durable(bytes, next, seq, before.epoch..=manifest.epoch);
            if claimed {
                let what = format!("frame {seq} was durable and is broken or gone");
                return Err(Error::corrupt(path, at as u64, what));
            }
            return Ok(frames);
        };
        let slots = header.replay(path, at, &body, tables)?;
        for slot in &slots {
            if last.is_some_and(|last| last >= slot.rev()) {
                return Err(Error::corrupt(path, u64::from(slot.offset), "a revision does not come after the last"));
            }
            last = Some(slot.rev());
        }
        let end = at + header.total();
        frames.push(Frame { start: at, end, stamp: header.stamp, slots });
        at = end;
    }
}

/// An active file without the batch that began in the files before and never ended.
fn begin_anew(store: &Store, stamp: &Stamp, tables: &Tables) -> Result<(u64, Tail), Error> {
    let id = store.new_id();
    let tail = begin_file(store, id, &checkpoint(&Stamp { begun: 0, ..*stamp }, tables))?;
    store.sync_dir()?;
    Ok((id, tail))
}

/// Room that a copy of the active file leaves on the disk.
const COPY_MARGIN: u64 = 1 << 20;

/// Writes what was read to a new file.
///
/// Frames that no later frame calls durable may be in the page cache alone: the process that wrote them was killed, or
/// its sync failed, and after a failed sync the system forgets what it owes. They must be written once more before
/// anybody relies on them, and not over themselves, because some of them may be durable after all and a torn
/// write would cost them. `None` when the disk has no room for a second file.
fn copy_active(store: &Store, bytes: &[u8]) -> Result<Option<(u64, Tail)>, Error> {
    let free = store.disk.free_bytes(&store.dir).map_err(Error::io(&store.dir, "ask for free space"))?;
    // The MANIFEST that names the copy must fit, too.
    if free < bytes.len() as u64 + COPY_MARGIN {
        return Ok(None);
    }
    let id = store.new_id();
    let frames = Bytes::copy_from_slice(bytes.get(FILE_HEADER..).unwrap_or_default());
    match begin_file(store, id, &frames) {
        Ok(tail) => {
            store.sync_dir()?;
            Ok(Some((id, tail)))
        }
        Err(error) if is_full(&error) => {
            unlink(&*store.disk, &[store.path(id)])?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Keeps the active file, cut behind its last frame: bytes there must not come back after later writes. Where a copy
/// would be better but finds no room, the uncertain frames are written over themselves.
fn settle_in_place(
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    bytes: &[u8],
    uncertain: usize,
    end: usize,
) -> Result<Tail, Error> {
    if uncertain < end {
        file.write_all_at(&bytes[uncertain..end], uncertain as u64).map_err(Error::io(&path, "write"))?;
    }
    if end < bytes.len() {
        file.set_len(end as u64).map_err(Error::io(&path, "cut"))?;
    }
    file.sync_data().map_err(Error::io(&path, "sync"))?;
    Ok(Tail { path, file, written: end as u64, reserved: end as u64 })
}

fn follows(stamp: &Stamp, before: Option<&Stamp>, epoch: u64) -> bool {
    match before {
        None => stamp.kind == Kind::Checkpoint && stamp.epoch <= epoch,
        Some(before) => {
            stamp.kind != Kind::Checkpoint
                && stamp.seq == before.seq + 1
                && (before.epoch..=epoch).contains(&stamp.epoch)
                && stamp.index >= before.index
        }
    }
}

/// Writes the MANIFEST of this opening, then removes what a crash left beside the store.
///
/// In this order, because the rename that made the MANIFEST just read may not be durable, and may never be if its sync
/// failed: files that an older MANIFEST names must not go before a newer one surely stands.
fn renew_manifest(store: &Store, manifest: &mut Manifest, tip: &Tip, names: &[String]) -> Result<(), Error> {
    let mut next = manifest.clone();
    next.epoch += 1;
    (next.active, next.durable_seq) = (tip.active.id, tip.seq);
    next.next_id = store.next_id.load(Ordering::Relaxed);
    match store.write_manifest(&next) {
        Ok(()) => {
            *manifest = next;
            drop_orphans(store, manifest, names)
        }
        // Not a byte left. With the old MANIFEST the store can at least be read: the cut behind the last frame is
        // durable, which is all that a new epoch would add.
        Err(error) if is_full(&error) && tip.active.id == manifest.active => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes what a crash left beside the store: results that were never committed, sources that were replaced.
fn drop_orphans(store: &Store, manifest: &Manifest, names: &[String]) -> Result<(), Error> {
    let known = |id: u64| id == manifest.active || manifest.segments.iter().any(|segment| segment.id == id);
    let orphans: Vec<_> = names
        .iter()
        .filter(|name| file_id(name).is_some_and(|id| !known(id)))
        .map(|name| store.dir.join(name))
        .collect();
    if orphans.is_empty() {
        return Ok(());
    }
    unlink(&*store.disk, &orphans)?;
    store.sync_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_follows_by_number_epoch_kind_and_index() {
        let first = Stamp {
            kind: Kind::Checkpoint,
            seq: 5,
            epoch: 3,
            index: 10,
            term: 2,
            compact: -1,
            durable_seq: 4,
            begun: 0,
        };
        let next = Stamp { kind: Kind::Batch, seq: 6, ..first };
        assert!(follows(&first, None, 3) && follows(&next, Some(&first), 3));
        assert!(follows(&Stamp { epoch: 4, index: 11, ..next }, Some(&first), 4));
        assert!(!follows(&next, None, 3), "a file begins with a checkpoint");
        for other in [
            Stamp { seq: 7, ..next },
            Stamp { seq: 5, ..next },
            // Bytes of an earlier life, and of one that never was.
            Stamp { epoch: 2, ..next },
            Stamp { epoch: 4, ..next },
            Stamp { index: 9, ..next },
            Stamp { kind: Kind::Checkpoint, ..next },
        ] {
            assert!(!follows(&other, Some(&first), 3), "{other:?}");
        }
    }
}
