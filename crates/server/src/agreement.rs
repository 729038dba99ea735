//! Whether this member's state is that of the others.
//!
//! Two things are compared, every few seconds. The running hash over applied entries, at an index that others have passed
//! too: cheap, and it covers leases and members as well; between Dolmen members whose hashes began at the same index. And
//! `HashKV`, at one revision and one compact revision: over what is stored, with every member, Go's among them; it reads the
//! whole index, and so takes at most a hundredth of the time.
//!
//! ```text
//!   all say the same                     nothing
//!   a majority says what we say          the log names the others
//!   a majority says something else       we hand leadership over, and serve no keys any more
//!   no majority                          everybody reports CORRUPT
//! ```
//!
//! Nothing here writes: no entry, no alarm of the cluster, and no member's data is replaced.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dolmen_api::ExtraMetrics;
use dolmen_api::prometheus::Type;
use dolmen_node::{Agreement, ChainPoint, Completion, Handle, Request};
use dolmen_transport::{PeerClient, PeerResponse, PeerUrl};
use dolmen_types::{Index, MemberId, hex_id};
use serde_json::{Value, json};

/// Between two comparisons.
const INTERVAL: Duration = Duration::from_secs(2);
/// For one answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Of the time, so much may go into `HashKV` here: one part in as many.
const HASH_SHARE: u32 = 100;
/// A difference counts when it is seen so many times in a row.
const SEEN: u32 = 2;

/// Where a member tells its running hashes, in JSON. A Go member answers 404.
pub const CHAIN_PATH: &str = "/dolmen/v1/chain";

/// What comparing with the others gave.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nobody differs, out of so many.
    Same(usize),
    /// These differ from a majority that we belong to.
    Others(Vec<MemberId>),
    /// We differ from a majority: these.
    Outvoted(Vec<MemberId>),
    Split(Vec<MemberId>),
}

/// Compares for as long as the member runs.
pub async fn keep(node: Handle, client: PeerClient) {
    let (entries, keys) = (Finding::of("applied entries"), Finding::of("keys and values"));
    let mut comparing = Comparing { node, client, hash_at: Instant::now(), agreed: None, entries, keys };
    loop {
        tokio::time::sleep(INTERVAL).await;
        comparing.turn().await;
    }
}

struct Comparing {
    node: Handle,
    client: PeerClient,
    /// When `HashKV` may be made next.
    hash_at: Instant,
    /// At which revision and compact revision all agreed.
    agreed: Option<(i64, i64)>,
    entries: Finding,
    keys: Finding,
}

/// What comparing one of the two last gave.
struct Finding {
    what: &'static str,
    outcome: Outcome,
    /// In a row.
    times: u32,
}

impl Finding {
    fn of(what: &'static str) -> Self {
        Self { what, outcome: Outcome::Same(0), times: 0 }
    }

    /// Takes an outcome; true when it is a difference that now counts.
    fn note(&mut self, outcome: Option<Outcome>) -> bool {
        let Some(outcome) = outcome else { return false };
        self.times = if outcome == self.outcome { self.times.saturating_add(1) } else { 1 };
        self.outcome = outcome;
        self.times == SEEN && self.differs()
    }

    fn differs(&self) -> bool {
        !matches!(self.outcome, Outcome::Same(_))
    }
}

/// A member and its peer URLs.
type Other = (MemberId, Vec<String>);

impl Comparing {
    async fn turn(&mut self) {
        let members = self.node.members();
        let own = self.node.status().member_id;
        let others = members.members.values().filter(|member| member.id != own);
        let others: Vec<Other> = others.map(|member| (member.id, member.peer_urls.clone())).collect();
        if others.is_empty() || !members.members.contains_key(&own) {
            return;
        }
        if self.node.agreement() == Agreement::Outvoted {
            // It may have been elected since.
            self.hand_over(&others.iter().map(|(id, _)| *id).collect::<Vec<_>>()).await;
            return;
        }
        let (chains, hashes) = (self.chains(&others).await, self.hashes(&others).await);
        let (entries, keys) = (self.entries.note(chains), self.keys.note(hashes));
        if entries {
            self.report(&self.entries).await;
        }
        if keys {
            self.report(&self.keys).await;
        }
        if !self.entries.differs() && !self.keys.differs() {
            self.node.set_agreement(Agreement::Agrees);
        }
    }

