//! `cargo xtask tidy`: what the compiler does not check. Reads the repository; builds nothing.
//!
//! * Arrows: a crate depends on no crate that [`CRATES`] does not allow it.
//! * The core stays synchronous: no runtime, no clock, no file system but through `env`.
//! * No unsafe code in the core outside `env`; no leftovers; no line too wide; no path of somebody's machine.
//! * A metric is written by somebody, and a flag read.
//! * Living documents: every call and flag is in docs/compat.md, every crate in ARCHITECTURE.md, and each file these name exists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::run::{self, Result};

/// A crate of ours.
struct Crate {
    name: &'static str,
    /// Core: a pure, synchronous library, driven by the edge or by the simulator.
    core: bool,
    /// The crates of ours it may name in `[dependencies]`.
    may_use: &'static [&'static str],
}

const fn core(name: &'static str, may_use: &'static [&'static str]) -> Crate {
    Crate { name, core: true, may_use }
}

const fn edge(name: &'static str, may_use: &'static [&'static str]) -> Crate {
    Crate { name, core: false, may_use }
}

/// Every crate, lower ones first: an arrow always points up this list.
const CRATES: &[Crate] = &[
    core("types", &[]),
    edge("proto", &[]),
    core("env", &["types"]),
    core("bolt", &[]),
    core("raft", &["types", "proto"]),
    core("wal", &["types", "env", "proto"]),
    core("revlog", &["types", "env"]),
    core("mvcc", &["types", "revlog", "bolt"]),
    core("lease", &["types", "env", "proto"]),
    core("auth", &["types", "env", "proto"]),
    core("watch", &["types", "env"]),
    core("machine", &["types", "env", "proto", "bolt", "revlog", "mvcc", "lease", "auth"]),
    core(
        "node",
        &["types", "env", "proto", "bolt", "raft", "wal", "revlog", "mvcc", "lease", "auth", "watch", "machine"],
    ),
    edge("tls", &[]),
    edge("net", &["tls"]),
    edge("transport", &["types", "env", "proto", "bolt", "node", "tls", "net"]),
    edge("http2", &[]),
    edge(
        "api",
        &[
            "types", "env", "proto", "bolt", "revlog", "mvcc", "lease", "auth", "watch", "machine", "node", "tls",
            "net", "http2",
        ],
    ),
    edge("cli", &[]),
    edge("client", &["proto", "tls"]),
    edge("ctl", &["proto", "cli", "client"]),
    edge("datadir", &["types", "env", "proto", "bolt", "raft", "wal", "revlog", "mvcc", "lease", "machine", "node"]),
    edge("utl", &["types", "env", "proto", "bolt", "wal", "mvcc", "cli", "datadir"]),
    edge(
        "server",
        &[
            "types",
            "env",
            "proto",
            "wal",
            "revlog",
            "mvcc",
            "lease",
            "watch",
            "machine",
            "node",
            "net",
            "transport",
            "api",
            "cli",
            "ctl",
            "datadir",
            "utl",
        ],
    ),
    edge("load", &["proto"]),
    edge(
        "sim",
        &["types", "env", "proto", "bolt", "raft", "wal", "revlog", "mvcc", "lease", "watch", "machine", "node"],
    ),
];

/// What a core crate must not depend on, in builds or in tests.
const NOT_IN_CORE: &[&str] = &["tokio", "tonic", "hyper", "hyper-util", "futures", "async-trait", "rand", "tracing"];

/// What the sources of a core crate must not call; `clippy.toml` says why.
const NOT_CALLED_IN_CORE: &[&str] = &[
    "SystemTime::now",
    "Instant::now",
    "thread::sleep",
    "std::fs::read",
    "std::fs::write",
    "std::fs::remove",
    "std::fs::create_dir",
    "std::fs::rename",
    "fs::File::open",
    "fs::File::create",
    "fs::OpenOptions",
];

/// Code is formatted to 120; comments may reach this.
const WIDEST: usize = 127;

const SKIPPED: &[&str] = &[".git", "target", "gen", "node_modules"];

pub fn run(arguments: &[String]) -> Result {
    if let Some(unknown) = arguments.first() {
        return Err(format!("unknown argument {unknown}"));
    }
    let root = run::root();
    let mut faults = arrows(&root)?;
    faults.extend(documents(&root)?);
    let mut files = Vec::new();
    walk(&root, &mut files);
    files.sort();
    faults.extend(unused(&root, &files)?);
    for path in &files {
        let relative = path.strip_prefix(&root).unwrap_or(path);
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        faults.extend(source(relative, &text));
    }
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() {
        println!("{} files, {} crates: tidy", files.len(), CRATES.len());
        Ok(())
    } else {
        Err(format!("{} faults, listed above", faults.len()))
    }
}

/// Text files that people write.
fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                walk(&path, found);
            }
        } else if ["rs", "md", "toml", "go", "proto"].iter().any(|end| name.ends_with(&format!(".{end}")))
            || dir.file_name().is_some_and(|name| name == ".ci")
        {
            found.push(path);
        }
    }
}

