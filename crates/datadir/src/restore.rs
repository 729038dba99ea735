//! A snapshot file becomes etcd's data directory, for the first start of a new cluster.
//!
//! The file's pages are copied as they are, hashed on the way, and what differs in the new cluster (its members, where its
//! log stands, a bumped revision) is patched in behind them. Time and memory therefore go with one pass over the bytes, and
//! not with the number of keys.
//!
//! All of it is built in a directory of another name and renamed when every byte is durable. A data directory that exists
//! and is empty may be a mount point, so there `member` alone is built inside and renamed. With a log directory elsewhere
//! there are two names that cannot change at once: then the database comes first, without the pages that make it one, so
//! that no server starts from it; then the log; and last those pages.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use bytes::Bytes;
use dolmen_bolt::{BoltReader, Patch, TRAILER_LEN, has_trailer};
use dolmen_env::{Disk, DiskFile, OpenMode, RealDisk};
use dolmen_machine::{Member, Membership};
use dolmen_proto::raftpb::{ConfChange, ConfState, Entry, EntryType, HardState, SnapshotMetadata};
use dolmen_proto::walpb;
use dolmen_types::{Revision, hex_id};
use dolmen_wal::{Metadata, Wal, WalError, WalOptions};
use prost::Message;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::bootstrap::{Bootstrap, BootstrapError};
use crate::files::{
    DiskError, Doing, FileReader, Place, PlaceError, in_the_making, is_taken, parent_of, remove_dir, rename,
};
use crate::report::{Level, Report};
use crate::snap;

/// What `snapshot restore` is told; names are the flags'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreOptions {
    pub snapshot: PathBuf,
    pub name: String,
    /// With the default applied: `<name>.etcd`.
    pub data_dir: PathBuf,
    /// `None`: `<data-dir>/member/wal`.
    pub wal_dir: Option<PathBuf>,
    /// Split at commas, and not looked at otherwise.
    pub initial_advertise_peer_urls: Vec<String>,
    pub initial_cluster: String,
    pub initial_cluster_token: String,
    pub skip_hash_check: bool,
    /// Only shown in the log: nothing is mapped.
    pub initial_memory_map_size: u64,
    /// 0: none. More goes with `mark_compacted` only, which the caller checks.
    pub bump_revision: u64,
    pub mark_compacted: bool,
}

/// Why nothing was restored. The texts of the first ones are etcd's.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error("data-dir {dir:?} not empty or could not be read")]
    DataDir { dir: PathBuf },
    #[error("wal-dir {dir:?} exists")]
    WalDir { dir: PathBuf },
    /// Says its cause itself, in Go's words.
    #[error("open {}: {}", path.display(), os_text(cause))]
    Open { path: PathBuf, cause: io::Error },
    #[error("snapshot missing hash but --skip-hash-check=false")]
    NoHash,
    #[error("expected sha256 {}, got {}", byte_list(expected), byte_list(found))]
    Hash { expected: Vec<u8>, found: Vec<u8> },
    #[error("{} is no sound etcd database", path.display())]
    Database { path: PathBuf, source: dolmen_bolt::Error },
    #[error("the snapshot's last revision {} cannot be raised by {by}", found.main)]
    Revision { found: Revision, by: u64 },
    #[error("the snapshot's bucket key has a key that is no revision")]
    NotARevision,
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Wal(#[from] WalError),
}

/// The operating system's words as Go has them, where that is the usual one.
fn os_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        io::ErrorKind::IsADirectory => "is a directory".into(),
        _ => error.to_string(),
    }
}

/// As Go prints a slice of bytes.
fn byte_list(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("[{}]", numbers.join(" "))
}

/// Restores on the real disk.
///
/// # Errors
/// See [`RestoreError`]. What was there before is untouched.
pub fn restore(options: &RestoreOptions, report: &mut dyn Report) -> Result<(), RestoreError> {
    restore_on(&(Arc::new(RealDisk) as Arc<dyn Disk>), options, WalOptions::default(), report)
}

