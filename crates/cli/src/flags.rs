//! Flag sets as pflag has them: values, parsing, and the lines of the help.
//!
//! A set is built for one command: its own flags, its persistent ones, and those of everything above it. The words are
//! the user's; whatever they hold ends as a value or as an error text.

use std::borrow::Cow;

use crate::command::{Command, Flag, Kind};
use crate::golang;

/// What a flag holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
    /// Nanoseconds.
    Duration(i64),
    List(Vec<String>),
}

impl Value {
    /// Parses as pflag does; the error is what follows `invalid argument "x" for "--flag" flag: `.
    pub fn parse(kind: Kind, word: &str) -> Result<Value, String> {
        Ok(match kind {
            Kind::Bool => Value::Bool(golang::parse_bool(word)?),
            Kind::Int | Kind::Int64 => Value::Int(golang::parse_int(word, 0)?),
            Kind::Uint64 => Value::Uint(golang::parse_uint(word, 0)?),
            Kind::Float64 => Value::Float(golang::parse_float(word)?),
            Kind::Text => Value::Text(word.to_owned()),
            Kind::Duration => Value::Duration(golang::parse_duration(word)?),
            Kind::List => Value::List(golang::csv_read(word)?),
        })
    }

    /// As pflag's `String()`.
    pub fn shown(&self) -> String {
        match self {
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Uint(value) => value.to_string(),
            Value::Float(value) => golang::format_float(*value),
            Value::Text(value) => value.clone(),
            Value::Duration(value) => golang::format_duration(*value),
            Value::List(value) => format!("[{}]", golang::csv_write(value)),
        }
    }
}

impl Kind {
    /// What stands for the value in a flag's line of the help.
    fn value_name(self) -> &'static str {
        match self {
            Kind::Bool => "",
            Kind::Int | Kind::Int64 => "int",
            Kind::Uint64 => "uint",
            Kind::Float64 => "float",
            Kind::Text => "string",
            Kind::Duration => "duration",
            Kind::List => "strings",
        }
    }
}

/// A flag of a set, with its value.
#[derive(Clone)]
pub(crate) struct Entry {
    pub flag: &'static Flag,
    /// The flag's usage, but for `--help`, which names the command.
    pub usage: Cow<'static, str>,
    /// Declared above the command, so that it is listed under `Global Flags:`.
    pub inherited: bool,
    /// Declared as persistent, here or above.
    pub persistent: bool,
    /// `--help` as cobra itself adds it.
    pub automatic: bool,
    pub hidden: bool,
    pub default: Value,
    pub value: Value,
    pub changed: bool,
}

impl Entry {
    fn new(flag: &'static Flag, inherited: bool, persistent: bool) -> Entry {
        let value = Value::parse(flag.kind, flag.default).unwrap_or_else(|_| Value::Text(flag.default.to_owned()));
        let hidden = flag.hidden || !flag.deprecated.is_empty();
        let usage = Cow::Borrowed(flag.usage);
        let (default, automatic, changed) = (value.clone(), false, false);
        Entry { flag, usage, inherited, persistent, automatic, hidden, default, value, changed }
    }

    /// `-w, --write-out` or `--hex`, as errors name it.
    fn shown_name(&self) -> String {
        match self.flag.short {
            Some(letter) => format!("-{letter}, --{}", self.flag.name),
            None => format!("--{}", self.flag.name),
        }
    }

    /// Takes no value of its own: `--x` alone means true.
    pub fn switch(&self) -> bool {
        self.flag.kind == Kind::Bool
    }
}

static HELP: Flag = Flag::boolean("help", "").short('h');

/// The flags that one command understands, sorted by name.
#[derive(Clone)]
pub(crate) struct FlagSet {
    entries: Vec<Entry>,
}

/// What parsing leaves besides the values.
#[derive(Default)]
pub(crate) struct Positional {
    pub words: Vec<String>,
    /// How many of them stood before `--`, when there was one.
    pub before_dash: Option<usize>,
    /// Said on stderr when all went well: deprecated flags.
    pub notes: String,
}