// ---- arrows ----

fn arrows(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let known: BTreeMap<&str, &Crate> = CRATES.iter().map(|one| (one.name, one)).collect();
    let entries = std::fs::read_dir(root.join("crates")).map_err(|error| error.to_string())?;
    let mut folders: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    folders.sort();
    for folder in &folders {
        let Some(one) = known.get(folder.as_str()) else {
            faults.push(format!("crates/{folder}: not in the table of xtask/src/tidy.rs; say what it may use"));
            continue;
        };
        let manifest = run::read(&root.join("crates").join(folder).join("Cargo.toml"))?;
        faults.extend(crate_faults(one, &manifest));
        if one.core && one.name != "env" {
            let library = run::read(&root.join("crates").join(folder).join("src/lib.rs"))?;
            if !library.contains("#![forbid(unsafe_code)]") {
                faults.push(format!("crates/{folder}/src/lib.rs: a core crate says #![forbid(unsafe_code)]"));
            }
        }
    }
    for one in CRATES.iter().filter(|one| !folders.iter().any(|folder| folder == one.name)) {
        faults.push(format!("crates/{}: in the table of xtask/src/tidy.rs, and not there", one.name));
    }
    Ok(faults)
}

fn crate_faults(one: &Crate, manifest: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (section, dependency) in dependencies(manifest) {
        let at = format!("crates/{}/Cargo.toml [{section}]", one.name);
        if one.core && NOT_IN_CORE.contains(&dependency.as_str()) {
            faults.push(format!("{at}: {dependency} in a core crate, which is synchronous and seeded"));
        }
        let Some(ours) = dependency.strip_prefix("dolmen-") else { continue };
        // Tests may reach anywhere that does not reach back; cargo refuses what does in builds.
        if section == "dependencies" && !one.may_use.contains(&ours) {
            faults.push(format!("{at}: no arrow leads from {} to {ours}", one.name));
        }
    }
    faults
}

/// (section, name) of every dependency. Reads the subset of TOML that manifests here use: one dependency a line.
fn dependencies(manifest: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut section = String::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = header.trim_matches(['[', ']']).to_owned();
            // `[dependencies.name]` is a dependency by itself.
            if let Some((kind, name)) = section.rsplit_once("dependencies.") {
                found.push((format!("{kind}dependencies"), name.to_owned()));
            }
            continue;
        }
        if !section.ends_with("dependencies") || line.starts_with('#') {
            continue;
        }
        let name: String = line.chars().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
        if !name.is_empty() && line.contains('=') {
            found.push((section.clone(), name));
        }
    }
    found
}

// ---- documents ----

fn documents(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let compat = run::read(&root.join("docs/compat.md"))?;
    let methods = run::read(&root.join("crates/api/src/methods.rs"))?;
    let methods: Vec<&str> = methods.lines().filter_map(method).collect();
    if methods.is_empty() {
        faults.push("crates/api/src/methods.rs: its table has another form than xtask/src/tidy.rs reads".into());
    }
    for name in methods {
        if !compat.contains(&format!("`{name}`")) {
            faults.push(format!("docs/compat.md: call {name} is missing"));
        }
    }
    let flags = run::read(&root.join("crates/server/src/flags.rs"))?;
    let table = flags.split_once("pub const FLAGS").map_or("", |(_, rest)| rest);
    let table = table.split_once("];").map_or("", |(table, _)| table);
    for name in flag_names(table) {
        if !compat.contains(&format!("`--{name}`")) {
            faults.push(format!("docs/compat.md: flag --{name} is missing"));
        }
    }
    let architecture = run::read(&root.join("ARCHITECTURE.md"))?;
    for one in CRATES.iter().filter(|one| !architecture.contains(&format!("`crates/{}`", one.name))) {
        faults.push(format!("ARCHITECTURE.md: crates/{} is missing", one.name));
    }
    for (document, text) in [("ARCHITECTURE.md", &architecture), ("docs/compat.md", &compat)] {
        for named in text.split('`').filter(|named| named.starts_with("crates/") || named.starts_with("xtask/")) {
            if !root.join(named).exists() {
                faults.push(format!("{document}: {named} does not exist"));
            }
        }
    }
    Ok(faults)
}

