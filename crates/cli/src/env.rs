//! Flags from environment variables: `ETCDCTL_DIAL_TIMEOUT` for `--dial-timeout`.

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::command::Kind;
use crate::flags::{FlagSet, Value};
use crate::zap::{Field, Level, Logger};
use crate::{Failure, golang, words};

/// `prefix`: with its underscore, `ETCDCTL_`.
pub(crate) fn variable(prefix: &str, flag: &str) -> String {
    format!("{prefix}{}", flag.to_uppercase().replace('-', "_"))
}

/// Sets flags of `set` that come from above and were not given. See [`crate::Call::environment`].
pub(crate) fn apply(
    set: &mut FlagSet,
    prefix: &str,
    silent: &[&str],
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<(), Failure> {
    let environment: Vec<(String, String)> =
        environment.map(|(name, value)| (words::from_os(name), words::from_os(value))).collect();
    let mut given = BTreeSet::new();
    let mut used = BTreeSet::new();
    let flags: Vec<(&'static str, bool)> =
        set.entries().iter().filter(|entry| entry.inherited).map(|entry| (entry.flag.name, entry.changed)).collect();
    for (name, changed) in flags {
        let key = variable(prefix, name);
        if changed {
            given.insert(key);
        } else if let Some((_, value)) = environment.iter().find(|(other, value)| *other == key && !value.is_empty()) {
            // etcdctl makes this text and drops it: its flag is zero then, and every call is out of time.
            set.set_by_name(name, value)
                .map_err(|why| Failure::bad_args(format!("invalid value {} for {key}: {why}", golang::quote(value))))?;
            used.insert(key);
        }
    }
    for name in silent {
        let key = variable(prefix, name);
        if environment.iter().any(|(other, value)| *other == key && !value.is_empty()) {
            used.insert(key);
        }
    }
    let logger = Logger::json();
    for (name, value) in environment.iter().filter(|(name, _)| !used.contains(name)) {
        if given.contains(name) {
            let text = "conflicting environment variable is shadowed by corresponding command-line flag (either unset environment \
                        variable or disable flag))";
            logger.log(Level::Fatal, "flags/flag.go:86", text, &[("environment-variable", Field::text(name))]);
            return Err(Failure::silent(1));
        }
        if name.starts_with(prefix) {
            let text = Field::text(&format!("{name}={value}"));
            logger.log(
                Level::Warn,
                "flags/flag.go:94",
                "unrecognized environment variable",
                &[("environment-variable", text)],
            );
        }
    }
    Ok(())
}

/// Makes the variables with `prefix` the defaults of flags, as viper reads them: an empty one is none, one that doesn't
/// parse is zero.
pub(crate) fn defaults(set: &mut FlagSet, prefix: &str, variable_of: impl Fn(&str) -> Option<String>) {
    for entry in set.entries_mut().iter_mut().filter(|entry| !entry.automatic) {
        let Some(word) = variable_of(&variable(prefix, entry.flag.name)).filter(|word| !word.is_empty()) else {
            continue;
        };
        entry.default = match entry.flag.kind {
            Kind::Bool => Value::Bool(golang::parse_bool(&word).unwrap_or(false)),
            Kind::Int | Kind::Int64 => Value::Int(golang::parse_int(whole(&word), 0).unwrap_or(0)),
            Kind::Uint64 => Value::Uint(golang::parse_uint(whole(&word), 0).unwrap_or(0)),
            Kind::Float64 => Value::Float(golang::parse_float(&word).unwrap_or(0.0)),
            Kind::Text => Value::Text(word),
            // A number alone is nanoseconds.
            Kind::Duration if word.contains(['n', 's', 'u', '\u{b5}', 'm', 'h']) => {
                Value::Duration(golang::parse_duration(&word).unwrap_or(0))
            }
            Kind::Duration => Value::Duration(golang::parse_duration(&format!("{word}ns")).unwrap_or(0)),
            Kind::List => Value::List(word.split(',').map(str::to_owned).collect()),
        };
        entry.value = entry.default.clone();
    }
}

/// `12` of `12.0`.
fn whole(word: &str) -> &str {
    match word.split_once('.') {
        Some((whole, rest)) if !whole.is_empty() && rest.bytes().all(|byte| byte == b'0') => whole,
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Flag};

    static CHILD: Command = Command { usage: "get", ..Command::NEW };
    static ROOT: Command = Command {
        usage: "ctl",
        persistent: &[
            Flag::boolean("hex", "hex"),
            Flag::duration("dial-timeout", "2s", "t"),
            Flag::list("eps", "a", "e"),
        ],
        commands: &[&CHILD],
        ..Command::NEW
    };

    fn applied(words: &[&str], environment: &[(&str, &str)]) -> Result<Vec<String>, Failure> {
        let mut set = FlagSet::of(&[&ROOT, &CHILD], true);
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        assert!(set.parse(&words).is_ok());
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        apply(&mut set, "CTL_", &[], environment)?;
        let changed = set.entries().iter().filter(|entry| entry.changed);
        Ok(changed.map(|entry| format!("{}={}", entry.flag.name, entry.value.shown())).collect())
    }

    #[test]
    fn variables_set_flags() {
        let environment = [("CTL_HEX", "true"), ("CTL_DIAL_TIMEOUT", "3s"), ("CTL_EPS", "b,c"), ("OTHER", "x")];
        assert_eq!(
            applied(&[], &environment),
            Ok(vec!["dial-timeout=3s".into(), "eps=[b,c]".into(), "hex=true".into()])
        );
        assert_eq!(applied(&["--hex"], &environment), Err(Failure::silent(1)));
        assert_eq!(applied(&[], &[("CTL_NONE", "1")]), Ok(vec![]));
        let refused = applied(&[], &[("CTL_DIAL_TIMEOUT", "bogus")]).expect_err("no duration");
        assert_eq!(
            refused,
            Failure::bad_args(
                "invalid value \"bogus\" for CTL_DIAL_TIMEOUT: invalid argument \"bogus\" for \"--dial-timeout\" flag: time: \
                 invalid duration \"bogus\""
            )
        );
    }

    #[test]
    fn variables_are_defaults() {
        let mut set = FlagSet::of(&[&ROOT], false);
        let variables = [("CTL_HEX", "x"), ("CTL_DIAL_TIMEOUT", "5"), ("CTL_EPS", "a,\"b")];
        defaults(&mut set, "CTL_", |name| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        });
        let shown: Vec<String> = set.entries().iter().map(|entry| entry.value.shown()).collect();
        assert_eq!(shown, ["5ns", "[a,\"\"\"b\"]", "false"]);
        assert!(set.entries().iter().all(|entry| !entry.changed));
    }
}
