//! KV: ranges are read here, everything that changes something goes through the log.

use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;
use dolmen_auth::NoKeys;
use dolmen_machine::txn::{self, ReadError, range_options};
use dolmen_mvcc::{RangeError, RangeOptions, RangeRead, RangeResult, ReadTxn, key_of};
use dolmen_proto::etcdserverpb::alarm_request::AlarmAction;
use dolmen_proto::etcdserverpb::request_op::Request as Op;
use dolmen_proto::etcdserverpb::{AlarmRequest, AlarmType, RangeRequest, ResponseHeader, TxnRequest};
use dolmen_types::KeyRange;
use prost::Message;
use tokio::time::Instant;

use crate::answer::{Answer, Answers};
use crate::call::Call;
use crate::encode::{Command, RangeBody};
use crate::frame::decode;
use crate::maintenance::DEFAULT_QUOTA_BYTES;
use crate::propose::{Logged, agree};
use crate::server::{Deadline, Local};
use crate::stats::{RequestType, Timed};
use crate::status::{self, Status};
use crate::validate;

/// How long a range may be read on the thread of its runtime, where others wait for their turn.
const TURN: Duration = Duration::from_millis(1);
/// Keys that a transaction may look at there.
const SMALL_TXN: i64 = 256;
/// Keys in the first message of a stream.
const FIRST_STREAM_CHUNK: i64 = 10;

/// # Errors
/// An invalid request, a revision out of bounds, or no confirmation in time.
pub async fn range(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let local = &*call.local;
    let request: RangeRequest = decode(message)?;
    if !request.serializable && local.node().status().is_learner {
        return Err(status::NOT_SUPPORTED_FOR_LEARNER);
    }
    validate::range(&request)?;
    let timed = Timed::start(&local.stats, RequestType::Range);
    let result = permitted_range(call, &request).await;
    timed.end(&result);
    result
}

async fn permitted_range(call: &Call, request: &RangeRequest) -> Result<Answer, Status> {
    if !request.serializable {
        call.local.read_index(call.deadline).await?;
    }
    let who = call.may_read(&request.key, &request.range_end).await?;
    let header = call.local.header_without_revision();
    let answer = observed(&call.local, request, move |result| {
        let header = Some(ResponseHeader { revision: result.revision, ..header });
        RangeBody { header, kvs: &result.kvs, more: result.more, count: result.count }.answer()
    });
    call.still(who.as_ref(), answer.await?)
}

/// Reads after confirming, if the request asks for that, for the server itself: nobody's permission is asked.
///
/// # Errors
/// A revision out of bounds, or no confirmation in time.
pub async fn read_range(local: &Local, request: &RangeRequest, deadline: Deadline) -> Result<RangeResult, Status> {
    if !request.serializable {
        local.read_index(deadline).await?;
    }
    observed(local, request, |result| result).await
}

/// Reads and times a range. `then` makes of the result what is wanted, on the thread that has read it.
async fn observed<T: Send + 'static>(
    local: &Local,
    request: &RangeRequest,
    then: impl FnOnce(RangeResult) -> T + Send + 'static,
) -> Result<T, Status> {
    let since = Instant::now();
    let keys = KeyRange::parse(request.key.clone(), request.range_end.clone());
    let result = read(local, &keys, &range_options(request), then).await;
    local.stats.ranges[usize::from(result.is_ok())].observe(since.elapsed());
    result
}

/// Reads a key here; of a range, what takes no longer than [`TURN`], and the rest on a helper.
async fn read<T: Send + 'static>(
    local: &Local,
    keys: &KeyRange,
    options: &RangeOptions,
    then: impl FnOnce(RangeResult) -> T + Send + 'static,
) -> Result<T, Status> {
    let reader = local.node().reader();
    if let KeyRange::Single(_) = keys {
        return reader.range(keys, options).map(then).map_err(|error| local.read_failed(error));
    }
    in_turns(local, reader.begin(keys, options), then).await
}

