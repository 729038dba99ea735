//! A bbolt file from the command line: what Go's readers are tried on, and what Go's files are tried with.
//!
//! ```text
//! bolt write FILE SEED PAIRS   a file with several buckets made from a seed
//! bolt check FILE              walks everything; prints each bucket and its pairs
//! bolt rewrite FILE OUT        all pairs of FILE in a new file OUT, with the SHA-256 trailer
//! ```

#![allow(clippy::disallowed_methods, reason = "an example has the real clock and real files")]

use std::fs::File;
use std::io::BufWriter;
use std::process::ExitCode;

use bytes::Bytes;
use dolmen_bolt::{BoltReader, BoltWriter, HashingWriter, MemorySource, Plan};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["write", path, seed, pairs] => write(path, seed, pairs),
        ["check", path] => check(path),
        ["rewrite", path, out] => rewrite(path, out),
        _ => Err("usage: bolt write FILE SEED PAIRS | check FILE | rewrite FILE OUT".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bolt: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Bucket `key` has PAIRS pairs of mixed lengths, `large` a few values over 1 MiB, `long` keys of up to 3000 bytes (so
/// that branches run deep), `meta` two small pairs, `empty` none.
fn write(path: &str, seed: &str, pairs: &str) -> Result<(), Failure> {
    let (mut state, pairs): (u64, u64) = (seed.parse()?, pairs.parse()?);
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut source = MemorySource::new();
    source.insert(Bytes::from_static(b"empty"), Default::default());
    let meta = source.entry(Bytes::from_static(b"meta")).or_default();
    meta.insert(Bytes::from_static(b"consistent_index"), Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 9]));
    meta.insert(Bytes::from_static(b"term"), Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 2]));
    for index in 0..pairs {
        let mut key = index.to_be_bytes().to_vec();
        key.extend_from_slice(b"_00000000");
        let value = vec![index as u8; random(if index % 97 == 0 { 9000 } else { 200 }) as usize];
        source.entry(Bytes::from_static(b"key")).or_default().insert(key.into(), value.into());
        if index < 2000 {
            let mut key = format!("{index:06}").into_bytes();
            key.resize(6 + random(3000) as usize, b'x');
            source.entry(Bytes::from_static(b"long")).or_default().insert(key.into(), Bytes::new());
        }
    }
    for index in 0..3u8 {
        let value = vec![index; (1 << 20) + random(1 << 20) as usize];
        source.entry(Bytes::from_static(b"large")).or_default().insert(Bytes::from(vec![index + 1]), value.into());
    }
    let plan = Plan::new(&source)?;
    BoltWriter::new(BufWriter::new(File::create(path)?)).write(&plan, &source)?;
    Ok(())
}

fn check(path: &str) -> Result<(), Failure> {
    let report = BoltReader::open(File::open(path)?)?.check()?;
    for bucket in &report.buckets {
        println!("{} {}", bucket.name.escape_ascii(), bucket.pairs);
    }
    Ok(())
}

fn rewrite(path: &str, out: &str) -> Result<(), Failure> {
    let reader = BoltReader::open(File::open(path)?)?;
    let source = reader.source()?;
    let plan = Plan::new(&source)?;
    let sink = HashingWriter::new(BufWriter::new(File::create(out)?));
    BoltWriter::new(sink).write(&plan, &source)?.finish()?;
    Ok(())
}
