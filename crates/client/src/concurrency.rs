//! Locks and elections out of leases and creation revisions, with the keys of etcd's Go package `concurrency`, so that
//! both sides of a lock may be written in either language.
//!
//! A [`Session`] is a lease that is kept alive. Who wants the lock `jobs` creates the key `jobs/<lease in hex>` under that
//! lease, unless it exists. The key with the lowest *creation revision* owns the lock; everybody else waits for the deletion
//! of the key created just before their own, and so nobody is woken in vain. Dying is unlocking: the lease expires, the key
//! with it.
//!
//! # Fencing tokens
//!
//! A lock on a lease can be lost without its holder knowing: a process that was stopped for longer than the TTL goes on
//! writing. So whatever the lock protects must not trust the holder, but a number that only grows: the creation revision of
//! the holder's key ([`Mutex::revision`], [`Election::revision`]). A later holder's is always higher, since it is taken from
//! the cluster's one counter of changes. There are two ways to use it:
//!
//! * What is protected lies in etcd itself: put [`Mutex::is_owner`] into the `compare` of every transaction. A transaction
//!   of a former holder then does nothing.
//! * It lies elsewhere (a file, a database, a device): send the revision along with each write, and let that side keep
//!   the highest it has seen and refuse all lower ones.

use std::time::Duration;

use bytes::Bytes;
use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::mvccpb;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::error::{Error, text};
use crate::watch::{Watcher, watch_error};

/// Lifetime of a session's lease unless told otherwise, seconds.
pub const DEFAULT_SESSION_TTL: i64 = 60;

/// A lease, kept alive as long as this lives. Dropped without [`Session::close`], it expires after its TTL.
pub struct Session {
    client: Client,
    lease: i64,
    ttl_seconds: i64,
    gone: watch::Receiver<bool>,
    renewal: JoinHandle<()>,
}

impl Session {
    /// Grants a lease of `ttl_seconds` ([`DEFAULT_SESSION_TTL`] if not positive) and keeps it alive.
    ///
    /// # Errors
    /// Those of the grant.
    pub async fn new(client: &Client, ttl_seconds: i64) -> Result<Session, Error> {
        let ttl = if ttl_seconds > 0 { ttl_seconds } else { DEFAULT_SESSION_TTL };
        let granted = client.lease_grant(pb::LeaseGrantRequest { ttl, id: 0 }).await?;
        Ok(Session::with_lease(client, granted.id, ttl))
    }

    /// Takes over a lease that exists, for example after a restart of the process.
    pub fn with_lease(client: &Client, lease: i64, ttl_seconds: i64) -> Session {
        let (mark, gone) = watch::channel(false);
        let mut renewals = client.lease_keep_alive(lease);
        let renewal = tokio::spawn(async move {
            while renewals.next().await.is_some() {}
            // Nobody may be left to hear it.
            let _ = mark.send(true);
        });
        Session { client: client.clone(), lease, ttl_seconds, gone, renewal }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The lease that all keys of this session hang on.
    pub fn lease(&self) -> i64 {
        self.lease
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl_seconds.unsigned_abs())
    }

    /// Waits until the lease is gone. From then on nothing that this session locked is its own any more.
    pub async fn done(&self) {
        let mut gone = self.gone.clone();
        // An error: the task that renews has ended, which is the same.
        let _ = gone.wait_for(|gone| *gone).await;
    }

