//! Members, endpoints, alarms, snapshots, leadership, versions.

use super::kv::SIZES;
use super::line::{Line, Scenario, ctl, ctls, set, sets, utl};
use super::mask::Mask;

const TOOK: &[Mask] = &[
    Mask::After("took = "),
    Mask::After("took "),
    Mask::After("\"took\":\""),
    Mask::After("\"Took\" : "),
    Mask::Column("TOOK"),
    Mask::Order,
    // In JSON they stand in one line.
    Mask::After("\"endpoint\":\""),
];

/// Simple status lines: db size, in use, percentage; term and indexes follow the timing of elections.
const STATUS: &[Mask] = &[
    Mask::Field(4),
    Mask::Field(5),
    Mask::Field(6),
    Mask::Field(10),
    Mask::Field(11),
    Mask::Field(12),
    Mask::Column("DB SIZE"),
    Mask::Column("IN USE"),
    Mask::Column("PERCENTAGE NOT IN USE"),
    Mask::Column("RAFT TERM"),
    Mask::Column("RAFT INDEX"),
    Mask::Column("RAFT APPLIED INDEX"),
];

const TERMS: &[Mask] = &[
    Mask::After("\"raft_term\":"),
    Mask::After("\"raftTerm\":"),
    Mask::After("\"raftIndex\":"),
    Mask::After("\"raftAppliedIndex\":"),
    Mask::After("\"RaftTerm\" : "),
    Mask::After("\"RaftIndex\" : "),
    Mask::After("\"RaftAppliedIndex\" : "),
    // Which member answers.
    Mask::After("\"member_id\":"),
    Mask::After("\"member_id\":\""),
    Mask::After("\"MemberID\" : "),
    SIZES[0],
    SIZES[1],
    SIZES[2],
    SIZES[3],
];

fn endpoints() -> Vec<Line> {
    let mut lines = sets("put foo bar\nput foo bar2\nput foo bar3");
    for words in ["endpoint health", "endpoint health --cluster", "endpoint health --endpoints {e1}"] {
        lines.extend(ctl(words).mask(TOOK).with(&["", " -w json", " -w fields", " -w table", " -w protobuf"]));
    }
    let formats = ["", " -w json", " -w fields", " -w table", " -w protobuf", " --hex -w fields"];
    for words in ["endpoint status", "endpoint status --cluster", "endpoint status --endpoints {e0}"] {
        lines.extend(ctl(words).mask(STATUS).with(&formats));
    }
    for words in ["endpoint hashkv", "endpoint hashkv --cluster", "endpoint hashkv --rev 3"] {
        lines.extend(ctl(words).with(&formats));
    }
    lines.extend(
        ctls(
            "
        endpoint hashkv --rev 99
        endpoint hashkv --rev 1
        endpoint health --cluster --endpoints {e2}
        ",
        )
        .into_iter()
        .map(|line| line.mask(TOOK)),
    );
    // One that does not answer.
    for words in ["health", "status", "hashkv"] {
        for ends in ["", " -w json"] {
            let masks = if words == "status" { STATUS } else { TOOK };
            let words = format!(
                "endpoint {words} --endpoints {{e0}},127.0.0.1:{{port0}} --dial-timeout 200ms --command-timeout 300ms{ends}"
            );
            lines.push(ctl(&words).mask(masks));
        }
    }
    lines
}

fn members() -> Vec<Line> {
    let mut lines = ctl("member list").with(&[
        "",
        " -w json",
        " -w fields",
        " -w table",
        " --hex",
        " -w json --hex",
        " -w fields --hex",
    ]);
    lines.extend(ctls(
        "
        member list --consistency s
        member list --consistency l -w json
        member remove 1
        member remove 1 -w json
        member update 1 --peer-urls http://127.0.0.1:1
        member update {id1} --peer-urls nonsense
        member update {id1} --peer-urls {peer1}
        member update {id1} --peer-urls {peer1} -w json
        member update {id1} --peer-urls {peer1} -w json --hex
        member update {id1} --peer-urls {peer1} -w fields
        member update {id1} --peer-urls {peer1} -w table
        member update {id1} --peer-urls {peer0}
        member promote 1
        member promote {id1}
        member add m1 --peer-urls {peer1}
        member add m9 --peer-urls nonsense
        ",
    ));
    lines
}

fn leadership() -> Vec<Line> {
    ctls(
        "
        move-leader {id1}
        move-leader {id1}
        move-leader {id2} -w json
        move-leader {id0} --hex
        move-leader 1
        move-leader {id1} --endpoints {e1}
        move-leader {id1} -w fields
        move-leader {id1} -w table
        move-leader {id0} -w protobuf
        endpoint status --cluster
        defrag
        defrag --cluster
        defrag --endpoints {e1}
        defrag -w json
        defrag --endpoints {e0},127.0.0.1:{port0} --dial-timeout 200ms --command-timeout 2s
        ",
    )
    .into_iter()
    .map(|line| {
        line.mask(&[
            Mask::After("took "),
            Mask::Field(0),
            Mask::Field(4),
            Mask::Field(5),
            Mask::Field(6),
            Mask::Field(8),
            Mask::Field(10),
            Mask::Field(11),
            Mask::Field(12),
        ])
    })
    .collect()
}

/// Ids are made of the time, and members stand in their order.
const ADDED: &[Mask] =
    &[Mask::After("\"ID\":"), Mask::After("\"ID\":\""), Mask::After("Member "), Mask::Cut("\"members\":")];

