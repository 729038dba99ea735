//! The lessor's rules, one test each, and a run against a model that keeps every deadline in a plain list.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use dolmen_env::{Mono, Rng};
use dolmen_lease::{
    AttachError, Checkpoint, Config, GrantError, LeaseRecord, Lessor, MAX_TTL_SECONDS, RenewError, TimeToLiveError,
};

const NONE: Duration = Duration::ZERO;

fn at(seconds: u64) -> Mono {
    Mono::from_millis(seconds * 1000)
}

fn lessor() -> Lessor {
    Lessor::new(Config::default())
}

fn primary() -> Lessor {
    let mut lessor = lessor();
    lessor.promote(at(0), NONE);
    lessor
}

fn with_checkpoints() -> Lessor {
    let mut lessor = Lessor::new(Config { checkpoints: true, ..Config::default() });
    lessor.promote(at(0), NONE);
    lessor
}

#[test]
fn grants_raise_short_ttls_and_refuse_bad_ones() {
    let mut lessor = primary();
    for (id, ttl, expected) in [
        (1, 10, Ok(10)),
        (2, 1, Ok(2)),
        (3, 0, Ok(2)),
        (4, -5, Ok(2)),
        (5, i64::MIN, Ok(2)),
        (-6, 10, Ok(10)),
        (i64::MIN, 10, Ok(10)),
        (7, MAX_TTL_SECONDS, Ok(MAX_TTL_SECONDS)),
        (8, MAX_TTL_SECONDS + 1, Err(GrantError::TooLarge)),
        (1, 10, Err(GrantError::Exists)),
        (1, MAX_TTL_SECONDS + 1, Err(GrantError::TooLarge)),
        (0, 10, Err(GrantError::NoId)),
    ] {
        assert_eq!(lessor.grant(id, ttl, at(1)), expected, "grant {id} {ttl}");
    }
    assert_eq!(lessor.len(), 8);
    assert_eq!(lessor.record(2), Some(LeaseRecord { id: 2, ttl: 2, remaining_ttl: 0 }));
    assert_eq!(lessor.time_to_live(7, at(1), false).map(|answer| answer.ttl), Ok(MAX_TTL_SECONDS));
}

#[test]
fn keys_leave_with_their_lease_in_order() {
    let mut lessor = lessor();
    for id in [1, 2] {
        lessor.grant(id, 10, at(0)).expect("granted");
    }
    for key in ["b", "c", "a", "b"] {
        lessor.attach(1, key.into()).expect("attached");
    }
    assert_eq!(lessor.attach(9, "z".into()), Err(AttachError));
    // A put with another lease moves the key, a put without one detaches it.
    lessor.attach(2, "c".into()).expect("attached");
    lessor.attach(2, "d".into()).expect("attached");
    lessor.detach(2, b"d");
    lessor.detach(1, b"c");
    lessor.detach(9, b"a");
    lessor.detach(1, b"unknown");
    assert_eq!((lessor.lookup(b"a"), lessor.lookup(b"c"), lessor.lookup(b"d")), (1, 2, 0));
    assert_eq!(lessor.keys(2).map(|keys| keys.cloned().collect()), Some(vec![Bytes::from("c")]));
    assert_eq!(lessor.revoke(1), Some(vec!["a".into(), "b".into()]));
    assert_eq!(lessor.revoke(1), None);
    assert!(lessor.keys(1).is_none());
    assert_eq!((lessor.lookup(b"a"), lessor.lookup(b"c")), (0, 2));
    assert_eq!(lessor.revoke(2), Some(vec!["c".into()]));
    assert!(lessor.is_empty());
}

