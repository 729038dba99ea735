//! What the commands on whole data directories share: where their log and their progress go.

use dolmen_cli::progress::Bar;
use dolmen_cli::zap::{self, Field};
use dolmen_datadir::{Level, Report};

use super::LOG;

/// Log lines to stderr as zap writes them, progress to a bar.
pub(super) struct Told {
    bar: Bar,
    /// What zap names as the line of code.
    caller: &'static str,
}

impl Told {
    /// `label`: what is being done. `caller`: what zap names as the line of code.
    pub(super) fn new(label: &'static str, caller: &'static str) -> Self {
        Self { bar: Bar::bytes(label, Some(0)), caller }
    }

    /// Takes the bar away.
    pub(super) fn finish(self) {
        self.bar.finish();
    }
}

impl Report for Told {
    fn log(&mut self, level: Level, message: &str, fields: &[(&str, serde_json::Value)]) {
        let level = match level {
            Level::Info => zap::Level::Info,
            Level::Warn => zap::Level::Warn,
            Level::Error => zap::Level::Error,
        };
        let fields: Vec<(&str, Field)> =
            fields.iter().map(|(name, value)| (*name, Field::json(value.to_string()))).collect();
        LOG.log(level, self.caller, message, &fields);
    }

    fn progress(&mut self, done: u64, total: u64) {
        self.bar.set_total(total);
        self.bar.set(done);
    }
}

/// An error with its causes on one line.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some say their cause themselves.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