/// One member that gets others, and loses them before they ever start.
fn changes() -> Vec<Line> {
    let mut lines = vec![
        ctl("member list"),
        ctl("member add learner --learner --peer-urls http://127.0.0.1:{port0}")
            .capture("A", "Member ")
            .mask(&[Mask::After("ETCD_NAME")]),
        ctl("member list"),
        ctl("member list -w fields"),
        ctl("member list -w table").mask(&[Mask::Column("ID")]),
        ctl("member promote {A}"),
        ctl("member add another --learner --peer-urls http://127.0.0.1:{port1}"),
        ctl("member list"),
        ctl("member remove {A}"),
    ];
    // Each with a port of its own: an id is made of address and second, and one that was removed never comes back.
    for (port, ends) in [("{port2}", " -w json"), ("{port3}", " -w json --hex"), ("{port4}", " --hex")] {
        let words = format!("member add l --learner --peer-urls http://127.0.0.1:{port}{ends}");
        lines.push(ctl(&words).mask(ADDED));
        lines.push(ctl("member list").mask(&[Mask::Field(0)]).capture("B", ", unstarted"));
        lines.push(ctl(&format!("member remove {{B}}{ends}")));
    }
    lines.push(ctl("member add l --learner --peer-urls http://127.0.0.1:{port5} -w fields"));
    lines.push(ctl("member list").mask(&[Mask::Field(0)]).capture("B", ", unstarted"));
    lines.push(ctl("member remove {B} -w fields"));
    lines.push(ctl("member add l --learner --peer-urls http://127.0.0.1:{port1} -w table"));
    // A request that is refused has been seen to spoil the next.
    lines.push(ctl("member remove {A}"));
    lines.push(ctl("member promote {A}"));
    lines
}

fn downgrade_alarm_snapshot() -> Vec<Line> {
    let mut lines = sets("put foo bar");
    lines.extend(ctl("alarm list").formats());
    lines.extend(ctl("alarm disarm").formats());
    lines.extend(ctl("downgrade validate 3.6").formats());
    lines.extend(ctls(
        "
        downgrade validate 3.7
        downgrade validate 3.5
        downgrade validate 3.9
        downgrade validate x
        downgrade validate 3.6.1
        downgrade cancel
        downgrade cancel -w json
        downgrade enable 3.5
        downgrade enable 3.6
        downgrade enable 3.6
        endpoint status -w fields
        downgrade cancel
        downgrade cancel -w json
        downgrade enable 3.6 -w json
        downgrade cancel -w protobuf
        downgrade enable 3.6 -w fields
        downgrade cancel -w fields
        downgrade enable 3.6 -w table
        snapshot save one.db
        snapshot save one.db -w json
        snapshot save nosuch/dir/x
        snapshot save .
        snapshot save two.db --endpoints {e0},{e0}
        snapshot save three.db --command-timeout 10s
        ",
    ));
    lines.push(utl("snapshot status one.db -w fields").mask(&[Mask::After("\"Size\" : "), Mask::After("\"Hash\" : ")]));
    lines
}

/// A quota so small that it is soon full.
fn full() -> Vec<Line> {
    let value: &'static str = Box::leak("0123456789abcdef".repeat(6000).into_boxed_str());
    // The first fits, the second does not.
    let mut lines = vec![
        set("put k0").stdin(value),
        // The size of the file follows in a moment.
        set("lock pause sleep 0.5"),
        ctl("put k1").stdin(value),
        ctl("put k1 -w json").stdin(value),
    ];
    lines.extend(
        ctls(
            "
        put more x
        put more x
        alarm list
        alarm list -w json
        alarm list -w fields
        alarm list -w protobuf
        alarm list -w table
        endpoint health
        endpoint health -w json
        endpoint health -w fields
        endpoint health -w table
        endpoint status
        endpoint status -w json
        endpoint status -w fields
        get more
        lease grant 100
        alarm disarm
        alarm disarm -w json
        alarm list
        ",
        )
        .into_iter()
        .map(|line| line.mask(FULL)),
    );
    lines
}

const FULL: &[Mask] = &[
    Mask::After("took = "),
    Mask::After("\"took\":\""),
    Mask::After("\"Took\" : "),
    Mask::Column("TOOK"),
    Mask::Field(4),
    Mask::Field(5),
    Mask::Field(6),
    Mask::Field(11),
    Mask::Field(12),
];

const TLS: &[Mask] = &[Mask::After("took "), STATUS[0], STATUS[1], STATUS[2], STATUS[3], STATUS[4], STATUS[5]];

pub fn scenarios() -> Vec<Scenario> {
    let three = |name, lines| Scenario { members: 3, masks: TERMS, ..Scenario::one(name, vec![lines]) };
    let one = |name, lines| Scenario { masks: SIZES, ..Scenario::one(name, vec![lines]) };
    let tls = ctls(
        "
        member list -w json
        endpoint status --cluster
        endpoint status --cluster -w json
        endpoint hashkv --cluster
        endpoint hashkv --cluster -w table
        move-leader {id1}
        defrag --cluster
        ",
    );
    let tls = tls.into_iter().map(|line| line.mask(TLS));
    vec![
        three("endpoints", endpoints()),
        three("members", members()),
        three("leadership", leadership()),
        Scenario { tls: true, ..three("cluster tls", tls.collect()) },
        Scenario {
            masks: &[Mask::Blanks, Mask::Order, Mask::Cut("ETCD_INITIAL_CLUSTER=")],
            ..one("member changes", changes())
        },
        one("downgrade, alarm, snapshot", downgrade_alarm_snapshot()),
        Scenario { flags: &["--quota-backend-bytes=200000"], ..one("full", full()) },
    ]
}
