//! `watch`: prints events as they happen, or runs a program for each.
//!
//! `watch key [end] [-- program words...]` follows one key or range until the server ends it. With `-i` every line of
//! stdin is such a command, or `progress`; all of them share one stream, and each prints, and runs its programs,
//! independently of the others.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::BufRead;
use std::os::unix::ffi::OsStringExt;

use dolmen_cli::{Call, Command, Failure, Flag, complain, golang, parse, words};
use dolmen_client::{Client, Error, WatchHandle, Watcher, watch_error};
use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::mvccpb::Event;
use tokio::sync::mpsc;

use super::get::range;
use crate::connect::{self, Limit, Link};
use crate::output::{Printer, WatchView, event_type, say};
use crate::process::{self, Unbuffered};
use crate::text::split_words;
use crate::tool::KV;

/// `watch`
pub static COMMAND: Command = Command {
    usage: "watch [options] [key or prefix] [range_end] [--] [exec-command arg1 arg2 ...]",
    short: "Watches events stream on keys or prefixes",
    group: KV,
    flags: &[
        Flag::boolean("interactive", "Interactive mode").short('i'),
        Flag::boolean("prefix", "Watch on a prefix if prefix is set"),
        Flag::int64("rev", "0", "Revision to start watching"),
        Flag::boolean("prev-kv", "get the previous key-value pair before the event happens"),
        Flag::boolean("progress-notify", "get periodic watch progress notification from server"),
    ],
    run: Some(run),
    ..Command::NEW
};

const BAD_COUNT: &str = "bad number of arguments";
const CONFLICTING_ENVIRONMENT: &str = "bad number of arguments (found conflicting environment key)";
const NO_PROGRAM: &str = "bad number of arguments (found separator --, but no commands)";

fn run(call: &Call) -> Result<(), Failure> {
    let environment = Environment::read()?;
    if call.boolean("interactive") {
        return connect::run(call, Limit::None, async |link| interactive(&link, &environment).await);
    }
    let words = WatchWords::of(call, &environment, false).map_err(Failure::bad_args)?;
    connect::run(call, Limit::None, async |link| {
        let request = words.request(call).map_err(Failure::bad_args)?;
        let mut watcher = open(&link.client).await?;
        watcher.handle().add(request);
        while let Some(answer) = watcher.next().await {
            if show(link.printer, answer, &words.program).await? {
                break;
            }
        }
        Err(Failure::interrupted("watch is canceled by the server"))
    })
}

/// `ETCDCTL_WATCH_KEY` and `ETCDCTL_WATCH_RANGE_END`: what is watched when the command line does not say.
#[derive(Clone, Debug, Default)]
struct Environment {
    key: String,
    range_end: String,
}

impl Environment {
    fn read() -> Result<Environment, Failure> {
        let variable = |name| std::env::var_os(name).map(words::from_os).unwrap_or_default();
        let (key, range_end) = (variable("ETCDCTL_WATCH_KEY"), variable("ETCDCTL_WATCH_RANGE_END"));
        if key.is_empty() && !range_end.is_empty() {
            return Err(Failure::bad_args(format!(
                "ETCDCTL_WATCH_KEY is empty but got ETCDCTL_WATCH_RANGE_END={}",
                golang::quote(&range_end)
            )));
        }
        Ok(Environment { key, range_end })
    }
}

/// The positional words of one watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WatchWords {
    /// Key and range end; further words count for nothing.
    range: Vec<String>,
    /// What to run for each event; empty: nothing.
    program: Vec<String>,
}