#[test]
fn only_a_primary_knows_the_time() {
    let mut lessor = lessor();
    lessor.grant(1, 10, at(0)).expect("granted");
    assert_eq!(lessor.renew(1, at(1)), Err(RenewError::NotPrimary));
    assert_eq!(lessor.time_to_live(1, at(1), true), Err(TimeToLiveError::NotPrimary));
    assert_eq!((lessor.remaining(1, at(1)), lessor.next_deadline()), (None, None));
    assert!(lessor.expired(at(1_000_000), 10).is_empty());

    lessor.promote(at(100), NONE);
    assert_eq!(lessor.renew(2, at(100)), Err(RenewError::NotFound));
    assert_eq!(lessor.time_to_live(2, at(100), true), Err(TimeToLiveError::NotFound));
    assert_eq!(lessor.renew(1, at(105)), Ok(10));
    assert_eq!(lessor.remaining(1, at(106)), Some(Duration::from_secs(9)));

    // An old leader stops naming leases the moment it knows.
    assert_eq!(lessor.expired(at(115), 10), [1]);
    lessor.demote();
    assert!(lessor.expired(at(1_000_000), 10).is_empty());
    assert_eq!(lessor.renew(1, at(116)), Err(RenewError::NotPrimary));
}

#[test]
fn time_to_live_rounds_down_and_lists_keys() {
    let mut lessor = primary();
    lessor.grant(1, 10, at(0)).expect("granted");
    lessor.attach(1, "k".into()).expect("attached");
    let ttl = |millis, keys| lessor.time_to_live(1, Mono::from_millis(millis), keys).expect("a primary answers");
    assert_eq!((ttl(0, false).ttl, ttl(1, false).ttl, ttl(9_000, false).ttl, ttl(9_001, false).ttl), (10, 9, 1, 0));
    assert_eq!((ttl(10_000, false).ttl, ttl(99_000, false).ttl, ttl(0, false).granted_ttl), (0, 0, 10));
    assert_eq!((ttl(0, false).keys, ttl(0, true).keys), (vec![], vec![Bytes::from("k")]));
}

#[test]
fn an_expired_lease_is_named_once_and_again_when_its_revoke_was_lost() {
    let mut lessor = primary();
    for id in 1..=3 {
        lessor.grant(id, 10, Mono::from_millis(id as u64)).expect("granted");
    }
    assert_eq!(lessor.next_deadline(), Some(Mono::from_millis(10_001)));
    assert!(lessor.expired(at(10), 10).is_empty());
    assert_eq!(lessor.expired(Mono::from_millis(10_002), 1), [1]);
    assert_eq!(lessor.expired(Mono::from_millis(10_002), 10), [2]);
    assert_eq!(lessor.expired(at(11), 10), [3]);
    assert!(lessor.expired(at(12), 10).is_empty());
    assert_eq!(
        lessor.renew(3, Mono::from_millis(10_003)),
        Err(RenewError::PendingRevoke),
        "at the deadline it is over"
    );
    // Past its deadline it can no longer be renewed, whatever became of the revoke.
    assert_eq!(lessor.renew(1, at(12)), Err(RenewError::PendingRevoke));
    assert_eq!(lessor.revoke(2), Some(vec![]));
    assert_eq!(lessor.renew(2, at(12)), Err(RenewError::NotFound));
    assert_eq!(lessor.expired(Mono::from_millis(13_002), 10), [1]);
    assert_eq!(lessor.expired(at(14), 10), [3]);
    assert_eq!(lessor.next_deadline(), Some(Mono::from_millis(16_002)));
}

#[test]
fn a_renewal_moves_the_deadline_and_wakes_nobody_late() {
    let mut lessor = primary();
    lessor.grant(1, 10, at(0)).expect("granted");
    for second in 1..100 {
        assert_eq!(lessor.renew(1, at(second)), Ok(10));
        assert!(lessor.next_deadline().expect("a lease has a deadline") <= at(second + 10));
        assert!(lessor.expired(at(second), 10).is_empty());
    }
    assert!(lessor.expired(Mono::from_millis(108_999), 10).is_empty());
    assert_eq!(lessor.expired(at(109), 10), [1]);
}

#[test]
fn a_renewal_after_a_long_extension_brings_the_deadline_forward() {
    let mut lessor = lessor();
    lessor.grant(1, 10, at(0)).expect("granted");
    lessor.promote(at(0), Duration::from_secs(100));
    assert_eq!(lessor.remaining(1, at(0)), Some(Duration::from_secs(110)));
    assert_eq!(lessor.renew(1, at(1)), Ok(10));
    assert_eq!(lessor.next_deadline(), Some(at(11)));
    assert_eq!(lessor.expired(at(11), 10), [1]);
}

