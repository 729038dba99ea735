//! `make-mirror`: copies a prefix to another cluster, and then every change of it, until something fails.
//!
//! First the base: all keys as they stand at one revision, a put each. Then the changes from there on, those of one
//! revision in one transaction. Leases are not copied. With `--rev` above 1 there is no base, only the changes from
//! that revision.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dolmen_cli::progress::Bar;
use dolmen_cli::{Call, Command, Failure, Flag, print};
use dolmen_client::{Client, Error, text, watch_error};
use dolmen_proto::etcdserverpb as pb;
use dolmen_proto::etcdserverpb::request_op::Request;
use dolmen_proto::mvccpb::{Event, event::EventType};

use super::get::range;
use crate::connect::{self, Options, Secure, block_on, user};
use crate::hints;
use crate::output::Printer;
use crate::tool::UTILITY;

/// `make-mirror`
pub static COMMAND: Command = Command {
    usage: "make-mirror [options] <destination>",
    short: "Makes a mirror at the destination etcd cluster",
    group: UTILITY,
    flags: &[
        Flag::text("prefix", "", "Key-value prefix to mirror"),
        Flag::int64("rev", "0", "Specify the kv revision to start to mirror"),
        Flag::uint64(
            "max-txn-ops",
            "128",
            "Maximum number of operations permitted in a transaction during syncing updates.",
        ),
        Flag::text(
            "dest-prefix",
            "",
            "destination prefix to mirror a prefix to a different prefix in the destination cluster",
        ),
        Flag::boolean("no-dest-prefix", "mirror key-values to the root of the destination cluster"),
        Flag::text(
            "dest-cert",
            "",
            "Identify secure client using this TLS certificate file for the destination cluster",
        ),
        Flag::text("dest-key", "", "Identify secure client using this TLS key file"),
        Flag::text("dest-cacert", "", "Verify certificates of TLS enabled secure servers using this CA bundle"),
        Flag::boolean("dest-insecure-transport", "Disable transport security for client connections").default("true"),
        Flag::text(
            "dest-user",
            "",
            "Destination username[:password] for authentication (prompt if password is not supplied)",
        ),
        Flag::text(
            "dest-password",
            "",
            "Destination password for authentication (if this option is used, --user option shouldn't include password)",
        ),
    ],
    run: Some(run),
    ..Command::NEW
};

/// Keys of the base that are read at once.
const PAGE: i64 = 1000;
/// How often the number of mirrored changes is said on stdout.
const REPORT_EVERY: Duration = Duration::from_secs(30);

fn run(call: &Call) -> Result<(), Failure> {
    let [destination] = call.args() else {
        return Err(Failure::bad_args("make-mirror takes one destination argument"));
    };
    block_on(async {
        let to = destination_options(call, destination)?.connect().await?;
        let from = Options::read(call).await?.connect().await?;
        let mut mirror = Mirror::new(call, from, to)?;
        let total = mirror.total.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(REPORT_EVERY).await;
                print(format!("{}\n", total.load(Ordering::Relaxed)));
            }
        });
        // A mirror has no good end.
        mirror.run().await
    })
}

/// The destination's own TLS and user; timeouts and limits are those of the command line.
fn destination_options(call: &Call, destination: &str) -> Result<Options, Failure> {
    Ok(Options {
        endpoints: vec![destination.to_owned()],
        dial_timeout: connect::duration(call, "dial-timeout"),
        command_timeout: connect::duration(call, "command-timeout"),
        command_timeout_given: call.changed("command-timeout"),
        keepalive_time: connect::duration(call, "keepalive-time"),
        keepalive_timeout: connect::duration(call, "keepalive-timeout"),
        max_request_bytes: call.int("max-request-bytes"),
        max_recv_bytes: call.int("max-recv-bytes"),
        secure: Secure {
            cert: call.text("dest-cert").to_owned(),
            key: call.text("dest-key").to_owned(),
            cacert: call.text("dest-cacert").to_owned(),
            insecure_transport: call.boolean("dest-insecure-transport"),
            ..Secure::default()
        },
        auth: user(call.text("dest-user"), call.text("dest-password"), "Destination Password: ")?,
        // It prints nothing.
        printer: Printer::new("simple", false)?,
    })
}

/// Keys keep their prefix unless another one, or none, is asked for. (etcdctl lets it fall when `--rev` is given.)
fn destination_prefix(prefix: &[u8], given: Vec<u8>, none: bool) -> Vec<u8> {
    if none || !given.is_empty() { given } else { prefix.to_vec() }
}

struct Mirror {
    from: Client,
    to: Client,
    prefix: Vec<u8>,
    to_prefix: Vec<u8>,
    /// Revision that the destination stands at; 0: nothing mirrored yet.
    revision: i64,
    max_txn_ops: usize,
    /// Puts and deletes made.
    total: Arc<AtomicU64>,
    bar: Bar,
}

