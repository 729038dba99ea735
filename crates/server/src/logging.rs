//! Log lines as etcd's zap writes them: JSON objects with `level`, `ts`, `caller`, `msg` and fields, or console lines.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::config::LogConfig;

/// Makes this process's log lines go where `config` says; only the first call of a process counts.
///
/// # Errors
/// A log file cannot be opened.
pub fn init(config: &LogConfig) -> Result<(), String> {
    let mut sinks = Vec::new();
    if !config.outputs.iter().any(|output| output == "/dev/null") {
        for output in &config.outputs {
            sinks.push(match output.as_str() {
                "default" | "stderr" => Sink::Stderr,
                "stdout" => Sink::Stdout,
                path => {
                    let file = OpenOptions::new().create(true).append(true).open(path);
                    Sink::File(file.map_err(|error| format!("cannot open log output {path:?}: {error}"))?)
                }
            });
        }
    }
    let logger = Logger { level: config.level, json: config.json, sinks: Mutex::new(sinks) };
    // A second server in one process (tests) logs where the first does.
    let _already = tracing::subscriber::set_global_default(logger);
    Ok(())
}

enum Sink {
    Stderr,
    Stdout,
    File(File),
}

struct Logger {
    level: Level,
    json: bool,
    sinks: Mutex<Vec<Sink>>,
}

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries log under their own names; only warnings of theirs matter to an operator.
        let ours = metadata.target().starts_with("dolmen");
        *metadata.level() <= self.level && (ours || *metadata.level() <= Level::WARN)
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = if self.json { json_line(event.metadata(), fields) } else { console_line(event.metadata(), fields) };
        for sink in self.sinks.lock().iter_mut() {
            // Nowhere is left to say that the log cannot be written.
            let _lost = match sink {
                Sink::Stderr => std::io::stderr().write_all(line.as_bytes()),
                Sink::Stdout => std::io::stdout().write_all(line.as_bytes()),
                Sink::File(file) => file.write_all(line.as_bytes()),
            };
        }
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        if field.name() == "message" {
            self.message = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        } else {
            // Field names of etcd hold dashes, which Rust's cannot.
            self.rest.insert(field.name().replace('_', "-"), value);
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let text = format!("{value:?}");
        // A list is a list in the log too. Others' debug forms are text, even those in brackets.
        let list = text.starts_with('[').then(|| serde_json::from_str::<Vec<Value>>(&text).ok()).flatten();
        self.put(field, list.map_or_else(|| text.into(), Value::Array));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, value.to_string().into());
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        _ => "debug",
    }
}

/// `crate/file.rs:line`, as short as zap's.
fn caller(metadata: &Metadata<'_>) -> String {
    let file = metadata.file().unwrap_or("unknown");
    let (module, name) = (metadata.target().split("::").next().unwrap_or(""), file.rsplit('/').next().unwrap_or(file));
    format!("{module}/{name}:{}", metadata.line().unwrap_or(0))
}

fn json_line(metadata: &Metadata<'_>, fields: Fields) -> String {
    let head = [
        ("level", level_name(*metadata.level()).to_owned()),
        ("ts", timestamp(SystemTime::now())),
        ("caller", caller(metadata)),
        ("msg", fields.message),
    ];
    // Written by hand for the order: people and tools expect the level first.
    let mut line = String::from("{");
    for (at, (name, value)) in head.into_iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(line, "{comma}\"{name}\":{}", Value::from(value));
    }
    for (name, value) in fields.rest {
        let _ = write!(line, ",{}:{value}", Value::from(name));
    }
    line.push_str("}\n");
    line
}

fn console_line(metadata: &Metadata<'_>, fields: Fields) -> String {
    let mut line = format!(
        "{}\t{}\t{}\t{}",
        timestamp(SystemTime::now()),
        level_name(*metadata.level()),
        caller(metadata),
        fields.message
    );
    if !fields.rest.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(line, "\t{}", Value::Object(fields.rest));
    }
    line.push('\n');
    line
}

/// `2006-01-02T15:04:05.000000Z`, in UTC.
fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days as i64);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_micros()
    )
}

/// The Gregorian date of a day since 1970-01-01, counted in eras of 400 years that begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timestamps_are_zaps() {
        let at = |secs, micros| UNIX_EPOCH + Duration::from_secs(secs) + Duration::from_micros(micros);
        assert_eq!(timestamp(at(0, 0)), "1970-01-01T00:00:00.000000Z");
        assert_eq!(timestamp(at(951_782_400, 7)), "2000-02-29T00:00:00.000007Z");
        assert_eq!(timestamp(at(1_796_083_199, 999_999)), "2026-11-30T23:59:59.999999Z");
    }
}