#[test]
fn every_change_of_leaders_starts_leases_over() {
    let mut lessor = lessor();
    lessor.grant(1, 60, at(0)).expect("granted");
    for term in 0..10 {
        let start = term * 50;
        lessor.promote(at(start), Duration::from_secs(1));
        assert!(lessor.expired(at(start + 50), 10).is_empty(), "term {term}");
        lessor.demote();
    }
    lessor.promote(at(500), Duration::from_secs(1));
    assert!(lessor.expired(Mono::from_millis(560_999), 10).is_empty());
    assert_eq!(lessor.expired(at(561), 10), [1]);
}

#[test]
fn a_burst_is_spread_over_the_revoke_rate() {
    let mut lessor = lessor();
    for id in 1..=5000 {
        lessor.grant(id, 30, at(0)).expect("granted");
    }
    lessor.promote(at(100), Duration::from_secs(1));
    let mut deadlines: Vec<u64> =
        (1..=5000).map(|id| lessor.remaining(id, at(100)).expect("a primary knows").as_millis() as u64).collect();
    deadlines.sort_unstable();
    assert_eq!(deadlines[0], 31_000, "none earlier than its TTL and the extension");
    for (first, later) in deadlines.iter().zip(&deadlines[751..]) {
        assert!(later - first >= 990, "more than 750 within a second, at {first}");
    }
    assert!(deadlines[4999] < 31_000 + 8_000, "none later than the rate asks: {}", deadlines[4999]);

    // Few leases, or leases far apart, are left alone.
    let mut lessor = Lessor::new(Config::default());
    for id in 1..=2000 {
        lessor.grant(id, 30 + id * 2, at(0)).expect("granted");
    }
    lessor.promote(at(0), NONE);
    for id in 1..=2000 {
        assert_eq!(lessor.remaining(id, at(0)), Some(Duration::from_secs(30 + id as u64 * 2)));
    }
}

#[test]
fn lists_are_ordered_by_expiry() {
    let mut lessor = primary();
    for (id, ttl) in [(1, 30), (2, 10), (3, 20), (-4, 10)] {
        lessor.grant(id, ttl, at(0)).expect("granted");
    }
    assert_eq!(lessor.list(), [-4, 2, 3, 1]);
    lessor.renew(2, at(9)).expect("renewed");
    assert_eq!(lessor.list(), [-4, 2, 3, 1]);
    lessor.renew(2, Mono::from_millis(9_900)).expect("renewed");
    lessor.renew(-4, Mono::from_millis(9_950)).expect("renewed");
    assert_eq!(lessor.list(), [2, -4, 3, 1]);
    lessor.demote();
    assert_eq!(lessor.list(), [-4, 1, 2, 3]);
}

#[test]
fn long_leases_are_checkpointed_and_renewals_clear_it() {
    let mut lessor = with_checkpoints();
    lessor.grant(1, 1000, at(0)).expect("granted");
    lessor.grant(2, 300, at(0)).expect("granted");
    assert_eq!(lessor.next_deadline(), Some(at(300)));
    assert!(lessor.checkpoints_due(Mono::from_millis(299_999), 10).is_empty());
    let due = lessor.checkpoints_due(Mono::from_millis(300_001), 10);
    assert_eq!(due, [Checkpoint { id: 1, remaining_ttl: 700 }], "seconds left, rounded up");
    assert!(lessor.checkpoints_due(at(301), 10).is_empty());
    lessor.apply_checkpoint(1, 700, at(301));
    lessor.apply_checkpoint(77, 700, at(301));
    assert_eq!(lessor.record(1), Some(LeaseRecord { id: 1, ttl: 1000, remaining_ttl: 700 }));
    assert_eq!(lessor.remaining(1, at(301)), Some(Duration::from_secs(699)), "a running deadline stays");

    // The next one comes an interval after it was applied.
    assert!(lessor.checkpoints_due(at(600), 10).is_empty());
    assert_eq!(lessor.checkpoints_due(at(601), 10), [Checkpoint { id: 1, remaining_ttl: 399 }]);
    lessor.apply_checkpoint(1, 399, at(601));

    // A renewal has to clear it in the log first: the next leader would cut the lease short.
    assert_eq!(lessor.renew(1, at(602)), Err(RenewError::Checkpointed));
    lessor.apply_checkpoint(1, 0, at(602));
    assert_eq!(lessor.renew(1, at(603)), Ok(1000));
    assert_eq!(lessor.remaining(1, at(603)), Some(Duration::from_secs(1000)));
    lessor.demote();
    lessor.promote(at(700), NONE);
    assert_eq!(lessor.remaining(1, at(700)), Some(Duration::from_secs(1000)));

    // A new leader continues from the checkpoint.
    lessor.apply_checkpoint(1, 350, at(700));
    lessor.demote();
    lessor.promote(at(800), Duration::from_secs(1));
    assert_eq!(lessor.remaining(1, at(800)), Some(Duration::from_secs(351)));
    assert_eq!(lessor.record(2).map(|record| record.remaining_ttl), Some(0), "too short for checkpoints");
}

