//! The dialect of whole groups: members, the messages between them, their storage work, and everything they log.
//!
//! A group is a list of members with ids from 1, a bag of messages in flight, and one output to which both the commands
//! and the members' log lines go. Members run with or without async storage writes. The state machine appends payloads;
//! each applied entry makes a snapshot.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dolmen_proto::raftpb::{
    ConfChange, ConfChangeTransition, ConfChangeV2, ConfState, Entry, EntryType, HardState, Message, MessageType,
    Snapshot, SnapshotMetadata,
};
use dolmen_raft::{
    Config, Level, LogSink, Logger, MemoryStorage, NO_LIMIT, RawNode, ReadOnlyOption, Storage, StorageError, describe,
    is_local_target, snapshot_index,
};
use prost::Message as _;

use crate::changes::parse_changes;
use crate::datadriven::{Directive, number};

const LEVELS: [&str; 6] = ["DEBUG", "INFO", "WARN", "ERROR", "FATAL", "NONE"];
const QUIET: usize = LEVELS.len() - 1;

#[derive(Default)]
struct Text {
    text: String,
    level: usize,
}

/// The output, shared with the members' loggers.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Text>>);

impl Output {
    fn with<T>(&self, act: impl FnOnce(&mut Text) -> T) -> T {
        act(&mut self.0.lock().expect("nobody panics while writing output"))
    }

    fn put(&self, text: &str) {
        self.with(|out| {
            if out.level != QUIET {
                out.text += text;
            }
        });
    }

    fn line(&self, text: &str) {
        self.put(&format!("{text}\n"));
    }
}

impl LogSink for Output {
    fn enabled(&self, level: Level) -> bool {
        self.with(|out| out.level <= level as usize)
    }

    fn log(&self, level: Level, line: fmt::Arguments<'_>) {
        self.line(&format!("{} {line}", LEVELS[level as usize]));
    }
}

/// Memory storage whose snapshot is always the newest state of the state machine.
struct ScriptStorage {
    memory: MemoryStorage,
    history: Vec<Snapshot>,
}

impl ScriptStorage {
    fn newest(&self) -> &Snapshot {
        self.history.last().expect("a member begins with a snapshot")
    }
}

impl Storage for ScriptStorage {
    fn initial_state(&self) -> Result<(HardState, ConfState), StorageError> {
        self.memory.initial_state()
    }
    fn entries(&self, low: u64, high: u64, max_size: u64) -> Result<Vec<Entry>, StorageError> {
        self.memory.entries(low, high, max_size)
    }
    fn term(&self, index: u64) -> Result<u64, StorageError> {
        self.memory.term(index)
    }
    fn last_index(&self) -> u64 {
        self.memory.last_index()
    }
    fn first_index(&self) -> u64 {
        self.memory.first_index()
    }
    fn snapshot(&self) -> Result<Snapshot, StorageError> {
        Ok(self.newest().clone())
    }
}

struct Member {
    node: RawNode<ScriptStorage>,
    config: Config,
    append_work: VecDeque<Message>,
    apply_work: VecDeque<Message>,
}

#[derive(Default)]
pub struct Group {
    members: Vec<Member>,
    messages: Vec<Message>,
    output: Output,
}

impl Group {
    /// Runs one command and gives what it printed.
    pub fn handle(&mut self, directive: &Directive) -> String {
        self.output.with(|out| out.text.clear());
        let outcome = self.dispatch(directive);
        self.output.with(|out| {
            if let Err(error) = outcome {
                // Errors are heard at every level.
                if out.level == QUIET {
                    return error;
                }
                out.text += &error;
            }
            if out.text.is_empty() { "ok".to_owned() } else { std::mem::take(&mut out.text) }
        })
    }

