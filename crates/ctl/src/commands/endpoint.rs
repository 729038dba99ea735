//! `endpoint`: asks members, one by one, how they are.

use std::time::Instant;

use dolmen_cli::{Call, Command, Failure, Flag, complain, golang};
use dolmen_client::{Client, Config, Error, text};
use dolmen_proto::etcdserverpb as pb;
use tokio::task::JoinSet;

use crate::connect::{self, Options};
use crate::hints;
use crate::output::cluster::{EndpointHash, EndpointHealth, EndpointStatus};
use crate::tool::CLUSTER_MAINTENANCE;

/// `endpoint`
pub static COMMAND: Command = Command {
    usage: "endpoint <subcommand>",
    short: "Endpoint related commands. Use `etcdctl endpoint --help` to see subcommands",
    long: "Endpoint related commands",
    group: CLUSTER_MAINTENANCE,
    persistent: &[Flag::boolean("cluster", "use all endpoints from the cluster member list")],
    commands: &[&HEALTH, &STATUS, &HASHKV],
    ..Command::NEW
};

static HEALTH: Command = Command {
    usage: "health",
    short: "Checks the healthiness of endpoints specified in `--endpoints` flag",
    run: Some(health),
    ..Command::NEW
};

static STATUS: Command = Command {
    usage: "status",
    short: "Prints out the status of endpoints specified in `--endpoints` flag",
    long: "When --write-out is set to simple, this command prints out comma-separated status lists for each endpoint.\n\
           The items in the lists are endpoint, ID, version, db size, is leader, is learner, raft term, raft index, raft \
           applied index, errors.\n",
    run: Some(status),
    ..Command::NEW
};

static HASHKV: Command = Command {
    usage: "hashkv",
    short: "Prints the KV history hash for each endpoint in --endpoints",
    persistent: &[Flag::int64("rev", "0", "maximum revision to hash (default: latest revision)")],
    run: Some(hashkv),
    ..Command::NEW
};

fn health(call: &Call) -> Result<(), Failure> {
    connect::block_on(async {
        let options = Options::read(call).await?;
        let mut configs = Vec::new();
        for endpoint in endpoints(call, &options).await? {
            configs.push((at(&options, &endpoint).config()?, endpoint));
        }
        let limit = options.command_timeout;
        let mut trials = JoinSet::new();
        for (config, endpoint) in configs {
            trials.spawn(async move {
                let (outcome, took) = trial(config, Some(limit)).await;
                health_of(endpoint, took, outcome)
            });
        }
        // In the order in which they answer, as scripts know it.
        let mut list = Vec::new();
        while let Some(one) = trials.join_next().await {
            list.push(one.map_err(Failure::error)?);
        }
        options.printer.endpoint_health(&list)?;
        if list.iter().any(|one| !one.error.is_empty()) {
            return Err(Failure::error("unhealthy cluster"));
        }
        Ok(())
    })
}

/// What a trial of a member found.
pub(crate) enum Trial {
    /// No client could be made, or the read failed.
    Failed(Error),
    /// The read went well, and nobody tells whether there are alarms.
    NoAlarmList,
    /// The read went well; these alarms, of any member, are raised.
    Read(Vec<pb::AlarmMember>),
}

/// Asks a member for a read that a quorum has to confirm, and for the alarms; both together within `limit`. The string is
/// how long the read took, empty when no client could be made.
pub(crate) async fn trial(config: Config, limit: Option<std::time::Duration>) -> (Trial, String) {
    let client = match Client::connect(config).await {
        Ok(client) => client,
        Err(e) => return (Trial::Failed(e), String::new()),
    };
    let start = Instant::now();
    // Any key: that there is an answer is all that counts.
    let request = pb::RangeRequest { key: "health".into(), ..Default::default() };
    let read = client.with_timeout(limit).range(request).await;
    let spent = start.elapsed();
    let took = golang::format_duration(i64::try_from(spent.as_nanos()).unwrap_or(i64::MAX));
    // A refusal for lack of permission comes after a quorum was asked.
    if let Err(e) = read
        && !e.is(text::PERMISSION_DENIED)
    {
        return (Trial::Failed(e), took);
    }
    let rest = client.with_timeout(limit.map(|limit| limit.saturating_sub(spent)));
    match rest.alarm(list_alarms()).await {
        Ok(response) => (Trial::Read(response.alarms), took),
        Err(_) => (Trial::NoAlarmList, took),
    }
}

/// The request for all alarms of all members.
pub(crate) fn list_alarms() -> pb::AlarmRequest {
    pb::AlarmRequest {
        action: pb::alarm_request::AlarmAction::Get as i32,
        member_id: 0,
        alarm: pb::AlarmType::None as i32,
    }
}

