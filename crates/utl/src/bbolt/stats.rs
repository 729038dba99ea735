//! `stats`: how full the pages are.

use dolmen_bolt::raw::RawPage;
use dolmen_cli::{Call, Failure, print};

use super::file::{Db, Root, outside};
use super::returned;

pub(super) const LONG: &str = "\
usage: bolt stats PATH

Stats performs an extensive search of the database to track every page
reference. It starts at the current meta page and recursively iterates
through every accessible bucket.

The following errors can be reported:

    already freed
        The page is referenced more than once in the freelist.

    unreachable unfreed
        The page is not referenced by a bucket or in the freelist.

    reachable freed
        The page is referenced by a bucket but is also in the freelist.

    out of bounds
        A page is referenced that is above the high water mark.

    multiple references
        A page is referenced by more than one other page.

    invalid type
        The page type is not \"meta\", \"leaf\", \"branch\", or \"freelist\".

No errors should occur in your database. However, if for some reason you
experience corruption, please submit a ticket to the etcd-io/bbolt project page:

  https://github.com/etcd-io/bbolt/issues
";

/// Bytes of a page header, and of an element.
const HEADER_LEN: u64 = 16;
const ELEMENT_LEN: u64 = 16;
/// Buckets within buckets no real file reaches.
const MAX_NESTING: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    branch_pages: u64,
    branch_overflow: u64,
    leaf_pages: u64,
    leaf_overflow: u64,
    keys: u64,
    depth: u64,
    branch_alloc: u64,
    branch_in_use: u64,
    leaf_alloc: u64,
    leaf_in_use: u64,
    buckets: u64,
    inline_buckets: u64,
    inline_in_use: u64,
}

impl Stats {
    /// Sums; of the depth the larger.
    fn add(&mut self, other: &Self) {
        self.branch_pages += other.branch_pages;
        self.branch_overflow += other.branch_overflow;
        self.leaf_pages += other.leaf_pages;
        self.leaf_overflow += other.leaf_overflow;
        self.keys += other.keys;
        self.depth = self.depth.max(other.depth);
        self.branch_alloc += other.branch_alloc;
        self.branch_in_use += other.branch_in_use;
        self.leaf_alloc += other.leaf_alloc;
        self.leaf_in_use += other.leaf_in_use;
        self.buckets += other.buckets;
        self.inline_buckets += other.inline_buckets;
        self.inline_in_use += other.inline_in_use;
    }

    fn of(db: &Db, root: &Root, nesting: usize) -> Result<Self, String> {
        if nesting > MAX_NESTING {
            return Err("buckets too deep".into());
        }
        let inline = matches!(root, Root::Inline(_));
        let mut stats = Self { buckets: 1, inline_buckets: inline.into(), ..Self::default() };
        let mut nested = Self::default();
        db.for_each_page(root, &mut |page, depth| {
            stats.page(db, page, inline, &mut nested, nesting)?;
            stats.depth = stats.depth.max(depth as u64 + 1);
            Ok(())
        })?;
        stats.branch_alloc = (stats.branch_pages + stats.branch_overflow) * db.page_size();
        stats.leaf_alloc = (stats.leaf_pages + stats.leaf_overflow) * db.page_size();
        stats.depth += nested.depth;
        stats.add(&nested);
        Ok(stats)
    }

    fn page(&mut self, db: &Db, page: &RawPage, inline: bool, nested: &mut Self, nesting: usize) -> Result<(), String> {
        let used = used(page)?;
        if page.is_branch() {
            self.branch_pages += 1;
            self.branch_in_use += used;
            self.branch_overflow += u64::from(page.overflow);
        } else if page.is_leaf() {
            self.keys += u64::from(page.count);
            if inline {
                self.inline_in_use += used;
                return Ok(());
            }
            self.leaf_pages += 1;
            self.leaf_in_use += used;
            self.leaf_overflow += u64::from(page.overflow);
            for index in 0..usize::from(page.count) {
                let leaf = page.leaf(index).ok_or_else(|| outside(page.id, index))?;
                if leaf.is_bucket() {
                    nested.add(&Self::of(db, &db.bucket_in(leaf.value)?, nesting + 1)?);
                }
            }
        }
        Ok(())
    }
}

/// Bytes up to the end of the last element, from where that says it stands.
fn used(page: &RawPage) -> Result<u64, String> {
    let Some(last) = usize::from(page.count).checked_sub(1) else { return Ok(HEADER_LEN) };
    let lost = || outside(page.id, last);
    let end = if page.is_branch() {
        let branch = page.branch(last).ok_or_else(lost)?;
        u64::from(branch.position) + branch.key.len() as u64
    } else {
        let leaf = page.leaf(last).ok_or_else(lost)?;
        u64::from(leaf.position) + (leaf.key.len() + leaf.value.len()) as u64
    };
    Ok(HEADER_LEN + ELEMENT_LEN * last as u64 + end)
}

/// As Go computes it: in 32-bit floating point, cut off.
fn percent(part: u64, whole: u64) -> i64 {
    if whole == 0 { 0 } else { (part as f32 * 100.0 / whole as f32) as i64 }
}

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let db = Db::open(&call.args()[0], call).map_err(returned)?;
    let prefix = if call.args().len() > 1 { call.arg_bytes(1) } else { Vec::new() };
    let mut stats = Stats::default();
    let mut count = 0;
    db.for_each(&db.root(), &mut |leaf| {
        if leaf.is_bucket() && leaf.key.starts_with(&prefix) {
            stats.add(&Stats::of(&db, &db.bucket_in(leaf.value)?, 0)?);
            count += 1;
        }
        Ok(())
    })
    .map_err(returned)?;
    print(report(&stats, count));
    Ok(())
}

fn report(stats: &Stats, count: u64) -> String {
    let mut lines = vec![
        format!("Aggregate statistics for {count} buckets\n"),
        "Page count statistics".to_owned(),
        format!("\tNumber of logical branch pages: {}", stats.branch_pages),
        format!("\tNumber of physical branch overflow pages: {}", stats.branch_overflow),
        format!("\tNumber of logical leaf pages: {}", stats.leaf_pages),
        format!("\tNumber of physical leaf overflow pages: {}", stats.leaf_overflow),
        "Tree statistics".to_owned(),
        format!("\tNumber of keys/value pairs: {}", stats.keys),
        format!("\tNumber of levels in B+tree: {}", stats.depth),
        "Page size utilization".to_owned(),
        format!("\tBytes allocated for physical branch pages: {}", stats.branch_alloc),
    ];
    let share = |what: &str, part: u64, whole: u64| format!("\t{what}: {part} ({}%)", percent(part, whole));
    lines.push(share("Bytes actually used for branch data", stats.branch_in_use, stats.branch_alloc));
    lines.push(format!("\tBytes allocated for physical leaf pages: {}", stats.leaf_alloc));
    lines.push(share("Bytes actually used for leaf data", stats.leaf_in_use, stats.leaf_alloc));
    lines.push("Bucket statistics".to_owned());
    lines.push(format!("\tTotal number of buckets: {}", stats.buckets));
    lines.push(share("Total number on inlined buckets", stats.inline_buckets, stats.buckets));
    lines.push(share("Bytes used for inlined buckets", stats.inline_in_use, stats.leaf_in_use));
    lines.join("\n") + "\n"
}