    fn dispatch(&mut self, directive: &Directive) -> Result<(), String> {
        let first = || directive.args.first().map_or("", |arg| arg.key.as_str());
        // Ids from 1, positions from 0.
        let at = || number(first()) as usize - 1;
        match directive.command.as_str() {
            "add-nodes" => self.add_members(directive),
            "campaign" => self.members[at()].node.campaign().map_err(|error| error.to_string()),
            "compact" => {
                let index = number(&directive.args[1].key);
                let storage = self.members[at()].node.storage_mut();
                storage.memory.compact(index).map_err(|error| error.to_string())?;
                self.print_log(at());
                Ok(())
            }
            "deliver-msgs" => {
                self.deliver_command(directive);
                Ok(())
            }
            "forget-leader" => {
                self.members[at()].node.forget_leader();
                Ok(())
            }
            "log-level" => self.set_level(first()),
            "process-ready" => self.for_each(directive, "handling Ready", Self::process_ready),
            "process-append-thread" => {
                self.for_each(directive, "processing append thread", Self::process_append_thread)
            }
            "process-apply-thread" => self.for_each(directive, "processing apply thread", Self::process_apply_thread),
            "propose" => {
                let data = Bytes::copy_from_slice(directive.args[1].key.as_bytes());
                self.members[at()].node.propose(data).map_err(|error| error.to_string())
            }
            "propose-conf-change" => self.propose_change(at(), directive),
            "raft-log" => {
                self.print_log(at());
                Ok(())
            }
            "raft-state" => {
                self.print_states();
                Ok(())
            }
            "report-unreachable" => {
                let ids = directive.numbers();
                self.members[ids[0] as usize - 1].node.report_unreachable(ids[1]);
                Ok(())
            }
            "send-snapshot" => {
                let ids = directive.numbers();
                self.send_snapshot(ids[0], ids[1]);
                Ok(())
            }
            "set-randomized-election-timeout" => {
                let ticks = number(directive.value("timeout").expect("a timeout"));
                self.members[at()].node.set_randomized_election_timeout(ticks as usize);
                Ok(())
            }
            "stabilize" => self.stabilize_command(directive),
            "status" => {
                let status = self.members[at()].node.status();
                self.output.put(&status.progress.to_string());
                Ok(())
            }
            "tick-election" => self.tick(at(), self.members[at()].config.election_tick),
            "tick-heartbeat" => self.tick(at(), self.members[at()].config.heartbeat_tick),
            "transfer-leadership" => {
                let id = |key| number(directive.value(key).expect("from and to"));
                self.members[id("from") as usize - 1].node.transfer_leader(id("to"));
                Ok(())
            }
            other => panic!("unknown command {other}"),
        }
    }

    fn set_level(&mut self, name: &str) -> Result<(), String> {
        let level = LEVELS.iter().position(|known| known.eq_ignore_ascii_case(name));
        let level = level.ok_or_else(|| format!("log levels must be either of {LEVELS:?}"))?;
        self.output.with(|out| out.level = level);
        Ok(())
    }

    fn tick(&mut self, at: usize, ticks: usize) -> Result<(), String> {
        for _ in 0..ticks {
            self.members[at].node.tick();
        }
        Ok(())
    }

