//! Programs: started, watched, counted, and gone afterwards.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// What every command returns; the error is the line to print.
pub type Result<T = ()> = std::result::Result<T, String>;

/// The repository.
pub fn root() -> PathBuf {
    // `cargo run` says where the package is now; the binary may have been built elsewhere.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let manifest = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    manifest.parent().map(Path::to_owned).unwrap_or(manifest)
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Cargo, the one that runs us, in the repository.
pub fn cargo<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    // Ours, and not the business of a package that is built.
    for variable in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION", "CARGO_MANIFEST_PATH"] {
        command.env_remove(variable);
    }
    command
}

/// How a command looks on a terminal.
pub fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    if let Some(name) = Path::new(&text).file_name() {
        text = name.to_string_lossy().into_owned();
    }
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// Tests that passed and failed since this process began, over all programs that [`watch`] saw.
pub static PASSED: AtomicU64 = AtomicU64::new(0);
pub static FAILED: AtomicU64 = AtomicU64::new(0);

/// Adds to the counts of tests.
pub fn count(passed: u64, failed: u64) {
    PASSED.fetch_add(passed, Ordering::Relaxed);
    FAILED.fetch_add(failed, Ordering::Relaxed);
}

/// Runs a program to its end, its output passing through, and counts what cargo's test runner reports.
///
/// # Errors
/// It could not start, or did not succeed.
pub fn run(command: &mut Command) -> Result {
    let ended = watch(command, None, &mut |line| {
        println!("{line}");
        if let Some((passed, failed)) = test_result(line) {
            count(passed, failed);
        }
    })?;
    ended.ok(command)
}

/// `test result: ok. 12 passed; 0 failed; ...`
fn test_result(line: &str) -> Option<(u64, u64)> {
    let rest = line.trim_start().strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |word: &str| {
        let part = rest.split("; ").find(|part| part.ends_with(word))?;
        part.split(' ').next()?.parse().ok()
    };
    Some((number(" passed")?, number(" failed")?))
}

/// How a watched program ended.
pub struct Ended {
    /// `None`: killed by a signal, or by us because its time was up.
    pub code: Option<i32>,
    pub timed_out: bool,
}

impl Ended {
    /// # Errors
    /// It did not exit with 0.
    pub fn ok(&self, command: &Command) -> Result {
        match (self.timed_out, self.code) {
            (true, _) => Err(format!("`{}` took too long", shown(command))),
            (false, Some(0)) => Ok(()),
            (false, Some(code)) => Err(format!("`{}` failed with exit code {code}", shown(command))),
            (false, None) => Err(format!("`{}` was killed", shown(command))),
        }
    }
}

/// Runs a program and hands over its lines, standard output and error alike, as they come.
///
/// # Errors
/// It could not start.
pub fn watch(command: &mut Command, limit: Option<Duration>, see: &mut dyn FnMut(&str)) -> Result<Ended> {
    let mut child = spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let (lines, queue) = channel::<String>();
    let ends: [Option<Box<dyn std::io::Read + Send>>; 2] =
        [child.stdout.take().map(|end| Box::new(end) as _), child.stderr.take().map(|end| Box::new(end) as _)];
    for end in ends.into_iter().flatten() {
        let lines = lines.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(end);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
                if lines.send(text).is_err() {
                    return;
                }
                line.clear();
            }
        });
    }
    drop(lines);
    let begin = Instant::now();
    let mut timed_out = false;
    // A grandchild may hold the pipe after the child's end, so the end of the child counts as well.
    let mut ended = None;
    loop {
        match queue.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => see(&line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if ended.is_some() {
                    break;
                }
                ended = child.try_wait().map_err(|error| error.to_string())?;
            }
        }
        if !timed_out && limit.is_some_and(|limit| begin.elapsed() > limit) {
            timed_out = true;
            child.kill().map_err(|error| error.to_string())?;
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    Ok(Ended { code: status.code(), timed_out })
}

