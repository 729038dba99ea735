//! `etcd-defrag`: defragments a cluster's members one after the other, the leader last, where a rule says so.
//!
//! What it does, in this order; its log on stderr has a line for each step:
//!
//! 1. the flags and the rule are checked ([`flags`], [`rule`]);
//! 2. every voting member must be healthy ([`members`]);
//! 3. the members' status is asked, which tells the leader and the revision;
//! 4. the history is compacted up to that revision, since only what is compacted can be given back;
//! 5. endpoint by endpoint: status, rule, leadership handed over if wanted, defragmentation, status;
//! 6. with `--auto-disalarm`, NOSPACE alarms are taken back when all members have room again.
//!
//! It says what etcd-defrag 0.42 says and ends with the same exit codes. It does better in three places: the quota is the
//! server's own where the server tells it; leadership goes to the voter that lags least, never to a learner; and below a
//! rule that does not parse a caret shows where.

pub mod flags;
mod lexer;
mod members;
pub mod rule;
mod value;

use std::convert::Infallible;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dolmen_cli::{Call, Failure, Tool, complain, golang, print, zap};

use crate::connect;
use crate::output::Printer;
use flags::Settings;
use members::{Members, Status};
use rule::Sizes;

pub use main as defrag_main;

/// The release of etcd-defrag whose words these are.
pub const VERSION: &str = "0.42.0";

/// After so long without an answer it is said what is waited for.
const NOTICE: Duration = Duration::from_secs(3);

/// `etcd-defrag`: `args` are the words after the program's name.
pub fn main(args: Vec<String>) -> ExitCode {
    Tool::new(flags::of_process(run)).main(args)
}

/// A line of the log: date and time, which are UTC, and a text.
fn log(text: impl AsRef<str>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    complain(log_line(now.as_secs(), text.as_ref()));
}

/// `seconds`: since 1970.
fn log_line(seconds: u64, text: &str) -> String {
    let time = zap::time(seconds.saturating_mul(1_000_000), false);
    let time = time.trim_end_matches('Z').replace('-', "/").replace('T', " ");
    format!("{time} {}\n", text.strip_suffix('\n').unwrap_or(text))
}

/// Ends the tool: what there was to say is in the log.
fn failed() -> Failure {
    Failure::silent(1)
}

fn run(call: &Call) -> Result<(), Failure> {
    let settings = Settings::read(call);
    if settings.version {
        print(format!(
            "etcd-defrag Version: {VERSION}\nGit SHA: none (Dolmen {0})\nGo Version: none (Dolmen {0})\nGo OS/Arch: {1}/{2}\n",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            go_arch(std::env::consts::ARCH),
        ));
        return Ok(());
    }
    if settings.dry_run {
        log("Using dry run mode, will not perform defragmentation");
    }
    log("Validating configuration.");
    if let Err(why) = settings.validated(call) {
        log(format!("Validating configuration failed: {why}"));
        return Err(failed());
    }
    check_rule(&settings.rule)?;
    let printer = Printer::new("simple", false)?;
    connect::block_on(async {
        let members = Members::new(&settings, printer);
        Defragmentation { settings: &settings, members }.run().await
    })
}

/// Go's name of a machine.
fn go_arch(arch: &str) -> &str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Tries the rule before any member is asked anything.
fn check_rule(rule: &str) -> Result<(), Failure> {
    if rule.is_empty() {
        log("No defragmentation rule provided");
        return Ok(());
    }
    log(format!("Validating the defragmentation rule: {rule} ... "));
    match rule::holds(rule, &Sizes::TRIAL) {
        Ok(_) => {
            log("valid");
            Ok(())
        }
        Err(e) => {
            log("invalid");
            let quoted = golang::quote(rule);
            log(format!("Validating configuration failed: invalid rule {quoted}, error: {}", e.text));
            complain(format!("{}\n", rule::pointed_out(rule, &e)));
            Err(failed())
        }
    }
}

/// What came of one endpoint.
enum Outcome {
    /// Defragmented, or rightly left alone; `moved`: something was done, so that a pause is due.
    Done { moved: bool },
    /// Counts as a failure.
    Failed,
    /// Skipped because leadership could not be handed over; a reason to stop, and no failure.
    LeaderStays,
}

struct Defragmentation<'a> {
    settings: &'a Settings,
    members: Members<'a>,
}