    /// Stops renewing and revokes the lease: the session's keys are deleted at once.
    ///
    /// # Errors
    /// Those of the revocation; the lease then expires by itself.
    pub async fn close(self) -> Result<(), Error> {
        self.renewal.abort();
        // Longer than its TTL the lease does not live anyway.
        let bounded = self.client.with_timeout(Some(self.ttl()));
        bounded.lease_revoke(pb::LeaseRevokeRequest { id: self.lease }).await.map(|_| ())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// A lock that one session at a time holds. See [the fencing token](Mutex::revision) before relying on it.
///
/// ```no_run
/// use dolmen_client::{Client, Error, Mutex, Session, pb};
///
/// # async fn example(client: Client) -> Result<(), Error> {
/// let session = Session::new(&client, 10).await?;
/// let mut mutex = Mutex::new(&session, "jobs");
/// mutex.lock().await?;
/// // Written only if the lock is still ours at that moment.
/// let put = pb::PutRequest { key: "jobs-done".into(), value: "1".into(), ..Default::default() };
/// let request = pb::TxnRequest {
///     compare: vec![mutex.is_owner()],
///     success: vec![pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put)) }],
///     failure: Vec::new(),
/// };
/// client.txn(request).await?;
/// mutex.unlock().await?;
/// session.close().await
/// # }
/// ```
pub struct Mutex<'a> {
    session: &'a Session,
    prefix: String,
    claim: Option<Claim>,
    header: Option<pb::ResponseHeader>,
}

/// A key of ours under the prefix.
#[derive(Clone)]
struct Claim {
    key: String,
    /// Creation revision of the key; 0 while unknown, since its creation is under way.
    revision: i64,
}

impl<'a> Mutex<'a> {
    /// The lock named `name`; its keys are `name/<lease>`.
    pub fn new(session: &'a Session, name: &str) -> Mutex<'a> {
        Mutex { session, prefix: format!("{name}/"), claim: None, header: None }
    }

    /// Waits for the lock, as long as it takes: a time limit of the client bounds single calls only. If the wait fails, the
    /// claim is withdrawn; if the returned future is dropped, as by a timeout around it, call [`Mutex::unlock`] or close
    /// the session to withdraw it.
    ///
    /// # Errors
    /// `mutex: session is expired` when the session ended during the wait; those of the calls.
    pub async fn lock(&mut self) -> Result<(), Error> {
        let (claim, free) = self.try_acquire().await?;
        if free {
            return Ok(());
        }
        let client = self.session.client();
        let waited = async {
            wait_deletes(client, &self.prefix, claim.revision - 1).await?;
            client.range(pb::RangeRequest { key: claim.key.clone().into(), ..Default::default() }).await
        };
        match waited.await {
            Ok(own) if own.kvs.is_empty() => {
                self.claim = None;
                Err(Error::client(SESSION_EXPIRED))
            }
            Ok(own) => {
                self.header = own.header;
                Ok(())
            }
            Err(error) => {
                // The first error is the one to tell, and a claim that stays ends with the session.
                let _ = tokio::time::timeout(self.session.ttl(), self.unlock()).await;
                Err(error)
            }
        }
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// `mutex: Locked by another session`, see [`LOCKED`]; those of the calls.
    pub async fn try_lock(&mut self) -> Result<(), Error> {
        let (_, free) = self.try_acquire().await?;
        if free {
            return Ok(());
        }
        self.unlock().await?;
        Err(Error::client(LOCKED))
    }

    /// Gives the lock, or the place in its queue, back.
    ///
    /// # Errors
    /// `mutex: lock has already been released` when there is neither.
    pub async fn unlock(&mut self) -> Result<(), Error> {
        let Some(claim) = &self.claim else { return Err(Error::client(LOCK_RELEASED)) };
        let request = pb::DeleteRangeRequest { key: claim.key.clone().into(), ..Default::default() };
        self.session.client().delete_range(request).await?;
        self.claim = None;
        Ok(())
    }

    /// The key that holds the lock, or waits for it; empty when there is none.
    pub fn key(&self) -> &str {
        self.claim.as_ref().map_or("", |claim| &claim.key)
    }

    /// The fencing token: creation revision of [`Mutex::key`], higher with each holder. 0: no lock.
    pub fn revision(&self) -> i64 {
        self.claim.as_ref().map_or(0, |claim| claim.revision)
    }

    /// A comparison that holds as long as the lock is ours.
    pub fn is_owner(&self) -> pb::Compare {
        // Without a claim it must hold never: no key has this creation revision.
        let revision = self.claim.as_ref().map_or(-1, |claim| claim.revision);
        compare_created(self.key(), revision)
    }

    /// Header of the answer with which the lock was taken.
    pub fn header(&self) -> Option<&pb::ResponseHeader> {
        self.header.as_ref()
    }

    /// Puts our key into the queue; true: nobody is before it.
    async fn try_acquire(&mut self) -> Result<(Claim, bool), Error> {
        let key = format!("{}{:x}", self.prefix, self.session.lease());
        self.claim = Some(Claim { key: key.clone(), revision: 0 });
        let put = pb::PutRequest { key: key.clone().into(), lease: self.session.lease(), ..Default::default() };
        let own = pb::RangeRequest { key: key.clone().into(), ..Default::default() };
        let owner = first_created(&self.prefix);
        let request = pb::TxnRequest {
            compare: vec![compare_created(&key, 0)],
            success: vec![op(pb::request_op::Request::RequestPut(put)), range_op(owner.clone())],
            failure: vec![range_op(own), range_op(owner)],
        };
        let mut answer = self.session.client().txn(request).await?;
        let revision = match (answer.succeeded, take_range(&mut answer, 0).and_then(|kvs| kvs.into_iter().next())) {
            (false, Some(kv)) => kv.create_revision,
            _ => answer.header.as_ref().map_or(0, |header| header.revision),
        };
        let claim = Claim { key, revision };
        self.claim = Some(claim.clone());
        let owner = take_range(&mut answer, 1).and_then(|kvs| kvs.into_iter().next());
        let free = owner.is_none_or(|kv| kv.create_revision == revision);
        if free {
            self.header = answer.header;
        }
        Ok((claim, free))
    }
}

/// Message of [`Mutex::try_lock`] when another session has the lock.
pub const LOCKED: &str = "mutex: Locked by another session";
/// Message of [`Mutex::lock`] when the session ended during the wait.
pub const SESSION_EXPIRED: &str = "mutex: session is expired";
/// Message of [`Mutex::unlock`] without a lock.
pub const LOCK_RELEASED: &str = "mutex: lock has already been released";
/// Message of [`Election::proclaim`] by anybody but the leader.
pub const NOT_LEADER: &str = "election: not leader";
/// Message of [`Election::leader`] when nobody is elected.
pub const NO_LEADER: &str = "election: no leader";

/// An election: of all who campaign under a name, one is the leader, and announces a value.
///
/// The leader is the candidate with the lowest creation revision, which is its [fencing token](Election::revision).
pub struct Election<'a> {
    session: &'a Session,
    prefix: String,
    claim: Option<Claim>,
    header: Option<pb::ResponseHeader>,
}

impl<'a> Election<'a> {
    /// The election named `name`; its keys are `name/<lease>`.
    pub fn new(session: &'a Session, name: &str) -> Election<'a> {
        Election { session, prefix: format!("{name}/"), claim: None, header: None }
    }

    /// Goes on as the leader that this process was before, with the key and revision it had then.
    pub fn resume(session: &'a Session, name: &str, leader_key: &str, leader_revision: i64) -> Election<'a> {
        let claim = Claim { key: leader_key.to_owned(), revision: leader_revision };
        Election { claim: Some(claim), ..Election::new(session, name) }
    }

    /// Stands for election and waits until it is won; `value` is what [`Election::leader`] then shows. If the wait fails, the
    /// candidacy is withdrawn; if the returned future is dropped, [`Election::resign`] or the end of the session does it.
    ///
    /// # Errors
    /// Those of the calls.
    pub async fn campaign(&mut self, value: impl Into<Bytes>) -> Result<(), Error> {
        let value = value.into();
        let client = self.session.client();
        let key = format!("{}{:x}", self.prefix, self.session.lease());
        self.claim = Some(Claim { key: key.clone(), revision: 0 });
        let put = pb::PutRequest {
            key: key.clone().into(),
            value: value.clone(),
            lease: self.session.lease(),
            ..Default::default()
        };
        let own = pb::RangeRequest { key: key.clone().into(), ..Default::default() };
        let request = pb::TxnRequest {
            compare: vec![compare_created(&key, 0)],
            success: vec![op(pb::request_op::Request::RequestPut(put))],
            failure: vec![range_op(own)],
        };
        let mut answer = client.txn(request).await?;
        let mut revision = answer.header.as_ref().map_or(0, |header| header.revision);
        let standing = take_range(&mut answer, 0).and_then(|kvs| kvs.into_iter().next());
        if let (false, Some(kv)) = (answer.succeeded, standing) {
            revision = kv.create_revision;
            self.claim = Some(Claim { key: key.clone(), revision });
            if kv.value != value
                && let Err(error) = self.proclaim(value).await
            {
                self.withdraw().await;
                return Err(error);
            }
        }
        self.claim = Some(Claim { key, revision });
        if let Err(error) = wait_deletes(client, &self.prefix, revision - 1).await {
            self.withdraw().await;
            return Err(error);
        }
        self.header = answer.header;
        Ok(())
    }

    /// Announces another value as the leader.
    ///
    /// # Errors
    /// `election: not leader`, see [`NOT_LEADER`].
    pub async fn proclaim(&mut self, value: impl Into<Bytes>) -> Result<(), Error> {
        let Some(claim) = &self.claim else { return Err(Error::client(NOT_LEADER)) };
        let put = pb::PutRequest {
            key: claim.key.clone().into(),
            value: value.into(),
            lease: self.session.lease(),
            ..Default::default()
        };
        let request = pb::TxnRequest {
            compare: vec![compare_created(&claim.key, claim.revision)],
            success: vec![op(pb::request_op::Request::RequestPut(put))],
            failure: Vec::new(),
        };
        let answer = self.session.client().txn(request).await?;
        if !answer.succeeded {
            self.claim = None;
            return Err(Error::client(NOT_LEADER));
        }
        self.header = answer.header;
        Ok(())
    }

    /// Steps down, or withdraws the candidacy. Without either, nothing.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn resign(&mut self) -> Result<(), Error> {
        let Some(claim) = self.claim.take() else { return Ok(()) };
        let delete = pb::DeleteRangeRequest { key: claim.key.clone().into(), ..Default::default() };
        let request = pb::TxnRequest {
            // Of a candidacy whose creation got no answer only the key is known; it is ours by its lease.
            compare: if claim.revision == 0 { Vec::new() } else { vec![compare_created(&claim.key, claim.revision)] },
            success: vec![op(pb::request_op::Request::RequestDeleteRange(delete))],
            failure: Vec::new(),
        };
        self.header = self.session.client().txn(request).await?.header;
        Ok(())
    }

    /// Cleans up after an error, which is the one to tell. A candidacy that stays ends with the session.
    async fn withdraw(&mut self) {
        let _ = tokio::time::timeout(self.session.ttl(), self.resign()).await;
    }

    /// The leader's key and value, whoever it is.
    ///
    /// # Errors
    /// `election: no leader`, see [`NO_LEADER`].
    pub async fn leader(&self) -> Result<pb::RangeResponse, Error> {
        let answer = self.session.client().range(first_created(&self.prefix)).await?;
        if answer.kvs.is_empty() { Err(Error::client(NO_LEADER)) } else { Ok(answer) }
    }

    /// What leaders announce from now on.
    pub fn observe(&self) -> Observer {
        Observer::new(self.session.client(), &self.prefix)
    }

    /// Our key as leader or candidate; empty when neither.
    pub fn key(&self) -> &str {
        self.claim.as_ref().map_or("", |claim| &claim.key)
    }

    /// The fencing token: creation revision of [`Election::key`], higher with each leader. 0: neither leader nor candidate.
    pub fn revision(&self) -> i64 {
        self.claim.as_ref().map_or(0, |claim| claim.revision)
    }

    /// Header of the answer to the last announcement.
    pub fn header(&self) -> Option<&pb::ResponseHeader> {
        self.header.as_ref()
    }
}

/// Follows an election without taking part: the present leader's value first, then each change. It may skip values that
/// were replaced at once, never the last one.
pub struct Observer {
    client: Client,
    prefix: String,
    /// The leader followed, and the watch on its key.
    following: Option<Watcher>,
}

impl Observer {
    /// Of the election whose keys begin with `prefix`, which ends in `/`.
    fn new(client: &Client, prefix: &str) -> Observer {
        Observer { client: client.clone(), prefix: prefix.to_owned(), following: None }
    }

