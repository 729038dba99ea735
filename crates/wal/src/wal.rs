use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dolmen_env::{Disk, DiskFile, DiskLock, OpenMode, is_shortage};
use dolmen_proto::raftpb::{Entry, HardState};
use dolmen_proto::walpb::Snapshot;
use dolmen_types::{Index, Term};
use prost::Message as _;

use crate::Metadata;
use crate::error::{Context, WalError};
use crate::names::{self, SegmentName};
use crate::record::{self, Encoder};
use crate::recover::{self, Recovered, Replay, Tail};
use crate::slots::{self, Acked, Slots};

/// The next segment while it is made; etcd's name for it, so that either program clears up after the other.
const NEXT: &str = "0.tmp";

/// What holds the records every segment begins with, with room to spare.
const HEAD_BYTES: u64 = 4096;

/// What holds a founding, an entry for each of the first members, with room to spare.
const FOUNDING_BYTES: u64 = 1 << 20;

/// How a log is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalOptions {
    /// Space reserved for a segment; the batch that passes it is the segment's last.
    pub segment_bytes: u64,
}

impl Default for WalOptions {
    fn default() -> Self {
        Self { segment_bytes: 64_000_000 }
    }
}

/// An open log, ready for appending. One thread owns it.
///
/// Invariants:
/// 1. Bytes below `synced` of the tail, and all of every other segment, are durable.
/// 2. Bytes of the tail at and above `written` are zero, on the disk too once anything above `synced` is.
/// 3. A segment has its final name only when the one before it is durable in full and its own head is.
/// 4. No record and no slot says that something is durable before the sync that made it so has returned.
/// 5. After an error nothing is written any more.
pub struct Wal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: WalOptions,
    metadata: Metadata,
    /// As recorded at the head of the first segment; etcd compares the bytes.
    metadata_bytes: Vec<u8>,
    hard_state: HardState,
    last_index: Index,
    encoder: Encoder,
    tail: Box<dyn DiskFile>,
    /// All segments that exist, oldest first; the last one is the tail.
    segments: VecDeque<Segment>,
    /// How many of them, from the oldest on, nobody needs any more. Never the tail.
    released: usize,
    next: Option<Next>,
    slots: Slots,
    written: u64,
    synced: u64,
    /// Last index and term as of `synced`, for the slots.
    durable: (Index, Term),
    /// Something other than a mark was appended since the last sync.
    dirty: bool,
    /// What the slots say: segment sequence and offset.
    noted: (u64, u64),
    failed: bool,
}

struct Segment {
    name: SegmentName,
    /// `None` for segments older than the one reading began with.
    lock: Option<DiskLock>,
}

/// The last hold on a segment that is gone from the directory. Dropping it has the file system free its space, which may take
/// a tenth of a second: not on a thread that somebody waits for.
pub struct Released {
    _lock: Option<DiskLock>,
    _file: Option<Box<dyn DiskFile>>,
}

/// A segment that has its space but no name yet.
struct Next {
    file: Box<dyn DiskFile>,
    lock: DiskLock,
}

