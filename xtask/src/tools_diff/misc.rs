//! What needs no server, or no particular one: help, mistakes, completion, environment variables, locks, elections,
//! mirrors, checks.

use super::line::{Line, Scenario, Stop, Tool, ctl, ctls, end, many, set, utl};
use super::mask::Mask;

/// Every command of etcdctl.
const CTL: &[&str] = &[
    "",
    "get",
    "put",
    "del",
    "txn",
    "compaction",
    "alarm",
    "alarm disarm",
    "alarm list",
    "defrag",
    "endpoint",
    "endpoint health",
    "endpoint status",
    "endpoint hashkv",
    "move-leader",
    "watch",
    "version",
    "lease",
    "lease grant",
    "lease revoke",
    "lease timetolive",
    "lease list",
    "lease keep-alive",
    "member",
    "member add",
    "member remove",
    "member update",
    "member list",
    "member promote",
    "snapshot",
    "snapshot save",
    "make-mirror",
    "lock",
    "elect",
    "auth",
    "auth enable",
    "auth disable",
    "auth status",
    "user",
    "user add",
    "user delete",
    "user get",
    "user list",
    "user passwd",
    "user grant-role",
    "user revoke-role",
    "role",
    "role add",
    "role delete",
    "role get",
    "role list",
    "role grant-permission",
    "role revoke-permission",
    "check",
    "check perf",
    "check datascale",
    "completion",
    "downgrade",
    "downgrade validate",
    "downgrade enable",
    "downgrade cancel",
    "options",
    "help",
];

/// Every command of etcdutl.
const UTL: &[&str] = &[
    "",
    "defrag",
    "snapshot",
    "snapshot status",
    "snapshot restore",
    "hashkv",
    "migrate",
    "version",
    "completion",
    "help",
];

/// Help, an unknown flag, and what completion offers, of every command.
fn every_command() -> Vec<Line> {
    let mut lines = Vec::new();
    for (tool, commands) in [(Tool::Ctl, CTL), (Tool::Utl, UTL)] {
        let make = if tool == Tool::Ctl { ctl } else { utl };
        for command in commands {
            for form in ["@ -h", "help @", "@ --no-such-flag", "__complete @ ''", "__complete @ --"] {
                lines.push(make(form.replace('@', command).replace("  ", " ").trim()));
            }
        }
    }
    lines
}

/// Mistakes that are found before anything is connected.
const MISTAKES: &str = "
    (nothing)
    nosuch
    gett
    ge
    pt k v
    ver
    lea gr
    l
    me li extra --nosuch
    lease nosuch
    lease nosuch --help
    --nosuch
    -x
    -wx
    get -wx
    get -w
    get k -w
    get --limit
    get k --limit x
    get k --limit 1.5
    get k --limit 9223372036854775808
    get k --limit=
    get k --prefix=maybe
    get k --rev -
    get -zk
    get ---k
    get --=k
    get k --command-timeout 5
    get k --command-timeout x
    get k --dial-timeout 5y
    get k --keepalive-time=
    get k --hex=2
    get k --max-request-bytes 1e3
    get k --endpoints 'a\"b'
    --
    -- get
    get
    get a b c --command-timeout 300ms
    get --prefix --from-key a
    get --prefix a b
    get --from-key a b
    get --keys-only --count-only a
    get --consistency x a
    get --order up a
    get --sort-by size a
    get --min-create-rev 3 --max-create-rev 2 a
    get --min-mod-rev 3 --max-mod-rev 2 a
    put
    put a b c --command-timeout 300ms
    put --lease xyz a b
    put --lease 10000000000000000 a b
    put --ignore-value a b
    put --ignore-value --ignore-lease a b
    del
    del a b c
    del --prefix --from-key a
    del --prefix a b
    del --from-key a b
    del --range a --command-timeout 300ms
    txn a
    compaction
    compaction a b
    compaction x
    compaction --physical
    alarm disarm x
    alarm list x
    defrag x --nosuch
    endpoint nosuch
    endpoint status --cluster=x
    endpoint hashkv --rev x
    move-leader
    move-leader a b
    move-leader xyz
    watch
    watch --prefix a b
    watch -- echo
    watch a --
    watch a --rev x
    lease grant
    lease grant a b
    lease grant x
    lease grant 1 2
    lease revoke
    lease revoke a b
    lease revoke xyz
    lease timetolive
    lease timetolive xyz
    lease timetolive a b
    lease list x --nosuch
    lease keep-alive
    lease keep-alive xyz
    lease keep-alive a b
    member add
    member add n
    member add n --peer-urls
    member add n http://a:1
    member add a b
    member add a --peer-urls http://h:1 http://h:2
    member remove
    member remove xyz
    member remove a b
    member update
    member update xyz
    member update 1
    member update 1 --peer-urls
    member promote
    member promote xyz
    member promote 1 2
    member list --consistency x
    snapshot save
    snapshot save a b
    snapshot status
    snapshot restore x
    make-mirror
    make-mirror a b
    make-mirror --dest-prefix a --no-dest-prefix b
    make-mirror a --max-txn-ops x
    lock
    lock --ttl x n
    elect
    elect n
    elect -l n p
    elect n p q
    auth enable x
    auth disable x
    auth status x
    user add
    user add a b
    user add ''
    user add :pw
    user delete
    user delete a b
    user get
    user get a b
    user list x
    user passwd
    user passwd a b
    user grant-role a
    user grant-role a b c
    user revoke-role a
    user revoke-role a b c
    role add
    role add a b
    role delete
    role get
    role get a b
    role list x
    role grant-permission a
    role grant-permission a read
    role grant-permission a bad k
    role grant-permission a read --prefix k e
    role grant-permission a read --from-key k e
    role grant-permission a read --prefix --from-key k
    role revoke-permission a
    role revoke-permission a --prefix k e
    role revoke-permission a --from-key k e
    role revoke-permission a --prefix --from-key k
    check nosuch
    check perf --load nosuch
    check datascale --load nosuch
    check perf --auto-compact=x
    downgrade validate
    downgrade validate a b
    downgrade enable
    downgrade enable a b
    downgrade cancel x --nosuch
    completion
    completion ksh
    completion bash zsh
    help nosuch
    help lease nosuch
    help 'a`b' c
    options x
    version x
    version -w json
