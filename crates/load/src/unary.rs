//! The workloads in which a client asks, waits, and asks again.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use dolmen_proto::etcdserverpb as pb;
use prost::Message;
use tokio::task::spawn_local;

use crate::grpc::{self, Connection, Failure};
use crate::options::{Options, Workload};
use crate::report::{Report, Schedule};
use crate::request::{self, FILL_AT_ONCE, KEY_BYTES, Template};

/// Opens the connections, spread over the members.
///
/// # Errors
/// One cannot be opened.
pub async fn connect(options: &Options) -> Result<Vec<Connection>, String> {
    let mut connections = Vec::with_capacity(options.connections);
    for endpoint in options.endpoints.iter().cycle().take(options.connections) {
        connections.push(Connection::open(endpoint).await.map_err(|error| error.to_string())?);
    }
    Ok(connections)
}

/// A workload as data.
struct Plan {
    path: &'static str,
    template: Template,
    /// For `fill`: the transaction that is not full, if there is one; it is operation `total - 1`.
    last: Option<Template>,
    total: u64,
    /// Every answer is at least so long.
    least: usize,
}

impl Plan {
    fn new(options: &Options) -> Self {
        let size = options.value_bytes;
        let put = |path, template| Self { path, template, last: None, total: options.total, least: 1 };
        match options.workload {
            Workload::Get => {
                Self { least: KEY_BYTES + size, ..put("/etcdserverpb.KV/Range", request::get(options.serializable)) }
            }
            Workload::Range => Self {
                least: (KEY_BYTES + size) * options.keys as usize,
                ..put("/etcdserverpb.KV/Range", request::range(options.keys, options.serializable, options.sorted))
            },
            Workload::Txn => put("/etcdserverpb.KV/Txn", request::txn(size)),
            Workload::Fill => Self {
                last: Some(options.keys % FILL_AT_ONCE).filter(|rest| *rest > 0).map(|rest| request::fill(size, rest)),
                total: options.keys.div_ceil(FILL_AT_ONCE),
                ..put("/etcdserverpb.KV/Txn", request::fill(size, FILL_AT_ONCE))
            },
            // The others have loops of their own.
            Workload::Put | Workload::Keepalive | Workload::Watch => put("/etcdserverpb.KV/Put", request::put(size)),
        }
    }

    fn request(&self, options: &Options, number: u64) -> Bytes {
        match (&self.last, options.workload) {
            (Some(last), _) if number + 1 == self.total => last.counting(number * FILL_AT_ONCE),
            (_, Workload::Fill) => self.template.counting(number * FILL_AT_ONCE),
            _ => self.template.with(number % options.keys),
        }
    }
}

/// Looks into an answer; the first of each client is looked into, of the others the length.
fn examine(options: &Options, answer: &[u8]) -> Result<(), Failure> {
    let broken = |error: prost::DecodeError| Failure::Answer(error.to_string());
    let wrong = |what: String| Err(Failure::Answer(what));
    match options.workload {
        Workload::Get | Workload::Range => {
            let answer = pb::RangeResponse::decode(answer).map_err(broken)?;
            let wanted = if options.workload == Workload::Get { 1 } else { options.keys };
            if answer.kvs.len() as u64 != wanted || answer.count as u64 != wanted {
                return wrong(format!("{} keys of {}, not {wanted}", answer.kvs.len(), answer.count));
            }
            match answer.kvs.first().is_some_and(|kv| kv.value == request::value(options.value_bytes)) {
                true => Ok(()),
                false => wrong("another value".into()),
            }
        }
        Workload::Txn | Workload::Fill => match pb::TxnResponse::decode(answer).map_err(broken)?.succeeded {
            true => Ok(()),
            false => wrong("the comparison failed".into()),
        },
        _ => match pb::PutResponse::decode(answer).map_err(broken)?.header {
            Some(header) if header.revision > 1 => Ok(()),
            header => wrong(format!("header {header:?}")),
        },
    }
}

