//! The two slots beside the log, `acked-0` and `acked-1`: how far it was durable, written in turn so that a torn write
//! of one leaves the other. 68 bytes each, little-endian:
//!
//! ```text
//!  0  8  "dlmnack1"        24  8  node id            48  8  last index in the log
//!  8  8  generation        32  8  segment sequence   56  8  term of the hard state
//! 16  8  cluster id        40  8  durable offset     64  4  CRC-32C of bytes 0..64
//! ```

use std::io;
use std::path::{Path, PathBuf};

use dolmen_env::{Disk, DiskFile, OpenMode};
use dolmen_types::{Index, Term};

use crate::Metadata;
use crate::error::{Context, WalError};
use crate::names;

const MAGIC: &[u8; 8] = b"dlmnack1";
const LEN: usize = 68;

/// What one slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acked {
    pub generation: u64,
    pub metadata: Metadata,
    /// Everything below this offset of this segment, and every segment before it, was durable.
    pub seq: u64,
    pub offset: u64,
    pub index: Index,
    pub term: Term,
}

impl Acked {
    fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        let numbers = [
            self.generation,
            self.metadata.cluster_id,
            self.metadata.node_id,
            self.seq,
            self.offset,
            self.index,
            self.term,
        ];
        for (at, number) in numbers.into_iter().enumerate() {
            bytes[8 + at * 8..16 + at * 8].copy_from_slice(&number.to_le_bytes());
        }
        let check = crc32c::crc32c(&bytes[..LEN - 4]);
        bytes[LEN - 4..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// `None` for a slot that was torn, damaged, or never written.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.get(..LEN)?.try_into().ok()?;
        let check = u32::from_le_bytes(bytes[LEN - 4..].try_into().ok()?);
        if &bytes[..8] != MAGIC || check != crc32c::crc32c(&bytes[..LEN - 4]) {
            return None;
        }
        let number = |at: usize| u64::from_le_bytes(bytes[8 + at * 8..16 + at * 8].try_into().expect("8 of 68 bytes"));
        Some(Self {
            generation: number(0),
            metadata: Metadata { cluster_id: number(1), node_id: number(2) },
            seq: number(3),
            offset: number(4),
            index: number(5),
            term: number(6),
        })
    }
}

/// `acked-<n>` beside a log directory called `wal`; beside one of another name, `<name>.acked-<n>`, because several
/// members may keep their logs next to each other on a log disk.
pub(crate) fn path(wal_dir: &Path, slot: usize) -> PathBuf {
    match wal_dir.file_name().and_then(|name| name.to_str()) {
        Some("wal") | None => wal_dir.with_file_name(format!("acked-{slot}")),
        Some(name) => wal_dir.with_file_name(format!("{name}.acked-{slot}")),
    }
}

fn read_one(disk: &dyn Disk, path: &Path) -> io::Result<Option<Acked>> {
    let file = match disk.open(path, OpenMode::Read) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if file.len()? < LEN as u64 {
        return Ok(None);
    }
    let mut bytes = [0; LEN];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Acked::decode(&bytes))
}

/// Both slots, undamaged ones only.
pub(crate) fn read(disk: &dyn Disk, wal_dir: &Path) -> Result<[Option<Acked>; 2], WalError> {
    let mut found = [None; 2];
    for (slot, acked) in found.iter_mut().enumerate() {
        let path = path(wal_dir, slot);
        *acked = read_one(disk, &path).context("read", &path)?;
    }
    Ok(found)
}

/// The newest word of the slots on the log of this member; slots of another life of the directory say nothing.
pub(crate) fn newest(slots: &[Option<Acked>; 2], metadata: Metadata) -> Option<Acked> {
    slots.iter().flatten().filter(|acked| acked.metadata == metadata).max_by_key(|acked| acked.generation).copied()
}

/// Writes the slots in turn.
pub(crate) struct Slots {
    files: [Box<dyn DiskFile>; 2],
    paths: [PathBuf; 2],
    generation: u64,
}

impl Slots {
    /// Opens both slots, making those that are not there.
    pub fn open(disk: &dyn Disk, wal_dir: &Path, found: &[Option<Acked>; 2]) -> Result<Self, WalError> {
        let mut made = false;
        let mut open = |slot: usize| -> Result<Box<dyn DiskFile>, WalError> {
            let path = path(wal_dir, slot);
            match disk.open(&path, OpenMode::ReadWrite) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    made = true;
                    disk.open(&path, OpenMode::CreateNew).context("create", &path)
                }
                result => result.context("open", &path),
            }
        };
        let files = [open(0)?, open(1)?];
        if made {
            let parent = names::parent_of(wal_dir);
            disk.sync_dir(parent).context("sync", parent)?;
        }
        let generation = found.iter().flatten().map(|acked| acked.generation).max().unwrap_or(0);
        Ok(Self { files, paths: [path(wal_dir, 0), path(wal_dir, 1)], generation })
    }

    /// Writes the slot that does not hold the newest generation; durable on return.
    pub fn write(&mut self, acked: Acked) -> Result<(), WalError> {
        let generation = self.generation.wrapping_add(1);
        let slot = (generation % 2) as usize;
        let bytes = Acked { generation, ..acked }.encode();
        self.files[slot].write_all_at(&bytes, 0).context("write", &self.paths[slot])?;
        self.files[slot].sync_data().context("sync", &self.paths[slot])?;
        self.generation = generation;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dolmen_env::{Fault, PowerLoss, SimDisk};

    use super::*;

    const IDS: Metadata = Metadata { node_id: 7, cluster_id: 9 };

    fn acked(offset: u64) -> Acked {
        Acked { generation: 0, metadata: IDS, seq: 1, offset, index: 2, term: 3 }
    }

    #[test]
    fn a_slot_round_trips_and_any_flipped_bit_unmakes_it() {
        let slot = Acked { generation: 5, ..acked(u64::MAX) };
        let bytes = slot.encode();
        assert_eq!(Acked::decode(&bytes), Some(slot));
        for bit in 0..LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Acked::decode(&bad), None, "bit {bit}");
        }
        assert_eq!(Acked::decode(&bytes[..LEN - 1]), None);
    }

    #[test]
    fn the_last_durable_word_survives_every_crash() {
        let wal_dir = Path::new("/m/wal");
        for shape in PowerLoss::ALL {
            for calls in 0..12 {
                let disk = SimDisk::new(calls);
                disk.create_dir_all(Path::new("/m")).unwrap();
                let mut slots = Slots::open(&disk, wal_dir, &[None, None]).unwrap();
                slots.write(acked(1)).unwrap();
                disk.inject(Fault::CrashAfter { calls });
                let written = (2..6).take_while(|offset| slots.write(acked(*offset)).is_ok()).last().unwrap_or(1);
                disk.power_loss(shape);
                let found = newest(&read(&disk, wal_dir).unwrap(), IDS).unwrap().offset;
                assert!(found == written || found == written + 1, "{shape:?} {calls}: {found} after {written}");
            }
        }
    }

    #[test]
    fn another_members_slot_says_nothing() {
        let other = Metadata { node_id: 8, cluster_id: 9 };
        let slots =
            [Some(Acked { generation: 2, metadata: other, ..acked(9) }), Some(Acked { generation: 1, ..acked(4) })];
        assert_eq!(newest(&slots, IDS).unwrap().offset, 4);
        assert_eq!(path(Path::new("/m/wal"), 0), Path::new("/m/acked-0"));
        assert_eq!(path(Path::new("/logs/a"), 1), Path::new("/logs/a.acked-1"));
    }
}
