//! Keys: get, put, del, compaction, in every format.

use super::line::{Line, Scenario, ctl, ctls, set, sets};
use super::mask::Mask;

const SEED: &str = "
    put foo bar
    put foo bar2
    put foo1 one
    put foo2 two
    put zoo ''
    put a<b&c>d '<html>&'
    put quoted 'say \"hi\"'
    put täglich größe
";

const GETS: &str = "
    get nosuch
    get nosuch -w json
    get ''
    get foo --print-value-only
    get foo --print-value-only --hex
    get foo --print-value-only -w json
    get foo --keys-only
    get foo --keys-only -w json
    get foo --keys-only -w fields
    get foo --count-only
    get foo --count-only -w json
    get foo --count-only -w fields
    get foo --count-only -w table
    get foo --prefix --count-only -w fields
    get foo --hex
    get foo --hex -w fields
    get foo --prefix
    get --prefix foo --limit 1
    get --prefix foo --limit 1 -w json
    get --prefix foo --limit 1 -w fields
    get --prefix foo --limit 2 --keys-only
    get foo foo2
    get foo foo2 -w json
    get foo2 foo
    get --from-key foo1
    get --from-key ''
    get --prefix ''
    get --prefix '' --keys-only
    get --prefix '' --keys-only -w json
    get -w json --prefix a
    get -w fields --prefix q
    get -w fields täglich
    get foo --rev 2
    get foo --rev 1
    get foo --rev 999
    get foo --rev -1
    get foo --consistency s
    get foo --consistency l
    get foo --consistency S
    get --prefix '' --order DESCEND --keys-only
    get --prefix '' --order descend --keys-only
    get --prefix '' --order ASCEND --keys-only
    get --prefix '' --sort-by VALUE
    get --prefix '' --sort-by value --order DESCEND
    get --prefix '' --sort-by CREATE --keys-only
    get --prefix '' --sort-by MODIFY --order DESCEND --keys-only
    get --prefix '' --sort-by VERSION --order DESCEND --keys-only
    get --prefix '' --sort-by KEY --keys-only
    get --prefix '' --sort-by key --order ascend --limit 3 --keys-only
    get --prefix '' --min-create-rev 4 --keys-only
    get --prefix '' --max-create-rev 4 --keys-only
    get --prefix '' --min-mod-rev 4 --max-mod-rev 6 --keys-only
    get --prefix '' --min-mod-rev 4 -w json
    get --prefix foo --stream
    get --prefix foo --stream -w json
    get foo --stream -w fields
    get --prefix '' --stream --limit 2
    get --prefix '' --stream --sort-by VALUE
    get --prefix '' --stream --order DESCEND --keys-only
    get --stream nosuch
    get -w nosuch foo
    get foo -w JSON
    get foo -wjson
    get -w=json foo
    get --write-out=json foo
    get foo --write-out=
    g foo
    get -- foo
    get foo -- foo2
    get --prefix -- foo
    get foo --limit 0x1
    get foo --hex=true
    get foo --hex=F
    get --prefix=false foo
    get --endpoints {e0} foo
    get --endpoints http://{e0} foo
    get --endpoints {e0},{e0} foo
    get --endpoints ' {e0} ' foo
    get --endpoints {e0} --endpoints 127.0.0.1:{port0} foo
    get --endpoints https://{e0} foo --command-timeout 300ms
";

