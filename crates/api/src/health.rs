//! Is this member well? Asked over gRPC (`grpc.health.v1`) and over HTTP (`/health`, `/livez`, `/readyz`).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use bytes::Bytes;
use dolmen_proto::etcdserverpb::{AlarmType, RangeRequest};
use dolmen_proto::grpc::health::v1::health_check_response::ServingStatus;
use dolmen_proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tokio::time::Instant;

use crate::answer::{Answer, Answers};
use crate::call::Call;
use crate::frame::decode;
use crate::kv;
use crate::server::{Deadline, Local};
use crate::stats::Counter;
use crate::status::{Code, Status};

fn serving_status(service: &str) -> ServingStatus {
    // The empty name stands for the server as a whole, the only one that has a status.
    if service.is_empty() { ServingStatus::Serving } else { ServingStatus::ServiceUnknown }
}

/// # Errors
/// A service that has no status.
pub async fn check(_: &Call, message: Bytes) -> Result<Answer, Status> {
    let request: HealthCheckRequest = decode(message)?;
    match serving_status(&request.service) {
        ServingStatus::ServiceUnknown => Err(Status::new(Code::NotFound, "unknown service")),
        status => Ok(Answer::new(&HealthCheckResponse { status: status as i32 })),
    }
}

/// Tells the status once and then its changes, of which there are none.
///
/// # Errors
/// A request that cannot be decoded.
pub async fn watch(_: &Call, message: Bytes, answers: &Answers) -> Result<(), Status> {
    let request: HealthCheckRequest = decode(message)?;
    let status = serving_status(&request.service) as i32;
    answers.send(Answer::new(&HealthCheckResponse { status })).await?;
    std::future::pending().await
}

/// The single questions that `/livez` and `/readyz` put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

impl Check {
    pub fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }
}

/// The two collections of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Livez,
    Readyz,
}

impl Probe {
    pub const ALL: [Probe; 2] = [Probe::Livez, Probe::Readyz];

    pub fn name(self) -> &'static str {
        match self {
            Probe::Livez => "livez",
            Probe::Readyz => "readyz",
        }
    }

    pub fn checks(self) -> &'static [Check] {
        match self {
            Probe::Livez => &[Check::SerializableRead],
            Probe::Readyz => {
                &[Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner]
            }
        }
    }
}

/// Counters of probes, for all runtimes: they are asked about once a second.
#[derive(Default)]
pub struct HealthStats {
    pub success: Counter,
    pub failures: Counter,
    /// By probe and position in [`Probe::checks`]: failed and succeeded, and whether the last one succeeded (0 or 1).
    pub checks: [[CheckStats; 4]; 2],
}

#[derive(Default)]
pub struct CheckStats {
    pub failures: Counter,
    pub successes: Counter,
    pub last: std::sync::atomic::AtomicBool,
}

/// The outcome of a probe: whether all is well, and a line for each check.
pub struct Report {
    pub well: bool,
    pub lines: String,
}

/// Runs a probe's checks, or one of them.
pub async fn probe(local: &Local, probe: Probe, only: Option<Check>, excluded: &BTreeSet<String>) -> Report {
    let mut report = Report { well: true, lines: String::new() };
    for (index, check) in probe.checks().iter().enumerate() {
        let left_out = match only {
            Some(only) => only != *check,
            None => excluded.contains(check.name()),
        };
        if left_out {
            continue;
        }
        let result = run(local, *check).await;
        let stats = &local.server.health.checks[probe as usize][index];
        stats.last.store(result.is_ok(), std::sync::atomic::Ordering::Relaxed);
        match result {
            Ok(()) => {
                stats.successes.add(1);
                let _ = writeln!(report.lines, "[+]{} ok", check.name());
            }
            Err(error) => {
                stats.failures.add(1);
                report.well = false;
                let _ = writeln!(report.lines, "[-]{} failed: {error}", check.name());
            }
        }
    }
    report
}

async fn run(local: &Local, check: Check) -> Result<(), String> {
    match check {
        Check::DataCorruption => {
            let corrupt = AlarmType::Corrupt as i32;
            if local.node().alarms().iter().any(|alarm| alarm.alarm == corrupt) {
                return Err("alarm activated: CORRUPT".into());
            }
            Ok(())
        }
        Check::SerializableRead => read(local, true, None).await,
        Check::LinearizableRead => read(local, false, None).await,
        Check::NonLearner if local.node().status().is_learner => Err("not supported for learner".into()),
        Check::NonLearner => Ok(()),
    }
}

async fn read(local: &Local, serializable: bool, deadline: Deadline) -> Result<(), String> {
    // The empty key, which no client may ask for and no store holds.
    let request = RangeRequest { limit: 1, keys_only: true, serializable, ..Default::default() };
    kv::read_range(local, &request, deadline).await.map(drop).map_err(|status| status.message.into_owned())
}

/// `/health`: `None` when well, or the reason why not.
pub async fn health(local: &Local, excluded: &BTreeSet<String>, serializable: bool) -> Option<String> {
    let reason = reason(local, excluded, serializable).await;
    let stats = &local.server.health;
    if reason.is_none() {
        stats.success.add(1)
    } else {
        stats.failures.add(1)
    }
    reason
}

async fn reason(local: &Local, excluded: &BTreeSet<String>, serializable: bool) -> Option<String> {
    for alarm in local.node().alarms().iter() {
        let kind = AlarmType::try_from(alarm.alarm);
        if kind.is_ok_and(|kind| excluded.contains(kind.as_str_name())) {
            continue;
        }
        return Some(match kind {
            Ok(AlarmType::Nospace) => "ALARM NOSPACE".into(),
            Ok(AlarmType::Corrupt) => "ALARM CORRUPT".into(),
            _ => "ALARM UNKNOWN".into(),
        });
    }
    if let Some(damage) = local.server.damage.reason(&local.node().reader()) {
        return Some(damage);
    }
    if !serializable && local.node().status().leader == 0 {
        return Some("RAFT NO LEADER".into());
    }
    let deadline = Some(Instant::now() + local.config().request_timeout);
    read(local, serializable, deadline).await.err().map(|error| format!("RANGE ERROR:{error}"))
}
