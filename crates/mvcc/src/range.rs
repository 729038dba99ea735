//! Reading a range: what may be asked, and how an answer is put together.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use bytes::Bytes;
use dolmen_types::{KeyRange, Revision};

use crate::budget::Budget;
use crate::index::Index;
use crate::kv::KeyValueRef;
use crate::state::Found;

/// Order of the answer. The numbers are those of `RangeRequest.SortOrder`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortOrder {
    /// Ascending by key; with another target, ascending by it, but of the first `limit + 1` keys only.
    #[default]
    None = 0,
    Ascend = 1,
    Descend = 2,
}

impl SortOrder {
    /// `None` when the number is not one of etcd's: `invalid sort option`.
    pub fn from_number(number: i32) -> Option<Self> {
        [Self::None, Self::Ascend, Self::Descend].into_iter().find(|order| *order as i32 == number)
    }
}

/// What to sort by. The numbers are those of `RangeRequest.SortTarget`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortTarget {
    #[default]
    Key = 0,
    Version = 1,
    Create = 2,
    Mod = 3,
    Value = 4,
}

impl SortTarget {
    /// `None` when the number is not one of etcd's: `invalid sort option`.
    pub fn from_number(number: i32) -> Option<Self> {
        let all = [Self::Key, Self::Version, Self::Create, Self::Mod, Self::Value];
        all.into_iter().find(|target| *target as i32 == number)
    }
}

/// How to read a range; the default reads all of it as it stands now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeOptions {
    /// Main revision to read at; 0 and below: the current one.
    pub revision: i64,
    /// Keys returned at most; 0 and below: all.
    pub limit: i64,
    /// Return no keys, only how many there are.
    pub count_only: bool,
    /// Return keys without values. Unless sorted by value the lease is left out too (0), as values are not read.
    pub keys_only: bool,
    pub sort_order: SortOrder,
    pub sort_target: SortTarget,
    /// The four filters: 0 filters nothing. They change neither `count` nor what is read.
    pub min_mod_revision: i64,
    pub max_mod_revision: i64,
    pub min_create_revision: i64,
    pub max_create_revision: i64,
}

/// What a range holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeResult {
    /// Encoded `mvccpb.KeyValue`s, in the order asked for.
    pub kvs: Vec<Bytes>,
    /// Keys in the range at that revision; limit and filters do not change it.
    pub count: i64,
    /// Whether the limit cut something off.
    pub more: bool,
    /// The current revision when this was read, whatever revision was asked for.
    pub revision: i64,
}

/// Why a range cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// The revision asked for is below the compact revision.
    #[error("required revision has been compacted")]
    Compacted,
    /// The revision asked for is above the current one.
    #[error("required revision is a future revision")]
    FutureRevision,
    /// The log does not hold what the index says it does. The store is damaged: stop.
    #[error("the index names revision {}.{}, which the log does not hold", .0.main, .0.sub)]
    Lost(Revision),
    /// The log could not be read.
    #[error("cannot read the revision log")]
    Log(#[from] dolmen_revlog::Error),
}

/// A key as `for_each_meta` shows it: what compares and permission checks need without reading a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    pub key: &'a [u8],
    pub create_revision: i64,
    pub version: i64,
    /// Last change; `mod_revision` is its `main`.
    pub modified: Revision,
}

/// Resolves the revision a read asks for.
pub(crate) fn resolve(asked: i64, current: i64, compact: i64) -> Result<i64, RangeError> {
    if asked > current {
        return Err(RangeError::FutureRevision);
    }
    let at = if asked <= 0 { current } else { asked };
    if at < compact { Err(RangeError::Compacted) } else { Ok(at) }
}

/// The low and the high end of a range (open end: `None`).
pub(crate) fn bounds(range: &KeyRange) -> (Bytes, Option<Bytes>) {
    (range.start().clone(), range.end())
}

/// One key of an answer in the making.
pub(crate) struct Item {
    found: Found,
    /// The key, when a value is not wanted.
    key: Option<Bytes>,
    /// The payload, when it was at hand while the index was read.
    payload: Option<Bytes>,
}

/// An answer in the making. It is fed keys in order, by one hold of the index lock or several, and then finished without
/// any lock.
pub(crate) struct Collector {
    options: RangeOptions,
    /// Whether values are needed at all.
    values: bool,
    /// Keys to gather at most.
    fetch: usize,
    items: Vec<Item>,
}

