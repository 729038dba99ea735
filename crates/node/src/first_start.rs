//! Whether a member that holds nothing may start under its id.
//!
//! A member whose directory is gone has forgotten its votes and what it acknowledged; under its old id it would vote again,
//! and a majority with it could lose what a majority has acknowledged. So before a first start all others are asked what
//! they know of this id: whoever has *published* itself (its client URLs stand in the log) has served, and does not begin
//! anew. Nothing here asks anybody: answers come in, a verdict comes out.
//!
//! ```text
//!   anyone lists it as published                                refuse: remove it, and add it again
//!   a confirmed list is without it                              refuse: it does not belong there
//!   a running cluster lists it as not published                 start
//!   a majority of the founders holds nothing, itself included   start   (only when founding)
//!   otherwise                                                   wait, and ask again
//! ```
//!
//! The list of one member may be old. It counts as a cluster's when a quorum confirmed that member while it was asked, or
//! when so many members agree that no quorum can have published this one without one of them.
//!
//! A log that never left the term of the founding belongs to somebody who has neither voted nor acknowledged anything: such
//! a start is a first one too. That is what a restored snapshot looks like, whose ids may be those of a living cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use dolmen_env::Disk;
use dolmen_machine::{Machine, Member};
use dolmen_types::{ClusterId, MemberId};
use dolmen_wal::Wal;

use crate::start::{Layout, StartError, is_initialized, lock};

/// What a member's folder says of its past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Past {
    /// There is no log.
    None,
    /// A founding that nothing has followed: these are the founders.
    Founding { members: Vec<Member>, revision: i64 },
    /// It has taken part in a cluster, or may have.
    Member,
}

/// Looks into a member's folder.
///
/// # Errors
/// See [`StartError`].
pub fn past(disk: &Arc<dyn Disk>, layout: &Layout, machine: &dolmen_machine::Config) -> Result<Past, StartError> {
    if !is_initialized(&**disk, layout)? {
        return Ok(Past::None);
    }
    if !Wal::is_founding(&**disk, &layout.wal)? {
        return Ok(Past::Member);
    }
    let _lock = lock(&**disk, layout)?;
    let machine = Machine::open(Arc::clone(disk), &layout.store(), machine.clone())?;
    let members: Vec<Member> = machine.membership().members.values().cloned().collect();
    // One that was cut off before it knew anybody has a log of its own: whatever it was asked, it remembers.
    Ok(if members.is_empty() { Past::Member } else { Past::Founding { members, revision: machine.store().revision() } })
}

/// A member before its first start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newcomer {
    pub id: MemberId,
    pub cluster_id: ClusterId,
    /// Of its store: more than a new one's when it was restored from a snapshot.
    pub revision: i64,
    /// Of all founders.
    pub founders: Vec<MemberId>,
}

/// What one of the others says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is before its own first start.
    Newcomer {
        cluster_id: ClusterId,
        revision: i64,
    },
    Running(Roster),
}

/// The members as a running one lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// Who lists them, if that could be told.
    pub from: Option<MemberId>,
    pub cluster_id: ClusterId,
    pub members: Vec<Member>,
    /// A quorum confirmed it while it was asked: nothing that was decided before is missing.
    pub confirmed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    Start(T),
    Refuse(Refusal),
    Wait,
}

/// Why a first start is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has started before.
    Published { id: MemberId },
    /// A running cluster does not know it.
    Unknown { cluster_id: ClusterId, members: Vec<MemberId> },
    /// Not as many members as the flags name.
    Count { members: Vec<Member> },
    /// No member has these URLs.
    NoMatch,
}

/// Who a member that joins is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joining {
    pub id: MemberId,
    pub cluster_id: ClusterId,
    pub members: Vec<Member>,
}

fn is_published(member: &Member) -> bool {
    !member.client_urls.is_empty()
}