/// Restores on a disk, where source and target are, with a log laid out by `wal`.
///
/// # Errors
/// As [`restore`].
pub fn restore_on(
    disk: &Arc<dyn Disk>,
    options: &RestoreOptions,
    wal_options: WalOptions,
    report: &mut dyn Report,
) -> Result<(), RestoreError> {
    let bootstrap = Bootstrap::new(
        &options.name,
        &options.initial_advertise_peer_urls,
        &options.initial_cluster,
        &options.initial_cluster_token,
    )?;
    if is_taken(&**disk, &options.data_dir) {
        return Err(RestoreError::DataDir { dir: options.data_dir.clone() });
    }
    let inside = options.data_dir.join("member/wal");
    let wal_dir = options.wal_dir.clone().filter(|dir| *dir != inside);
    if let Some(dir) = &wal_dir
        && disk.exists(dir).unwrap_or(true)
    {
        return Err(RestoreError::WalDir { dir: dir.clone() });
    }
    let fields = [
        ("path", shown(&options.snapshot)),
        ("wal-dir", shown(wal_dir.as_ref().unwrap_or(&inside))),
        ("data-dir", shown(&options.data_dir)),
        ("snap-dir", shown(&options.data_dir.join("member/snap"))),
        ("initial-memory-map-size", options.initial_memory_map_size.into()),
    ];
    report.log(Level::Info, "restoring snapshot", &fields);
    let place = Place::prepare(&**disk, &options.data_dir)?;
    // Below what gets its name last it comes along.
    let along = place.within(wal_dir.as_ref().unwrap_or(&inside));
    let wal = wal_dir.filter(|_| along.is_none()).map(|dir| (in_the_making(&dir), dir));
    let log = along.or_else(|| wal.as_ref().map(|(temporary, _)| temporary.clone()));
    let log = log.unwrap_or_else(|| place.member.join("wal"));
    let apart = wal.is_some();
    let built = Build { disk, options, wal_options, bootstrap: &bootstrap, place: &place, log, apart };
    let built = built.run(report);
    let patch = match built {
        Ok(patch) => patch,
        Err(error) => {
            place.clean(&**disk);
            if let Some((temporary, _)) = &wal {
                let _best_effort = disk.remove_dir_all(temporary);
            }
            return Err(error);
        }
    };
    place.finish(&**disk)?;
    if let Some((temporary, dir)) = &wal {
        // Slots that have outlived an earlier log say nothing of this one.
        Wal::remove_slots(&**disk, dir)?;
        rename(&**disk, temporary, dir)?;
        let db = options.data_dir.join("member/snap/db");
        let file = disk.open(&db, OpenMode::ReadWrite).doing("open", &db)?;
        write_all(&*file, &patch.metas(), &db)?;
        file.sync_data().doing("sync", &db)?;
    }
    report.log(Level::Info, "restored snapshot", &fields);
    Ok(())
}

fn shown(path: &Path) -> Value {
    path.display().to_string().into()
}

struct Build<'a> {
    disk: &'a Arc<dyn Disk>,
    options: &'a RestoreOptions,
    wal_options: WalOptions,
    bootstrap: &'a Bootstrap,
    place: &'a Place,
    /// The log while it is built.
    log: PathBuf,
    /// It gets its name apart from all the rest.
    apart: bool,
}

