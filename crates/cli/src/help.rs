//! Help and usage, laid out as cobra's templates do it.

use crate::call::path_name;
use crate::command::Command;
use crate::completion;
use crate::flags::{FlagSet, usages};
use crate::tool::{Help, Tool, last};

const NARROWEST_NAME: usize = 11;

impl Tool {
    /// The help of the last command of `path`; `flag`: `--help` is among its flags.
    pub(crate) fn help_text(&self, path: &[&'static Command], flag: bool) -> String {
        let command = last(path);
        let mut text = String::new();
        if self.help == Help::Full {
            let long = self.long(command);
            let long = long.trim_end();
            if !long.is_empty() {
                text.push_str(long);
                text.push_str("\n\n");
            }
        }
        if self.help == Help::Usage || command.run.is_some() || !self.children(path).is_empty() {
            text.push_str(&self.usage_text(path, flag));
        }
        if !self.footer.is_empty() {
            text.push_str(self.footer);
            text.push('\n');
        }
        text
    }

    fn long(&self, command: &'static Command) -> String {
        if let Some(long) = completion::long_of(self, command) {
            return long;
        }
        let long = if command.long.is_empty() { command.short } else { command.long };
        long.to_owned()
    }

    /// The usage, with its closing line feed; `flag`: `--help` is among its flags.
    pub(crate) fn usage_text(&self, path: &[&'static Command], flag: bool) -> String {
        let command = last(path);
        let name = path_name(path);
        let set = self.set(path, flag);
        let mut children = self.children(path);
        children.sort_by_key(|child| child.name());
        let listed = children.iter().any(|child| child.available() && !completion::is_help(child));

        let mut text = String::from("Usage:");
        if command.run.is_some() {
            text.push_str(&format!("\n  {}", use_line(path, &set)));
        }
        if listed {
            text.push_str(&format!("\n  {name} [command]"));
        }
        if !command.aliases.is_empty() {
            let names: Vec<&str> = std::iter::once(command.name()).chain(command.aliases.iter().copied()).collect();
            text.push_str(&format!("\n\nAliases:\n  {}", names.join(", ")));
        }
        if !command.example.is_empty() {
            text.push_str(&format!("\n\nExamples:\n{}", command.example));
        }
        if listed {
            text.push_str(&self.lists(command, &children));
        }
        for (title, inherited) in [("Flags:", false), ("Global Flags:", true)] {
            let lines = usages(set.entries().iter().filter(|entry| entry.inherited == inherited));
            if !lines.is_empty() {
                text.push_str(&format!("\n\n{title}\n{}", lines.trim_end()));
            }
        }
        if listed {
            text.push_str(&format!("\n\nUse \"{name} [command] --help\" for more information about a command."));
        }
        text.push('\n');
        text
    }

    /// The children by group.
    fn lists(&self, command: &'static Command, children: &[&'static Command]) -> String {
        let width = children.iter().map(|child| child.name().len()).max().unwrap_or(0).max(NARROWEST_NAME);
        let shown: Vec<&&'static Command> =
            children.iter().filter(|child| child.available() || child.name() == "help").collect();
        let group_of = |child: &'static Command| if completion::is_help(child) { self.help_group } else { child.group };
        let list = |title: &str, group: Option<&str>| {
            let mut text = format!("\n\n{title}");
            for child in shown.iter().filter(|child| group.is_none_or(|group| group_of(child) == group)) {
                text.push_str(&format!("\n  {:width$} {}", child.name(), child.short));
            }
            text
        };
        if command.groups.is_empty() {
            return list("Available Commands:", None);
        }
        let mut text: String = command.groups.iter().map(|(id, title)| list(title, Some(id))).collect();
        if shown.iter().any(|child| group_of(child).is_empty()) {
            text.push_str(&list("Additional Commands:", Some("")));
        }
        text
    }
}

/// `etcdctl get [options] <key> [range_end] [flags]`
fn use_line(path: &[&'static Command], set: &FlagSet) -> String {
    let command = last(path);
    let mut line = match path.split_last() {
        Some((_, above)) if !above.is_empty() => format!("{} {}", path_name(above), command.usage),
        _ => command.usage.to_owned(),
    };
    let flags = set.entries().iter().any(|entry| !entry.hidden);
    if !command.no_flags_in_usage && flags && !line.contains("[flags]") {
        line.push_str(" [flags]");
    }
    line
}
