//! A disk in memory that forgets what real disks forget.
//!
//! Every file keeps two images: what is *durable* and what a reader sees now; between them lies the ordered list of
//! changes no sync has covered yet. Directories do the same with their entries. [`SimDisk::power_loss`] builds the
//! new durable state from the old one and a random part of those lists, in the shape the caller asks for.
//!
//! ```text
//! inode 7   durable  "aaaa"          changes  write(2,"bb") write(4,"cc")        seen now "aabbcc"
//! dir   1   durable  { wal.tmp: 5 }  changes  rename(wal.tmp -> wal)             seen now { wal: 5 }
//! ```
//!
//! All randomness comes from the seed, so a run repeats exactly. Left out: permissions, links, time stamps, latency.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::Rng;
use crate::disk::{Disk, DiskFile, DiskLock, OpenMode};
use crate::sim_image::{DirChange, DirNode, FileNode, Ino};

const ROOT: Ino = 1;

/// What a power loss does to everything no sync has covered. In each shape, unsynced directory entries follow suit:
/// all lost, all kept, or (the other three) each kept or lost on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// Nothing unsynced survives.
    LoseAll,
    /// Everything survives.
    KeepAll,
    /// Per file, the unsynced writes survive in order up to a random byte.
    TornPrefix,
    /// Per 512-byte sector, any version it ever had since the last sync survives, whatever its neighbours do.
    SectorHoles,
    /// As [`PowerLoss::TornPrefix`], and what follows the torn byte is noise.
    GarbageTail,
}

impl PowerLoss {
    pub const ALL: [Self; 5] = [Self::LoseAll, Self::KeepAll, Self::TornPrefix, Self::SectorHoles, Self::GarbageTail];
}

/// A failure to come, counted in disk calls from the moment it is injected: 0 hits the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One call fails with EIO. A write may be done in part; after a failed sync the data still reads back but some
    /// of it will never reach the medium, whatever later syncs say.
    Eio { after: u64 },
    /// The first call at or after this point that needs space fails with ENOSPC.
    NoSpace { after: u64 },
    /// The machine stops: `calls` more calls work, the next is done or not, and it and all after it fail with an
    /// error that [`SimDisk::is_crash`] knows, until [`SimDisk::power_loss`] or [`SimDisk::kill`].
    CrashAfter { calls: u64 },
}

/// See the module page. A clone is the same disk; [`SimDisk::fork`] is another one with the same content.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Clone)]
struct State {
    rng: Rng,
    inodes: BTreeMap<Ino, Inode>,
    next_ino: Ino,
    /// Handles and locks made before the last restart carry an older epoch and are dead.
    epoch: u64,
    locks: BTreeSet<Ino>,
    /// Renames from one directory to another that no sync of the other one has covered: they happen or do not, but nothing
    /// is ever without both of its names.
    moves: Vec<Move>,
    faults: Vec<(u64, Failure)>,
    crashed: bool,
    capacity: Option<u64>,
    lying_sync: bool,
    calls: u64,
    syncs: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    Eio,
    NoSpace,
    Crash,
}

#[derive(Clone)]
enum Inode {
    File(FileNode),
    Dir(DirNode),
}

#[derive(Clone)]
struct Move {
    ino: Ino,
    from: (Ino, String),
    to: (Ino, String),
}

struct SimFile {
    disk: SimDisk,
    ino: Ino,
    epoch: u64,
    writable: bool,
}

struct SimLock {
    disk: SimDisk,
    ino: Ino,
    epoch: u64,
}

/// The cause inside every error after a crash point.
#[derive(Debug)]
struct Crashed;

impl fmt::Display for Crashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated crash: the machine has stopped")
    }
}

impl std::error::Error for Crashed {}

