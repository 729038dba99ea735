//! What the shells ask: the `help`, `__complete` and `completion` commands.
//!
//! A completion script calls `tool __complete WORDS...` at each press of the tab key; the last word is the one being
//! typed. The answer is one choice a line, perhaps with a tab and a description, then `:N`, in which each bit tells the
//! shell something.

mod scripts;

use crate::command::{Args, Command, Complete, Flag};
use crate::flags::{Entry, FlagSet, Refused};
use crate::tool::{Found, Tool, last};
use crate::{Call, Failure, golang, output};

/// `help [command]`; its long text names the tool, see [`long_of`].
pub(crate) static HELP: Command =
    Command { usage: "help [command]", short: "Help about any command", run: Some(run_help), ..Command::NEW };

static COMPLETE: Command = Command {
    usage: "__complete [command-line]",
    aliases: &["__completeNoDesc"],
    short: "Request shell completion choices for the specified command-line",
    long: "__complete is a special command that is used by the shell completion logic\nto request completion choices for the \
           specified command-line.",
    args: Args::AtLeast(1),
    no_flags_in_usage: true,
    hidden: true,
    raw: true,
    run: Some(run_complete),
    ..Command::NEW
};

/// The shells, for the `valid_args` of a `completion` command.
pub const SHELLS: &[&str] = &["bash", "zsh", "fish", "powershell"];

/// What a declared `completion [bash|zsh|fish|powershell]` runs: prints the script for the shell in its one argument.
///
/// # Errors
/// None; words that are no shell print nothing, as the declaration's [`Args::ExactlyValid`] refuses them before.
pub fn run(call: &Call) -> Result<(), Failure> {
    let tool = &call.tool;
    let script = match call.args().first().map(String::as_str) {
        Some("bash") => scripts::bash(tool, &call.path),
        Some("zsh") => scripts::zsh(tool, true),
        Some("fish") => scripts::fish(tool, true),
        Some("powershell") => scripts::powershell(tool, true),
        _ => String::new(),
    };
    output::print(script);
    Ok(())
}

pub(crate) fn is_help(command: &'static Command) -> bool {
    std::ptr::eq(command, &HELP)
}

/// Long texts that name the tool.
pub(crate) fn long_of(tool: &Tool, command: &'static Command) -> Option<String> {
    let name = tool.root.name();
    if is_help(command) {
        let long = "Help provides help for any command in the application.\nSimply type";
        return Some(format!("{long} {name} help [path to command] for full details."));
    }
    is_own_completion(command).then(|| command.long.replace("@name@", name))
}

/// cobra's own `completion`, or a shell below it.
fn is_own_completion(command: &'static Command) -> bool {
    std::ptr::eq(command, &COMPLETION) || COMPLETION.commands.iter().any(|one| std::ptr::eq(*one, command))
}

/// Commands of the root that exist only when they are called.
pub(crate) fn hidden(tool: &Tool) -> Vec<&'static Command> {
    // A root that has commands of its own declares its completion.
    if tool.root.commands.is_empty() { vec![&COMPLETE, &COMPLETION] } else { vec![&COMPLETE] }
}

/// `ETCD_DEFRAG` of `etcd-defrag`.
pub(crate) fn variable_prefix(name: &str) -> String {
    name.to_uppercase().replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "_")
}

/// cobra's own `completion`, which a tool without commands gets when it is asked for.
static COMPLETION: Command = Command {
    usage: "completion",
    short: "Generate the autocompletion script for the specified shell",
    long: "Generate the autocompletion script for @name@ for the specified shell.\nSee each sub-command's help for details on how to \
           use the generated script.\n",
    args: Args::None,
    commands: &[
        &Command {
            usage: "bash",
            short: "Generate the autocompletion script for bash",
            long: include_str!("completion/help-bash.txt"),
            no_flags_in_usage: true,
            run: Some(|call| print_script(call, scripts::bash2)),
            ..SHELL
        },
        &Command {
            usage: "zsh",
            short: "Generate the autocompletion script for zsh",
            long: include_str!("completion/help-zsh.txt"),
            run: Some(|call| print_script(call, scripts::zsh)),
            ..SHELL
        },
        &Command {
            usage: "fish",
            short: "Generate the autocompletion script for fish",
            long: include_str!("completion/help-fish.txt"),
            run: Some(|call| print_script(call, scripts::fish)),
            ..SHELL
        },
        &Command {
            usage: "powershell",
            short: "Generate the autocompletion script for powershell",
            long: include_str!("completion/help-powershell.txt"),
            run: Some(|call| print_script(call, scripts::powershell)),
            ..SHELL
        },
    ],
    ..Command::NEW
};

const SHELL: Command = Command {
    args: Args::None,
    flags: &[Flag::boolean("no-descriptions", "disable completion descriptions")],
    ..Command::NEW
};

