//! From the words of a command line to a running command: what cobra's `Execute` does.

use std::process::ExitCode;

use crate::call::{Call, path_name};
use crate::command::{Args, Command};
use crate::flags::{FlagSet, Refused};
use crate::{Failure, completion, env, golang, output, words};

/// A tool: its root command and its habits.
#[derive(Clone, Copy)]
pub struct Tool {
    pub root: &'static Command,
    /// `ETCDCTL_`: variables that set persistent flags, for commands that call [`Call::environment`].
    pub env_prefix: Option<&'static str>,
    /// `ETCD_DEFRAG_`: variables that are the defaults of all flags, in the help too.
    pub env_defaults: Option<&'static str>,
    /// `etcdctl mem li` is `etcdctl member list`.
    pub prefix_matching: bool,
    pub help: Help,
    /// A line after every help, and not after the usage that follows an error.
    pub footer: &'static str,
    /// The group of the `help` command among the root's groups.
    pub help_group: &'static str,
    /// The root lists no `--help` among its flags.
    pub hide_root_help: bool,
    /// The error line comes again at the end, as etcdutl prints it.
    pub repeat_error: bool,
}

/// What a help opens with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Help {
    /// The long text, then the usage.
    Full,
    /// The usage alone.
    Usage,
}

/// What became of a command line, before anything is printed.
enum Outcome {
    Done,
    Help(Vec<&'static Command>),
    Failed(Failure),
}

impl Tool {
    /// With cobra's own habits.
    pub const fn new(root: &'static Command) -> Tool {
        Tool {
            root,
            env_prefix: None,
            env_defaults: None,
            prefix_matching: false,
            help: Help::Full,
            footer: "",
            help_group: "",
            hide_root_help: false,
            repeat_error: false,
        }
    }

    /// Parses, runs, prints. `args`: the words after the program's name, as [`crate::words::of_process`] gives them.
    pub fn main(&self, args: Vec<String>) -> ExitCode {
        ExitCode::from(self.run(&args))
    }

    /// As [`Tool::main`]; the exit code as a number.
    pub fn run(&self, args: &[String]) -> u8 {
        match self.execute(args) {
            Outcome::Done => 0,
            Outcome::Help(path) => {
                output::print(self.help_text(&path, true));
                0
            }
            Outcome::Failed(failure) => {
                output::complain(failure.lines());
                failure.code
            }
        }
    }

