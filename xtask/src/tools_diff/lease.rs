//! Leases. Their ids come from the clock, and are captured.

use super::line::{Line, Scenario, Stop, ctl, ctls, set};
use super::mask::Mask;

/// The seconds left of a lease.
const LEFT: &[Mask] = &[Mask::After("remaining("), Mask::After("\"ttl\":"), Mask::After("\"TTL\" : ")];
const IDS: &[Mask] = &[Mask::After("\"ID\":"), Mask::After("lease "), Mask::After("\"ID\" : ")];

fn lines() -> Vec<Line> {
    let mut lines = vec![
        ctl("lease grant 100").capture("L", "lease "),
        ctl("lease grant 200 -w json").mask(IDS),
        ctl("lease grant 200 -w fields").mask(IDS),
        ctl("lease grant 200 -w fields --hex").mask(IDS),
        ctl("lease grant 200 --hex").mask(IDS),
        ctl("lease grant 200 -w protobuf"),
        ctl("lease grant 200 -w table"),
        ctl("lease grant 0").mask(IDS),
        ctl("lease grant -- -5").mask(IDS),
        ctl("lease grant 9000000001"),
        ctl("lease grant 0x10"),
        ctl("put k1 v --lease {L}"),
        ctl("put k2 v --lease={L} -w json"),
        // Go lists the keys of a lease in any order.
        set("del k2"),
        ctl("get k1 -w json"),
        ctl("get k1 -w fields"),
        ctl("get k1 -w fields --hex"),
        ctl("put k1 w --ignore-lease --prev-kv -w json"),
    ];
    let formats =
        ["", " -w json", " -w fields", " -w table", " -w protobuf", " --hex", " -w json --hex", " -w fields --hex"];
    for words in
        ["lease timetolive {L}", "lease timetolive --keys {L}", "lease timetolive 1f", "lease timetolive --keys 1f"]
    {
        lines.extend(ctl(words).mask(LEFT).with(&formats));
    }
    lines.extend(ctl("lease keep-alive --once {L}").with(&formats));
    lines.push(ctl("lease keep-alive {L}").until(Stop::Lines(1)));
    lines.push(ctl("lease keep-alive {L} -w json").until(Stop::Lines(1)));
    lines.push(ctl("lease keep-alive {L} -w fields").until(Stop::Lines(5)));
    lines.extend(ctls(
        "
        lease keep-alive 1f
        lease keep-alive 1f -w json
        lease keep-alive --once 1f
        lease keep-alive --once 1f -w json
        lease timetolive 0
        lease revoke 1f
        lease revoke 0
        lease revoke 1f -w json
        ",
    ));
    lines.push(ctl("lease revoke {L}"));
    lines.push(ctl("lease revoke {L}"));
    lines.push(ctl("lease timetolive {L} --keys"));
    lines.push(ctl("get k --prefix"));
    for ends in [" -w json", " -w fields", " -w table", " -w protobuf", " --hex"] {
        lines.push(set("lease grant 100").capture("M", "lease "));
        let line = ctl(&format!("lease revoke {{M}}{ends}"));
        let reason = "Go's fails with an address in memory once the lease is gone; ours prints the response";
        lines.push(if ends.ends_with("protobuf") { line.kept(reason) } else { line });
    }
    lines
}

/// Nothing granted yet, then one.
fn list() -> Vec<Line> {
    let formats =
        ["", " -w json", " -w fields", " -w table", " -w protobuf", " --hex", " -w json --hex", " -w fields --hex"];
    let mut lines = ctl("lease list").with(&formats);
    lines.push(set("lease grant 100").capture("L", "lease "));
    lines.extend(ctl("lease list").with(&formats));
    lines.push(ctl("lease list extra"));
    lines
}

pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario::one("lease", vec![lines()]), Scenario::one("lease list", vec![list()])]
}