fn print_script(call: &Call, script: fn(&Tool, bool) -> String) -> Result<(), Failure> {
    output::print(script(&call.tool, !call.boolean("no-descriptions")));
    Ok(())
}

fn run_help(call: &Call) -> Result<(), Failure> {
    let tool = &call.tool;
    let Found { path, unknown, .. } = tool.find(call.args());
    if unknown.is_none() {
        output::print(tool.help_text(&path, true));
        return Ok(());
    }
    let words: Vec<String> = call.args().iter().map(|word| golang::quote_raw(word)).collect();
    let usage = tool.usage_text(&[tool.root], false);
    output::complain(format!("Unknown help topic [{}]\n{usage}", words.join(" ")));
    Ok(())
}

/// What the shell is told besides the choices; the sum goes after the colon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directive {
    Default,
    NoFiles,
    Dirs,
}

impl Directive {
    fn number(self) -> u8 {
        match self {
            Directive::Default => 0,
            Directive::NoFiles => 4,
            Directive::Dirs => 16,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Directive::Default => "ShellCompDirectiveDefault",
            Directive::NoFiles => "ShellCompDirectiveNoFileComp",
            Directive::Dirs => "ShellCompDirectiveFilterDirs",
        }
    }
}

fn run_complete(call: &Call) -> Result<(), Failure> {
    let answer = choices(&call.tool, call.args());
    if let Some(why) = answer.error {
        output::complain(format!("[Debug] [Error] {why}\n"));
    }
    let prefix = variable_prefix(call.tool.root.name());
    let setting = [prefix.as_str(), "COBRA"].iter().find_map(|prefix| {
        std::env::var(format!("{prefix}_COMPLETION_DESCRIPTIONS")).ok().filter(|value| !value.is_empty())
    });
    let unwanted = setting.is_some_and(|value| golang::parse_bool(&value) == Ok(false));
    let plain = unwanted || call.called_as == "__completeNoDesc";
    let mut out = String::new();
    for choice in &answer.choices {
        let choice = if plain { choice.split('\t').next().unwrap_or_default() } else { choice };
        out.push_str(choice.split('\n').next().unwrap_or_default().trim());
        out.push('\n');
    }
    output::print(format!("{out}:{}\n", answer.directive.number()));
    output::complain(format!("Completion ended with directive: {}\n", answer.directive.name()));
    Ok(())
}

struct Answer {
    choices: Vec<String>,
    directive: Directive,
    error: Option<String>,
}

impl Answer {
    fn of(choices: Vec<String>, directive: Directive) -> Answer {
        Answer { choices, directive, error: None }
    }

    fn error(why: String) -> Answer {
        Answer { choices: Vec::new(), directive: Directive::Default, error: Some(why) }
    }
}

/// What could stand in place of the last of `words`.
fn choices(tool: &Tool, words: &[String]) -> Answer {
    let Some((typed, before)) = words.split_last() else { return Answer::of(Vec::new(), Directive::Default) };
    let Found { path, rest, unknown, .. } = tool.find(before);
    if unknown.is_some() {
        return Answer::error(format!("unable to find a command for arguments: [{}]", before.join(" ")));
    }
    let command = last(&path);
    let mut set = tool.set(&path, true);
    let asked = which_flag(&set, &rest, typed);
    // Behind `--` nothing is a flag any more: one more `--` is then a word.
    let counted = |words: &[String]| match set.clone().parse(words) {
        Ok(found) => found.words.len(),
        Err(_) => 0,
    };
    let mut extended = asked.rest.clone();
    extended.push("--".to_owned());
    let with_dash = counted(&extended);
    let positional = match set.parse(&asked.rest) {
        Ok(found) => found.words,
        Err(Refused::Help) => return Answer::of(Vec::new(), Directive::NoFiles),
        Err(Refused::Error(why)) => {
            return Answer::error(format!("Error while parsing flags from args [{}]: {why}", asked.rest.join(" ")));
        }
    };
    let flags_possible = with_dash <= positional.len();
    if asked.unknown.is_some() && flags_possible {
        let name = asked.unknown.unwrap_or_default();
        return Answer::error(format!("Subcommand '{}' does not support flag '{name}'", command.name()));
    }
    if set.entry("help").is_some_and(|help| help.automatic && help.changed) {
        return Answer::of(Vec::new(), Directive::NoFiles);
    }
    if let Some(flag) = asked.flag.filter(|_| flags_possible) {
        return match flag.complete {
            Complete::Dirs => Answer::of(Vec::new(), Directive::Dirs),
            Complete::Choices(words) => {
                Answer::of(words.iter().map(|word| (*word).to_owned()).collect(), Directive::Default)
            }
            Complete::Files => Answer::of(Vec::new(), Directive::Default),
        };
    }
    if asked.flag.is_none() && typed.starts_with('-') && !typed.contains('=') && flags_possible {
        let mut found = flag_names(&set, typed, |entry| entry.flag.required && !entry.changed);
        if found.is_empty() {
            found = flag_names(&set, typed, |entry| !entry.changed || entry.flag.kind == crate::Kind::List);
        }
        return Answer::of(found, Directive::NoFiles);
    }
    words_for(tool, &path, &set, &positional, &asked.typed)
}