    async fn report(&self, finding: &Finding) {
        let what = finding.what;
        let shown = |ids: &[MemberId]| ids.iter().map(|id| hex_id(*id)).collect::<Vec<_>>().join(", ");
        match &finding.outcome {
            Outcome::Same(_) => {}
            Outcome::Others(ids) => tracing::error!(
                what,
                members = shown(ids),
                "found data inconsistency with peers: CORRUPT: these members differ from the majority, which this member \
                 belongs to"
            ),
            Outcome::Outvoted(ids) => {
                tracing::error!(
                    what,
                    majority = shown(ids),
                    remedy = "keep a copy of its data directory, remove this member from the cluster, and add it again",
                    "found data inconsistency with peers: CORRUPT: this member differs from the majority, and serves no \
                     keys any more"
                );
                self.hand_over(ids).await;
                self.node.set_agreement(Agreement::Outvoted);
            }
            Outcome::Split(ids) => {
                tracing::error!(
                    what,
                    members = shown(ids),
                    remedy = "compare the members with etcdctl endpoint hashkv, and keep the one whose data is right",
                    "found data inconsistency with peers: CORRUPT: members differ, and there is no majority"
                );
                self.node.set_agreement(Agreement::Split);
            }
        }
    }

    /// Gives leadership to one of `majority`, if we have it, and waits a little for that.
    async fn hand_over(&self, majority: &[MemberId]) {
        for target in majority {
            if !self.node.status().is_leader() {
                return;
            }
            // No runtime has this number: the outcome shows.
            self.node.submit(Request::MoveLeader { target: *target }, Completion { runtime: u16::MAX, slot: 0 });
            let until = Instant::now() + TIMEOUT;
            while self.node.status().is_leader() && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Compares the running hashes at the index that most members know.
    async fn chains(&self, others: &[Other]) -> Option<Outcome> {
        let mut theirs = Vec::new();
        for (id, urls) in others {
            if let Some(json) = self.chain_of(urls).await {
                theirs.push((*id, read_points(&json)));
            }
        }
        // Asked first and looked at last: what they have applied, we have most likely as well.
        let own = self.node.chain();
        let votes = |point: &ChainPoint| -> Vec<(MemberId, u32)> {
            let at = |(id, points): &(MemberId, BTreeMap<(Index, Index), u32>)| {
                points.get(&(point.index, point.from)).map(|value| (*id, *value))
            };
            theirs.iter().filter_map(at).collect()
        };
        let (point, votes) =
            own.iter().map(|point| (point, votes(point))).rev().max_by_key(|(_, votes)| votes.len())?;
        judge(others.len() + 1, point.value, &votes)
    }

    /// Compares `HashKV` at our revision, when it is time to.
    async fn hashes(&mut self, others: &[Other]) -> Option<Outcome> {
        let now = Instant::now();
        if now < self.hash_at {
            return None;
        }
        let reader = self.node.reader();
        let stands = (reader.revision(), reader.compact_revision());
        if self.agreed == Some(stands) {
            return None;
        }
        let made = tokio::task::spawn_blocking(move || reader.hash_kv(0)).await;
        self.hash_at = now + HASH_SHARE * now.elapsed();
        let own = made.ok()?.ok()?;
        let mut votes = Vec::new();
        for (id, urls) in others {
            let answer = self.hash_of(urls, own.hash_revision).await.filter(|answer| answer.status == 200);
            let Some(answer) = answer else { continue };
            let Ok(json) = serde_json::from_slice::<Value>(&answer.body) else { continue };
            let number = |name: &str| json[name].as_i64().unwrap_or(0);
            if number("compact_revision") == own.compact_revision && number("hash_revision") == own.hash_revision {
                votes.push((*id, number("hash") as u32));
            }
        }
        let outcome = judge(others.len() + 1, own.hash, &votes);
        let all = outcome == Some(Outcome::Same(others.len()));
        self.agreed = (all && own.hash_revision == stands.0).then_some(stands);
        outcome
    }

    /// Of one member, from the first of its URLs that answers.
    async fn chain_of(&self, urls: &[String]) -> Option<Bytes> {
        for url in urls.iter().filter_map(|url| PeerUrl::parse(url).ok()) {
            if let Ok(json) = self.client.get_own(&url, CHAIN_PATH, TIMEOUT).await {
                return json;
            }
        }
        None
    }

    async fn hash_of(&self, urls: &[String], revision: i64) -> Option<PeerResponse> {
        let cluster = self.node.status().cluster_id;
        for url in urls.iter().filter_map(|url| PeerUrl::parse(url).ok()) {
            if let Ok(answer) = self.client.get_hashkv(&url, cluster, revision, TIMEOUT).await {
                return Some(answer);
            }
        }
        None
    }
}

/// What votes among `members` say about ours; `None` when nobody votes.
fn judge(members: usize, own: u32, votes: &[(MemberId, u32)]) -> Option<Outcome> {
    if votes.is_empty() {
        return None;
    }
    let ids = |value: u32| votes.iter().filter(|vote| vote.1 == value).map(|vote| vote.0).collect::<Vec<_>>();
    let differing: Vec<(MemberId, u32)> = votes.iter().copied().filter(|vote| vote.1 != own).collect();
    let majority = |count: usize| count > members / 2;
    Some(if differing.is_empty() {
        Outcome::Same(votes.len())
    } else if majority(1 + ids(own).len()) {
        Outcome::Others(differing.into_iter().map(|vote| vote.0).collect())
    } else if let Some((_, value)) = differing.iter().find(|(_, value)| majority(ids(*value).len())) {
        Outcome::Outvoted(ids(*value))
    } else {
        Outcome::Split(differing.into_iter().map(|vote| vote.0).collect())
    })
}

/// How this member's state goes with that of the others, on the metrics page.
pub fn families(node: Handle) -> ExtraMetrics {
    Box::new(move |page| {
        let help =
            "Whether this member agrees with the others: 0 yes, 1 they differ without a majority, 2 it is outvoted.";
        page.single("dolmen_divergence", Type::Gauge, help, f64::from(node.agreement() as u8));
    })
}

/// What [`CHAIN_PATH`] answers: all points, or those up to an index.
pub fn points(node: &Handle, query: &str) -> String {
    let most = query.split('&').find_map(|field| field.strip_prefix("index=")?.parse().ok()).unwrap_or(Index::MAX);
    let points = node.chain().into_iter().filter(|point| point.index <= most);
    let shown = points.map(|point| {
        let ChainPoint { index, term, from, value } = point;
        json!({ "index": index, "term": term, "from": from, "value": value })
    });
    json!({ "points": shown.collect::<Vec<_>>() }).to_string()
}

/// By index and beginning.
fn read_points(json: &[u8]) -> BTreeMap<(Index, Index), u32> {
    let json: Value = serde_json::from_slice(json).unwrap_or_default();
    let point = |point: &Value| {
        let number = |name: &str| point[name].as_u64();
        Some(((number("index")?, number("from")?), number("value")? as u32))
    };
    json["points"].as_array().into_iter().flatten().filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_is_of_all_members_and_not_of_those_that_answer() {
        assert_eq!(judge(3, 7, &[]), None);
        assert_eq!(judge(3, 7, &[(2, 7)]), Some(Outcome::Same(1)));
        assert_eq!(judge(3, 7, &[(2, 7), (3, 8)]), Some(Outcome::Others(vec![3])));
        assert_eq!(judge(3, 8, &[(2, 7), (3, 7)]), Some(Outcome::Outvoted(vec![2, 3])));
        // One that is down, two that differ: nobody can tell.
        assert_eq!(judge(3, 8, &[(2, 7)]), Some(Outcome::Split(vec![2])));
        assert_eq!(judge(3, 1, &[(2, 2), (3, 3)]), Some(Outcome::Split(vec![2, 3])));
        assert_eq!(judge(5, 8, &[(2, 7), (3, 7), (4, 8)]), Some(Outcome::Split(vec![2, 3])));
    }

    #[test]
    fn points_are_read_as_they_are_told() {
        let told = br#"{"points":[{"index":64,"term":2,"from":0,"value":4000000000,"more":1},{"index":"x"}]}"#;
        assert_eq!(read_points(told), BTreeMap::from([((64, 0), 4_000_000_000)]));
        assert_eq!(read_points(b"junk"), BTreeMap::new());
    }
}