/// Starts a program.
///
/// # Errors
/// It could not start; says which.
pub fn spawn(command: &mut Command) -> Result<Child> {
    command.spawn().map_err(|error| format!("cannot start `{}`: {error}", shown(command)))
}

/// Runs a program to its end and returns what it printed.
///
/// # Errors
/// It could not start.
pub fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().map_err(|error| format!("cannot start `{}`: {error}", shown(command)))
}

/// Runs a program that must succeed and returns its standard output.
///
/// # Errors
/// It did not; with the end of what it said.
pub fn text(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    let tail: Vec<&str> = said.lines().rev().take(8).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    Err(format!("`{}` failed ({}): {}", shown(command), output.status, tail.join("\n")))
}

/// Prints a headline, runs, prints how long it took.
///
/// # Errors
/// What the stage says, with its name before it.
pub fn stage(name: &str, work: impl FnOnce() -> Result) -> Result {
    println!("\n=== {name}");
    flush();
    let begin = Instant::now();
    let outcome = work();
    let word = if outcome.is_ok() { "ok" } else { "FAILED" };
    println!("=== {name}: {word} in {:.1} s", begin.elapsed().as_secs_f64());
    flush();
    outcome.map_err(|why| format!("{name}: {why}"))
}

/// Output and what programs write must keep their order.
pub fn flush() {
    // Nobody may be listening any more; that is theirs to decide.
    let _closed = std::io::stdout().flush();
}

/// A folder below `target/` for one run, and all processes started from programs in it; both go when it is dropped.
///
/// The suites start servers behind our back, some of them in sessions of their own. They have in common that their
/// program lies here (a copy of the server, or a link in a temporary folder below), which is how they are found.
pub struct Scratch {
    pub dir: PathBuf,
    keep: bool,
}

impl Scratch {
    /// # Errors
    /// The folder cannot be made.
    pub fn new(what: &str) -> Result<Self> {
        let dir = target().join("xtask").join(format!("{what}-{}", std::process::id()));
        if dir.exists() {
            remove(&dir)?;
        }
        make_dir(&dir.join("tmp"))?;
        Ok(Self { dir, keep: std::env::var_os("XTASK_KEEP").is_some() })
    }

    /// Where programs are told to put temporary files.
    pub fn tmp(&self) -> PathBuf {
        self.dir.join("tmp")
    }

