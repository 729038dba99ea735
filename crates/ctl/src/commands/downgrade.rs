//! `downgrade`: prepares the cluster for members of an older release.

use dolmen_cli::{Call, Command, Failure};
use dolmen_proto::etcdserverpb as pb;
use pb::downgrade_request::DowngradeAction;

use crate::connect::{self, Limit};
use crate::hints;
use crate::tool::CLUSTER_MAINTENANCE;

/// `downgrade`
pub static COMMAND: Command = Command {
    usage: "downgrade <TARGET_VERSION>",
    short: "Downgrade related commands. Use `etcdctl downgrade --help` to see subcommands",
    long: "Downgrade related commands",
    group: CLUSTER_MAINTENANCE,
    commands: &[&VALIDATE, &ENABLE, &CANCEL],
    ..Command::NEW
};

static VALIDATE: Command = Command {
    usage: "validate <TARGET_VERSION>",
    short: "Validate downgrade capability before starting downgrade",
    run: Some(validate),
    ..Command::NEW
};

static ENABLE: Command = Command {
    usage: "enable <TARGET_VERSION>",
    short: "Start a downgrade action to cluster",
    run: Some(enable),
    ..Command::NEW
};

static CANCEL: Command = Command {
    usage: "cancel",
    short: "Cancel the ongoing downgrade action to cluster",
    run: Some(cancel),
    ..Command::NEW
};

fn validate(call: &Call) -> Result<(), Failure> {
    ask(call, DowngradeAction::Validate, "validate", target_version(call)?)
}

fn enable(call: &Call) -> Result<(), Failure> {
    ask(call, DowngradeAction::Enable, "enable", target_version(call)?)
}

fn cancel(call: &Call) -> Result<(), Failure> {
    ask(call, DowngradeAction::Cancel, "cancel", String::new())
}

fn target_version(call: &Call) -> Result<String, Failure> {
    match call.args() {
        [] => Err(Failure::bad_args("TARGET_VERSION not provided")),
        [version] if version.is_empty() => Err(Failure::bad_args("target version not provided")),
        [version] => Ok(version.clone()),
        _ => Err(Failure::bad_args("too many arguments")),
    }
}

fn ask(call: &Call, action: DowngradeAction, verb: &str, version: String) -> Result<(), Failure> {
    connect::run(call, Limit::Command, async |link| {
        let request = pb::DowngradeRequest { action: action as i32, version };
        let response = link.client.downgrade(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.downgrade(verb, &response)
    })
}
