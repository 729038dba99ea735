//! A Dolmen member's directory becomes one that an etcd starts from: the way back.
//!
//! The store is brought up to the log's commit index in memory and written as a database; the log gets one snapshot record
//! at that index, what was not committed behind it, and term and vote. The member's own directory is not changed.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Mono, RealDisk};
use dolmen_machine::{FatalError, Machine, OpenError, Outcome};
use dolmen_mvcc::RangeError;
use dolmen_node::Layout;
use dolmen_proto::raftpb::SnapshotMetadata;
use dolmen_proto::walpb;
use dolmen_types::hex_id;
use dolmen_wal::{Wal, WalError, WalOptions};
use serde_json::json;

use crate::files::{DiskError, Doing, Overlay, Place, PlaceError, bucket, is_taken, write_db};
use crate::found::apply_conf_change;
use crate::import::append;
use crate::migrate::{STORAGE_VERSION, Version};
use crate::report::{Level, Report};
use crate::snap;

/// What `export` is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    pub data_dir: PathBuf,
    /// `None`: `<data-dir>/member/wal`.
    pub wal_dir: Option<PathBuf>,
    /// The data directory to make.
    pub to: PathBuf,
    /// The etcd it is for: `3.6` or `3.7`. `None`: what the cluster runs as.
    pub target_version: Option<String>,
}

