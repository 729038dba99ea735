//! Histories that etcd's own store was made to play, with its answers: `golden/generate.go` tells how.

mod common;

use std::fmt::Write;
use std::iter::Peekable;
use std::str::SplitWhitespace;

use bytes::Bytes;
use common::{open, run_jobs, small_options};
use dolmen_env::SimDisk;
use dolmen_mvcc::{CompactError, KeyValueRef, RangeError, RangeOptions, Store, hash_all};
use dolmen_revlog::Hint;
use dolmen_types::KeyRange;

struct Replay {
    disk: SimDisk,
    store: Store,
    index: u64,
    now: u64,
    /// Whether compactions are pruned and reclaimed at once, or never.
    eager: bool,
}

fn refusal(error: &RangeError) -> &'static str {
    match error {
        RangeError::Compacted => "compacted",
        RangeError::FutureRevision => "future",
        RangeError::Lost(_) | RangeError::Log(_) => "damaged",
    }
}

impl Replay {
    fn new(eager: bool) -> Self {
        let disk = SimDisk::new(1);
        let store = open(&disk, small_options()).0;
        Self { disk, store, index: 0, now: 0, eager }
    }

    fn commit(&mut self) {
        self.index += 1;
        self.store.commit(self.index, 1, Vec::new());
        if self.eager {
            while self.store.compact_step(3) {}
            run_jobs(&mut self.store, &mut self.now, Hint::Reclaim);
        }
    }

    fn reopen(&mut self) -> String {
        run_jobs(&mut self.store, &mut self.now, Hint::Sync);
        self.store = open(&SimDisk::new(2), small_options()).0;
        self.disk.kill();
        self.store = open(&self.disk, small_options()).0;
        self.store.revision().to_string()
    }

    fn txn(&mut self, mut words: Peekable<SplitWhitespace<'_>>) -> String {
        let mut txn = self.store.begin();
        let bytes = |word: Option<&str>| Bytes::copy_from_slice(word.expect("a word").as_bytes());
        while let Some(word) = words.next_if(|word| *word != "=") {
            let key = bytes(words.next());
            if word == "put" {
                let value = bytes(words.next());
                let lease = words.next().and_then(|word| word.parse().ok()).expect("a lease");
                txn.put(&key, &value, lease);
            } else {
                let end = words.next().filter(|end| *end != "-").unwrap_or_default();
                txn.delete_range(&KeyRange::parse(key, bytes(Some(end))));
            }
        }
        txn.finish();
        self.commit();
        self.store.revision().to_string()
    }

    fn range(&self, revision: i64) -> String {
        let range = KeyRange::parse("k".into(), "l".into());
        match self.store.reader().range(&range, &RangeOptions { revision, ..RangeOptions::default() }) {
            Err(error) => refusal(&error).to_owned(),
            Ok(result) => {
                let mut line = String::new();
                for kv in &result.kvs {
                    let kv = KeyValueRef::decode(kv).expect("a KeyValue");
                    let key = String::from_utf8_lossy(kv.key);
                    write!(line, "{key}:{}:{}:{} ", kv.create_revision, kv.mod_revision, kv.version).expect("memory");
                }
                line + "ok"
            }
        }
    }

    fn answer(&mut self, line: &str) -> String {
        let mut words = line.split_whitespace().peekable();
        let command = words.next().expect("a command");
        let number = words.peek().and_then(|word| word.parse::<i64>().ok()).unwrap_or_default();
        match command {
            "txn" => self.txn(words),
            "compact" => match self.store.compact_with_hash(number) {
                Err(CompactError::Compacted) => "compacted".to_owned(),
                Err(CompactError::FutureRevision) => "future".to_owned(),
                Ok(job) => {
                    job.run().expect("readable");
                    self.commit();
                    "ok".to_owned()
                }
            },
            "reopen" => self.reopen(),
            "range" => self.range(number),
            "hash" => {
                let tables = self.store.log().tables().clone();
                let source = self.store.reader().snapshot_source(tables, 5, 1).expect("nothing installed");
                format!("{} at {}", hash_all(&source).expect("readable"), source.revision())
            }
            "hashkv" => match self.store.reader().hash_kv(number) {
                Err(error) => refusal(&error).to_owned(),
                Ok(hash) => {
                    format!("{} {} {} at {}", hash.hash, hash.compact_revision, hash.hash_revision, hash.revision)
                }
            },
            _ => panic!("{line}: not a command"),
        }
    }
}

#[test]
fn answers_as_etcds_store_did() {
    let script = include_str!("golden/hashes.txt");
    for eager in [false, true] {
        let mut replay = Replay::new(eager);
        for (number, line) in script.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
            if line == "new" {
                replay = Replay::new(eager);
                continue;
            }
            let (command, expected) = line.split_once(" = ").expect("command = answer");
            let whole = format!("{command} =");
            assert_eq!(replay.answer(&whole), expected, "line {}: {command} (eager: {eager})", number + 1);
        }
    }
}
