//! What has to stay the same when data goes from one server to another, asked of the server with Go's etcdctl, and of
//! the database with Dolmen's `bbolt` commands.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::go::Judge;
use crate::run::{self, Result};

/// Leases that are looked at one by one.
const LEASES: usize = 3;

/// What every server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Hash, revision and compact revision of each member, as text.
    pub hashes: Vec<String>,
    /// Ids and roles of the members, and the cluster's.
    pub members: Vec<String>,
    /// Each lease; the first [`LEASES`] with the seconds they were granted, and their keys.
    pub leases: Vec<String>,
    /// Alarms that are raised.
    pub alarms: Vec<String>,
}

impl State {
    /// Asks all of `endpoints`, separated by commas.
    ///
    /// # Errors
    /// One does not answer.
    pub fn of(endpoints: &str) -> Result<Self> {
        Self::told(&|arguments| run::text(etcdctl(endpoints).args(arguments)))
    }

    /// As [`State::of`], where authentication is on.
    ///
    /// # Errors
    /// One does not answer.
    pub fn of_as(endpoints: &str, user: &str) -> Result<Self> {
        Self::told(&|arguments| run::text(etcdctl(endpoints).args(arguments).args(["--user", user])))
    }

    fn told(ask: &dyn Fn(&[&str]) -> Result<String>) -> Result<Self> {
        let hash = ask(&["endpoint", "hashkv", "-w", "json"])?;
        let members = ask(&["member", "list", "-w", "json"])?;
        let field = |json: &str, name: &str| -> Vec<String> {
            let name = format!("\"{name}\":");
            let found = json.split(&name).skip(1);
            found.map(|rest| rest.chars().take_while(|c| !",}]".contains(*c)).collect()).collect()
        };
        // Left out of the JSON where it is 0, which it then is everywhere.
        let mut compacted = field(&hash, "compact_revision").into_iter();
        let hashes = field(&hash, "hash").into_iter().zip(field(&hash, "revision")).map(|(hash, revision)| {
            format!("{hash} at {revision}, compacted at {}", compacted.next().unwrap_or_default())
        });
        let hashes = hashes.collect();
        let mut ids = field(&members, "ID");
        ids.extend(field(&members, "isLearner"));
        ids.extend(field(&members, "cluster_id"));
        let mut leases: Vec<String> = ask(&["lease", "list"])?.lines().map(str::to_owned).collect();
        leases.sort();
        // The first line is their number; one that is asked for each costs a process.
        for id in leases.iter_mut().filter(|line| !line.contains(' ')).take(LEASES) {
            *id = lease(&ask(&["lease", "timetolive", id, "--keys", "-w", "json"])?)?;
        }
        let mut alarms: Vec<String> = ask(&["alarm", "list"])?.lines().map(str::to_owned).collect();
        alarms.sort();
        Ok(Self { hashes, members: ids, leases, alarms })
    }

    /// # Errors
    /// It is not what was found; shows both.
    pub fn expect(&self, what: &str, found: &Self) -> Result {
        if self == found { Ok(()) } else { Err(format!("{what}: was {self:?}, is {found:?}")) }
    }

    /// As [`State::expect`], of a new cluster: the keys and leases alone.
    ///
    /// # Errors
    /// They differ.
    pub fn expect_keys(&self, what: &str, found: &Self) -> Result {
        if self.hashes.first() == found.hashes.first() && self.leases == found.leases {
            return Ok(());
        }
        let (was, is) = ((&self.hashes, &self.leases), (&found.hashes, &found.leases));
        Err(format!("{what}: {was:?} became {is:?}"))
    }

    /// The hash of the first member, as text.
    pub fn hash(&self) -> &str {
        self.hashes.first().map(String::as_str).unwrap_or_default()
    }
}

/// A lease as `timetolive` has it: what goes on counting down is only held to its bounds.
fn lease(json: &str) -> Result<String> {
    let wrong = || format!("etcdctl lease timetolive: {json}");
    let value: Value = serde_json::from_str(json).map_err(|_| wrong())?;
    let number = |name: &str| value[name].as_i64().ok_or_else(wrong);
    let (id, granted, left) = (number("id")?, number("granted-ttl")?, number("ttl")?);
    if left > granted || left < granted - 900 {
        return Err(format!("lease {id:x} of {granted} seconds has {left} left"));
    }
    let mut keys: Vec<&str> = value["keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    keys.sort_unstable();
    Ok(format!("{id:x} {granted} s: {}", keys.join(",")))
}

/// Users and roles as a server tells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth(Vec<String>);

impl Auth {
    /// # Errors
    /// The server does not answer.
    pub fn of_as(endpoints: &str, user: Option<&str>) -> Result<Self> {
        let user: Vec<&str> = user.into_iter().flat_map(|user| ["--user", user]).collect();
        let mut told = Vec::new();
        for kind in ["user", "role"] {
            let names = run::text(etcdctl(endpoints).args([kind, "list"]).args(&user))?;
            for name in names.lines().filter(|name| !name.is_empty()) {
                told.push(run::text(etcdctl(endpoints).args([kind, "get", name]).args(&user))?);
            }
        }
        Ok(Self(told))
    }

    /// # Errors
    /// They differ.
    pub fn expect(&self, what: &str, found: &Self) -> Result {
        if self == found { Ok(()) } else { Err(format!("{what}: was {self:?}, is {found:?}")) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Buckets whose bytes stay as they were, password hashes among them.
const KEPT_BUCKETS: [&str; 5] = ["auth", "authUsers", "authRoles", "alarm", "members_removed"];

/// The bytes of [`KEPT_BUCKETS`] in a database; `tools` is Dolmen's binary.
///
/// # Errors
/// It cannot be read.
pub fn kept_buckets(tools: &Path, db: &Path) -> Result<Vec<String>> {
    let bbolt = |arguments: &[&str]| {
        let (command, rest) = arguments.split_first().map_or(("", arguments), |(first, rest)| (*first, rest));
        run::text(Command::new(tools).args(["utl", "bbolt", command]).arg(db).args(rest))
    };
    let there = bbolt(&["buckets"])?;
    let mut all = Vec::new();
    for bucket in KEPT_BUCKETS {
        if !there.lines().any(|name| name == bucket) {
            continue;
        }
        for key in bbolt(&["keys", bucket, "--format", "hex"])?.lines() {
            let value = bbolt(&["get", bucket, key, "--parse-format", "hex", "--format", "hex"])?;
            all.push(format!("{bucket} {key} {}", value.trim()));
        }
    }
    Ok(all)
}

/// Go's etcdctl for these.
pub fn etcdctl(endpoints: &str) -> Command {
    let mut command = Command::new(Judge::Etcdctl.path());
    command.args(["--endpoints", endpoints, "--command-timeout=60s"]);
    command
}
