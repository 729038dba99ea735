//! The scripts themselves, as cobra writes them. The `.txt` files beside this one are cobra's (Apache License 2.0),
//! with `@name@` and its like where the tool comes in; only the older script for bash holds the tree of commands, the
//! others ask the tool.

use crate::call::path_name;
use crate::command::{Command, Complete};
use crate::completion;
use crate::flags::{Entry, FlagSet};
use crate::tool::{Tool, last};

const BASH_BEGIN: &str = include_str!("bash-begin.txt");
const BASH_END: &str = include_str!("bash-end.txt");
const BASH2: &str = include_str!("bash2.txt");
const ZSH: &str = include_str!("zsh.txt");
const FISH: &str = include_str!("fish.txt");
const POWERSHELL: &str = include_str!("powershell.txt");

/// `descriptions`: the choices come with what they are.
fn fill(text: &str, tool: &Tool, descriptions: bool) -> String {
    let name = tool.root.name();
    text.replace("@padded@", &format!("{name:36}"))
        .replace("@name@", name)
        .replace("@var@", &name.replace(['-', ':'], "_"))
        .replace("@ask@", if descriptions { "__complete" } else { "__completeNoDesc" })
        .replace("@ENV@", &format!("{}_ACTIVE_HELP", completion::variable_prefix(name)))
}

pub(crate) fn bash2(tool: &Tool, descriptions: bool) -> String {
    fill(BASH2, tool, descriptions)
}

pub(crate) fn zsh(tool: &Tool, descriptions: bool) -> String {
    fill(ZSH, tool, descriptions)
}

pub(crate) fn fish(tool: &Tool, descriptions: bool) -> String {
    fill(FISH, tool, descriptions)
}

pub(crate) fn powershell(tool: &Tool, descriptions: bool) -> String {
    fill(POWERSHELL, tool, descriptions)
}

/// cobra's older script for bash. `running`: the path of the command that prints it, which alone knows `--help` by
/// then.
pub(crate) fn bash(tool: &Tool, running: &[&'static Command]) -> String {
    let mut text = fill(BASH_BEGIN, tool, true);
    push_command(&mut text, tool, &[tool.root], running);
    text.push_str(&fill(BASH_END, tool, true));
    text
}

/// The function of a command, after those of its children.
fn push_command(text: &mut String, tool: &Tool, path: &[&'static Command], running: &[&'static Command]) {
    let command = last(path);
    let mut children = tool.children(path);
    children.retain(|child| child.available());
    children.sort_by_key(|child| child.name());
    for child in &children {
        let path: Vec<&'static Command> = path.iter().copied().chain([*child]).collect();
        push_command(text, tool, &path, running);
    }
    let name = path_name(path).replace(' ', "_").replace(':', "__");
    let function = if path.len() == 1 { format!("{name}_root_command") } else { name.clone() };
    text.push_str(&format!(
        "_{function}()\n{{\n    last_command=\"{name}\"\n\n    command_aliases=()\n\n    commands=()\n"
    ));
    for child in &children {
        text.push_str(&format!("    commands+=(\"{}\")\n", child.name()));
        push_aliases(text, child);
    }
    text.push_str("\n    flags=()\n    two_word_flags=()\n    local_nonpersistent_flags=()\n");
    text.push_str("    flags_with_completion=()\n    flags_completion=()\n\n");
    if command.raw {
        text.push_str("    flag_parsing_disabled=1\n");
    }
    let runs = running.len() == path.len() && last(running).name() == command.name();
    let set = tool.set(path, runs);
    for entry in listed(&set, false).chain(listed(&set, true)) {
        push_flag(text, tool, entry);
    }
    text.push_str("\n    must_have_one_flag=()\n");
    for entry in listed(&set, false).filter(|entry| entry.flag.required) {
        let equals = if entry.switch() { "" } else { "=" };
        text.push_str(&format!("    must_have_one_flag+=(\"--{}{equals}\")\n", entry.flag.name));
        if let Some(letter) = entry.flag.short {
            text.push_str(&format!("    must_have_one_flag+=(\"-{letter}\")\n"));
        }
    }
    text.push_str("    must_have_one_noun=()\n");
    let mut nouns = command.valid_args.to_vec();
    nouns.sort_unstable();
    for noun in nouns {
        text.push_str(&format!("    must_have_one_noun+=(\"{noun}\")\n"));
    }
    if completion::is_help(command) {
        text.push_str("    has_completion_function=1\n");
    }
    text.push_str("    noun_aliases=()\n}\n\n");
}

fn listed(set: &FlagSet, inherited: bool) -> impl Iterator<Item = &Entry> {
    set.entries().iter().filter(move |entry| entry.inherited == inherited && !entry.hidden)
}

fn push_aliases(text: &mut String, command: &Command) {
    if command.aliases.is_empty() {
        return;
    }
    text.push_str("    if [[ -z \"${BASH_VERSION:-}\" || \"${BASH_VERSINFO[0]:-}\" -gt 3 ]]; then\n");
    let mut aliases = command.aliases.to_vec();
    aliases.sort_unstable();
    for alias in aliases {
        text.push_str(&format!("        command_aliases+=(\"{alias}\")\n"));
        text.push_str(&format!("        aliashash[\"{alias}\"]=\"{}\"\n", command.name()));
    }
    text.push_str("    fi\n");
}

fn push_flag(text: &mut String, tool: &Tool, entry: &Entry) {
    let flag = entry.flag;
    let handler = match flag.complete {
        Complete::Files => String::new(),
        Complete::Dirs => "_filedir -d".to_owned(),
        Complete::Choices(_) => format!("__{}_handle_go_custom_completion", tool.root.name()),
    };
    let handled = |name: &str| match handler.as_str() {
        "" => String::new(),
        handler => format!("    flags_with_completion+=(\"{name}\")\n    flags_completion+=(\"{handler}\")\n"),
    };
    let long = format!("--{}", flag.name);
    if entry.switch() {
        text.push_str(&format!("    flags+=(\"{long}\")\n"));
    } else {
        text.push_str(&format!("    flags+=(\"{long}=\")\n    two_word_flags+=(\"{long}\")\n"));
    }
    text.push_str(&handled(&long));
    if let Some(letter) = flag.short {
        let two = if entry.switch() { "" } else { "two_word_" };
        text.push_str(&format!("    {two}flags+=(\"-{letter}\")\n{}", handled(&format!("-{letter}"))));
    }
    if entry.inherited || entry.persistent {
        return;
    }
    text.push_str(&format!("    local_nonpersistent_flags+=(\"{long}\")\n"));
    if !entry.switch() {
        text.push_str(&format!("    local_nonpersistent_flags+=(\"{long}=\")\n"));
    }
    if let Some(letter) = flag.short {
        text.push_str(&format!("    local_nonpersistent_flags+=(\"-{letter}\")\n"));
    }
}