";

/// Completion, of flags, their values, commands and arguments; the scripts.
const COMPLETION: &str = "
    completion bash
    completion zsh
    completion fish
    completion powershell
    __complete
    __complete l
    __complete lease g
    __complete -
    __complete -w ''
    __complete -w=
    __complete --write-out ''
    __complete --write-out=j
    __complete get -w ''
    __complete get k -w ''
    __complete get --limit ''
    __complete get --limit x ''
    __complete get --nosuch ''
    __complete get --prefix ''
    __complete get --prefix --
    __complete get -- --
    __complete get -h ''
    __complete check perf --load ''
    __complete check perf --load=
    __complete check datascale --load ''
    __complete elect -
    __complete elect -l ''
    __complete watch -
    __complete help ''
    __complete help le
    __complete help lease ''
    __complete help nosuch ''
    __complete nosuch ''
    __complete lease nosuch ''
    __complete completion ''
    __complete completion b
    __complete completion bash ''
    __completeNoDesc ''
    __completeNoDesc get --
    __completeNoDesc alarm ''
    __comp ''
    options
    version
";

const UTL_LINES: &str = "
    version
    version -w json
    nosuch
    snapsho
    snap nosuch
    -w
    --timeout x version
    completion bash
    completion zsh
    completion fish
    completion powershell
    completion ksh
    __complete defrag --data-dir ''
    __complete -w ''
    __complete snapshot restore --
    __completeNoDesc snapshot ''
";

fn offline() -> Vec<Scenario> {
    let mut mistakes = ctls(MISTAKES);
    // These are found in what the server would be sent, and wait for one.
    for words in ["watch a b c", "role grant-permission a read k e x", "role revoke-permission a k e x"] {
        mistakes.push(ctl(words).until(Stop::Millis(500)));
    }
    mistakes.push(ctl("version").env(&[("ETCDCTL_API", "3"), ("ETCDCTL_NOSUCH", "1")]));
    mistakes.push(ctl("get").env(&[("ETCDCTL_HEX", "true")]));
    let mut completion = ctls(COMPLETION);
    completion.extend(many(UTL_LINES, utl));
    completion.push(ctl("__complete get --").env(&[("ETCDCTL_COMPLETION_DESCRIPTIONS", "false")]));
    completion.push(ctl("__complete get --").env(&[("COBRA_COMPLETION_DESCRIPTIONS", "0")]));
    // Two halves, so that they run side by side.
    let mut help = every_command();
    // The lists of etcdutl's commands.
    let more = "ours has `bbolt`, as the etcdutl after 3.7 has, and `export`";
    let lists = ["", "-h", "help", "--no-such-flag", "__complete ''", "__complete help ''", "-w", "completion bash"];
    for line in help.iter_mut().chain(&mut completion).filter(|line| line.tool == Tool::Utl) {
        if lists.contains(&line.words.as_str()) {
            line.reason = Some(more);
        }
    }
    let more = help.split_off(help.len() / 2);
    vec![
        Scenario::offline("help", help),
        Scenario::offline("more help", more),
        Scenario::offline("mistakes", mistakes),
        Scenario::offline("completion", completion),
    ]
}

