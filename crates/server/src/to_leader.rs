//! What only the leader can do with leases, asked of it through its peer port.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use dolmen_api::{LeaseForwarder, PeerAnswer};
use dolmen_transport::{LeasePipes, PeerClient, PeerUrl};
use dolmen_types::MemberId;

/// How long one of the leader's URLs may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the leader's peer URLs in turn.
pub struct ToLeader {
    client: PeerClient,
    renewals: LeasePipes,
}

impl ToLeader {
    /// `runtimes`: of the edge, each of which gets a pipe of its own.
    pub fn new(client: PeerClient, runtimes: usize) -> Self {
        Self { renewals: LeasePipes::new(client.clone(), runtimes), client }
    }
}

impl LeaseForwarder for ToLeader {
    fn post<'a>(
        &'a self,
        _member: MemberId,
        urls: &'a [String],
        path: &'static str,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = PeerAnswer> + Send + 'a>> {
        Box::pin(async move {
            let mut last = std::io::Error::other("the leader has no peer URL");
            for url in urls {
                let url = match PeerUrl::parse(url) {
                    Ok(url) => url,
                    Err(error) => {
                        last = std::io::Error::other(error);
                        continue;
                    }
                };
                let answer = match path {
                    "/leases/internal" => self.client.post_leases_internal(&url, body.clone(), TIMEOUT).await,
                    _ => self.client.post_leases(&url, body.clone(), TIMEOUT).await,
                };
                match answer {
                    Ok(response) => return Ok((response.status.as_u16(), response.body)),
                    Err(error) => last = std::io::Error::other(error),
                }
            }
            Err(last)
        })
    }

    fn renew<'a>(
        &'a self,
        runtime: u16,
        member: MemberId,
        urls: &'a [String],
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = PeerAnswer> + Send + 'a>> {
        let pending = urls.first().and_then(|url| self.renewals.post(usize::from(runtime), url, &body));
        Box::pin(async move {
            let answer = match pending {
                Some(pending) => pending.await,
                None => None,
            };
            match answer {
                Some(answer) => Ok(answer),
                // A renewal made twice is one: it may be sent again whatever became of it.
                None => self.post(member, urls, "/leases", body).await,
            }
        })
    }
}
