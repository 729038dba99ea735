use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dolmen_env::{Disk, Mono};
use dolmen_types::{Index, Revision, Term};

use crate::{Batch, Error, Hint, NewRecord, Options, RecordMeta, Tables};

pub struct Log {}
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKind { Write, Seal, Reclaim, Unlink, Spare }
pub struct Job {}
pub struct JobDone {}
impl Job {
    pub fn kind(&self) -> JobKind { unimplemented!() }
    pub fn run(self) -> Result<JobDone, Error> { unimplemented!() }
}
impl JobDone {
    pub fn kind(&self) -> JobKind { unimplemented!() }
}
pub struct Recovered {
    pub index: Index,
    pub term: Term,
    pub compact_revision: i64,
    pub records: RecordMetas,
}
pub struct RecordMetas {}
impl Iterator for RecordMetas {
    type Item = Result<RecordMeta, Error>;
    fn next(&mut self) -> Option<Self::Item> { unimplemented!() }
}
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes { pub total_bytes: u64, pub live_bytes: u64, pub history_bytes: u64 }
#[allow(unused_variables)]
impl Log {
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: Options) -> Result<(Self, Recovered), Error> { unimplemented!() }
    pub fn append(&mut self, batch: Batch) { unimplemented!() }
    pub fn mark_dead(&mut self, revs: &[Revision]) { unimplemented!() }
    pub fn next_job(&mut self, now: Mono, hint: Hint) -> Option<Job> { unimplemented!() }
    pub fn next_due(&self) -> Option<Mono> { unimplemented!() }
    pub fn finish_job(&mut self, done: JobDone) { unimplemented!() }
    pub fn index(&self) -> Index { unimplemented!() }
    pub fn term(&self) -> Term { unimplemented!() }
    pub fn durable_index(&self) -> Index { unimplemented!() }
    pub fn backlog_bytes(&self) -> usize { unimplemented!() }
    pub fn tables(&self) -> &Tables { unimplemented!() }
    pub fn compact_revision(&self) -> i64 { unimplemented!() }
    pub fn reader(&self) -> Reader { unimplemented!() }
    pub fn sizes(&self) -> Sizes { unimplemented!() }
    pub fn replace(&mut self) -> Builder { unimplemented!() }
    pub fn install(&mut self, replacement: Replacement) -> Result<Recovered, Error> { unimplemented!() }
}
#[derive(Clone)]
pub struct Reader {}
#[allow(unused_variables)]
impl Reader {
    pub fn get(&self, rev: Revision) -> Result<Option<Bytes>, Error> { unimplemented!() }
    pub fn view(&self) -> View { unimplemented!() }
    pub fn sizes(&self) -> Sizes { unimplemented!() }
}
#[derive(Clone)]
pub struct View {}
#[allow(unused_variables)]
impl View {
    pub fn get(&self, rev: Revision) -> Result<Option<Bytes>, Error> { unimplemented!() }
    /// (revision, tombstone, payload), `from` inclusive, up to every sub revision of `to_main`.
    pub fn scan(&self, from: Revision, to_main: i64) -> Scan { unimplemented!() }
    pub fn metas(&self, from: Revision, to_main: i64) -> Metas { unimplemented!() }
}
pub struct Scan {}
impl Iterator for Scan {
    type Item = Result<(Revision, bool, Bytes), Error>;
    fn next(&mut self) -> Option<Self::Item> { unimplemented!() }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry { pub rev: Revision, pub tombstone: bool, pub len: u32 }
pub struct Metas {}
impl Iterator for Metas {
    type Item = Entry;
    fn next(&mut self) -> Option<Self::Item> { unimplemented!() }
}
pub struct Builder {}
#[allow(unused_variables)]
impl Builder {
    pub fn push(&mut self, record: NewRecord) -> Result<(), Error> { unimplemented!() }
    pub fn finish(self, tables: Tables, index: Index, term: Term, compact_revision: i64) -> Result<Replacement, Error> { unimplemented!() }
}
pub struct Replacement {}
