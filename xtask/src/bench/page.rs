//! `docs/bench.md`, from what was measured.

use super::NAMES;
use super::big::{self, STEPS};
use super::parts::{Bar, Client, Limit, WORK};
use super::results::{Part, Results};
use super::tools;
use crate::run;

/// A bar, held against what was measured.
struct Verdict {
    /// In the table.
    short: String,
    /// In the list of what is missed, when it is.
    missed: Option<String>,
}

const MEMORY_BARS: &[Bar] = &[
    Bar { figure: "anonymous_mib", limit: Limit::Share(0.5) },
    Bar { figure: "restart_killed_s", limit: Limit::Share(0.5) },
    Bar { figure: "restart_stopped_s", limit: Limit::Share(0.5) },
];
const STORE_BARS: &[Bar] =
    &[Bar { figure: "slowest_ms", limit: Limit::Worst(50.0) }, Bar { figure: "failed_puts", limit: Limit::Worst(0.0) }];

/// What a figure is called in a sentence, and its unit.
fn words(figure: &str) -> (&'static str, &'static str) {
    match figure {
        "server_us" => ("CPU of the servers for an operation", "us"),
        "p50_ms" => ("half of them within", "ms"),
        "p99_ms" => ("99 of 100 within", "ms"),
        "anonymous_mib" => ("anonymous memory", "MiB"),
        "restart_killed_s" => ("ready again after kill -9", "s"),
        "restart_stopped_s" => ("ready again after a stop", "s"),
        "slowest_ms" => ("slowest put during compaction, snapshot and defragmentation", "ms"),
        "failed_puts" => ("puts that failed meanwhile", ""),
        "wall_s" => ("time for a call", "s"),
        "peak_mib" => ("peak memory", "MiB"),
        _ => ("", ""),
    }
}

fn judge(what: &str, part: &Part, bar: &Bar) -> Option<Verdict> {
    let (name, unit) = words(bar.figure);
    let (met, short, sentence) = match bar.limit {
        Limit::Share(limit) => {
            let (ours, theirs) = (part.median(0, bar.figure)?, part.median(1, bar.figure)?);
            let ratio = ours / theirs;
            let asked = if limit == 1.0 { "no worse".to_owned() } else { format!("at most {limit:.2}") };
            let sentence = format!(
                "{name} {} {unit}, etcd {} {unit}: {ratio:.2} of it; asked is {asked}",
                number(ours),
                number(theirs)
            );
            (ratio <= limit, format!("{} {asked}", bar.figure), sentence)
        }
        Limit::Worst(limit) => {
            let worst = part.worst(0, bar.figure)?;
            let theirs = part.worst(1, bar.figure).map(number).unwrap_or_default();
            let sentence = format!("{name} {} {unit}, etcd {theirs} {unit}; asked is at most {limit}", number(worst));
            (worst <= limit, format!("{} at most {limit}", bar.figure), sentence)
        }
    };
    let missed = (!met).then(|| format!("{what}: {sentence}."));
    Some(Verdict { short: format!("{short}: {}", if met { "met" } else { "**missed**" }), missed })
}

/// With as many digits as matter.
fn number(value: f64) -> String {
    match value.abs() {
        a if a >= 1_000.0 => {
            let digits = format!("{value:.0}");
            let mut text = String::new();
            for (at, digit) in digits.chars().enumerate() {
                if at > 0 && (digits.len() - at).is_multiple_of(3) {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
        a if a >= 100.0 => format!("{value:.0}"),
        a if a >= 10.0 => format!("{value:.1}"),
        a if a >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The page being written: its tables, what is missed, and what is not there.
#[derive(Default)]
struct Page {
    tables: String,
    missed: Vec<String>,
    absent: Vec<String>,
}

/// The whole page.
pub fn render(results: &Results) -> String {
    let mut page = Page::default();
    for members in [1, 3] {
        for client in [Client::Lean, Client::Tool] {
            page.workloads(results, members, client);
        }
    }
    page.big(results);
    page.tools(results);
    let mut text = heading(results);
    text.push_str("\n## Bars that are missed\n\n");
    if page.missed.is_empty() {
        text.push_str("None of those measured.\n");
    }
    for line in &page.missed {
        text.push_str(&format!("* {line}\n"));
    }
    if !page.absent.is_empty() {
        text.push_str(&format!("\nNot measured yet: {}.\n", page.absent.join("; ")));
    }
    text + &page.tables
}

fn heading(results: &Results) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let after = |text: String, name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned)).unwrap_or_default();
        rest.trim_matches([' ', '\t', ':']).to_owned()
    };
    let model = after(read("/proc/cpuinfo"), "model name");
    let memory = after(read("/proc/meminfo"), "MemTotal");
    let memory = memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).map_or(0, |kib| kib >> 20);
    let kernel = read("/proc/sys/kernel/osrelease");
    let go = run::text(std::process::Command::new("go").arg("version")).unwrap_or_default();
    let go = go.split(' ').nth(2).unwrap_or("go").to_owned();
    let (fewest, most, commits) = results.extent();
    let rounds = if fewest == most { fewest.to_string() } else { format!("{fewest} to {most}") };
    format!(
        "# Dolmen beside etcd\n\n\
         Written by `cargo xtask bench`; do not edit. Dolmen {} (commit {}) and Go etcd 3.6.16, built with {go}, both for \
         release, with the same flags on the same disk and fresh clusters, in {rounds} alternating rounds of each part; \
         medians, where nothing else is said.\n\n\
         Machine: {cores} cores ({model}), {memory} GiB, Linux {}. The clients run on the same cores and hold the \
         throughput of both servers down, so compare the CPU of the servers for one operation, all members summed; the \
         client's own stands apart. Absolute figures move with the machine; ratios of one run count. `dolmen-load` is our \
         load generator (`crates/load`), `benchmark` is etcd's; its renewals open a stream each, ours keep one, as \
         clients do.\n\n\
         Again: `cargo xtask bench` for everything (an hour), `cargo xtask bench tools`; in pieces with `--only NAME,NAME`, \
         `--members 1|3`, `--client load|benchmark`, `--rounds N`. The rounds of one commit add up in \
         `target/bench/results.json`.\n",
        env!("CARGO_PKG_VERSION"),
        commits.join(", "),
        kernel.trim(),
    )
}