impl WatchWords {
    /// Splits the words at `--`, and puts the environment's range before them.
    ///
    /// # Errors
    /// Sentences for the `Error:` line. A key from the environment and one from the command line contradict each other;
    /// on a line of the interactive mode only when there is no `--`.
    fn of(call: &Call, environment: &Environment, line: bool) -> Result<WatchWords, &'static str> {
        let words = call.args();
        let dash = call.args_before_dash();
        let (before, program) = words.split_at(dash.unwrap_or(words.len()));
        if dash.is_some() && program.is_empty() {
            return Err(NO_PROGRAM);
        }
        if dash.is_none() && before.is_empty() && environment.key.is_empty() {
            return Err(BAD_COUNT);
        }
        if !before.is_empty() && !environment.key.is_empty() && (dash.is_none() || !line) {
            return Err(CONFLICTING_ENVIRONMENT);
        }
        let from_environment = [&environment.key, &environment.range_end].into_iter().filter(|word| !word.is_empty());
        Ok(WatchWords { range: from_environment.chain(before).cloned().collect(), program: program.to_vec() })
    }

    /// The request these words and the flags of `call` stand for.
    ///
    /// # Errors
    /// Sentences for the `Error:` line, or for the complaint about an interactive line.
    fn request(&self, call: &Call) -> Result<pb::WatchCreateRequest, &'static str> {
        let Some(key) = self.range.first() else { return Err(BAD_COUNT) };
        let prefix = call.boolean("prefix");
        let range_end = match &self.range[..] {
            [_, _] if prefix => return Err("`range_end` and `--prefix` are mutually exclusive"),
            [_, end] => Some(words::bytes(end)),
            _ => None,
        };
        let (key, range_end) = range(words::bytes(key), range_end, prefix, false);
        Ok(pb::WatchCreateRequest {
            key: key.into(),
            range_end: range_end.into(),
            start_revision: call.int("rev"),
            progress_notify: call.boolean("progress-notify"),
            prev_kv: call.boolean("prev-kv"),
            ..Default::default()
        })
    }
}

/// A stream without watches yet, which ends when its member has no leader.
async fn open(client: &Client) -> Result<Watcher, Failure> {
    client.with_require_leader().watch([]).await.map_err(|e| crate::hints::failure(&e))
}

/// Prints one answer and runs `program` for its events. True: it was the watch's last.
///
/// # Errors
/// The format cannot show it; the program failed, which ends the command with exit code 1.
async fn show(printer: Printer, answer: Result<pb::WatchResponse, Error>, program: &[String]) -> Result<bool, Failure> {
    let empty = pb::ResponseHeader::default();
    let (response, refused) = match &answer {
        // The end of the whole stream, and a watch that was refused at once, come from Go's library, not from the
        // server.
        Err(error) => (None, Some(error.clone())),
        Ok(response) if response.created => match watch_error(response) {
            Some(error) => (None, Some(error)),
            None => return Ok(false),
        },
        Ok(response) => (Some(response), watch_error(response).filter(|_| response.canceled)),
    };
    if let Some(error) = &refused {
        complain(format!("watch was canceled ({error})\n"));
    }
    let view = match response {
        Some(r) => WatchView {
            header: Some(r.header.as_ref().unwrap_or(&empty)),
            events: &r.events,
            compact_revision: r.compact_revision,
            canceled: r.canceled,
            created: false,
            cancel_reason: &r.cancel_reason,
        },
        None => WatchView { header: Some(&empty), canceled: true, ..WatchView::default() },
    };
    let revision = view.header.map_or(0, |header| header.revision);
    if view.events.is_empty() && !view.canceled && view.compact_revision == 0 && revision != 0 {
        say(format_args!("progress notify: {revision}"))?;
    }
    printer.watch(&view)?;
    if !program.is_empty() {
        for event in view.events {
            run_program(program, revision, event).await?;
        }
    }
    Ok(view.canceled)
}

