//! Before a node: what lies in the data directory, who this member is, and whom it begins with.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dolmen_datadir::{ImportOptions, Level, Report};
use dolmen_env::Disk;
use dolmen_machine::Member;
use dolmen_net::ClientTls;
use dolmen_node::first_start::{self, Answer, Newcomer, Past, Refusal, Roster, Verdict};
use dolmen_node::{Bootstrap, Layout, PeerAddress, cluster_id, member_id};
use dolmen_transport::{Lobby, MEMBER_PATH, PeerClient, PeerUrl, RequestError};
use dolmen_types::{MemberId, error_chain, hex_id};

use crate::config::{Config, check_own_urls};
use crate::failure::Failure;
use crate::serve::DIAL_TIMEOUT;
use crate::wiring;

/// Takes over what an etcd has left in the data directory, if anything.
pub fn import(disk: &Arc<dyn Disk>, layout: &Layout) -> Result<(), Failure> {
    let imported = dolmen_datadir::import(disk, &ImportOptions::new(layout.clone()), &mut Logged);
    Ok(imported.map(|_| ())?)
}

/// Removes the files of an etcd that was taken over, now that the member serves without them.
pub fn forget_imported(disk: &Arc<dyn Disk>, layout: &Layout) {
    match dolmen_datadir::remove_imported(&**disk, layout) {
        Ok(gone) => {
            for path in gone {
                tracing::info!(path = %path.display(), "removed the files of the etcd that was imported");
            }
        }
        Err(error) => {
            tracing::warn!(error = error_chain(&error), "cannot remove the files of the etcd that was imported");
        }
    }
}

/// An import's report as lines of the log.
struct Logged;

impl Report for Logged {
    fn log(&mut self, level: Level, message: &str, fields: &[(&str, serde_json::Value)]) {
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let fields = fields.join(" ");
        match level {
            Level::Info => tracing::info!(fields, "{message}"),
            Level::Warn => tracing::warn!(fields, "{message}"),
            Level::Error => tracing::error!(fields, "{message}"),
        }
    }
}

/// Who this member is, and whom it begins with.
pub struct Identity {
    pub member_id: MemberId,
    pub cluster_id: u64,
    pub bootstrap: Bootstrap,
    /// The other members as configured; what the log says replaces them.
    pub peers: Vec<PeerAddress>,
    pub initialized: bool,
}

/// Finds out who this member is. Before a first start this asks all others, and waits until enough of them have answered;
/// see `dolmen_node::first_start`.
///
/// # Errors
/// The member may not start, or nobody can tell who it is.
pub async fn identify(
    config: &Config,
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    lobby: &Lobby,
    tls: Option<ClientTls>,
) -> Result<Identity, Failure> {
    let client = PeerClient::new(tls, DIAL_TIMEOUT);
    let past = first_start::past(disk, layout, &wiring::machine_config(config))?;
    if past == Past::None {
        check_own_urls(config)?;
        return if config.existing { join(config, &client).await } else { found(config, lobby, &client).await };
    }
    tracing::info!(member_dir = %layout.member.display(), "server has already been initialized");
    let own = dolmen_node::identity(&**disk, layout)?;
    if let Past::Founding { members, revision } = past {
        let newcomer = newcomer(own.member_id, own.cluster_id, &members, revision);
        may_found(config, &members, &newcomer, lobby, &client).await?;
    }
    Ok(Identity {
        member_id: own.member_id,
        cluster_id: own.cluster_id,
        // Of use only when the first start was cut off before its first sync.
        bootstrap: if config.existing { Bootstrap::Join } else { Bootstrap::New { members: founders(config) } },
        peers: peers_of(&founders(config), own.member_id),
        initialized: true,
    })
}

fn founders(config: &Config) -> Vec<Member> {
    let member = |(name, urls): (&String, &Vec<String>)| Member {
        id: member_id(urls, &config.initial_cluster_token),
        peer_urls: urls.clone(),
        name: name.clone(),
        ..Member::default()
    };
    config.initial_cluster.iter().map(member).collect()
}

fn peers_of(members: &[Member], own: MemberId) -> Vec<PeerAddress> {
    let others = members.iter().filter(|member| member.id != own);
    others.map(|member| PeerAddress { id: member.id, urls: member.peer_urls.clone() }).collect()
}

fn newcomer(id: MemberId, cluster_id: u64, founders: &[Member], revision: i64) -> Newcomer {
    Newcomer { id, cluster_id, revision, founders: founders.iter().map(|member| member.id).collect() }
}

/// Founds a cluster, or comes late to one of which it is a founder.
async fn found(config: &Config, lobby: &Lobby, client: &PeerClient) -> Result<Identity, Failure> {
    let members = founders(config);
    let ids: Vec<MemberId> = members.iter().map(|member| member.id).collect();
    let own = members.iter().find(|member| member.name == config.name).map_or(0, |member| member.id);
    let newcomer = newcomer(own, cluster_id(&ids), &members, FIRST_REVISION);
    may_found(config, &members, &newcomer, lobby, client).await?;
    Ok(Identity {
        member_id: own,
        cluster_id: newcomer.cluster_id,
        peers: peers_of(&members, own),
        bootstrap: Bootstrap::New { members },
        initialized: false,
    })
}

