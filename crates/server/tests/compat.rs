//! docs/compat.md names every command of the tools and every flag.

use dolmen_cli::Command;

const COMPAT: &str = include_str!("../../../docs/compat.md");

/// Of `etcdctl` and `etcdutl`, which one's section.
fn section(tool: &str) -> &'static str {
    let (_, rest) = COMPAT.split_once(&format!("\n## {tool}\n")).expect("a section for each tool");
    rest.split_once("\n## ").map_or(rest, |(section, _)| section)
}

/// Names of commands with their parents', and the flags each has of its own.
fn leaves(command: &'static Command, path: &str, found: &mut Vec<(String, Vec<&'static str>)>) {
    for child in command.commands.iter().filter(|child| !child.hidden) {
        let name = child.usage.split(' ').next().unwrap_or_default();
        let path = if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
        let flags = child.flags.iter().chain(child.persistent).filter(|flag| !flag.hidden).map(|flag| flag.name);
        let flags: Vec<&str> = flags.collect();
        if child.commands.is_empty() || !flags.is_empty() {
            found.push((path.clone(), flags));
        }
        leaves(child, &path, found);
    }
}

#[test]
fn every_command_and_flag_of_the_tools_is_listed() {
    let mut missing = Vec::new();
    for (tool, root) in [("etcdctl", &dolmen_ctl::tool::ROOT), ("etcdutl", &dolmen_utl::ROOT)] {
        let text = section(tool);
        let mut commands = Vec::new();
        leaves(root, "", &mut commands);
        assert!(commands.len() > 5, "{tool} has commands");
        for (command, flags) in commands {
            // One row stands for all shells.
            if command.starts_with("completion ") {
                continue;
            }
            // Those of bbolt share a row, and have the flags of the bbolt command.
            let of_bbolt = command.strip_prefix("bbolt ");
            if !text.contains(&format!("`{}`", of_bbolt.unwrap_or(&command))) {
                missing.push(format!("{tool} {command}"));
            }
            let lost = flags.iter().filter(|flag| of_bbolt.is_none() && !text.contains(&format!("`--{flag}`")));
            missing.extend(lost.map(|flag| format!("{tool} {command} --{flag}")));
        }
        let lost = root.persistent.iter().filter(|flag| !text.contains(&format!("`--{}`", flag.name)));
        missing.extend(lost.map(|flag| format!("{tool} --{}", flag.name)));
    }
    assert!(missing.is_empty(), "docs/compat.md lacks: {missing:#?}");
}