impl Build<'_> {
    /// Builds everything; returns what the database was patched with.
    fn run(&self, report: &mut dyn Report) -> Result<Patch, RestoreError> {
        let snap_dir = self.place.member.join("snap");
        let db = snap_dir.join("db");
        self.copy(&db, report)?;
        let patch = self.patch(&db, report)?;
        self.log()?;
        self.raft_snapshot(&snap_dir)?;

        let file = self.disk.open(&db, OpenMode::ReadWrite).doing("open", &db)?;
        file.write_all_at(&patch.pages, patch.offset).doing("write", &db)?;
        file.set_len(patch.len).doing("cut", &db)?;
        let mut metas = patch.metas();
        if self.apart {
            // They have to wait: see the head of the module.
            metas.iter_mut().for_each(|(_, bytes)| *bytes = vec![0; bytes.len()].into());
        }
        write_all(&*file, &metas, &db)?;
        file.sync_data().doing("sync", &db)?;
        Ok(patch)
    }

    /// Copies the database out of the snapshot file and proves its hash.
    fn copy(&self, db: &Path, report: &mut dyn Report) -> Result<(), RestoreError> {
        let source = &self.options.snapshot;
        let from = self.disk.open(source, OpenMode::Read);
        let from = from.map_err(|cause| RestoreError::Open { path: source.clone(), cause })?;
        let len = from.len().doing("read", source)?;
        let hashed = has_trailer(len);
        if !hashed && !self.options.skip_hash_check {
            return Err(RestoreError::NoHash);
        }
        let body = if hashed { len - TRAILER_LEN } else { len };
        let to = self.disk.open(db, OpenMode::CreateNew).doing("create", db)?;
        let found = if from.descriptor().is_some() {
            // Hashing takes about as long as copying, and another core has nothing to do; the disk need not wait for
            // either.
            std::thread::scope(|scope| {
                let (sender, receiver) = sync_channel(1);
                let syncer = scope.spawn(|| receiver.into_iter().try_for_each(|()| to.sync_data()));
                let hasher = scope.spawn(|| (!self.options.skip_hash_check).then(|| hash(&*from, body)).transpose());
                let copied = copy(&*from, &*to, db, body, report, &mut || {
                    // One that is still busy has seen enough.
                    let _busy = sender.try_send(());
                });
                drop(sender);
                let (synced, digest) = (syncer.join(), hasher.join());
                copied?;
                synced.unwrap_or_else(|_| Err(panicked())).doing("sync", db)?;
                digest.unwrap_or_else(|_| Err(panicked())).doing("read", source)
            })?
        } else {
            // A simulated disk counts its calls: one after the other.
            copy(&*from, &*to, db, body, report, &mut || {})?;
            (!self.options.skip_hash_check).then(|| hash(&*from, body)).transpose().doing("read", source)?
        };
        if let Some(found) = found {
            let mut expected = vec![0; TRAILER_LEN as usize];
            from.read_exact_at(&mut expected, body).doing("read", source)?;
            if expected != found {
                return Err(RestoreError::Hash { expected, found });
            }
        }
        Ok(())
    }

    /// What the new cluster's database says otherwise than the snapshot.
    fn patch(&self, db: &Path, report: &mut dyn Report) -> Result<Patch, RestoreError> {
        let unsound = |source| RestoreError::Database { path: self.options.snapshot.clone(), source };
        let file = self.disk.open(db, OpenMode::Read).doing("open", db)?;
        let reader = BoltReader::open(FileReader(file)).map_err(unsound)?;
        if self.options.skip_hash_check {
            // Nothing else vouches for the bytes.
            reader.check().map_err(unsound)?;
        }
        let mut edit = reader.edit().map_err(unsound)?;
        let mut meta = BTreeMap::new();
        if let Some(bucket) = reader.bucket(b"meta").map_err(unsound)? {
            for pair in bucket.pairs().map_err(unsound)? {
                let (key, value) = pair.map_err(unsound)?;
                meta.insert(key, value);
            }
        }
        report.log(Level::Info, "Trimming membership information from the backend...", &[]);
        if self.options.bump_revision > 0 && self.options.mark_compacted {
            let by = self.options.bump_revision;
            let last = edit.last_key(b"key").map_err(unsound)?;
            let found = match &last {
                Some(key) => Revision::from_bolt_key(key).ok_or(RestoreError::NotARevision)?.0,
                None => Revision::default(),
            };
            let main = i64::try_from(by).ok().and_then(|by| found.main.checked_add(by));
            let main = main.ok_or(RestoreError::Revision { found, by })?;
            let fields = [
                ("latest-revision", Value::from(found.main)),
                ("bump-amount", by.into()),
                ("new-latest-revision", main.into()),
            ];
            report.log(Level::Info, "bumping latest revision", &fields);
            let (key, len) = Revision { main, sub: 0 }.to_bolt_key(false);
            let key = Bytes::copy_from_slice(&key[..len]);
            edit.append(b"key", key.clone(), Bytes::new()).map_err(unsound)?;
            report.log(Level::Info, "marking revision compacted", &[("revision", main.into())]);
            meta.insert("scheduledCompactRev".into(), key);
        }
        let mut members = BTreeMap::new();
        for member in self.bootstrap.members.values() {
            let fields = [
                ("cluster-id", Value::from(hex_id(self.bootstrap.cluster_id))),
                ("local-member-id", "0".into()),
                ("added-peer-id", hex_id(member.id).into()),
                ("added-peer-peer-urls", json!(member.peer_urls)),
                ("added-peer-is-learner", false.into()),
            ];
            report.log(Level::Info, "added member", &fields);
            members.insert(hex_id(member.id).into(), member_json(member));
        }
        edit.replace(b"members", &members).map_err(unsound)?;
        edit.replace(b"members_removed", &BTreeMap::new()).map_err(unsound)?;
        let number = |number: u64| Bytes::copy_from_slice(&number.to_be_bytes());
        meta.insert("consistent_index".into(), number(self.bootstrap.members.len() as u64));
        meta.insert("term".into(), number(1));
        edit.replace(b"meta", &meta).map_err(unsound)?;
        edit.finish().map_err(unsound)
    }

    fn conf_state(&self) -> ConfState {
        ConfState { voters: self.bootstrap.members.keys().copied().collect(), ..ConfState::default() }
    }

    /// The log: one change of the configuration a member, committed, and word that the database holds them.
    fn log(&self) -> Result<(), RestoreError> {
        let dir = &self.log;
        let parent = parent_of(dir);
        self.disk.create_dir_all(parent).doing("create", parent)?;
        // Slots that one which was cut off has left would miss it.
        remove_dir(&**self.disk, dir)?;
        Wal::remove_slots(&**self.disk, dir)?;
        let metadata = Metadata { node_id: self.bootstrap.own, cluster_id: self.bootstrap.cluster_id };
        let mut wal = Wal::create(self.disk.clone(), dir, metadata, self.wal_options)?;
        let entries: Vec<Entry> = self.bootstrap.members.values().zip(1..).map(first_entry).collect();
        let commit = entries.len() as u64;
        let vote = self.bootstrap.members.keys().next().copied().unwrap_or_default();
        wal.append(Some(&HardState { term: 1, vote, commit }), &entries)?;
        wal.append_snapshot(&walpb::Snapshot { index: commit, term: 1, conf_state: Some(self.conf_state()) })?;
        wal.close()?;
        Ok(Wal::remove_slots(&**self.disk, dir)?)
    }

    fn raft_snapshot(&self, dir: &Path) -> Result<(), RestoreError> {
        let index = self.bootstrap.members.len() as u64;
        let membership = Membership { members: self.bootstrap.members.clone(), ..Membership::default() };
        let metadata = SnapshotMetadata { index, term: 1, conf_state: Some(self.conf_state()) };
        let store = membership.to_v2_store_json(index).into();
        let written = snap::write(&**self.disk, dir, metadata, store);
        Ok(written.doing("write", &dir.join(snap::file_name(1, index)))?)
    }
}