impl SimDisk {
    /// An empty disk whose accidents follow from `seed`.
    pub fn new(seed: u64) -> Self {
        let state = State {
            rng: Rng::new(seed),
            inodes: BTreeMap::from([(ROOT, Inode::Dir(DirNode::default()))]),
            next_ino: ROOT + 1,
            epoch: 0,
            locks: BTreeSet::new(),
            moves: Vec::new(),
            faults: Vec::new(),
            crashed: false,
            capacity: None,
            lying_sync: false,
            calls: 0,
            syncs: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Another disk with the same content, durable and not, and other luck. No handle or lock of this one works there.
    pub fn fork(&self, seed: u64) -> Self {
        let mut state = self.state.lock().clone();
        state.rng = Rng::new(seed);
        state.restart();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Cuts the power and switches it on again. Open handles fail from here on, locks are gone, injected faults are
    /// forgotten.
    pub fn power_loss(&self, shape: PowerLoss) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for inode in state.inodes.values_mut() {
            match inode {
                Inode::File(file) => file.lose_power(shape, &mut state.rng),
                Inode::Dir(dir) => dir.lose_power(shape, &mut state.rng),
            }
        }
        for Move { ino, from, to } in std::mem::take(&mut state.moves) {
            let arrived = state.dir(to.0).is_ok_and(|dir| dir.durable.get(&to.1) == Some(&ino));
            if let (false, Ok(dir)) = (arrived, state.dir_mut(from.0)) {
                dir.durable.entry(from.1.clone()).or_insert(ino);
                dir.seen = dir.durable.clone();
            }
        }
        state.restart();
        state.collect_garbage();
    }

    /// Ends the process but not the machine: handles fail and locks are gone, while the page cache lives on, still
    /// unsynced.
    pub fn kill(&self) {
        self.state.lock().restart();
    }

    /// Plans a failure; several may be pending.
    pub fn inject(&self, fault: Fault) {
        let mut state = self.state.lock();
        let (after, failure) = match fault {
            Fault::Eio { after } => (after, Failure::Eio),
            Fault::NoSpace { after } => (after, Failure::NoSpace),
            Fault::CrashAfter { calls } => (calls, Failure::Crash),
        };
        let at = state.calls.saturating_add(after);
        state.faults.push((at, failure));
    }

    /// Forgets planned failures that have not happened.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// Whether this error comes from a crash point, as opposed to a fault the caller must handle.
    pub fn is_crash(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Crashed>())
    }

    /// Whether a crash point was reached and neither `power_loss` nor `kill` came since.
    pub fn crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// Bytes all files may hold together; `None` for no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Bytes all files hold now.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used()
    }

    /// While on, syncs of files and directories return success and make nothing durable.
    pub fn lying_sync(&self, lying: bool) {
        self.state.lock().lying_sync = lying;
    }

    /// Inverts one bit of the medium, seen by readers at once: bit `bit % 8` of byte `bit / 8`.
    ///
    /// # Errors
    /// `NotFound`, and `UnexpectedEof` when the file is shorter.
    pub fn flip_bit(&self, path: &Path, bit: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let ino = state.resolve(path)?;
        let file = state.file_mut(ino)?;
        let at = (bit / 8) as usize;
        let mask = 1 << (bit % 8);
        *file.seen.get_mut(at).ok_or(io::ErrorKind::UnexpectedEof)? ^= mask;
        if let Some(byte) = file.durable.get_mut(at) {
            *byte ^= mask;
        }
        Ok(())
    }

    /// Disk calls so far, reads and failures included.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Syncs of files and directories so far.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state.lock();
        let creates = matches!(mode, OpenMode::CreateNew | OpenMode::Truncate);
        let fate = state.begin(creates);
        let before = fate.refused()?;
        let existing = match state.resolve(path) {
            Ok(ino) => Some(ino),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let ino = match (existing, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (None, OpenMode::Read | OpenMode::ReadWrite) => return Err(io::ErrorKind::NotFound.into()),
            (Some(ino), _) => {
                let file = state.file_mut(ino)?;
                if mode == OpenMode::Truncate {
                    file.set_len(0);
                }
                ino
            }
            (None, _) => state.create_file(path)?,
        };
        before?;
        state.file_mut(ino)?.handles += 1;
        let epoch = state.epoch;
        Ok(Box::new(SimFile { disk: self.clone(), ino, epoch, writable: mode != OpenMode::Read }))
    }

