//! Loads, reads, reopens and reclaims a million records on the real disk. Run with
//! `cargo run --release -p dolmen-revlog --example bench [records] [value bytes]`.

// A program at the edge: it measures, so it needs the clock and the real file system.
#![allow(clippy::disallowed_methods)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use dolmen_env::{Disk, Mono, RealDisk, Rng};
use dolmen_revlog::{Batch, Hint, Log, NewRecord, Options};
use dolmen_types::Revision;

const BATCH: u64 = 100;

fn record(main: i64, value: &[u8]) -> NewRecord {
    let key = format!("/registry/pods/{main:08}");
    let mut payload = Vec::with_capacity(key.len() + value.len() + 16);
    payload.extend_from_slice(&[0x0a, key.len() as u8]);
    payload.extend_from_slice(key.as_bytes());
    payload.extend_from_slice(&[
        0x10,
        2,
        0x18,
        2,
        0x20,
        1,
        0x2a,
        (value.len() & 0x7f) as u8 | 0x80,
        (value.len() >> 7) as u8,
    ]);
    payload.extend_from_slice(value);
    NewRecord {
        rev: Revision::new(main, 0),
        tombstone: value.is_empty(),
        create: main,
        version: 1,
        lease: 0,
        key: key.into(),
        payload: payload.into(),
    }
}

fn disk_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Nanoseconds this thread was on a processor: what counts on a machine that others use too.
fn cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0)
}

fn clock() -> Instant {
    Instant::now()
}

