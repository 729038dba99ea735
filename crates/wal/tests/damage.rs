//! Damage to a log at rest: every cut, flipped bits, lost sectors, missing and swapped segments. Either the log is
//! refused, naming the place, or nothing but what was never durable is gone.

mod common;

use std::path::PathBuf;

use common::{Model, Rec, brief, dir, entries, new_disk, open, snapshot, state};
use dolmen_env::{Disk, OpenMode, Rng, SimDisk};
use dolmen_proto::raftpb::Entry;
use dolmen_wal::{Recovered, Wal, WalError, inspect};

/// A log of several segments. Returns the model and how many records are known durable by more than their own word:
/// all of them, after a close.
fn build(closed: bool) -> (SimDisk, Model) {
    let disk = new_disk(1);
    let mut wal = common::create(&disk);
    let mut model = Model::default();
    let mut first = 1;
    let mut cuts = 0;
    let mut in_tail = 0;
    for round in 0.. {
        if wal.segments() > cuts {
            (cuts, in_tail) = (wal.segments(), 0);
        }
        in_tail += 1;
        if round > 60 && in_tail > 8 {
            break;
        }
        let count = 1 + round % 3;
        let len = if round < 60 { 20 + round as usize * 7 } else { 30 };
        let batch = entries(first, first + count - 1, 1 + round / 20, len);
        let hard_state = state(1 + round / 20, 2, first + count - 2);
        wal.append(Some(&hard_state), &batch).unwrap();
        model.records.extend(batch.into_iter().map(Rec::Entry));
        model.records.push(Rec::State(hard_state));
        wal.sync().unwrap();
        first += count;
        if round == 40 {
            wal.append_snapshot(&snapshot(50, 2)).unwrap();
            model.records.push(Rec::Snapshot(snapshot(50, 2)));
            wal.sync().unwrap();
        }
    }
    model.synced = model.records.len();
    assert!(wal.segments() > 3);
    if closed {
        wal.close().unwrap();
    }
    (disk, model)
}

fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    let names = disk.read_dir(dir()).unwrap();
    names.into_iter().filter(|name| name.ends_with(".wal")).map(|name| dir().join(name)).collect()
}

/// Offsets at which records begin in a segment, and where the last one ends.
fn frames(disk: &SimDisk, seq: u64) -> (Vec<u64>, u64) {
    let mut offsets = Vec::new();
    inspect(disk, dir(), &mut |record| {
        if record.seq == seq {
            offsets.push(record.offset);
        }
    })
    .unwrap();
    let path = &segments(disk)[seq as usize];
    let last = *offsets.last().unwrap();
    let bytes = disk.read(path).unwrap();
    let len = u64::from_le_bytes(bytes[last as usize..last as usize + 8].try_into().unwrap()) & (u64::MAX >> 8);
    (offsets, last + (8 + len).next_multiple_of(8))
}

fn overwrite(disk: &SimDisk, path: &std::path::Path, offset: u64, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::ReadWrite).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_data().unwrap();
}

fn forget_slots(disk: &SimDisk) {
    for slot in ["/m/acked-0", "/m/acked-1"] {
        disk.remove_file(slot.as_ref()).unwrap();
    }
    disk.sync_dir("/m".as_ref()).unwrap();
}

/// The log must be whole, or refused with a place in the damaged file (or, for damage that only the next segment can
/// tell, at the end of the one before).
fn whole_or_refused(disk: &SimDisk, model: &Model, what: &str) -> Option<(PathBuf, u64)> {
    match open(disk, (0, 0)) {
        Ok((_, recovered)) => {
            assert_whole(&recovered, model, what);
            None
        }
        Err(WalError::Corrupt { file, offset, index, .. }) => {
            assert!(segments(disk).contains(&file), "{what}: {}", file.display());
            assert!(index > 0, "{what}");
            Some((file, offset))
        }
        Err(e) => panic!("{what}: {e}"),
    }
}

fn assert_whole(recovered: &Recovered, model: &Model, what: &str) {
    let view = model.view(model.records.len(), (0, 0));
    assert_eq!(brief(&recovered.entries), brief(&view.entries), "{what}");
    assert_eq!((recovered.hard_state, &recovered.entries), (view.hard_state, &view.entries), "{what}");
}

#[test]
fn every_cut_of_a_closed_log_is_refused() {
    let (disk, model) = build(true);
    let paths = segments(&disk);
    for (seq, path) in paths.iter().enumerate() {
        let (_, end) = frames(&disk, seq as u64);
        let len = disk.read(path).unwrap().len() as u64;
        for cut in 0..len {
            let damaged = disk.fork(cut);
            damaged.open(path, OpenMode::ReadWrite).unwrap().set_len(cut).unwrap();
            let what = format!("segment {seq} cut at {cut} of {end}");
            let refused = whole_or_refused(&damaged, &model, &what);
            assert_eq!(refused.is_some(), cut < end, "{what}");
            if let Some((file, offset)) = refused {
                assert!(&file == path && offset <= cut, "{what}: {} {offset}", file.display());
            }
        }
    }
}

