//! Reading a range: what may be asked, and how an answer is put together.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use bytes::Bytes;
use dolmen_types::{KeyRange, Revision};

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
pub(crate) struct Collector<'o> {
    options: &'o RangeOptions,
    /// Whether values are needed at all.
    values: bool,
    /// Keys to gather at most.
    fetch: usize,
    items: Vec<Item>,
}

impl<'o> Collector<'o> {
    pub(crate) fn new(options: &'o RangeOptions) -> Self {
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
        self.sort();
        let limit = usize::try_from(options.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let more = self.items.len() > limit;
        self.items.truncate(limit);
        let mut kvs = Vec::with_capacity(self.items.len());
        for item in self.items {
            kvs.push(match (item.key, item.payload) {
                (Some(key), _) => keys_only(&key, &item.found),
                (None, Some(payload)) if options.keys_only => without_value(&payload),
                (None, Some(payload)) => payload,
                (None, None) => read(item.found.modified)?,
            });
        }
        Ok(RangeResult { kvs, count: count as i64, more, revision })
    }

    fn sort(&mut self) {
        let descend = self.options.sort_order == SortOrder::Descend;
        let by = |items: &mut Vec<Item>, number: fn(&Item) -> i64| {
            if descend { items.sort_by_key(|item| Reverse(number(item))) } else { items.sort_by_key(number) }
        };
        match self.options.sort_target {
            SortTarget::Key if descend => self.items.reverse(),
            SortTarget::Key => {}
            SortTarget::Version => by(&mut self.items, |item| item.found.version),
            SortTarget::Create => by(&mut self.items, |item| item.found.create),
            SortTarget::Mod => by(&mut self.items, |item| item.found.modified.main),
            SortTarget::Value => self.items.sort_by(|a, b| {
                let (a, b) = if descend { (b, a) } else { (a, b) };
                a.value().cmp(b.value())
            }),
        }
    }
}

impl Item {
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
