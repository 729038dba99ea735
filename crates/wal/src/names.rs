//! Segment file names: `%016x-%016x.wal`, sequence and first index.

use std::io;
use std::path::{Path, PathBuf};

use dolmen_env::Disk;
use dolmen_types::Index;

/// A segment as its file name tells it. Ordered by sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentName {
    pub seq: u64,
    /// The index the next entry was expected to have when the segment was begun.
    pub first: Index,
}

impl SegmentName {
    pub fn parse(name: &str) -> Option<Self> {
        let (seq, first) = name.strip_suffix(".wal")?.split_once('-')?;
        Some(Self { seq: parse_hex(seq)?, first: parse_hex(first)? })
    }

    pub fn file_name(self) -> String {
        format!("{:016x}-{:016x}.wal", self.seq, self.first)
    }

    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.file_name())
    }
}

fn parse_hex(digits: &str) -> Option<u64> {
    let plain = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if plain { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// The directory that holds `dir`, which may be a name relative to where the process stands.
pub(crate) fn parent_of(dir: &Path) -> &Path {
    dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// All segments in a directory by sequence; none when the directory does not exist. Other files are ignored.
pub(crate) fn list(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<SegmentName>> {
    let names = match disk.read_dir(dir) {
        Ok(names) => names,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut segments: Vec<SegmentName> = names.iter().filter_map(|name| SegmentName::parse(name)).collect();
    segments.sort();
    Ok(segments)
}

/// Where the unbroken run of sequence numbers that ends in the last segment begins.
pub(crate) fn unbroken_from(segments: &[SegmentName]) -> usize {
    let mut start = segments.len().saturating_sub(1);
    while start > 0 && segments[start - 1].seq.checked_add(1) == Some(segments[start].seq) {
        start -= 1;
    }
    start
}

/// The newest segment that may hold the entry after `index`: reading starts there, and all before it may go.
pub(crate) fn holding(segments: &[SegmentName], index: Index) -> Option<usize> {
    segments.iter().rposition(|segment| segment.first <= index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_ignored() {
        let name = SegmentName { seq: 0x1f, first: u64::MAX };
        assert_eq!(name.file_name(), "000000000000001f-ffffffffffffffff.wal");
        assert_eq!(SegmentName::parse(&name.file_name()), Some(name));
        for other in [
            "0.tmp",
            "1-2.wal",
            "000000000000001F-0000000000000000.wal",
            "0000000000000000-0000000000000000.wal.broken",
        ] {
            assert_eq!(SegmentName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn every_directory_has_a_parent() {
        for (dir, parent) in [("/m/wal", "/m"), ("m/wal", "m"), ("wal", "."), ("./wal", ".")] {
            assert_eq!(parent_of(Path::new(dir)), Path::new(parent), "{dir}");
        }
    }

    #[test]
    fn a_run_of_sequence_numbers_ends_at_a_gap() {
        let of = |seqs: &[u64]| seqs.iter().map(|&seq| SegmentName { seq, first: seq * 10 }).collect::<Vec<_>>();
        assert_eq!(unbroken_from(&of(&[0, 1, 2])), 0);
        assert_eq!(unbroken_from(&of(&[0, 2, 3])), 1);
        assert_eq!(unbroken_from(&of(&[0, 1, 3])), 2);
        assert_eq!(unbroken_from(&of(&[0, 1, 1])), 2);
        assert_eq!(holding(&of(&[1, 2, 3]), 9), None);
        assert_eq!(holding(&of(&[1, 2, 3]), 20), Some(1));
    }
}