/// Nobody answers, and what is said about the connection before.
fn nobody() -> Scenario {
    let text = "
        get k
        put k v
        get k -w nosuch
        get k --cert ''
        get k --key ''
        get k --cacert ''
        get k --cert nosuch.crt
        get k --cacert nosuch.crt
        get k --cert nosuch.crt --key nosuch.key
        get k --user root --password x
        endpoint health
        endpoint health -w json
        endpoint status
        endpoint status -w json
        endpoint status -w table
        endpoint status -w fields
        endpoint hashkv
        defrag
        member list
        move-leader 1
        alarm list
        downgrade cancel
    ";
    let mut lines =
        many(text, |words| {
            ctl(&format!("--endpoints 127.0.0.1:{{port0}} --dial-timeout 200ms --command-timeout 300ms {words}"))
                .mask(&[Mask::After("took = "), Mask::After("took "), Mask::After("\"took\":\"")])
        });
    // These know no deadline.
    let patient = "
        lease list
        lease timetolive 1
        lease keep-alive --once 1
        user list
        txn
        watch k
        lock l
        snapshot save x --command-timeout 0s
    ";
    lines.extend(many(patient, |words| {
        ctl(&format!("--endpoints 127.0.0.1:{{port0}} --dial-timeout 200ms {words}")).until(Stop::Millis(500))
    }));
    lines.push(ctl("--endpoints '' get k --command-timeout 300ms"));
    lines.push(ctl("--endpoints http://127.0.0.1:{port0},127.0.0.1:{port1} endpoint health --command-timeout 300ms --dial-timeout 200ms").mask(&[Mask::Order, Mask::After("took = ")]));
    lines.push(ctl("get k --command-timeout 300ms --endpoints ://x"));
    lines.push(ctl("get k --command-timeout 300ms --endpoints unix:///nosuch/socket"));
    lines.push(ctl("get k --command-timeout 300ms").env(&[("ETCDCTL_ENDPOINTS", "127.0.0.1:{port0}")]));
    lines.push(ctl("get k --discovery-srv nosuch.invalid"));
    Scenario { lines, ..Scenario::offline("nobody", Vec::new()) }
}

/// Flags from the environment, against a server.
fn environment() -> Scenario {
    let lines = vec![
        set("put k v"),
        ctl("get k").env(&[("ETCDCTL_HEX", "true")]),
        ctl("get k")
            .env(&[("ETCDCTL_HEX", "maybe")])
            .kept("a value that does not parse is refused; etcd's goes on with none, and says nothing"),
        ctl("get k").env(&[("ETCDCTL_WRITE_OUT", "json")]),
        ctl("get k -w simple").env(&[("ETCDCTL_WRITE_OUT", "json")]),
        ctl("get k").env(&[("ETCDCTL_WRITE_OUT", "nosuch")]),
        ctl("get k").env(&[("ETCDCTL_NOSUCH", "1")]),
        ctl("get k").env(&[("ETCDCTL_API", "3")]),
        ctl("get k").env(&[("ETCDCTL_CERT", "")]),
        ctl("get k").env(&[("ETCDCTL_CERT", "nosuch.crt")]),
        ctl("get k").env(&[("ETCDCTL_COMMAND_TIMEOUT", "2s"), ("ETCDCTL_DIAL_TIMEOUT", "1s")]),
        ctl("get k --command-timeout 1s").env(&[("ETCDCTL_COMMAND_TIMEOUT", "2s")]),
        ctl("get k --hex").env(&[("ETCDCTL_DEBUG", "true")]),
        ctl("get k --debug"),
        ctl("--endpoints {e0} get k").env(&[("ETCDCTL_ENDPOINTS", "127.0.0.1:1")]),
        ctl("version").env(&[("ETCDCTL_HEX", "true")]),
        ctl("version --hex").env(&[("ETCDCTL_HEX", "true")]),
        ctl("watch --rev 2").env(&[("ETCDCTL_WATCH_KEY", "k")]).until(Stop::Lines(3)),
        ctl("watch --rev 2 x").env(&[("ETCDCTL_WATCH_KEY", "k")]),
        ctl("watch --rev 2").env(&[("ETCDCTL_WATCH_RANGE_END", "l")]),
        ctl("watch --rev 2 --prefix").env(&[("ETCDCTL_WATCH_KEY", "k"), ("ETCDCTL_WATCH_RANGE_END", "l")]),
        ctl("watch --rev 2").env(&[("ETCDCTL_WATCH_KEY", "a"), ("ETCDCTL_WATCH_RANGE_END", "z")]).until(Stop::Lines(3)),
        ctl("--max-request-bytes 10 put long 0123456789012345678901234567890"),
        ctl("--max-recv-bytes 10 get k"),
        ctl("--insecure-transport=false --command-timeout 300ms get k"),
        ctl("--insecure-skip-tls-verify get k"),
        ctl("--user nobody --password x get k"),
        ctl("--user nobody:x get k"),
        ctl("--auth-jwt-token nonsense get k"),
    ];
    Scenario::one("environment", vec![lines])
}

