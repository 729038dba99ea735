//! The memory that responses of all streams may take until they are sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// Counts every encoded response once, however many watchers share it, from when it is made until its last holder, be
/// it an outbox or a connection, lets go of it.
///
/// Nothing more is made once the total is used up (see [`Budget::is_spent`]): watchers fall behind instead, and read from
/// the store when there is room again. So what is held is the total and one response more at most.
#[derive(Debug)]
pub(crate) struct Budget {
    total: usize,
    used: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, used: AtomicUsize::new(0) })
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn free(&self) -> usize {
        self.total.saturating_sub(self.used())
    }

    /// Nothing is left.
    pub(crate) fn is_spent(&self) -> bool {
        self.free() == 0
    }

    /// So little is left that what can wait does.
    pub(crate) fn is_short(&self) -> bool {
        self.free() < self.total / 4
    }

    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Charge { budget: self.clone(), bytes }
    }

    /// The bytes, counted until the last of their clones and slices is gone.
    pub(crate) fn keep(self: &Arc<Self>, bytes: Vec<u8>) -> Bytes {
        let _charge = self.charge(bytes.capacity());
        Bytes::from_owner(Kept { bytes, _charge })
    }
}

/// Counted until dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    pub(crate) fn grow(&mut self, bytes: usize) {
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Kept {
    bytes: Vec<u8>,
    _charge: Charge,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_once_and_until_the_last_slice_is_gone() {
        let budget = Budget::new(1000);
        let bytes = budget.keep(vec![1; 800]);
        let slice = bytes.slice(10..20);
        drop((bytes.clone(), bytes));
        assert_eq!((budget.used(), budget.is_short(), budget.is_spent()), (800, true, false));
        let more = budget.charge(300);
        assert!(budget.is_spent());
        drop((slice, more));
        assert_eq!(budget.used(), 0);
    }
}