impl Mirror {
    fn new(call: &Call, from: Client, to: Client) -> Result<Mirror, Failure> {
        let to_prefix = call.text_bytes("dest-prefix");
        let no_prefix = call.boolean("no-dest-prefix");
        if no_prefix && !to_prefix.is_empty() {
            return Err(Failure::bad_args(
                "`--dest-prefix` and `--no-dest-prefix` cannot be set at the same time, choose one",
            ));
        }
        let prefix = call.text_bytes("prefix");
        Ok(Mirror {
            from,
            to,
            to_prefix: destination_prefix(&prefix, to_prefix, no_prefix),
            prefix,
            revision: (call.int("rev") - 1).max(0),
            max_txn_ops: usize::try_from(call.uint("max-txn-ops")).unwrap_or(usize::MAX),
            total: Arc::new(AtomicU64::new(0)),
            bar: Bar::count("mirrored", None),
        })
    }

    async fn run(&mut self) -> Result<(), Failure> {
        if self.revision == 0 {
            self.base().await.map_err(|e| hints::failure(&e))?;
        }
        self.changes().await
    }

    /// Copies everything as it stands now.
    async fn base(&mut self) -> Result<(), Error> {
        let probe = if self.prefix.is_empty() { Bytes::from_static(b"foo") } else { self.prefix.clone().into() };
        let now = self.from.range(pb::RangeRequest { key: probe, ..Default::default() }).await?;
        self.revision = now.header.map_or(0, |header| header.revision);
        let (first, range_end) = range(self.prefix.clone(), None, true, false);
        let (mut key, range_end) = (Bytes::from(first), Bytes::from(range_end));
        loop {
            let page = self
                .from
                .range(pb::RangeRequest {
                    key,
                    range_end: range_end.clone(),
                    limit: PAGE,
                    revision: self.revision,
                    ..Default::default()
                })
                .await?;
            for kv in &page.kvs {
                let put =
                    pb::PutRequest { key: self.renamed(&kv.key).into(), value: kv.value.clone(), ..Default::default() };
                self.to.put(put).await?;
                self.count();
            }
            match page.kvs.last() {
                Some(last) if page.more => key = [&last.key[..], &[0]].concat().into(),
                _ => return Ok(()),
            }
        }
    }

    /// Follows the changes after `self.revision`.
    async fn changes(&mut self) -> Result<(), Failure> {
        let (key, range_end) = range(self.prefix.clone(), None, true, false);
        let request = pb::WatchCreateRequest {
            key: key.into(),
            range_end: range_end.into(),
            start_revision: self.revision + 1,
            ..Default::default()
        };
        let mut watcher = self.from.watch([request]).await.map_err(|e| hints::failure(&e))?;
        while let Some(answer) = watcher.next().await {
            // Go's mirror has no words for the end of its watch but these.
            let lost = |e: &Error| hints::advise(Failure::error("<nil>"), e).hint(format!("the watch ended: {e}"));
            let answer = answer.map_err(|e| lost(&e))?;
            match watch_error(&answer) {
                Some(e) if e.is(text::COMPACTED) => return Err(hints::failure(&e)),
                Some(e) if answer.canceled => return Err(lost(&e)),
                _ => self.apply(&answer.events).await.map_err(|e| hints::failure(&e))?,
            }
        }
        Err(Failure::error("<nil>"))
    }

    /// Makes the changes of one answer, a transaction for each revision of the source, or more when they are too many
    /// for one.
    async fn apply(&mut self, events: &[Event]) -> Result<(), Error> {
        let mut operations = Vec::new();
        let mut last = 0;
        for event in events {
            let Some(kv) = &event.kv else { continue };
            if (last != 0 && kv.mod_revision > last) || operations.len() == self.max_txn_ops {
                self.commit(std::mem::take(&mut operations)).await?;
            }
            last = kv.mod_revision;
            let key = self.renamed(&kv.key).into();
            let request = if event.r#type == EventType::Delete as i32 {
                Request::RequestDeleteRange(pb::DeleteRangeRequest { key, ..Default::default() })
            } else {
                Request::RequestPut(pb::PutRequest { key, value: kv.value.clone(), ..Default::default() })
            };
            operations.push(pb::RequestOp { request: Some(request) });
            self.count();
        }
        if operations.is_empty() { Ok(()) } else { self.commit(operations).await }
    }

    async fn commit(&self, success: Vec<pb::RequestOp>) -> Result<(), Error> {
        self.to.txn(pb::TxnRequest { success, ..Default::default() }).await.map(|_| ())
    }

    /// The key at the destination.
    fn renamed(&self, key: &[u8]) -> Vec<u8> {
        renamed(key, &self.prefix, &self.to_prefix)
    }

    fn count(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
        self.bar.add(1);
    }
}

fn renamed(key: &[u8], prefix: &[u8], to: &[u8]) -> Vec<u8> {
    match key.strip_prefix(prefix) {
        Some(rest) => [to, rest].concat(),
        None => key.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_prefix_unless_another_or_none_is_wanted() {
        let mirrored = |given: &str, none| {
            let to = destination_prefix(b"app/", given.into(), none);
            String::from_utf8(renamed(b"app/key", b"app/", &to)).expect("text")
        };
        assert_eq!(mirrored("", false), "app/key");
        assert_eq!(mirrored("other/", false), "other/key");
        assert_eq!(mirrored("", true), "key");
    }
}
