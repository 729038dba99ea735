//! Watches from a revision in the past, so that what they say does not depend on time.

use super::line::{Line, Scenario, Stop, ctl, end, set, sets};
use super::mask::Mask;

const SEED: &str = "
    put w1 one
    put w1 two
    put w2 other
    del w1
    put x v
";

fn lines() -> Vec<Line> {
    let mut lines = sets(SEED);
    let mut watch = |words: &str, count: usize| lines.push(ctl(words).until(Stop::Lines(count)));
    watch("watch w1 --rev 2", 9);
    watch("watch --rev 2 w1", 9);
    watch("watch w1 --rev 2 --hex", 9);
    watch("watch w1 --rev 2 --prev-kv", 13);
    watch("watch w --prefix --rev 1", 12);
    watch("watch w1 w3 --rev 2", 12);
    watch("watch --prefix '' --rev 2", 15);
    watch("watch '' --prefix --rev 5", 6);
    watch("watch w1 --rev 2 -w json", 3);
    watch("watch w1 --rev 2 -w json --prev-kv", 3);
    watch("watch w1 --rev 2 -w json --hex", 3);
    watch("watch w1 --rev 2 -w fields", 33);
    watch("watch w1 --rev 2 -w fields --hex", 33);
    watch("watch w1 --rev 2 -w fields --prev-kv", 45);
    watch("watch w1 --rev 2 -- echo event", 3);
    watch(
        "watch w1 w3 --rev 2 -- sh -c 'echo $ETCD_WATCH_REVISION $ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_KEY $ETCD_WATCH_VALUE'",
        4,
    );
    watch("watch x --rev 6 --progress-notify", 3);
    lines.push(ctl("watch x --rev 6 -w table").until(Stop::Millis(1000)));
    lines.push(ctl("watch x --rev 6 -- cat").until(Stop::Millis(400)));
    lines.push(ctl("watch x --rev 6 -- nosuch-program"));
    lines.push(ctl("watch x --rev 6 -- sh -c 'exit 3'"));
    lines.push(ctl("watch x --rev 6 -w nosuch"));
    lines.push(ctl("watch x --rev 6 -w protobuf").until(Stop::Millis(300)));
    // From now on.
    lines.push(ctl("watch live").begin("live").until(Stop::Millis(250)));
    lines.push(set("put live 1"));
    lines.push(set("del live"));
    lines.push(end("live", Stop::Lines(6)));
    // Interactive.
    for (input, count) in [
        ("watch w1 --rev 2\n", 9),
        ("watch w1 --rev 2 -- echo event\n", 3),
        ("watch w --prefix --rev 2\n", 12),
        ("watch w1 w3 --rev 2 --prev-kv\n", 14),
        ("watch w1 --rev 3\nwatch x --rev 6\n", 9),
        ("nosuch\nwatch x --rev 6\n", 3),
    ] {
        lines.push(ctl("watch -i").typed(input).until(Stop::Lines(count)).mask(&[Mask::Order]));
    }
    for input in [
        "nosuch\n",
        "\n",
        "put a b\n",
        "watch\n",
        "watch a b c\n",
        "watch a --nosuch\n",
        "watch a --rev x\n",
        "watch -- echo\n",
        "progress\n",
        "",
    ] {
        lines.push(ctl("watch -i").stdin(input).mask(&[Mask::Order]));
    }
    lines.push(ctl("watch -i extra").stdin(""));
    lines.push(set("compaction 5"));
    lines.push(ctl("watch w1 --rev 2"));
    lines.push(ctl("watch w1 --rev 2 -w json"));
    lines.push(ctl("watch w1 --rev 2 -w fields"));
    lines.push(ctl("watch x --rev 5").until(Stop::Lines(3)));
    lines.push(ctl("watch x --rev -1").until(Stop::Millis(300)));
    lines.push(ctl("watch z a").until(Stop::Millis(300)));
    lines
}

pub fn scenarios() -> Vec<Scenario> {
    vec![Scenario::one("watch", vec![lines()])]
}