/// A file that simply ends leaves no record behind the cut to object. This is what the slots are for.
#[test]
fn a_cut_of_a_log_without_slots_may_go_unseen_but_invents_nothing() {
    let (disk, model) = build(false);
    forget_slots(&disk);
    let tail = segments(&disk).pop().unwrap();
    let (offsets, end) = frames(&disk, segments(&disk).len() as u64 - 1);
    let mut shorter = 0;
    for cut in 0..end {
        let damaged = disk.fork(cut);
        damaged.open(&tail, OpenMode::ReadWrite).unwrap().set_len(cut).unwrap();
        match open(&damaged, (0, 0)) {
            // The head was durable before the segment had its name.
            Err(WalError::Corrupt { offset, .. }) => assert!(cut < offsets[3] && offset <= cut, "cut at {cut}"),
            Err(e) => panic!("cut at {cut}: {e}"),
            Ok((_, recovered)) => {
                assert!(cut >= offsets[3] && model.has_prefix(&recovered, (0, 0)), "cut at {cut}");
                shorter += 1;
            }
        }
    }
    assert!(shorter > 0);
}

/// 10,000 random bits and every bit of every frame header.
#[test]
fn every_flipped_bit_is_found_or_harmless() {
    let (disk, model) = build(true);
    let paths = segments(&disk);
    let seed = 20;
    println!("seed={seed}");
    let mut rng = Rng::new(seed);
    let mut bits = Vec::new();
    for _ in 0..10_000 {
        let seq = rng.below(paths.len() as u64);
        bits.push((seq, rng.below(disk.read(&paths[seq as usize]).unwrap().len() as u64 * 8)));
    }
    let mut ends = Vec::new();
    for seq in 0..paths.len() as u64 {
        let (offsets, end) = frames(&disk, seq);
        bits.extend(offsets.iter().flat_map(|offset| (offset * 8..offset * 8 + 64).map(move |bit| (seq, bit))));
        ends.push(end);
    }
    let mut refused = 0;
    for (seq, bit) in bits {
        let damaged = disk.fork(bit);
        damaged.flip_bit(&paths[seq as usize], bit).unwrap();
        let what = format!("segment {seq} bit {bit}");
        let place = whole_or_refused(&damaged, &model, &what);
        assert_eq!(place.is_some(), bit / 8 < ends[seq as usize], "{what}");
        if let Some((file, offset)) = place {
            refused += 1;
            assert!(file == paths[seq as usize] && offset <= bit / 8 && bit / 8 < offset + 600, "{what}: {offset}");
        }
    }
    println!("{refused} refused");
}

/// Without the slots, the records behind a flipped bit have to tell that it was durable.
#[test]
fn a_flipped_bit_without_slots_costs_at_most_the_last_batch() {
    let (disk, model) = build(false);
    forget_slots(&disk);
    let paths = segments(&disk);
    let mut rng = Rng::new(21);
    let last = paths.len() as u64 - 1;
    let (offsets, end) = frames(&disk, last);
    // The last batch: three entries at most, and the hard state.
    let last_batch = offsets[offsets.len() - 4];
    for _ in 0..5_000 {
        let seq = rng.below(last + 1);
        let limit = if seq == last { end } else { disk.read(&paths[seq as usize]).unwrap().len() as u64 };
        let bit = rng.below(limit * 8);
        let damaged = disk.fork(bit);
        damaged.flip_bit(&paths[seq as usize], bit).unwrap();
        match open(&damaged, (0, 0)) {
            Err(WalError::Corrupt { .. }) => {}
            Ok((_, recovered)) => {
                assert!(seq == last && bit / 8 >= last_batch, "segment {seq} bit {bit}");
                assert!(model.has_prefix(&recovered, (0, 0)));
            }
            Err(e) => panic!("segment {seq} bit {bit}: {e}"),
        }
    }
}

#[test]
fn lost_sectors_and_zeroed_lengths_are_refused() {
    let (disk, model) = build(true);
    for (seq, path) in segments(&disk).iter().enumerate() {
        let (offsets, end) = frames(&disk, seq as u64);
        for sector in 0..end / 512 {
            let damaged = disk.fork(sector);
            overwrite(&damaged, path, sector * 512, &[0; 512]);
            let what = format!("segment {seq} sector {sector}");
            assert!(whole_or_refused(&damaged, &model, &what).is_some(), "{what}");
        }
        for offset in offsets {
            let damaged = disk.fork(offset);
            overwrite(&damaged, path, offset, &[0; 8]);
            let what = format!("segment {seq} length at {offset}");
            let (file, at) = whole_or_refused(&damaged, &model, &what).expect(&what);
            assert_eq!((&file, at), (path, offset), "{what}");
        }
    }
}

