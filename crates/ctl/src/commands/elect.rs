//! `elect`: stands for election and leads until a signal, or watches who leads.

use dolmen_cli::{Call, Command, Failure, Flag, words};
use dolmen_client::{Election, Error, Observer, Session};
use dolmen_proto::etcdserverpb as pb;

use crate::connect::{self, Limit, Link};
use crate::hints;
use crate::process::Stop;
use crate::tool::CONCURRENCY;

/// `elect`
pub static COMMAND: Command = Command {
    usage: "elect <election-name> [proposal]",
    short: "Observes and participates in leader election",
    group: CONCURRENCY,
    flags: &[Flag::boolean("listen", "observation mode").short('l')],
    run: Some(run),
    ..Command::NEW
};

fn run(call: &Call) -> Result<(), Failure> {
    let args = call.args();
    if args.is_empty() || args.len() > 2 {
        return Err(Failure::bad_args("elect takes one election name argument and an optional proposal argument"));
    }
    let listen = call.boolean("listen");
    // The two below are told after the connection is made, as etcdctl does.
    connect::run(call, Limit::None, async |link| match args {
        [_] if !listen => Err(Failure::bad_args("no proposal argument but -l not set")),
        [name] => observe(&link, name).await,
        [_, _] if listen => Err(Failure::bad_args("proposal given but -l is set")),
        _ => campaign(&link, &args[0], words::bytes(&args[1])).await,
    })
}

/// Prints the leader's value, and each one that follows, until a signal.
async fn observe(link: &Link, name: &str) -> Result<(), Failure> {
    let mut stop = Stop::new()?;
    let mut observer = Observer::of(&link.client, name);
    loop {
        tokio::select! {
            leader = observer.next() => match leader {
                Ok(leader) => link.printer.get(&leader)?,
                Err(e) => return Err(hints::advise(Failure::error("elect: observer lost"), &e)),
            },
            () = stop.wait() => return Ok(()),
        }
    }
}

/// Waits to be elected, prints the key that says so, and leads until a signal, after which it resigns.
async fn campaign(link: &Link, name: &str, proposal: Vec<u8>) -> Result<(), Failure> {
    let session = Session::new(&link.client, 0).await.map_err(|e| hints::failure(&e))?;
    let mut stop = Stop::new()?;
    let mut election = Election::new(&session, name);
    let elected = tokio::select! {
        elected = election.campaign(proposal) => Some(elected),
        () = stop.wait() => None,
    };
    match elected {
        Some(elected) => elected.map_err(|e| hints::failure(&e))?,
        None => {
            // Withdraws the candidacy; the signal is what ends the command, whatever comes of this.
            let _ = election.resign().await;
            return Err(hints::failure(&Error::canceled()));
        }
    }
    let request = pb::RangeRequest { key: election.key().to_owned().into(), ..Default::default() };
    let own = link.client.range(request).await.map_err(|e| hints::failure(&e))?;
    link.printer.get(&own)?;
    tokio::select! {
        () = stop.wait() => {}
        () = session.done() => return Err(Failure::error("elect: session expired")),
    }
    election.resign().await.map_err(|e| hints::failure(&e))
}
