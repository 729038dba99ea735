//! `member`: adds, removes, updates, promotes and lists the cluster's members.

use dolmen_cli::{Call, Command, Failure, Flag, golang};
use dolmen_client::{Client, Error};
use dolmen_proto::etcdserverpb as pb;

use crate::connect::{self, Limit};
use crate::hints;
use crate::output::{Format, say};
use crate::tool::CLUSTER_MAINTENANCE;

/// `member`
pub static COMMAND: Command = Command {
    usage: "member <subcommand>",
    short: "Membership related commands. Use `etcdctl member --help` to see subcommands",
    long: "Membership related commands",
    group: CLUSTER_MAINTENANCE,
    commands: &[&ADD, &REMOVE, &UPDATE, &LIST, &PROMOTE],
    ..Command::NEW
};

static ADD: Command = Command {
    usage: "add <memberName> [options]",
    short: "Adds a member into the cluster",
    flags: &[
        Flag::text("peer-urls", "", "comma separated peer URLs for the new member."),
        Flag::boolean("learner", "indicates if the new member is raft learner"),
    ],
    run: Some(add),
    ..Command::NEW
};

static REMOVE: Command = Command {
    usage: "remove <memberID>",
    short: "Removes a member from the cluster",
    run: Some(remove),
    ..Command::NEW
};

static UPDATE: Command = Command {
    usage: "update <memberID> [options]",
    short: "Updates a member in the cluster",
    flags: &[Flag::text("peer-urls", "", "comma separated peer URLs for the updated member.")],
    run: Some(update),
    ..Command::NEW
};

static LIST: Command = Command {
    usage: "list",
    short: "Lists all members in the cluster",
    long: "When --write-out is set to simple, this command prints out comma-separated member lists for each endpoint.\n\
           The items in the lists are ID, Status, Name, Peer Addrs, Client Addrs, Is Learner.\n",
    flags: &[Flag::text("consistency", "l", "Linearizable(l) or Serializable(s)")],
    run: Some(list),
    ..Command::NEW
};

static PROMOTE: Command = Command {
    usage: "promote <memberID>",
    short: "Promotes a non-voting member in the cluster",
    long: "Promotes a non-voting learner member to a voting one in the cluster.\n",
    run: Some(promote),
    ..Command::NEW
};

const NO_SUCH_MEMBER: &str = "etcdserver: member not found";

