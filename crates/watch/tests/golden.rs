//! Runs the scripts in `tests/golden`: `> command`, then what it answers; the rest is commentary. With
//! `UPDATE_GOLDEN=1` the answers are rewritten instead of compared.
//!
//! ```text
//! > open STREAM [responses=N] [bytes=N]      > drain STREAM [MAX]
//! > create STREAM KEY [END] [start=N] [id=N] [noput] [nodelete] [prev] [progress] [fragment]
//! > cancel STREAM ID                         > progress STREAM      > refuse STREAM REASON
//! > put KEY=VALUE | del KEY | ...            one revision, notified at once
//! > miss put KEY=VALUE | ...                 one revision that arrives in a snapshot: restore follows
//! > hub near=N                               a hub that serves those at most N revisions behind by itself (else 0)
//! > restore     > compact N    > tick MILLIS    > close STREAM    > stats    > wakeups
//! > part put KEY=VALUE | ...                 the first events of a revision that nobody sees yet
//! > last put KEY=VALUE | ...                 the others; then readers see it
//! > work                                     one turn: done after each of the others as well
//! > catch-up                                 one slice of history
//! ```
//! A value `#N` is N letters long. `END` is `\0` for an open end; a key `-` is the empty one.

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real files")]

mod common;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{Op, Store, decode};
use dolmen_env::Mono;
use dolmen_proto::etcdserverpb::WatchResponse;
use dolmen_proto::mvccpb::KeyValue;
use dolmen_types::KeyRange;
use dolmen_watch::{Config, CreateRequest, Hub, Limits, Outbox, StreamId};

struct World {
    store: Store,
    hub: Hub,
    outboxes: BTreeMap<u64, Arc<Outbox>>,
    /// What `part` has changed so far.
    parts: Vec<Op>,
}

fn number(text: &str) -> u64 {
    text.trim_start_matches('s').parse().expect("a number")
}

fn key(text: &str) -> Bytes {
    Bytes::copy_from_slice(if text == "-" { b"" } else { text.as_bytes() })
}

fn ops(text: &str) -> Vec<Op> {
    text.split(" | ")
        .map(|op| match op.split_once(' ') {
            Some(("put", pair)) => {
                let (name, value) = pair.split_once('=').expect("KEY=VALUE");
                let value = match value.strip_prefix('#') {
                    Some(len) => vec![b'x'; number(len) as usize].into(),
                    None => Bytes::copy_from_slice(value.as_bytes()),
                };
                Op::Put(key(name), value)
            }
            Some(("del", name)) => Op::Delete(key(name)),
            _ => panic!("no change: {op}"),
        })
        .collect()
}

fn show_kv(kv: &KeyValue) -> String {
    let value = match kv.value.len() {
        len @ 33.. => format!("#{len}"),
        _ => String::from_utf8_lossy(&kv.value).into_owned(),
    };
    format!("{}={value}@{}.{}v{}", String::from_utf8_lossy(&kv.key), kv.create_revision, kv.mod_revision, kv.version)
}

fn show(response: &WatchResponse) -> String {
    let header = response.header.as_ref().expect("every response has a header");
    assert_eq!((header.cluster_id, header.member_id, header.raft_term), (7, 8, 9));
    let mut out = format!("{} rev={}", response.watch_id, header.revision);
    for (flag, name) in
        [(response.created, " created"), (response.canceled, " canceled"), (response.fragment, " fragment")]
    {
        out += if flag { name } else { "" };
    }
    if response.compact_revision != 0 {
        write!(out, " compact_revision={}", response.compact_revision).expect("a string takes all");
    }
    if !response.cancel_reason.is_empty() {
        write!(out, " {:?}", response.cancel_reason).expect("a string takes all");
    }
    for event in &response.events {
        let kv = event.kv.as_ref().expect("every event has a key");
        if event.r#type == 0 {
            write!(out, " put {}", show_kv(kv)).expect("a string takes all");
        } else {
            let name = String::from_utf8_lossy(&kv.key);
            assert_eq!(*kv, KeyValue { key: kv.key.clone(), mod_revision: kv.mod_revision, ..Default::default() });
            write!(out, " del {name}@{}", kv.mod_revision).expect("a string takes all");
        }
        if let Some(before) = &event.prev_kv {
            write!(out, " (was {})", show_kv(before)).expect("a string takes all");
        }
    }
    out
}

impl World {
    fn new(near: i64) -> Self {
        let config = Config {
            cluster_id: 7,
            member_id: 8,
            max_request_bytes: 1000,
            progress_interval: Duration::from_millis(1000),
            near_revisions: near,
            ..Config::default()
        };
        let mut hub = Hub::new(config, 1);
        hub.set_term(9);
        Self { store: Store::default(), hub, outboxes: BTreeMap::new(), parts: Vec::new() }
    }

    fn work(&mut self) {
        while self.hub.work(&self.store).expect("the model store reads") {}
    }

