//! `cargo xtask dist`: what is handed out. A static binary on musl, its manual pages and completions, a systemd unit, as a
//! tarball and as a Debian package, with checksums.
//!
//! What was built is run where there is nothing else: in a chroot that holds the binary alone. That needs root, or a kernel
//! that lets everybody make a user namespace.
//!
//! Archives are the same bytes for the same binary: names sorted, nobody's ids, the time of the commit.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::member;
use crate::run::{self, Arguments, Result, Scratch, stage};

/// What Rust and Debian call the machines that are built for: those this runs on.
const MACHINE: (&str, &str) = if cfg!(target_arch = "aarch64") { ("aarch64", "arm64") } else { ("x86_64", "amd64") };
const PATIENCE: Duration = Duration::from_secs(60);
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A manual page for each: its name, the words that print its text, and what it is.
const PAGES: [(&str, &[&str], &str); 5] = [
    ("dolmen", &["--help"], "etcd v3 in one binary"),
    ("dolmen-serve", &["serve", "--help"], "run one member"),
    ("dolmen-ctl", &["ctl", "--help"], "client of an etcd cluster for the command line"),
    ("dolmen-utl", &["utl", "--help"], "snapshots and data directories, worked on as files"),
    ("dolmen-defrag", &["defrag", "--help"], "defragment members by rules"),
];

