//! `check`: all that is wrong with a file, one line a fault, in the words of bbolt.
//!
//! Where bbolt would crash, over a page that is not there or an element outside its page, a line names it and the walk
//! goes on beside it. `snapshot status` asks more of a file; this says the same as Go's tool about one that is merely
//! inconsistent.

use std::fmt::Display;

use dolmen_bolt::raw::RawPage;
use dolmen_cli::{Call, Failure, words};

use super::file::{Db, outside};
use super::text::text_or_hex;
use super::{Output, returned};

/// Levels of a tree, and buckets within buckets, no real file reaches.
const MAX_DEPTH: usize = 64;

/// Page numbers, one bit each.
pub(super) struct Pages {
    words: Vec<u64>,
    end: u64,
}

impl Pages {
    /// For numbers below `end`; those beyond are never in it.
    fn new(end: u64, len: u64, page_size: u64) -> Self {
        // A high water mark beyond the file may be any number: no more bits than the file has pages.
        let end = end.min(len / page_size + 1);
        Self { words: vec![0; (end / 64 + 1) as usize], end }
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        id < self.end && self.words[(id / 64) as usize] >> (id % 64) & 1 == 1
    }

    /// Whether it was not there before.
    fn insert(&mut self, id: u64) -> bool {
        if id >= self.end || self.contains(id) {
            return id >= self.end;
        }
        self.words[(id / 64) as usize] |= 1 << (id % 64);
        true
    }
}

struct Checker<'d> {
    db: &'d Db,
    reachable: Pages,
    freed: Pages,
    /// Takes a fault.
    tell: &'d mut dyn FnMut(String),
}

fn pages(db: &Db) -> Pages {
    Pages::new(db.high_water(), db.len, db.page_size())
}

/// The pages that are free: as the file lists them, or all that no tree reaches when it keeps no list.
pub(super) fn free_pages(db: &Db) -> Result<Pages, String> {
    free_pages_telling(db, &mut |_| {})
}

fn free_pages_telling(db: &Db, tell: &mut dyn FnMut(String)) -> Result<Pages, String> {
    let mut free = pages(db);
    let Some(list) = db.freelist() else {
        let mut ignore = |_| {};
        let mut checker = Checker { db, reachable: pages(db), freed: pages(db), tell: &mut ignore };
        checker.all();
        for id in 0..db.high_water().min(free.end) {
            if !checker.reachable.contains(id) {
                free.insert(id);
            }
        }
        return Ok(free);
    };
    let page = db.page(list)?;
    if !page.is_freelist() {
        return Err(format!("invalid freelist page: {list}, page type is {}", page.kind()));
    }
    for id in page.free_ids().1 {
        if !free.insert(id) {
            tell(format!("page {id}: already freed"));
        }
    }
    Ok(free)
}

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let db = Db::open(&call.args()[0], call).map_err(returned)?;
    let mut output = Output::default();
    let mut count = 0_u64;
    let mut tell = |fault: String| {
        output.line(&words::bytes(&fault));
        count += 1;
    };
    match free_pages_telling(&db, &mut tell) {
        Err(why) => tell(why),
        Ok(freed) => {
            let mut checker = Checker { db: &db, reachable: pages(&db), freed, tell: &mut tell };
            match call.uint("from-page") {
                0 => {
                    checker.all();
                    checker.unreachable();
                }
                id if id < 2 || id >= db.high_water() => {
                    let end = db.high_water();
                    (checker.tell)(format!("page ID ({id}) out of range [2, {end})"));
                }
                id => {
                    checker.fixed();
                    checker.tree(id);
                    checker.buckets_below(id, 0);
                }
            }
        }
    }
    if count == 0 {
        output.line(b"OK");
        output.flush();
        return Ok(());
    }
    output.line(format!("{count} errors found").as_bytes());
    output.flush();
    Err(returned("invalid value"))
}

/// Go's `%v` of a list of numbers.
fn list(numbers: &[u64]) -> impl Display {
    format!("[{}]", numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" "))
}

fn shown(key: &[u8]) -> String {
    words::from_bytes(text_or_hex(key))
}