impl Roster {
    fn find(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Whether anybody has ever served.
    fn has_served(&self) -> bool {
        self.members.iter().any(is_published)
    }

    fn voters(&self) -> BTreeSet<MemberId> {
        self.members.iter().filter(|member| !member.is_learner).map(|member| member.id).collect()
    }
}

fn rosters(answers: &[Answer]) -> impl Iterator<Item = &Roster> {
    answers.iter().filter_map(|answer| match answer {
        Answer::Running(roster) => Some(roster),
        Answer::Newcomer { .. } => None,
    })
}

/// Whether running members, none of which lists `id` as published, speak for their cluster.
fn is_cluster(id: MemberId, rosters: &[&Roster]) -> bool {
    if rosters.iter().any(|roster| roster.confirmed && roster.find(id).is_some()) {
        return true;
    }
    let Some(first) = rosters.first() else { return false };
    let voters = first.voters();
    if rosters.iter().any(|roster| roster.find(id).is_none() || roster.voters() != voters) {
        return false;
    }
    let agreeing: BTreeSet<MemberId> =
        rosters.iter().filter_map(|roster| roster.from).filter(|from| *from != id && voters.contains(from)).collect();
    let quorum = voters.len() / 2 + 1;
    voters.len() - agreeing.len() < quorum
}

/// Whether a founder may start: each of the other founders has been asked, and `answers` are of those that answered.
pub fn may_found(own: &Newcomer, answers: &[Answer]) -> Verdict<()> {
    let running: Vec<&Roster> = rosters(answers).collect();
    if running.iter().any(|roster| roster.find(own.id).is_some_and(is_published)) {
        return Verdict::Refuse(Refusal::Published { id: own.id });
    }
    if let Some(stranger) = running.iter().find(|roster| roster.confirmed && roster.find(own.id).is_none()) {
        let members = stranger.members.iter().map(|member| member.id).collect();
        return Verdict::Refuse(Refusal::Unknown { cluster_id: stranger.cluster_id, members });
    }
    if running.iter().any(|roster| roster.has_served()) {
        return if is_cluster(own.id, &running) { Verdict::Start(()) } else { Verdict::Wait };
    }
    let holds_nothing = |answer: &&Answer| match answer {
        Answer::Newcomer { cluster_id, revision } => *cluster_id == own.cluster_id && *revision == own.revision,
        Answer::Running(roster) => roster.cluster_id == own.cluster_id && roster.find(own.id).is_some(),
    };
    let agreeing = 1 + answers.iter().filter(holds_nothing).count();
    if agreeing > own.founders.len() / 2 { Verdict::Start(()) } else { Verdict::Wait }
}

/// Whether a member that was added to a running cluster may start, and who it is: the one with these peer URLs, sorted.
/// `configured`: how many members the flags name.
pub fn may_join(urls: &[String], configured: usize, answers: &[Answer]) -> Verdict<Joining> {
    let running: Vec<&Roster> = rosters(answers).collect();
    let own = |roster: &Roster| {
        let same = |member: &&Member| {
            let mut theirs = member.peer_urls.clone();
            theirs.sort();
            theirs == urls
        };
        roster.members.iter().find(same).map(|member| member.id)
    };
    let confirmed = running.iter().find(|roster| roster.confirmed);
    // Without a quorum's word all have to say the same.
    let Some(roster) = confirmed.or_else(|| running.first()) else { return Verdict::Wait };
    let id = own(roster);
    if confirmed.is_none() && running.iter().any(|other| own(other) != id) {
        return Verdict::Wait;
    }
    if let Some(id) = id
        && running.iter().any(|other| other.find(id).is_some_and(is_published))
    {
        return Verdict::Refuse(Refusal::Published { id });
    }
    match id {
        _ if confirmed.is_some() && roster.members.len() != configured => {
            Verdict::Refuse(Refusal::Count { members: roster.members.clone() })
        }
        None if confirmed.is_some() => Verdict::Refuse(Refusal::NoMatch),
        Some(id) if roster.members.len() == configured && is_cluster(id, &running) => {
            Verdict::Start(Joining { id, cluster_id: roster.cluster_id, members: roster.members.clone() })
        }
        _ => Verdict::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = 0xc1;

    /// Members 1, 2, ...; those in `published` have served.
    fn members(count: u64, published: &[u64]) -> Vec<Member> {
        let member = |id: u64| Member {
            id,
            peer_urls: vec![format!("http://h:{id}")],
            client_urls: if published.contains(&id) { vec![format!("http://c:{id}")] } else { Vec::new() },
            ..Member::default()
        };
        (1..=count).map(member).collect()
    }

    fn roster(from: u64, count: u64, published: &[u64]) -> Roster {
        Roster { from: Some(from), cluster_id: CLUSTER, members: members(count, published), confirmed: false }
    }

    fn runs(from: u64, count: u64, published: &[u64]) -> Answer {
        Answer::Running(roster(from, count, published))
    }

    fn confirmed(from: u64, count: u64, published: &[u64]) -> Answer {
        Answer::Running(Roster { confirmed: true, ..roster(from, count, published) })
    }

    const NEW: Answer = Answer::Newcomer { cluster_id: CLUSTER, revision: 1 };

    fn founder(id: u64, count: u64) -> Newcomer {
        Newcomer { id, cluster_id: CLUSTER, revision: 1, founders: (1..=count).collect() }
    }

    fn url(id: u64) -> Vec<String> {
        vec![format!("http://h:{id}")]
    }

    #[test]
    fn one_word_of_an_earlier_life_refuses() {
        let refused = Verdict::Refuse(Refusal::Published { id: 3 });
        // Even an old list, even beside a majority that holds nothing.
        assert_eq!(may_found(&founder(3, 3), &[runs(2, 3, &[2, 3])]), refused);
        assert_eq!(may_found(&founder(3, 3), &[NEW, runs(2, 3, &[2, 3])]), refused);
        let refused = Verdict::Refuse(Refusal::Published { id: 3 });
        assert_eq!(may_join(&url(3), 3, &[runs(2, 3, &[1, 2, 3])]), refused);
        assert_eq!(may_join(&url(3), 3, &[confirmed(1, 3, &[1, 2]), runs(2, 3, &[3])]), refused);
    }

    #[test]
    fn a_cluster_is_founded_by_a_majority_that_holds_nothing() {
        let own = founder(1, 3);
        assert_eq!(may_found(&own, &[]), Verdict::Wait);
        assert_eq!(may_found(&own, &[NEW]), Verdict::Start(()));
        // One that has just begun, Go's among them.
        assert_eq!(may_found(&own, &[runs(2, 3, &[])]), Verdict::Start(()));
        assert_eq!(may_found(&founder(1, 5), &[NEW]), Verdict::Wait);
        assert_eq!(may_found(&founder(1, 5), &[NEW, NEW]), Verdict::Start(()));
        assert_eq!(may_found(&founder(1, 1), &[]), Verdict::Start(()));
        // Founders of another cluster, or with other contents, are no company.
        assert_eq!(may_found(&own, &[Answer::Newcomer { cluster_id: 7, revision: 1 }]), Verdict::Wait);
        assert_eq!(may_found(&own, &[Answer::Newcomer { cluster_id: CLUSTER, revision: 9 }]), Verdict::Wait);
    }

    #[test]
    fn a_late_first_start_wants_the_word_of_the_cluster() {
        let own = founder(3, 3);
        assert_eq!(may_found(&own, &[confirmed(1, 3, &[1, 2])]), Verdict::Start(()));
        // Member 2 may have missed that the other two served.
        assert_eq!(may_found(&own, &[runs(2, 3, &[1, 2])]), Verdict::Wait);
        assert_eq!(may_found(&own, &[runs(1, 3, &[1, 2]), runs(2, 3, &[1, 2])]), Verdict::Start(()));
        // A founder that holds nothing is no member that speaks for the others.
        assert_eq!(may_found(&own, &[NEW, runs(2, 3, &[1, 2])]), Verdict::Wait);
        assert!(matches!(
            may_found(&founder(4, 4), &[confirmed(1, 3, &[1])]),
            Verdict::Refuse(Refusal::Unknown { .. })
        ));
        assert_eq!(may_found(&founder(4, 4), &[runs(1, 3, &[1])]), Verdict::Wait);
    }

    #[test]
    fn an_added_member_joins_under_the_id_it_was_given() {
        let joins = |answers: &[Answer], configured| may_join(&url(3), configured, answers);
        let started = |count| {
            let published: Vec<u64> = (1..count).collect();
            Verdict::Start(Joining { id: 3, cluster_id: CLUSTER, members: members(count, &published) })
        };
        assert_eq!(joins(&[confirmed(1, 3, &[1, 2])], 3), started(3));
        // Two of two: there is no quorum before it is there.
        let second = may_join(&url(2), 2, &[runs(1, 2, &[1])]);
        assert!(matches!(second, Verdict::Start(Joining { id: 2, .. })), "{second:?}");
        assert_eq!(joins(&[runs(1, 3, &[1, 2])], 3), Verdict::Wait);
        assert_eq!(joins(&[], 3), Verdict::Wait);
        assert_eq!(joins(&[NEW], 3), Verdict::Wait);
        assert!(matches!(joins(&[confirmed(1, 3, &[1, 2])], 2), Verdict::Refuse(Refusal::Count { .. })));
        assert_eq!(joins(&[confirmed(1, 2, &[1, 2])], 2), Verdict::Refuse(Refusal::NoMatch));
        assert_eq!(joins(&[runs(1, 2, &[1, 2])], 2), Verdict::Wait, "the addition may not have come there");
    }

    #[test]
    fn an_id_that_was_removed_says_nothing_of_its_successor() {
        // Member 2 has missed that 3 was removed and added again as 9, at the same URL.
        let mut anew = roster(1, 3, &[1, 2]);
        anew.members[2].id = 9;
        let old = runs(2, 3, &[1, 2, 3]);
        assert_eq!(may_join(&url(3), 3, &[Answer::Running(anew.clone()), old.clone()]), Verdict::Wait);
        anew.confirmed = true;
        assert!(matches!(may_join(&url(3), 3, &[old, Answer::Running(anew)]), Verdict::Start(Joining { id: 9, .. })));
    }
}
