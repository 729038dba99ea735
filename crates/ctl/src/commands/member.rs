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
    let is_learner = call.boolean("learner");
    connect::run(call, Limit::Command, async |link| {
        let request = pb::MemberAddRequest { peer_ur_ls: urls(typed)?, is_learner };
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

/// The URLs as they go to the server, once the client has found them to be some.
///
/// # Errors
/// The first that is none (exit 1): a member could crash over it.
fn urls(typed: &str) -> Result<Vec<String>, Failure> {
    let urls: Vec<String> = typed.split(',').map(str::to_owned).collect();
    urls.iter().try_for_each(|url| check_url(url.trim()).map_err(Failure::error))?;
    Ok(urls)
}

/// Whether a peer URL has one of four schemes and, over TCP, a host with a port and nothing behind it.
fn check_url(url: &str) -> Result<(), String> {
    let bad_scheme = || format!("URL scheme must be http, https, unix, or unixs: {url}");
    let parse_error = |why: &str| format!("parse {}: {why}", golang::quote(url));
    if url.contains(|c: char| c.is_ascii_control()) {
        return Err(parse_error("net/url: invalid control character in URL"));
    }
    let without_fragment = url.split('#').next().unwrap_or_default();
    if without_fragment.starts_with(':') {
        return Err(parse_error("missing protocol scheme"));
    }
    let starts_with_letter = without_fragment.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_scheme = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let Some((scheme, rest)) = without_fragment.split_once(':').filter(|(s, _)| starts_with_letter && is_scheme(s))
    else {
        let first_segment = without_fragment.split(['/', '?']).next().unwrap_or_default();
        let colon = first_segment.contains(':');
        return Err(if colon { parse_error("first path segment in URL cannot contain colon") } else { bad_scheme() });
    };
    match &scheme.to_ascii_lowercase()[..] {
        "unix" | "unixs" => return Ok(()),
        "http" | "https" => {}
        _ => return Err(bad_scheme()),
    }
    let no_host_port = || format!("URL address does not have the form \"host:port\": {url}");
    let rest = rest.split('?').next().unwrap_or_default();
    let authority = rest.strip_prefix("//").ok_or_else(no_host_port)?;
    let (host_port, path) = authority.split_at(authority.find('/').unwrap_or(authority.len()));
    let host_port = host_port.rsplit_once('@').map_or(host_port, |(_, host_port)| host_port);
    let end = if host_port.starts_with('[') {
        host_port.rfind(']').map(|at| at + 1).ok_or_else(|| parse_error("missing ']' in host"))?
    } else {
        host_port.find(':').unwrap_or(host_port.len())
    };
    let (host, port) = host_port.split_at(end);
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit())) {
        return Err(parse_error(&format!("invalid port {} after host", golang::quote(port))));
    }
    if let Some(odd) = host.chars().find(|c| " \"<>\\^`{|}".contains(*c)) {
        return Err(parse_error(&format!("invalid character {} in host name", golang::quote(&odd.to_string()))));
    }
    if port.is_empty() {
        return Err(no_host_port());
    }
    if path.is_empty() { Ok(()) } else { Err(format!("URL must not contain a path: {url}")) }
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
        let request = pb::MemberUpdateRequest { id, peer_ur_ls: urls(typed)? };
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

    #[test]
    fn peer_urls_are_looked_at_before_they_are_sent() {
        let table = [
            ("http://127.0.0.1:2380", Ok(())),
            ("https://[::1]:2380", Ok(())),
            ("HTTP://user@host:1?x=y#z", Ok(())),
            ("http://host:", Ok(())),
            ("unix://sock", Ok(())),
            ("unixs:sock", Ok(())),
            ("bad", Err("URL scheme must be http, https, unix, or unixs: bad")),
            ("", Err("URL scheme must be http, https, unix, or unixs: ")),
            ("localhost:2380", Err("URL scheme must be http, https, unix, or unixs: localhost:2380")),
            ("127.0.0.1:2380", Err("parse \"127.0.0.1:2380\": first path segment in URL cannot contain colon")),
            (":80", Err("parse \":80\": missing protocol scheme")),
            ("http://127.0.0.1", Err("URL address does not have the form \"host:port\": http://127.0.0.1")),
            ("http:127.0.0.1:1", Err("URL address does not have the form \"host:port\": http:127.0.0.1:1")),
            ("http://[::1]", Err("URL address does not have the form \"host:port\": http://[::1]")),
            ("http://a:1/", Err("URL must not contain a path: http://a:1/")),
            ("http://a:b", Err("parse \"http://a:b\": invalid port \":b\" after host")),
            ("http://1:2:3", Err("parse \"http://1:2:3\": invalid port \":2:3\" after host")),
            ("http://[::1:2", Err("parse \"http://[::1:2\": missing ']' in host")),
            ("http://", Err("URL address does not have the form \"host:port\": http://")),
            ("http://:1", Ok(())),
            ("http://a b:1", Err("parse \"http://a b:1\": invalid character \" \" in host name")),
            ("http://a:1\u{7f}", Err("parse \"http://a:1\\x7f\": net/url: invalid control character in URL")),
        ];
        for (url, expected) in table {
            assert_eq!(check_url(url).as_ref().map_err(String::as_str), expected.as_ref().map_err(|e| *e), "{url}");
        }
    }
}
