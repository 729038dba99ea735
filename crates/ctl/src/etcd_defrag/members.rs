//! What etcd-defrag asks the members, and which endpoints it asks.
//!
//! A client is made anew for each call, as each may go elsewhere. Errors are the sentences that the log shows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use dolmen_cli::golang;
use dolmen_client::{Client, discovery};
use dolmen_proto::etcdserverpb as pb;
use tokio::task::JoinSet;

use super::flags::Settings;
use super::log;
use crate::commands::alarm::deactivate;
use crate::commands::endpoint::{NO_ALARM_LIST, Trial, active_alarms, list_alarms, trial};
use crate::commands::move_leader::most_caught_up;
use crate::connect::{Auth, Options, Secure};
use crate::output::Printer;

/// A member's account of itself, and where it was asked.
#[derive(Clone, Debug)]
pub(super) struct Status {
    pub endpoint: String,
    pub response: pb::StatusResponse,
}

impl Status {
    pub fn member_id(&self) -> u64 {
        self.response.header.map_or(0, |header| header.member_id)
    }

    pub fn revision(&self) -> i64 {
        self.response.header.map_or(0, |header| header.revision)
    }

    pub fn leads(&self) -> bool {
        self.member_id() == self.response.leader
    }

    /// `endpoint: E, dbSize: 20480, ...`: the line of the log.
    pub fn line(&self) -> String {
        let r = &self.response;
        format!(
            "endpoint: {}, dbSize: {}, dbSizeInUse: {}, memberId: {:x}, leader: {:x}, revision: {}, term: {}, index: {}",
            self.endpoint,
            r.db_size,
            r.db_size_in_use,
            self.member_id(),
            r.leader,
            self.revision(),
            r.raft_term,
            r.raft_index
        )
    }

    /// The quota that counts for this member: the one given, or else the one the server tells, or else the default.
    pub fn quota(&self, settings: &Settings) -> i64 {
        let told = self.response.db_size_quota;
        if settings.quota_given || told <= 0 { settings.quota } else { told }
    }
}

/// How an endpoint fared in the health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    pub endpoint: String,
    pub health: bool,
    took: String,
    error: String,
}

impl Health {
    /// NOSPACE is no illness here: defragmentation is what helps against it. One such alarm among others is enough.
    fn of(endpoint: String, took: String, trial: Trial) -> Self {
        let (health, error) = match trial {
            Trial::Failed(e) => (false, e.to_string()),
            Trial::NoAlarmList => (false, NO_ALARM_LIST.to_owned()),
            Trial::Read(alarms) if alarms.is_empty() => (true, String::new()),
            Trial::Read(alarms) => (alarms.iter().any(is_no_space), active_alarms(&alarms)),
        };
        Self { endpoint, health, took, error }
    }

    /// The line of the log.
    pub fn line(&self) -> String {
        let Self { endpoint, health, took, error } = self;
        format!("endpoint: {endpoint}, health: {health}, took: {took}, error: {error}")
    }
}

fn is_no_space(alarm: &pb::AlarmMember) -> bool {
    alarm.alarm == pb::AlarmType::Nospace as i32
}

fn nanoseconds(time: i64) -> Duration {
    Duration::from_nanos(time.max(0).unsigned_abs())
}

/// Asks the members on behalf of the settings.
pub(super) struct Members<'a> {
    settings: &'a Settings,
    printer: Printer,
}

impl<'a> Members<'a> {
    pub fn new(settings: &'a Settings, printer: Printer) -> Self {
        Self { settings, printer }
    }

    fn options(&self, endpoints: Vec<String>) -> Options {
        let s = self.settings;
        Options {
            endpoints,
            dial_timeout: nanoseconds(s.dial_timeout),
            command_timeout: nanoseconds(s.command_timeout),
            command_timeout_given: true,
            keepalive_time: nanoseconds(s.keepalive_time),
            keepalive_timeout: nanoseconds(s.keepalive_timeout),
            max_request_bytes: 0,
            max_recv_bytes: 0,
            secure: Secure {
                cert: s.cert.clone(),
                key: s.key.clone(),
                cacert: s.cacert.clone(),
                server_name: String::new(),
                insecure_transport: s.insecure_transport,
                insecure_skip_verify: s.insecure_skip_verify,
            },
            // The name is taken as it stands: no password is looked for behind a colon, and none is asked for.
            auth: Some(Auth::User(s.user.clone(), s.password.clone())),
            printer: self.printer,
        }
    }

    async fn client(&self, endpoints: Vec<String>) -> Result<Client, String> {
        let client = self.options(endpoints).connect().await;
        let client = client.map_err(|failure| failure.text().unwrap_or_default().to_owned())?;
        Ok(client.with_timeout(Some(nanoseconds(self.settings.command_timeout))))
    }

