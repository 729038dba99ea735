//! Logs written by etcd, which leaves out our two fields, and logs both programs have written to. Where only etcd has
//! been, its own rules decide; where we have been, ours hold.

mod common;

use std::path::PathBuf;

use common::{arc, dir, entries, entry, new_disk, open, snapshot, state};
use dolmen_env::{Disk, OpenMode, PowerLoss, Rng, SimDisk};
use dolmen_proto::raftpb::{Entry, HardState};
use dolmen_proto::walpb::{Record, Snapshot};
use dolmen_wal::{Wal, WalError, inspect};
use prost::Message;

/// Writes records as etcd does.
struct Etcd {
    bytes: Vec<u8>,
    chain: u32,
    /// Where the last record begins.
    last: usize,
}

impl Etcd {
    fn head(chain: u32) -> Self {
        let mut etcd = Self { bytes: Vec::new(), chain, last: 0 };
        etcd.record(4, Vec::new());
        // Node 0xabc of cluster 0xdef.
        etcd.record(1, vec![0x08, 0xbc, 0x15, 0x10, 0xef, 0x1b]);
        etcd
    }

    fn first_segment() -> Self {
        let mut etcd = Self::head(0);
        etcd.snapshot(&Snapshot::default());
        etcd
    }

    fn record(&mut self, kind: i64, data: Vec<u8>) {
        self.last = self.bytes.len();
        self.chain = crc32c::crc32c_append(self.chain, &data);
        let record = Record { r#type: kind, crc: self.chain, data: data.into() }.encode_to_vec();
        let pad = record.len().wrapping_neg() % 8;
        let header = record.len() as u64 | if pad > 0 { (0x80 | pad as u64) << 56 } else { 0 };
        self.bytes.extend_from_slice(&header.to_le_bytes());
        self.bytes.extend_from_slice(&record);
        self.bytes.resize(self.bytes.len() + pad, 0);
    }

    fn entries(&mut self, entries: &[Entry]) -> &mut Self {
        entries.iter().for_each(|entry| self.record(2, entry.encode_to_vec()));
        self
    }

    fn state(&mut self, state: HardState) -> &mut Self {
        self.record(3, state.encode_to_vec());
        self
    }

    fn snapshot(&mut self, snapshot: &Snapshot) -> &mut Self {
        self.record(5, snapshot.encode_to_vec());
        self
    }
}

fn path(seq: u64, first: u64) -> PathBuf {
    dir().join(format!("{seq:016x}-{first:016x}.wal"))
}

fn put(disk: &SimDisk, seq: u64, first: u64, bytes: &[u8]) {
    disk.create_dir_all(dir()).unwrap();
    disk.write_atomic(&path(seq, first), bytes).unwrap();
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(8192, 0);
    bytes
}

fn corrupt_at(result: Result<(Wal, dolmen_wal::Recovered), WalError>) -> u64 {
    match result.map(|(_, recovered)| recovered.entries.len()) {
        Err(WalError::Corrupt { offset, .. }) => offset,
        other => panic!("{other:?}"),
    }
}

/// Two segments, the second with six entries and a state, and where its last record begins and ends.
fn two_segments(disk: &SimDisk) -> (u64, u64) {
    let mut first = Etcd::first_segment();
    first.entries(&entries(1, 20, 1, 100)).state(state(1, 2, 19));
    put(disk, 0, 0, &first.bytes);
    let mut second = Etcd::head(first.chain);
    second.state(state(1, 2, 19)).entries(&entries(21, 25, 1, 100)).state(state(1, 2, 25));
    second.entries(&[entry(26, 1, 1500)]);
    put(disk, 1, 21, &padded(&second.bytes));
    (second.last as u64, second.bytes.len() as u64)
}

#[test]
fn an_etcd_log_is_read_and_written_on() {
    let disk = new_disk(1);
    two_segments(&disk);
    let (mut wal, recovered) = open(&disk, (0, 0)).unwrap();
    assert_eq!((recovered.metadata, recovered.hard_state), (common::IDS, state(1, 2, 25)));
    assert_eq!(recovered.entries.len(), 26);
    wal.append(Some(&state(2, 2, 26)), &entries(27, 60, 2, 200)).unwrap();
    wal.append_snapshot(&snapshot(26, 1)).unwrap();
    wal.sync().unwrap();
    assert_eq!(wal.segments(), 3);
    drop(wal);
    disk.power_loss(PowerLoss::LoseAll);
    let (_, recovered) = open(&disk, (26, 1)).unwrap();
    assert_eq!((recovered.entries.len(), recovered.hard_state), (34, state(2, 2, 26)));
    // etcd compares the bytes of the metadata from segment to segment.
    let mut metadata = Vec::new();
    inspect(&disk, dir(), &mut |record| {
        if record.kind == dolmen_wal::Kind::Metadata {
            metadata.push(record.data.to_vec());
        }
    })
    .unwrap();
    assert!(metadata.len() == 3 && metadata.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn etcds_torn_tail_is_cut_where_etcd_would_cut_it() {
    let base = new_disk(1);
    let (last, end) = two_segments(&base);
    // The last record, cut anywhere into zeroes: etcd sees a sector of zeroes, or a zero length.
    let whole = base.read(&path(1, 21)).unwrap();
    let mut cut_or_refused = [0, 0];
    for cut in last..end {
        let disk = base.fork(cut);
        let mut bytes = whole.clone();
        bytes[cut as usize..].fill(0);
        if bytes == whole {
            // Only padding was cut.
            continue;
        }
        put(&disk, 1, 21, &bytes);
        match open(&disk, (0, 0)) {
            Ok((_, recovered)) => {
                assert_eq!(recovered.entries.len(), 25, "cut at {cut}");
                cut_or_refused[0] += 1;
            }
            // Less than a sector is missing: etcd refuses that too.
            Err(WalError::Corrupt { offset, .. }) => {
                assert!(offset == last && end - cut < 512 + 8, "cut at {cut}");
                cut_or_refused[1] += 1;
            }
            Err(e) => panic!("cut at {cut}: {e}"),
        }
    }
    assert!(cut_or_refused[0] > 900 && cut_or_refused[1] > 0, "{cut_or_refused:?}");
    // And a file that ends early.
    for len in last..end {
        let disk = base.fork(len);
        disk.open(&path(1, 21), OpenMode::ReadWrite).unwrap().set_len(len).unwrap();
        assert_eq!(open(&disk, (0, 0)).unwrap().1.entries.len(), 25, "length {len}");
    }
}

#[test]
fn damage_to_an_etcd_log_is_refused_where_etcd_refuses_it() {
    let base = new_disk(1);
    let (last, end) = two_segments(&base);
    let mut rng = Rng::new(3);
    for _ in 0..3_000 {
        let second = rng.chance(500);
        let (file, len) =
            if second { (path(1, 21), end) } else { (path(0, 0), base.read(&path(0, 0)).unwrap().len() as u64) };
        let bit = rng.below(len * 8);
        let disk = base.fork(bit);
        disk.flip_bit(&file, bit).unwrap();
        match open(&disk, (0, 0)) {
            Err(WalError::Corrupt { .. }) => {}
            // A length that grew beyond the file with nothing behind it: etcd calls it torn, and nobody can tell.
            // Also the type of a record, which etcd's checksum leaves out, may turn into another.
            Ok((_, recovered)) => {
                let in_last = second && bit / 8 >= last;
                assert!(in_last || recovered.entries.len() != 26 || recovered.hard_state != state(1, 2, 25));
            }
            Err(e) => assert!(matches!(e, WalError::NoSnapshot { .. }), "bit {bit}: {e}"),
        }
    }
}

/// etcd cuts the log at a length that has rotted, and calls it repaired. The records behind it say otherwise.
#[test]
fn a_rotten_length_in_an_etcd_log_is_not_the_end_of_it() {
    let disk = new_disk(1);
    two_segments(&disk);
    let mut offsets = Vec::new();
    inspect(&disk, dir(), &mut |record| {
        if record.seq == 1 {
            offsets.push(record.offset);
        }
    })
    .unwrap();
    let at = offsets[4];
    disk.flip_bit(&path(1, 21), at * 8 + 40).unwrap();
    assert_eq!(corrupt_at(open(&disk, (0, 0))), at);
}

/// Our first batch behind etcd's records is torn by noise. Nothing of it was durable, so nothing is refused.
#[test]
fn our_own_torn_batch_behind_etcds_records_is_judged_by_our_rules() {
    let mut torn_at_once = 0;
    for seed in 0..200 {
        let disk = new_disk(seed);
        two_segments(&disk);
        let (mut wal, _) = open(&disk, (0, 0)).unwrap();
        wal.append(Some(&state(2, 2, 26)), &entries(27, 29, 2, 300)).unwrap();
        drop(wal);
        for shape in PowerLoss::ALL {
            let disk = disk.fork(seed);
            disk.power_loss(shape);
            let (_, recovered) = open(&disk, (0, 0)).unwrap_or_else(|e| panic!("seed={seed} {shape:?}: {e}"));
            assert!((26..=29).contains(&recovered.entries.len()));
            let noise = shape == PowerLoss::GarbageTail && recovered.entries.len() == 26;
            torn_at_once += usize::from(noise && recovered.repaired.is_some());
        }
    }
    assert!(torn_at_once > 20, "{torn_at_once}");
}

/// We were here, then etcd went on for long, then its first record rots. Our rules alone would call it torn and cut
/// everything etcd has written.
#[test]
fn etcds_records_behind_ours_are_judged_by_etcds_rules() {
    let disk = new_disk(1);
    let mut wal = common::create(&disk);
    wal.append(Some(&state(1, 1, 1)), &entries(1, 3, 1, 50)).unwrap();
    wal.close().unwrap();
    let (mut chain, mut end) = (0, 0);
    let bytes = disk.read(&path(0, 0)).unwrap();
    inspect(&disk, dir(), &mut |record| (chain, end) = (record.crc, record.offset)).unwrap();
    let header = u64::from_le_bytes(bytes[end as usize..end as usize + 8].try_into().unwrap());
    end += (8 + (header & (u64::MAX >> 8))).next_multiple_of(8);
    let mut etcd = Etcd { bytes: bytes[..end as usize].to_vec(), chain, last: 0 };
    etcd.entries(&entries(4, 12, 1, 50)).state(state(1, 1, 12));
    put(&disk, 0, 0, &padded(&etcd.bytes));
    assert_eq!(open(&disk.fork(1), (0, 0)).unwrap().1.entries.len(), 12);

    let rotten = disk.fork(2);
    rotten.flip_bit(&path(0, 0), (end + 30) * 8).unwrap();
    assert_eq!(corrupt_at(open(&rotten, (0, 0))), end);
}

#[test]
fn segments_of_two_members_do_not_mix() {
    let disk = new_disk(1);
    let mut first = Etcd::first_segment();
    first.entries(&entries(1, 3, 1, 10));
    put(&disk, 0, 0, &first.bytes);
    let mut second = Etcd { bytes: Vec::new(), chain: first.chain, last: 0 };
    second.record(4, Vec::new());
    let at = second.bytes.len() as u64;
    second.record(1, vec![0x08, 0x01, 0x10, 0x02]);
    put(&disk, 1, 4, &padded(&second.bytes));
    assert_eq!(corrupt_at(open(&disk, (0, 0))), at);
}

#[test]
fn entries_that_leave_a_gap_are_refused() {
    let disk = new_disk(1);
    let mut etcd = Etcd::first_segment();
    etcd.entries(&entries(1, 3, 1, 10)).entries(&[entry(5, 1, 10)]);
    put(&disk, 0, 0, &padded(&etcd.bytes));
    assert_eq!(corrupt_at(open(&disk, (0, 0))), etcd.last as u64);
    for index in [0, u64::MAX] {
        let mut etcd = Etcd::first_segment();
        etcd.entries(&[entry(index, 1, 10)]);
        put(&disk, 0, 0, &padded(&etcd.bytes));
        assert_eq!(corrupt_at(open(&disk, (0, 0))), etcd.last as u64);
    }
    let mut etcd = Etcd::first_segment();
    etcd.record(9, vec![1]);
    put(&disk, 0, 0, &padded(&etcd.bytes));
    assert_eq!(corrupt_at(open(&disk, (0, 0))), etcd.last as u64);
}

/// etcd died before its first segment was whole, and left a directory with nothing in it.
#[test]
fn an_empty_directory_is_no_log() {
    let disk = new_disk(1);
    disk.create_dir_all(dir()).unwrap();
    disk.write_atomic(&dir().join("0.tmp"), b"junk").unwrap();
    assert!(!Wal::exists(&disk, dir()).unwrap());
    Wal::create(arc(&disk), dir(), common::IDS, common::OPTIONS).unwrap();
    assert_eq!(disk.read_dir(dir()).unwrap(), ["0000000000000000-0000000000000000.wal"]);
}
