//! `auth`: switches authentication on and off.

use dolmen_cli::{Call, Command, Failure};
use dolmen_client::{Client, Error};
use dolmen_proto::etcdserverpb as pb;

use crate::connect::{self, Limit};
use crate::hints;
use crate::output::say;
use crate::tool::AUTHENTICATION;

/// `auth`
pub static COMMAND: Command = Command {
    usage: "auth <enable or disable>",
    short: "Enable or disable authentication. Use `etcdctl auth --help` to see subcommands",
    long: "Enable or disable authentication",
    group: AUTHENTICATION,
    commands: &[&ENABLE, &DISABLE, &STATUS],
    ..Command::NEW
};

static ENABLE: Command =
    Command { usage: "enable", short: "Enables authentication", run: Some(enable), ..Command::NEW };

static DISABLE: Command =
    Command { usage: "disable", short: "Disables authentication", run: Some(disable), ..Command::NEW };

static STATUS: Command =
    Command { usage: "status", short: "Returns authentication status", run: Some(status), ..Command::NEW };

const ROOT_ROLE_MISSING: &str = "etcdserver: root user does not have root role";
const ROOT: &str = "root";

fn no_arguments(call: &Call) -> Result<(), Failure> {
    if call.args().is_empty() {
        return Ok(());
    }
    let name = call.command().name();
    Err(Failure::bad_args(format!("auth {name} command does not accept any arguments")))
}

fn enable(call: &Call) -> Result<(), Failure> {
    no_arguments(call)?;
    connect::run(call, Limit::Command, async |link| {
        switch_on(&link.client).await.map_err(|e| hints::failure(&e))?;
        say("Authentication Enabled")
    })
}

/// Switches authentication on; a user `root` who lacks the role of that name is given it, which is all that the server asks
/// for besides the user.
async fn switch_on(client: &Client) -> Result<(), Error> {
    loop {
        match client.auth_enable(pb::AuthEnableRequest {}).await {
            Err(e) if e.is(ROOT_ROLE_MISSING) => {}
            outcome => return outcome.map(drop),
        }
        client.role_add(pb::AuthRoleAddRequest { name: ROOT.to_owned() }).await?;
        client.user_grant_role(pb::AuthUserGrantRoleRequest { user: ROOT.to_owned(), role: ROOT.to_owned() }).await?;
    }
}

fn disable(call: &Call) -> Result<(), Failure> {
    no_arguments(call)?;
    connect::run(call, Limit::Command, async |link| {
        link.client.auth_disable(pb::AuthDisableRequest {}).await.map_err(|e| hints::failure(&e))?;
        say("Authentication Disabled")
    })
}

fn status(call: &Call) -> Result<(), Failure> {
    no_arguments(call)?;
    connect::run(call, Limit::Command, async |link| {
        let response = link.client.auth_status(pb::AuthStatusRequest {}).await.map_err(|e| hints::failure(&e))?;
        link.printer.auth_status(&response)
    })
}
