//! The MANIFEST: which files are the store. Small, checksummed, replaced whole by a rename.

use std::path::Path;

use dolmen_types::Revision;

use crate::Error;
use crate::codec::Get;
use crate::segment::{Segment, VERSION, known};

const MAGIC: [u8; 8] = *b"DOLMENMF";
const HEADER: usize = 24;
/// Larger than any real one: a hundred million records take 13 MB.
pub(crate) const MAX_BYTES: u64 = 1 << 30;

/// A sealed segment as the MANIFEST names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEntry {
    pub id: u64,
    pub len: u64,
    pub footer_crc: u32,
    pub first: Revision,
    pub last: Revision,
    /// Records that count, from the first on. Any behind them belong to a batch that never ended.
    pub records: u64,
    /// A bit for each record, in order, that was dead when a record after it was reclaimed. Without it a start-up
    /// could see an old put whose tombstone is gone. Trailing zero words are left out.
    pub dead: Vec<u64>,
}

impl SegmentEntry {
    pub fn of(segment: &Segment, dead: Vec<u64>) -> Self {
        Self {
            id: segment.id,
            len: segment.len(),
            footer_crc: segment.parts.footer_crc,
            first: segment.first(),
            last: segment.last(),
            records: segment.slots().len() as u64,
            dead,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub epoch: u64,
    pub next_id: u64,
    /// The one file that grows.
    pub active: u64,
    /// Its frames up to this number are durable, whatever they say of each other.
    pub durable_seq: u64,
    /// Oldest revisions first.
    pub segments: Vec<SegmentEntry>,
}

impl Manifest {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + 32 + self.segments.len() * 64);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.resize(HEADER, 0);
        for word in [self.epoch, self.next_id, self.active, self.durable_seq, self.segments.len() as u64] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for segment in &self.segments {
            out.extend_from_slice(&segment.id.to_le_bytes());
            out.extend_from_slice(&segment.len.to_le_bytes());
            out.extend_from_slice(&segment.footer_crc.to_le_bytes());
            for rev in [segment.first, segment.last] {
                out.extend_from_slice(&rev.main.to_le_bytes());
                out.extend_from_slice(&rev.sub.to_le_bytes());
            }
            out.extend_from_slice(&segment.records.to_le_bytes());
            out.extend_from_slice(&(segment.dead.len() as u32).to_le_bytes());
            for word in &segment.dead {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        let body_len = (out.len() - HEADER) as u64;
        out[16..24].copy_from_slice(&body_len.to_le_bytes());
        let crc = crc32c::crc32c(&out[16..]);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(file: &Path, bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() < HEADER {
            return Err(Error::corrupt(file, bytes.len() as u64, "MANIFEST ends inside its header"));
        }
        if bytes[..8] != MAGIC {
            return Err(Error::Foreign { file: file.to_owned(), what: "it does not start as a MANIFEST does" });
        }
        let mut get = Get::new(bytes, 8);
        let bad = |at: usize| Error::corrupt(file, at as u64, "MANIFEST has no known form");
        let (version, crc) = (get.u32().ok_or_else(|| bad(8))?, get.u32().ok_or_else(|| bad(12))?);
        if !known(version) {
            return Err(Error::Version { file: file.to_owned(), found: version, supported: VERSION });
        }
        if crc32c::crc32c(&bytes[16..]) != crc {
            return Err(Error::corrupt(file, 12, "MANIFEST does not match its checksum"));
        }
        let len = get.u64();
        if len != Some((bytes.len() - HEADER) as u64) {
            return Err(bad(16));
        }
        Self::body(&mut get, version).filter(Self::makes_sense).ok_or_else(|| bad(get.at))
    }

    fn body(get: &mut Get<'_>, version: u32) -> Option<Self> {
        let mut out = Self {
            epoch: get.u64()?,
            next_id: get.u64()?,
            active: get.u64()?,
            durable_seq: get.u64()?,
            segments: Vec::new(),
        };
        for _ in 0..get.u64()? {
            let (id, len, footer_crc) = (get.u64()?, get.u64()?, get.u32()?);
            let first = Revision::new(get.i64()?, get.i64()?);
            let last = Revision::new(get.i64()?, get.i64()?);
            let records = if version == 1 { u64::MAX } else { get.u64()? };
            let words = get.u32()? as usize;
            let dead = get.bytes(words.checked_mul(8)?)?;
            let dead = dead.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
            out.segments.push(SegmentEntry { id, len, footer_crc, first, last, records, dead: dead.collect() });
        }
        (get.left() == 0).then_some(out)
    }

    /// Coverage is in order and apart; the active file is not also a sealed one.
    fn makes_sense(&self) -> bool {
        self.segments.iter().all(|segment| segment.first <= segment.last && segment.id != self.active)
            && self.segments.is_sorted_by(|a, b| a.last < b.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_every_bit_counts() {
        let segment = |id, main, dead| SegmentEntry {
            id,
            len: 77,
            footer_crc: 5,
            first: Revision::new(main, 0),
            last: Revision::new(main + 5, 2),
            records: 9,
            dead,
        };
        let manifest = Manifest {
            epoch: 3,
            next_id: 9,
            active: 8,
            durable_seq: 77,
            segments: vec![segment(1, 2, vec![]), segment(7, 20, vec![1, u64::MAX])],
        };
        let path = Path::new("MANIFEST");
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(path, &bytes).unwrap(), manifest);
        for cut in 0..bytes.len() {
            assert!(Manifest::decode(path, &bytes[..cut]).is_err());
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(path, &bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_later_version_is_named_as_such() {
        let mut bytes = Manifest::default().encode();
        bytes[8] = 3;
        let error = Manifest::decode(Path::new("MANIFEST"), &bytes).unwrap_err();
        assert!(matches!(error, Error::Version { found: 3, supported: 2, .. }));
        assert!(error.to_string().contains("start the version that wrote it"));
    }
}