/// `Range "Range" = hot kv::range, Keys, ["/v3/kv/range"];`
fn method(line: &str) -> Option<&str> {
    let (head, rest) = line.trim().split_once(" = ")?;
    let (_, name) = head.strip_suffix('"')?.split_once(" \"")?;
    let form = rest.split(' ').next()?;
    ["hot", "rare", "answers", "talks"].contains(&form).then_some(name)
}

/// The first string of each entry of the table.
fn flag_names(table: &str) -> Vec<&str> {
    let entries = ["flag(", "later(", "no_effect(", "ignored("];
    let mut names = Vec::new();
    for line in table.split('\n').map(str::trim) {
        let inside = entries.iter().find_map(|entry| line.strip_prefix(entry)).unwrap_or(line);
        // An entry that is broken over lines has its name on the first one inside.
        let alone = inside.strip_suffix(',').and_then(|rest| rest.strip_suffix('"'));
        let name = inside.strip_prefix('"').and_then(|rest| rest.split_once('"')).map(|(name, _)| name);
        let broken = alone.is_some_and(|rest| rest.matches('"').count() == 1);
        if let Some(name) = name.filter(|_| inside.len() < line.len() || broken) {
            names.push(name);
        }
    }
    names
}

// ---- metrics and flags ----

/// Kinds of fields that count something.
const METRICS: &[&str] = &["Counter", "Gauge", "Histogram", "RequestHistogram", "RangeHistogram"];

/// Metrics that nothing writes, and flags that nothing reads.
fn unused(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let sources: Vec<(String, String)> = files
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .filter_map(|path| {
            let relative = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
            let text = relative.starts_with("crates/").then(|| std::fs::read_to_string(path).ok())??;
            // What only tests do does not count.
            Some((relative, text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()))
        })
        .filter(|(path, _)| path.contains("/src/"))
        .collect();
    let mut faults = Vec::new();
    for (path, text) in &sources {
        for field in text.lines().filter_map(metric) {
            if !sources.iter().any(|(_, text)| is_written(field, text)) {
                faults.push(format!("{path}: nothing writes the metric {field}"));
            }
        }
    }
    let table = run::read(&root.join("crates/server/src/flags.rs"))?;
    for name in table.lines().filter_map(|line| line.trim().strip_prefix("flag(\"")?.split('"').next()) {
        let read = format!("\"{name}\"");
        let readers = |(path, text): &&(String, String)| {
            path.starts_with("crates/server/src/") && !path.ends_with("/flags.rs") && text.contains(&read)
        };
        if !sources.iter().any(|one| readers(&one)) {
            faults.push(format!("crates/server/src/flags.rs: nothing reads --{name}; it is no_effect, or later"));
        }
    }
    Ok(faults)
}

/// The field of a struct, or the row of the node's table, that is a metric: `pub puts: Counter,`
fn metric(line: &str) -> Option<&str> {
    let line = line.trim();
    let (name, kind) = line.strip_prefix("pub ").unwrap_or(line).split_once(": ")?;
    let field = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let kind = kind.trim_start_matches('[').split(|c: char| !c.is_ascii_alphanumeric()).next()?;
    let shape = line.ends_with(',') && line.starts_with("pub ") || line.contains(" = ");
    (field && shape && METRICS.contains(&kind)).then_some(name)
}

/// `puts.add(1)`, `puts.set(1)`, `puts.observe(1)`, or one of several: `requests[kind].observe(1)`.
fn is_written(field: &str, text: &str) -> bool {
    text.match_indices(&format!(".{field}")).any(|(at, found)| {
        let mut rest = &text[at + found.len()..];
        while let Some(inside) = rest.strip_prefix('[') {
            // Brackets inside an index are whole.
            let mut depth = 1;
            let end = inside.find(|c| {
                depth += i32::from(c == '[') - i32::from(c == ']');
                depth == 0
            });
            let Some(end) = end else { return false };
            rest = &inside[end + 1..];
        }
        [".add(", ".set(", ".observe("].iter().any(|call| rest.starts_with(call))
    })
}

// ---- sources ----

