//! The storage version of etcd's data directory, changed in place.
//!
//! A version is a text in bucket `meta`, absent before 3.6. The change is committed as bbolt commits: new pages behind the
//! old ones, synced, and then one meta, so that a kill at any moment leaves the old version or the new one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use dolmen_bolt::BoltReader;
use dolmen_env::{Disk, OpenMode, RealDisk};
use dolmen_proto::raftpb::EntryType;
use dolmen_wal::{Wal, WalError};
use serde_json::json;

use crate::files::{DiskError, Doing, FileReader};
use crate::report::{Level, Report};

/// What `migrate` is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrateOptions {
    pub data_dir: PathBuf,
    /// `X.Y`, as it was typed.
    pub target_version: String,
    pub force: bool,
}

/// Why nothing was migrated; the texts are etcd's where it has one.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("wrong target version format, expected \"X.Y\", got {got:?}")]
    Format { got: String },
    #[error("failed to parse target version: {what}")]
    Parse { what: String },
    #[error("target version \"{target}\" not supported. Minimal \"3.5\"")]
    TooOld { target: Version },
    #[error("stat {}: no such file or directory", path.display())]
    NoDatabase { path: PathBuf },
    #[error("{} is in use by another process: stop it first", path.display())]
    Locked { path: PathBuf },
    #[error("{} is no sound etcd database", path.display())]
    Database { path: PathBuf, source: dolmen_bolt::Error },
    #[error("missing term information")]
    NoTerm,
    #[error("cannot create migration plan: changing major storage version is not supported")]
    Major,
    #[error("cannot create migration plan: version \"{version}.0\" is not supported")]
    Unknown { version: Version },
    #[error(
        "cannot downgrade storage, WAL contains newer entries, as the target version ({target}.0) is lower than the \
         version ({found}.0) detected from WAL logs"
    )]
    NewerEntries { target: Version, found: Version },
    #[error("failed to read wal")]
    Wal(#[from] WalError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl MigrateError {
    /// Whether the arguments were wrong, rather than the data.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Format { .. } | Self::Parse { .. } | Self::TooOld { .. })
    }
}

/// A storage version; etcd counts no patches there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u64,
    pub minor: u64,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    pub(crate) const V3_5: Self = Self { major: 3, minor: 5 };
    pub(crate) const V3_6: Self = Self { major: 3, minor: 6 };
    /// The newest whose data this release understands.
    pub(crate) const V3_7: Self = Self { major: 3, minor: 7 };

    /// Reads `X.Y.Z`, as databases hold it; what follows the second number is not looked at.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(text).ok()?.split('.');
        Some(Self { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
    }

    /// Reads what was typed.
    fn target(text: &str) -> Result<Self, MigrateError> {
        let Some((major, minor)) = text.split_once('.').filter(|(_, minor)| !minor.contains('.')) else {
            return Err(MigrateError::Format { got: text.to_owned() });
        };
        let number = |part: &str| {
            let what = format!("strconv.ParseInt: parsing {part:?}: invalid syntax");
            part.parse().map_err(|_| MigrateError::Parse { what })
        };
        let target = Self { major: number(major)?, minor: number(minor)? };
        if target < Self::V3_5 { Err(MigrateError::TooOld { target }) } else { Ok(target) }
    }

    /// What a database holds.
    pub(crate) fn text(self) -> Bytes {
        format!("{self}.0").into()
    }
}

/// Migrates on the real disk.
///
/// # Errors
/// See [`MigrateError`]. The database is as it was.
pub fn migrate(options: &MigrateOptions, report: &mut dyn Report) -> Result<(), MigrateError> {
    migrate_on(&RealDisk, options, report)
}