impl Checker<'_> {
    /// The pages that no tree reaches and that are in use: metas and free list.
    fn fixed(&mut self) {
        self.reachable.insert(0);
        self.reachable.insert(1);
        if let Some(list) = self.db.freelist()
            && let Ok(head) = self.db.head(list)
        {
            for id in 0..=u64::from(head.overflow).min(self.db.high_water()) {
                self.reachable.insert(list.saturating_add(id));
            }
        }
    }

    fn all(&mut self) {
        self.fixed();
        self.bucket(self.db.root_page(), 0);
    }

    fn unreachable(&mut self) {
        for id in 0..self.db.high_water().min(self.reachable.end) {
            if !self.reachable.contains(id) && !self.freed.contains(id) {
                (self.tell)(format!("page {id}: unreachable unfreed"));
            }
        }
    }

    /// A bucket and those inside it; inline ones have no pages.
    fn bucket(&mut self, root: u64, depth: usize) {
        if depth > MAX_DEPTH {
            (self.tell)(format!("page {root}: buckets too deep"));
            return;
        }
        if self.tree(root) {
            self.buckets_below(root, depth);
        }
    }

    /// One tree: pages, then the order of its keys. Whether it can be walked again without end.
    fn tree(&mut self, root: u64) -> bool {
        let sound = self.reach(&mut vec![root]);
        if sound {
            self.order(root, None, None, &mut Vec::new());
        }
        sound
    }

    fn reach(&mut self, stack: &mut Vec<u64>) -> bool {
        let Some(&id) = stack.last() else { return true };
        let page = match self.db.page(id) {
            Ok(page) => page,
            Err(why) => {
                (self.tell)(format!("{why} (stack: {})", list(stack)));
                return false;
            }
        };
        let mut sound = stack.len() <= MAX_DEPTH;
        for id in page.id..=page.id + u64::from(page.overflow) {
            if !self.reachable.insert(id) {
                (self.tell)(format!("page {id}: multiple references (stack: {})", list(stack)));
                sound = false;
            }
        }
        if self.freed.contains(page.id) {
            (self.tell)(format!("page {}: reachable freed", page.id));
        } else if !page.is_branch() && !page.is_leaf() {
            (self.tell)(format!("page {}: invalid type: {} (stack: {})", page.id, page.kind(), list(stack)));
            sound = false;
        }
        if page.is_branch() && sound {
            for index in 0..usize::from(page.count) {
                let Some(branch) = page.branch(index) else {
                    (self.tell)(outside(page.id, index));
                    return false;
                };
                stack.push(branch.child);
                sound &= self.reach(stack);
                stack.pop();
            }
        }
        sound
    }

    /// Checks the keys below a page and returns the largest.
    fn order(
        &mut self,
        id: u64,
        least: Option<Vec<u8>>,
        below: Option<&[u8]>,
        stack: &mut Vec<u64>,
    ) -> Option<Vec<u8>> {
        let page = self.db.page(id).ok()?;
        stack.push(id);
        let mut running = least;
        let mut largest = None;
        for index in 0..usize::from(page.count) {
            let Some(key) = page.key(index) else {
                (self.tell)(outside(page.id, index));
                break;
            };
            if page.is_branch() {
                let Some(child) = page.branch(index).map(|branch| branch.child) else { break };
                self.key((child, "branch", index), key, running.as_deref(), below, stack);
                let next = page.key(index + 1).filter(|_| index + 1 < usize::from(page.count)).or(below);
                largest = self.order(child, Some(key.to_vec()), next, stack);
                running.clone_from(&largest);
            } else {
                self.key((id, "leaf", index), key, running.as_deref(), below, stack);
                running = Some(key.to_vec());
                largest.clone_from(&running);
            }
        }
        stack.pop();
        largest
    }

    fn key(
        &mut self,
        (id, kind, index): (u64, &str, usize),
        key: &[u8],
        previous: Option<&[u8]>,
        below: Option<&[u8]>,
        stack: &[u64],
    ) {
        let before = previous.map(shown).unwrap_or_default();
        let what = format!("key[{index}]=(hex){} on {kind} page({id}) needs to be", shown(key));
        match previous {
            Some(previous) if index == 0 && previous > key => {
                (self.tell)(format!("the first {what} >= the key in the ancestor ({before}). Stack: {}", list(stack)));
            }
            _ if index == 0 => {}
            _ => {
                let sign = match previous.unwrap_or_default().cmp(key) {
                    std::cmp::Ordering::Greater => "<",
                    std::cmp::Ordering::Equal => "=",
                    std::cmp::Ordering::Less => "",
                };
                if !sign.is_empty() {
                    let stack = list(stack);
                    (self.tell)(format!("{what} > (found {sign}) than previous element (hex){before}. Stack: {stack}"));
                }
            }
        }
        if below.is_some_and(|below| key >= below) {
            let stack = list(stack);
            (self.tell)(format!(
                "{what} < than key of the next element in ancestor (hex){before}. Pages stack: {stack}"
            ));
        }
    }

    /// The buckets that stand in the leaves below a page whose tree is sound.
    fn buckets_below(&mut self, id: u64, depth: usize) {
        let Ok(page) = self.db.page(id) else { return };
        for index in 0..usize::from(page.count) {
            if page.is_branch() {
                if let Some(branch) = page.branch(index) {
                    self.buckets_below(branch.child, depth);
                }
            } else if let Some(root) = bucket_root(&page, index) {
                match root {
                    Ok(0) => {}
                    Ok(root) => self.bucket(root, depth + 1),
                    Err(why) => (self.tell)(why),
                }
            }
        }
    }
}

/// The root page of the bucket at `index`, if there is one.
fn bucket_root(page: &RawPage, index: usize) -> Option<Result<u64, String>> {
    let leaf = page.leaf(index).filter(dolmen_bolt::raw::RawLeaf::is_bucket)?;
    Some(leaf.bucket().map(|(root, _)| root).ok_or_else(|| format!("page {}: broken bucket header", page.id)))
}