#[test]
fn swapped_stale_and_missing_pieces_are_refused() {
    let (disk, model) = build(true);
    let paths = segments(&disk);
    let (offsets, _) = frames(&disk, 1);

    // Two records of equal length change places.
    let bytes = disk.read(&paths[1]).unwrap();
    let frame = |at: usize| &bytes[offsets[at] as usize..offsets[at + 1] as usize];
    let mut swapped = 0;
    for at in 3..offsets.len() - 1 {
        for other in at + 1..offsets.len() - 1 {
            if frame(at).len() == frame(other).len() {
                let damaged = disk.fork(1);
                overwrite(&damaged, &paths[1], offsets[at], frame(other));
                overwrite(&damaged, &paths[1], offsets[other], frame(at));
                let (_, offset) = whole_or_refused(&damaged, &model, "swapped records").expect("swapped records");
                assert_eq!(offset, offsets[at]);
                swapped += 1;
            }
        }
    }
    assert!(swapped > 0);

    // A segment holds another one's bytes.
    for (at, path) in paths.iter().enumerate() {
        let damaged = disk.fork(2);
        let other = disk.read(&paths[(at + 1) % paths.len()]).unwrap();
        damaged.write_atomic(path, &other).unwrap();
        assert!(whole_or_refused(&damaged, &model, "misplaced segment").is_some());
    }

    // A segment of an earlier time: the tail as it was some records ago.
    let tail = paths.last().unwrap();
    let (offsets, end) = frames(&disk, paths.len() as u64 - 1);
    let damaged = disk.fork(3);
    let stale = offsets[offsets.len() - 3];
    overwrite(&damaged, tail, stale, &vec![0; (end - stale) as usize]);
    assert_eq!(whole_or_refused(&damaged, &model, "stale tail").expect("stale tail"), (tail.clone(), stale));

    // A segment is gone, the first, one in the middle, or the last.
    for (at, path) in paths.iter().enumerate() {
        let damaged = disk.fork(4);
        damaged.remove_file(path).unwrap();
        match open(&damaged, (0, 0)).map(drop) {
            Err(WalError::NoSnapshot { .. }) => assert_eq!(at, 0),
            Err(WalError::Corrupt { what, .. }) => assert!(at > 0 && what.contains("missing"), "{what}"),
            other => panic!("segment {at} missing: {other:?}"),
        }
    }

    // All of them are gone.
    let damaged = disk.fork(5);
    damaged.remove_dir_all(dir()).unwrap();
    let created = Wal::create(common::arc(&damaged), dir(), common::IDS, common::OPTIONS);
    assert!(matches!(created.map(drop), Err(WalError::Vanished { index, .. }) if index > 100));
}