/// Why the words could not be parsed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// `--help` where it is no flag of the set.
    Help,
    Error(String),
}

impl FlagSet {
    /// The flags of the last command of `path`, which goes from the root down.
    ///
    /// `help`: `--help` is among them, as it is once cobra has settled on the command to run.
    pub fn of(path: &[&'static Command], help: bool) -> FlagSet {
        let mut set = FlagSet { entries: Vec::new() };
        let Some((command, above)) = path.split_last() else { return set };
        for flag in command.flags {
            set.add(Entry::new(flag, false, false));
        }
        for flag in command.persistent {
            set.add(Entry::new(flag, false, true));
        }
        for flag in above.iter().rev().flat_map(|one| one.persistent) {
            set.add(Entry::new(flag, true, true));
        }
        if help {
            let usage = Cow::Owned(format!("help for {}", command.name()));
            set.add(Entry { usage, automatic: true, ..Entry::new(&HELP, false, false) });
        }
        set.entries.sort_by_key(|entry| entry.flag.name);
        set
    }

    /// The first of a name wins, as the nearest declaration does.
    fn add(&mut self, entry: Entry) {
        if self.entry(entry.flag.name).is_none() {
            self.entries.push(entry);
        }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.flag.name == name)
    }

    pub fn short(&self, letter: char) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.flag.short == Some(letter))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.flag.name == name)
    }

    pub fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// Takes `--help` from the lists.
    pub fn hide_help(&mut self) {
        for entry in self.entries.iter_mut().filter(|entry| entry.automatic) {
            entry.hidden = true;
        }
    }

    /// Sets a flag by its name; the error is pflag's.
    pub fn set(&mut self, at: usize, word: &str, notes: &mut String) -> Result<(), String> {
        let Some(entry) = self.entries.get_mut(at) else { return Ok(()) };
        let value = Value::parse(entry.flag.kind, word).map_err(|why| {
            format!("invalid argument {} for {} flag: {why}", golang::quote(word), golang::quote(&entry.shown_name()))
        })?;
        match (&mut entry.value, value) {
            (Value::List(old), Value::List(new)) if entry.changed => old.extend(new),
            (slot, value) => *slot = value,
        }
        entry.changed = true;
        if !entry.flag.deprecated.is_empty() {
            notes.push_str(&format!("Flag --{} has been deprecated, {}\n", entry.flag.name, entry.flag.deprecated));
        }
        Ok(())
    }

    /// Sets a flag by its name, if it is there.
    pub fn set_by_name(&mut self, name: &str, word: &str) -> Result<(), String> {
        match self.position(name) {
            Some(at) => self.set(at, word, &mut String::new()),
            None => Ok(()),
        }
    }

    /// Goes through `words`; values go into the set. On an error the values that came before it stay set.
    pub fn parse(&mut self, words: &[String]) -> Result<Positional, Refused> {
        let mut found = Positional::default();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if !word.starts_with('-') || word.len() == 1 {
                found.words.push(word.clone());
            } else if word == "--" {
                found.before_dash = Some(found.words.len());
                found.words.extend(rest.by_ref().cloned());
            } else if let Some(long) = word.strip_prefix("--") {
                self.parse_long(word, long, &mut rest, &mut found.notes)?;
            } else {
                self.parse_letters(&word[1..], &mut rest, &mut found.notes)?;
            }
        }
        Ok(found)
    }

    fn parse_long<'a>(
        &mut self,
        word: &str,
        long: &str,
        rest: &mut impl Iterator<Item = &'a String>,
        notes: &mut String,
    ) -> Result<(), Refused> {
        if long.starts_with(['-', '=']) {
            return Err(Refused::Error(format!("bad flag syntax: {word}")));
        }
        let (name, given) = match long.split_once('=') {
            Some((name, given)) => (name, Some(given)),
            None => (long, None),
        };
        let Some(at) = self.position(name) else {
            return Err(match name {
                "help" => Refused::Help,
                _ => Refused::Error(format!("unknown flag: --{name}")),
            });
        };
        let value = match given {
            Some(given) => given,
            None if self.entries[at].switch() => "true",
            None => match rest.next() {
                Some(next) => next.as_str(),
                None => return Err(Refused::Error(format!("flag needs an argument: --{name}"))),
            },
        };
        self.set(at, value, notes).map_err(Refused::Error)
    }

    /// `abc` of `-abc`: switches, the last of which may take a value.
    fn parse_letters<'a>(
        &mut self,
        letters: &str,
        rest: &mut impl Iterator<Item = &'a String>,
        notes: &mut String,
    ) -> Result<(), Refused> {
        let mut letters = letters;
        // Flags of Go's test runner are passed over.
        while let Some(letter) = letters.chars().next().filter(|_| !letters.starts_with("test.")) {
            let Some(at) = self.entries.iter().position(|entry| entry.flag.short == Some(letter)) else {
                if letter == 'h' {
                    return Err(Refused::Help);
                }
                let shown = golang::quote_char(first_byte(letters));
                return Err(Refused::Error(format!("unknown shorthand flag: {shown} in -{letters}")));
            };
            let after = &letters[letter.len_utf8()..];
            let value = if let Some(given) = after.strip_prefix('=').filter(|given| !given.is_empty()) {
                letters = "";
                given
            } else if self.entries[at].switch() {
                letters = after;
                "true"
            } else if !after.is_empty() {
                letters = "";
                after
            } else {
                match rest.next() {
                    Some(next) => {
                        letters = "";
                        next.as_str()
                    }
                    None => {
                        let shown = golang::quote_char(first_byte(letters));
                        return Err(Refused::Error(format!("flag needs an argument: {shown} in -{letters}")));
                    }
                }
            };
            self.set(at, value, notes).map_err(Refused::Error)?;
        }
        Ok(())
    }

    /// Names of the required flags that were not given.
    pub fn missing(&self) -> Vec<&'static str> {
        let required = self.entries.iter().filter(|entry| entry.flag.required && !entry.changed);
        required.map(|entry| entry.flag.name).collect()
    }
}