#[test]
fn a_lost_checkpoint_is_asked_for_again() {
    let mut lessor = with_checkpoints();
    lessor.grant(1, 10_000, at(0)).expect("granted");
    assert_eq!(lessor.checkpoints_due(at(300), 10), [Checkpoint { id: 1, remaining_ttl: 9_700 }]);
    assert_eq!(lessor.checkpoints_due(at(600), 10), [Checkpoint { id: 1, remaining_ttl: 9_400 }]);
    // Either may still be applied, so a renewal is not answered before a 0 behind them is. None is handed out meanwhile.
    assert_eq!(lessor.renew(1, at(700)), Err(RenewError::Checkpointed));
    assert!(lessor.checkpoints_due(at(800), 10).is_empty());
    lessor.apply_checkpoint(1, 9_700, at(800));
    assert_eq!(lessor.renew(1, at(800)), Err(RenewError::Checkpointed));
    lessor.apply_checkpoint(1, 0, at(600));
    // A lease that was renewed this very moment has nothing to tell, now.
    lessor.renew(1, at(900)).expect("renewed");
    assert!(lessor.checkpoints_due(at(900), 10).is_empty());
    assert_eq!(lessor.checkpoints_due(at(1200), 10), [Checkpoint { id: 1, remaining_ttl: 9_700 }]);
}

#[test]
fn checkpoints_come_in_batches_and_only_if_enabled() {
    let mut enabled = with_checkpoints();
    let mut disabled = primary();
    for id in 1..=2500 {
        enabled.grant(id, 1000, at(0)).expect("granted");
        disabled.grant(id, 1000, at(0)).expect("granted");
    }
    let sizes: Vec<usize> = (0..4).map(|_| enabled.checkpoints_due(at(300), 1000).len()).collect();
    assert_eq!(sizes, [1000, 1000, 500, 0]);
    assert!(disabled.checkpoints_due(at(300), 1000).is_empty());
    enabled.demote();
    assert!(enabled.checkpoints_due(at(9000), 1000).is_empty());
}

#[test]
fn a_restored_lessor_is_what_was_stored() {
    let mut lessor = with_checkpoints();
    for (id, ttl) in [(1, 10), (-2, 1000), (3, 2)] {
        lessor.grant(id, ttl, at(0)).expect("granted");
    }
    lessor.apply_checkpoint(-2, 500, at(0));
    lessor.attach(1, "a".into()).expect("attached");
    lessor.attach(1, "b".into()).expect("attached");
    let values: Vec<Bytes> = [1, -2, 3].iter().map(|id| lessor.record(*id).expect("it exists").encode()).collect();

    let mut restored = Lessor::new(Config { min_ttl_seconds: 5, ..Config::default() });
    restored.grant(99, 10, at(0)).expect("granted");
    let attachments = [(1, Bytes::from("a")), (1, Bytes::from("b")), (404, Bytes::from("c"))];
    restored.restore(values.clone(), attachments).expect("values decode");
    assert_eq!(restored.list(), [-2, 1, 3]);
    assert!(!restored.is_primary());
    assert_eq!(restored.record(3).map(|record| record.ttl), Some(5), "the minimum holds here too");
    assert_eq!((restored.lookup(b"b"), restored.lookup(b"c")), (1, 0));
    restored.promote(at(0), NONE);
    assert_eq!(restored.remaining(-2, at(0)), Some(Duration::from_secs(500)));

    // What does not decode changes nothing.
    let mut bad = values;
    bad.push(Bytes::from_static(b"\xff"));
    assert!(restored.restore(bad, []).is_err());
    assert_eq!((restored.len(), restored.is_primary()), (3, true));
}

