//! etcdutl, on files that Go's server made.

use super::line::{Line, Scenario, many, sets, utl};
use super::mask::Mask;

const FORMATS: [&str; 6] = ["", " -w json", " -w fields", " -w table", " -w protobuf", " -w nosuch"];

/// Sizes and hashes of a whole file, which holds times and indexes.
const FILE: &[Mask] =
    &[Mask::After("\"totalSize\":"), Mask::After("\"Size\" : "), Mask::Field(3), Mask::Column("TOTAL SIZE")];

fn lines() -> Vec<Line> {
    let mut lines = sets("put a 1\nput a 2\nput b 3\ndel b\nput c 4\nsnapshot save s.db\nsnapshot save h.db");
    // hashkv opens its file for writing, and leaves it changed.
    for words in ["snapshot status s.db", "hashkv h.db", "hashkv h.db --rev 3"] {
        lines.extend(utl(words).mask(FILE).with(&FORMATS));
    }
    lines.extend(many(
        "
        snapshot status
        snapshot status a b
        snapshot status nosuch.db
        hashkv
        hashkv nosuch/x.db
        hashkv h.db --rev 99
        hashkv h.db --rev -1
        snapshot restore
        snapshot restore a b
        snapshot restore nosuch.db --data-dir d1
        snapshot restore s.db --data-dir d2 --bump-revision 10
        snapshot restore s.db --data-dir d2 --mark-compacted
        snapshot restore s.db --data-dir d2 --name nosuch
        snapshot restore s.db --data-dir d2 --initial-cluster nonsense
        snapshot restore s.db --data-dir d2 --initial-cluster default=nonsense
        snapshot restore s.db --data-dir d2 --initial-advertise-peer-urls http://127.0.0.9:1
        snapshot restore s.db --data-dir d2 --initial-advertise-peer-urls nonsense
        snapshot restore s.db --data-dir d2
        snapshot restore s.db --data-dir d2
        snapshot restore s.db --data-dir d3 --wal-dir d2
        snapshot restore s.db
        snapshot restore s.db
        snapshot restore s.db --data-dir d4 --bump-revision 100 --mark-compacted
        snapshot restore s.db --data-dir d5 --name x --initial-cluster x=http://127.0.0.9:1,y=http://127.0.0.9:2 --initial-advertise-peer-urls http://127.0.0.9:1 --initial-cluster-token t --wal-dir w5
        snapshot restore s.db --data-dir d6 --skip-hash-check
        defrag --data-dir nosuch
        defrag --data-dir d2
        defrag --data-dir d2 -w json
        migrate --data-dir nosuch --target-version 3.6
        migrate --data-dir d2 --target-version x
        migrate --data-dir d2 --target-version 3.6.1
        migrate --data-dir d2 --target-version 3.4
        migrate --data-dir d2 --target-version 4.0
        migrate --data-dir d2 --target-version 3.x
        migrate --data-dir d2 --target-version 3.7
        migrate --data-dir d2 --target-version 3.6
        migrate --data-dir d2 --target-version 3.6
        migrate --data-dir d2 --target-version 3.5
        migrate --data-dir d2 --target-version 3.8
        migrate --data-dir d2 --target-version 3.6
        migrate --data-dir d2 --target-version 3.9 --force
        migrate --data-dir d4 --target-version 3.5 --force
        ",
        utl,
    ));
    let touched = "Go's hashkv changed the snapshot it read; ours left it as it was";
    lines.push(utl("snapshot restore h.db --data-dir d9").mask(&[Mask::Lines("expected sha256 [")]).kept(touched));
    let folder = "ours says that it is a folder";
    lines.push(utl("snapshot status .").kept(folder));
    // What was restored, read by both.
    for dir in ["d2", "default.etcd", "d4", "d5", "d6"] {
        for words in ["snapshot status", "hashkv"] {
            lines.push(utl(&format!("{words} {dir}/member/snap/db -w json")).mask(FILE));
        }
    }
    // A copy without its trailer: the data folder's own.
    lines.push(utl("snapshot status d2/member/snap/db").mask(FILE));
    lines.push(utl("snapshot restore d2/member/snap/db --data-dir d7"));
    lines.push(utl("snapshot restore d2/member/snap/db --data-dir d8 --skip-hash-check"));
    lines.push(utl("hashkv d8/member/snap/db"));
    lines
}

pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario::one("etcdutl", vec![lines()])]
}
