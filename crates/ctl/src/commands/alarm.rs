//! `alarm`: lists the cluster's alarms and takes them back.

use dolmen_cli::{Call, Command, Failure};
use dolmen_client::{Client, Error};
use dolmen_proto::etcdserverpb as pb;

use crate::commands::endpoint::list_alarms;
use crate::connect::{self, Limit};
use crate::hints;
use crate::tool::CLUSTER_MAINTENANCE;

/// `alarm`
pub static COMMAND: Command = Command {
    usage: "alarm <subcommand>",
    short: "Alarm related commands. Use `etcdctl alarm --help` to see subcommands",
    long: "Alarm related commands",
    group: CLUSTER_MAINTENANCE,
    commands: &[&DISARM, &LIST],
    ..Command::NEW
};

static DISARM: Command = Command { usage: "disarm", short: "Disarms all alarms", run: Some(disarm), ..Command::NEW };

static LIST: Command = Command { usage: "list", short: "Lists all alarms", run: Some(list), ..Command::NEW };

fn disarm(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("alarm disarm command accepts no arguments"));
    }
    connect::run(call, Limit::Command, async |link| {
        let response = disarm_all(&link.client).await.map_err(|e| hints::failure(&e))?;
        link.printer.alarm(&response)
    })
}

/// Takes back every alarm, one call for each. The answer lists what was taken back; it has no header, since no single call
/// gave it.
async fn disarm_all(client: &Client) -> Result<pb::AlarmResponse, Error> {
    let mut all = pb::AlarmResponse::default();
    for alarm in client.alarm(list_alarms()).await?.alarms {
        all.alarms.extend(client.alarm(deactivate(&alarm)).await?.alarms);
    }
    Ok(all)
}

/// The request that takes this alarm back.
pub(crate) fn deactivate(alarm: &pb::AlarmMember) -> pb::AlarmRequest {
    pb::AlarmRequest {
        action: pb::alarm_request::AlarmAction::Deactivate as i32,
        member_id: alarm.member_id,
        alarm: alarm.alarm,
    }
}

fn list(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("alarm list command accepts no arguments"));
    }
    connect::run(call, Limit::Command, async |link| {
        let response = link.client.alarm(list_alarms()).await.map_err(|e| hints::failure(&e))?;
        link.printer.alarm(&response)
    })
}