#[test]
fn hostile_numbers_do_not_overflow() {
    let mut lessor = with_checkpoints();
    lessor.grant(1, MAX_TTL_SECONDS, Mono(u64::MAX)).expect("granted");
    lessor.apply_checkpoint(1, i64::MAX, Mono(u64::MAX));
    lessor.apply_checkpoint(1, i64::MIN, Mono(u64::MAX));
    assert_eq!(lessor.record(1).map(|record| record.remaining_ttl), Some(0));
    lessor.promote(Mono(u64::MAX), Duration::MAX);
    assert_eq!(lessor.expired(Mono(u64::MAX), 1), [1]);
    let value = LeaseRecord { id: 1, ttl: i64::MAX, remaining_ttl: i64::MIN }.encode();
    lessor.restore([value], []).expect("it decodes");
    assert_eq!(lessor.record(1), Some(LeaseRecord { id: 1, ttl: MAX_TTL_SECONDS, remaining_ttl: 0 }));
}

/// A lease as the model keeps it: its deadline, and when it may be named next.
struct Model {
    ttl: i64,
    deadline: u64,
    named: u64,
    keys: BTreeSet<Bytes>,
}

#[test]
fn the_lessor_does_what_a_list_does() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut lessor = primary();
        let mut model: BTreeMap<i64, Model> = BTreeMap::new();
        let mut now = 0;
        for _ in 0..3000 {
            let id = rng.range(1, 40) as i64;
            let key = Bytes::from(vec![rng.below(30) as u8]);
            let time = Mono::from_millis(now);
            match rng.below(10) {
                0 | 1 => {
                    let ttl = rng.range(2, 20) as i64;
                    let granted = lessor.grant(id, ttl, time).is_ok();
                    assert_eq!(granted, !model.contains_key(&id), "seed {seed}");
                    let deadline = now + ttl as u64 * 1000;
                    model.entry(id).or_insert(Model { ttl, deadline, named: deadline, keys: BTreeSet::new() });
                }
                2 => {
                    let keys = model.remove(&id).map(|lease| lease.keys.into_iter().collect::<Vec<_>>());
                    assert_eq!(lessor.revoke(id), keys, "seed {seed}");
                }
                3..6 => {
                    let expected = match model.get_mut(&id) {
                        None => Err(RenewError::NotFound),
                        Some(lease) if lease.deadline <= now => Err(RenewError::PendingRevoke),
                        Some(lease) => {
                            lease.deadline = now + lease.ttl as u64 * 1000;
                            lease.named = lease.deadline;
                            Ok(lease.ttl)
                        }
                    };
                    assert_eq!(lessor.renew(id, time), expected, "seed {seed}");
                }
                6 => {
                    let attached = lessor.attach(id, key.clone()).is_ok();
                    assert_eq!(attached, model.contains_key(&id), "seed {seed}");
                    if attached {
                        for lease in model.values_mut() {
                            lease.keys.remove(&key);
                        }
                        model.get_mut(&id).expect("just seen").keys.insert(key.clone());
                    }
                }
                7 => {
                    lessor.detach(id, &key);
                    if let Some(lease) = model.get_mut(&id) {
                        lease.keys.remove(&key);
                    }
                }
                _ => {
                    now += rng.below(4000);
                    let named = lessor.expired(Mono::from_millis(now), usize::MAX);
                    let expected: BTreeSet<i64> =
                        model.iter().filter(|(_, lease)| lease.named <= now).map(|(id, _)| *id).collect();
                    assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), expected, "seed {seed}");
                    assert_eq!(named.len(), expected.len(), "seed {seed}");
                    for id in named {
                        model.get_mut(&id).expect("named from the model").named = now + 3000;
                    }
                }
            }
            let owner = model.iter().find(|(_, lease)| lease.keys.contains(&key)).map_or(0, |(id, _)| *id);
            assert_eq!(lessor.lookup(&key), owner, "seed {seed}");
            let soonest = model.values().map(|lease| lease.named).min();
            assert!(
                lessor.next_deadline().is_none_or(|at| soonest.is_some_and(|soonest| at.as_millis() <= soonest)),
                "seed {seed}"
            );
            assert_eq!(lessor.next_deadline().is_none(), soonest.is_none(), "seed {seed}");
        }
    }
}