/// The measured loss this design answers: one damaged length, and etcd takes the rest for unwritten.
#[test]
fn the_refusal_says_where_and_what_to_do() {
    let (disk, _) = build(true);
    let path = segments(&disk).remove(0);
    let (offsets, _) = frames(&disk, 0);
    overwrite(&disk, &path, offsets[4], &[0; 8]);
    let text = open(&disk, (0, 0)).map(drop).unwrap_err().to_string();
    for part in [path.to_str().unwrap(), &format!("offset {}", offsets[4]), "from index", "remove the member", "backup"]
    {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

/// Lengths and indexes from the disk are not believed: no allocation beyond the file, no panic.
#[test]
fn noise_for_a_log_is_refused() {
    let (disk, _) = build(true);
    let paths = segments(&disk);
    let mut rng = Rng::new(30);
    for round in 0..2_000 {
        let damaged = disk.fork(round);
        let path = rng.pick(&paths);
        let len = damaged.read(path).unwrap().len() as u64;
        let offset = rng.below(len) & !7;
        let mut noise = vec![0; (rng.range(1, 65) as usize).min((len - offset) as usize)];
        for byte in &mut noise {
            *byte = if rng.chance(300) { 0xff } else { rng.next_u64() as u8 };
        }
        overwrite(&damaged, path, offset, &noise);
        let _ = open(&damaged, (0, 0));
        let _ = Wal::snapshots(&damaged, dir());
    }
    for bytes in [&b""[..], b"x", &[0xff; 4096], &[0; 4096], b"\x00\x00\x00\x00\x00\x00\x00\x7f"] {
        let damaged = disk.fork(1);
        damaged.write_atomic(paths.last().unwrap(), bytes).unwrap();
        assert!(matches!(open(&damaged, (0, 0)).map(drop), Err(WalError::Corrupt { .. })));
    }
}

/// Damage above the last sync is a torn tail, whatever it looks like; it is reported, and gone after the restart.
#[test]
fn what_was_never_synced_may_be_anything() {
    let disk = new_disk(9);
    let mut wal = common::create(&disk);
    wal.append(Some(&state(1, 1, 1)), &entries(1, 3, 1, 100)).unwrap();
    wal.sync().unwrap();
    let (_, end) = frames(&disk, 0);
    wal.append(None, &entries(4, 9, 1, 100)).unwrap();
    drop(wal);
    disk.kill();
    let path = segments(&disk)[0].clone();
    let (_, written) = frames(&disk, 0);
    let mut rng = Rng::new(9);
    for round in 0..3_000 {
        let damaged = disk.fork(round);
        for _ in 0..rng.range(1, 4) {
            let offset = rng.range(end, written);
            let noise: Vec<u8> = (0..rng.range(1, 40)).map(|_| rng.next_u64() as u8 * (round % 2) as u8).collect();
            overwrite(&damaged, &path, offset, &noise);
        }
        let (wal, recovered) = open(&damaged, (0, 0)).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(recovered.entries.len() >= 3);
        drop(wal);
        damaged.kill();
        let (_, again) = open(&damaged, (0, 0)).unwrap();
        assert_eq!((&again.entries, again.repaired), (&recovered.entries, None));
    }
}

/// Our own record, torn, must not pass for one that etcd has written and that has rotted: where noise begins at the length
/// of its data, one byte in 256 makes the data swallow the fields that only ours have.
#[test]
fn no_byte_of_noise_makes_a_torn_record_of_ours_one_of_etcds() {
    let base = new_disk(1);
    let mut wal = common::create(&base);
    wal.append(Some(&state(1, 2, 1)), &entries(1, 3, 1, 20)).unwrap();
    wal.sync().unwrap();
    wal.note_acked().unwrap();
    let (_, begin) = frames(&base, 0);
    for (kind, write) in [("entry", true), ("state", false)] {
        let disk = base.fork(2);
        let (mut wal, _) = open(&disk, (0, 0)).unwrap();
        let begin = begin.min(frames(&disk, 0).1);
        if write {
            wal.append(None, &entries(4, 4, 1, 8)).unwrap();
        } else {
            wal.append(Some(&state(2, 1, 3)), &[]).unwrap();
        }
        drop(wal);
        let path = segments(&disk)[0].clone();
        let end = frames(&disk, 0).1;
        let mut rng = Rng::new(3);
        for at in begin + 8..end {
            for byte in 0..=255 {
                let disk = disk.fork(at);
                // The write ended early: its padding, at least, was never there.
                let noise = |place| if place == at { byte } else { rng.next_u64() as u8 };
                let mut noise: Vec<u8> = (at..end).map(noise).collect();
                noise.iter_mut().rev().take(7).for_each(|byte| *byte = 0);
                overwrite(&disk, &path, at, &noise);
                let (_, recovered) = open(&disk, (0, 0)).unwrap_or_else(|e| panic!("{kind}, {byte} at {at}: {e}"));
                assert!(recovered.entries.len() >= 3);
            }
        }
    }
}

/// A log directory that was put back from an older copy and has grown longer since reaches as far as the slots say. What it
/// has forgotten, a vote for one, shows by the term.
#[test]
fn an_older_copy_of_the_log_that_is_as_long_is_refused() {
    let disk = new_disk(1);
    let mut wal = common::create(&disk);
    wal.append(Some(&state(1, 2, 1)), &entries(1, 3, 1, 20)).unwrap();
    wal.close().unwrap();
    let longer = disk.fork(2);
    let (mut wal, _) = open(&longer, (0, 0)).unwrap();
    wal.append(Some(&state(1, 2, 3)), &entries(4, 30, 1, 40)).unwrap();
    wal.close().unwrap();
    let (mut wal, _) = open(&disk, (0, 0)).unwrap();
    wal.append(Some(&state(7, 3, 3)), &[]).unwrap();
    wal.close().unwrap();
    let path = &segments(&disk)[0];
    overwrite(&disk, path, 0, &longer.read(path).unwrap());
    let refused = open(&disk, (0, 0)).map(drop).unwrap_err();
    assert!(matches!(&refused, WalError::Corrupt { what, .. } if what.contains("older copy")), "{refused}");
}

#[test]
fn a_log_that_ends_below_its_commit_index_is_refused() {
    let disk = new_disk(1);
    let mut wal = common::create(&disk);
    let none: [Entry; 0] = [];
    wal.append(Some(&state(1, 1, 5)), &none).unwrap();
    wal.close().unwrap();
    disk.kill();
    let error = open(&disk, (0, 0)).map(drop).unwrap_err();
    assert!(matches!(&error, WalError::Corrupt { index: 1, .. }), "{error}");
}