    fn create(&mut self, stream: StreamId, words: &[&str]) {
        let (end, options) = match words[1..].split_first() {
            Some((end, rest)) if words.len() > 1 && !is_option(end) => (*end, rest),
            _ => ("", &words[1..]),
        };
        let end = if end == "\\0" { Bytes::from_static(b"\0") } else { Bytes::copy_from_slice(end.as_bytes()) };
        let mut request = CreateRequest::new(KeyRange::parse(key(words[0]), end));
        for option in options {
            match option.split_once('=') {
                Some(("start", value)) => request.start_revision = value.parse().expect("a number"),
                Some(("id", value)) => request.watch_id = value.parse().expect("a number"),
                _ => match *option {
                    "noput" => request.no_put = true,
                    "nodelete" => request.no_delete = true,
                    "prev" => request.prev_kv = true,
                    "progress" => request.progress_notify = true,
                    "fragment" => request.fragment = true,
                    other => panic!("no option: {other}"),
                },
            }
        }
        self.hub.create(stream, request, self.store.current, self.store.compact);
    }

    fn run(&mut self, command: &str) -> String {
        let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        let stream = words.first().filter(|word| word.starts_with('s')).map(|word| StreamId(number(word)));
        let stream = stream.unwrap_or(StreamId(0));
        let mut out = String::new();
        match verb {
            "open" => {
                let mut limits = Limits::default();
                for word in &words[1..] {
                    match word.split_once('=') {
                        Some(("responses", value)) => limits.responses = number(value) as usize,
                        Some(("bytes", value)) => limits.bytes = number(value) as usize,
                        _ => panic!("no option: {word}"),
                    }
                }
                let outbox = Arc::new(Outbox::new(0, stream.0, limits));
                self.hub.open(stream, outbox.clone());
                self.outboxes.insert(stream.0, outbox);
            }
            "create" => self.create(stream, &words[1..]),
            "cancel" => self.hub.cancel(stream, words[1].parse().expect("a watch id")),
            "progress" => self.hub.progress(stream),
            "refuse" => self.hub.refuse(stream, &words[1..].join(" ")),
            "close" => self.hub.close(stream),
            "put" | "del" => {
                let events = self.store.commit(ops(command));
                self.hub.notify(events);
            }
            "hub" => *self = Self::new(number(rest.trim_start_matches("near=")) as i64),
            "part" => {
                let known = self.parts.len();
                self.parts.extend(ops(rest));
                let events = self.store.clone().apply(self.parts.clone());
                self.hub.notify_part(events[known..].to_vec());
            }
            "last" => {
                let known = self.parts.len();
                self.parts.extend(ops(rest));
                let events = self.store.commit(std::mem::take(&mut self.parts));
                self.hub.notify_part(events[known..].to_vec());
                self.hub.notify_end(self.store.current);
            }
            "work" => {}
            "miss" => drop(self.store.commit(ops(rest))),
            "restore" => self.hub.on_restore(self.store.current),
            "compact" => self.store.compact = rest.parse().expect("a revision"),
            "catch-up" => {
                let Some(scan) = self.hub.next_scan() else { return "nothing to read\n".into() };
                self.hub.scanned(scan.run(&self.store)).expect("the model store reads");
            }
            "tick" => self.hub.tick(Mono::from_millis(number(words[0]))),
            "drain" => {
                let max = words.get(1).map_or(usize::MAX, |word| number(word) as usize);
                let outbox = self.outboxes[&stream.0].clone();
                loop {
                    let drained = outbox.drain(max);
                    for frame in &drained.frames {
                        out += &show(&decode(frame));
                        out.push('\n');
                    }
                    if drained.room {
                        out += "room\n";
                        self.hub.room(stream);
                    }
                    if !drained.more || max < usize::MAX {
                        break;
                    }
                }
            }
            "wakeups" => {
                for (_, slot) in self.hub.take_wakeups() {
                    writeln!(out, "s{slot}").expect("a string takes all");
                }
            }
            "stats" => writeln!(out, "{:?}", self.hub.stats()).expect("a string takes all"),
            _ => panic!("no command: {command}"),
        }
        self.work();
        out
    }
}

fn is_option(word: &str) -> bool {
    word.contains('=') || ["noput", "nodelete", "prev", "progress", "fragment"].contains(&word)
}

/// A script with its answers as they are now. A blank line or a comment ends a command's answers.
fn rerun(script: &str) -> String {
    let mut world = World::new(0);
    let mut out = String::new();
    let mut answers = false;
    for line in script.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            writeln!(out, "{line}").expect("a string takes all");
            out += &world.run(command);
            answers = true;
        } else if line.is_empty() || line.starts_with('#') {
            writeln!(out, "{line}").expect("a string takes all");
            answers = false;
        } else {
            assert!(answers, "an answer without a command: {line}");
        }
    }
    out
}

#[test]
fn scripts_answer_as_written() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("scripts").map(|entry| entry.expect("a script").path()).collect();
    paths.sort();
    assert!(paths.len() > 5, "scripts are missing");
    for path in paths {
        let script = std::fs::read_to_string(&path).expect("a script reads");
        let now = rerun(&script);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, now).expect("a script can be written");
        } else {
            assert_eq!(now, script, "{}", path.display());
        }
    }
}