    /// Of the election named `name`, without a session.
    pub fn of(client: &Client, name: &str) -> Observer {
        Observer::new(client, &format!("{name}/"))
    }

    /// The next value of a leader: one key-value, and the header of the answer that brought it.
    ///
    /// # Errors
    /// Those of the calls and of the watch; the observer may be asked again afterwards.
    pub async fn next(&mut self) -> Result<pb::RangeResponse, Error> {
        if let Some(watcher) = &mut self.following {
            match next_put(watcher).await {
                Ok(Some(found)) => return Ok(found),
                // The leader's key is deleted: look for the next one.
                Ok(None) => self.following = None,
                // What was missed is gone; where things stand now is all that counts.
                Err(error) if error.is(text::COMPACTED) => self.following = None,
                Err(error) => {
                    self.following = None;
                    return Err(error);
                }
            }
        }
        let found = self.find().await?;
        let kv = found.kvs.first().ok_or_else(|| Error::client(NO_LEADER))?;
        let after = found.header.as_ref().map_or(kv.mod_revision, |header| header.revision) + 1;
        let request = pb::WatchCreateRequest { key: kv.key.clone(), start_revision: after, ..Default::default() };
        self.following = Some(self.client.watch([request]).await?);
        Ok(found)
    }

    /// The leader, or else whoever stands first from now on.
    async fn find(&self) -> Result<pb::RangeResponse, Error> {
        let found = self.client.range(first_created(&self.prefix)).await?;
        if !found.kvs.is_empty() {
            return Ok(found);
        }
        let request = pb::WatchCreateRequest {
            key: self.prefix.clone().into(),
            range_end: prefix_range_end(self.prefix.as_bytes()).into(),
            start_revision: found.header.as_ref().map_or(0, |header| header.revision),
            filters: vec![pb::watch_create_request::FilterType::Nodelete.into()],
            ..Default::default()
        };
        let mut watcher = self.client.watch([request]).await?;
        match next_put(&mut watcher).await? {
            Some(found) => Ok(found),
            None => Err(Error::client(NO_LEADER)),
        }
    }
}

/// The next put seen by a watch, as an answer to a range of its key; `None` after a deletion.
async fn next_put(watcher: &mut Watcher) -> Result<Option<pb::RangeResponse>, Error> {
    loop {
        let response = next_answer(watcher).await?;
        let mut last = None;
        for event in response.events {
            if event.r#type == i32::from(mvccpb::event::EventType::Delete) {
                return Ok(None);
            }
            last = event.kv.or(last);
        }
        if let Some(kv) = last {
            let revision = kv.mod_revision;
            let header = response.header.map(|header| pb::ResponseHeader { revision, ..header });
            return Ok(Some(pb::RangeResponse { header, kvs: vec![kv], more: false, count: 1 }));
        }
    }
}

async fn next_answer(watcher: &mut Watcher) -> Result<pb::WatchResponse, Error> {
    let response = watcher.next().await.ok_or_else(|| Error::client("lost watcher waiting for delete"))??;
    match watch_error(&response) {
        Some(error) => Err(error),
        None => Ok(response),
    }
}

/// Waits until no key under the prefix was created at or before `max_revision`: always for the youngest of them, so that
/// a queue of waiters wakes one at a time.
async fn wait_deletes(client: &Client, prefix: &str, max_revision: i64) -> Result<(), Error> {
    loop {
        let before = client
            .range(pb::RangeRequest {
                sort_order: pb::range_request::SortOrder::Descend.into(),
                max_create_revision: max_revision,
                ..first_created(prefix)
            })
            .await?;
        let Some(last) = before.kvs.first() else { return Ok(()) };
        let request = pb::WatchCreateRequest {
            key: last.key.clone(),
            start_revision: before.header.as_ref().map_or(0, |header| header.revision),
            ..Default::default()
        };
        let mut watcher = client.watch([request]).await?;
        let deleted = i32::from(mvccpb::event::EventType::Delete);
        loop {
            match next_answer(&mut watcher).await {
                Ok(answer) if answer.events.iter().any(|event| event.r#type == deleted) => break,
                Ok(_) => {}
                // Compacted between the range and the watch: look again.
                Err(error) if error.is(text::COMPACTED) => break,
                Err(error) => return Err(error),
            }
        }
    }
}

/// The range that ends after all keys with this prefix: the prefix with its last byte that is not 0xff raised by one. All
/// bytes 0xff: `\0`, which stands for the end of all keys.
pub fn prefix_range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// The oldest key with this prefix.
fn first_created(prefix: &str) -> pb::RangeRequest {
    pb::RangeRequest {
        key: prefix.to_owned().into(),
        range_end: prefix_range_end(prefix.as_bytes()).into(),
        sort_order: pb::range_request::SortOrder::Ascend.into(),
        sort_target: pb::range_request::SortTarget::Create.into(),
        limit: 1,
        ..Default::default()
    }
}

/// "This key was created at this revision"; 0: it does not exist.
fn compare_created(key: &str, revision: i64) -> pb::Compare {
    pb::Compare {
        result: pb::compare::CompareResult::Equal.into(),
        target: pb::compare::CompareTarget::Create.into(),
        key: key.to_owned().into(),
        target_union: Some(pb::compare::TargetUnion::CreateRevision(revision)),
        ..Default::default()
    }
}

fn op(request: pb::request_op::Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn range_op(request: pb::RangeRequest) -> pb::RequestOp {
    op(pb::request_op::Request::RequestRange(request))
}

/// Key-values of the range that was operation number `at` of a transaction.
fn take_range(answer: &mut pb::TxnResponse, at: usize) -> Option<Vec<mvccpb::KeyValue>> {
    match answer.responses.get_mut(at)?.response.as_mut()? {
        pb::response_op::Response::ResponseRange(range) => Some(std::mem::take(&mut range.kvs)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix() {
        let table: [(&[u8], &[u8]); 4] = [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"lock/", b"lock0")];
        for (prefix, end) in table {
            assert_eq!(prefix_range_end(prefix), end, "{prefix:?}");
        }
    }
}
