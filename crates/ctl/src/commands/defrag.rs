//! `defrag`: asks members, one after the other, to give free space back to the file system.

use std::time::Instant;

use dolmen_cli::{Call, Command, Failure, Flag, complain, golang};
use dolmen_proto::etcdserverpb as pb;

use crate::commands::endpoint::{at, endpoints};
use crate::connect::{self, Options};
use crate::output::say;
use crate::tool::CLUSTER_MAINTENANCE;

/// `defrag`
pub static COMMAND: Command = Command {
    usage: "defrag",
    short: "Defragments the storage of the etcd members with given endpoints",
    group: CLUSTER_MAINTENANCE,
    persistent: &[Flag::boolean("cluster", "use all endpoints from the cluster member list")],
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    connect::block_on(async {
        let options = Options::read(call).await?;
        let mut failed = false;
        for endpoint in endpoints(call, &options).await? {
            let client = at(&options, &endpoint).connect().await?.with_timeout(Some(options.command_timeout));
            let start = Instant::now();
            let outcome = client.defragment(pb::DefragmentRequest {}).await;
            let took = golang::format_duration(i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX));
            match outcome {
                Ok(_) => say(format_args!("Finished defragmenting etcd member[{endpoint}]. took {took}"))?,
                Err(e) => {
                    failed = true;
                    complain(format!("Failed to defragment etcd member[{endpoint}]. took {took}. ({e})\n"));
                }
            }
        }
        if failed { Err(Failure::silent(1)) } else { Ok(()) }
    })
}
