//! KV: ranges are read here, everything that changes something goes through the log.

use bytes::Bytes;
use dolmen_auth::NoKeys;
use dolmen_machine::txn::{self, ReadError, range_options};
use dolmen_mvcc::{RangeError, RangeOptions, RangeResult, Reader, key_of};
use dolmen_proto::etcdserverpb::alarm_request::AlarmAction;
use dolmen_proto::etcdserverpb::{AlarmRequest, AlarmType, RangeRequest, TxnRequest, TxnResponse};
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
use crate::status::{self, Code, Status};
use crate::validate;

/// Keys read before other requests of the runtime get a turn.
const PAGE: i64 = 1000;
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
    let result = result?;
    let header = Some(local.header(result.revision));
    Ok(RangeBody { header, kvs: &result.kvs, more: result.more, count: result.count }.answer())
}

async fn permitted_range(call: &Call, request: &RangeRequest) -> Result<RangeResult, Status> {
    if !request.serializable {
        call.local.read_index(call.deadline).await?;
    }
    let who = call.may_read(&request.key, &request.range_end).await?;
    call.still(who.as_ref(), read(&call.local, request).await?)
}

/// Reads after confirming, if the request asks for that, for the server itself: nobody's permission is asked.
pub async fn read_range(local: &Local, request: &RangeRequest, deadline: Deadline) -> Result<RangeResult, Status> {
    if !request.serializable {
        local.read_index(deadline).await?;
    }
    read(local, request).await
}

async fn read(local: &Local, request: &RangeRequest) -> Result<RangeResult, Status> {
    let since = Instant::now();
    let result = range_in_pages(local, request).await;
    local.stats.ranges[usize::from(result.is_ok())].observe(since.elapsed());
    Ok(result?)
}

async fn range_in_pages(local: &Local, request: &RangeRequest) -> Result<RangeResult, RangeError> {
    let reader = local.node().reader();
    let keys = KeyRange::parse(request.key.clone(), request.range_end.clone());
    let options = range_options(request);
    let pageable = !matches!(keys, KeyRange::Single(_))
        && !request.count_only
        && (request.limit <= 0 || request.limit > PAGE)
        && validate::default_order(request)
        && !validate::has_revision_filters(request);
    if !pageable {
        return reader.range(&keys, &options);
    }
    match pages(&reader, &keys, &options).await {
        // Compaction went past the revision that the first page was read at; the request itself is fine.
        Err(RangeError::Compacted) if request.revision <= 0 => reader.range(&keys, &options),
        result => result,
    }
}

/// Reads a long range a page at a time, all of it at the revision of the first page.
async fn pages(reader: &Reader, keys: &KeyRange, options: &RangeOptions) -> Result<RangeResult, RangeError> {
    let mut page = *options;
    page.limit = PAGE;
    let mut result = reader.range(keys, &page)?;
    let wanted = if options.limit > 0 { options.limit.min(result.count) } else { result.count };
    if page.revision <= 0 {
        page.revision = result.revision;
    }
    while (result.kvs.len() as i64) < wanted {
        tokio::task::yield_now().await;
        let Some(rest) = result.kvs.last().and_then(|kv| after(keys, kv)) else { break };
        page.limit = PAGE.min(wanted - result.kvs.len() as i64);
        let next = reader.range(&rest, &page)?;
        if next.kvs.is_empty() {
            break;
        }
        result.kvs.extend(next.kvs);
    }
    result.more = wanted < result.count;
    Ok(result)
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
        let result = reader.range(&keys, &options)?;
        let header = Some(local.header(result.revision));
        let body = RangeBody { header, kvs: &[], more: false, count: result.count };
        answers.send(body.stream_answer()).await;
        return Ok(());
    }
    let limit = if request.limit > 0 { request.limit } else { i64::MAX };
    options.limit = FIRST_STREAM_CHUNK.min(limit);
    let mut sent = 0;
    let mut header_revision = 0;
    let mut total = 0;
    loop {
        let chunk = reader.range(&keys, &options)?;
        if header_revision == 0 {
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
            answers.send(body.stream_answer()).await;
            return Ok(());
        };
        let body = RangeBody { header: None, kvs: &chunk.kvs, more: false, count: 0 };
        options.limit = next_chunk(options.limit, body.encoded_len(), local.config().max_request_bytes);
        options.limit = options.limit.min(limit - sent);
        keys = rest;
        answers.send(body.stream_answer()).await;
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
    let result = read_only_txn(call, &request).await;
    timed.end(&result);
    let mut response = result?;
    local.fill(&mut response.header);
    Ok(Answer::new(&response))
}

async fn read_only_txn(call: &Call, request: &TxnRequest) -> Result<TxnResponse, Status> {
    let local = &*call.local;
    if !validate::is_serializable(request) {
        local.read_index(call.deadline).await?;
    }
    let who = call.identify().await?;
    local.node().auth().check_txn(who.as_ref(), request, &NoKeys)?;
    // Everything at one revision, though writes go on: a transaction's compares and ranges must agree.
    match txn::read_only(&local.node().reader().read(), request) {
        Ok(response) => call.still(who.as_ref(), response),
        Err(ReadError::Outcome(error)) => Err(error.into()),
        Err(error @ ReadError::Log(_)) => Err(Status::owned(Code::Unknown, error.to_string())),
    }
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