/// Commands, required flags and fixed arguments that begin with `typed`.
fn words_for(tool: &Tool, path: &[&'static Command], set: &FlagSet, positional: &[String], typed: &str) -> Answer {
    let command = last(path);
    let mut directive = Directive::Default;
    let mut found = Vec::new();
    let own_flag_given = set.entries().iter().any(|entry| !entry.inherited && !entry.persistent && entry.changed);
    let mut children = tool.children(path);
    children.sort_by_key(|child| child.name());
    children.retain(|child| child.available());
    if positional.is_empty() && !own_flag_given {
        for child in children {
            directive = Directive::NoFiles;
            if child.name().starts_with(typed) {
                found.push(format!("{}\t{}", child.name(), child.short));
            }
        }
    }
    found.extend(flag_names(set, typed, |entry| entry.flag.required && !entry.changed));
    if !command.valid_args.is_empty() {
        if positional.is_empty() {
            directive = Directive::NoFiles;
            found.extend(
                command.valid_args.iter().filter(|word| word.starts_with(typed)).map(|word| (*word).to_owned()),
            );
        }
        return Answer::of(found, directive);
    }
    if is_own_completion(command) {
        directive = Directive::NoFiles;
    }
    if is_help(command) {
        let below = tool.find(positional);
        directive = Directive::NoFiles;
        if below.unknown.is_none() {
            let mut children = tool.children(&below.path);
            children.sort_by_key(|child| child.name());
            let fitting = children.iter().filter(|child| child.available() && child.name().starts_with(typed));
            found.extend(fitting.map(|child| format!("{}\t{}", child.name(), child.short)));
        }
    }
    Answer::of(found, directive)
}

/// Names and letters of flags that begin with `typed`: those from above first.
fn flag_names(set: &FlagSet, typed: &str, wanted: impl Fn(&Entry) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for inherited in [true, false] {
        for entry in set.entries().iter().filter(|entry| entry.inherited == inherited && !entry.hidden && wanted(entry))
        {
            let name = format!("--{}", entry.flag.name);
            if name.starts_with(typed) {
                found.push(format!("{name}\t{}", entry.usage));
            }
            if let Some(letter) =
                entry.flag.short.map(|letter| format!("-{letter}")).filter(|name| name.starts_with(typed))
            {
                found.push(format!("{letter}\t{}", entry.usage));
            }
        }
    }
    found
}

/// What is being typed: perhaps the value of a flag.
struct Asked {
    flag: Option<&'static Flag>,
    /// The words to parse: without the flag whose value is being typed.
    rest: Vec<String>,
    typed: String,
    /// A flag that does not exist.
    unknown: Option<String>,
}

fn which_flag(set: &FlagSet, rest: &[String], typed: &str) -> Asked {
    let asked = |flag, rest: &[String], typed: &str| Asked {
        flag,
        rest: rest.to_vec(),
        typed: typed.to_owned(),
        unknown: None,
    };
    let flag_word = |word: &str| {
        (word.len() >= 3 && word.starts_with("--"))
            || (word.len() >= 2 && word.starts_with('-') && !word.starts_with("--"))
    };
    let (name, value, shorter, with_equals) = if typed.starts_with('-') {
        let Some((name, value)) = typed.split_once('=') else { return asked(None, rest, typed) };
        let name = name.strip_prefix("--").unwrap_or_else(|| last_letter(name));
        (name, value, rest, true)
    } else {
        match rest.split_last().filter(|(word, _)| flag_word(word) && !word.contains('=')) {
            Some((word, shorter)) => {
                (word.strip_prefix("--").unwrap_or_else(|| last_letter(word)), typed, shorter, false)
            }
            None => return asked(None, rest, typed),
        }
    };
    if name.is_empty() {
        return asked(None, shorter, value);
    }
    let mut letters = name.chars();
    let entry = match (letters.next(), letters.next()) {
        (Some(letter), None) => set.short(letter),
        _ => set.entry(name),
    };
    match entry {
        None => Asked { unknown: Some(name.to_owned()), ..asked(None, rest, typed) },
        Some(entry) if !with_equals && entry.switch() => asked(None, rest, value),
        Some(entry) => asked(Some(entry.flag), shorter, value),
    }
}

fn last_letter(word: &str) -> &str {
    word.char_indices().next_back().map_or("", |(at, _)| &word[at..])
}
