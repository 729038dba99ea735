//! A parsed command line, as a command's `run` gets it.

use crate::command::Command;
use crate::env;
use crate::flags::{FlagSet, Refused, Value};
use crate::{Failure, Tool, words};

/// A parsed command line.
///
/// Getters by name answer the kind's zero for a flag that was never declared or is of another kind: tests of the tools
/// ask [`Command::faults`] and run every command, so that such a mistake of ours does not last.
#[derive(Clone)]
pub struct Call {
    pub(crate) tool: Tool,
    pub(crate) path: Vec<&'static Command>,
    pub(crate) called_as: String,
    pub(crate) set: FlagSet,
    pub(crate) args: Vec<String>,
    pub(crate) before_dash: Option<usize>,
}

impl Call {
    /// Positional words.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// The bytes of positional word `at`, exactly as typed; empty when there is none.
    pub fn arg_bytes(&self, at: usize) -> Vec<u8> {
        self.args.get(at).map(|word| words::bytes(word)).unwrap_or_default()
    }

    /// How many positional words stood before `--`; `None` without one.
    pub fn args_before_dash(&self) -> Option<usize> {
        self.before_dash
    }

    fn value(&self, name: &str) -> Option<&Value> {
        let entry = self.set.entry(name);
        debug_assert!(entry.is_some(), "flag --{name} is not declared");
        entry.map(|entry| &entry.value)
    }

    pub fn boolean(&self, name: &str) -> bool {
        matches!(self.value(name), Some(Value::Bool(true)))
    }

    pub fn text(&self, name: &str) -> &str {
        match self.value(name) {
            Some(Value::Text(value)) => value,
            _ => "",
        }
    }

    /// The bytes of a text flag, exactly as typed.
    pub fn text_bytes(&self, name: &str) -> Vec<u8> {
        words::bytes(self.text(name))
    }

    pub fn int(&self, name: &str) -> i64 {
        match self.value(name) {
            Some(Value::Int(value)) => *value,
            _ => 0,
        }
    }

    pub fn uint(&self, name: &str) -> u64 {
        match self.value(name) {
            Some(Value::Uint(value)) => *value,
            _ => 0,
        }
    }

    pub fn float(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(Value::Float(value)) => *value,
            _ => 0.0,
        }
    }

    /// Nanoseconds; may be negative, as Go's may.
    pub fn duration(&self, name: &str) -> i64 {
        match self.value(name) {
            Some(Value::Duration(value)) => *value,
            _ => 0,
        }
    }

    pub fn list(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            Some(Value::List(value)) => value.clone(),
            _ => Vec::new(),
        }
    }

    /// Given on the command line, or set from the environment.
    pub fn changed(&self, name: &str) -> bool {
        self.set.entry(name).is_some_and(|entry| entry.changed)
    }

    /// `etcdctl lease grant`
    pub fn command_path(&self) -> String {
        path_name(&self.path)
    }

    /// The command that runs.
    pub fn command(&self) -> &'static Command {
        self.path.last().copied().unwrap_or(self.tool.root)
    }

    /// The tool's root command.
    pub fn root(&self) -> &'static Command {
        self.tool.root
    }

    /// The help of the command that runs, as `-h` prints it.
    pub fn help(&self) -> String {
        self.tool.help_text(&self.path, true)
    }

    /// Names and values of the flags declared above this command, sorted by name, spelled as Go prints them.
    pub fn inherited(&self) -> Vec<(&'static str, String)> {
        let inherited = self.set.entries().iter().filter(|entry| entry.inherited);
        inherited.map(|entry| (entry.flag.name, entry.value.shown())).collect()
    }

    /// Lines about the tool's persistent flags, hidden or not, as `etcdctl options` prints them.
    pub fn global_usages(&self) -> String {
        let mut entries = self.tool.set(&[self.tool.root], false).entries().to_vec();
        entries.retain(|entry| entry.persistent);
        entries.iter_mut().for_each(|entry| entry.hidden = false);
        crate::flags::usages(entries.iter())
    }

    /// This call with the environment applied to the flags declared above the command, as etcdctl does it before it
    /// connects: a variable sets a flag that was not given; values that don't parse are passed over.
    ///
    /// Warns on stderr about variables with the tool's prefix that are no flag's. `silent`: names of flags whose
    /// variables are known though no such flags exist (`watch-key`).
    /// # Errors
    /// A variable and its flag are both given; said on stderr, exit code 1.
    pub fn environment(&self, silent: &[&str]) -> Result<Call, Failure> {
        let mut call = self.clone();
        if let Some(prefix) = self.tool.env_prefix {
            env::apply(&mut call.set, prefix, silent, std::env::vars_os())?;
        }
        Ok(call)
    }
}

/// The names from the root down.
pub(crate) fn path_name(path: &[&'static Command]) -> String {
    path.iter().map(|one| one.name()).collect::<Vec<_>>().join(" ")
}

/// Parses words against one command's flags alone, without running it: lines of `txn` and of an interactive `watch`.
///
/// # Errors
/// pflag's text; `pflag: help requested` for `-h` and `--help`.
pub fn parse(command: &'static Command, words: &[String]) -> Result<Call, String> {
    let mut set = FlagSet::of(&[command], false);
    match set.parse(words) {
        Ok(found) => Ok(Call {
            tool: Tool::new(command),
            path: vec![command],
            called_as: command.name().to_owned(),
            set,
            args: found.words,
            before_dash: found.before_dash,
        }),
        Err(Refused::Help) => Err("pflag: help requested".to_owned()),
        Err(Refused::Error(why)) => Err(why),
    }
}