/// Runs every workload of unary calls.
///
/// # Errors
/// The members cannot be reached; what happens after that is counted instead.
pub async fn run(options: &Options) -> Result<Rc<Report>, String> {
    let connections = connect(options).await?;
    let plan = Rc::new(Plan::new(options));
    let report = Report::begin()?;
    let schedule = Schedule::begin(options, plan.total);
    let mut clients = Vec::with_capacity(options.clients);
    for connection in connections.iter().cycle().take(options.clients) {
        let method = connection.method(plan.path).map_err(|error| error.to_string())?;
        let (mut connection, options) = (connection.clone(), options.clone());
        let (plan, report, schedule) = (plan.clone(), report.clone(), schedule.clone());
        clients.push(spawn_local(async move {
            let mut examined = false;
            while let Some((number, since)) = schedule.next().await {
                let request = plan.request(&options, number);
                let mut answer = BytesMut::new();
                let keep = (!examined).then_some(&mut answer);
                let outcome = match connection.unary(&method, request, keep).await {
                    Ok(_) if !examined => examine(&options, &answer),
                    Ok(length) if length < plan.least => Err(Failure::Answer(format!("{length} bytes only"))),
                    Ok(_) => Ok(()),
                    Err(failure) => Err(failure),
                };
                examined = true;
                match outcome {
                    Ok(()) => report.done(since.elapsed()),
                    Err(failure) => report.failed_after(since.elapsed(), &failure),
                }
            }
        }));
    }
    join(clients).await?;
    Ok(report)
}

/// Waits for all clients.
///
/// # Errors
/// One panicked.
pub async fn join(clients: Vec<tokio::task::JoinHandle<()>>) -> Result<(), String> {
    for client in clients {
        client.await.map_err(|error| format!("a client: {error}"))?;
    }
    Ok(())
}

/// Each client grants a lease, and renews it on one stream.
///
/// # Errors
/// The members cannot be reached, or grant no leases; what happens after that is counted instead.
pub async fn keepalive(options: &Options) -> Result<Rc<Report>, String> {
    let connections = connect(options).await?;
    let mut granted = Vec::with_capacity(options.clients);
    for connection in connections.iter().cycle().take(options.clients) {
        let mut connection = connection.clone();
        let id = grant(&mut connection).await.map_err(|failure| format!("a lease: {failure}"))?;
        granted.push((connection, id));
    }
    let report = Report::begin()?;
    let schedule = Schedule::begin(options, options.total);
    let mut clients = Vec::with_capacity(options.clients);
    for (connection, id) in granted {
        let (report, schedule) = (report.clone(), schedule.clone());
        clients.push(spawn_local(async move {
            if let Err(failure) = renew(connection, id, &report, &schedule).await {
                report.failed(1, &failure);
            }
        }));
    }
    join(clients).await?;
    Ok(report)
}

async fn grant(connection: &mut Connection) -> Result<i64, Failure> {
    let method = connection.method("/etcdserverpb.Lease/LeaseGrant")?;
    let request = grpc::framed(&pb::LeaseGrantRequest { ttl: 3_600, ..Default::default() }).freeze();
    let mut answer = BytesMut::new();
    connection.unary(&method, request, Some(&mut answer)).await?;
    let answer = pb::LeaseGrantResponse::decode(&answer[..]).map_err(|error| Failure::Answer(error.to_string()))?;
    Ok(answer.id)
}

async fn renew(mut connection: Connection, id: i64, report: &Report, schedule: &Schedule) -> Result<(), Failure> {
    let method = connection.method("/etcdserverpb.Lease/LeaseKeepAlive")?;
    let request = grpc::framed(&pb::LeaseKeepAliveRequest { id }).freeze();
    let mut open = None;
    while let Some((_, since)) = schedule.next().await {
        let answer = match &mut open {
            None => {
                let (send, mut messages) = connection.stream(&method, request.clone()).await?;
                let answer = messages.next().await?;
                open = Some((send, messages));
                answer
            }
            Some((send, messages)) => {
                send.send_data(request.clone(), false)?;
                messages.next().await?
            }
        };
        let answer = pb::LeaseKeepAliveResponse::decode(answer).map_err(|error| Failure::Answer(error.to_string()))?;
        if answer.id != id || answer.ttl <= 0 {
            return Err(Failure::Answer(format!("lease {} has {} s", answer.id, answer.ttl)));
        }
        report.done(since.elapsed());
    }
    Ok(())
}