async fn in_turns<T: Send + 'static>(
    local: &Local,
    begun: Result<RangeRead, RangeError>,
    then: impl FnOnce(RangeResult) -> T + Send + 'static,
) -> Result<T, Status> {
    let failed = |error| local.read_failed(error);
    let mut read = begun.map_err(failed)?;
    let since = Instant::now();
    loop {
        if let Some(result) = read.turn().map_err(failed)? {
            return Ok(then(result));
        }
        if since.elapsed() >= TURN {
            break;
        }
    }
    let mut then = Some(then);
    let mut hold = local.server.budget.hold();
    let turn = move || {
        let result = match (read.turn(), hold.set(read.held_bytes())) {
            (Err(error), _) => Err(Failed::Read(error)),
            (_, Err(status)) => Err(Failed::Refused(status)),
            (Ok(Some(result)), _) => Ok(result),
            (Ok(None), _) => return ControlFlow::Continue(()),
        };
        let then = then.take().expect("a read has one result");
        ControlFlow::Break(result.map(then))
    };
    // Boxed, so that the future of a short read stays small.
    Box::pin(local.server.helpers.in_turns(turn)).await?.map_err(|error| match error {
        Failed::Read(error) => failed(error),
        Failed::Refused(status) => status,
    })
}

/// Why a read on a helper has no result.
enum Failed {
    Read(RangeError),
    Refused(Status),
}

/// The part of `keys` above the key of `kv`.
fn after(keys: &KeyRange, kv: &Bytes) -> Option<KeyRange> {
    let key = key_of(kv)?;
    let mut start = Vec::with_capacity(key.len() + 1);
    start.extend_from_slice(&key);
    start.push(0);
    Some(match keys {
        KeyRange::Single(_) => return None,
        KeyRange::Range(_, end) => KeyRange::Range(start.into(), end.clone()),
        KeyRange::From(_) => KeyRange::From(start.into()),
    })
}

/// Sends a long range in messages whose size adapts to the size of the values. Only the last one has header, `more`
/// and `count`; the header's revision is the one the store stood at when the stream began.
///
/// # Errors
/// As [`range`]; compaction in the middle.
pub async fn range_stream(call: &Call, message: Bytes, answers: &Answers) -> Result<(), Status> {
    let local = &*call.local;
    let request: RangeRequest = decode(message)?;
    validate::range_stream(&request)?;
    if !request.serializable {
        local.read_index(call.deadline).await?;
    }
    // Looked at once, as in etcd: what is streamed is the store of one moment.
    call.may_read(&request.key, &request.range_end).await?;
    let reader = local.node().reader();
    let mut keys = KeyRange::parse(request.key.clone(), request.range_end.clone());
    let mut options = range_options(&request);
    if request.count_only {
        let result = in_turns(local, reader.begin(&keys, &options), |result| result).await?;
        let header = Some(local.header(result.revision));
        let body = RangeBody { header, kvs: &[], more: false, count: result.count };
        answers.send(body.stream_answer()).await?;
        return Ok(());
    }
    let limit = if request.limit > 0 { request.limit } else { i64::MAX };
    options.limit = FIRST_STREAM_CHUNK.min(limit);
    let mut sent = 0;
    let mut header_revision = 0;
    let mut total = 0;
    loop {
        // Counted once: what is left of a range at an old revision would be walked through again for each message.
        let first = header_revision == 0;
        let read = if first { reader.begin(&keys, &options) } else { reader.begin_rest(&keys, &options) };
        let chunk = in_turns(local, read, |result| result).await?;
        if first {
            header_revision = chunk.revision;
            total = chunk.count;
            if options.revision <= 0 {
                options.revision = header_revision;
            }
        }
        sent += chunk.kvs.len() as i64;
        let rest = if chunk.more { chunk.kvs.last().and_then(|kv| after(&keys, kv)) } else { None };
        let Some(rest) = rest.filter(|_| sent < limit) else {
            let header = Some(local.header(header_revision));
            let body = RangeBody { header, kvs: &chunk.kvs, more: chunk.more, count: total };
            answers.send(body.stream_answer()).await?;
            return Ok(());
        };
        let body = RangeBody { header: None, kvs: &chunk.kvs, more: false, count: 0 };
        options.limit = next_chunk(options.limit, body.encoded_len(), local.config().max_request_bytes);
        options.limit = options.limit.min(limit - sent);
        keys = rest;
        answers.send(body.stream_answer()).await?;
    }
}

/// Keys for the next message: aims at messages between half and twice the request limit.
fn next_chunk(limit: i64, bytes: usize, target: usize) -> i64 {
    if bytes < target / 2 {
        limit.saturating_mul(2)
    } else if bytes > target.saturating_mul(2) {
        (limit / 2).max(1)
    } else {
        limit
    }
}

/// # Errors
/// No space left, an invalid request, or the outcome of the log or, when nothing can change, of the read.
pub async fn txn(call: &Call, message: Bytes) -> Result<Answer, Status> {
    let local = &*call.local;
    let request: TxnRequest = decode(message.clone())?;
    request.check(call)?;
    if !validate::is_read_only(&request) {
        drop(request);
        return agree::<TxnRequest>(call, &message).await;
    }
    let timed = Timed::start(&local.stats, RequestType::ReadonlyTxn);
    let result = read_only_txn(call, request).await;
    timed.end(&result);
    result
}