/// Of a store in which nothing has been written.
const FIRST_REVISION: i64 = 1;

async fn may_found(
    config: &Config,
    members: &[Member],
    own: &Newcomer,
    lobby: &Lobby,
    client: &PeerClient,
) -> Result<(), Failure> {
    lobby.answer(own_words(own.cluster_id, own.id, own.revision > FIRST_REVISION, true, own.revision));
    let others = members.iter().filter(|member| member.id != own.id);
    let asked = others.map(|member| Asked::new(&member.name, &member.peer_urls)).collect();
    ask(config, client, asked, Some(own), |answers| first_start::may_found(own, answers)).await
}

/// Asks the running cluster who this member is: its ids were given when it was added.
async fn join(config: &Config, client: &PeerClient) -> Result<Identity, Failure> {
    let others = config.initial_cluster.iter().filter(|(name, _)| **name != config.name);
    let asked: Vec<Asked> = others.map(|(name, urls)| Asked::new(name, urls)).collect();
    if asked.is_empty() {
        return Err(
            "cannot fetch cluster info from peer urls: could not retrieve cluster information from the given URLs"
                .to_owned()
                .into(),
        );
    }
    let (own_urls, count) = (&config.initial_cluster[&config.name], config.initial_cluster.len());
    let joining = ask(config, client, asked, None, |answers| first_start::may_join(own_urls, count, answers)).await?;
    Ok(Identity {
        member_id: joining.id,
        cluster_id: joining.cluster_id,
        bootstrap: Bootstrap::Join,
        peers: peers_of(&joining.members, joining.id),
        initialized: false,
    })
}

// ---- asking ----

/// For one question.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// For a quorum to confirm the member that is asked.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two rounds: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));
/// How long to wait in silence, and between two lines of the log.
const SILENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(15));

/// One of the others.
#[derive(Clone)]
struct Asked {
    name: String,
    urls: Vec<String>,
}

impl Asked {
    fn new(name: &str, urls: &[String]) -> Self {
        Self { name: name.to_owned(), urls: urls.to_vec() }
    }
}

/// Asks the others, again and again, until there is a verdict.
async fn ask<T>(
    config: &Config,
    client: &PeerClient,
    asked: Vec<Asked>,
    own: Option<&Newcomer>,
    decide: impl Fn(&[Answer]) -> Verdict<T>,
) -> Result<T, Failure> {
    let (mut pause, mut silent_until) = (PAUSE.0, Instant::now() + SILENCE.0);
    loop {
        let mut found = ask_all(client, &asked, false).await;
        let mut verdict = decide(&given(&found));
        let runs = |found: &Result<Answer, String>| matches!(found, Ok(Answer::Running(_)));
        if matches!(verdict, Verdict::Wait) && found.iter().any(runs) {
            found = ask_all(client, &asked, true).await;
            verdict = decide(&given(&found));
        }
        match verdict {
            Verdict::Start(who) => return Ok(who),
            Verdict::Refuse(refusal) => return Err(refused(config, own, &refusal).into()),
            Verdict::Wait => {}
        }
        if Instant::now() >= silent_until {
            let waiting: Vec<String> = asked
                .iter()
                .zip(&found)
                .map(|(asked, found)| format!("{}: {}", asked.name, says(own, found)))
                .collect();
            tracing::warn!(
                others = waiting.join("; "),
                remedy = "start the members that are missing; check --initial-cluster, --data-dir and the network",
                "not started yet: waiting for other members to say whether this one has been in the cluster before"
            );
            silent_until = Instant::now() + SILENCE.1;
        }
        tokio::time::sleep(pause).await;
        pause = PAUSE.1.min(2 * pause);
    }
}

fn given(found: &[Result<Answer, String>]) -> Vec<Answer> {
    found.iter().filter_map(|found| found.clone().ok()).collect()
}

/// What one of the others has to do with waiting, for the log.
fn says(own: Option<&Newcomer>, found: &Result<Answer, String>) -> String {
    match (found, own) {
        (Err(error), _) => error.clone(),
        (Ok(Answer::Newcomer { cluster_id, .. }), Some(own)) if *cluster_id != own.cluster_id => format!(
            "founds another cluster ({}, not {}): it has another --initial-cluster or --initial-cluster-token",
            hex_id(*cluster_id),
            hex_id(own.cluster_id)
        ),
        (Ok(Answer::Newcomer { revision, .. }), Some(own)) if *revision != own.revision => format!(
            "begins at revision {revision}, and this member at {}: restore the same snapshot on all members",
            own.revision
        ),
        (Ok(Answer::Newcomer { .. }), _) => "has not started yet itself".to_owned(),
        (Ok(Answer::Running(roster)), _) if roster.confirmed => "runs".to_owned(),
        (Ok(Answer::Running(_)), _) => "runs, and has no leader that could vouch for what it knows".to_owned(),
    }
}