#[test]
fn renewals_beside_the_owner_are_those_that_are_plain() {
    let mut lessor = lessor();
    let renewals = lessor.renewals().clone();
    lessor.grant(1, 10, at(0)).expect("granted");
    renewals.open(at(1_000));
    assert_eq!(renewals.renew(1, at(1)), None, "no deadlines here");
    lessor.promote(at(2), NONE);
    assert_eq!(renewals.renew(1, at(3)), None, "promoted, and not vouched for");
    renewals.open(at(100));
    assert_eq!(renewals.renew(1, at(5)), Some(10));
    assert_eq!(lessor.remaining(1, at(6)), Some(Duration::from_secs(9)));
    assert_eq!(renewals.renew(2, at(5)), None, "unknown");

    // The owner finds it where the renewal has put it.
    assert!(lessor.expired(at(13), 10).is_empty());
    assert_eq!(lessor.expired(at(15), 10), [1]);
    // What was decided at 15 is not undone by a clock that was read before.
    assert_eq!(renewals.renew(1, at(14)), None);
    assert_eq!(lessor.renew(1, at(14)), Err(RenewError::PendingRevoke));
    assert_eq!(lessor.revoke(1), Some(vec![]));

    lessor.grant(3, 10, at(16)).expect("granted");
    assert_eq!(renewals.renew(3, at(99)), None, "over");
    lessor.grant(4, 10, at(99)).expect("granted");
    assert_eq!(renewals.renew(4, at(100)), None, "nobody vouches any longer");
    renewals.open(at(1_000));
    assert_eq!(renewals.renew(4, at(100)), Some(10));
    lessor.demote();
    renewals.open(at(1_000));
    assert_eq!(renewals.renew(4, at(100)), None, "another member is primary");
}

#[test]
fn renewals_beside_the_owner_leave_checkpoints_to_it() {
    let mut lessor = with_checkpoints();
    let renewals = lessor.renewals().clone();
    renewals.open(at(100_000));
    lessor.grant(1, 1_000, at(0)).expect("granted");
    assert_eq!(renewals.renew(1, at(10)), Some(1_000));
    assert_eq!(lessor.checkpoints_due(at(300), 10), [Checkpoint { id: 1, remaining_ttl: 710 }]);
    assert_eq!(renewals.renew(1, at(301)), None, "a checkpoint is on its way");
    lessor.apply_checkpoint(1, 710, at(302));
    assert_eq!(renewals.renew(1, at(303)), None, "it would outlive the renewal");
    lessor.apply_checkpoint(1, 0, at(304));
    assert_eq!(renewals.renew(1, at(305)), Some(1_000));
}

#[test]
fn renewals_beside_the_owner_bring_no_deadline_forward() {
    let mut lessor = lessor();
    let renewals = lessor.renewals().clone();
    lessor.grant(1, 10, at(0)).expect("granted");
    lessor.promote(at(0), Duration::from_secs(100));
    renewals.open(at(1_000));
    assert_eq!(renewals.renew(1, at(1)), None);
    assert_eq!(lessor.renew(1, at(1)), Ok(10));
    assert_eq!(lessor.expired(at(11), 10), [1]);
}

#[test]
fn a_restored_lessor_keeps_the_table_that_others_hold() {
    let mut lessor = primary();
    let renewals = lessor.renewals().clone();
    lessor.grant(1, 10, at(0)).expect("granted");
    renewals.open(at(1_000));
    let record = LeaseRecord { id: 2, ttl: 10, remaining_ttl: 0 };
    lessor.restore([record.encode()], []).expect("restored");
    assert_eq!((renewals.renew(1, at(1)), renewals.renew(2, at(1))), (None, None));
    lessor.promote(at(2), NONE);
    renewals.open(at(1_000));
    assert_eq!(renewals.renew(2, at(3)), Some(10));
}