/// Migrates on a disk.
///
/// # Errors
/// As [`migrate`].
pub fn migrate_on(disk: &dyn Disk, options: &MigrateOptions, report: &mut dyn Report) -> Result<(), MigrateError> {
    let target = Version::target(&options.target_version)?;
    let path = options.data_dir.join("member/snap/db");
    if !disk.exists(&path).doing("look at", &path)? {
        return Err(MigrateError::NoDatabase { path });
    }
    let _lock = match disk.lock(&path) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(MigrateError::Locked { path }),
        lock => lock.doing("lock", &path)?,
    };
    let unsound = |source| MigrateError::Database { path: path.clone(), source };
    let file = disk.open(&path, OpenMode::ReadWrite).doing("open", &path)?;
    let reader = BoltReader::open(FileReader(file)).map_err(unsound)?;
    let mut meta = BTreeMap::new();
    if let Some(bucket) = reader.bucket(b"meta").map_err(unsound)? {
        for pair in bucket.pairs().map_err(unsound)? {
            let (key, value) = pair.map_err(unsound)?;
            meta.insert(key, value);
        }
    }
    let Some(current) = version_of(&meta) else {
        let text = "failed to detect storage version. Please make sure you are using data dir from etcd v3.5 and older";
        report.log(Level::Error, text, &[]);
        return Err(MigrateError::NoTerm);
    };
    if current == target {
        let fields = [("storage-version", json!(target.to_string()))];
        report.log(Level::Info, "storage version up-to-date", &fields);
        return Ok(());
    }
    let newest = newest_entries(disk, &options.data_dir.join("member/wal"))?;
    match plan(current, target, newest) {
        Ok(steps) => {
            for step in steps {
                let fields = [("new-storage-version", json!(format!("{step}.0")))];
                report.log(Level::Info, "updated storage version", &fields);
            }
        }
        Err(error) if !options.force => return Err(error),
        Err(error) => {
            let fields = [("error", json!(error.to_string()))];
            report.log(Level::Info, "normal migrate failed, trying with force", &fields);
            if target < Version::V3_6 {
                report.log(Level::Warn, "forcefully cleared storage version", &[]);
            } else {
                let fields = [("storage-version", json!(target.to_string()))];
                report.log(Level::Warn, "forcefully set storage version", &fields);
            }
        }
    }
    if target < Version::V3_6 {
        meta.remove(STORAGE_VERSION);
    } else {
        meta.insert(Bytes::from_static(STORAGE_VERSION), target.text());
    }
    let mut edit = reader.edit().map_err(unsound)?;
    edit.replace(b"meta", &meta).map_err(unsound)?;
    let patch = edit.finish().map_err(unsound)?;
    let file = disk.open(&path, OpenMode::ReadWrite).doing("open", &path)?;
    file.write_all_at(&patch.pages, patch.offset).doing("write", &path)?;
    file.sync_data().doing("sync", &path)?;
    let (offset, bytes) = patch.commit();
    file.write_all_at(&bytes, offset).doing("write", &path)?;
    Ok(file.sync_data().doing("sync", &path)?)
}

pub(crate) const STORAGE_VERSION: &[u8] = b"storageVersion";

/// The version that bucket `meta` tells of; `None` when it is older than 3.5, or nothing was ever applied.
pub(crate) fn version_of(meta: &BTreeMap<Bytes, Bytes>) -> Option<Version> {
    match meta.get(STORAGE_VERSION) {
        Some(text) => Version::parse(text),
        None => meta.get(&b"term"[..]).filter(|term| term.iter().any(|byte| *byte != 0)).map(|_| Version::V3_5),
    }
}

/// The steps from one version to another, each named by what it leads to.
fn plan(current: Version, target: Version, newest: Version) -> Result<Vec<Version>, MigrateError> {
    if current.major != target.major {
        return Err(MigrateError::Major);
    }
    let mut steps = Vec::new();
    let mut at = current;
    while at != target {
        let up = at < target;
        // A step is described by the newer of its two versions.
        let described = if up { Version { minor: at.minor + 1, ..at } } else { at };
        if !(Version::V3_6..=Version::V3_7).contains(&described) {
            return Err(MigrateError::Unknown { version: described });
        }
        at.minor = if up { at.minor + 1 } else { at.minor - 1 };
        steps.push(at);
    }
    if target < current && target < newest {
        return Err(MigrateError::NewerEntries { target, found: newest });
    }
    Ok(steps)
}

/// The release that the log since the last snapshot needs at least, 3.5 for all older ones: one kind of entry is younger,
/// which exists to be so.
fn newest_entries(disk: &dyn Disk, dir: &Path) -> Result<Version, WalError> {
    let last = Wal::snapshots(disk, dir)?.pop().unwrap_or_default();
    let recovered = Wal::read(disk, dir, (last.index, last.term))?;
    let mut newest = Version::V3_5;
    for entry in recovered.entries.iter().filter(|entry| entry.r#type == EntryType::EntryNormal as i32) {
        if let Ok(request) = dolmen_machine::decode_request(&entry.data)
            && let Some(test) = request.downgrade_version_test
        {
            newest = newest.max(Version::V3_6).max(Version::parse(test.ver.as_bytes()).unwrap_or(newest));
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn targets_are_refused_in_etcds_words() {
        for (text, wanted) in [
            ("3", "wrong target version format, expected \"X.Y\", got \"3\""),
            ("3.6.0", "wrong target version format, expected \"X.Y\", got \"3.6.0\""),
            ("3.x", "failed to parse target version: strconv.ParseInt: parsing \"x\": invalid syntax"),
            ("3.4", "target version \"3.4\" not supported. Minimal \"3.5\""),
        ] {
            let error = Version::target(text).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.is_usage()), (wanted, true));
        }
        assert_eq!(Version::target("3.6").unwrap(), Version::V3_6);
    }

    #[test]
    fn plans_lead_step_by_step_and_not_beyond_what_is_known() {
        let shown = |from: &str, to: &str, newest: &str| match plan(version(from), version(to), version(newest)) {
            Ok(steps) => steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown("3.5", "3.7", "3.5"), "3.6 3.7");
        assert_eq!(shown("3.7", "3.5", "3.5"), "3.6 3.5");
        assert_eq!(shown("3.7", "3.8", "3.5"), "cannot create migration plan: version \"3.8.0\" is not supported");
        assert_eq!(
            shown("3.7", "4.0", "3.5"),
            "cannot create migration plan: changing major storage version is not supported"
        );
        let newer = shown("3.7", "3.6", "3.7");
        assert!(newer.contains("target version (3.6.0) is lower than the version (3.7.0)"), "{newer}");
    }
}
