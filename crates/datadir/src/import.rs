//! A data directory of etcd's becomes a Dolmen member's, at the member's start.
//!
//! ```text
//! member/             etcd's, locked, only read
//! member.importing/   ours in the making; whatever is in it after a crash is removed
//! member.imported/    ours, whole and durable, not yet in its place
//! member.etcd/        etcd's, moved aside, byte for byte
//! ```
//!
//! Renames of whole directories lead from one line to the next, each durable before the one after it: `member.importing` to
//! `member.imported`, `member` to `member.etcd`, `member.imported` to `member`. Killed before the second, the next start
//! begins again from etcd's files, which somebody may have gone on writing to meanwhile; killed behind it, the next start
//! takes the rest of the way.
//!
//! A log directory elsewhere may be a mount point: its files are moved into a folder inside it, named like the one beside
//! `member`, and ours are copied in, between the last two renames.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dolmen_env::{Disk, OpenMode};
use dolmen_mvcc::{OpenError, RestoreError, Store};
use dolmen_node::Layout;
use dolmen_proto::raftpb::Entry;
use dolmen_revlog::{Log, Options};
use dolmen_types::{Index, hex_id};
use dolmen_wal::{Wal, WalError, WalOptions};
use serde_json::{Value, json};

use crate::files::{DiskError, Doing, in_the_making, parent_of, remove_dir, rename, sync_parent};
use crate::found::{self, Found};
use crate::migrate::Version;
use crate::report::{Level, Report};

/// What an import is told.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    pub layout: Layout,
    pub wal: WalOptions,
    pub store: Options,
}

impl ImportOptions {
    /// The defaults for a member's files.
    pub fn new(layout: Layout) -> Self {
        Self { layout, wal: WalOptions::default(), store: Options::default() }
    }
}

/// What was taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Where etcd's files are now.
    pub aside: PathBuf,
}

