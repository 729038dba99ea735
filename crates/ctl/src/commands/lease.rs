//! `lease`: grants, revokes, shows and renews leases.

use dolmen_cli::{Call, Command, Failure, Flag, golang};
use dolmen_client::Error;
use dolmen_proto::etcdserverpb as pb;

use crate::connect::{self, Limit};
use crate::hints;
use crate::output::simple::lease_id;
use crate::output::{Format, say};
use crate::text::lease_argument;
use crate::tool::KV;

/// `lease`
pub static COMMAND: Command = Command {
    usage: "lease <subcommand>",
    short: "Lease related commands. Use `etcdctl lease --help` to see subcommands",
    long: "Lease related commands",
    group: KV,
    commands: &[&GRANT, &REVOKE, &TIME_TO_LIVE, &LIST, &KEEP_ALIVE],
    ..Command::NEW
};

static GRANT: Command = Command { usage: "grant <ttl>", short: "Creates leases", run: Some(grant), ..Command::NEW };

static REVOKE: Command =
    Command { usage: "revoke <leaseID>", short: "Revokes leases", run: Some(revoke), ..Command::NEW };

static TIME_TO_LIVE: Command = Command {
    usage: "timetolive <leaseID> [options]",
    short: "Get lease information",
    flags: &[Flag::boolean("keys", "Get keys attached to this lease")],
    run: Some(time_to_live),
    ..Command::NEW
};

static LIST: Command = Command { usage: "list", short: "List all active leases", run: Some(list), ..Command::NEW };

static KEEP_ALIVE: Command = Command {
    usage: "keep-alive [options] <leaseID>",
    short: "Keeps leases alive (renew)",
    flags: &[Flag::boolean("once", "Resets the keep-alive time to its original value and cobrautl.Exits immediately")],
    run: Some(keep_alive),
    ..Command::NEW
};

fn grant(call: &Call) -> Result<(), Failure> {
    let [ttl] = call.args() else { return Err(Failure::bad_args("lease grant command needs TTL argument")) };
    let ttl = golang::parse_int(ttl, 10).map_err(|why| Failure::bad_args(format!("bad TTL ({why})")))?;
    connect::run(call, Limit::Command, async |link| {
        let response = link
            .client
            .lease_grant(pb::LeaseGrantRequest { ttl, id: 0 })
            .await
            .map_err(|e| hints::failure_with(1, &e, "failed to grant lease"))?;
        link.printer.lease_grant(&response)
    })
}

fn revoke(call: &Call) -> Result<(), Failure> {
    let [id] = call.args() else { return Err(Failure::bad_args("lease revoke command needs 1 argument")) };
    let id = lease_argument(id)?;
    connect::run(call, Limit::Command, async |link| {
        let response = link
            .client
            .lease_revoke(pb::LeaseRevokeRequest { id })
            .await
            .map_err(|e| hints::failure_with(1, &e, "failed to revoke lease"))?;
        link.printer.lease_revoke(id, &response)
    })
}

/// The three commands below have no deadline, connect before they look at the id, and end with 2 when the call fails.
fn no_answer(error: &Error) -> Failure {
    hints::failure_with(2, error, "")
}

fn time_to_live(call: &Call) -> Result<(), Failure> {
    let [id] = call.args() else {
        return Err(Failure::bad_args("lease timetolive command needs lease ID as argument"));
    };
    let keys = call.boolean("keys");
    connect::run(call, Limit::None, async |link| {
        let id = lease_argument(id)?;
        let request = pb::LeaseTimeToLiveRequest { id, keys };
        let response = link.client.lease_time_to_live(request).await.map_err(|e| no_answer(&e))?;
        link.printer.lease_time_to_live(&response, keys)
    })
}

fn list(call: &Call) -> Result<(), Failure> {
    connect::run(call, Limit::None, async |link| {
        let response = link.client.lease_leases(pb::LeaseLeasesRequest {}).await.map_err(|e| no_answer(&e))?;
        link.printer.lease_leases(&response)
    })
}

fn keep_alive(call: &Call) -> Result<(), Failure> {
    let [id] = call.args() else {
        return Err(Failure::bad_args("lease keep-alive command needs lease ID as argument"));
    };
    let id = lease_argument(id)?;
    let once = call.boolean("once");
    connect::run(call, Limit::None, async |link| {
        if once {
            let response = link.client.lease_keep_alive_once(id).await.map_err(|e| no_answer(&e))?;
            return link.printer.lease_keep_alive(&response);
        }
        let mut renewals = link.client.lease_keep_alive(id);
        while let Some(renewal) = renewals.next().await {
            link.printer.lease_keep_alive(&renewal)?;
        }
        if link.printer.format() == Format::Simple {
            say(format_args!("lease {} expired or revoked.", lease_id(id)))?;
        }
        Ok(())
    })
}
