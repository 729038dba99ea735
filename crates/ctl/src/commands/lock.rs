//! `lock`: holds a named lock until a signal, or while a program runs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use dolmen_cli::{Call, Command, Failure, Flag, words};
use dolmen_client::{Error, Mutex, Session};
use dolmen_proto::etcdserverpb as pb;

use crate::connect::{self, Limit, Link};
use crate::hints;
use crate::process::{self, Stop};
use crate::tool::CONCURRENCY;

/// `lock`
pub static COMMAND: Command = Command {
    usage: "lock <lockname> [exec-command arg1 arg2 ...]",
    short: "Acquires a named lock",
    group: CONCURRENCY,
    flags: &[Flag::int("ttl", "10", "timeout for session")],
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    let Some((name, program)) = call.args().split_first() else {
        return Err(Failure::bad_args("lock takes a lock name argument and an optional command to execute"));
    };
    let ttl = call.int("ttl");
    connect::run(call, Limit::None, async |link| {
        let session = Session::new(&link.client, ttl).await.map_err(|e| hints::failure(&e))?;
        hold(&link, &session, name, program).await
    })
}

async fn hold(link: &Link, session: &Session, name: &str, program: &[String]) -> Result<(), Failure> {
    let mut stop = Stop::new()?;
    let mut mutex = Mutex::new(session, name);
    let locked = tokio::select! {
        locked = mutex.lock() => Some(locked),
        () = stop.wait() => None,
    };
    match locked {
        Some(locked) => locked.map_err(|e| hints::failure(&e))?,
        None => {
            // Leaves the queue; the signal is what ends the command, whatever comes of this.
            let _ = mutex.unlock().await;
            return Err(hints::failure(&Error::canceled()));
        }
    }
    if !program.is_empty() {
        return run_locked(&mut mutex, program).await;
    }
    let request = pb::RangeRequest { key: mutex.key().to_owned().into(), ..Default::default() };
    let own = tokio::select! {
        own = link.client.range(request) => own.map_err(|e| hints::failure(&e))?,
        () = stop.wait() => return Err(hints::failure(&Error::canceled())),
    };
    if own.kvs.is_empty() {
        return Err(Failure::error("lock lost on init"));
    }
    link.printer.get(&own)?;
    tokio::select! {
        () = stop.wait() => mutex.unlock().await.map_err(|e| hints::failure(&e)),
        () = session.done() => Err(Failure::error("session expired")),
    }
}

/// Runs a program under the lock, which it finds in `ETCD_LOCK_KEY` and `ETCD_LOCK_REV`, and unlocks.
///
/// The exit code is the program's. Signals are its own business meanwhile: a terminal sends them to both.
async fn run_locked(mutex: &mut Mutex<'_>, program: &[String]) -> Result<(), Failure> {
    let revision = mutex.header().map_or(0, |header| header.revision);
    let lock = [("ETCD_LOCK_KEY", mutex.key().to_owned()), ("ETCD_LOCK_REV", revision.to_string())];
    // Variables of that name which are there already stay as they are.
    let environment: BTreeMap<_, _> = lock
        .into_iter()
        .filter(|(name, _)| std::env::var_os(name).is_none())
        .map(|(name, value)| (name, OsString::from(value)))
        .collect();
    let command = program.iter().map(|word| OsString::from_vec(words::bytes(word))).collect();
    let ended = process::run(command, environment).await;
    let unlocked = mutex.unlock().await;
    ended.map_err(|e| Failure::new(e.code, e.text))?;
    unlocked.map_err(|e| hints::failure(&e))
}