    /// Durable on return, as on the real disk.
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let fate = state.begin(true);
        let before = fate.refused()?;
        let mut at = ROOT;
        for name in names_of(path)? {
            let next = state.dir(at)?.seen.get(name).copied();
            at = match next {
                Some(ino) => {
                    state.dir(ino)?;
                    ino
                }
                None => {
                    let ino = state.add_inode(Inode::Dir(DirNode::default()));
                    let dir = state.dir_mut(at)?;
                    dir.seen.insert(name.to_owned(), ino);
                    dir.durable.insert(name.to_owned(), ino);
                    ino
                }
            };
        }
        before
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut state = self.state.lock();
        state.begin(false).refused()??;
        let ino = state.resolve(path)?;
        Ok(state.dir(ino)?.seen.keys().cloned().collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let mut state = self.state.lock();
        state.begin(false).refused()??;
        match state.resolve(path) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let fate = state.begin(false);
        let before = fate.refused()?;
        let ino = state.resolve(from)?;
        let (from_dir, from_name) = state.parent(from)?;
        let (to_dir, to_name) = state.parent(to)?;
        if let Some(&old) = state.dir(to_dir)?.seen.get(&to_name) {
            match (state.inode(ino)?, state.inode(old)?) {
                (Inode::File(_), Inode::File(_)) => {}
                (Inode::Dir(_), Inode::Dir(dir)) if dir.seen.is_empty() => {}
                (Inode::Dir(_), Inode::Dir(_)) => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
                (Inode::File(_), Inode::Dir(_)) => return Err(io::ErrorKind::IsADirectory.into()),
                (Inode::Dir(_), Inode::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
            }
        }
        if from_dir == to_dir {
            let dir = state.dir_mut(from_dir)?;
            dir.change(DirChange::Rename { from: from_name, to: to_name, ino });
        } else {
            state.dir_mut(to_dir)?.change(DirChange::Link { name: to_name.clone(), ino });
            state.dir_mut(from_dir)?.change(DirChange::Unlink { name: from_name.clone() });
            state.moves.push(Move { ino, from: (from_dir, from_name), to: (to_dir, to_name) });
        }
        before
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let fate = state.begin(false);
        let before = fate.refused()?;
        let ino = state.resolve(path)?;
        state.file_mut(ino)?;
        let (dir, name) = state.parent(path)?;
        state.dir_mut(dir)?.change(DirChange::Unlink { name });
        state.collect_garbage();
        before
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let fate = state.begin(false);
        let before = fate.refused()?;
        let ino = state.resolve(path)?;
        state.dir(ino)?;
        let (parent, name) = state.parent(path)?;
        state.empty_dir(ino)?;
        state.dir_mut(parent)?.change(DirChange::Unlink { name });
        state.collect_garbage();
        before
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.syncs += 1;
        state.begin(false).refused()??;
        let ino = state.resolve(path)?;
        let lying = state.lying_sync;
        let dir = state.dir_mut(ino)?;
        if !lying {
            dir.durable = dir.seen.clone();
            dir.changes.clear();
            state.moves.retain(|moved| moved.to.0 != ino);
            state.collect_garbage();
        }
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<DiskLock> {
        let mut state = self.state.lock();
        state.begin(false).refused()??;
        let ino = match state.resolve(path) {
            Ok(ino) => ino,
            Err(e) if e.kind() == io::ErrorKind::NotFound => state.create_file(path)?,
            Err(e) => return Err(e),
        };
        state.file_mut(ino)?;
        if !state.locks.insert(ino) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let epoch = state.epoch;
        Ok(DiskLock { _held: Box::new(SimLock { disk: self.clone(), ino, epoch }) })
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.begin(false).refused()??;
        Ok(state.capacity.map_or(1 << 50, |capacity| capacity.saturating_sub(state.used())))
    }
}

impl SimFile {
    /// Runs one counted call on this file. `act` gets the file when the call may take effect.
    fn call<T>(
        &self,
        writes: bool,
        grows_to: Option<u64>,
        act: impl FnOnce(&mut FileNode, &mut Rng, Option<Failure>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.disk.state.lock();
        let state = &mut *state;
        let stale = state.epoch != self.epoch;
        let fate = state.begin(grows_to.is_some());
        if stale {
            return Err(io::Error::other(Crashed));
        }
        let before = fate.refused()?;
        if writes && !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if let (Some(len), Some(capacity)) = (grows_to, state.capacity) {
            let more = len.saturating_sub(state.file_mut(self.ino)?.seen.len() as u64);
            if more > 0 && state.used().saturating_add(more) > capacity {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let file = match state.inodes.get_mut(&self.ino) {
            Some(Inode::File(file)) => file,
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        let result = act(file, &mut state.rng, fate.failure);
        before?;
        result
    }
}

impl DiskFile for SimFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.call(false, None, |file, _, failure| {
            if failure.is_some() {
                return Ok(());
            }
            let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            let end = start.checked_add(buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(file.seen.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        self.call(true, Some(end), |file, rng, failure| {
            let done = match failure {
                None => bytes.len(),
                Some(_) => rng.below(bytes.len() as u64 + 1) as usize,
            };
            file.write(offset, &bytes[..done]);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let lying = {
            let mut state = self.disk.state.lock();
            state.syncs += 1;
            state.lying_sync
        };
        self.call(true, None, |file, rng, failure| {
            match failure {
                None if lying => {}
                None => file.sync(),
                Some(Failure::Crash) => {}
                // As the kernel does: pages whose write-back failed are clean again, and lost.
                Some(_) => file.half_sync(rng),
            }
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.call(false, None, |file, _, _| Ok(file.seen.len() as u64))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.call(true, Some(len), |file, _, failure| {
            if failure != Some(Failure::Eio) {
                file.set_len(len);
            }
            Ok(())
        })
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.call(true, Some(len), |file, _, failure| {
            if failure != Some(Failure::Eio) && len > file.seen.len() as u64 {
                file.set_len(len);
            }
            Ok(())
        })
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        self.call(false, None, |file, _, _| {
            let len = usize::try_from(len).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            let bytes = file.seen.get(..len).ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok(Bytes::copy_from_slice(bytes))
        })
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        if state.epoch == self.epoch
            && let Ok(file) = state.file_mut(self.ino)
        {
            file.handles -= 1;
        }
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        if state.epoch == self.epoch {
            state.locks.remove(&self.ino);
        }
    }
}

/// What a call is fated to: nothing special, or a failure, with or without taking effect.
#[derive(Clone, Copy)]
struct Fate {
    failure: Option<Failure>,
    effect: bool,
}

impl Fate {
    /// Outer error: fail now, no effect. Inner error: have the effect, then fail.
    fn refused(self) -> io::Result<io::Result<()>> {
        let error = match self.failure {
            None => return Ok(Ok(())),
            Some(Failure::Eio) => io::Error::from_raw_os_error(Errno::EIO),
            Some(Failure::NoSpace) => io::Error::from_raw_os_error(Errno::ENOSPC),
            Some(Failure::Crash) => io::Error::other(Crashed),
        };
        if self.effect { Ok(Err(error)) } else { Err(error) }
    }
}

/// The two numbers are the same on every Linux.
struct Errno;

impl Errno {
    const EIO: i32 = 5;
    const ENOSPC: i32 = 28;
}

impl State {
    /// Counts a call and decides its fate.
    fn begin(&mut self, needs_space: bool) -> Fate {
        let now = self.calls;
        self.calls += 1;
        if self.crashed {
            return Fate { failure: Some(Failure::Crash), effect: false };
        }
        let due =
            self.faults.iter().position(|&(at, failure)| at <= now && (failure != Failure::NoSpace || needs_space));
        let Some(due) = due else { return Fate { failure: None, effect: true } };
        let (_, failure) = self.faults.remove(due);
        match failure {
            Failure::NoSpace => Fate { failure: Some(failure), effect: false },
            Failure::Eio => Fate { failure: Some(failure), effect: self.rng.chance(500) },
            Failure::Crash => {
                self.crashed = true;
                Fate { failure: Some(failure), effect: self.rng.chance(500) }
            }
        }
    }

    fn restart(&mut self) {
        self.epoch += 1;
        self.locks.clear();
        self.faults.clear();
        self.crashed = false;
        for inode in self.inodes.values_mut() {
            if let Inode::File(file) = inode {
                file.handles = 0;
            }
        }
    }

    fn inode(&self, ino: Ino) -> io::Result<&Inode> {
        self.inodes.get(&ino).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn dir(&self, ino: Ino) -> io::Result<&DirNode> {
        match self.inode(ino)? {
            Inode::Dir(dir) => Ok(dir),
            Inode::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn dir_mut(&mut self, ino: Ino) -> io::Result<&mut DirNode> {
        match self.inodes.get_mut(&ino) {
            Some(Inode::Dir(dir)) => Ok(dir),
            Some(Inode::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn file_mut(&mut self, ino: Ino) -> io::Result<&mut FileNode> {
        match self.inodes.get_mut(&ino) {
            Some(Inode::File(file)) => Ok(file),
            Some(Inode::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn resolve(&self, path: &Path) -> io::Result<Ino> {
        let mut at = ROOT;
        for name in names_of(path)? {
            at = *self.dir(at)?.seen.get(name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    /// The directory that holds a path, and the name in it.
    fn parent(&self, path: &Path) -> io::Result<(Ino, String)> {
        let mut names = names_of(path)?;
        let name = names.pop().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let mut at = ROOT;
        for name in names {
            at = *self.dir(at)?.seen.get(name).ok_or(io::ErrorKind::NotFound)?;
        }
        self.dir(at)?;
        Ok((at, name))
    }

    fn add_inode(&mut self, inode: Inode) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.inodes.insert(ino, inode);
        ino
    }

    fn create_file(&mut self, path: &Path) -> io::Result<Ino> {
        let (dir, name) = self.parent(path)?;
        let ino = self.add_inode(Inode::File(FileNode::default()));
        self.dir_mut(dir)?.change(DirChange::Link { name, ino });
        Ok(ino)
    }

    fn empty_dir(&mut self, ino: Ino) -> io::Result<()> {
        let children: Vec<(String, Ino)> = self.dir(ino)?.seen.iter().map(|(name, ino)| (name.clone(), *ino)).collect();
        for (name, child) in children {
            if matches!(self.inode(child)?, Inode::Dir(_)) {
                self.empty_dir(child)?;
            }
            self.dir_mut(ino)?.change(DirChange::Unlink { name });
        }
        Ok(())
    }

    fn used(&self) -> u64 {
        let mut total = 0;
        let mut dirs = vec![ROOT];
        while let Some(ino) = dirs.pop() {
            let Some(Inode::Dir(dir)) = self.inodes.get(&ino) else { continue };
            for child in dir.seen.values() {
                match self.inodes.get(child) {
                    Some(Inode::File(file)) => total += file.seen.len() as u64,
                    Some(Inode::Dir(_)) => dirs.push(*child),
                    None => {}
                }
            }
        }
        total
    }

    /// Frees inodes that no name, present, durable or possible, and no handle leads to.
    fn collect_garbage(&mut self) {
        let mut reached = BTreeSet::new();
        let mut todo = vec![ROOT];
        while let Some(ino) = todo.pop() {
            if !reached.insert(ino) {
                continue;
            }
            if let Some(Inode::Dir(dir)) = self.inodes.get(&ino) {
                todo.extend(dir.seen.values().chain(dir.durable.values()));
                todo.extend(dir.changes.iter().filter_map(|change| match change {
                    DirChange::Link { ino, .. } | DirChange::Rename { ino, .. } => Some(*ino),
                    DirChange::Unlink { .. } => None,
                }));
            }
        }
        self.inodes
            .retain(|ino, inode| reached.contains(ino) || matches!(inode, Inode::File(file) if file.handles > 0));
    }
}

/// The names along a path; `.` and a leading `/` are nothing, `..` is not supported.
fn names_of(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_str().ok_or(io::ErrorKind::InvalidInput)?),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(names)
}

#[cfg(test)]
#[path = "sim_disk_tests.rs"]
mod tests;