    /// Puts a program's temporary files here.
    pub fn home<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("TMPDIR", self.tmp())
    }

    /// Kills what still runs from here and waits for its end, which frees its ports; returns how many.
    pub fn sweep(&self) -> usize {
        let found = self.kill();
        let begin = Instant::now();
        while found > 0 && self.kill() > 0 && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        found
    }

    fn kill(&self) -> usize {
        let mut killed = 0;
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Ok(id) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
            let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
            let program = PathBuf::from(String::from_utf8_lossy(program).into_owned());
            if id != std::process::id() && program.starts_with(&self.dir) && signal(id, Signal::KILL) {
                killed += 1;
            }
        }
        killed
    }

    /// Empties the folder of temporary files.
    pub fn clear(&self) {
        self.sweep();
        // What stays is removed with the rest at the end.
        let _stays = std::fs::remove_dir_all(self.tmp());
        let _exists = std::fs::create_dir_all(self.tmp());
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.sweep();
        if self.keep {
            println!("kept: {}", self.dir.display());
        } else {
            // The next run makes its own.
            let _stays = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Sends a signal; false when the process is gone.
pub fn signal(id: u32, signal: Signal) -> bool {
    Pid::from_raw(id as i32).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// # Errors
/// Names the file.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// # Errors
/// Names the file.
pub fn write(path: &Path, text: &str) -> Result {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// # Errors
/// Names the folder.
pub fn make_dir(path: &Path) -> Result {
    std::fs::create_dir_all(path).map_err(|error| format!("cannot make {}: {error}", path.display()))
}

/// # Errors
/// Names the folder.
pub fn remove(path: &Path) -> Result {
    std::fs::remove_dir_all(path).map_err(|error| format!("cannot remove {}: {error}", path.display()))
}

/// Copies a tree, making the copy writable.
///
/// # Errors
/// Names the file that could not be copied.
pub fn copy_tree(from: &Path, to: &Path) -> Result {
    make_dir(to)?;
    let entries = std::fs::read_dir(from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
    for entry in entries.flatten() {
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_tree(&source, &copy)?;
        } else {
            let bytes = std::fs::read(&source).map_err(|error| format!("cannot read {}: {error}", source.display()))?;
            std::fs::write(&copy, bytes).map_err(|error| format!("cannot write {}: {error}", copy.display()))?;
        }
    }
    Ok(())
}

/// Puts a program into a folder under another name, as a hard link or a copy.
///
/// # Errors
/// Names both.
pub fn place(program: &Path, at: &Path) -> Result {
    if at.exists() {
        std::fs::remove_file(at).map_err(|error| format!("cannot replace {}: {error}", at.display()))?;
    }
    std::fs::hard_link(program, at)
        .or_else(|_| std::fs::copy(program, at).map(|_| ()))
        .map_err(|error| format!("cannot put {} at {}: {error}", program.display(), at.display()))
}

/// `--name value` and `--name=value`, and switches without a value.
pub struct Arguments<'a> {
    rest: std::slice::Iter<'a, String>,
    inline: Option<&'a str>,
}

impl<'a> Arguments<'a> {
    pub fn new(arguments: &'a [String]) -> Self {
        Self { rest: arguments.iter(), inline: None }
    }

    /// The next argument's name.
    pub fn next_name(&mut self) -> Option<&'a str> {
        let argument = self.rest.next()?;
        match argument.split_once('=') {
            Some((name, value)) if name.starts_with("--") => {
                self.inline = Some(value);
                Some(name)
            }
            _ => {
                self.inline = None;
                Some(argument)
            }
        }
    }

    /// The value of the argument just named.
    ///
    /// # Errors
    /// There is none.
    pub fn value(&mut self, name: &str) -> Result<&'a str> {
        let value = self.inline.take().or_else(|| self.rest.next().map(String::as_str));
        value.ok_or_else(|| format!("{name} needs a value"))
    }

    /// As [`Arguments::value`], parsed.
    ///
    /// # Errors
    /// There is none, or it is no such thing.
    pub fn parsed<T: std::str::FromStr>(&mut self, name: &str) -> Result<T> {
        let value = self.value(name)?;
        value.parse().map_err(|_| format!("{name}: {value:?} does not fit"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_results_are_read() {
        let line = "test result: ok. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(test_result(line), Some((12, 3)));
        assert_eq!(test_result("test foo ... ok"), None);
    }

    #[test]
    fn arguments_come_in_both_forms() {
        let given: Vec<String> = ["--a=1", "--b", "two", "--c"].map(str::to_owned).into();
        let mut arguments = Arguments::new(&given);
        assert_eq!(arguments.next_name(), Some("--a"));
        assert_eq!(arguments.parsed::<u32>("--a"), Ok(1));
        assert_eq!(arguments.next_name(), Some("--b"));
        assert_eq!(arguments.value("--b"), Ok("two"));
        assert_eq!(arguments.next_name(), Some("--c"));
        assert!(arguments.value("--c").is_err());
    }

    #[test]
    fn a_watched_program_is_seen_and_timed() {
        let mut lines = Vec::new();
        let ended = watch(Command::new("echo").arg("hello"), None, &mut |line| lines.push(line.to_owned()));
        assert_eq!((lines, ended.map(|e| e.code)), (vec!["hello".to_owned()], Ok(Some(0))));
        let ended = watch(Command::new("sleep").arg("30"), Some(Duration::from_millis(50)), &mut |_| ());
        assert!(ended.is_ok_and(|ended| ended.timed_out));
    }
}