fn write_all(file: &dyn DiskFile, pieces: &[(u64, Bytes)], path: &Path) -> Result<(), DiskError> {
    pieces.iter().try_for_each(|(offset, bytes)| file.write_all_at(bytes, *offset)).doing("write", path)
}

pub(crate) fn member_json(member: &Member) -> Bytes {
    serde_json::to_vec(member).expect("a member is plain strings and numbers").into()
}

fn first_entry((member, index): (&Member, u64)) -> Entry {
    let change = ConfChange { node_id: member.id, context: member_json(member), ..ConfChange::default() };
    Entry { term: 1, index, r#type: EntryType::EntryConfChange as i32, data: change.encode_to_vec().into() }
}

/// Bytes copied between two words about it.
const COPIED: u64 = 8 << 20;
/// Bytes copied between two syncs that go on beside the copying.
const SYNCED: u64 = 4 * COPIED;
/// Bytes hashed at a time: few enough to stay in a cache.
const HASHED: u64 = 256 << 10;

fn copy(
    from: &dyn DiskFile,
    to: &dyn DiskFile,
    target: &Path,
    len: u64,
    report: &mut dyn Report,
    enough_to_sync: &mut dyn FnMut(),
) -> Result<(), DiskError> {
    let mut done = 0;
    while done < len {
        let piece = COPIED.min(len - done);
        to.copy_from(from, done, piece).doing("copy to", target)?;
        done += piece;
        report.progress(done, len);
        if done % SYNCED == 0 {
            enough_to_sync();
        }
    }
    Ok(())
}

fn panicked() -> io::Error {
    io::Error::other("a thread of the restore panicked")
}

/// The SHA-256 of the first `len` bytes.
fn hash(file: &dyn DiskFile, len: u64) -> io::Result<Vec<u8>> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; HASHED as usize];
    let mut done = 0;
    while done < len {
        let piece = &mut buffer[..HASHED.min(len - done) as usize];
        file.read_exact_at(piece, done)?;
        hasher.update(&*piece);
        done += piece.len() as u64;
    }
    Ok(hasher.finalize().to_vec())
}