/// Why an etcd's directory is not taken over. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{} is in use by an etcd: stop it first", path.display())]
    Locked { path: PathBuf },
    #[error("reading etcd's log; if it is kept elsewhere, say where with --wal-dir")]
    Wal(#[from] WalError),
    #[error("{} is no sound etcd database: start etcd on it to see whether it can be used, or restore a snapshot", path.display())]
    Database { path: PathBuf, source: dolmen_bolt::Error },
    #[error("{}: {key} does not hold what etcd stores there", path.display())]
    Meta { path: PathBuf, key: &'static str },
    #[error(
        "{} has storage version {version}, which this release does not know: it takes over 3.5, 3.6 and 3.7; \
         downgrade the cluster with etcdctl first, or use a newer release", path.display()
    )]
    Newer { path: PathBuf, version: Version },
    #[error("{} is from etcd 3.4 or older: start etcd 3.5 on it once, and stop it", path.display())]
    Older { path: PathBuf },
    #[error("{} is applied to index {applied}, behind the log's snapshot at {mark}: the two do not belong together", path.display())]
    Behind { path: PathBuf, applied: Index, mark: Index },
    #[error("{} is applied to index {applied}, but the log ends at {last}: the two do not belong together", path.display())]
    Ahead { path: PathBuf, applied: Index, last: Index },
    #[error(
        "{} is applied to index {applied} of term {term}, but the log has it in term {told}: the two do not belong together",
        path.display()
    )]
    Terms { path: PathBuf, applied: Index, term: u64, told: u64 },
    #[error("a downgrade to {target} is under way: finish it, or run `etcdctl downgrade cancel`, with etcd first")]
    Downgrade { target: String },
    #[error(
        "log entry {index}, not yet applied, is a request of kind {kind}, which this release does not carry out: start etcd \
         once more and stop it cleanly, so that it applies its log"
    )]
    Kind { index: Index, kind: &'static str },
    #[error("log entry {index}, not yet applied, cannot be read: {what}; start etcd once more and stop it cleanly")]
    Entry { index: Index, what: String },
    #[error("member {} is in raft's configuration, and nothing says where it is", hex_id(*id))]
    UnknownMember { id: u64 },
    #[error("building the store")]
    Store(#[from] RestoreError),
    #[error("building the store")]
    Log(#[from] dolmen_revlog::Error),
    #[error("building the store")]
    Open(#[from] OpenError),
    #[error(
        "{} was imported and not yet put in the place of {}, where something else is now: remove one of the two",
        ready.display(), member.display()
    )]
    Both { ready: PathBuf, member: PathBuf },
    #[error("a restore into {} was cut off: remove {}, and restore again", dir.display(), part.display())]
    CutOff { dir: PathBuf, part: PathBuf },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Where things stand on the way.
struct Way {
    data_dir: PathBuf,
    member: PathBuf,
    making: PathBuf,
    ready: PathBuf,
    /// The log directory, when it is not in `member`.
    wal: Option<PathBuf>,
}

/// In `ready` once etcd's files have left a log directory that is elsewhere.
const LOG_MOVED: &str = "log-moved";

impl Way {
    fn new(layout: &Layout) -> Self {
        let sibling = |name: &str| layout.member.with_file_name(name);
        Self {
            data_dir: parent_of(&layout.member).to_owned(),
            member: layout.member.clone(),
            making: sibling("member.importing"),
            ready: sibling("member.imported"),
            wal: (layout.wal != layout.member.join("wal")).then(|| layout.wal.clone()),
        }
    }

    fn has_etcds(&self, disk: &dyn Disk) -> Result<bool, DiskError> {
        let exists = |path: PathBuf| disk.exists(&path).doing("look at", &path);
        // Both: somebody started an etcd on a member of ours. That is for the start to refuse.
        Ok(exists(self.member.join("snap/db"))? && !exists(self.member.join("store"))?)
    }

    /// The folders that hold etcd's files, oldest first.
    fn asides(&self, disk: &dyn Disk, dir: &Path) -> Result<Vec<String>, DiskError> {
        let mut names = disk.read_dir(dir).doing("read", dir)?;
        names.retain(|name| number_of(name).is_some());
        names.sort_by_key(|name| number_of(name));
        Ok(names)
    }
}

const ASIDE: &str = "member.etcd";

/// Which of the folders for etcd's files a name is.
fn number_of(name: &str) -> Option<u64> {
    match name.strip_prefix(ASIDE)? {
        "" => Some(1),
        rest => rest.strip_prefix('-')?.parse().ok(),
    }
}

fn aside_name(number: u64) -> String {
    if number <= 1 { ASIDE.to_owned() } else { format!("{ASIDE}-{number}") }
}

/// Takes over an etcd's data directory if there is one; `None` when there is nothing to do. To be called before anything
/// else looks into the member's directory.
///
/// # Errors
/// See [`ImportError`].
pub fn import(
    disk: &Arc<dyn Disk>,
    options: &ImportOptions,
    report: &mut dyn Report,
) -> Result<Option<Imported>, ImportError> {
    let way = Way::new(&options.layout);
    let exists = |path: &Path| disk.exists(path).doing("look at", path);
    if !exists(&way.data_dir)? {
        return Ok(None);
    }
    let part = in_the_making(&way.member);
    if exists(&part)? && !exists(&way.member)? {
        // The server would begin with nothing, where somebody has begun to put a snapshot.
        return Err(ImportError::CutOff { dir: way.data_dir, part });
    }
    if exists(&way.ready)? {
        if !exists(&way.member)? {
            return finish(&**disk, &way, report).map(Some);
        }
        if !way.has_etcds(&**disk)? {
            return Err(ImportError::Both { ready: way.ready, member: way.member });
        }
        // An etcd may have run in between.
        remove_dir(&**disk, &way.ready)?;
    }
    remove_dir(&**disk, &way.making)?;
    if !way.has_etcds(&**disk)? {
        return Ok(None);
    }
    let db = way.member.join("snap/db");
    let lock = match disk.lock(&db) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(ImportError::Locked { path: db }),
        lock => lock.doing("lock", &db)?,
    };
    let found = found::inspect(&**disk, &options.layout)?;
    let fields = [
        ("member-dir", json!(way.member.display().to_string())),
        ("storage-version", json!(found.version.to_string())),
        ("local-member-id", json!(hex_id(found.log.metadata.node_id))),
        ("cluster-id", json!(hex_id(found.log.metadata.cluster_id))),
        ("applied-index", json!(found.applied)),
        ("entries-to-apply", json!(found.log.entries.iter().filter(|entry| entry.index > found.applied).count())),
        ("term", json!(found.log.hard_state.term)),
    ];
    report.log(Level::Info, "importing an etcd data directory", &fields);
    for text in &found.mended {
        report.log(Level::Warn, "the database's members were put right", &[("what", json!(text))]);
    }
    if let Some(torn) = &found.log.repaired {
        let fields = [("offset", json!(torn.offset)), ("bytes", json!(torn.bytes)), ("what", json!(torn.what))];
        report.log(Level::Warn, "left out a torn end of the log", &fields);
    }
    build(disk, options, &way, &found, report)?;
    rename(&**disk, &way.making, &way.ready)?;
    let last = way.asides(&**disk, &way.data_dir)?.last().and_then(|name| number_of(name)).unwrap_or(0);
    let aside = way.data_dir.join(aside_name(last + 1));
    rename(&**disk, &way.member, &aside)?;
    drop(lock);
    finish(&**disk, &way, report).map(Some)
}

/// Makes store and log beside etcd's.
fn build(
    disk: &Arc<dyn Disk>,
    options: &ImportOptions,
    way: &Way,
    found: &Found,
    report: &mut dyn Report,
) -> Result<(), ImportError> {
    let store_dir = way.making.join("store");
    disk.create_dir_all(&store_dir).doing("create", &store_dir)?;
    let (log, recovered) = Log::open(disk.clone(), &store_dir, options.store.clone())?;
    let (mut store, _) = Store::open(log, recovered)?;
    let db = way.member.join("snap/db");
    let source = found.reader.source().map_err(|source| ImportError::Database { path: db.clone(), source })?;
    let restored = dolmen_mvcc::restore_from(store.log().replace(), &found.overlay(&source))?;
    let stands = store.install(restored)?;
    let fields = [
        ("revision", json!(stands.revision)),
        ("compact-revision", json!(stands.compact_revision)),
        ("keys", json!(stands.keys)),
    ];
    report.log(Level::Info, "built the store", &fields);
    drop(store);

    let wal_dir = way.making.join("wal");
    let mut wal = Wal::create(disk.clone(), &wal_dir, found.log.metadata, options.wal)?;
    if found.base.index > 0 {
        wal.append_snapshot(&found.base)?;
    }
    append(&mut wal, &found.log.entries)?;
    let state = &found.log.hard_state;
    wal.append(Some(state), &[])?;
    wal.close()?;
    disk.sync_dir(&way.making).doing("sync", &way.making)?;
    Ok(())
}

/// Bytes appended to a log between two syncs.
const APPEND: usize = 4 << 20;

/// Appends entries, in pieces that need no more memory than a segment has.
pub(crate) fn append(wal: &mut Wal, entries: &[Entry]) -> Result<(), WalError> {
    let mut rest = entries;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.data.len();
            bytes <= APPEND
        };
        let (piece, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        wal.append(None, piece)?;
        wal.sync()?;
        rest = after;
    }
    Ok(())
}

