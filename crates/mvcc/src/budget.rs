/// What one slice of work may cost. Counted, not timed, so that the same work ends at the same key wherever it runs.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: usize,
}

/// What a key costs that is looked at, next to its bytes: about what time says.
const KEY_COST: usize = 64;

impl Budget {
    /// `bytes` read, written or looked at; half a MiB takes about a millisecond.
    pub fn new(bytes: usize) -> Self {
        Self { left: bytes.max(1) }
    }

    /// Never spent.
    pub fn unlimited() -> Self {
        Self { left: usize::MAX }
    }

    /// One key and its bytes.
    pub fn spend(&mut self, bytes: usize) {
        if self.left != usize::MAX {
            self.left = self.left.saturating_sub(KEY_COST + bytes);
        }
    }

    /// So many keys, looked at one by one.
    pub(crate) fn spend_keys(&mut self, keys: usize) {
        if self.left != usize::MAX {
            self.left = self.left.saturating_sub(keys.saturating_mul(KEY_COST));
        }
    }

    /// Keys that can still be looked at, at least one.
    pub(crate) fn keys(&self) -> usize {
        (self.left / KEY_COST).max(1)
    }

    pub fn is_spent(&self) -> bool {
        self.left == 0
    }
}