impl Page {
    /// Holds bars against a part and returns what the table says.
    fn judge(&mut self, what: &str, part: &Part, bars: &[Bar]) -> String {
        let verdicts: Vec<Verdict> = bars.iter().filter_map(|bar| judge(what, part, bar)).collect();
        let short: Vec<String> = verdicts.iter().map(|verdict| verdict.short.clone()).collect();
        self.missed.extend(verdicts.into_iter().filter_map(|verdict| verdict.missed));
        short.join("; ")
    }

    fn workloads(&mut self, results: &Results, members: usize, client: Client) {
        const COLUMNS: [&str; 6] = ["per_second", "p50_ms", "p99_ms", "max_ms", "server_us", "client_us"];
        let title = format!(
            "{members} member{}, {}",
            if members == 1 { "" } else { "s" },
            if client == Client::Lean { "dolmen-load" } else { "etcd's benchmark" }
        );
        let mut rows = String::new();
        for work in WORK.iter().filter(|work| client == Client::Lean || work.tool.is_some()) {
            let Some(part) = results.get(&format!("{}/{members}/{}", work.name, client.name())) else {
                self.absent.push(format!("{} ({title})", work.name));
                continue;
            };
            let verdict = self.judge(&format!("{}, {title}", work.what), part, work.bars);
            for side in [0, 1] {
                let first = if side == 0 { work.what } else { "" };
                rows.push_str(&format!("| {first} | {} |", NAMES[side]));
                for column in COLUMNS {
                    rows.push_str(&format!(" {} |", part.median(side, column).map(number).unwrap_or_default()));
                }
                rows.push_str(" |\n");
            }
            rows.push_str("| | ratio |");
            for column in COLUMNS {
                rows.push_str(&format!(" {} |", ratio(part, column)));
            }
            rows.push_str(&format!(" {verdict} |\n"));
        }
        if !rows.is_empty() {
            self.tables.push_str(&format!(
                "\n## {title}\n\n\
                 | work | | ops/s | p50 ms | p99 ms | slowest ms | server us/op | client us/op | bars |\n\
                 |---|---|---|---|---|---|---|---|---|\n{rows}"
            ));
        }
    }

    fn big(&mut self, results: &Results) {
        match results.get("memory/1/load") {
            None => self.absent.push("memory and restart at a million keys".into()),
            Some(part) => {
                let verdict = self.judge("a million keys of 1 KiB", part, MEMORY_BARS);
                self.tables.push_str(&format!(
                    "\n## A million keys of {} bytes, one member\n\n\
                     Put by 1,000 clients. Anonymous memory is what the server holds for itself, mapped files left out. \
                     Both restarts find the files in the page cache.\n\n",
                    big::VALUE_BYTES
                ));
                let rows = [
                    ("loading, puts/s", "load_per_second"),
                    ("loading, server us/op", "load_server_us"),
                    ("loading, p99 ms", "load_p99_ms"),
                    ("anonymous memory, MiB", "anonymous_mib"),
                    ("on disk, MiB", "disk_mib"),
                    ("restart after kill -9, s", "restart_killed_s"),
                    ("restart after a stop, s", "restart_stopped_s"),
                    ("anonymous memory after it, MiB", "restarted_anonymous_mib"),
                ];
                self.figures(part, &rows, &verdict);
            }
        }
        match results.get("store/1/load") {
            None => self.absent.push("a store of 2 GB".into()),
            Some(part) => {
                let verdict = self.judge("a store of 2 GB", part, STORE_BARS);
                self.tables.push_str(
                    "\n## A store of 2 GB compacted, saved and defragmented\n\n\
                     A million keys of 1 KiB written twice, so that half is superseded; 200 small puts a second go on \
                     meanwhile, and three seconds longer. The snapshot goes to memory, as a backup goes to another machine; \
                     `snapshot here` is written to the server's own disk, which is then busy with it, and is outside the \
                     bar. The slowest put is that of all rounds, elsewhere medians.\n\n",
                );
                let mut rows = Vec::new();
                for step in std::iter::once("idle").chain(STEPS) {
                    let mut row =
                        |what: &str, figure: &str| rows.push((format!("{step}: {what}"), format!("{step}_{figure}")));
                    if step != "idle" {
                        row("takes, s", "s");
                    }
                    row("put p99, ms", "p99_ms");
                    row("slowest put, ms", "max_ms");
                    if step != "idle" {
                        row("puts that failed", "failed");
                    }
                }
                rows.push(("on disk before, MiB".into(), "disk_before_mib".into()));
                rows.push(("on disk after, MiB".into(), "disk_after_mib".into()));
                let rows: Vec<(&str, &str)> =
                    rows.iter().map(|(what, figure)| (what.as_str(), figure.as_str())).collect();
                self.figures(part, &rows, &verdict);
            }
        }
    }

