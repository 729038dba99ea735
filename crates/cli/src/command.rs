//! The table a tool is: commands and their flags, all of it static.

use crate::flags::Value;
use crate::{Call, Failure};

/// One command, as cobra knows it.
///
/// Written with `..Command::NEW` for all that is left at its default.
pub struct Command {
    /// `get [options] <key> [range_end]`: the first word is the name.
    pub usage: &'static str,
    pub aliases: &'static [&'static str],
    /// One line, for the list in the parent's help.
    pub short: &'static str,
    /// What its own help opens with; empty: `short`.
    pub long: &'static str,
    pub example: &'static str,
    /// Id of the parent's group; empty: none.
    pub group: &'static str,
    /// Groups of its children, in the order of the help: (id, title).
    pub groups: &'static [(&'static str, &'static str)],
    /// Its own flags.
    pub flags: &'static [Flag],
    /// Flags of its own and of all below it. The global flags stand on the root.
    pub persistent: &'static [Flag],
    /// Its children, in the order in which the Go tool adds them.
    pub commands: &'static [&'static Command],
    /// `None`: a group of commands, which prints its help.
    pub run: Option<Run>,
    /// Works and is not listed.
    pub hidden: bool,
    /// Not empty: works, is not listed, and says `Command "x" is deprecated, TEXT` on stderr.
    pub deprecated: &'static str,
    /// How many positional words cobra lets through before `run` sees them.
    pub args: Args,
    /// What completion offers as the first positional word, and what [`Args::ExactlyValid`] accepts.
    pub valid_args: &'static [&'static str],
    /// Words for which this command is suggested, besides those that look like it.
    pub suggest_for: &'static [&'static str],
    /// The usage line does not end in `[flags]`.
    pub no_flags_in_usage: bool,
    /// Flags are not parsed: every word is positional.
    pub raw: bool,
}

/// What a command does.
pub type Run = fn(&Call) -> Result<(), Failure>;

/// How many positional words a command takes, checked before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Args {
    /// Any number; a root with children refuses unknown words.
    Any,
    /// None, or `unknown command "x" for "tool command"`.
    None,
    /// `accepts 1 arg(s), received 0`
    Exactly(usize),
    /// `requires at least 1 arg(s), only received 0`
    AtLeast(usize),
    /// `accepts at most 1 arg(s), received 2`
    AtMost(usize),
    /// `accepts between 1 and 2 arg(s), received 0`
    Between(usize, usize),
    /// As `Exactly`, and each one of `valid_args`, or `invalid argument "x" for "tool command"`.
    ExactlyValid(usize),
}

impl Command {
    /// A command with nothing in it, to fill the rest of a literal.
    pub const NEW: Command = Command {
        usage: "",
        aliases: &[],
        short: "",
        long: "",
        example: "",
        group: "",
        groups: &[],
        flags: &[],
        persistent: &[],
        commands: &[],
        run: None,
        hidden: false,
        deprecated: "",
        args: Args::Any,
        valid_args: &[],
        suggest_for: &[],
        no_flags_in_usage: false,
        raw: false,
    };

    /// The first word of `usage`.
    pub fn name(&self) -> &'static str {
        self.usage.split(' ').next().unwrap_or_default()
    }

    /// Whether it is listed: it, or something below it, does something, and it is neither hidden nor deprecated.
    pub(crate) fn available(&self) -> bool {
        self.deprecated.is_empty()
            && !self.hidden
            && (self.run.is_some() || self.commands.iter().any(|child| child.available()))
    }

    /// Mistakes in this table and below it, one sentence each; for a unit test of the tool.
    pub fn faults(&'static self) -> Vec<String> {
        let mut faults = Vec::new();
        self.collect_faults(&mut Vec::new(), &mut faults);
        faults
    }

    fn collect_faults(&'static self, above: &mut Vec<&'static Command>, faults: &mut Vec<String>) {
        let name = self.name();
        if name.is_empty() {
            faults.push("a command without a name".to_owned());
        }
        if let Some(parent) = above.last()
            && !self.group.is_empty()
            && !parent.groups.iter().any(|(id, _)| *id == self.group)
        {
            faults.push(format!("{name}: group {:?} is not one of its parent's", self.group));
        }
        above.push(self);
        let flags: Vec<&Flag> = above.iter().flat_map(|one| one.persistent).chain(self.flags).collect();
        for (at, flag) in flags.iter().enumerate() {
            let earlier = &flags[..at];
            if earlier.iter().any(|other| other.name == flag.name) {
                faults.push(format!("{name}: --{} is declared twice", flag.name));
            }
            if flag.short.is_some() && earlier.iter().any(|other| other.short == flag.short) {
                faults.push(format!("{name}: the letter of --{} is taken", flag.name));
            }
            if let Err(why) = Value::parse(flag.kind, flag.default) {
                faults.push(format!("{name}: default of --{}: {why}", flag.name));
            }
        }
        for (at, child) in self.commands.iter().enumerate() {
            if self.commands[..at].iter().any(|other| other.name() == child.name()) {
                faults.push(format!("{name}: {} is declared twice", child.name()));
            }
            child.collect_faults(above, faults);
        }
        above.pop();
    }
}