fn source(path: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // This file names what it looks for.
    if path.ends_with("xtask/src/tidy.rs") {
        return faults;
    }
    let rust = path.extension().is_some_and(|end| end == "rs");
    let core = core_source(path);
    let mut in_tests = path.to_string_lossy().ends_with("_tests.rs");
    for (at, line) in text.lines().enumerate() {
        let mut fault = |what: String| faults.push(format!("{}:{}: {what}", path.display(), at + 1));
        if let Some(folder) = machine_path(line) {
            fault(format!("{folder} is a folder of somebody's machine"));
        }
        if !rust {
            continue;
        }
        let width = line.chars().count();
        // Code is the formatter's, which breaks no literal; a row of a table in a comment cannot be broken either.
        let comment = line.trim_start().starts_with("//") && !line.starts_with("//! |");
        if width > WIDEST && comment && !line.contains('"') {
            fault(format!("{width} characters wide, at most {WIDEST}"));
        }
        for word in ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX"] {
            if line.contains(word) {
                fault(format!("left over: {}", word.trim_end_matches('(')));
            }
        }
        if line.trim_start().starts_with("#[ignore") {
            fault("a test that does not run proves nothing: #[ignore]".into());
        }
        in_tests |= line.trim() == "#[cfg(test)]";
        if core && !in_tests && !line.trim_start().starts_with("//") {
            for call in NOT_CALLED_IN_CORE.iter().filter(|call| line.contains(**call)) {
                fault(format!("{call} in a core crate: it comes through env"));
            }
        }
    }
    faults
}

/// Sources of a core crate, `env` left out: there the outside comes in.
fn core_source(path: &Path) -> bool {
    CRATES
        .iter()
        .filter(|one| one.core && one.name != "env")
        .any(|one| path.starts_with(Path::new("crates").join(one.name).join("src")))
}

/// An absolute path into a folder that only one machine has.
fn machine_path(line: &str) -> Option<&'static str> {
    ["/work/", "/root/", "/home/", "/tmp/"].into_iter().find(|folder| {
        line.match_indices(folder).any(|(at, _)| {
            // Not the middle of a longer path, nor of an address.
            let before = line[..at].chars().next_back();
            !before.is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | '>' | '~' | ')'))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_one_way() {
        for (at, one) in CRATES.iter().enumerate() {
            for used in one.may_use {
                let position = CRATES.iter().position(|other| other.name == *used);
                assert!(position.is_some_and(|position| position < at), "{} -> {used}", one.name);
            }
        }
    }

    #[test]
    fn a_wrong_arrow_is_found() {
        let manifest = "[dependencies]\ndolmen-types.workspace = true\ndolmen-node = { path = \"../node\" }\n";
        let one = core("revlog", &["types"]);
        assert_eq!(crate_faults(&one, manifest).len(), 1);
        let manifest = "[dev-dependencies]\ntokio = \"1\"\n\n[dependencies.hyper]\nversion = \"1\"\n";
        assert_eq!(crate_faults(&one, manifest).len(), 2);
    }

    #[test]
    fn tables_of_names_are_read() {
        let row = r#"    HashKv "HashKV" = rare maintenance::hash_kv, Root, ["/v3/maintenance/hashkv"];"#;
        assert_eq!(method(row), Some("HashKV"));
        assert_eq!(method("    let a = b;"), None);
        let table = "flag(\"a\", Kind::Text, \"x\"),\n    later(\n        \"b-c\",\n        Kind::Text,\n    ),\n ignored(\"v\"),";
        assert_eq!(flag_names(table), ["a", "b-c", "v"]);
    }

    #[test]
    fn metrics_and_their_writers_are_found() {
        assert_eq!(metric("    pub puts: Counter,"), Some("puts"));
        assert_eq!(metric("    pub requests: [[RequestHistogram; 2]; RequestType::ALL.len()],"), Some("requests"));
        assert_eq!(metric("    apply: Histogram = Histogram::new(MILLI, 2), counter \"x\""), Some("apply"));
        assert_eq!(metric("    let puts: Counter = x;"), None);
        for (text, written) in [
            ("self.metrics.puts.add(1)", true),
            ("stats.puts[kind[0]][usize::from(ok)].observe(x)", true),
            ("stats.puts.get()", false),
            ("outputs.add(1)", false),
            ("stats.puts_total.add(1)", false),
        ] {
            assert_eq!(is_written("puts", text), written, "{text}");
        }
    }

    #[test]
    fn leftovers_are_found() {
        let find = |path: &str, text: &str| source(Path::new(path), text).len();
        assert_eq!(find("crates/node/src/a.rs", "let now = Instant::now();"), 1);
        assert_eq!(find("crates/api/src/a.rs", "let now = Instant::now();"), 0);
        assert_eq!(find("crates/node/src/a.rs", "#[cfg(test)]\nmod tests { let now = Instant::now(); }"), 0);
        assert_eq!(find("crates/api/src/a.rs", "#[ignore]\n    dbg!(1);\n// FIXME"), 3);
        assert_eq!(find("docs/a.md", "see `/home/me/notes`"), 1);
        assert_eq!(find("docs/a.md", "see https://example.org/home/ and a/work/b"), 0);
        assert_eq!(find("crates/api/src/a.rs", &format!("// {}", "x".repeat(WIDEST))), 1);
    }
}