    async fn client_at(&self, endpoint: &str) -> Result<Client, String> {
        self.client(vec![endpoint.to_owned()]).await
    }

    /// All members.
    pub async fn list(&self) -> Result<Vec<pb::Member>, String> {
        let client = self.client(self.given().await?).await?;
        let request = pb::MemberListRequest { linearizable: true };
        Ok(client.member_list(request).await.map_err(|e| e.to_string())?.members)
    }

    /// The endpoints of `--discovery-srv`, or else of `--endpoints`.
    async fn given(&self) -> Result<Vec<String>, String> {
        let s = self.settings;
        let mut found: Vec<String> = Vec::new();
        if !s.discovery_srv.is_empty() {
            let records = discovery::client_records(&s.discovery_srv, &s.discovery_srv_name).await;
            found = records.map_err(|e| e.to_string())?.iter().map(|record| record.endpoint()).collect();
            if !s.insecure_discovery {
                found.retain(|endpoint| {
                    let insecure = endpoint.starts_with("http://");
                    if insecure {
                        log(format!("ignoring discovered insecure endpoint {}", golang::quote(endpoint)));
                    }
                    !insecure
                });
            }
        }
        if found.is_empty() {
            found.clone_from(&s.endpoints);
        }
        if found.is_empty() { Err("no endpoints provided".to_owned()) } else { Ok(found) }
    }

    /// The client URLs of all voting members, each once, in alphabetical order. A learner answers hardly anything.
    async fn of_cluster(&self) -> Result<Vec<String>, String> {
        let mut endpoints = Vec::new();
        for member in self.list().await?.into_iter().filter(|member| !member.is_learner) {
            for url in member.client_ur_ls {
                if !self.settings.exclude_localhost || !is_local(&url)? {
                    endpoints.push(url);
                }
            }
        }
        endpoints.sort();
        endpoints.dedup();
        Ok(endpoints)
    }

    /// The endpoints to defragment.
    pub async fn endpoints(&self) -> Result<Vec<String>, String> {
        if self.settings.cluster { self.of_cluster().await } else { self.given().await }
    }

    /// Tries all members, or the endpoints alone; in the order in which they answer.
    pub async fn health(&self) -> Result<Vec<Health>, String> {
        let endpoints =
            if self.settings.skip_cluster_health { self.endpoints().await? } else { self.of_cluster().await? };
        let mut trials = JoinSet::new();
        let mut configs = Vec::new();
        for endpoint in endpoints {
            let config = self.options(vec![endpoint.clone()]).config();
            configs.push((config.map_err(|failure| failure.text().unwrap_or_default().to_owned())?, endpoint));
        }
        let limit = Some(nanoseconds(self.settings.command_timeout));
        for (config, endpoint) in configs {
            trials.spawn(async move {
                let (outcome, took) = trial(config, limit).await;
                Health::of(endpoint, took, outcome)
            });
        }
        let mut list = Vec::new();
        while let Some(one) = trials.join_next().await {
            list.push(one.map_err(|e| e.to_string())?);
        }
        Ok(list)
    }

    /// One member's status.
    pub async fn status(&self, endpoint: &str) -> Result<Status, String> {
        let client = self.client_at(endpoint).await.map_err(|e| format!("failed to createClient: {e}"))?;
        let response = client.status(pb::StatusRequest {}).await.map_err(|e| e.to_string())?;
        Ok(Status { endpoint: endpoint.to_owned(), response })
    }

    /// The status of each endpoint to defragment; one that does not answer spoils all.
    pub async fn statuses(&self) -> Result<Vec<Status>, String> {
        let mut list = Vec::new();
        for endpoint in self.endpoints().await? {
            let status = self.status(&endpoint).await;
            list.push(status.map_err(|e| format!("failed to get member({}) status: {e}", golang::quote(&endpoint)))?);
        }
        Ok(list)
    }

    pub async fn compact(&self, revision: i64, endpoint: &str) -> Result<(), String> {
        let client = self.client_at(endpoint).await?;
        let request = pb::CompactionRequest { revision, physical: true };
        client.compact(request).await.map(drop).map_err(|e| e.to_string())
    }

    pub async fn defragment(&self, endpoint: &str) -> Result<(), String> {
        let client = self.client_at(endpoint).await?;
        client.defragment(pb::DefragmentRequest {}).await.map(drop).map_err(|e| e.to_string())
    }