/// Why nothing was exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("data-dir {dir:?} not empty or could not be read")]
    DataDir { dir: PathBuf },
    #[error("{} holds no Dolmen member", dir.display())]
    NoMember { dir: PathBuf },
    #[error("{} is in use by another process: stop the server first", dir.display())]
    Locked { dir: PathBuf },
    #[error("target version {got:?} not supported: 3.6 or 3.7")]
    Target { got: String },
    #[error("opening the store")]
    Open(#[from] OpenError),
    #[error("reading the log")]
    Wal(#[from] WalError),
    #[error("the store is at index {applied}, but no log begins at or below it")]
    MissingLog { applied: u64 },
    #[error("applying the log")]
    Apply(#[from] FatalError),
    #[error("reading the store")]
    Read(#[from] RangeError),
    #[error("writing the database")]
    Write(#[from] dolmen_bolt::WriteError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Exports on the real disk.
///
/// # Errors
/// See [`ExportError`]; the member's files are as they were.
pub fn export(options: &ExportOptions, report: &mut dyn Report) -> Result<(), ExportError> {
    export_on(&(Arc::new(RealDisk) as Arc<dyn Disk>), options, WalOptions::default(), report)
}

/// Exports on a disk, to a log laid out by `wal`.
///
/// # Errors
/// As [`export`].
pub fn export_on(
    disk: &Arc<dyn Disk>,
    options: &ExportOptions,
    wal: WalOptions,
    report: &mut dyn Report,
) -> Result<(), ExportError> {
    let target = match options.target_version.as_deref() {
        None => None,
        Some("3.6") => Some(Version::V3_6),
        Some("3.7") => Some(Version::V3_7),
        Some(other) => return Err(ExportError::Target { got: other.to_owned() }),
    };
    if is_taken(&**disk, &options.to) {
        return Err(ExportError::DataDir { dir: options.to.clone() });
    }
    let layout = Layout::new(&options.data_dir, options.wal_dir.as_deref());
    let store = layout.store();
    if !disk.exists(&store).doing("look at", &store)? {
        return Err(ExportError::NoMember { dir: options.data_dir.clone() });
    }
    let lock_path = layout.member.join("LOCK");
    let _lock = match disk.lock(&lock_path) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            return Err(ExportError::Locked { dir: options.data_dir.clone() });
        }
        lock => lock.doing("lock", &lock_path)?,
    };
    let mut machine = Machine::open(disk.clone(), &store, dolmen_machine::Config::default())?;
    let applied = machine.applied();
    let from = Wal::snapshots(&**disk, &layout.wal)?
        .into_iter()
        .rfind(|mark| mark.index <= applied)
        .ok_or(ExportError::MissingLog { applied })?;
    let recovered = Wal::read(&**disk, &layout.wal, (from.index, from.term))?;
    apply(&mut machine, &recovered)?;
    let position = machine.position();
    let fields = [
        ("data-dir", json!(options.data_dir.display().to_string())),
        ("to", json!(options.to.display().to_string())),
        ("local-member-id", json!(hex_id(recovered.metadata.node_id))),
        ("cluster-id", json!(hex_id(recovered.metadata.cluster_id))),
        ("index", json!(position.index)),
        ("term", json!(recovered.hard_state.term)),
        ("revision", json!(machine.store().revision())),
    ];
    report.log(Level::Info, "exporting to an etcd data directory", &fields);

    let place = Place::prepare(&**disk, &options.to)?;
    let built = Build { disk, machine: &machine, recovered: &recovered, target, place: &place, wal }.run(report);
    if built.is_err() {
        place.clean(&**disk);
    }
    built?;
    place.finish(&**disk)?;
    report.log(Level::Info, "exported to an etcd data directory", &fields);
    Ok(())
}

/// Entries of a run: what is applied before the machine makes one batch of it.
const RUN: usize = 1000;

/// Applies what is committed and not in the store. In memory only: nobody carries out the store's jobs.
fn apply(machine: &mut Machine, recovered: &dolmen_wal::Recovered) -> Result<(), ExportError> {
    let mut state = machine.conf_state().clone();
    let mut waiting = 0;
    for entry in &recovered.entries {
        if entry.index <= machine.applied() || entry.index > recovered.hard_state.commit {
            continue;
        }
        let applied = machine.apply(entry, Mono::default())?;
        if let Outcome::ConfChange { result: Ok(()), .. } = applied.outcome {
            apply_conf_change(&mut state, entry);
            machine.set_conf_state(state.clone());
        }
        let _no_hash_is_made = machine.take_compaction();
        waiting += 1;
        if waiting == RUN {
            machine.commit();
            waiting = 0;
        }
    }
    machine.commit();
    Ok(())
}

struct Build<'a> {
    disk: &'a Arc<dyn Disk>,
    machine: &'a Machine,
    recovered: &'a dolmen_wal::Recovered,
    target: Option<Version>,
    place: &'a Place,
    wal: WalOptions,
}

impl Build<'_> {
    fn run(&self, report: &mut dyn Report) -> Result<(), ExportError> {
        let Self { disk, machine, recovered, target, place, wal } = *self;
        let position = machine.position();
        let source = machine.snapshot_source()?;
        let mut membership = machine.membership().clone();
        let mut replaced = BTreeMap::new();
        if let Some(target) = target {
            let text = target.text();
            let set = |name: &str, key: &'static [u8]| -> Result<BTreeMap<Bytes, Bytes>, ExportError> {
                let mut pairs = bucket(&source, name.as_bytes()).map_err(dolmen_bolt::WriteError::from)?;
                pairs.insert(Bytes::from_static(key), text.clone());
                Ok(pairs)
            };
            replaced.insert(Bytes::from_static(b"meta"), set("meta", STORAGE_VERSION)?);
            replaced.insert(Bytes::from_static(b"cluster"), set("cluster", b"clusterVersion")?);
            membership.cluster_version = Some(format!("{target}.0"));
        }
        let snap_dir = place.member.join("snap");
        write_db(&**disk, &snap_dir.join("db"), &Overlay { under: &source, replaced }, report)?;

        let conf_state = Some(position.conf_state.clone());
        let metadata = SnapshotMetadata { index: position.index, term: position.term, conf_state: conf_state.clone() };
        let legacy = membership.to_v2_store_json(position.index).into();
        if position.index > 0 {
            snap::write(&**disk, &snap_dir, metadata, legacy).doing("write", &snap_dir)?;
        }

        let wal_dir = place.member.join("wal");
        let mut wal = Wal::create(disk.clone(), &wal_dir, recovered.metadata, wal)?;
        if position.index > 0 {
            let mark = walpb::Snapshot { index: position.index, term: position.term, conf_state };
            wal.append_snapshot(&mark)?;
        }
        let behind = recovered.entries.partition_point(|entry| entry.index <= position.index);
        append(&mut wal, &recovered.entries[behind..])?;
        let mut state = recovered.hard_state;
        state.commit = state.commit.max(position.index);
        state.term = state.term.max(position.term);
        wal.append(Some(&state), &[])?;
        wal.close()?;
        Ok(Wal::remove_slots(&**disk, &wal_dir)?)
    }
}