impl Defragmentation<'_> {
    async fn run(&self) -> Result<(), Failure> {
        log("Performing health check.");
        self.check_health().await?;
        log("Getting members status");
        let statuses = match self.members.statuses().await {
            Ok(statuses) => statuses,
            Err(e) => {
                log(format!("Failed to get members status: {e}"));
                return Err(failed());
            }
        };
        tell(&statuses);
        let endpoints = self.leader_last(&statuses).await?;
        self.compact(&statuses, &endpoints).await?;
        log(format!("{} endpoint(s) need to be defragmented: [{}]", endpoints.len(), endpoints.join(" ")));
        let failures = self.defragment_all(&endpoints).await;
        if failures != 0 {
            log(format!("{failures} (total {}) endpoint(s) failed to be defragmented.", endpoints.len()));
            return Err(failed());
        }
        log("The defragmentation is successful.");
        if self.settings.auto_disalarm && !self.settings.dry_run {
            self.disalarm().await;
        }
        Ok(())
    }

    async fn check_health(&self) -> Result<(), Failure> {
        if self.settings.skip_cluster_health {
            let given = self.settings.endpoints.join(" ");
            log(format!("Health check will be performed only on the explicitly provided endpoints: [{given}]"));
        } else {
            log("Health check will be performed on all cluster member endpoints");
        }
        let health = tokio::select! {
            health = self.members.health() => health,
            never = self.say_that_nobody_answers() => match never {},
        };
        let all = match health {
            Ok(all) => all,
            Err(e) => {
                log(format!("Failed to get members' health info: {e}"));
                return Err(failed().hint(format!("does a member listen at {}?", self.settings.endpoints.join(","))));
            }
        };
        for one in &all {
            log(one.line());
        }
        if all.iter().all(|one| one.health) { Ok(()) } else { Err(failed()) }
    }

    /// Whoever sits there should know what is waited for, and for how long.
    async fn say_that_nobody_answers(&self) -> Infallible {
        tokio::time::sleep(NOTICE).await;
        if std::io::stderr().is_terminal() {
            let (endpoints, limit) = (self.settings.endpoints.join(","), self.settings.command_timeout);
            complain(format!(
                "hint: no answer from {endpoints} so far; it is waited for until {} are over (--command-timeout)\n",
                golang::format_duration(limit)
            ));
        }
        std::future::pending().await
    }

    /// The endpoints in the order in which they are defragmented.
    async fn leader_last(&self, statuses: &[Status]) -> Result<Vec<String>, Failure> {
        let endpoints = match self.members.endpoints().await {
            Ok(endpoints) => endpoints,
            Err(e) => {
                log(format!("Failed to get endpoints: {e}"));
                return Err(failed());
            }
        };
        if endpoints.len() <= 1 {
            return Ok(endpoints);
        }
        let (leaders, followers): (Vec<_>, Vec<_>) = statuses.iter().partition(|status| status.leads());
        Ok(followers.into_iter().chain(leaders).map(|status| status.endpoint.clone()).collect())
    }

    /// A compaction that fails is told and does not matter: often the history is compacted already.
    async fn compact(&self, statuses: &[Status], endpoints: &[String]) -> Result<(), Failure> {
        if !self.settings.compaction || self.settings.dry_run {
            log("Skip compaction.");
            return Ok(());
        }
        let (Some(status), Some(endpoint)) = (statuses.first(), endpoints.first()) else {
            log("Failed to get endpoints: no endpoint is left");
            return Err(failed());
        };
        let revision = status.revision();
        log(format!("Running compaction until revision: {revision} ... "));
        match self.members.compact(revision, endpoint).await {
            Ok(()) => log("successful"),
            Err(e) => log(format!("failed, {e}")),
        }
        Ok(())
    }

    /// Returns how many endpoints failed.
    async fn defragment_all(&self, endpoints: &[String]) -> usize {
        let mut failures = 0;
        for (n, endpoint) in endpoints.iter().enumerate() {
            let outcome = self.defragment(endpoint).await;
            match outcome {
                Outcome::Done { moved } => {
                    if moved && self.settings.wait > 0 && n + 1 < endpoints.len() {
                        let wait = golang::format_duration(self.settings.wait);
                        log(format!("Waiting for {wait} for next operation"));
                        self.pause().await;
                    }
                    continue;
                }
                Outcome::Failed => failures += 1,
                Outcome::LeaderStays => {}
            }
            if !self.settings.continue_on_error {
                break;
            }
        }
        failures
    }

    async fn pause(&self) {
        tokio::time::sleep(Duration::from_nanos(self.settings.wait.max(0).unsigned_abs())).await;
    }

    /// A member's status, told in the log behind a line with `title`.
    async fn told_status(&self, title: &str, endpoint: &str) -> Option<Status> {
        log(title);
        match self.members.status(endpoint).await {
            Ok(status) => {
                log(status.line());
                Some(status)
            }
            Err(e) => {
                log(format!("Failed to get member ({}) status, error: {e}", golang::quote(endpoint)));
                None
            }
        }
    }

    async fn defragment(&self, endpoint: &str) -> Outcome {
        let Some(status) = self.told_status("[Before defragmentation] ", endpoint).await else {
            return Outcome::Failed;
        };
        let sizes = Sizes {
            quota: status.quota(self.settings),
            db_size: status.response.db_size,
            db_size_in_use: status.response.db_size_in_use,
        };
        match rule::holds(&self.settings.rule, &sizes) {
            Ok(true) => {}
            Ok(false) => {
                log(format!("Evaluation result is false, so skipping endpoint: {endpoint}"));
                return Outcome::Done { moved: false };
            }
            Err(e) => {
                log(format!("Evaluation failed, endpoint: {endpoint}, error:{}", e.text));
                return Outcome::Failed;
            }
        }
        let quoted = golang::quote(endpoint);
        if self.settings.dry_run {
            log(format!("[Dry run] skip defragmenting endpoint {quoted}"));
            return Outcome::Done { moved: false };
        }
        if self.settings.move_leader && status.leads() && !self.hand_over(&status).await {
            return Outcome::LeaderStays;
        }
        log(format!("Defragmenting endpoint {quoted}"));
        let start = Instant::now();
        let outcome = self.members.defragment(endpoint).await;
        let took = golang::format_duration(i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX));
        if let Err(e) = outcome {
            log(format!("Failed to defragment etcd member {quoted}. took {took}. ({e})"));
            return Outcome::Failed;
        }
        log(format!("Finished defragmenting etcd endpoint {quoted}. took {took}"));
        match self.told_status("[Post defragmentation] ", endpoint).await {
            Some(_) => Outcome::Done { moved: true },
            None => Outcome::Failed,
        }
    }

    /// Hands leadership away from this member; whether that worked, or was not possible.
    async fn hand_over(&self, status: &Status) -> bool {
        let leader = status.response.leader;
        log("Transferring the leadership from the current leader");
        if let Err(e) = self.members.move_leader(leader, &status.endpoint).await {
            log(format!("Failed to transfer the leadership from {leader:x} to a follower, error: {e}"));
            return false;
        }
        if self.settings.wait > 0 {
            let wait = golang::format_duration(self.settings.wait);
            log(format!("Transferred the leadership successfully! Waiting for {wait} for next operation"));
            self.pause().await;
        }
        true
    }

    /// Whatever goes wrong here is told and changes nothing about the exit code.
    async fn disalarm(&self) {
        log("Start auto-disalarm");
        match self.members.statuses().await {
            Ok(statuses) => {
                tell(&statuses);
                if let Err(e) = self.try_disalarm(&statuses).await {
                    log(format!("Auto-disalarm failed: {e}"));
                }
            }
            Err(e) => log(format!("Failed to get updated members status for auto-disalarm: {e}")),
        }
    }

    async fn try_disalarm(&self, statuses: &[Status]) -> Result<(), String> {
        let alarms = self.members.no_space_alarms().await.map_err(|e| format!("failed to get NOSPACE alarms: {e}"))?;
        if alarms.is_empty() {
            log("No NOSPACE alarms found, skipping auto-disalarm");
            return Ok(());
        }
        log("Found NOSPACE alarms");
        let ratio = self.settings.disalarm_threshold;
        let above = |status: &&Status| status.response.db_size as f64 > status.quota(self.settings) as f64 * ratio;
        let full: Vec<&str> = statuses.iter().filter(above).map(|status| &status.endpoint[..]).collect();
        if !full.is_empty() {
            let full = full.join(" ");
            log(format!("Members [{full}] DB size is still above threshold ({ratio:.2}), skipping auto-disalarm"));
            return Ok(());
        }
        log("Performing auto-disalarm operation...");
        self.members.disalarm(&alarms).await.map_err(|e| format!("failed to disalarm NOSPACE alarms: {e}"))?;
        log("Auto-disalarm operation completed successfully");
        Ok(())
    }
}

fn tell(statuses: &[Status]) {
    for status in statuses {
        log(status.line());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_log() {
        assert_eq!(log_line(1_796_044_439, "valid"), "2026/11/30 13:13:59 valid\n");
        assert_eq!(log_line(0, "[Before defragmentation] "), "1970/01/01 00:00:00 [Before defragmentation] \n");
    }
}
