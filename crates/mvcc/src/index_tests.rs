use std::collections::{BTreeMap, BTreeSet};

use dolmen_env::Rng;

use super::*;

/// What the index must agree with: every revision of every key, and whether it was a tombstone.
#[derive(Default)]
struct Model {
    keys: BTreeMap<Vec<u8>, Vec<(Revision, bool)>>,
}

impl Model {
    fn at(&self, key: &[u8], at: i64) -> Option<Found> {
        let revs = self.keys.get(key)?;
        let newest = revs.iter().rposition(|(rev, _)| rev.main <= at)?;
        if revs[newest].1 {
            return None;
        }
        let birth = revs[..newest].iter().rposition(|(_, tombstone)| *tombstone).map_or(0, |at| at + 1);
        let version = (newest - birth + 1) as i64;
        Some(Found { modified: revs[newest].0, create: revs[birth].0.main, version })
    }

    fn range(&self, low: &[u8], high: Option<&[u8]>, at: i64) -> Vec<(Vec<u8>, Found)> {
        let within = |key: &[u8]| low <= key && high.is_none_or(|high| key < high);
        let keys = self.keys.keys().filter(|key| within(key));
        keys.filter_map(|key| Some((key.clone(), self.at(key, at)?))).collect()
    }

    /// Revisions a compaction at `at` supersedes.
    fn dead(&self, at: i64) -> Vec<Revision> {
        let mut dead = Vec::new();
        for revs in self.keys.values() {
            let Some(newest) = revs.iter().rposition(|(rev, _)| rev.main <= at) else { continue };
            let (rev, tombstone) = revs[newest];
            let cut = newest + usize::from(tombstone && rev.main < at);
            dead.extend(revs[..cut].iter().map(|(rev, _)| *rev));
        }
        dead.sort_unstable();
        dead
    }
}

fn key_of(rng: &mut Rng, keys: u64) -> Vec<u8> {
    let n = rng.below(keys);
    match n % 50 {
        0 => Vec::new(),
        1 => vec![b'x'; (n * 37 % 9000) as usize],
        2 => vec![0; (n % 9) as usize],
        3 => format!("/registry/{}", "z\0".repeat((n % 11) as usize)).into_bytes(),
        _ => format!("/registry/{}/{n:07}", n % 7).into_bytes(),
    }
}

fn collect(index: &Index, low: &[u8], high: Option<&[u8]>, at: i64) -> Vec<(Vec<u8>, Found)> {
    let mut all = Vec::new();
    let _ = index.range(low, high, at, |key, found| {
        all.push((key.to_vec(), found));
        ControlFlow::Continue(())
    });
    all
}

fn compare(index: &Index, model: &Model, rng: &mut Rng, keys: u64, compact: i64, current: i64) {
    let at = match rng.below(3) {
        0 => current,
        1 => i64::MAX,
        _ => rng.range(compact.max(0) as u64, current as u64 + 1) as i64,
    };
    let key = key_of(rng, keys);
    assert_eq!(index.get(&key, at), model.at(&key, at));
    let end = key_of(rng, keys);
    let high = rng.chance(800).then_some(end.as_slice());
    let expected = model.range(&key, high, at);
    assert_eq!(index.count(&key, high, at), expected.len() as u64);
    assert_eq!(collect(index, &key, high, at), expected);
}

fn history(seed: u64, keys: u64, steps: u64) {
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let (mut index, mut model) = (Index::new(), Model::default());
    let (mut current, mut compact, mut done) = (1i64, -1i64, -1i64);
    let mut cursor: Option<Vec<u8>> = None;
    let mut dead: Vec<Revision> = Vec::new();
    let mut gone: BTreeSet<Revision> = BTreeSet::new();
    for _ in 0..steps {
        match rng.below(100) {
            0..=59 => {
                current += 1 + rng.below(2) as i64;
                for sub in 0..1 + rng.below(3) as i64 {
                    let key = key_of(&mut rng, keys);
                    let rev = Revision::new(current, sub);
                    index.put(&key, Slot::new(rev, false).expect("in bounds"));
                    model.keys.entry(key).or_default().push((rev, false));
                }
            }
            60..=84 => {
                let key = key_of(&mut rng, keys);
                let rev = Revision::new(current + 1, 0);
                let before = model.at(&key, i64::MAX);
                assert_eq!(index.tombstone(&key, Slot::new(rev, true).expect("in bounds")), before);
                if before.is_some() {
                    current += 1;
                    model.keys.entry(key).or_default().push((rev, true));
                }
            }
            85..=94 => compare(&index, &model, &mut rng, keys, compact, current),
            95 if done == compact => compact = rng.range(compact.max(0) as u64, current as u64 + 1) as i64,
            _ if done < compact => {
                let budget = 1 + rng.below(200) as usize;
                cursor = index.prune(cursor.as_deref(), compact, budget, &mut dead);
                index.check();
                if cursor.is_none() {
                    done = compact;
                    // Changes made while the pass went on are above `compact`, so the model may be asked now.
                    for rev in dead.drain(..) {
                        assert!(gone.insert(rev), "{rev:?} reported twice");
                    }
                    assert!(gone.iter().copied().eq(model.dead(compact)));
                }
            }
            _ => {}
        }
    }
    index.check();
    assert_eq!(collect(&index, b"", None, i64::MAX), model.range(b"", None, i64::MAX));
    assert_eq!(index.live(), model.range(b"", None, i64::MAX).len() as u64);
}

#[test]
fn random_histories_agree_with_a_list_of_revisions() {
    for seed in 0..10 {
        history(seed, 400, 4_000);
    }
    for seed in 100..102 {
        history(seed, 6_000, 12_000);
    }
}
