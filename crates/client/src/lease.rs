//! Leases kept alive.

use std::time::Duration;

use dolmen_proto::etcdserverpb as pb;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::{Error, code, text};

const PATH: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// Answers that wait for the caller; further ones are dropped, the lease is renewed all the same.
const MAX_WAITING: usize = 16;
/// A renewal without answer is asked again, and a lost stream opened again, after so long.
const RETRY: Duration = Duration::from_millis(500);
/// How much longer than the dial timeout the first answer may take.
const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// The renewals of one lease, as long as this lives. Dropping it leaves the lease to expire.
pub struct KeepAlive {
    answers: mpsc::Receiver<pb::LeaseKeepAliveResponse>,
}

impl KeepAlive {
    /// The next renewal; `None` when the lease is gone: expired, revoked, or not renewed for longer than its TTL.
    pub async fn next(&mut self) -> Option<pb::LeaseKeepAliveResponse> {
        self.answers.recv().await
    }
}

impl Client {
    /// Renews a lease at a third of its TTL, over lost connections, until it is gone or the returned value dropped.
    /// A time limit of this client does not bound it.
    pub fn lease_keep_alive(&self, id: i64) -> KeepAlive {
        let (outbox, answers) = mpsc::channel(MAX_WAITING);
        // A member that lost the leader cannot renew: better to hear it and go to another one.
        let client = self.with_timeout(None).with_require_leader();
        tokio::spawn(keep_alive(client, id, outbox));
        KeepAlive { answers }
    }

    /// Renews a lease once.
    ///
    /// # Errors
    /// `etcdserver: requested lease not found` when it is gone already.
    pub async fn lease_keep_alive_once(&self, id: i64) -> Result<pb::LeaseKeepAliveResponse, Error> {
        self.core
            .within_limit(async {
                loop {
                    let error = match self.renew_once(id).await {
                        Ok(answer) if answer.ttl <= 0 => {
                            return Err(Error::status(code::NOT_FOUND, text::LEASE_NOT_FOUND));
                        }
                        Ok(answer) => return Ok(answer),
                        Err(error) => error,
                    };
                    if self.core.renews_token_for(&error) {
                        self.core.refresh_token().await?;
                    } else if error.is_halt() {
                        return Err(error);
                    }
                    tokio::time::sleep(Duration::from_millis(25)).await;
                }
            })
            .await
    }

    async fn renew_once(&self, id: i64) -> Result<pb::LeaseKeepAliveResponse, Error> {
        let (requests, mut answers) = self.core.duplex(PATH).await?;
        requests.send(&pb::LeaseKeepAliveRequest { id })?;
        match answers.next().await {
            Some(answer) => answer,
            None => Err(Error::status(code::UNAVAILABLE, "the lease stream has ended")),
        }
    }
}

/// What is known of the lease's time.
struct Due {
    /// Not renewed by then, it counts as gone.
    gone: Instant,
    /// The next renewal.
    next: Instant,
}

async fn keep_alive(client: Client, id: i64, outbox: mpsc::Sender<pb::LeaseKeepAliveResponse>) {
    let now = Instant::now();
    let mut due = Due { gone: now + client.core.dial_timeout() + FIRST_ANSWER, next: now };
    loop {
        let ended = tokio::select! {
            ended = renew(&client, id, &mut due, &outbox) => ended,
            () = outbox.closed() => return,
        };
        if ended || Instant::now() >= due.gone {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = outbox.closed() => return,
        }
    }
}

/// Renews over one stream until that is lost (false) or the lease is gone (true).
async fn renew(client: &Client, id: i64, due: &mut Due, outbox: &mpsc::Sender<pb::LeaseKeepAliveResponse>) -> bool {
    let opened = tokio::time::timeout_at(due.gone, client.core.duplex::<_, pb::LeaseKeepAliveResponse>(PATH)).await;
    let Ok(Ok((requests, mut answers))) = opened else { return false };
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(due.gone) => return true,
            () = tokio::time::sleep_until(due.next) => {
                if requests.send(&pb::LeaseKeepAliveRequest { id }).is_err() {
                    return false;
                }
                due.next = Instant::now() + RETRY;
            }
            answer = answers.next() => match answer {
                Some(Ok(answer)) if answer.ttl <= 0 => return true,
                Some(Ok(answer)) => {
                    let ttl = Duration::from_secs(answer.ttl.unsigned_abs());
                    let now = Instant::now();
                    *due = Due { gone: now + ttl, next: now + ttl / 3 };
                    // A caller that does not look loses the answer, not the lease.
                    let _ = outbox.try_send(answer);
                }
                Some(Err(error)) if client.core.renews_token_for(&error) => {
                    let _ = client.core.refresh_token().await;
                    return false;
                }
                Some(Err(_)) | None => return false,
            },
        }
    }
}
