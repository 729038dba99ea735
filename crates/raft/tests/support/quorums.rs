//! The quorum dialect: `committed` and `vote` over a majority (`cfg`) or a joint (`cfg`, `cfgj`) configuration.
//!
//! Each answer is also computed in other ways that must agree; where one does not, it is added to the output and so
//! fails the comparison.

use std::collections::{BTreeMap, BTreeSet};

use dolmen_raft::quorum::{JointConfig, MajorityConfig};

use crate::datadriven::{Directive, number};

type Acked = BTreeMap<u64, u64>;

pub fn handle(directive: &Directive) -> String {
    let (mut ids, mut joint_ids, mut joint, mut values) = (Vec::new(), Vec::new(), false, Vec::new());
    for arg in &directive.args {
        for value in &arg.values {
            match (arg.key.as_str(), value.as_str()) {
                ("cfg", id) => ids.push(number(id)),
                ("cfgj", "zero") => joint = true,
                ("cfgj", id) => {
                    joint = true;
                    joint_ids.push(number(id));
                }
                ("idx" | "votes", "_") => values.push(None),
                ("idx", index) => values.push(Some(number(index))),
                ("votes", "y") => values.push(Some(2)),
                ("votes", "n") => values.push(Some(1)),
                other => panic!("unknown argument {other:?}"),
            }
        }
    }
    // Values belong to the voters in order of appearance, without repetition.
    let mut seen = BTreeSet::new();
    let voters = ids.iter().chain(&joint_ids).copied().filter(|&id| seen.insert(id));
    let acked: Acked = voters.zip(&values).filter_map(|(id, value)| Some((id, (*value)?))).collect();
    if seen.len() != values.len() {
        return format!("error: {} values for voters {seen:?}", values.len());
    }
    let incoming: MajorityConfig = ids.into_iter().collect();
    let outgoing: MajorityConfig = joint_ids.into_iter().collect();
    match directive.command.as_str() {
        "committed" if joint => joint_committed(incoming, outgoing, &acked),
        "committed" => majority_committed(&incoming, &acked),
        "vote" => votes(incoming, outgoing, joint, &acked),
        other => panic!("unknown command {other}"),
    }
}

fn index(index: u64) -> String {
    if index == u64::MAX { "∞".to_owned() } else { index.to_string() }
}

fn pair(incoming: &MajorityConfig, outgoing: &MajorityConfig) -> JointConfig {
    JointConfig { incoming: incoming.clone(), outgoing: outgoing.clone() }
}

fn majority_committed(config: &MajorityConfig, acked: &Acked) -> String {
    let lookup = |acked: &Acked| config.committed_index(|id| acked.get(&id).copied());
    let committed = lookup(acked);
    let mut out = config.describe(|id| acked.get(&id).copied());
    let mut check = |other: u64, how: &str| {
        if other != committed {
            out += &format!("{} <-- via {how}\n", index(other));
        }
    };
    check(slow_committed(config, acked), "alternative computation");
    let by_id = |id| acked.get(&id).copied();
    check(pair(config, &MajorityConfig::new()).committed_index(by_id), "zero-joint quorum");
    check(pair(config, config).committed_index(by_id), "self-joint quorum");
    // Who is ahead of the decision does not matter: lowering an index that is below it changes nothing.
    for (&id, &own) in acked.iter().filter(|&(_, &own)| own < committed && committed != u64::MAX) {
        for lower in [own - 1, 0] {
            let mut lowered = acked.clone();
            lowered.insert(id, lower);
            check(lookup(&lowered), &format!("lowering {id} to {lower}"));
        }
    }
    out + &format!("{}\n", index(committed))
}

/// Tries every acknowledged index: the highest one that a majority has reached.
fn slow_committed(config: &MajorityConfig, acked: &Acked) -> u64 {
    if config.is_empty() {
        return u64::MAX;
    }
    let reached = |index: u64| config.iter().filter(|id| acked.get(id).is_some_and(|&own| own >= index)).count();
    acked.values().copied().filter(|&index| reached(index) > config.len() / 2).max().unwrap_or(0)
}

fn joint_committed(incoming: MajorityConfig, outgoing: MajorityConfig, acked: &Acked) -> String {
    let by_id = |id| acked.get(&id).copied();
    let config = pair(&incoming, &outgoing);
    let committed = config.committed_index(by_id);
    let mut out = config.describe(by_id);
    let swapped = pair(&outgoing, &incoming).committed_index(by_id);
    if swapped != committed {
        out += &format!("{} <-- via symmetry\n", index(swapped));
    }
    out + &format!("{}\n", index(committed))
}

fn votes(incoming: MajorityConfig, outgoing: MajorityConfig, joint: bool, acked: &Acked) -> String {
    let vote = |id| acked.get(&id).map(|&value| value == 2);
    if !joint {
        return format!("{}\n", incoming.vote_result(vote));
    }
    let result = pair(&incoming, &outgoing).vote_result(vote);
    let swapped = pair(&outgoing, &incoming).vote_result(vote);
    let symmetry = if swapped == result { String::new() } else { format!("{swapped} <-- via symmetry\n") };
    format!("{symmetry}{result}\n")
}