fn writes() -> Vec<Line> {
    let mut lines = Vec::new();
    lines.extend(ctl("put k v").formats());
    lines.extend(ctl("put k v --prev-kv").formats());
    lines.extend(ctl("put new v --prev-kv").with(&["", " -w json", " -w fields"]));
    lines.push(ctl("put k").stdin("from stdin\n"));
    lines.push(ctl("put k").stdin("no line feed"));
    lines.push(ctl("put k"));
    lines.extend(ctls(
        "
        get k
        put '' v
        put k ''
        put -- -k -v
        get -- -k
        put -- k --flag
        put k --ignore-value
        put nosuch --ignore-value
        put k v --ignore-lease
        put nosuch v --ignore-lease
        put k --ignore-value --lease 1
        put k v --lease 1
        put k v --lease 0
        put k v --lease=abc
        put k v --ignore-lease --lease 1
        get k -w json
        ",
    ));
    for count in 0..3 {
        lines.push(set(&format!("put d{count} v")));
    }
    lines.extend(ctls(
        "
        del nosuch
        del nosuch -w json
        del nosuch -w fields
        del nosuch -w table
        del nosuch -w protobuf
        del d0
        del d1 --prev-kv
        del d2 --prev-kv -w json
        ",
    ));
    for ends in ["", " -w json", " -w fields", " --hex", " -w protobuf"] {
        lines.push(set("put d1 v"));
        lines.push(set("put d2 v"));
        lines.push(ctl(&format!("del d --prefix --prev-kv{ends}")));
    }
    for words in ["del d1 d9 --range", "del d2 --from-key --prev-kv", "del '' --prefix", "del '' --from-key"] {
        lines.push(set("put d1 v"));
        lines.push(set("put d2 v"));
        lines.push(ctl(words));
    }
    lines.push(set("put d1 v"));
    lines.push(ctl("del d1 d9"));
    lines.push(ctl("get --prefix ''"));
    lines
}

fn compaction() -> Vec<Line> {
    let mut lines = Vec::new();
    for count in 0..9 {
        lines.push(set(&format!("put c {count}")));
    }
    lines.extend(ctl("compaction 3").with(&["", " -w json"]));
    lines.extend(ctls(
        "
        compaction 3 --physical
        compaction 4 -w json
        compaction 5 --physical
        compaction 6 -w table
        compaction 99999
        compaction 0
        compaction -1
        compaction -- -1
        get c --rev 2
        get c --rev 7 -w json
        ",
    ));
    lines
}

pub fn scenarios() -> Vec<Scenario> {
    let reads = vec![sets(SEED), ctl("get foo").formats(), ctl("get --prefix foo").formats(), ctls(GETS)];
    let tls = vec![
        sets(SEED),
        ctl("get --prefix foo").formats(),
        ctls(
            "
            put k v
            del k
            get foo --cacert ''
            get foo --cacert nosuch
            get foo --cacert {certs}/ca.crt --command-timeout 300ms
            get foo --cacert {certs}/ca.crt --cert {certs}/server.crt --key {certs}/server.key.insecure
            get foo --cacert {certs}/ca.crt --cert {certs}/server.crt
            get foo --cacert {certs}/ca.crt --cert {certs}/server.crt --key {certs}/server2.key.insecure
            get foo --insecure-skip-tls-verify
            get foo --insecure-transport=false
            endpoint status -w fields
            endpoint hashkv
            member list
            lease list
            alarm list
            ",
        ),
        vec![
            ctl(
                "get foo --cacert {certs}/server.crt --cert {certs}/server.crt --key {certs}/server.key.insecure --command-timeout 300ms",
            ),
            ctl("--endpoints http://127.0.0.1:{port0} get foo --command-timeout 300ms"),
            ctl("endpoint health").mask(&[Mask::After("took = ")]),
            ctl("watch foo --rev 2").until(super::line::Stop::Lines(6)),
            ctl("snapshot save s").mask(&[Mask::After("size ")]),
        ],
    ];
    let tls = Scenario { tls: true, masks: SIZES, ..Scenario::one("kv tls", tls) };
    vec![
        Scenario::one("kv read", reads),
        Scenario::one("kv write", vec![writes()]),
        Scenario::one("kv compaction", vec![compaction()]),
        tls,
    ]
}

/// Sizes of files, which differ by a page from run to run.
pub const SIZES: &[Mask] = &[
    Mask::After("\"dbSize\":"),
    Mask::After("\"dbSizeInUse\":"),
    Mask::After("\"DBSize\" : "),
    Mask::After("\"DBSizeInUse\" : "),
];