    fn execute(&self, args: &[String]) -> Outcome {
        let found = self.find(args);
        let path = found.path;
        let command = last(&path);
        if let Some(why) = found.unknown {
            let failure = Failure::error(&why);
            output::complain(format!("Error: {why}\nRun '{} --help' for usage.\n", path_name(&path)));
            return Outcome::Failed(self.closing(failure));
        }
        if !command.deprecated.is_empty() {
            let name = golang::quote(command.name());
            output::complain(format!("Command {name} is deprecated, {}\n", command.deprecated));
        }
        let mut set = self.set(&path, true);
        let (args, before_dash) = if command.raw {
            (found.rest, None)
        } else {
            match set.parse(&found.rest) {
                Ok(positional) => {
                    output::complain(&positional.notes);
                    (positional.words, positional.before_dash)
                }
                Err(Refused::Help) => return Outcome::Help(path),
                Err(Refused::Error(why)) => return self.refuse(&path, &why),
            }
        };
        let call = Call { tool: *self, path, called_as: found.called_as, set, args, before_dash };
        let Some(run) =
            command.run.filter(|_| !call.set.entry("help").is_some_and(|help| help.automatic && help.changed))
        else {
            return Outcome::Help(call.path);
        };
        if let Err(why) = check_args(&call) {
            return self.refuse(&call.path, &why);
        }
        let missing = call.set.missing();
        if !command.raw && !missing.is_empty() {
            return self.refuse(&call.path, &format!("required flag(s) \"{}\" not set", missing.join("\", \"")));
        }
        match run(&call) {
            Ok(()) => Outcome::Done,
            Err(Failure { usage: true, text: Some(why), .. }) => self.refuse(&call.path, &why),
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// An error that cobra itself makes: the error, the usage, exit code 1.
    fn refuse(&self, path: &[&'static Command], why: &str) -> Outcome {
        output::complain(format!("Error: {why}\n{}\n", self.usage_text(path, true)));
        Outcome::Failed(self.closing(Failure::error(why)))
    }

    /// What is left to print once cobra has printed its error.
    fn closing(&self, failure: Failure) -> Failure {
        if self.repeat_error { failure } else { Failure::silent(failure.code) }
    }

    /// The flags of the last command of `path`. `help`: cobra has added `--help` to them, as it does to the command
    /// that runs; a root whose `--help` is hidden has it from the start.
    pub(crate) fn set(&self, path: &[&'static Command], help: bool) -> FlagSet {
        let hides = path.len() == 1 && self.hide_root_help;
        let mut set = FlagSet::of(path, help || hides);
        if hides {
            set.hide_help();
        }
        if let Some(prefix) = self.env_defaults {
            env::defaults(&mut set, prefix, |name| std::env::var_os(name).map(words::from_os));
        }
        set
    }

    /// Everything below `path`, hidden commands and `help` included, in the order of their declaration.
    pub(crate) fn children(&self, path: &[&'static Command]) -> Vec<&'static Command> {
        let command = last(path);
        let mut children = command.commands.to_vec();
        if path.len() == 1 && !children.is_empty() {
            children.push(&completion::HELP);
        }
        children
    }

    /// Walks down the tree as far as the words lead.
    pub(crate) fn find(&self, args: &[String]) -> Found {
        let mut path = vec![self.root];
        let mut rest = args.to_vec();
        let mut called_as = self.root.name().to_owned();
        loop {
            // The flags as they are known before cobra adds `--help` to the command it runs.
            let set = self.set(&path, false);
            let words = without_flags(&rest, &set);
            let Some(next) = words.first() else { break };
            let Some(child) = self.find_next(&path, next) else { break };
            remove_first(&mut rest, next, &set);
            called_as = next.clone();
            path.push(child);
        }
        let command = last(&path);
        let mut unknown = None;
        if path.len() == 1 && command.args == Args::Any && !command.commands.is_empty() {
            let set = self.set(&path, false);
            if let Some(word) = without_flags(&rest, &set).first() {
                let suggestions = self.suggestions(word);
                unknown = Some(format!(
                    "unknown command {} for {}{suggestions}",
                    golang::quote(word),
                    golang::quote(command.name())
                ));
            }
        }
        Found { path, rest, called_as, unknown }
    }

    fn find_next(&self, path: &[&'static Command], word: &str) -> Option<&'static Command> {
        let mut children = self.children(path);
        if path.len() == 1 {
            children.extend(completion::hidden(self));
        }
        let named = |one: &&&'static Command| one.name() == word || one.aliases.contains(&word);
        if let Some(found) = children.iter().find(named) {
            return Some(found);
        }
        if !self.prefix_matching {
            return None;
        }
        let begins = |one: &&&'static Command| {
            one.name().starts_with(word) || one.aliases.iter().any(|alias| alias.starts_with(word))
        };
        let mut candidates = children.iter().filter(begins);
        match (candidates.next(), candidates.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
    }

    /// `Did you mean this?` and what might have been meant; empty when nothing is near.
    fn suggestions(&self, word: &str) -> String {
        let mut near = Vec::new();
        for child in self.root.commands.iter().filter(|child| child.available()) {
            let begins = child.name().to_lowercase().starts_with(&word.to_lowercase());
            if begins || distance(word, child.name()) <= 2 {
                near.push(child.name());
            }
            near.extend(
                child.suggest_for.iter().filter(|other| other.eq_ignore_ascii_case(word)).map(|_| child.name()),
            );
        }
        if near.is_empty() {
            return String::new();
        }
        let lines: String = near.iter().map(|name| format!("\t{name}\n")).collect();
        format!("\n\nDid you mean this?\n{lines}")
    }
}

/// Where a command line leads.
pub(crate) struct Found {
    pub path: Vec<&'static Command>,
    /// The words without the names that were followed.
    pub rest: Vec<String>,
    /// The last name as it was typed.
    pub called_as: String,
    /// The error for a word that is no command.
    pub unknown: Option<String>,
}

/// `path` is never empty: it begins with the root.
pub(crate) fn last(path: &[&'static Command]) -> &'static Command {
    path.last().copied().expect("a path begins with the root")
}

/// `word` is a flag whose value is the next word, as far as cobra looks before it parses.
fn takes_next(word: &str, set: &FlagSet) -> bool {
    if word.contains('=') {
        return false;
    }
    if let Some(name) = word.strip_prefix("--") {
        return !set.entry(name).is_some_and(|entry| entry.switch());
    }
    match word.strip_prefix('-') {
        Some(letter) if letter.len() == 1 => {
            !letter.chars().next().and_then(|c| set.short(c)).is_some_and(|entry| entry.switch())
        }
        _ => false,
    }
}

/// The positional words, as far as can be told before the command is known.
fn without_flags(words: &[String], set: &FlagSet) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        if word == "--" {
            break;
        }
        if takes_next(word, set) {
            if rest.len() <= 1 {
                break;
            }
            rest = &rest[1..];
        } else if !word.is_empty() && !word.starts_with('-') {
            found.push(word.clone());
        }
    }
    found
}

/// Takes the first positional `word` out.
fn remove_first(words: &mut Vec<String>, word: &str, set: &FlagSet) {
    let mut at = 0;
    while at < words.len() && words[at] != "--" {
        if takes_next(&words[at], set) {
            at += 1;
        } else if words[at] == word {
            words.remove(at);
            return;
        }
        at += 1;
    }
}

/// cobra's checks of how many words there are.
fn check_args(call: &Call) -> Result<(), String> {
    let command = call.command();
    let (count, path) = (call.args.len(), golang::quote(&call.command_path()));
    match command.args {
        Args::None if count > 0 => Err(format!("unknown command {} for {path}", golang::quote(&call.args[0]))),
        Args::Exactly(n) | Args::ExactlyValid(n) if count != n => Err(format!("accepts {n} arg(s), received {count}")),
        Args::AtLeast(n) if count < n => Err(format!("requires at least {n} arg(s), only received {count}")),
        Args::AtMost(n) if count > n => Err(format!("accepts at most {n} arg(s), received {count}")),
        Args::Between(low, high) if count < low || count > high => {
            Err(format!("accepts between {low} and {high} arg(s), received {count}"))
        }
        Args::ExactlyValid(_) => match call.args.iter().find(|word| !command.valid_args.contains(&word.as_str())) {
            Some(word) => Err(format!("invalid argument {} for {path}", golang::quote(word))),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// How many letters have to be put in, taken out or exchanged, as cobra counts it: by bytes, case aside.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_lowercase().into_bytes(), b.to_lowercase().into_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if from == to { diagonal } else { 1 + diagonal.min(above).min(row[j]) };
            diagonal = above;
        }
    }
    row[b.len()]
}