/// From etcd's files moved aside to ours in their place.
fn finish(disk: &dyn Disk, way: &Way, report: &mut dyn Report) -> Result<Imported, ImportError> {
    let name = way.asides(disk, &way.data_dir)?.pop().unwrap_or_else(|| ASIDE.to_owned());
    let aside = way.data_dir.join(&name);
    if let Some(dir) = &way.wal {
        move_log(disk, way, dir, &name)?;
    }
    rename(disk, &way.ready, &way.member)?;
    // It has said what it was there for; where it stays, nobody looks.
    let _gone = disk.remove_file(&way.member.join(LOG_MOVED));
    let fields: [(&str, Value); 1] = [("etcd-files", json!(aside.display().to_string()))];
    report.log(Level::Info, "imported an etcd data directory; its files were moved aside", &fields);
    Ok(Imported { aside })
}

/// Moves etcd's log aside within its directory, and ours in. Every step may have been done before.
fn move_log(disk: &dyn Disk, way: &Way, dir: &Path, name: &str) -> Result<(), ImportError> {
    // Slots beside the directory speak of a log that this server kept there before an etcd went on, and moved away with it.
    Wal::remove_slots(disk, dir)?;
    let marker = way.ready.join(LOG_MOVED);
    if !disk.exists(&marker).doing("look at", &marker)? {
        let aside = dir.join(name);
        disk.create_dir_all(&aside).doing("create", &aside)?;
        let files = disk.read_dir(dir).doing("read", dir)?;
        for file in files.iter().filter(|file| number_of(file).is_none()) {
            disk.rename(&dir.join(file), &aside.join(file)).doing("move", &dir.join(file))?;
        }
        disk.sync_dir(&aside).doing("sync", &aside)?;
        disk.sync_dir(dir).doing("sync", dir)?;
        disk.open(&marker, OpenMode::Truncate).doing("create", &marker)?;
        disk.sync_dir(&way.ready).doing("sync", &way.ready)?;
    }
    let ours = way.ready.join("wal");
    if !disk.exists(&ours).doing("look at", &ours)? {
        return Ok(());
    }
    for file in disk.read_dir(&ours).doing("read", &ours)?.iter().filter(|file| file.ends_with(".wal")) {
        let (from, to) = (ours.join(file), dir.join("0.tmp"));
        copy(disk, &from, &to)?;
        rename(disk, &to, &dir.join(file))?;
    }
    Wal::remove_slots(disk, &ours)?;
    remove_dir(disk, &ours)?;
    disk.sync_dir(&way.ready).doing("sync", &way.ready)?;
    Ok(())
}

/// Copies a file; durable but for its name.
fn copy(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), DiskError> {
    let source = disk.open(from, OpenMode::Read).doing("open", from)?;
    let target = disk.open(to, OpenMode::Truncate).doing("create", to)?;
    let len = source.len().doing("read", from)?;
    target.copy_from(&*source, 0, len).doing("copy to", to)?;
    target.sync_data().doing("sync", to)
}

/// Removes what imports moved aside, once the member serves without it. Returns the folders.
///
/// # Errors
/// When one cannot be removed.
pub fn remove_imported(disk: &dyn Disk, layout: &Layout) -> Result<Vec<PathBuf>, DiskError> {
    let way = Way::new(layout);
    let mut gone = Vec::new();
    for dir in std::iter::once(&way.data_dir).chain(&way.wal) {
        for name in way.asides(disk, dir)? {
            let path = dir.join(name);
            remove_dir(disk, &path)?;
            sync_parent(disk, &path)?;
            gone.push(path);
        }
    }
    Ok(gone)
}