impl Collector {
    pub(crate) fn new(options: &RangeOptions) -> Self {
        let options = *options;
        let default_order = options.sort_order == SortOrder::None
            || (options.sort_target == SortTarget::Key && options.sort_order == SortOrder::Ascend);
        let fetch = match usize::try_from(options.limit) {
            Ok(limit) if limit > 0 && default_order && !options.filters() => limit.saturating_add(1),
            _ => usize::MAX,
        };
        let values = !options.keys_only || options.sort_target == SortTarget::Value;
        Self { options, values, fetch, items: Vec::new() }
    }

    /// Gathers keys of `[low, high)` until the answer is full or `budget` keys were looked at; then returns the key to go
    /// on from. `pending` may give a payload that is not in the log yet.
    pub(crate) fn gather(
        &mut self,
        index: &Index,
        low: &[u8],
        high: Option<&[u8]>,
        at: i64,
        budget: usize,
        pending: impl Fn(Revision) -> Option<Bytes>,
    ) -> Option<Bytes> {
        let mut left = budget;
        let mut next = None;
        let _ = index.range(low, high, at, |key, found| {
            if self.items.len() >= self.fetch {
                return ControlFlow::Break(());
            }
            if left == 0 {
                next = Some(Bytes::copy_from_slice(key));
                return ControlFlow::Break(());
            }
            left -= 1;
            self.add(key, found, &pending);
            ControlFlow::Continue(())
        });
        next
    }

    pub(crate) fn add(&mut self, key: &[u8], found: Found, pending: impl Fn(Revision) -> Option<Bytes>) {
        if !self.options.passes(&found) {
            return;
        }
        let (key, payload) =
            if self.values { (None, pending(found.modified)) } else { (Some(Bytes::copy_from_slice(key)), None) };
        self.items.push(Item { found, key, payload });
    }

    /// Sorts, cuts, and reads what is left. `read` reads a payload from the log.
    pub(crate) fn finish(
        mut self,
        count: u64,
        revision: i64,
        read: impl Fn(Revision) -> Result<Bytes, RangeError>,
    ) -> Result<RangeResult, RangeError> {
        let options = self.options;
        if options.sort_target == SortTarget::Value {
            for item in &mut self.items {
                if item.payload.is_none() {
                    item.payload = Some(read(item.found.modified)?);
                }
            }
        }
        if options.sort_target == SortTarget::Key {
            options.turn(&mut self.items);
        } else {
            self.items.sort_by(|a, b| options.order(a, b));
        }
        let limit = options.limit();
        let more = self.items.len() > limit;
        self.items.truncate(limit);
        let mut kvs = Vec::with_capacity(self.items.len());
        for item in self.items {
            kvs.push(item.answer(&options, &read)?);
        }
        Ok(RangeResult { kvs, count: count as i64, more, revision })
    }
}

/// Items sorted at a time before the sorted runs are merged: about a millisecond.
const RUN: usize = 4096;

/// A range that a request reads in slices: see [`crate::Txn::read_some`].
pub struct RangeSlices {
    low: Bytes,
    high: Option<Bytes>,
    options: RangeOptions,
    /// The revision it reads at, and the current one, once it has begun.
    at: Option<(i64, i64)>,
    count: u64,
    stage: Stage,
    /// About how many bytes what was gathered takes.
    held: usize,
}

enum Stage {
    /// Counting goes on from here.
    Count(Bytes),
    Gather(Bytes, Collector),
    /// Values that the order depends on; so many are there.
    Values(Vec<Item>, usize),
    /// Runs that are sorted, and items that are in none.
    Sort(std::vec::IntoIter<Item>, Vec<Run>),
    Merge(Vec<Run>, Vec<Item>),
    Answer(std::vec::IntoIter<Item>, RangeResult),
}

type Run = std::iter::Peekable<std::vec::IntoIter<Item>>;

/// Where a [`RangeSlices`] reads.
pub(crate) struct Source<'s, P, R> {
    pub(crate) index: &'s Index,
    pub(crate) current: i64,
    pub(crate) compact: i64,
    /// A payload that is not in the log yet.
    pub(crate) pending: P,
    pub(crate) read: R,
    /// Stop where the index is needed no more: its lock is held for nothing else.
    pub(crate) index_only: bool,
}

impl RangeSlices {
    pub fn new(range: &KeyRange, options: &RangeOptions) -> Self {
        let (low, high) = bounds(range);
        Self { stage: Stage::Count(low.clone()), low, high, options: *options, at: None, count: 0, held: 0 }
    }

