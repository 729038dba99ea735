//! A reader's range in turns: whoever reads may look at the clock in between, let others run, or go on on another thread.
//!
//! All turns see one revision, which a pin keeps readable. The index lock is held while keys are counted and gathered, a
//! bounded number in each turn, and not while payloads are read.

use std::sync::Arc;

use dolmen_types::KeyRange;

use crate::budget::Budget;
use crate::index::Index;
use crate::range::{RangeError, RangeOptions, RangeResult, RangeSlices, Source};
use crate::reader::Reader;
use crate::store::{Capture, Pin, Shared};

/// What a turn may cost: a fraction of a millisecond.
const TURN: usize = 128 << 10;

/// See the module page. Superseded revisions are not let go of while it lives, so it must not live long.
pub struct RangeRead {
    shared: Arc<Shared>,
    capture: Capture,
    /// `None` when everything was gathered in the first hold of the lock.
    _pin: Option<Pin>,
    slices: RangeSlices,
    /// The answer, where the first turn had it.
    result: Option<RangeResult>,
}

impl Reader {
    /// Begins to read a range in turns.
    ///
    /// # Errors
    /// As [`Reader::range`].
    pub fn begin(&self, range: &KeyRange, options: &RangeOptions) -> Result<RangeRead, RangeError> {
        self.start(RangeSlices::new(range, options))
    }

    /// As [`Reader::begin`], of a part of a range that has been counted before: the answer's count is 0.
    ///
    /// # Errors
    /// As [`Reader::range`].
    pub fn begin_rest(&self, range: &KeyRange, options: &RangeOptions) -> Result<RangeRead, RangeError> {
        self.start(RangeSlices::counted(range, options))
    }

    fn start(&self, mut slices: RangeSlices) -> Result<RangeRead, RangeError> {
        let inner = self.shared.inner.read();
        let source = Source {
            index: &inner.index,
            current: inner.current,
            compact: inner.compact,
            pending: |rev| inner.pending(rev),
            read: |rev| Err(RangeError::Lost(rev)),
            index_only: true,
        };
        let result = slices.step(&source, &mut Budget::new(TURN))?;
        // While pinned, nothing that can be seen is reported dead, so the log goes on holding it, and the index stays should a
        // snapshot come in between. Without a pin the view does the same for what was gathered by now.
        let pin = slices.pins().map(|at| self.shared.pin(&inner, at));
        let capture = if pin.is_some() { inner.capture() } else { inner.capture_log() };
        drop(inner);
        Ok(RangeRead { shared: self.shared.clone(), capture, _pin: pin, slices, result })
    }
}

impl RangeRead {
    /// Does the next part: the answer, once it is there. To be called no more after that.
    ///
    /// # Errors
    /// The store is damaged.
    pub fn turn(&mut self) -> Result<Option<RangeResult>, RangeError> {
        match self.result.take() {
            Some(result) => Ok(Some(result)),
            None => turn(&self.shared, &self.capture, &mut self.slices),
        }
    }

    /// Does all that is left.
    ///
    /// # Errors
    /// As [`RangeRead::turn`].
    pub fn finish(mut self) -> Result<RangeResult, RangeError> {
        loop {
            if let Some(result) = self.turn()? {
                return Ok(result);
            }
        }
    }

    /// About how many bytes what has been gathered takes, payloads that lie in mapped files included.
    pub fn held_bytes(&self) -> usize {
        self.slices.held_bytes()
    }
}

/// One part of a read of what `capture` shows, whose index is pinned while it is needed.
pub(crate) fn turn(
    shared: &Shared,
    capture: &Capture,
    slices: &mut RangeSlices,
) -> Result<Option<RangeResult>, RangeError> {
    let none = Index::new();
    let held = if slices.reads_index() { Some(shared.index_of(capture.epoch)?) } else { None };
    let source = Source {
        index: held.as_ref().map_or(&none, |held| held.index()),
        current: capture.current,
        compact: capture.compact,
        pending: |_| None,
        read: |rev| capture.get(rev)?.ok_or(RangeError::Lost(rev)),
        index_only: held.is_some(),
    };
    slices.step(&source, &mut Budget::new(TURN))
}
