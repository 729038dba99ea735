use std::fmt;
use std::sync::Arc;

/// Severity of a log line, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warning,
    Error,
}

/// Where the core's log lines go.
pub trait LogSink: Send + Sync {
    /// False: lines of this level are not even formatted.
    fn enabled(&self, level: Level) -> bool;
    /// Takes one line, without line break.
    fn log(&self, level: Level, line: fmt::Arguments<'_>);
}

/// A shared [`LogSink`], or none.
#[derive(Clone, Default)]
pub struct Logger(Option<Arc<dyn LogSink>>);

impl Logger {
    pub fn new(sink: Arc<dyn LogSink>) -> Self {
        Self(Some(sink))
    }

    pub const fn none() -> Self {
        Self(None)
    }

    pub(crate) fn enabled(&self, level: Level) -> bool {
        self.0.as_ref().is_some_and(|sink| sink.enabled(level))
    }

    pub(crate) fn log(&self, level: Level, line: fmt::Arguments<'_>) {
        if let Some(sink) = &self.0 {
            sink.log(level, line);
        }
    }
}

impl fmt::Debug for Logger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Logger(sink)" } else { "Logger(none)" })
    }
}

/// `log!(logger, Info, "{:x} ...", id)`: formats only when somebody listens at that level.
macro_rules! log {
    ($logger:expr, $level:ident, $($line:tt)*) => {{
        let logger = &$logger;
        if logger.enabled($crate::logger::Level::$level) {
            logger.log($crate::logger::Level::$level, format_args!($($line)*));
        }
    }};
}

pub(crate) use log;