    /// A range that need not be counted: its answer says 0.
    pub(crate) fn counted(range: &KeyRange, options: &RangeOptions) -> Self {
        let mut slices = Self::new(range, options);
        slices.stage = Stage::Gather(slices.low.clone(), Collector::new(options));
        slices
    }

    pub(crate) fn reads_index(&self) -> bool {
        matches!(self.stage, Stage::Count(_) | Stage::Gather(..))
    }

    /// The revision whose keys are still to be read from the index.
    pub(crate) fn pins(&self) -> Option<i64> {
        self.at.map(|(at, _)| at).filter(|_| self.reads_index())
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held
    }

    /// Goes on until the budget is spent; the answer, once it is there. To be called no more after that.
    pub(crate) fn step<P, R>(
        &mut self,
        source: &Source<'_, P, R>,
        budget: &mut Budget,
    ) -> Result<Option<RangeResult>, RangeError>
    where
        P: Fn(Revision) -> Option<Bytes>,
        R: Fn(Revision) -> Result<Bytes, RangeError>,
    {
        let (at, revision) = match self.at {
            Some(at) => at,
            None => {
                let at = resolve(self.options.revision, source.current, source.compact)?;
                *self.at.insert((at, source.current))
            }
        };
        let options = self.options;
        loop {
            let none = Stage::Count(Bytes::new());
            self.stage = match std::mem::replace(&mut self.stage, none) {
                Stage::Count(low) => {
                    let keys = budget.keys();
                    let (count, next) = source.index.count_some(&low, self.high.as_deref(), at, keys);
                    self.count += count;
                    budget.spend_keys(if next.is_some() { keys } else { 1 });
                    match next {
                        Some(next) => Stage::Count(next),
                        None if options.count_only => {
                            let count = self.count as i64;
                            return Ok(Some(RangeResult { count, revision, ..RangeResult::default() }));
                        }
                        None => Stage::Gather(self.low.clone(), Collector::new(&options)),
                    }
                }
                Stage::Gather(low, mut collector) => {
                    let before = collector.items.len();
                    let keys = budget.keys();
                    let high = self.high.as_deref();
                    let next = collector.gather(source.index, &low, high, at, keys, &source.pending);
                    let gathered = collector.items.len() - before;
                    self.held += gathered * size_of::<Item>();
                    budget.spend_keys(if next.is_some() { keys } else { gathered + 1 });
                    let mut items = match next {
                        Some(next) => {
                            self.stage = Stage::Gather(next, collector);
                            if budget.is_spent() {
                                return Ok(None);
                            }
                            continue;
                        }
                        None => collector.items,
                    };
                    match options.sort_target {
                        SortTarget::Value => Stage::Values(items, 0),
                        SortTarget::Key => {
                            options.turn(&mut items);
                            self.answer(items, revision)
                        }
                        _ => Stage::Sort(items.into_iter(), Vec::new()),
                    }
                }
                Stage::Values(mut items, mut done) => {
                    while let Some(item) = items.get_mut(done).filter(|_| !budget.is_spent()) {
                        let payload = match item.payload.take() {
                            Some(payload) => payload,
                            None => (source.read)(item.found.modified)?,
                        };
                        self.held += payload.len();
                        budget.spend(payload.len());
                        item.payload = Some(payload);
                        done += 1;
                    }
                    if done < items.len() {
                        Stage::Values(items, done)
                    } else {
                        Stage::Sort(items.into_iter(), Vec::new())
                    }
                }
                Stage::Sort(mut items, mut runs) => {
                    let mut run: Vec<Item> = items.by_ref().take(RUN).collect();
                    if run.is_empty() {
                        Stage::Merge(runs, Vec::new())
                    } else {
                        budget.spend_keys(run.len());
                        run.sort_by(|a, b| options.order(a, b));
                        runs.push(run.into_iter().peekable());
                        Stage::Sort(items, runs)
                    }
                }
                Stage::Merge(mut runs, mut sorted) => {
                    let wanted = options.limit().saturating_add(1);
                    while sorted.len() < wanted && !budget.is_spent() {
                        let Some(next) = options.least(&mut runs) else { break };
                        sorted.push(next);
                        budget.spend_keys(1 + runs.len() / 8);
                    }
                    if sorted.len() < wanted && runs.iter_mut().any(|run| run.peek().is_some()) {
                        Stage::Merge(runs, sorted)
                    } else {
                        self.answer(sorted, revision)
                    }
                }
                Stage::Answer(mut items, mut result) => {
                    while !budget.is_spent() {
                        let Some(item) = items.next() else { return Ok(Some(result)) };
                        let kv = item.answer(&options, &source.read)?;
                        budget.spend(kv.len());
                        if options.sort_target != SortTarget::Value {
                            self.held += kv.len();
                        }
                        result.kvs.push(kv);
                    }
                    Stage::Answer(items, result)
                }
            };
            if budget.is_spent() || (source.index_only && !self.reads_index()) {
                return Ok(None);
            }
        }
    }