    fn add_members(&mut self, directive: &Directive) -> Result<(), String> {
        let mut config = Config {
            election_tick: 3,
            heartbeat_tick: 1,
            max_size_per_msg: NO_LIMIT,
            max_inflight_msgs: i32::MAX as usize,
            check_quorum: false,
            pre_vote: false,
            logger: Logger::new(Arc::new(self.output.clone())),
            ..Config::new(1)
        };
        let mut metadata = SnapshotMetadata { conf_state: Some(ConfState::default()), ..SnapshotMetadata::default() };
        let mut data = Bytes::new();
        for arg in &directive.args[1..] {
            for value in &arg.values {
                let members = metadata.conf_state.get_or_insert_default();
                let on = value == "true";
                match arg.key.as_str() {
                    "voters" => members.voters.push(number(value)),
                    "learners" => members.learners.push(number(value)),
                    "inflight" => config.max_inflight_msgs = number(value) as usize,
                    "index" => {
                        metadata.index = number(value);
                        config.applied = metadata.index;
                    }
                    "content" => data = Bytes::copy_from_slice(value.as_bytes()),
                    "async-storage-writes" => config.async_storage_writes = on,
                    "prevote" => config.pre_vote = on,
                    "checkquorum" => config.check_quorum = on,
                    "max-committed-size-per-ready" => config.max_committed_size_per_ready = number(value),
                    "disable-conf-change-validation" => config.disable_conf_change_validation = on,
                    "read-only" if value == "safe" => config.read_only_option = ReadOnlyOption::Safe,
                    "read-only" if value == "lease-based" => config.read_only_option = ReadOnlyOption::LeaseBased,
                    "step-down-on-removal" => config.step_down_on_removal = on,
                    other => panic!("unknown argument {other}={value}"),
                }
            }
        }
        let founded = metadata.index != 0 || !data.is_empty() || metadata.conf_state != Some(ConfState::default());
        if founded {
            assert!(metadata.index > 1, "index must be specified as > 1 due to bootstrap");
            metadata.term = 1;
        }
        let snapshot = Snapshot { data, metadata: Some(metadata) };
        for _ in 0..number(&directive.args[0].key) {
            let mut memory = MemoryStorage::new();
            if founded {
                memory.apply_snapshot(snapshot.clone()).map_err(|error| error.to_string())?;
            }
            let config = Config { id: self.members.len() as u64 + 1, ..config.clone() };
            let storage = ScriptStorage { memory, history: vec![snapshot.clone()] };
            let node = RawNode::new(&config, storage).map_err(|error| error.to_string())?;
            self.members.push(Member { node, config, append_work: VecDeque::new(), apply_work: VecDeque::new() });
        }
        Ok(())
    }

    fn propose_change(&mut self, at: usize, directive: &Directive) -> Result<(), String> {
        let transition = match directive.value("transition") {
            None | Some("auto") => ConfChangeTransition::Auto,
            Some("implicit") => ConfChangeTransition::JointImplicit,
            Some("explicit") => ConfChangeTransition::JointExplicit,
            Some(other) => panic!("unknown transition {other}"),
        };
        let changes = parse_changes(&directive.input);
        let node = &mut self.members[at].node;
        let outcome = if directive.value("v1") == Some("true") {
            let [change] = changes[..] else { panic!("a v1 change has one operation") };
            let change = ConfChange { r#type: change.r#type, node_id: change.node_id, ..ConfChange::default() };
            node.propose_conf_change(&change)
        } else {
            let change = ConfChangeV2 { transition: transition as i32, changes, ..ConfChangeV2::default() };
            node.propose_conf_change_v2(&change)
        };
        outcome.map_err(|error| error.to_string())
    }

    fn print_log(&self, at: usize) {
        let storage = &self.members[at].node.storage().memory;
        let (first, last) = (storage.first_index(), storage.last_index());
        if last < first {
            return self.output.put(&format!("log is empty: first index={first}, last index={last}"));
        }
        let entries = storage.entries(first, last + 1, NO_LIMIT).expect("the whole window");
        self.output.put(&describe::entries(&entries));
    }

    fn print_states(&self) {
        for member in &self.members {
            let status = member.node.status();
            let voter = status.config.voters.contains(status.basic.id);
            self.output.line(&format!(
                "{}: {} {} Term:{} Lead:{}",
                status.basic.id,
                status.basic.role,
                if voter { "(Voter)" } else { "(Non-Voter)" },
                status.basic.term,
                status.basic.leader_id
            ));
        }
    }

    fn send_snapshot(&mut self, from: u64, to: u64) {
        let node = &self.members[from as usize - 1].node;
        let message = Message {
            r#type: MessageType::MsgSnap as i32,
            term: node.basic_status().term,
            from,
            to,
            snapshot: Some(node.storage().newest().clone()),
            ..Message::default()
        };
        self.output.put(&describe::message(&message));
        self.messages.push(message);
    }

    /// Runs a step for every member named, with a heading each when there are several.
    fn for_each(
        &mut self,
        directive: &Directive,
        what: &str,
        mut step: impl FnMut(&mut Self, usize) -> Result<(), String>,
    ) -> Result<(), String> {
        let ids = directive.numbers();
        for &id in &ids {
            let at = id as usize - 1;
            if ids.len() > 1 {
                self.output.line(&format!("> {id} {what}"));
                self.indented(|group| step(group, at))?;
            } else {
                step(self, at)?;
            }
        }
        Ok(())
    }

    fn indented<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.output.with(|out| std::mem::take(&mut out.text));
        let result = act(self);
        self.output.with(|out| {
            let inner = std::mem::replace(&mut out.text, before);
            for line in inner.lines() {
                out.text += &format!("  {line}\n");
            }
        });
        result
    }