/// pflag goes by bytes, and shows one as a character.
fn first_byte(letters: &str) -> char {
    letters.bytes().next().map_or('\0', char::from)
}

/// The lines of a help's flags: names, then what they do, in two columns.
pub(crate) fn usages<'a>(entries: impl Iterator<Item = &'a Entry>) -> String {
    let mut lines = Vec::new();
    for entry in entries.filter(|entry| !entry.hidden) {
        let flag = entry.flag;
        let mut name = match flag.short {
            Some(letter) => format!("  -{letter}, --{}", flag.name),
            None => format!("      --{}", flag.name),
        };
        let (value, mut usage) = unquote_usage(&entry.usage, flag.kind);
        if !value.is_empty() {
            name.push(' ');
            name.push_str(&value);
        }
        usage.push_str(&shown_default(&entry.default));
        lines.push((name, usage));
    }
    let widest = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, usage) in lines {
        let usage = usage.replace('\n', &format!("\n{}", " ".repeat(widest + 3)));
        text.push_str(&format!("{name:widest$}   {usage}\n"));
    }
    text
}

/// ` (default X)`, unless the default is the kind's zero.
fn shown_default(value: &Value) -> String {
    let zero = match value {
        Value::Bool(value) => !value,
        Value::Int(value) | Value::Duration(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Float(value) => *value == 0.0,
        Value::Text(value) => value.is_empty(),
        Value::List(value) => value.is_empty(),
    };
    match value {
        _ if zero => String::new(),
        Value::Text(value) => format!(" (default {})", golang::quote(value)),
        value => format!(" (default {})", value.shown()),
    }
}

/// The name of the value, which may stand in back quotes in the usage, and the usage without the quotes.
fn unquote_usage(usage: &str, kind: Kind) -> (String, String) {
    let mut parts = usage.splitn(3, '`');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(before), Some(name), Some(after)) => (name.to_owned(), format!("{before}{name}{after}")),
        _ => (kind.value_name().to_owned(), usage.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static COMMAND: Command = Command {
        usage: "get",
        flags: &[
            Flag::boolean("all", "everything").short('a'),
            Flag::boolean("both", "two").short('b'),
            Flag::int64("limit", "0", "how `many`\nat most").short('n'),
            Flag::text("order", "up", "which way"),
            Flag::list("points", "x:1,y:2", "where"),
            Flag::duration("wait", "90s", "how long").short('w'),
            Flag::float("share", "0.5", "part"),
            Flag::uint64("size", "10", "bytes").deprecated("use --limit"),
        ],
        ..Command::NEW
    };

    fn parse(words: &[&str]) -> Result<(FlagSet, Positional), Refused> {
        let mut set = FlagSet::of(&[&COMMAND], true);
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        set.parse(&words).map(|found| (set, found))
    }

    fn shown(words: &[&str]) -> String {
        match parse(words) {
            Ok((set, found)) => {
                let changed = set.entries().iter().filter(|entry| entry.changed);
                let values: Vec<String> =
                    changed.map(|entry| format!("{}={}", entry.flag.name, entry.value.shown())).collect();
                format!("{} | {:?} {:?}", values.join(" "), found.words, found.before_dash)
            }
            Err(Refused::Help) => "help".to_owned(),
            Err(Refused::Error(why)) => why,
        }
    }

    /// As pflag 1.0.10 answers.
    #[test]
    fn forms() {
        let cases: &[(&[&str], &str)] = &[
            (&["k", "--limit", "3", "e"], r#"limit=3 | ["k", "e"] None"#),
            (&["--limit=0x1f", "-ab"], r"all=true both=true limit=31 | [] None"),
            (&["-an5", "--", "-b", "k"], r#"all=true limit=5 | ["-b", "k"] Some(0)"#),
            (&["k", "--", "x"], r#" | ["k", "x"] Some(1)"#),
            (&["-n=5", "-a=false"], r"all=false limit=5 | [] None"),
            (&["-n", "-5", "-"], r#"limit=-5 | ["-"] None"#),
            (&["-w1m1.5s"], r"wait=1m1.5s | [] None"),
            (&["--points", "a,b", "--points=\"c,d\",e"], "points=[a,b,\"c,d\",e] | [] None"),
            (
                &["--all=x"],
                r#"invalid argument "x" for "-a, --all" flag: strconv.ParseBool: parsing "x": invalid syntax"#,
            ),
            (
                &["--limit", "x"],
                r#"invalid argument "x" for "-n, --limit" flag: strconv.ParseInt: parsing "x": invalid syntax"#,
            ),
            (&["--limit"], "flag needs an argument: --limit"),
            (&["-an"], "flag needs an argument: 'n' in -n"),
            (&["-azb"], "unknown shorthand flag: 'z' in -zb"),
            (&["--bad=1"], "unknown flag: --bad"),
            (&["---x"], "bad flag syntax: ---x"),
            (&["--=x"], "bad flag syntax: --=x"),
            (&["-h"], "help=true | [] None"),
            (&["-test.v", "x"], r#" | ["x"] None"#),
            (&["--wait", "5"], r#"invalid argument "5" for "-w, --wait" flag: time: missing unit in duration "5""#),
        ];
        for (words, expected) in cases {
            assert_eq!(&shown(words), expected, "{words:?}");
        }
    }

    #[test]
    fn deprecated_flags_speak() {
        let (_, found) = parse(&["--size=1"]).expect("parses");
        assert_eq!(found.notes, "Flag --size has been deprecated, use --limit\n");
    }

    #[test]
    fn lines_of_the_help() {
        let expected = "  -a, --all              everything
  -b, --both             two
  -h, --help             help for get
  -n, --limit many       how many
                         at most
      --order string     which way (default \"up\")
      --points strings   where (default [x:1,y:2])
      --share float      part (default 0.5)
  -w, --wait duration    how long (default 1m30s)
";
        assert_eq!(usages(FlagSet::of(&[&COMMAND], true).entries().iter()), expected);
    }
}