    fn answer(&self, mut items: Vec<Item>, revision: i64) -> Stage {
        let limit = self.options.limit();
        let more = items.len() > limit;
        items.truncate(limit);
        Stage::Answer(items.into_iter(), RangeResult { kvs: Vec::new(), count: self.count as i64, more, revision })
    }
}

impl Item {
    fn answer(
        self,
        options: &RangeOptions,
        read: impl Fn(Revision) -> Result<Bytes, RangeError>,
    ) -> Result<Bytes, RangeError> {
        Ok(match (self.key, self.payload) {
            (Some(key), _) => keys_only(&key, &self.found),
            (None, Some(payload)) if options.keys_only => without_value(&payload),
            (None, Some(payload)) => payload,
            (None, None) => read(self.found.modified)?,
        })
    }

    fn value(&self) -> &[u8] {
        let payload = self.payload.as_deref().unwrap_or_default();
        KeyValueRef::decode(payload).map_or(&[][..], |kv| kv.value)
    }
}

impl RangeOptions {
    fn filters(&self) -> bool {
        self.min_mod_revision != 0
            || self.max_mod_revision != 0
            || self.min_create_revision != 0
            || self.max_create_revision != 0
    }

    fn limit(&self) -> usize {
        usize::try_from(self.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX)
    }

    /// Key order as asked for, of items that are in ascending one.
    fn turn(&self, items: &mut [Item]) {
        if self.sort_order == SortOrder::Descend {
            items.reverse();
        }
    }

    /// The order by anything but the key. Equal ones stay in key order: sort stably.
    fn order(&self, a: &Item, b: &Item) -> Ordering {
        let (a, b) = if self.sort_order == SortOrder::Descend { (b, a) } else { (a, b) };
        match self.sort_target {
            SortTarget::Key => Ordering::Equal,
            SortTarget::Version => a.found.version.cmp(&b.found.version),
            SortTarget::Create => a.found.create.cmp(&b.found.create),
            SortTarget::Mod => a.found.modified.main.cmp(&b.found.modified.main),
            SortTarget::Value => a.value().cmp(b.value()),
        }
    }

    /// Takes the least of the heads; of equal ones that of the first run.
    fn least(&self, runs: &mut [Run]) -> Option<Item> {
        let mut least: Option<usize> = None;
        for at in 0..runs.len() {
            let (before, rest) = runs.split_at_mut(at);
            let Some(head) = rest[0].peek() else { continue };
            let less = match least {
                Some(least) => before[least].peek().is_none_or(|other| self.order(head, other).is_lt()),
                None => true,
            };
            if less {
                least = Some(at);
            }
        }
        runs[least?].next()
    }

    /// Whether one key is answered by its payload as it is.
    pub(crate) fn plain(&self) -> bool {
        !self.count_only && !self.keys_only && !self.filters()
    }

    fn passes(&self, found: &Found) -> bool {
        let low = |least: i64, value: i64| least == 0 || value >= least;
        let high = |most: i64, value: i64| most == 0 || value <= most;
        high(self.max_mod_revision, found.modified.main)
            && low(self.min_mod_revision, found.modified.main)
            && high(self.max_create_revision, found.create)
            && low(self.min_create_revision, found.create)
    }
}

fn keys_only(key: &[u8], found: &Found) -> Bytes {
    KeyValueRef {
        key,
        create_revision: found.create,
        mod_revision: found.modified.main,
        version: found.version,
        ..KeyValueRef::default()
    }
    .encode()
}

fn without_value(payload: &Bytes) -> Bytes {
    match KeyValueRef::decode(payload) {
        Some(kv) => KeyValueRef { value: &[], ..kv }.encode(),
        None => payload.clone(),
    }
}
