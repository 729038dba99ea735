//! etcd-defrag: its stdout is little, so stderr counts, its times and sizes masked.

use super::line::{Line, Scenario, defrag, many, sets};
use super::mask::Mask;

const SAID: &[Mask] = &[
    Mask::After("took "),
    Mask::After("took: "),
    Mask::After("dbSize: "),
    Mask::After("dbSizeInUse: "),
    Mask::After("term: "),
    Mask::After("index: "),
    Mask::Stamp,
    Mask::Order,
];

fn plain() -> Vec<Line> {
    many(
        "
        -h
        --help
        --nosuch
        -x
        --version=maybe
        --endpoints
        --dial-timeout 5
        --dial-timeout x
        --disalarm-threshold x
        --etcd-storage-quota-bytes x
        --compaction=maybe
        completion -h
        completion bash
        completion bash --no-descriptions
        completion zsh
        completion fish
        completion powershell
        completion nosuch
        __complete --
        __complete --dis
        __complete ''
        __complete -
        ",
        defrag,
    )
    .into_iter()
    .map(Line::stderr)
    .collect()
}

pub fn scenarios() -> Vec<Scenario> {
    let mut lines = many(
        "
        (nothing)
        --cluster
        --dry-run
        --cluster --dry-run
        --compaction=false
        --defrag-rule 'dbSize > 0'
        --defrag-rule 'dbSize < 0'
        --defrag-rule 'dbQuotaUsage > 0.8 || dbSizeFree > 200*1024*1024'
        --cert ''
        --key ''
        --cacert ''
        --skip-healthcheck-cluster-endpoints
        --skip-healthcheck-cluster-endpoints --cluster
        --skip-healthcheck-cluster-endpoints --discovery-srv x
        --auto-disalarm
        --auto-disalarm --disalarm-threshold 1.5
        --auto-disalarm --disalarm-threshold 0
        --etcd-storage-quota-bytes 0
        --move-leader
        --wait-between-defrags 10ms --cluster
        --continue-on-error=false
        --user nobody --password x
        extra words
        --endpoints 127.0.0.1:{port0} --command-timeout 300ms --dial-timeout 200ms
        --endpoints {e0} --defrag-rule '1 == 1 && (dbSize + 1) > dbSize'
        ",
        |words| defrag(words).mask(SAID).stderr(),
    );
    let caret = "ours shows where a rule goes wrong";
    for rule in ["dbSize >", "dbSize", "nosuch > 1", "(dbSize", "dbSize > 1 +"] {
        lines.push(defrag(&format!("--defrag-rule '{rule}'")).mask(SAID).stderr().kept(caret));
    }
    let crash = "Go's etcd-defrag crashes when no endpoint is left";
    lines.push(defrag("--exclude-localhost --cluster").mask(SAID).stderr().kept(crash));
    let seed = sets("put a 1\nput a 2\ndel a");
    vec![
        Scenario { members: 0, ..Scenario::one("defrag offline", vec![plain()]) },
        Scenario::one("defrag", vec![seed.clone(), lines.clone()]),
        Scenario { members: 3, ..Scenario::one("defrag three", vec![seed, lines]) },
    ]
}
