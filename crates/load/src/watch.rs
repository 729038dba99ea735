//! Many watchers of one key: how long from a put to its event, and whether every watcher sees every event, once and in order.
//!
//! Every value carries the number of its put. The writer notes when it sent each; a watcher subtracts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use dolmen_proto::etcdserverpb::{self as pb, watch_request};
use tokio::sync::Notify;
use tokio::task::spawn_local;

use crate::grpc::{self, Connection, Failure};
use crate::options::Options;
use crate::report::{Report, Schedule};
use crate::unary::connect;
use crate::wire::{Field, Fields};

const KEY: &[u8] = b"watched";
/// Digits of a put's number at the front of its value.
const NUMBER_BYTES: usize = 8;
/// How long after the last put the last event may come.
const STRAGGLERS: Duration = Duration::from_secs(20);

/// What the streams of a run share.
struct Shared {
    report: Rc<Report>,
    /// When each put was sent.
    sent: RefCell<Vec<Instant>>,
    seen: Cell<u64>,
    /// The last put was answered; then this is how many events there must be.
    expected: Cell<Option<u64>>,
    progress: Notify,
}

/// Runs the workload; `--clients` watchers on `--conns` streams, each a connection.
///
/// # Errors
/// The members cannot be reached, or refuse a watcher; what happens after that is counted instead.
pub async fn run(options: &Options) -> Result<Rc<Report>, String> {
    let connections = connect(options).await?;
    let report = Report::begin()?;
    let shared = Rc::new(Shared {
        report: report.clone(),
        sent: RefCell::new(Vec::new()),
        seen: Cell::new(0),
        expected: Cell::new(None),
        progress: Notify::new(),
    });
    let streams = connections.len();
    let mut readers = Vec::with_capacity(streams);
    for (at, connection) in connections.iter().enumerate() {
        let watchers = options.clients / streams + usize::from(at < options.clients % streams);
        if watchers == 0 {
            continue;
        }
        let stream =
            Stream::open(connection.clone(), watchers).await.map_err(|failure| format!("a watch: {failure}"))?;
        let shared = shared.clone();
        readers.push(spawn_local(async move {
            if let Err(failure) = stream.read(&shared).await {
                shared.report.failed(1, &failure);
                shared.progress.notify_one();
            }
        }));
    }
    let mut writer = connections.first().ok_or("no connection")?.clone();
    let puts = write(&mut writer, options, &shared).await;
    let expected = puts * options.clients as u64;
    shared.expected.set(Some(expected));
    let rest = async {
        while shared.seen.get() < expected {
            shared.progress.notified().await;
        }
    };
    if tokio::time::timeout(STRAGGLERS, rest).await.is_err() {
        let missing = expected.saturating_sub(shared.seen.get());
        shared.report.failed(missing, &format!("{missing} of {expected} events never came"));
    }
    for reader in readers {
        reader.abort();
    }
    Ok(report)
}

/// Puts, one after another, and returns how many.
async fn write(connection: &mut Connection, options: &Options, shared: &Shared) -> u64 {
    let method = match connection.method("/etcdserverpb.KV/Put") {
        Ok(method) => method,
        Err(failure) => {
            shared.report.failed(1, &failure);
            return 0;
        }
    };
    let schedule = Schedule::begin(options, options.total);
    let mut puts = 0;
    while let Some((number, _)) = schedule.next().await {
        let mut value = BytesMut::from(format!("{number:0NUMBER_BYTES$}").as_bytes());
        value.put_bytes(b'.', options.value_bytes.saturating_sub(value.len()));
        let put = pb::PutRequest { key: Bytes::from_static(KEY), value: value.freeze(), ..Default::default() };
        shared.sent.borrow_mut().push(Instant::now());
        // Whether it took place is unknown; the watchers would tell.
        if let Err(failure) = connection.unary(&method, grpc::framed(&put).freeze(), None).await {
            shared.report.failed(1, &failure);
            return puts;
        }
        puts += 1;
    }
    puts
}

/// A stream of watchers with ids 1, 2, ...; for each the number of the put it has to see next.
struct Stream {
    /// Its end would end the stream.
    _send: h2::SendStream<Bytes>,
    messages: grpc::Messages,
    next: Vec<u64>,
}

impl Stream {
    async fn open(mut connection: Connection, watchers: usize) -> Result<Self, Failure> {
        let method = connection.method("/etcdserverpb.Watch/Watch")?;
        let (mut send, mut messages) = connection.stream(&method, create(1)).await?;
        for id in 2..=watchers {
            send.send_data(create(id as i64), false)?;
        }
        for _ in 0..watchers {
            let message = messages.next().await?;
            let created = Fields(&message).flatten().any(|field| field == Field::Number(3, 1));
            if !created {
                return Err(Failure::Answer("a watcher was not created".into()));
            }
        }
        Ok(Self { _send: send, messages, next: vec![0; watchers + 1] })
    }

    /// Until the stream ends, which is a failure, or nobody waits any more.
    async fn read(mut self, shared: &Shared) -> Result<(), Failure> {
        loop {
            let message = self.messages.next().await?;
            let now = Instant::now();
            self.response(&message, shared, now).ok_or_else(|| Failure::Answer("a broken watch response".into()))??;
            if shared.expected.get().is_some_and(|expected| shared.seen.get() >= expected) {
                shared.progress.notify_one();
            }
        }
    }

    /// `None`: not a watch response.
    fn response(&mut self, message: &[u8], shared: &Shared, now: Instant) -> Option<Result<(), Failure>> {
        let mut watcher = 0;
        for field in Fields(message) {
            match field? {
                Field::Number(2, id) => watcher = usize::try_from(id).ok()?,
                Field::Number(4, 1) => return Some(Err(Failure::Answer(format!("watcher {watcher} was cancelled")))),
                Field::Bytes(11, event) => {
                    let number = number(event)?;
                    let next = self.next.get_mut(watcher)?;
                    if number != *next {
                        let what = format!("watcher {watcher} sees put {number} instead of {next}");
                        return Some(Err(Failure::Answer(what)));
                    }
                    *next += 1;
                    let sent = *shared.sent.borrow().get(usize::try_from(number).ok()?)?;
                    shared.report.done(now.saturating_duration_since(sent));
                    shared.seen.set(shared.seen.get() + 1);
                }
                _ => (),
            }
        }
        Some(Ok(()))
    }
}

fn create(watch_id: i64) -> Bytes {
    let create = pb::WatchCreateRequest { key: Bytes::from_static(KEY), watch_id, ..Default::default() };
    let union = watch_request::RequestUnion::CreateRequest(create);
    grpc::framed(&pb::WatchRequest { request_union: Some(union) }).freeze()
}

/// The number of the put that an event tells of.
fn number(event: &[u8]) -> Option<u64> {
    let kv = Fields(event).flatten().find_map(|field| match field {
        Field::Bytes(2, kv) => Some(kv),
        _ => None,
    })?;
    let value = Fields(kv).flatten().find_map(|field| match field {
        Field::Bytes(5, value) => Some(value),
        _ => None,
    })?;
    std::str::from_utf8(value.get(..NUMBER_BYTES)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use dolmen_proto::mvccpb::{Event, KeyValue};
    use prost::Message;

    use super::*;

    #[test]
    fn an_event_tells_its_put() {
        let kv = KeyValue { key: Bytes::from_static(KEY), value: Bytes::from("00000042...."), ..Default::default() };
        let event = Event { kv: Some(kv), ..Default::default() };
        assert_eq!(number(&event.encode_to_vec()), Some(42));
        assert_eq!(number(&Event::default().encode_to_vec()), None);
    }
}