    fn process_ready(&mut self, at: usize) -> Result<(), String> {
        let member = &mut self.members[at];
        let mut ready = member.node.ready();
        self.output.put(&describe::ready(&ready));
        let messages = std::mem::take(&mut ready.messages);
        if !member.config.async_storage_writes {
            write(member, ready.hard_state, std::mem::take(&mut ready.entries), ready.snapshot.take())?;
            apply(member, &ready.committed_entries)?;
        }
        for message in messages {
            match MessageType::try_from(message.r#type) {
                Ok(MessageType::MsgStorageAppend) => member.append_work.push_back(message),
                Ok(MessageType::MsgStorageApply) => member.apply_work.push_back(message),
                _ => self.messages.push(message),
            }
        }
        if !member.config.async_storage_writes {
            member.node.advance(ready);
        }
        Ok(())
    }

    fn process_append_thread(&mut self, at: usize) -> Result<(), String> {
        let Some(mut work) = self.members[at].append_work.pop_front() else {
            self.output.put("no append work to perform");
            return Ok(());
        };
        let responses = self.announce(&mut work);
        let state = HardState { term: work.term, vote: work.vote, commit: work.commit };
        let state = (state != HardState::default()).then_some(state);
        write(&mut self.members[at], state, work.entries, work.snapshot)?;
        self.queue_responses(responses);
        Ok(())
    }

    fn process_apply_thread(&mut self, at: usize) -> Result<(), String> {
        let Some(mut work) = self.members[at].apply_work.pop_front() else {
            self.output.put("no apply work to perform");
            return Ok(());
        };
        let responses = self.announce(&mut work);
        apply(&mut self.members[at], &work.entries)?;
        self.queue_responses(responses);
        Ok(())
    }

    fn announce(&self, work: &mut Message) -> Vec<Message> {
        let responses = std::mem::take(&mut work.responses);
        self.output.line(&format!("Processing:\n{}", describe::message(work)));
        responses
    }

    fn queue_responses(&mut self, responses: Vec<Message>) {
        self.output.line("Responses:");
        for response in &responses {
            self.output.line(&describe::message(response));
        }
        self.messages.extend(responses);
    }

    fn deliver_command(&mut self, directive: &Directive) {
        let kind = directive.value("type").map(|name| {
            MessageType::from_str_name(name).unwrap_or_else(|| panic!("unknown message type {name}")) as i32
        });
        let mut handled = 0;
        for arg in &directive.args {
            match arg.key.as_str() {
                "type" => {}
                "drop" => {
                    handled += arg.values.iter().map(|id| self.deliver(number(id), kind, true)).sum::<usize>();
                }
                id => handled += self.deliver(number(id), kind, false),
            }
        }
        if handled == 0 {
            self.output.line("no messages");
        }
    }