/// `Active Alarm(s): NOSPACE CORRUPT `, with a blank at its end.
pub(crate) fn active_alarms(alarms: &[pb::AlarmMember]) -> String {
    let mut text = "Active Alarm(s): ".to_owned();
    for alarm in alarms {
        text.push_str(match pb::AlarmType::try_from(alarm.alarm) {
            Ok(pb::AlarmType::Nospace) => "NOSPACE ",
            Ok(pb::AlarmType::Corrupt) => "CORRUPT ",
            _ => "UNKNOWN ",
        });
    }
    text
}

pub(crate) const NO_ALARM_LIST: &str = "Unable to fetch the alarm list";

fn health_of(endpoint: String, took: String, trial: Trial) -> EndpointHealth {
    let error = match trial {
        Trial::Failed(e) => e.to_string(),
        Trial::NoAlarmList => NO_ALARM_LIST.to_owned(),
        Trial::Read(alarms) if alarms.is_empty() => String::new(),
        Trial::Read(alarms) => active_alarms(&alarms),
    };
    EndpointHealth { endpoint, health: error.is_empty(), took, error }
}

fn status(call: &Call) -> Result<(), Failure> {
    connect::block_on(async {
        let options = Options::read(call).await?;
        let (mut list, mut failed) = (Vec::new(), false);
        for endpoint in endpoints(call, &options).await? {
            let client = at(&options, &endpoint).connect().await?;
            match client.with_timeout(Some(options.command_timeout)).status(pb::StatusRequest {}).await {
                Ok(status) => list.push(EndpointStatus { endpoint, status }),
                Err(e) => {
                    failed = true;
                    complain(format!("Failed to get the status of endpoint {endpoint} ({e})\n"));
                    tell_hints(&e);
                }
            }
        }
        options.printer.endpoint_status(&list)?;
        if failed { Err(Failure::silent(1)) } else { Ok(()) }
    })
}

fn hashkv(call: &Call) -> Result<(), Failure> {
    let revision = call.int("rev");
    connect::block_on(async {
        let options = Options::read(call).await?;
        let (mut list, mut last_error) = (Vec::new(), None);
        for endpoint in endpoints(call, &options).await? {
            let client = at(&options, &endpoint).connect().await?;
            let client = client.with_timeout(Some(options.command_timeout));
            match client.hash_kv(pb::HashKvRequest { revision }).await {
                Ok(hash) => list.push(EndpointHash { endpoint, hash }),
                Err(e) => {
                    complain(format!("Failed to get the hash of endpoint {endpoint} ({e})\n"));
                    last_error = Some(e);
                }
            }
        }
        options.printer.endpoint_hashkv(&list)?;
        last_error.map_or(Ok(()), |e| Err(hints::failure(&e)))
    })
}

/// The advice for an error whose line has been printed.
fn tell_hints(error: &Error) {
    for hint in hints::hints(error) {
        complain(format!("hint: {hint}\n"));
    }
}

/// The global flags with this endpoint alone.
pub(crate) fn at(options: &Options, endpoint: &str) -> Options {
    Options { endpoints: vec![endpoint.to_owned()], ..options.clone() }
}

/// The endpoints to ask: those given, or with `--cluster` the client URLs of all members, learners too.
///
/// # Errors
/// The members cannot be asked (exit 1, whatever the reason).
pub(crate) async fn endpoints(call: &Call, options: &Options) -> Result<Vec<String>, Failure> {
    if !call.boolean("cluster") {
        return Ok(options.endpoints.clone());
    }
    // The limits on messages are not for this call.
    let asking = Options { max_request_bytes: 0, max_recv_bytes: 0, ..options.clone() };
    let general = |failure: Failure| Failure::error(failure.text().unwrap_or_default());
    let config = asking.config().map_err(general)?;
    let client = Client::connect(config).await.map_err(|e| hints::failure(&e))?;
    let client = client.with_timeout(Some(options.command_timeout));
    let members = client.member_list(pb::MemberListRequest { linearizable: true }).await.map_err(|e| {
        let text = format!("failed to fetch endpoints from etcd cluster member list: {e}");
        hints::advise(Failure::error(text), &e)
    })?;
    Ok(members.members.into_iter().flat_map(|member| member.client_ur_ls).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dolmen_client::code;

    #[test]
    fn an_endpoint_is_healthy_when_it_reads_and_no_alarm_is_raised() {
        let alarm = |alarm: i32| pb::AlarmMember { member_id: 1, alarm };
        let table = [
            (Trial::Read(vec![]), ""),
            (Trial::Read(vec![alarm(1), alarm(2), alarm(7)]), "Active Alarm(s): NOSPACE CORRUPT UNKNOWN "),
            (Trial::NoAlarmList, "Unable to fetch the alarm list"),
            (Trial::Failed(Error::status(code::UNAVAILABLE, text::NO_LEADER)), "etcdserver: no leader"),
        ];
        for (trial, error) in table {
            let found = health_of("e".to_owned(), "1ms".to_owned(), trial);
            assert_eq!((found.health, &found.error[..]), (error.is_empty(), error));
        }
    }
}
