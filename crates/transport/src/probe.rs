//! How far away a peer is: a request to `/raft/probing` every few seconds, and the answer to the peer's.
//!
//! The answer holds the time, so that a clock that is off shows too. Nothing depends on the outcome; it is for metrics
//! and the log.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dolmen_tls::date::{civil, days};
use dolmen_types::{error_chain, hex_id};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::{MissedTickBehavior, interval};

use crate::http1::Call;
use crate::net::IO_TIMEOUT;
use crate::peer::Peer;

/// Shorter than the time after which a peer closes a quiet connection.
const INTERVAL: Duration = Duration::from_secs(4);
/// Between two looks at a peer that answers, and at one that does not.
const REPORT_HEALTHY: Duration = Duration::from_secs(30);
const REPORT_UNHEALTHY: Duration = Duration::from_secs(5);
/// A clock further off than this is worth a line.
const MAX_CLOCK_DRIFT: Duration = Duration::from_secs(1);

/// Probes one peer for as long as the task lives.
pub(crate) async fn run(peer: Arc<Peer>) {
    let remote_peer_id = hex_id(peer.id);
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_report = Instant::now();
    let mut report_after = REPORT_UNHEALTHY;
    loop {
        ticks.tick().await;
        let outcome = probe(&peer).await;
        if last_report.elapsed() < report_after {
            continue;
        }
        last_report = Instant::now();
        let round_trip = Duration::from_nanos(peer.stats.smoothed_round_trip_nanos.load(Relaxed));
        match outcome {
            Ok(drift) => {
                report_after = REPORT_HEALTHY;
                if drift > MAX_CLOCK_DRIFT {
                    tracing::warn!(
                        remote_peer_id,
                        clock_drift = ?drift,
                        rtt = ?round_trip,
                        "prober found high clock drift"
                    );
                }
            }
            Err(error) => {
                report_after = REPORT_UNHEALTHY;
                tracing::warn!(remote_peer_id, rtt = ?round_trip, error, "prober detected unhealthy status");
            }
        }
        peer.stats.round_trip.observe(round_trip);
    }
}

/// One round trip. Returns how far the peer's clock is off.
async fn probe(peer: &Peer) -> Result<Duration, String> {
    let url = peer.picker.pick();
    let began = Instant::now();
    let call = Call {
        method: Method::GET,
        path: "/raft/probing",
        headers: HeaderMap::new(),
        body: Default::default(),
        limit: 4096,
        timeout: IO_TIMEOUT,
    };
    let response = peer.shared.http.call(&url, call).await.map_err(|error| error_chain(&error))?;
    let took = began.elapsed();
    if response.status != StatusCode::OK {
        return Err(format!("status {}", response.status));
    }
    let text = String::from_utf8_lossy(&response.body);
    let theirs = time_in(&text).ok_or_else(|| format!("no time in {text:?}"))?;
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let before = peer.stats.smoothed_round_trip_nanos.load(Relaxed);
    let smoothed = if before == 0 { nanos } else { before - before / 8 + nanos / 8 };
    peer.stats.smoothed_round_trip_nanos.store(smoothed, Relaxed);
    // The peer read its clock half a round trip ago.
    let ours = since_epoch().saturating_sub(took / 2);
    Ok(ours.abs_diff(theirs))
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The body of an answer: what Go's `probing` package prints.
pub(crate) fn answer_body() -> String {
    format!("{{\"OK\":true,\"Now\":\"{}\"}}\n", rfc3339(since_epoch()))
}

/// A time since 1970 as `2006-01-02T15:04:05.000000000Z`.
fn rfc3339(time: Duration) -> String {
    let seconds = time.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", time.subsec_nanos())
}

/// The `Now` of an answer, in any zone.
fn time_in(text: &str) -> Option<Duration> {
    let rest = text.split_once("\"Now\"")?.1.split_once('"')?.1;
    parse_rfc3339(rest.split_once('"')?.0)
}

fn parse_rfc3339(text: &str) -> Option<Duration> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let seconds = days(number(0..4)?, number(5..7)?, number(8..10)?) * 86_400
        + number(11..13)? * 3600
        + number(14..16)? * 60
        + number(17..19)?;
    let mut rest = text.get(19..)?;
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count().min(9);
        nanos = fraction[..digits].parse::<u32>().ok()? * 10u32.pow(9 - u32::try_from(digits).ok()?);
        rest = &fraction[digits..];
    }
    let offset = match rest.as_bytes().first()? {
        b'Z' => 0,
        sign @ (b'+' | b'-') => {
            let minutes = rest.get(1..3)?.parse::<i64>().ok()? * 60 + rest.get(4..6)?.parse::<i64>().ok()?;
            if *sign == b'+' { minutes * 60 } else { -minutes * 60 }
        }
        _ => return None,
    };
    Some(Duration::new(u64::try_from(seconds - offset).ok()?, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_and_parse() {
        let time = Duration::new(1_709_210_096, 5_000_000);
        assert_eq!(rfc3339(time), "2024-02-29T12:34:56.005000000Z");
        for text in ["2024-02-29T12:34:56.005Z", "2024-02-29T13:34:56.005000000+01:00", "2024-02-29T11:04:56.005-01:30"]
        {
            assert_eq!(parse_rfc3339(text), Some(time), "{text}");
        }
        for seconds in (0..4_000_000_000).step_by(8_640_123) {
            let time = Duration::from_secs(seconds);
            assert_eq!(parse_rfc3339(&rfc3339(time)), Some(time));
        }
        for bad in ["", "2024", "2024-02-29T12:34:56", "2024-02-29T12:34:56x", "1024-02-29T12:34:56Z", "é024-02-29T"] {
            assert_eq!(parse_rfc3339(bad), None, "{bad}");
        }
        assert!(time_in(&answer_body()).is_some());
    }
}