    /// Takes the messages to one member out of the bag. What a member owes itself cannot be dropped.
    fn deliver(&mut self, id: u64, kind: Option<i32>, drop: bool) -> usize {
        let (chosen, rest) = std::mem::take(&mut self.messages).into_iter().partition(|message| {
            message.to == id && !(drop && is_local(message)) && kind.is_none_or(|kind| message.r#type == kind)
        });
        self.messages = rest;
        let chosen: Vec<Message> = chosen;
        let count = chosen.len();
        for message in chosen {
            let prefix = if drop { "dropped: " } else { "" };
            self.output.line(&format!("{prefix}{}", describe::message(&message)));
            if drop {
                continue;
            }
            let node = &mut self.members[id as usize - 1].node;
            let outcome = if is_local(&message) { node.step_local(message) } else { node.step(message) };
            if let Err(error) = outcome {
                self.output.line(&error.to_string());
            }
        }
        count
    }

    fn stabilize_command(&mut self, directive: &Directive) -> Result<(), String> {
        let level = self.output.with(|out| out.level);
        if let Some(name) = directive.value("log-level") {
            self.set_level(name)?;
        }
        let mut ids = directive.numbers();
        if ids.is_empty() {
            ids = (1..=self.members.len() as u64).collect();
        }
        let outcome = self.stabilize(&ids);
        self.output.with(|out| out.level = level);
        outcome
    }

    /// Carries out work and delivers messages until there is none left.
    fn stabilize(&mut self, ids: &[u64]) -> Result<(), String> {
        loop {
            let mut done = true;
            for &id in ids {
                let at = id as usize - 1;
                if self.members[at].node.has_ready() {
                    done = false;
                    self.output.line(&format!("> {id} handling Ready"));
                    self.indented(|group| group.process_ready(at))?;
                }
            }
            for &id in ids {
                if self.messages.iter().any(|message| message.to == id) {
                    done = false;
                    self.output.line(&format!("> {id} receiving messages"));
                    self.indented(|group| group.deliver(id, None, false));
                }
            }
            for &id in ids {
                let at = id as usize - 1;
                if !self.members[at].append_work.is_empty() {
                    done = false;
                    self.output.line(&format!("> {id} processing append thread"));
                }
                while !self.members[at].append_work.is_empty() {
                    self.indented(|group| group.process_append_thread(at))?;
                }
            }
            for &id in ids {
                let at = id as usize - 1;
                if !self.members[at].apply_work.is_empty() {
                    done = false;
                    self.output.line(&format!("> {id} processing apply thread"));
                }
                while !self.members[at].apply_work.is_empty() {
                    self.indented(|group| group.process_apply_thread(at))?;
                }
            }
            if done {
                return Ok(());
            }
        }
    }
}

/// True for what passes between a member and itself.
fn is_local(message: &Message) -> bool {
    message.from == message.to || is_local_target(message.from) || is_local_target(message.to)
}

fn write(
    member: &mut Member,
    state: Option<HardState>,
    entries: Vec<Entry>,
    snapshot: Option<Snapshot>,
) -> Result<(), String> {
    let memory = &mut member.node.storage_mut().memory;
    if let Some(state) = state {
        memory.set_hard_state(state);
    }
    if let Some(snapshot) = snapshot.filter(|snapshot| snapshot_index(snapshot) != 0) {
        assert!(entries.is_empty(), "a snapshot and entries at the same time");
        return memory.apply_snapshot(snapshot).map_err(|error| error.to_string());
    }
    memory.append(entries).map_err(|error| error.to_string())
}

fn apply(member: &mut Member, entries: &[Entry]) -> Result<(), String> {
    for entry in entries {
        let node = &mut member.node;
        let (update, conf_state) = match EntryType::try_from(entry.r#type) {
            Ok(EntryType::EntryConfChange) => {
                let change = ConfChange::decode(entry.data.clone()).map_err(|error| error.to_string())?;
                let state = node.apply_conf_change(&change).map_err(|error| error.to_string())?;
                (change.context, Some(state))
            }
            Ok(EntryType::EntryConfChangeV2) => {
                let change = ConfChangeV2::decode(entry.data.clone()).map_err(|error| error.to_string())?;
                let state = node.apply_conf_change_v2(&change).map_err(|error| error.to_string())?;
                (change.context, Some(state))
            }
            _ => (entry.data.clone(), None),
        };
        let storage = node.storage_mut();
        let newest = storage.newest();
        let data = [&newest.data[..], &update[..]].concat().into();
        let conf_state =
            conf_state.or_else(|| newest.metadata.as_ref().and_then(|metadata| metadata.conf_state.clone()));
        let metadata = SnapshotMetadata { conf_state, index: entry.index, term: entry.term };
        storage.history.push(Snapshot { data, metadata: Some(metadata) });
    }
    Ok(())
}
