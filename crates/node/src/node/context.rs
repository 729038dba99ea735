//! What every part of the node is handed: the time of this turn, the settings, what other threads see, and what goes out.

use std::sync::Arc;

use dolmen_env::Mono;

use super::{Config, Effects};
use crate::request::{Completion, Reply};
use crate::shared::Shared;

pub(super) struct Context {
    pub(super) config: Config,
    pub(super) shared: Arc<Shared>,
    pub(super) now: Mono,
    pub(super) effects: Effects,
}

impl Context {
    pub(super) fn reply(&mut self, to: Completion, reply: Reply) {
        self.effects.replies.entry(to.runtime).or_default().push((to.slot, reply));
    }
}