fn add(call: &Call) -> Result<(), Failure> {
    let name = match call.args() {
        [] => return Err(Failure::bad_args("member name not provided")),
        [name] => name,
        words => return Err(too_many(words)),
    };
    let typed = call.text("peer-urls");
    if typed.is_empty() {
        return Err(Failure::bad_args("member peer urls not provided"));
    }
    let request = pb::MemberAddRequest { peer_ur_ls: urls(typed), is_learner: call.boolean("learner") };
    connect::run(call, Limit::Command, async |link| {
        let response = link.client.member_add(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.member_add(&response)?;
        if link.printer.format() != Format::Simple {
            return Ok(());
        }
        say(format_args!(
            "\nETCD_NAME={}\nETCD_INITIAL_CLUSTER={}\nETCD_INITIAL_ADVERTISE_PEER_URLS={}\n\
             ETCD_INITIAL_CLUSTER_STATE=\"existing\"",
            golang::quote(name),
            golang::quote(&initial_cluster(&response, name)),
            golang::quote(typed),
        ))
    })
}

fn too_many(words: &[String]) -> Failure {
    let mut text = "too many arguments".to_owned();
    for word in words.iter().filter(|word| word.to_lowercase().starts_with("http")) {
        text.push_str(&format!(", did you mean --peer-urls={word}"));
    }
    Failure::bad_args(text)
}

fn urls(typed: &str) -> Vec<String> {
    typed.split(',').map(str::to_owned).collect()
}

/// `a=url,b=url`: what the new member has to be told. A member that never started has no name yet, but for the new one.
fn initial_cluster(response: &pb::MemberAddResponse, new_name: &str) -> String {
    let new_id = response.member.as_ref().map_or(0, |m| m.id);
    let mut entries = Vec::new();
    for member in &response.members {
        let name = if member.id == new_id { new_name } else { &member.name };
        entries.extend(member.peer_ur_ls.iter().map(|url| format!("{name}={url}")));
    }
    entries.join(",")
}

/// The one argument of `remove`, `update` and `promote`.
fn member_argument(call: &Call) -> Result<u64, Failure> {
    let [id] = call.args() else { return Err(Failure::bad_args("member ID is not provided")) };
    golang::parse_uint(id, 16)
        .map_err(|why| Failure::bad_args(format!("bad member ID arg ({why}), expecting ID in Hex")))
}

fn remove(call: &Call) -> Result<(), Failure> {
    let id = member_argument(call)?;
    connect::run(call, Limit::Command, async |link| {
        match link.client.member_remove(pb::MemberRemoveRequest { id }).await {
            Ok(response) => link.printer.member_remove(id, &response),
            Err(e) => Err(refused(&link.client, &e).await),
        }
    })
}

fn update(call: &Call) -> Result<(), Failure> {
    let id = member_argument(call)?;
    let typed = call.text("peer-urls");
    if typed.is_empty() {
        return Err(Failure::bad_args("member peer urls not provided"));
    }
    connect::run(call, Limit::Command, async |link| {
        let request = pb::MemberUpdateRequest { id, peer_ur_ls: urls(typed) };
        match link.client.member_update(request).await {
            Ok(response) => link.printer.member_update(id, &response),
            Err(e) => Err(refused(&link.client, &e).await),
        }
    })
}

fn promote(call: &Call) -> Result<(), Failure> {
    let id = member_argument(call)?;
    connect::run(call, Limit::Command, async |link| {
        match link.client.member_promote(pb::MemberPromoteRequest { id }).await {
            Ok(response) => link.printer.member_promote(id, &response),
            Err(e) => Err(refused(&link.client, &e).await),
        }
    })
}

fn list(call: &Call) -> Result<(), Failure> {
    let linearizable = match call.text("consistency") {
        "s" => false,
        "l" => true,
        // etcdctl names the value of another command's flag here, which is always `l`.
        _ => return Err(Failure::bad_feature("unknown consistency flag \"l\"")),
    };
    connect::run(call, Limit::Command, async |link| {
        let request = pb::MemberListRequest { linearizable };
        let response = link.client.member_list(request).await.map_err(|e| hints::failure(&e))?;
        link.printer.member_list(&response)
    })
}

/// The end of a command that named a member; when there is no such member, with a list of those there are.
async fn refused(client: &Client, error: &Error) -> Failure {
    let failure = hints::failure(error);
    if error.is(NO_SUCH_MEMBER) { with_members(client, failure).await } else { failure }
}

/// Adds a hint for each member, or none when nobody tells them.
pub(crate) async fn with_members(client: &Client, failure: Failure) -> Failure {
    match client.member_list(pb::MemberListRequest { linearizable: false }).await {
        Ok(response) => list_members(failure, &response.members),
        Err(_) => failure,
    }
}

/// Adds a hint for each of `members`.
pub(crate) fn list_members(failure: Failure, members: &[pb::Member]) -> Failure {
    members.iter().fold(failure, |failure, member| {
        let name = if member.name.is_empty() { "(not started)" } else { &member.name };
        let role = if member.is_learner { ", learner" } else { "" };
        failure.hint(format!("member {:x} is {name} at {}{role}", member.id, member.peer_ur_ls.join(",")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, name: &str, peers: &[&str]) -> pb::Member {
        let peer_ur_ls = peers.iter().map(|url| (*url).to_owned()).collect();
        pb::Member { id, name: name.to_owned(), peer_ur_ls, ..Default::default() }
    }

    #[test]
    fn the_new_member_is_told_of_every_peer_url() {
        let members = vec![
            member(1, "a", &["http://a:1", "http://a:2"]),
            member(2, "", &["http://b:1"]),
            member(3, "", &["http://c:1"]),
        ];
        let response = pb::MemberAddResponse { member: Some(member(3, "", &[])), members, ..Default::default() };
        assert_eq!(initial_cluster(&response, "new"), "a=http://a:1,a=http://a:2,=http://b:1,new=http://c:1");
    }

    #[test]
    fn urls_among_the_words_are_suspected_to_lack_their_flag() {
        let words = ["m4".to_owned(), "HTTP://x".to_owned(), "other".to_owned(), "http://y".to_owned()];
        assert_eq!(
            too_many(&words).text(),
            Some("too many arguments, did you mean --peer-urls=HTTP://x, did you mean --peer-urls=http://y")
        );
    }
}
