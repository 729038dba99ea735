//! The process around a command: programs it starts, signals it gets, passwords it asks for.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, ExitStatus, Stdio};

use dolmen_cli::{Failure, golang, words};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C and the polite end, from the moment it is made: until then they end the process.
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// Takes the two signals over.
    ///
    /// # Errors
    /// The kernel refuses a handler.
    pub fn new() -> Result<Stop, Failure> {
        Ok(Stop { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Resolves once one of them arrives.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// How a program that was started ended badly.
pub struct ExecError {
    /// As Go's `os/exec` puts it: `exit status 3`, `signal: killed`, `exec: "x": executable file not found in $PATH`.
    pub text: String,
    /// Its exit code; 255 for one that a signal ended, 1 for one that did not start.
    pub code: u8,
}

/// Runs a program to its end, with our stdout and stderr and an empty stdin, while the rest of this process goes on.
///
/// `environment`: what it finds besides our own variables, and instead of those of the same name.
/// # Errors
/// It could not be started, or did not end with exit code 0.
pub async fn run(command: Vec<OsString>, environment: BTreeMap<&'static str, OsString>) -> Result<(), ExecError> {
    let ended = tokio::task::spawn_blocking(move || {
        let Some((program, arguments)) = command.split_first() else {
            return Err(ExecError { text: "exec: no command".to_owned(), code: 1 });
        };
        let status = Command::new(program).args(arguments).envs(environment).stdin(Stdio::null()).status();
        match status {
            Ok(status) => ended(status),
            Err(e) => Err(ExecError { text: not_started(program, &e), code: 1 }),
        }
    });
    ended.await.unwrap_or_else(|e| Err(ExecError { text: e.to_string(), code: 1 }))
}

fn ended(status: ExitStatus) -> Result<(), ExecError> {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(ExecError { text: format!("exit status {code}"), code: (code & 0xff) as u8 }),
        (None, Some(signal)) => {
            let core = if status.core_dumped() { " (core dumped)" } else { "" };
            Err(ExecError { text: format!("signal: {}{core}", signal_name(signal)), code: 255 })
        }
        (None, None) => Err(ExecError { text: status.to_string(), code: 255 }),
    }
}

/// The words Go has for a signal.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

fn not_started(program: &OsStr, error: &std::io::Error) -> String {
    let name = program.to_owned().into_vec();
    let with_slash = name.contains(&b'/');
    let shown = String::from_utf8_lossy(&name);
    match error.kind() {
        std::io::ErrorKind::NotFound if !with_slash => {
            format!("exec: {}: executable file not found in $PATH", golang::quote_bytes(&name))
        }
        std::io::ErrorKind::NotFound => format!("fork/exec {shown}: no such file or directory"),
        std::io::ErrorKind::PermissionDenied => format!("fork/exec {shown}: permission denied"),
        _ => format!("fork/exec {shown}: {error}"),
    }
}

/// Asks for a password: `prompt` on stdout, a line from stdin, not shown while it is typed.
///
/// The line may come from a pipe as well. White space around it does not count.
/// # Errors
/// `failed during password entry: ...` (exit 1) when stdin cannot be read.
pub fn ask_password(prompt: &str) -> Result<String, Failure> {
    dolmen_cli::print(prompt);
    let line = if std::io::stdin().is_terminal() { read_hidden() } else { read_line() };
    dolmen_cli::print("\n");
    match line {
        Ok(line) => Ok(words::from_bytes(line).trim().to_owned()),
        Err(e) => Err(Failure::error(format!("failed during password entry: {e}"))),
    }
}

/// A line, byte by byte: what follows it stays for whoever reads next.
fn read_line() -> std::io::Result<Vec<u8>> {
    let mut stdin = Unbuffered::stdin()?;
    let mut line = Vec::new();
    let mut byte = [0];
    while stdin.read(&mut byte)? != 0 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(line)
}

/// A line from the terminal, which neither shows it nor makes signals of keys, so that its state is put back whatever
/// is typed.
fn read_hidden() -> std::io::Result<Vec<u8>> {
    let terminal = Unbuffered::stdin()?;
    let before = tcgetattr(&terminal.0)?;
    let mut hidden = before.clone();
    hidden.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
    tcsetattr(&terminal.0, OptionalActions::Flush, &hidden)?;
    let line = type_line(terminal, &before);
    let restored = tcsetattr(std::io::stdin().as_fd(), OptionalActions::Now, &before);
    restored?;
    line
}

const CTRL_C: u8 = 0x03;
const CTRL_D: u8 = 0x04;
const CTRL_U: u8 = 0x15;
const BACKSPACE: [u8; 2] = [0x08, 0x7f];

fn type_line(mut terminal: Unbuffered, before: &Termios) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while terminal.read(&mut byte)? != 0 {
        match byte[0] {
            b'\n' | b'\r' | CTRL_D => break,
            CTRL_C => {
                tcsetattr(&terminal.0, OptionalActions::Now, before)?;
                std::process::exit(255);
            }
            CTRL_U => line.clear(),
            key if BACKSPACE.contains(&key) => {
                line.pop();
            }
            key => line.push(key),
        }
    }
    Ok(line)
}

/// Stdin without a buffer in between: two readers of it see all of it between them.
pub struct Unbuffered(std::fs::File);

impl Unbuffered {
    /// This process's stdin.
    ///
    /// # Errors
    /// It is closed.
    pub fn stdin() -> std::io::Result<Unbuffered> {
        Ok(Unbuffered(std::io::stdin().as_fd().try_clone_to_owned()?.into()))
    }
}

impl Read for Unbuffered {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_shell(script: &str) -> Result<(), (String, u8)> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let command = ["sh", "-c", script].map(OsString::from).to_vec();
        runtime.block_on(run(command, BTreeMap::from([("WORD", "x y".into())]))).map_err(|e| (e.text, e.code))
    }

    #[test]
    fn a_program_ends_in_gos_words() {
        assert_eq!(run_shell("test \"$WORD\" = 'x y'"), Ok(()));
        assert_eq!(run_shell("exit 55"), Err(("exit status 55".to_owned(), 55)));
        assert_eq!(run_shell("kill -9 $$"), Err(("signal: killed".to_owned(), 255)));
        let missing = OsString::from("no-such-program");
        let not_found = std::io::Error::from(std::io::ErrorKind::NotFound);
        assert_eq!(not_started(&missing, &not_found), "exec: \"no-such-program\": executable file not found in $PATH");
    }
}