fn main() {
    let mut args = std::env::args().skip(1);
    let count: i64 = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(1_000_000);
    let size: usize = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(1024);
    let dir = std::env::temp_dir().join(format!("revlog-bench-{}", std::process::id()));
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let (mut log, _) = Log::open(Arc::clone(&disk), &dir, Options::default()).expect("opens");
    let zero = clock();
    let now = || Mono(zero.elapsed().as_nanos() as u64);

    // The disk works on a thread of its own, as in a member.
    let (jobs, todo) = std::sync::mpsc::channel::<dolmen_revlog::Job>();
    let (done_tx, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for job in todo {
            if done_tx.send(job.run().expect("the disk works")).is_err() {
                return;
            }
        }
    });
    let pump = |log: &mut Log, hint: Hint| {
        while let Ok(done) = done.try_recv() {
            log.finish_job(done);
        }
        while let Some(job) = log.next_job(now(), hint) {
            jobs.send(job).expect("the disk thread lives");
        }
    };
    let mut rng = Rng::new(1);
    let value: Vec<u8> = (0..size).map(|_| rng.below(256) as u8).collect();

    let (start, start_cpu) = (clock(), cpu());
    let mut index = 0;
    for first in (2..count + 2).step_by(BATCH as usize) {
        let records = (first..(first + BATCH as i64).min(count + 2)).map(|main| record(main, &value)).collect();
        index += 1;
        log.append(Batch { index, term: 1, records, ..Batch::default() });
        pump(&mut log, Hint::Normal);
        while log.backlog_bytes() > 256 << 20 {
            log.finish_job(done.recv().expect("the disk thread lives"));
            pump(&mut log, Hint::Normal);
        }
    }
    let (loaded, load_cpu) = (start.elapsed(), cpu() - start_cpu);
    while log.durable_index() < index {
        pump(&mut log, Hint::Sync);
        std::thread::yield_now();
    }
    println!(
        "load   {:>9.0} records/s, {:.0} ns of CPU a record on the writer's thread, durable after {:.2} s",
        count as f64 / loaded.as_secs_f64(),
        load_cpu as f64 / count as f64,
        start.elapsed().as_secs_f64()
    );

    let reader = log.reader();
    for round in ["first", "warm "] {
        let (start, start_cpu) = (clock(), cpu());
        for _ in 0..count {
            let rev = Revision::new(2 + rng.below(count as u64) as i64, 0);
            let payload = reader.get(rev).expect("reads").expect("is there");
            assert!(payload.len() >= size);
        }
        let (wall, cpu) = (start.elapsed().as_nanos() as f64, (cpu() - start_cpu) as f64);
        println!("get    {round} {:>6.0} ns, {:.0} ns of CPU", wall / count as f64, cpu / count as f64);
    }
    let (start, start_cpu) = (clock(), cpu());
    for _ in 0..count {
        let rev = Revision::new(2 + rng.below(500) as i64, 0);
        assert!(reader.get(rev).expect("reads").is_some());
    }
    let (wall, spent) = (start.elapsed().as_nanos() as f64, (cpu() - start_cpu) as f64);
    println!("get    hot   {:>6.0} ns, {:.0} ns of CPU", wall / count as f64, spent / count as f64);
    let start = clock();
    let bytes: usize = reader.view().scan(Revision::default(), i64::MAX).map(|item| item.expect("reads").2.len()).sum();
    println!("scan   {:>9.0} MB/s", bytes as f64 / 1e6 / start.elapsed().as_secs_f64());
    drop(reader);
    while log.next_due().is_some() {
        pump(&mut log, Hint::Sync);
        std::thread::yield_now();
    }
    log.close().expect("closes");

    let (start, start_cpu) = (clock(), cpu());
    let (mut log, recovered) = Log::open(Arc::clone(&disk), &dir, Options::default()).expect("opens again");
    let opened = start.elapsed();
    let keys: usize = recovered.records.map(|meta| meta.expect("reads").key.len()).sum();
    println!(
        "reopen {:.3} s, {:.3} s with the metadata of every record ({keys} bytes of keys), {:.3} s of CPU",
        opened.as_secs_f64(),
        start.elapsed().as_secs_f64(),
        (cpu() - start_cpu) as f64 / 1e9
    );

    // Delete 80 % and compact, then only wait.
    let start = clock();
    let mut dead = Vec::new();
    let mut main = count + 1;
    for first in (2..count + 2).step_by(BATCH as usize) {
        let mut records = Vec::new();
        for old in first..(first + BATCH as i64).min(count + 2) {
            if rng.below(100) < 80 {
                main += 1;
                let mut tombstone = record(main, &[]);
                (tombstone.key, tombstone.payload) = (Bytes::from(format!("/registry/pods/{old:08}")), Bytes::new());
                records.push(tombstone);
                dead.extend([Revision::new(old, 0), Revision::new(main, 0)]);
            }
        }
        index += 1;
        log.append(Batch { index, term: 1, records, ..Batch::default() });
        pump(&mut log, Hint::Normal);
    }
    index += 1;
    log.append(Batch { index, term: 1, compact: Some(main), ..Batch::default() });
    for chunk in dead.chunks(1000) {
        log.mark_dead(chunk);
        pump(&mut log, Hint::Normal);
    }
    let marked = start.elapsed();
    let mut longest = 0;
    loop {
        let before = clock();
        pump(&mut log, Hint::Normal);
        longest = longest.max(before.elapsed().as_micros());
        let (disk, live) = (disk_bytes(&dir), log.sizes().live_bytes);
        let waited = start.elapsed().as_secs_f64();
        if disk * 10 <= live * 13 || waited > 90.0 {
            println!(
                "del80  marked after {:.2} s, {:.2} x live on disk after {waited:.2} s; longest turn of the writer {longest} us",
                marked.as_secs_f64(),
                disk as f64 / live as f64
            );
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let settle = clock();
    while settle.elapsed().as_secs() < 8 {
        pump(&mut log, Hint::Normal);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    println!(
        "       settled: {:.3} x live ({} MB live)",
        disk_bytes(&dir) as f64 / log.sizes().live_bytes as f64,
        log.sizes().live_bytes >> 20
    );
    drop(log);
    let _ = std::fs::remove_dir_all(&dir);
}