impl Wal {
    /// Whether `dir` holds a log.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn exists(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
        Ok(!names::list(disk, dir)?.is_empty())
    }

    /// Removes the slots beside a log that nobody has open, for one that is made for others: without them it says no less
    /// of itself, but may be moved and copied without them. Durable on return.
    ///
    /// # Errors
    /// `Io`.
    pub fn remove_slots(disk: &dyn Disk, dir: &Path) -> Result<(), WalError> {
        for slot in 0..2 {
            let path = slots::path(dir, slot);
            match disk.remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e).context("remove", &path),
                _ => {}
            }
        }
        let parent = names::parent_of(dir);
        disk.sync_dir(parent).context("sync", parent)
    }

    /// Makes a new log at `dir`, holding the snapshot record (0, 0). After a crash there is the whole new log or none.
    ///
    /// # Errors
    /// `AlreadyExists`; `Vanished` when the slots beside `dir` remember a log that is gone; `Io`.
    pub fn create(disk: Arc<dyn Disk>, dir: &Path, metadata: Metadata, options: WalOptions) -> Result<Self, WalError> {
        if Self::exists(disk.as_ref(), dir).context("list", dir)? {
            return Err(WalError::AlreadyExists { dir: dir.to_owned() });
        }
        let found = slots::read(disk.as_ref(), dir)?;
        if let Some(acked) = slots::newest(&found, metadata) {
            return Err(WalError::Vanished { dir: dir.to_owned(), index: acked.index });
        }
        let mut temporary = dir.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        if disk.exists(&temporary).context("look at", &temporary)? {
            disk.remove_dir_all(&temporary).context("remove", &temporary)?;
        }
        disk.create_dir_all(&temporary).context("create", &temporary)?;

        let name = SegmentName { seq: 0, first: 0 };
        let path = name.path(&temporary);
        let Next { file, lock } = make_segment(disk.as_ref(), &path, options)?;
        let metadata_bytes = record::encode_metadata(metadata);
        let mut encoder = Encoder::new(0);
        encode_head(&mut encoder, 0, |encoder| {
            encoder.metadata(&metadata_bytes);
            encoder.snapshot(&Snapshot::default());
        });
        write_head(file.as_ref(), &path, &encoder.buffer)?;
        disk.sync_dir(&temporary).context("sync", &temporary)?;

        // A directory without a segment in it is what an etcd that died at its first start leaves behind.
        if disk.exists(dir).context("look at", dir)? {
            disk.remove_dir_all(dir).context("remove", dir)?;
        }
        disk.rename(&temporary, dir).context("rename", &temporary)?;
        let parent = names::parent_of(dir);
        disk.sync_dir(parent).context("sync", parent)?;

        let slots = Slots::open(disk.as_ref(), dir, &found)?;
        let head = encoder.buffer.len() as u64;
        let mut wal = Self {
            disk,
            dir: dir.to_owned(),
            options,
            metadata,
            metadata_bytes,
            hard_state: HardState::default(),
            last_index: 0,
            encoder,
            tail: file,
            segments: VecDeque::from([Segment { name, lock: Some(lock) }]),
            released: 0,
            next: None,
            slots,
            written: head,
            synced: head,
            durable: (0, 0),
            dirty: false,
            noted: (0, 0),
            failed: false,
        };
        wal.write_slot()?;
        Ok(wal)
    }

    /// Opens the log for appending and returns what it holds after `from`, a snapshot it has a record of; (0, 0) is the
    /// empty state every log begins with. A torn tail is cut; everything returned is durable.
    ///
    /// # Errors
    /// `Corrupt` when durable records are damaged or missing; `NoSnapshot` without a record of `from`; `Locked` when
    /// another process, Dolmen or etcd, uses the log; `Missing`; `Io`.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        from: (Index, Term),
        options: WalOptions,
    ) -> Result<(Self, Recovered), WalError> {
        let names = names::list(disk.as_ref(), dir).context("list", dir)?;
        let first_read = names::holding(&names, from.0).unwrap_or(0);
        let mut segments = VecDeque::with_capacity(names.len());
        for (at, &name) in names.iter().enumerate() {
            let lock = if at >= first_read { Some(lock(disk.as_ref(), &name.path(dir))?) } else { None };
            segments.push_back(Segment { name, lock });
        }
        if !names.is_empty() {
            // The next segment is made in the midst of a load: that it cannot be should show now.
            let next = dir.join(NEXT);
            drop(disk.open(&next, OpenMode::Truncate).context("create", &next)?);
            disk.remove_file(&next).context("remove", &next)?;
        }
        let found = slots::read(disk.as_ref(), dir)?;
        let (tail, recovered, metadata_bytes, last_index) =
            recover::recover(disk.as_ref(), dir, &names, &found, from, OpenMode::ReadWrite)?;
        // A process that died between a rename and its sync has left a name that is seen and not durable.
        let parent = names::parent_of(dir);
        disk.sync_dir(dir).context("sync", dir)?;
        disk.sync_dir(parent).context("sync", parent)?;
        let slots = Slots::open(disk.as_ref(), dir, &found)?;
        let noted = slots::newest(&found, recovered.metadata).map_or((0, 0), |acked| (acked.seq, acked.offset));
        let Secured { file, lock, end, chain } =
            secure(disk.as_ref(), dir, tail, recovered.repaired.is_some(), options)?;
        if let (Some(lock), Some(segment)) = (lock, segments.back_mut()) {
            segment.lock = Some(lock);
        }
        let mut wal = Self {
            disk,
            dir: dir.to_owned(),
            options,
            metadata: recovered.metadata,
            metadata_bytes,
            hard_state: recovered.hard_state,
            last_index,
            encoder: Encoder::new(chain),
            tail: file,
            segments,
            released: 0,
            next: None,
            slots,
            written: end,
            synced: end,
            durable: (last_index, recovered.hard_state.term),
            dirty: false,
            noted,
            failed: false,
        };
        if wal.noted != (wal.tail_name().seq, wal.synced) {
            wal.write_slot()?;
        }
        Ok((wal, recovered))
    }

    /// Whose log this is, read off the head of its newest segment: cheap, whatever the log holds.
    ///
    /// # Errors
    /// `Missing` without a log, `Corrupt` when the head does not read, `Io`.
    pub fn identify(disk: &dyn Disk, dir: &Path) -> Result<Metadata, WalError> {
        let names = names::list(disk, dir).context("list", dir)?;
        let name = *names.last().ok_or_else(|| WalError::Missing { dir: dir.to_owned() })?;
        let path = name.path(dir);
        let head = head(disk, &path, HEAD_BYTES)?;
        let mut offset = 0;
        while let Ok(found) = record::decode(&head, name.seq, offset) {
            if found.kind == record::Kind::Metadata
                && let Some(metadata) = record::decode_metadata(found.data)
            {
                return Ok(metadata);
            }
            offset += found.frame_len;
        }
        let what = "no metadata at the head of the segment".to_owned();
        Err(WalError::Corrupt { file: path, offset, index: name.first, what })
    }

    /// Whether the log holds a founding and nothing else: all of the first term, as a first start or a restored snapshot
    /// leaves it. Whoever it belongs to has neither voted nor acknowledged anything. Cheap, whatever the log holds.
    ///
    /// # Errors
    /// `Io`. Damage is for [`Wal::open`] to find.
    pub fn is_founding(disk: &dyn Disk, dir: &Path) -> Result<bool, WalError> {
        let names = names::list(disk, dir).context("list", dir)?;
        let [name] = names[..] else { return Ok(false) };
        if name.seq > 0 {
            return Ok(false);
        }
        let head = head(disk, &name.path(dir), FOUNDING_BYTES)?;
        let mut offset = 0;
        loop {
            let found = match record::decode(&head, name.seq, offset) {
                Ok(found) => found,
                // What does not end here is more than a founding, or no whole one.
                Err(bad) => return Ok(matches!(bad, record::Bad::End | record::Bad::Zero)),
            };
            let term = match found.kind {
                record::Kind::Entry => Entry::decode(found.data).map(|entry| entry.term),
                record::Kind::State => HardState::decode(found.data).map(|state| state.term),
                record::Kind::Snapshot => Snapshot::decode(found.data).map(|mark| mark.term),
                record::Kind::Crc | record::Kind::Metadata => Ok(0),
            };
            if !term.is_ok_and(|term| term <= 1) {
                return Ok(false);
            }
            offset += found.frame_len;
        }
    }

    /// The snapshot records that the hard state has committed, oldest first; never empty in a whole log, which begins
    /// with (0, 0) until [`Wal::release`] has dropped its front. To be called before [`Wal::open`], not beside it: on
    /// Linux it may end the lock an etcd respects.
    ///
    /// # Errors
    /// As [`Wal::open`], but nothing is locked or changed.
    pub fn snapshots(disk: &dyn Disk, dir: &Path) -> Result<Vec<Snapshot>, WalError> {
        let slots = slots::read(disk, dir)?;
        Self::snapshots_by(disk, dir, &slots)
    }

    fn snapshots_by(disk: &dyn Disk, dir: &Path, slots: &[Option<Acked>; 2]) -> Result<Vec<Snapshot>, WalError> {
        let names = names::list(disk, dir).context("list", dir)?;
        let mut replay = Replay::new(None);
        recover::read(disk, dir, &names[names::unbroken_from(&names)..], slots, &mut replay, OpenMode::Read)?;
        Ok(replay.committed_snapshots())
    }

    /// As [`Wal::snapshots`] and then [`Wal::read`] from the newest of them, of a log that an etcd has made: slots beside it
    /// have outlived a log that was there before, and say nothing of this one.
    ///
    /// # Errors
    /// As those two.
    pub fn read_etcds(disk: &dyn Disk, dir: &Path) -> Result<(Snapshot, Recovered), WalError> {
        let none = [None; 2];
        let newest = Self::snapshots_by(disk, dir, &none)?.pop().unwrap_or_default();
        let names = names::list(disk, dir).context("list", dir)?;
        let from = (newest.index, newest.term);
        let (_, recovered, ..) = recover::recover(disk, dir, &names, &none, from, OpenMode::Read)?;
        Ok((newest, recovered))
    }

    /// Reads the log as [`Wal::open`] does, without locking or changing it: for tools, while no process writes.
    ///
    /// # Errors
    /// As [`Wal::open`], never `Locked`.
    pub fn read(disk: &dyn Disk, dir: &Path, from: (Index, Term)) -> Result<Recovered, WalError> {
        let names = names::list(disk, dir).context("list", dir)?;
        let found = slots::read(disk, dir)?;
        Ok(recover::recover(disk, dir, &names, &found, from, OpenMode::Read)?.1)
    }

    /// Writes entries, then the hard state, in one call to the disk. Durable after the next [`Wal::sync`], which a mere
    /// change of the commit index does not need. Entries follow each other; the first may replace one already in the
    /// log, and with it all that came after.
    ///
    /// # Errors
    /// `Io`, and then `Failed` for ever.
    ///
    /// # Panics
    /// When the entries would leave a gap: the log could never be read again.
    pub fn append(&mut self, hard_state: Option<&HardState>, entries: &[Entry]) -> Result<(), WalError> {
        let hard_state = hard_state.filter(|state| **state != HardState::default());
        if hard_state.is_none() && entries.is_empty() {
            return Ok(());
        }
        self.begin()?;
        let mut last = self.last_index;
        for (at, entry) in entries.iter().enumerate() {
            let follows = if at == 0 { entry.index <= last + 1 } else { entry.index == last + 1 };
            assert!(follows && entry.index > 0, "entry {} cannot follow entry {last}", entry.index);
            last = entry.index;
            self.encoder.entry(entry);
        }
        if let Some(state) = hard_state {
            self.encoder.hard_state(state);
        }
        self.write()?;
        self.last_index = last;
        self.hard_state = hard_state.copied().unwrap_or(self.hard_state);
        self.dirty = true;
        Ok(())
    }

    /// Records that the state machine stands at `snapshot`; durable after the next [`Wal::sync`]. For a snapshot
    /// received from the leader this goes before the hard state that commits it, and the log continues behind it.
    ///
    /// # Errors
    /// As [`Wal::append`].
    pub fn append_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), WalError> {
        self.begin()?;
        self.encoder.snapshot(snapshot);
        self.write()?;
        self.last_index = self.last_index.max(snapshot.index);
        self.dirty = true;
        Ok(())
    }

    /// Makes everything appended durable, and begins the next segment when this one is over its size. Free when nothing
    /// was appended.
    ///
    /// # Errors
    /// As [`Wal::append`]: what was appended may or may not be durable, and nobody may be told either.
    pub fn sync(&mut self) -> Result<(), WalError> {
        if self.failed {
            return Err(WalError::Failed);
        }
        if !self.dirty {
            return Ok(());
        }
        let result = self.sync_tail();
        self.failed = result.is_err();
        result
    }

    fn sync_tail(&mut self) -> Result<(), WalError> {
        let full = self.written >= self.options.segment_bytes;
        let path = self.tail_name().path(&self.dir);
        if full {
            self.tail.set_len(self.written).context("cut", &path)?;
        }
        self.tail.sync_data().context("sync", &path)?;
        self.synced = self.written;
        self.durable = (self.last_index, self.hard_state.term);
        self.dirty = false;
        if full { self.cut() } else { Ok(()) }
    }

    /// Leaves word of how far the log is durable, so that damage to the very last records is told from a torn tail too:
    /// in a slot, and as a mark behind the last record when the log is idle. Costs a small synced write when there is
    /// news, nothing otherwise; to be called about once a second and when the log falls idle. Also reserves the next
    /// segment's space once this one is half full.
    ///
    /// # Errors
    /// As [`Wal::append`].
    pub fn note_acked(&mut self) -> Result<(), WalError> {
        if self.failed {
            return Err(WalError::Failed);
        }
        let result = self.note();
        self.failed = result.is_err();
        result
    }

    fn note(&mut self) -> Result<(), WalError> {
        if self.noted != (self.tail_name().seq, self.synced) {
            if self.written == self.synced && self.hard_state != HardState::default() {
                // Any record would do; a repeated hard state is one that etcd reads without a thought. It needs no sync:
                // it says nothing new but for its own account of what is durable.
                self.begin()?;
                self.encoder.hard_state(&self.hard_state);
                self.write()?;
            }
            self.write_slot()?;
        }
        if self.next.is_none() && self.written > self.options.segment_bytes / 2 {
            let path = self.dir.join(NEXT);
            match make_segment(self.disk.as_ref(), &path, self.options) {
                Ok(next) => self.next = Some(next),
                // This one has room yet, and when it is full there may be some on the disk, too.
                Err(WalError::Io { source, .. }) if may_pass(&source) => {
                    let _best_effort = self.disk.remove_file(&path);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives up the segments that hold nothing but entries up to `index`, which the store must hold durably, together
    /// with the snapshot record to open the log from. Keeps the segment that entry `index` or the one after it is in.
    /// [`Wal::remove_released`] takes them off the disk.
    pub fn release(&mut self, index: Index) {
        let holding = self.segments.iter().rposition(|segment| segment.name.first <= index);
        self.released = self.released.max(holding.unwrap_or(0));
    }

    /// Segments that were given up and are still there.
    pub fn released(&self) -> usize {
        self.released
    }

    /// Takes the oldest segment that was given up off the disk: one a call, because it costs a sync of the directory, and
    /// more where the result is dropped.
    ///
    /// # Errors
    /// As [`Wal::append`].
    pub fn remove_released(&mut self) -> Result<Option<Released>, WalError> {
        if self.failed {
            return Err(WalError::Failed);
        }
        if self.released == 0 {
            return Ok(None);
        }
        let result = self.remove_oldest();
        self.failed = result.is_err();
        result
    }

    fn remove_oldest(&mut self) -> Result<Option<Released>, WalError> {
        let Some(oldest) = self.segments.front() else { return Ok(None) };
        let path = oldest.name.path(&self.dir);
        // Without a descriptor that holds it, removing the name would free the space at once.
        let file = if oldest.lock.is_some() {
            None
        } else {
            Some(self.disk.open(&path, OpenMode::Read).context("open", &path)?)
        };
        self.disk.remove_file(&path).context("remove", &path)?;
        // One by one and oldest first, or a crash could bring some back and leave a gap among them.
        self.disk.sync_dir(&self.dir).context("sync", &self.dir)?;
        self.released -= 1;
        let lock = self.segments.pop_front().and_then(|segment| segment.lock);
        Ok(Some(Released { _lock: lock, _file: file }))
    }

    /// Syncs, and leaves word that all of it is durable. Dropping the log without this is what a crash does.
    ///
    /// # Errors
    /// As [`Wal::append`].
    pub fn close(mut self) -> Result<(), WalError> {
        self.dirty |= self.written > self.synced;
        self.sync()?;
        if self.noted != (self.tail_name().seq, self.synced) {
            self.write_slot()?;
        }
        Ok(())
    }

    /// Index of the last entry appended, durable or not; that of the snapshot when nothing follows one.
    pub fn last_index(&self) -> Index {
        self.last_index
    }

    /// The hard state appended last.
    pub fn hard_state(&self) -> HardState {
        self.hard_state
    }

    /// Whose log this is.
    pub fn metadata(&self) -> Metadata {
        self.metadata
    }

    /// Number of segment files.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    fn tail_name(&self) -> SegmentName {
        self.segments.back().expect("there is always a segment").name
    }

    fn begin(&mut self) -> Result<(), WalError> {
        if self.failed {
            return Err(WalError::Failed);
        }
        self.encoder.begin(self.tail_name().seq, self.written, self.synced);
        Ok(())
    }

    fn write(&mut self) -> Result<(), WalError> {
        if let Err(source) = self.tail.write_all_at(&self.encoder.buffer, self.written) {
            self.failed = true;
            let context = format!("cannot write {}", self.tail_name().path(&self.dir).display());
            return Err(WalError::Io { context, source });
        }
        self.written += self.encoder.buffer.len() as u64;
        Ok(())
    }

    fn write_slot(&mut self) -> Result<(), WalError> {
        let seq = self.tail_name().seq;
        self.slots.write(Acked {
            generation: 0,
            metadata: self.metadata,
            seq,
            offset: self.synced,
            index: self.durable.0,
            term: self.durable.1,
        })?;
        self.noted = (seq, self.synced);
        Ok(())
    }

    /// Begins the next segment. The tail is durable in full; so is the new head before it gets its name.
    fn cut(&mut self) -> Result<(), WalError> {
        let temporary = self.dir.join(NEXT);
        let Next { file, lock } = match self.next.take() {
            Some(next) => next,
            None => make_segment(self.disk.as_ref(), &temporary, self.options)?,
        };
        let name = SegmentName { seq: self.tail_name().seq + 1, first: self.last_index + 1 };
        let (metadata, state) = (&self.metadata_bytes, self.hard_state);
        encode_head(&mut self.encoder, name.seq, |encoder| {
            encoder.metadata(metadata);
            if state != HardState::default() {
                encoder.hard_state(&state);
            }
        });
        write_head(file.as_ref(), &temporary, &self.encoder.buffer)?;
        self.disk.rename(&temporary, &name.path(&self.dir)).context("rename", &temporary)?;
        self.disk.sync_dir(&self.dir).context("sync", &self.dir)?;
        self.tail = file;
        self.segments.push_back(Segment { name, lock: Some(lock) });
        self.written = self.encoder.buffer.len() as u64;
        self.synced = self.written;
        Ok(())
    }
}

/// Whether what the disk refuses today it may grant in a while.
fn may_pass(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) || is_shortage(error)
}

/// Makes an empty segment file with its space reserved.
fn make_segment(disk: &dyn Disk, path: &Path, options: WalOptions) -> Result<Next, WalError> {
    let file = disk.open(path, OpenMode::Truncate).context("create", path)?;
    let lock = lock(disk, path)?;
    file.allocate(options.segment_bytes).context("reserve space for", path)?;
    file.sync_data().context("sync", path)?;
    Ok(Next { file, lock })
}

/// Encodes the records a segment begins with. They say that the head is durable up to its end, which is true by the time
/// the segment has a name; so the head is encoded again until that end is the right one.
fn encode_head(encoder: &mut Encoder, seq: u64, fill: impl Fn(&mut Encoder)) {
    let chain = encoder.chain;
    let mut end = 0;
    loop {
        encoder.chain = chain;
        encoder.begin(seq, 0, end);
        encoder.crc();
        fill(encoder);
        let len = encoder.buffer.len() as u64;
        if len == end {
            return;
        }
        end = len;
    }
}

/// The first bytes of a segment, as many as there are.
fn head(disk: &dyn Disk, path: &Path, bytes: u64) -> Result<Vec<u8>, WalError> {
    let file = disk.open(path, OpenMode::Read).context("open", path)?;
    let len = file.len().context("read", path)?.min(bytes);
    let mut head = vec![0; len as usize];
    file.read_exact_at(&mut head, 0).context("read", path)?;
    Ok(head)
}

fn write_head(file: &dyn DiskFile, path: &Path, head: &[u8]) -> Result<(), WalError> {
    file.write_all_at(head, 0).context("write", path)?;
    file.sync_data().context("sync", path)
}

fn lock(disk: &dyn Disk, path: &Path) -> Result<DiskLock, WalError> {
    match disk.lock(path) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(WalError::Locked { file: path.to_owned() }),
        result => result.context("lock", path),
    }
}