/// Runs `program` for one event, which it finds in its environment: revision, type, key and value, the last three
/// quoted as in Go.
async fn run_program(program: &[String], revision: i64, event: &Event) -> Result<(), Failure> {
    let kv = event.kv.clone().unwrap_or_default();
    let environment = BTreeMap::from([
        ("ETCD_WATCH_REVISION", OsString::from(revision.to_string())),
        ("ETCD_WATCH_EVENT_TYPE", golang::quote(&event_type(event.r#type)).into()),
        ("ETCD_WATCH_KEY", golang::quote_bytes(&kv.key).into()),
        ("ETCD_WATCH_VALUE", golang::quote_bytes(&kv.value).into()),
    ]);
    let command = program.iter().map(|word| OsString::from_vec(words::bytes(word))).collect();
    process::run(command, environment).await.map_err(|error| {
        let shown: Vec<String> = program.iter().map(|word| golang::quote(word)).collect();
        complain(format!("command [{}] error ({})\n", shown.join(" "), error.text));
        Failure::silent(1)
    })
}

/// The open watches of the interactive mode: a stream, and for each watch a task that prints.
struct Watches {
    link_client: Client,
    printer: Printer,
    stream: Option<Watcher>,
    printing: BTreeMap<i64, mpsc::UnboundedSender<Result<pb::WatchResponse, Error>>>,
    /// Printing tasks tell here why the process has to end.
    failed: mpsc::UnboundedSender<Failure>,
}

async fn interactive(link: &Link, environment: &Environment) -> Result<(), Failure> {
    let mut lines = stdin_lines()?;
    let (failed, mut failures) = mpsc::unbounded_channel();
    let mut watches = Watches {
        link_client: link.client.clone(),
        printer: link.printer,
        stream: None,
        printing: BTreeMap::new(),
        failed,
    };
    loop {
        tokio::select! {
            line = lines.recv() => match line {
                Some(Ok(line)) => watches.line(&line, environment).await?,
                Some(Err(why)) => return Err(end_of_lines(&why)),
                None => return Err(end_of_lines("EOF")),
            },
            Some(failure) = failures.recv() => return Err(failure),
            answer = next(&mut watches.stream) => watches.answer(answer),
        }
    }
}

fn end_of_lines(why: &str) -> Failure {
    Failure::bad_input(format!("error reading watch request line: {why}"))
}

/// Waits forever where there is no stream.
async fn next(stream: &mut Option<Watcher>) -> Option<Result<pb::WatchResponse, Error>> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// Stdin, line by line, from a thread of its own: a terminal cannot be polled everywhere.
fn stdin_lines() -> Result<mpsc::UnboundedReceiver<Result<String, String>>, Failure> {
    let mut stdin = std::io::BufReader::new(Unbuffered::stdin()?);
    let (lines, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        loop {
            let mut line = Vec::new();
            let read = stdin.read_until(b'\n', &mut line).map_err(|e| e.to_string());
            // A last line without its end does not count, as in Go.
            let line = match read {
                Err(why) => Err(why),
                Ok(_) if line.pop() != Some(b'\n') => return,
                Ok(_) => Ok(words::from_bytes(line)),
            };
            let ended = line.is_err();
            if lines.send(line).is_err() || ended {
                return;
            }
        }
    });
    Ok(receiver)
}

impl Watches {
    async fn stream(&mut self) -> Result<WatchHandle, Failure> {
        if self.stream.is_none() {
            self.stream = Some(open(&self.link_client).await?);
        }
        Ok(self.stream.as_ref().expect("it was opened above").handle())
    }

    /// One line of stdin.
    ///
    /// # Errors
    /// Words that do not parse end the process, as in etcdctl; commands that are none are only complained about.
    async fn line(&mut self, line: &str, environment: &Environment) -> Result<(), Failure> {
        let mut words = split_words(line).map_err(Failure::bad_input)?;
        match words.first().map(String::as_str) {
            None => complain(format!("Invalid command: {line} (watch and progress supported)\n")),
            Some("watch") if words.len() < 2 && environment.key.is_empty() => {
                complain(format!("Invalid command {line} (command type or key is not provided)\n"));
            }
            Some("watch") => {
                let call = parse(&COMMAND, &words.split_off(1)).map_err(Failure::bad_args)?;
                let words = WatchWords::of(&call, environment, true).map_err(Failure::bad_args)?;
                match words.request(&call) {
                    Ok(request) => {
                        let id = self.stream().await?.add(request);
                        self.print(id, words.program);
                    }
                    Err(why) => complain(format!("Invalid command {line} ({why})\n")),
                }
            }
            Some("progress") => self.stream().await?.request_progress(),
            Some(_) => complain(format!("Invalid command {line} (only support watch)\n")),
        }
        Ok(())
    }

    /// Starts the task that prints what watch `id` brings.
    fn print(&mut self, id: i64, program: Vec<String>) {
        let (sender, mut answers) = mpsc::unbounded_channel();
        self.printing.insert(id, sender);
        let (printer, failed) = (self.printer, self.failed.clone());
        tokio::spawn(async move {
            while let Some(answer) = answers.recv().await {
                match show(printer, answer, &program).await {
                    Ok(false) => {}
                    Ok(true) => return,
                    Err(failure) => {
                        let _ = failed.send(failure);
                        return;
                    }
                }
            }
        });
    }

    /// Hands an answer to the task of its watch; the end of the stream to all of them.
    fn answer(&mut self, answer: Option<Result<pb::WatchResponse, Error>>) {
        match answer {
            Some(Ok(response)) => {
                let ended = response.canceled;
                let id = response.watch_id;
                if let Some(printing) = self.printing.get(&id) {
                    let _ = printing.send(Ok(response));
                }
                if ended {
                    self.printing.remove(&id);
                }
            }
            Some(Err(error)) => {
                for printing in std::mem::take(&mut self.printing).into_values() {
                    let _ = printing.send(Err(error.clone()));
                }
                self.stream = None;
            }
            None => self.stream = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(
        words: &[&str],
        key: &str,
        range_end: &str,
        line: bool,
    ) -> Result<(Vec<String>, Vec<String>), &'static str> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let call = parse(&COMMAND, &words).expect("flags that exist");
        let environment = Environment { key: key.to_owned(), range_end: range_end.to_owned() };
        WatchWords::of(&call, &environment, line).map(|found| (found.range, found.program))
    }

    #[test]
    fn words_are_split_into_a_range_and_a_program() {
        type Row =
            (&'static [&'static str], [&'static str; 2], bool, Result<[&'static [&'static str]; 2], &'static str>);
        let table: &[Row] = &[
            (&["foo", "bar"], ["", ""], false, Ok([&["foo", "bar"], &[]])),
            (&["foo", "bar", "--"], ["", ""], false, Err(NO_PROGRAM)),
            (
                &["foo", "--rev", "1", "bar", "--", "echo", "-n"],
                ["", ""],
                false,
                Ok([&["foo", "bar"], &["echo", "-n"]]),
            ),
            // A program whose word is also among its arguments is found all the same.
            (&["foo", "--", "echo", "echo"], ["", ""], false, Ok([&["foo"], &["echo", "echo"]])),
            (&[], ["", ""], false, Err(BAD_COUNT)),
            (&[], ["foo", "bar"], false, Ok([&["foo", "bar"], &[]])),
            (&["foo"], ["foo", ""], false, Err(CONFLICTING_ENVIRONMENT)),
            (&["foo", "--", "echo"], ["foo", ""], false, Err(CONFLICTING_ENVIRONMENT)),
            (&["--rev", "1", "--", "echo"], ["foo", "bar"], false, Ok([&["foo", "bar"], &["echo"]])),
            (&["bar", "--", "echo"], ["foo", ""], true, Ok([&["foo", "bar"], &["echo"]])),
            (&["--prefix", "--", "echo"], ["", ""], true, Ok([&[], &["echo"]])),
        ];
        for (words, [key, range_end], line, expected) in table {
            let strings = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            let expected = expected.map(|[range, program]| (strings(range), strings(program)));
            assert_eq!(split(words, key, range_end, *line), expected, "{words:?} {key:?} {line}");
        }
    }

    #[test]
    fn flags_make_the_request() {
        let words = |range: &[&str]| WatchWords {
            range: range.iter().map(|word| (*word).to_owned()).collect(),
            program: Vec::new(),
        };
        let call = |flags: &[&str]| {
            parse(&COMMAND, &flags.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).expect("flags that exist")
        };
        let request = words(&["a"]).request(&call(&["--prefix", "--rev=7", "--prev-kv"])).expect("a request");
        assert_eq!((request.range_end.as_ref(), request.start_revision, request.prev_kv), (&b"b"[..], 7, true));
        let request = words(&["a", "c", "ignored"]).request(&call(&[])).expect("a request");
        assert_eq!(request.range_end.as_ref(), b"", "only exactly two words are a range");
        assert!(words(&["a", "c"]).request(&call(&["--prefix"])).is_err());
        assert_eq!(words(&[]).request(&call(&[])).err(), Some(BAD_COUNT));
    }
}
