//! Users, roles, and a cluster that asks who is there.

use super::kv::SIZES;
use super::line::{Line, Scenario, ctl, ctls, set, sets};
use super::mask::Mask;

fn administration() -> Vec<Line> {
    let formats = ["", " -w json", " -w fields", " -w table", " -w protobuf", " --hex"];
    let mut lines = ctl("auth status").with(&formats);
    lines.extend(ctl("user list").with(&formats));
    lines.extend(ctl("role list").with(&formats));
    for (at, end) in formats.iter().enumerate() {
        lines.push(ctl(&format!("role add r{at}{end}")));
        lines.push(ctl(&format!("user add u{at}:pw{end}")));
        lines.push(ctl(&format!("user grant-role u{at} r{at}{end}")));
        lines.push(ctl(&format!("role grant-permission r{at} readwrite k{at}{end}")));
    }
    lines.extend(ctls(
        "
        role add r0
        user add u0:pw
        user add nopw --no-password
        user add pw --new-user-password secret
        user add both:pw --new-user-password secret
        user add none --interactive=false
        user grant-role u0 r0
        user grant-role u0 nosuch
        user grant-role nosuch r0
        user grant-role u0 r1
        role grant-permission r0 read a
        role grant-permission r0 write b c
        role grant-permission r0 readwrite d --prefix
        role grant-permission r0 read e --from-key
        role grant-permission r0 READ x
        role grant-permission r0 read '' --prefix
        role grant-permission r0 read '' --from-key
        role grant-permission r0 read ''
        role grant-permission nosuch read a
        role grant-permission r0 read z a
        ",
    ));
    lines.push(ctl("user add typed --interactive=false").stdin("secret\n"));
    lines.push(ctl("user add typed2 --interactive=false").stdin("secret"));
    lines.push(ctl("user add typed3 --interactive=false").stdin("two words\n"));
    lines.push(ctl("user passwd typed --interactive=false").stdin("other\n"));
    lines.push(ctl("user passwd nosuch --interactive=false").stdin("other\n"));
    lines.push(ctl("user passwd typed --interactive=false"));
    for words in [
        "role get r0",
        "role get root",
        "role get nosuch",
        "user get u0",
        "user get nosuch",
        "user get nopw",
        "user get u0 --detail",
        "user list",
        "role list",
    ] {
        lines.extend(ctl(words).with(&formats));
    }
    lines.extend(ctls(
        "
        role revoke-permission r0 a
        role revoke-permission r0 a
        role revoke-permission r0 b c
        role revoke-permission r0 d --prefix
        role revoke-permission r0 e --from-key -w json
        role revoke-permission r0 '' --prefix
        role revoke-permission nosuch a
        role get r0
        user revoke-role u0 r1
        user revoke-role u0 r1
        user revoke-role u0 r0 -w json
        user revoke-role nosuch r0 -w fields
        user delete u1
        user delete u1
        user delete u2 -w json
        user delete u3 -w fields
        role delete r1
        role delete r1
        role delete r2 -w json
        role delete r3 -w fields
        role delete root
        auth enable
        auth status
        ",
    ));
    lines
}

fn enabled() -> Vec<Line> {
    let mut lines = sets(
        "
        put open v
        user add root:pw
        role add reader
        role grant-permission reader read k --prefix
        user add ann:pw
        user grant-role ann reader
        user add nopw --no-password
        put k1 v1
        ",
    );
    lines.extend(
        ctls(
            "
        auth enable -w json
        auth status
        auth status --user root:pw
        auth enable --user root:pw
        get k1
        put k1 v
        get k1 --user ann:pw
        get k1 --user ann --password pw
        get k1 --user ann --password wrong
        get k1 --user ann:wrong
        get k1 --user nosuch:pw
        get k1 --user nopw:x
        get open --user ann:pw
        put k1 v --user ann:pw
        put k1 v2 --user root:pw
        get k --prefix --user ann:pw -w json
        get '' --prefix --user ann:pw
        del k1 --user ann:pw
        get k1 --user ann:pw:more
        watch k1 --user ann:pw -w nosuch
        watch open --user ann:pw
        lease grant 100 --user ann:pw
        lease list
        member list
        member list --user ann:pw
        member list --user root:pw
        member remove 1 --user ann:pw
        endpoint status --user root:pw -w fields
        endpoint status
        endpoint health
        endpoint health --user ann:pw
        endpoint health --user root:pw
        endpoint hashkv
        endpoint hashkv --user root:pw
        alarm list
        alarm list --user root:pw
        defrag
        defrag --user root:pw
        snapshot save x
        snapshot save x --user ann:pw
        snapshot save x --user root:pw
        user list
        user list --user ann:pw
        user list --user root:pw
        user get ann --user ann:pw
        user get root --user ann:pw
        user get ann --user root:pw --detail
        role get reader --user ann:pw
        role get reader --user root:pw
        role list --user ann:pw
        user add bob:pw --user ann:pw
        user add bob:pw --user root:pw
        user add eve: --user root:pw
        user grant-role bob root --user root:pw
        get open --user bob:pw
        user delete root --user root:pw
        role delete root --user root:pw
        user revoke-role root root --user root:pw
        compaction 2 --user ann:pw
        compaction 2 --user root:pw
        move-leader 1 --user ann:pw
        downgrade cancel --user ann:pw
        downgrade validate 3.6 --user root:pw
        lock n --user ann:pw echo x
        elect n p --user ann:pw
        check perf --user ann:pw
        txn --user ann:pw
        get k1 --auth-jwt-token nonsense
        auth disable
        auth disable --user ann:pw
        auth disable --user root:pw
        auth disable
        auth status
        get open
        ",
        )
        .into_iter()
        .map(|line| line.mask(&[Mask::After("took = "), Mask::After("took "), Mask::After("lease ")])),
    );
    lines.push(ctl("user passwd ann --interactive=false").stdin("new\n"));
    lines.push(set("auth enable"));
    lines.push(ctl("get k1 --user ann:pw"));
    lines.push(ctl("get k1 --user ann:new"));
    lines.push(ctl("get k1 --user ann").stdin("new\n"));
    lines.push(ctl("user add carol --user root:pw").stdin("a\na\n"));
    lines
}

/// Sizes, and how far the log has come, which follows how often somebody was asked who he is.
const MASKS: &[Mask] =
    &[SIZES[0], SIZES[1], SIZES[2], SIZES[3], Mask::After("\"RaftIndex\" : "), Mask::After("\"RaftAppliedIndex\" : ")];

pub fn scenarios() -> Vec<Scenario> {
    let scenario =
        |name, lines| Scenario { flags: &["--bcrypt-cost=4"], masks: MASKS, ..Scenario::one(name, vec![lines]) };
    vec![scenario("auth administration", administration()), scenario("auth enabled", enabled())]
}