    /// A figure a row, and the verdict below.
    fn figures(&mut self, part: &Part, rows: &[(&str, &str)], verdict: &str) {
        self.tables.push_str(&format!("| | {} | {} | ratio |\n|---|---|---|---|\n", NAMES[0], NAMES[1]));
        for (what, figure) in rows {
            let of = |side: usize| {
                // A put that stalled once has stalled.
                let worst = figure.ends_with("max_ms");
                let value = if worst { part.worst(side, figure) } else { part.median(side, figure) };
                value.map(number).unwrap_or_default()
            };
            self.tables.push_str(&format!("| {what} | {} | {} | {} |\n", of(0), of(1), ratio(part, figure)));
        }
        self.tables.push_str(&format!("\n{verdict}.\n"));
    }

    fn tools(&mut self, results: &Results) {
        let mut rows = String::new();
        for tool in tools::PARTS {
            let Some(part) = results.get(&tools::key(tool)) else {
                self.absent.push(tool.what.to_owned());
                continue;
            };
            let verdict = self.judge(tool.what, part, tool.bars);
            rows.push_str(&format!("| {} |", tool.what));
            for figure in ["wall_s", "cpu_s", "peak_mib"] {
                let of = |side: usize| part.median(side, figure).map(number).unwrap_or_default();
                rows.push_str(&format!(" {} | {} | {} |", of(0), of(1), ratio(part, figure)));
            }
            rows.push_str(&format!(" {verdict} |\n"));
        }
        if !rows.is_empty() {
            self.tables.push_str(&format!(
                "\n## Tools, beside Go's 3.7.3\n\n\
                 Wall time and CPU for a call, process start and all, and the most memory a call had, mapped files among \
                 it. The snapshot is Go etcd's.\n\n\
                 | | wall s | Go's | ratio | CPU s | Go's | ratio | peak MiB | Go's | ratio | bars |\n\
                 |---|---|---|---|---|---|---|---|---|---|---|\n{rows}"
            ));
        }
    }
}

fn ratio(part: &Part, figure: &str) -> String {
    match (part.median(0, figure), part.median(1, figure)) {
        (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2}", ours / theirs),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::Figures;
    use super::*;

    fn results(key: &str, figures: &[(&str, f64, f64)]) -> Results {
        let of = |side: usize| -> Figures {
            figures.iter().map(|(name, a, b)| ((*name).to_owned(), if side == 0 { *a } else { *b })).collect()
        };
        let mut results = Results::default();
        results.add(key, "abc", [of(0), of(1)]);
        results
    }

    #[test]
    fn a_bar_is_met_or_missed() {
        let page = render(&results("put-100/1/load", &[("server_us", 31.0, 109.0), ("p99_ms", 30.0, 20.0)]));
        assert!(page.contains("server_us at most 0.50: met; p99_ms no worse: **missed**"), "{page}");
        let missed =
            "* put, 100 clients, 256 B, 1 member, dolmen-load: 99 of 100 within 30.0 ms, etcd 20.0 ms: 1.50 of it";
        assert!(page.contains(missed), "{page}");
        assert!(page.contains("Not measured yet: put-1 (1 member, dolmen-load)"), "{page}");
    }

    #[test]
    fn one_stall_in_one_round_is_a_stall() {
        let mut results = results("store/1/load", &[("slowest_ms", 20.0, 900.0)]);
        assert!(render(&results).contains("slowest_ms at most 50: met"));
        for slowest in [60.0, 10.0] {
            let round = [slowest, 900.0].map(|value| Figures::from([("slowest_ms".to_owned(), value)]));
            results.add("store/1/load", "abc", round);
        }
        assert!(render(&results).contains("slowest_ms at most 50: **missed**"));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [1234567.0, 123.4, 12.34, 1.234, 0.0123].map(number),
            ["1,234,567", "123", "12.3", "1.23", "0.0123"]
        );
    }
}