    /// Hands leadership to the voter that lags least; `leader` is who leads, at `endpoint`.
    pub async fn move_leader(&self, leader: u64, endpoint: &str) -> Result<(), String> {
        let members = self.list().await.map_err(|e| format!("failed to get member list: {e}"))?;
        if members.len() == 1 {
            log("Skip moving leader as there is only one member in the cluster");
            return Ok(());
        }
        let limit = nanoseconds(self.settings.command_timeout);
        let chosen = most_caught_up(&self.options(Vec::new()), &members, leader, limit).await;
        let Some(target_id) = chosen else {
            return Err(format!("coundn't find a follower in the {} member cluster", members.len()));
        };
        log(format!("Transferring the leadership from {leader:x} to {target_id:x}"));
        let client = self
            .client_at(endpoint)
            .await
            .map_err(|e| format!("failed to create client for leader endpoint {endpoint}: {e}"))?;
        client.move_leader(pb::MoveLeaderRequest { target_id }).await.map(drop).map_err(|e| e.to_string())
    }

    /// The NOSPACE alarms that are raised.
    pub async fn no_space_alarms(&self) -> Result<Vec<pb::AlarmMember>, String> {
        let client = self.client(self.endpoints().await?).await?;
        let mut alarms = client.alarm(list_alarms()).await.map_err(|e| e.to_string())?.alarms;
        alarms.retain(is_no_space);
        Ok(alarms)
    }

    /// Takes these alarms back; all are tried.
    pub async fn disalarm(&self, alarms: &[pb::AlarmMember]) -> Result<(), String> {
        let client = self.client(self.endpoints().await?).await?;
        let mut failed = Vec::new();
        for alarm in alarms {
            if client.alarm(deactivate(alarm)).await.is_err() {
                failed.push(alarm.member_id.to_string());
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        Err(format!("failed to disalarm NOSPACE alarms for members [{}]", failed.join(" ")))
    }
}

/// Whether only this machine reaches the endpoint: a unix socket, `localhost`, a loopback address.
fn is_local(endpoint: &str) -> Result<bool, String> {
    if endpoint.starts_with("unix:") || endpoint.starts_with("unixs:") {
        return Ok(true);
    }
    let host_port = match endpoint.split_once("://") {
        Some(("http" | "https", rest)) => rest.split(['/', '?', '#']).next().unwrap_or_default(),
        Some(_) => return Err("url scheme must be http or https".to_owned()),
        None => endpoint,
    };
    let missing = || format!("address {host_port}: missing port in address");
    let host = match host_port.strip_prefix('[') {
        Some(rest) => rest.split_once("]:").ok_or_else(missing)?.0,
        None => host_port.rsplit_once(':').ok_or_else(missing)?.0,
    };
    if host.contains(':') && !host_port.starts_with('[') {
        return Err(format!("address {host_port}: too many colons in address"));
    }
    Ok(host.eq_ignore_ascii_case("localhost")
        || match host.parse::<IpAddr>() {
            Ok(IpAddr::V4(ip)) => ip.is_loopback(),
            Ok(IpAddr::V6(ip)) => {
                ip == Ipv6Addr::LOCALHOST || ip.to_ipv4_mapped().is_some_and(|ip: Ipv4Addr| ip.is_loopback())
            }
            Err(_) => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_local() {
        let table = [
            ("http://127.0.0.1:2379", Ok(true)),
            ("https://127.8.0.1:2379/", Ok(true)),
            ("LocalHost:2379", Ok(true)),
            ("http://[::1]:2379", Ok(true)),
            ("http://[::ffff:127.0.0.1]:2379", Ok(true)),
            ("unix:///run/etcd.sock", Ok(true)),
            ("unixs:localhost:1", Ok(true)),
            ("http://10.0.0.1:2379", Ok(false)),
            ("http://localhost.example.com:2379", Ok(false)),
            ("ftp://127.0.0.1:1", Err("url scheme must be http or https")),
            ("http://127.0.0.1", Err("address 127.0.0.1: missing port in address")),
            ("::1:2379", Err("address ::1:2379: too many colons in address")),
        ];
        for (endpoint, expected) in table {
            assert_eq!(
                is_local(endpoint).as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|e| *e),
                "{endpoint}"
            );
        }
    }

    #[test]
    fn no_space_is_no_illness() {
        let alarm = |alarm| pb::AlarmMember { member_id: 1, alarm };
        let table = [
            (vec![], "health: true, took: 1ms, error: "),
            (vec![alarm(1)], "health: true, took: 1ms, error: Active Alarm(s): NOSPACE "),
            (vec![alarm(2)], "health: false, took: 1ms, error: Active Alarm(s): CORRUPT "),
            (vec![alarm(1), alarm(2)], "health: true, took: 1ms, error: Active Alarm(s): NOSPACE CORRUPT "),
        ];
        for (alarms, expected) in table {
            let found = Health::of("e".to_owned(), "1ms".to_owned(), Trial::Read(alarms));
            assert_eq!(found.line(), format!("endpoint: e, {expected}"));
        }
    }
}