/// Locks and elections: they hold until they are told to stop.
fn concurrency() -> Scenario {
    let lines = vec![
        ctl("lock l echo held"),
        ctl("lock l -- sh -c 'exit 3'"),
        ctl("lock l nosuch-program"),
        ctl("lock l sh -c 'echo $ETCD_LOCK_REV; test -n $ETCD_LOCK_KEY'"),
        ctl("lock l").until(Stop::Lines(1)).mask(&[Mask::After("l/")]),
        ctl("lock l --ttl 30 -w json")
            .until(Stop::Lines(1))
            .mask(&[Mask::After("\"key\":\""), Mask::After("\"lease\":")]),
        ctl("lock l -w fields").until(Stop::Lines(9)).mask(&[Mask::After("\"l/"), Mask::After("\"Lease\" : ")]),
        ctl("lock held").begin("holder").until(Stop::Lines(1)),
        ctl("--command-timeout 300ms lock held echo never").until(Stop::Millis(500)),
        end("holder", Stop::Millis(0)).mask(&[Mask::After("held/")]),
        ctl("elect e one").until(Stop::Lines(2)).mask(&[Mask::After("e/")]),
        ctl("elect e one -w json").until(Stop::Lines(1)).mask(&[Mask::After("\"key\":\""), Mask::After("\"lease\":")]),
        ctl("elect e two").begin("leader").until(Stop::Lines(2)),
        ctl("elect -l e").until(Stop::Lines(2)).mask(&[Mask::After("e/")]),
        end("leader", Stop::Millis(0)).mask(&[Mask::After("e/")]),
        ctl("get --prefix ''"),
    ];
    Scenario::one("concurrency", vec![lines])
}

/// Mirrors and checks, which take their time.
fn slow() -> Scenario {
    let lines = vec![
        set("put a/1 one"),
        set("put a/2 two"),
        set("put b other"),
        // Into itself, below another prefix.
        ctl("make-mirror {e0} --prefix a/ --dest-prefix m/").until(Stop::Millis(700)),
        ctl("get --prefix m/"),
        ctl("make-mirror {e0} --prefix a/ --no-dest-prefix").until(Stop::Millis(700)),
        ctl("get --prefix ''"),
        ctl("make-mirror 127.0.0.1:{port0} --command-timeout 300ms --dial-timeout 200ms --dest-insecure-transport=false").until(Stop::Millis(700)),
        ctl("make-mirror {e0} --dest-cert nosuch.crt"),
        ctl("make-mirror {e0} --dest-cacert nosuch.crt"),
        ctl("make-mirror {e0} --prefix a/ --dest-prefix r/ --rev 1 --max-txn-ops 2").until(Stop::Millis(700)),
        ctl("get --prefix r/"),
        set("put /etcdctl-check-perf/x y"),
        ctl("check perf"),
        ctl("check perf --prefix a/"),
        ctl("check datascale --prefix a/"),
    ];
    Scenario::one("mirrors and checks", vec![lines])
}

pub fn scenarios() -> Vec<Scenario> {
    let mut all = offline();
    all.extend([nobody(), environment(), concurrency(), slow()]);
    all
}
