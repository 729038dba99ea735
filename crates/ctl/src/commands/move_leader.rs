//! `move-leader`: hands leadership to another member, named by id, by name, or chosen.

use std::time::{Duration, Instant};

use dolmen_cli::{Call, Command, Failure, Flag, golang};
use dolmen_client::{Client, Error};
use dolmen_proto::etcdserverpb as pb;

use crate::commands::endpoint::at;
use crate::commands::member::{list_members, with_members};
use crate::connect::{self, Options};
use crate::hints;
use crate::tool::CLUSTER_MAINTENANCE;

/// `move-leader`
pub static COMMAND: Command = Command {
    usage: "move-leader <transferee-member-id>",
    short: "Transfers leadership to another etcd cluster member.",
    group: CLUSTER_MAINTENANCE,
    flags: &[Flag::boolean("auto", "to the voting member that lags least behind the leader").hidden()],
    run: Some(run),
    ..Command::NEW
};

/// How long a member that may hang is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

const BAD_TRANSFEREE: &str = "etcdserver: bad leader transferee";

/// Who shall lead.
enum Target<'a> {
    Id(u64),
    /// A name, and what is wrong with it as an id.
    Name(&'a str, String),
    /// The voter that lags least.
    Auto,
}

fn run(call: &Call) -> Result<(), Failure> {
    let target = match call.args() {
        [] if call.boolean("auto") => Target::Auto,
        [word] if !call.boolean("auto") => match golang::parse_uint(word, 16) {
            Ok(id) => Target::Id(id),
            Err(why) => Target::Name(word, why),
        },
        _ if call.boolean("auto") => return Err(Failure::bad_args("move-leader --auto takes no argument")),
        _ => return Err(Failure::bad_args("move-leader command needs 1 argument")),
    };
    connect::block_on(async {
        // A word that is no id is a mistake of its own, told before any mistake of the flags, unless a member is called so.
        let options = match (Options::read(call).await, &target) {
            (Err(_), Target::Name(_, why)) => return Err(Failure::bad_args(why)),
            (options, _) => options?,
        };
        let deadline = Instant::now() + options.command_timeout;
        let target = match target {
            Target::Id(id) => Some(id),
            Target::Name(name, why) => Some(id_of(&options, deadline, name, why).await?),
            Target::Auto => None,
        };
        let (leader, leader_id) = find_leader(&options, deadline, target.is_none()).await?;
        let target = match target {
            Some(id) => id,
            None => choose(&options, deadline, &leader, leader_id).await?,
        };
        match within(&leader, deadline).move_leader(pb::MoveLeaderRequest { target_id: target }).await {
            Ok(response) => options.printer.move_leader(leader_id, target, &response),
            Err(e) => Err(refused(&leader, &e).await),
        }
    })
}

/// The client, its next call bounded by what is left until `deadline`: one limit covers the whole command.
fn within(client: &Client, deadline: Instant) -> Client {
    client.with_timeout(Some(deadline.saturating_duration_since(Instant::now())))
}

async fn refused(client: &Client, error: &Error) -> Failure {
    let failure = hints::failure(error);
    if error.is(BAD_TRANSFEREE) { with_members(client, failure).await } else { failure }
}

/// The id of the member that is called `name`.
async fn id_of(options: &Options, deadline: Instant, name: &str, why: String) -> Result<u64, Failure> {
    let mistake = Failure::bad_args(why);
    let Ok(client) = options.connect().await else { return Err(mistake) };
    // Where nobody answers, the mistake is told soon.
    let deadline = deadline.min(Instant::now() + PATIENCE);
    match within(&client, deadline).member_list(pb::MemberListRequest { linearizable: false }).await {
        Ok(response) => match response.members.iter().find(|member| member.name == name) {
            Some(member) => Ok(member.id),
            None => Err(list_members(mistake, &response.members)),
        },
        Err(_) => Err(mistake),
    }
}

/// The first endpoint that leads, and its id. `anywhere`: look among all members when none of those given leads.
async fn find_leader(options: &Options, deadline: Instant, anywhere: bool) -> Result<(Client, u64), Failure> {
    let mut last = None;
    for endpoint in &options.endpoints {
        let client = at(options, endpoint).connect().await?;
        let status = within(&client, deadline).status(pb::StatusRequest {}).await.map_err(|e| hints::failure(&e))?;
        if status.header.is_some_and(|header| header.member_id == status.leader) {
            return Ok((client, status.leader));
        }
        last = Some((client, status.leader));
    }
    if let Some((client, leader)) = last.filter(|(_, leader)| anywhere && *leader != 0) {
        let request = pb::MemberListRequest { linearizable: false };
        let members = within(&client, deadline).member_list(request).await.map_err(|e| hints::failure(&e))?.members;
        if let Some(member) = members.iter().find(|member| member.id == leader && !member.client_ur_ls.is_empty()) {
            let options = Options { endpoints: member.client_ur_ls.clone(), ..options.clone() };
            return Ok((options.connect().await?, leader));
        }
    }
    Err(Failure::bad_args(format!("no leader endpoint given at [{}]", options.endpoints.join(" "))))
}

/// The voter that lags least behind the leader.
async fn choose(options: &Options, deadline: Instant, leader: &Client, leader_id: u64) -> Result<u64, Failure> {
    let request = pb::MemberListRequest { linearizable: true };
    let members = within(leader, deadline).member_list(request).await.map_err(|e| hints::failure(&e))?.members;
    let limit = deadline.saturating_duration_since(Instant::now());
    match most_caught_up(options, &members, leader_id, limit).await {
        Some(id) => Ok(id),
        None => Err(list_members(Failure::error("no other voting member answers"), &members)),
    }
}

/// How far a member's log reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    id: u64,
    applied: u64,
    index: u64,
}

/// The voting member besides the leader whose log reaches farthest, of those that answer within `limit`. Learners cannot
/// lead, and a member that does not answer should not.
pub(crate) async fn most_caught_up(
    options: &Options,
    members: &[pb::Member],
    leader: u64,
    limit: Duration,
) -> Option<u64> {
    let mut found = Vec::new();
    for member in members.iter().filter(|member| member.id != leader && !member.is_learner) {
        if member.client_ur_ls.is_empty() {
            continue;
        }
        let options = Options { endpoints: member.client_ur_ls.clone(), ..options.clone() };
        let Ok(client) = options.connect().await else { continue };
        // A voter that hangs must not use up the time of the others.
        let client = client.with_timeout(Some(limit.min(PATIENCE)));
        if let Ok(status) = client.status(pb::StatusRequest {}).await
            && !status.is_learner
        {
            found.push(Reach { id: member.id, applied: status.raft_applied_index, index: status.raft_index });
        }
    }
    farthest(&found)
}

/// The longest log wins, then what of it is applied, then the lower id.
fn farthest(found: &[Reach]) -> Option<u64> {
    found.iter().max_by_key(|r| (r.index, r.applied, std::cmp::Reverse(r.id))).map(|r| r.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_log_leads() {
        let reach = |id, index, applied| Reach { id, applied, index };
        assert_eq!(farthest(&[]), None);
        assert_eq!(farthest(&[reach(1, 5, 5), reach(2, 7, 4), reach(3, 6, 6)]), Some(2));
        assert_eq!(farthest(&[reach(3, 7, 7), reach(1, 7, 6), reach(2, 7, 7)]), Some(2));
    }
}
