//! What happened, in order: a hash of everything, and the last notes to read when something broke.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// Notes kept for the report of a failure.
const KEPT: usize = 60;

#[derive(Clone, Copy, Debug)]
struct Note {
    at: u64,
    node: u8,
    what: &'static str,
    a: u64,
    b: u64,
}

impl Note {
    fn text(&self) -> String {
        let mut text = String::new();
        let seconds = self.at as f64 / 1e9;
        let who = if self.node == NOBODY { "--".to_owned() } else { format!("n{}", self.node) };
        let _ = write!(text, "{seconds:11.6} {who} {:<18} {} {}", self.what, self.a, self.b);
        text
    }
}

/// The node of notes about no node in particular.
pub(crate) const NOBODY: u8 = u8::MAX;

#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    pub events: u64,
    verbose: bool,
    last: VecDeque<Note>,
}

impl Trace {
    pub fn new(verbose: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, events: 0, verbose, last: VecDeque::with_capacity(KEPT) }
    }

    pub fn note(&mut self, at: u64, node: u8, what: &'static str, a: u64, b: u64) {
        for word in [at, u64::from(node), what.len() as u64, a, b] {
            self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
        for byte in what.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.events += 1;
        let note = Note { at, node, what, a, b };
        if self.verbose {
            println!("{}", note.text());
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(note);
    }

    /// A line only for readers: not part of the hash.
    pub fn say(&self, at: u64, text: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:11.6} .. {}", at as f64 / 1e9, text());
        }
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn last(&self) -> Vec<String> {
        self.last.iter().map(Note::text).collect()
    }
}