/// What to say of a start that is refused, and what to do about it.
fn refused(config: &Config, own: Option<&Newcomer>, refusal: &Refusal) -> String {
    let dir = config.data_dir.display();
    let own_urls = config.initial_cluster.get(&config.name).map(|urls| urls.join(",")).unwrap_or_default();
    match refusal {
        Refusal::Published { id } if own.is_some_and(|own| own.revision > FIRST_REVISION) => format!(
            "member {} has already been bootstrapped: its cluster runs, and {dir} holds a restored snapshot, which begins a \
             new one; stop all members of the old cluster first, or restore with another --initial-cluster-token",
            hex_id(*id)
        ),
        Refusal::Published { id } => format!(
            "member {} has already been bootstrapped, and {dir} does not hold its data: most likely --data-dir is mistyped \
             or not mounted; if the data is lost, remove the member (etcdctl member remove {}), add it again (etcdctl member \
             add {} --peer-urls={own_urls}), and start it with --initial-cluster-state=existing",
            hex_id(*id),
            hex_id(*id),
            config.name,
        ),
        Refusal::Unknown { cluster_id, members } => format!(
            "the members of --initial-cluster run as cluster {}, which consists of {} and does not know this member: if it \
             was added, start it with --initial-cluster-state=existing; otherwise correct --initial-cluster",
            hex_id(*cluster_id),
            members.iter().map(|id| hex_id(*id)).collect::<Vec<_>>().join(", ")
        ),
        Refusal::Count { members } => format!(
            "error validating peerURLs {:?}: member count is unequal",
            members.iter().flat_map(|member| &member.peer_urls).collect::<Vec<_>>()
        ),
        Refusal::NoMatch => {
            let own_urls = config.initial_cluster.get(&config.name).cloned().unwrap_or_default();
            format!("PeerURLs: no match found for existing member ({own_urls:?})")
        }
    }
}

/// Asks all at once. `confirm`: whether a quorum has to vouch for whoever runs.
async fn ask_all(client: &PeerClient, asked: &[Asked], confirm: bool) -> Vec<Result<Answer, String>> {
    let tasks: Vec<_> = asked
        .iter()
        .cloned()
        .map(|asked| {
            let client = client.clone();
            tokio::spawn(async move { ask_one(&client, &asked, confirm).await })
        })
        .collect();
    let mut found = Vec::new();
    for task in tasks {
        found.push(task.await.unwrap_or_else(|error| Err(error.to_string())));
    }
    found
}

async fn ask_one(client: &PeerClient, asked: &Asked, confirm: bool) -> Result<Answer, String> {
    let mut last = "it has no peer URL".to_owned();
    for text in &asked.urls {
        let answer = match PeerUrl::parse(text) {
            Ok(url) => ask_at(client, &url, &asked.urls, confirm).await,
            Err(error) => Err(error.to_string()),
        };
        match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn ask_at(client: &PeerClient, url: &PeerUrl, urls: &[String], confirm: bool) -> Result<Answer, String> {
    let failed = |error: RequestError| error_chain(&error);
    if let Some(json) = client.get_own(url, MEMBER_PATH, ASK_TIMEOUT).await.map_err(failed)? {
        let said: serde_json::Value = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
        if said["asking"] == true {
            let cluster_id = said["cluster"].as_str().and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let cluster_id = cluster_id.ok_or("it does not say which cluster it founds")?;
            let revision = said["revision"].as_i64().unwrap_or(FIRST_REVISION);
            return Ok(Answer::Newcomer { cluster_id, revision });
        }
    }
    // Vouched for before it is asked: so what it lists is no older than the question.
    let confirmed = confirm && client.get_downgrade_enabled(url, CONFIRM_TIMEOUT).await.is_ok();
    let remote = client.get_members(url, ASK_TIMEOUT).await.map_err(failed)?;
    let members: Vec<Member> = serde_json::from_slice(&remote.json)
        .map_err(|error| format!("cannot fetch cluster info from peer urls: {error}"))?;
    let same = |member: &&Member| member.peer_urls.iter().any(|url| urls.contains(url));
    let from = members.iter().find(same).map(|member| member.id);
    Ok(Answer::Running(Roster { from, cluster_id: remote.cluster_id, members, confirmed }))
}

/// What a member says of itself at [`MEMBER_PATH`]. `data`: whether it holds any; `asking`: whether it is before its first
/// start.
pub fn own_words(cluster_id: u64, id: MemberId, data: bool, asking: bool, revision: i64) -> String {
    serde_json::json!({
        "cluster": hex_id(cluster_id),
        "member": hex_id(id),
        "data": data,
        "asking": asking,
        "revision": revision,
    })
    .to_string()
}