async fn read_only_txn(call: &Call, request: TxnRequest) -> Result<Answer, Status> {
    let local = &*call.local;
    if !validate::is_serializable(&request) {
        local.read_index(call.deadline).await?;
    }
    let who = call.identify().await?;
    local.node().auth().check_txn(who.as_ref(), &request, &NoKeys)?;
    let header = local.header_without_revision();
    // Everything at one revision, though writes go on: a transaction's compares and ranges must agree.
    let view = local.node().reader().read();
    let small = is_small(&view, &request);
    let work = move || {
        let mut response = txn::read_only(&view, &request)?;
        let revision = response.header.map_or(0, |header| header.revision);
        response.header = Some(ResponseHeader { revision, ..header });
        Ok(Answer::new(&response))
    };
    match if small { work() } else { Box::pin(local.server.helpers.whole(work)).await? } {
        Ok(answer) => call.still(who.as_ref(), answer),
        Err(ReadError::Outcome(error)) => Err(error.into()),
        Err(ReadError::Log(error)) => Err(local.read_failed(error)),
    }
}

/// Whether all that a transaction may look at is so little that it can be read at once.
fn is_small(view: &ReadTxn, request: &TxnRequest) -> bool {
    let compares = request.compare.iter().map(|compare| (&compare.key, &compare.range_end, 0));
    let ranges = request.success.iter().chain(&request.failure).filter_map(|op| match &op.request {
        Some(Op::RequestRange(range)) => Some((&range.key, &range.range_end, range.revision)),
        _ => None,
    });
    let mut left = SMALL_TXN;
    compares.chain(ranges).all(|(key, range_end, revision)| {
        let keys = KeyRange::parse(key.clone(), range_end.clone());
        left -= match keys {
            KeyRange::Single(_) => 1,
            // Only the present is counted without walking through it.
            _ if revision != 0 => return false,
            _ => {
                let options = RangeOptions { count_only: true, ..RangeOptions::default() };
                view.range(&keys, &options).map_or(SMALL_TXN, |result| result.count)
            }
        };
        left > 0
    })
}

/// Refuses what would take the store over its quota, and raises the alarm that stops other writers. Costs of 0 pass.
///
/// # Errors
/// `NO_SPACE`.
pub fn check_quota(local: &Local, cost: impl FnOnce() -> u64) -> Result<(), Status> {
    let quota = match local.config().quota_bytes {
        0 => DEFAULT_QUOTA_BYTES as u64,
        quota if quota < 0 => return Ok(()),
        quota => quota as u64,
    };
    let cost = cost();
    if cost == 0 || local.node().reader().sizes().live_bytes + cost < quota {
        return Ok(());
    }
    let member_id = local.node().status().member_id;
    let nospace = AlarmType::Nospace as i32;
    if !local.node().alarms().iter().any(|alarm| alarm.member_id == member_id && alarm.alarm == nospace) {
        let alarm = AlarmRequest { action: AlarmAction::Activate as i32, member_id, alarm: nospace };
        let id = local.node().next_id();
        let data = crate::encode::raft_request(id, Command::Alarm, &alarm.encode_to_vec(), None);
        // Nobody waits for it: the next write over the quota raises it again if this one is lost.
        drop(
            local
                .mailbox
                .call(local.node(), dolmen_node::Request::Propose { id, data, kind: dolmen_node::ProposeKind::Normal }),
        );
    }
    Err(status::NO_SPACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_a_stream_grow_and_shrink_around_the_limit() {
        assert_eq!(next_chunk(10, 100, 1000), 20);
        assert_eq!(next_chunk(10, 500, 1000), 10);
        assert_eq!(next_chunk(10, 2000, 1000), 10);
        assert_eq!(next_chunk(10, 2001, 1000), 5);
        assert_eq!(next_chunk(1, 2001, 1000), 1);
    }

    #[test]
    fn a_page_goes_on_after_the_last_key() {
        let kv = dolmen_proto::mvccpb::KeyValue { key: "b".into(), ..Default::default() }.encode_to_vec().into();
        let range = KeyRange::Range("a".into(), "c".into());
        assert_eq!(after(&range, &kv), Some(KeyRange::Range("b\0".into(), "c".into())));
        assert_eq!(after(&KeyRange::From("a".into()), &kv), Some(KeyRange::From("b\0".into())));
    }
}
