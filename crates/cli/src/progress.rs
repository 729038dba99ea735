//! A bar on stderr while something takes long; only on a terminal, so that no script ever sees it.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far something has come.
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// `label`: what is being done. `total`: bytes in all, when known.
    pub fn bytes(label: &'static str, total: Option<u64>) -> Bar {
        Bar::new(label, total, "{bytes}", "{total_bytes}", "{bytes_per_sec}")
    }

    /// As [`Bar::bytes`], for things that are counted.
    pub fn count(label: &'static str, total: Option<u64>) -> Bar {
        Bar::new(label, total, "{human_pos}", "{human_len}", "{per_sec}")
    }

    fn new(label: &'static str, total: Option<u64>, done: &str, of: &str, rate: &str) -> Bar {
        if !std::io::stderr().is_terminal() {
            return Bar { bar: ProgressBar::hidden() };
        }
        let template = match total {
            Some(_) => format!("{{msg}} {{wide_bar}} {done} of {of}, {rate}, {{eta}} left"),
            None => format!("{{msg}} {done}, {rate}, {{elapsed}}"),
        };
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        Bar { bar: bar.with_message(label) }
    }

    /// `more` on top of what was done.
    pub fn add(&self, more: u64) {
        self.bar.inc(more);
    }

    /// So much is done in all.
    pub fn set(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// The total has become known.
    pub fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Takes the bar away; dropping it does the same.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.finish();
    }
}