/// What a flag holds, and how pflag parses and names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--x`, `--x=false`
    Bool,
    /// A number in decimal, `0x1f`, `0o17` or `0b1`.
    Int,
    /// As `Int`; pflag knows both, and prints both as `int`.
    Int64,
    Uint64,
    Float64,
    Text,
    /// `1h2m3.5s`
    Duration,
    /// Words parted by commas, quoted as in CSV; each further use of the flag adds to it.
    List,
}

/// What a shell offers behind a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complete {
    /// Names of files.
    Files,
    /// Names of folders.
    Dirs,
    /// These words.
    Choices(&'static [&'static str]),
}

/// One flag. Made by the constructors, refined by `short`, `hidden`, `required`, ...
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub kind: Kind,
    /// As it would be typed: `5s`, `127.0.0.1:2379,[::1]:2379`; help prints it as Go would.
    pub default: &'static str,
    /// A word in back quotes becomes the name of the value in the help.
    pub usage: &'static str,
    pub hidden: bool,
    /// `required flag(s) "data-dir" not set`
    pub required: bool,
    /// Not empty: hidden, and `Flag --x has been deprecated, TEXT` on stderr.
    pub deprecated: &'static str,
    pub complete: Complete,
}

impl Flag {
    /// A flag of any kind.
    pub const fn new(name: &'static str, kind: Kind, default: &'static str, usage: &'static str) -> Flag {
        let (hidden, required) = (false, false);
        Flag { name, short: None, kind, default, usage, hidden, required, deprecated: "", complete: Complete::Files }
    }

    /// A flag that is false until given.
    pub const fn boolean(name: &'static str, usage: &'static str) -> Flag {
        Flag::new(name, Kind::Bool, "false", usage)
    }

    pub const fn int(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
        Flag::new(name, Kind::Int, default, usage)
    }

    pub const fn int64(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
        Flag::new(name, Kind::Int64, default, usage)
    }

    pub const fn uint64(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
        Flag::new(name, Kind::Uint64, default, usage)
    }

    pub const fn float(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
        Flag::new(name, Kind::Float64, default, usage)
    }

    pub const fn text(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
        Flag::new(name, Kind::Text, default, usage)
    }

    pub const fn duration(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
        Flag::new(name, Kind::Duration, default, usage)
    }

    pub const fn list(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
        Flag::new(name, Kind::List, default, usage)
    }

    /// With a letter: `-w`.
    pub const fn short(mut self, letter: char) -> Flag {
        self.short = Some(letter);
        self
    }

    /// With another default; for a boolean that is true.
    pub const fn default(mut self, default: &'static str) -> Flag {
        self.default = default;
        self
    }

    pub const fn hidden(mut self) -> Flag {
        self.hidden = true;
        self
    }

    pub const fn required(mut self) -> Flag {
        self.required = true;
        self
    }

    pub const fn deprecated(mut self, text: &'static str) -> Flag {
        self.deprecated = text;
        self
    }

    /// Names a folder.
    pub const fn dir(mut self) -> Flag {
        self.complete = Complete::Dirs;
        self
    }

    /// Completes to these words; others are not refused by the parser.
    pub const fn choices(mut self, words: &'static [&'static str]) -> Flag {
        self.complete = Complete::Choices(words);
        self
    }
}