pub fn run(arguments: &[String]) -> Result {
    let (mut quick, mut out) = (false, run::target().join("dist"));
    let mut arguments = Arguments::new(arguments);
    while let Some(name) = arguments.next_name() {
        match name {
            "--quick" => quick = true,
            "--out" => out = PathBuf::from(arguments.value(name)?),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    let mut binary = PathBuf::new();
    stage("static binary", || {
        binary = build(quick)?;
        check_static(&binary)
    })?;
    stage("bare chroot", || bare(&binary))?;
    if quick {
        return Ok(());
    }
    stage("archives", || archives(&binary, &out))
}

fn triple() -> String {
    format!("{}-unknown-linux-musl", MACHINE.0)
}

/// What a static binary cannot be built without and is not here.
pub fn missing() -> Result<Option<String>> {
    let sysroot = run::text(Command::new("rustc").args(["--print", "sysroot"]).current_dir(run::root()))?;
    let (triple, compiler) = (triple(), Command::new("musl-gcc").arg("--version").output().is_ok());
    let target = Path::new(sysroot.trim()).join("lib/rustlib").join(&triple).exists();
    let missing = !target || !compiler;
    Ok(missing.then(|| format!("rustup target add {triple}; C needs musl-gcc, of Debian's musl-tools")))
}

fn build(quick: bool) -> Result<PathBuf> {
    if let Some(what) = missing()? {
        return Err(format!("something to build with is missing: {what}"));
    }
    let triple = triple();
    // A folder of its own: the flags below would have everything else built anew.
    let target = run::target().join("musl");
    let mut cargo = run::cargo(["build", "-q", "--locked", "-p", "dolmen", "--target", &triple, "--target-dir"]);
    cargo.arg(&target).env("CARGO_PROFILE_RELEASE_STRIP", "symbols").env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    if !quick {
        cargo.arg("--release");
    }
    run::run(&mut cargo)?;
    Ok(target.join(triple).join(if quick { "debug" } else { "release" }).join("dolmen"))
}

/// A program that wants a loader names it in a header of kind 3.
fn check_static(binary: &Path) -> Result {
    let bytes = std::fs::read(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    let wants_loader = program_headers(&bytes).ok_or("not an ELF file of 64 bits")?.contains(&3);
    if wants_loader {
        return Err(format!("{} is not static", binary.display()));
    }
    println!("{}: {} KiB, static", binary.display(), bytes.len() / 1024);
    Ok(())
}

/// The kinds of an ELF file's program headers.
fn program_headers(elf: &[u8]) -> Option<Vec<u32>> {
    let number = |at: usize, len: usize| {
        let bytes = elf.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (first, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
    (0..count).map(|at| Some(number(first + at * size, 4)? as u32)).collect()
}

/// A member and a client in a folder that has nothing but the binary: no loader, no /proc, no /dev, no /etc.
fn bare(binary: &Path) -> Result {
    let scratch = Scratch::new("dist")?;
    let root = scratch.dir.join("root");
    run::make_dir(&root)?;
    run::place(binary, &root.join("dolmen"))?;
    let inside = |words: &[&str]| {
        let mut command = if rustix::process::geteuid().is_root() {
            Command::new("chroot")
        } else {
            let mut command = Command::new("unshare");
            command.args(["--map-root-user", "chroot"]);
            command
        };
        command
            .arg(&root)
            .arg("/dolmen")
            .args(words)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    };
    print!("{}", run::text(&mut inside(&["version"]))?);
    let ports = member::free_ports(2)?;
    let (client, peer) = (format!("http://127.0.0.1:{}", ports[0]), format!("http://127.0.0.1:{}", ports[1]));
    let serve = [
        "serve",
        "--data-dir=/data",
        "--log-level=warn",
        &format!("--listen-client-urls={client}"),
        &format!("--advertise-client-urls={client}"),
        &format!("--listen-peer-urls={peer}"),
        &format!("--initial-advertise-peer-urls={peer}"),
        &format!("--initial-cluster=default={peer}"),
    ];
    let mut server = run::spawn(inside(&serve).stdin(Stdio::null()))?;
    let outcome = talk(&client, &inside);
    run::signal(server.id(), rustix::process::Signal::TERM);
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE && matches!(server.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _gone = server.kill();
    let _gone = server.wait();
    outcome
}

fn talk(client: &str, inside: &dyn Fn(&[&str]) -> Command) -> Result {
    let endpoints = format!("--endpoints={client}");
    let begin = Instant::now();
    while let Err(error) = run::text(&mut inside(&["ctl", &endpoints, "put", "greeting", "hello"])) {
        if begin.elapsed() > PATIENCE {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = run::text(&mut inside(&["ctl", &endpoints, "get", "greeting", "--print-value-only"]))?;
    if said != "hello\n" {
        return Err(format!("it reads {said:?}"));
    }
    run::text(&mut inside(&["ctl", &endpoints, "snapshot", "save", "/snapshot.db"]))?;
    print!("{}", run::text(&mut inside(&["utl", "snapshot", "status", "/snapshot.db"]))?);
    Ok(())
}

// ---- archives ----

fn archives(binary: &Path, out: &Path) -> Result {
    let scratch = Scratch::new("dist-tree")?;
    let name = format!("dolmen-{VERSION}-{}-linux", MACHINE.0);
    let tarball = format!("{name}.tar.gz");
    let package = format!("dolmen_{VERSION}_{}.deb", MACHINE.1);
    run::make_dir(out)?;

    let tree = scratch.dir.join(&name);
    let texts = texts(binary)?;
    put(&tree, "dolmen", Content::Program(binary))?;
    for (folder, file, text) in &texts {
        put(&tree, &format!("{folder}/{file}"), Content::Text(text))?;
    }
    for (file, at) in DOCUMENTS {
        put(&tree, at, Content::Copy(file))?;
    }
    put(&tree, "systemd/dolmen.service", Content::Copy(UNIT))?;
    pack(&scratch.dir, &name, &out.join(&tarball))?;

    let data = scratch.dir.join("data");
    put(&data, "usr/bin/dolmen", Content::Program(binary))?;
    for (folder, file, text) in &texts {
        let at = match *folder {
            "man" => "usr/share/man/man1",
            "bash" => "usr/share/bash-completion/completions",
            "zsh" => "usr/share/zsh/vendor-completions",
            _ => "usr/share/fish/vendor_completions.d",
        };
        let file = file.strip_suffix(".bash").unwrap_or(file);
        put(&data, &format!("{at}/{file}"), Content::Text(text))?;
    }
    put(&data, "usr/lib/systemd/system/dolmen.service", Content::Copy(UNIT))?;
    put(&data, "etc/default/dolmen", Content::Copy("deploy/systemd/dolmen.default"))?;
    put(&data, "usr/share/doc/dolmen/copyright", Content::Copy("LICENSE"))?;
    debian(&scratch, &data, &out.join(&package))?;

    let sums = run::text(Command::new("sha256sum").args([&tarball, &package]).current_dir(out))?;
    run::write(&out.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    Ok(())
}

const UNIT: &str = "deploy/systemd/dolmen.service";
/// Where files of the repository go in the tarball.
const DOCUMENTS: [(&str, &str); 4] = [
    ("LICENSE", "LICENSE"),
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("docs/operations.md", "operations.md"),
];

/// Manual pages and completions, as the binary tells them: folder, file, text.
fn texts(binary: &Path) -> Result<Vec<(&'static str, String, String)>> {
    let mut texts = Vec::new();
    for (name, words, what) in PAGES {
        let help = run::text(Command::new(binary).args(words))?;
        texts.push(("man", format!("{name}.1"), page(name, what, &help)));
    }
    for (shell, file) in [("bash", "dolmen.bash"), ("zsh", "_dolmen"), ("fish", "dolmen.fish")] {
        let script = run::text(Command::new(binary).args(["completion", shell]))?;
        texts.push((shell, file.to_owned(), script));
    }
    Ok(texts)
}

/// A manual page that shows a help as it is.
fn page(name: &str, what: &str, help: &str) -> String {
    let escaped = |text: &str| text.replace('\\', "\\e").replace('-', "\\-");
    let body: String = help
        .lines()
        .map(|line| {
            // A line that begins with one of these is a request.
            let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
            format!("{guard}{}\n", escaped(line))
        })
        .collect();
    format!(
        ".TH {} 1 \"\" \"Dolmen {VERSION}\"\n.SH NAME\n{} \\- {what}\n.SH DESCRIPTION\n.nf\n{body}.fi\n.SH SEE ALSO\n\
         .BR dolmen (1)\n",
        name.to_uppercase(),
        escaped(name)
    )
}

enum Content<'a> {
    Program(&'a Path),
    Text(&'a str),
    /// A file of the repository.
    Copy(&'a str),
}

fn put(root: &Path, at: &str, content: Content<'_>) -> Result {
    use std::os::unix::fs::PermissionsExt;
    let path = root.join(at);
    if let Some(folder) = path.parent() {
        run::make_dir(folder)?;
    }
    let (written, mode) = match content {
        Content::Program(from) => (std::fs::copy(from, &path).map(|_| ()), 0o755),
        Content::Text(text) => (std::fs::write(&path, text), 0o644),
        Content::Copy(from) => (std::fs::copy(run::root().join(from), &path).map(|_| ()), 0o644),
    };
    let written = written.and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// A compressed archive of `name` in `folder`.
fn pack(folder: &Path, name: &str, to: &Path) -> Result {
    let time = run::text(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(run::root()));
    let time = time.map_or_else(|_| "0".to_owned(), |time| time.trim().to_owned());
    let plain = to.with_extension("unfinished");
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.arg(format!("--mtime=@{time}")).arg("-C").arg(folder).arg("-cf").arg(&plain).arg(name);
    run::text(&mut tar)?;
    let zipped = run::output(Command::new("gzip").args(["-9", "-n", "-c"]).arg(&plain))?;
    let written = std::fs::write(to, zipped.stdout).and_then(|()| std::fs::remove_file(&plain));
    written.map_err(|error| format!("{}: {error}", to.display()))
}

/// A Debian package is an `ar` archive of three files: a version, what it is, and what it installs.
fn debian(scratch: &Scratch, data: &Path, to: &Path) -> Result {
    let control = scratch.dir.join("control");
    let text = format!(
        "Package: dolmen\nVersion: {VERSION}\nArchitecture: {}\nSection: database\nPriority: optional\n\
         Maintainer: The Dolmen authors <dolmen@localhost>\nSuggests: etcd-client\nDescription: etcd v3 in one binary\n \
         A replicated key-value store that etcd's clients, tools and members take\n for one of their own, with its client and tools.\n",
        MACHINE.1
    );
    put(&control, "control", Content::Text(&text))?;
    put(&control, "conffiles", Content::Text("/etc/default/dolmen\n"))?;
    let (about, installed) = (scratch.dir.join("control.tar.gz"), scratch.dir.join("data.tar.gz"));
    pack(&control, ".", &about)?;
    pack(data, ".", &installed)?;
    let mut archive = b"!<arch>\n".to_vec();
    let read = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    for (name, bytes) in
        [("debian-binary", b"2.0\n".to_vec()), ("control.tar.gz", read(&about)?), ("data.tar.gz", read(&installed)?)]
    {
        archive.extend_from_slice(
            format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 100_644, bytes.len()).as_bytes(),
        );
        let odd = bytes.len() % 2 == 1;
        archive.extend(bytes);
        if odd {
            archive.push(b'\n');
        }
    }
    std::fs::write(to, archive).map_err(|error| format!("{}: {error}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_programs_are_read() {
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(64, 0);
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 2;
        elf.resize(64 + 2 * 56, 0);
        elf[64] = 1;
        elf[64 + 56] = 3;
        assert_eq!(program_headers(&elf), Some(vec![1, 3]));
        assert_eq!(program_headers(b"#!/bin/sh"), None);
        assert_eq!(program_headers(&elf[..70]), None);
    }

    #[test]
    fn a_help_is_shown_as_it_is() {
        let page = page("dolmen", "w", "Usage:\n  a --b\n.c\n");
        assert!(page.contains("\n.nf\nUsage:\n  a \\-\\-b\n\\&.c\n.fi\n"), "{page}");
    }
}