/// A tail that is durable up to its end, and zero behind it.
struct Secured {
    file: Box<dyn DiskFile>,
    /// Set when the file is another one now.
    lock: Option<DiskLock>,
    end: u64,
    chain: u32,
}

/// Makes what was read durable before anybody relies on it. After a failed sync the page cache may show bytes that the
/// medium never got and that no later sync writes, so bytes nobody vouches for are written again. Not in place, where a
/// second crash could damage them: into a new file that takes the old one's name.
fn secure(disk: &dyn Disk, dir: &Path, tail: Tail, torn: bool, options: WalOptions) -> Result<Secured, WalError> {
    let path = tail.name.path(dir);
    // Behind the last word on durability there may be just a mark. Losing it loses nothing.
    let (end, chain) = if tail.synced == tail.meaningful_end && tail.synced > 0 {
        (tail.meaningful_end, tail.chain_meaningful)
    } else {
        (tail.end, tail.chain)
    };
    if tail.synced < end {
        let temporary = dir.join(NEXT);
        let Next { file, lock } = make_segment(disk, &temporary, options)?;
        write_head(file.as_ref(), &temporary, &tail.bytes[..end as usize])?;
        disk.rename(&temporary, &path).context("rename", &temporary)?;
        disk.sync_dir(dir).context("sync", dir)?;
        return Ok(Secured { file, lock: Some(lock), end, chain });
    }
    if torn || end < tail.end {
        tail.file.set_len(end).context("cut", &path)?;
    }
    tail.file.allocate(options.segment_bytes).context("reserve space for", &path)?;
    tail.file.sync_data().context("sync", &path)?;
    Ok(Secured { file: tail.file, lock: None, end, chain })
}
