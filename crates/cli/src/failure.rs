//! How a command ends badly.

use std::fmt::Display;

/// A text for the `Error:` line on stderr, and an exit code.
///
/// The codes are those of etcd's tools: 1 general, 2 bad connection, 3 invalid input, 4 valid flag with an unsupported value,
/// 5 interrupted, 6 input or output, 128 bad arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(crate) code: u8,
    /// `None`: all has been said.
    pub(crate) text: Option<String>,
    pub(crate) hints: Vec<String>,
    /// The usage follows the error, as cobra does for errors that a command returns to it.
    pub(crate) usage: bool,
}

impl Failure {
    /// `Error: TEXT` and `code`.
    pub fn new(code: u8, text: impl Display) -> Failure {
        Failure { code, text: Some(text.to_string()), hints: Vec::new(), usage: false }
    }

    /// General error: exit code 1.
    pub fn error(text: impl Display) -> Failure {
        Failure::new(1, text)
    }

    /// No connection, or lost: exit code 2.
    pub fn bad_connection(text: impl Display) -> Failure {
        Failure::new(2, text)
    }

    /// Bad words on stdin: exit code 3.
    pub fn bad_input(text: impl Display) -> Failure {
        Failure::new(3, text)
    }

    /// A valid flag with an unsupported value: exit code 4.
    pub fn bad_feature(text: impl Display) -> Failure {
        Failure::new(4, text)
    }

    /// Ended by the other side or a signal: exit code 5.
    pub fn interrupted(text: impl Display) -> Failure {
        Failure::new(5, text)
    }

    /// A file could not be read or written: exit code 6.
    pub fn io(text: impl Display) -> Failure {
        Failure::new(6, text)
    }

    /// Bad arguments: exit code 128.
    pub fn bad_args(text: impl Display) -> Failure {
        Failure::new(128, text)
    }

    /// Only an exit code; what there was to say has been printed.
    pub fn silent(code: u8) -> Failure {
        Failure { code, text: None, hints: Vec::new(), usage: false }
    }

    /// As an error that a command returns to cobra: exit code 1, and the usage follows.
    pub fn with_usage(text: impl Display) -> Failure {
        Failure { usage: true, ..Failure::error(text) }
    }

    /// A line `hint: TEXT` on stderr after the error line; may be called several times.
    pub fn hint(mut self, text: impl Display) -> Failure {
        self.hints.push(text.to_string());
        self
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// What follows `Error:`; `None` when it is silent.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// The lines, as they go to stderr.
    pub(crate) fn lines(&self) -> String {
        let mut lines = String::new();
        if let Some(text) = &self.text {
            lines.push_str(&format!("Error: {text}\n"));
        }
        for hint in &self.hints {
            lines.push_str(&format!("hint: {hint}\n"));
        }
        lines
    }
}

impl<E: std::error::Error> From<E> for Failure {
    /// A general error, exit code 1.
    fn from(error: E) -> Failure {
        Failure::error(error)
    }
}
