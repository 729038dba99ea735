//! Log lines on stderr as Go's zap writes them: etcdctl's as JSON, etcdutl's with tabs.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::json;
use crate::output;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
    /// Said before the process ends.
    Fatal,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
            Level::Fatal => "fatal",
        }
    }
}

/// The value of a field, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field(String);

impl Field {
    pub fn text(value: &str) -> Field {
        Field(zap_text(value))
    }

    pub fn uint(value: u64) -> Field {
        Field(value.to_string())
    }

    pub fn int(value: i64) -> Field {
        Field(value.to_string())
    }

    pub fn boolean(value: bool) -> Field {
        Field(value.to_string())
    }

    /// Words, as zap writes `[]string`.
    pub fn texts(values: &[String]) -> Field {
        Field(json::list(values.iter().map(|value| zap_text(value))))
    }

    /// A value that is JSON already.
    pub fn json(value: String) -> Field {
        Field(value)
    }
}

/// zap leaves `<`, `>` and `&` alone, and escapes control characters by number.
fn zap_text(value: &str) -> String {
    let text = json::text(value);
    if !text.contains('\\') {
        return text;
    }
    let pairs = [("\\u003c", "<"), ("\\u003e", ">"), ("\\u0026", "&"), ("\\b", "\\u0008"), ("\\f", "\\u000c")];
    // A back slash of the text itself is two, and is not the beginning of an escape.
    let parts =
        text.split("\\\\").map(|part| pairs.iter().fold(part.to_owned(), |part, (from, to)| part.replace(from, to)));
    parts.collect::<Vec<_>>().join("\\\\")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Json,
    Console,
}

/// Writes lines of one encoding, from one level on.
#[derive(Clone, Copy, Debug)]
pub struct Logger {
    encoding: Encoding,
    from: Level,
    name: &'static str,
}

impl Logger {
    /// etcdctl's: one JSON object a line, times to the microsecond, from `Info` on.
    pub const fn json() -> Logger {
        Logger { encoding: Encoding::Json, from: Level::Info, name: "" }
    }

    /// etcdutl's: `TIME<TAB>info<TAB>caller<TAB>message<TAB>{"key": "value"}`, from `Info` on.
    pub const fn console() -> Logger {
        Logger { encoding: Encoding::Console, from: Level::Info, name: "" }
    }

    /// With a `logger` field: `etcd-client`.
    pub const fn named(self, name: &'static str) -> Logger {
        Logger { name, ..self }
    }

    /// Says nothing below `level`.
    pub const fn from(self, level: Level) -> Logger {
        Logger { from: level, ..self }
    }

    /// Writes a line. `caller`: `snapshot/v3_snapshot.go:248`, or empty.
    pub fn log(&self, level: Level, caller: &str, message: &str, fields: &[(&str, Field)]) {
        if level >= self.from {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            output::complain(self.line(since.as_micros() as u64, level, caller, message, fields));
        }
    }

    /// The line, with its line feed. `micros`: since 1970, in UTC.
    fn line(&self, micros: u64, level: Level, caller: &str, message: &str, fields: &[(&str, Field)]) -> String {
        match self.encoding {
            Encoding::Json => {
                let mut object = json::Object::new().raw("level", &format!("\"{}\"", level.name()));
                object = object.raw("ts", &format!("\"{}\"", time(micros, true)));
                if !self.name.is_empty() {
                    object = object.raw("logger", &zap_text(self.name));
                }
                if !caller.is_empty() {
                    object = object.raw("caller", &zap_text(caller));
                }
                object = object.raw("msg", &zap_text(message));
                for (name, Field(value)) in fields {
                    object = object.raw(name, value);
                }
                object.end() + "\n"
            }
            Encoding::Console => {
                let mut parts = vec![time(micros, false), level.name().to_owned()];
                parts.extend([self.name, caller].iter().filter(|part| !part.is_empty()).map(|part| (*part).to_owned()));
                parts.push(message.to_owned());
                if !fields.is_empty() {
                    let fields: Vec<String> =
                        fields.iter().map(|(name, Field(value))| format!("{}: {value}", zap_text(name))).collect();
                    parts.push(format!("{{{}}}", fields.join(", ")));
                }
                parts.join("\t") + "\n"
            }
        }
    }
}

/// `2026-08-20T14:13:00Z`, or with microseconds. `micros`: since 1970.
pub fn time(micros: u64, fraction: bool) -> String {
    let seconds = micros / 1_000_000;
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let fraction = if fraction { format!(".{:06}", micros % 1_000_000) } else { String::new() };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Year, month and day of the Gregorian calendar. `days`: since 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Years are counted from March, so that a leap day is the last of its year; day 0 is 0000-03-01.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let fields = [("path", Field::text("a<b\"\\u003c")), ("n", Field::uint(3))];
        let line =
            Logger::json().named("etcd-client").line(1_796_044_439_525_942, Level::Warn, "a.go:1", "said", &fields);
        let expected = r#"{"level":"warn","ts":"2026-11-30T13:13:59.525942Z","logger":"etcd-client","caller":"a.go:1","msg":"said","path":"a<b\"\\u003c","n":3}"#;
        assert_eq!(line, expected.to_owned() + "\n");
        let line = Logger::console().line(951_782_400_000_000, Level::Info, "a.go:1", "said", &fields[1..]);
        assert_eq!(line, "2000-02-29T00:00:00Z\tinfo\ta.go:1\tsaid\t{\"n\": 3}\n");
    }
}
