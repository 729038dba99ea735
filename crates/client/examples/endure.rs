//! Writes and watches for a while, whatever happens to the members, and says whether the watch was whole:
//!
//! ```text
//! cargo run -p dolmen-client --example endure -- 30 127.0.0.1:2379,127.0.0.1:22379,127.0.0.1:32379
//! ```
//!
//! Each write puts the next number; one whose outcome is unknown may or may not have happened, one acknowledged has. The
//! watch must show revisions that only grow, every acknowledged number once, and no number that was never sent.

use std::collections::BTreeSet;
use std::time::Duration;

use dolmen_client::{Client, Config, Error, pb, prefix_range_end, watch_error};
use tokio::time::Instant;

#[derive(Default)]
struct Written {
    acknowledged: BTreeSet<u64>,
    unknown: BTreeSet<u64>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let usage = || Error::client("usage: endure SECONDS ENDPOINT[,ENDPOINT...]");
    let seconds: u64 = arguments.next().and_then(|text| text.parse().ok()).ok_or_else(usage)?;
    let endpoints = arguments.next().ok_or_else(usage)?;
    let client = Client::connect(Config::new(endpoints.split(','))).await?;
    let prefix = format!("endure/{}/", std::process::id());
    let range_end = prefix_range_end(prefix.as_bytes()).into();
    let request = pb::WatchCreateRequest { key: prefix.clone().into(), range_end, ..Default::default() };
    let mut watcher = client.watch([request]).await?;
    // The creation: all writes come after it.
    let _ = watcher.next().await;
    let watching = tokio::spawn(async move {
        let mut seen = Vec::new();
        let mut last = 0;
        while let Some(response) = watcher.next().await {
            let response = response?;
            if let Some(error) = watch_error(&response) {
                return Err(error);
            }
            for kv in response.events.into_iter().filter_map(|event| event.kv) {
                if kv.mod_revision <= last {
                    return Err(Error::client(format!("revision {} after {last}", kv.mod_revision)));
                }
                last = kv.mod_revision;
                let number = String::from_utf8_lossy(&kv.value).into_owned();
                if number == "end" {
                    return Ok(seen);
                }
                seen.push(number.parse().unwrap_or(u64::MAX));
            }
        }
        Err(Error::client("the watch has ended"))
    });
    let written = write(&client, &prefix, Duration::from_secs(seconds)).await;
    while let Err(error) = put(&client, format!("{prefix}end"), "end".to_owned()).await {
        eprintln!("end: {error}");
    }
    let seen = watching.await.map_err(|error| Error::client(error.to_string()))??;
    report(&written, &seen)
}

async fn write(client: &Client, prefix: &str, span: Duration) -> Written {
    let mut written = Written::default();
    let start = Instant::now();
    for number in 0.. {
        if start.elapsed() > span {
            break;
        }
        match put(client, format!("{prefix}{}", number % 100), number.to_string()).await {
            Ok(_) => written.acknowledged.insert(number),
            Err(error) => {
                eprintln!("{:.1} s, {number}: {error}", start.elapsed().as_secs_f64());
                written.unknown.insert(number)
            }
        };
    }
    written
}

async fn put(client: &Client, key: String, value: String) -> Result<pb::PutResponse, Error> {
    let request = pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() };
    client.with_timeout(Some(Duration::from_secs(5))).put(request).await
}

fn report(written: &Written, seen: &[u64]) -> Result<(), Error> {
    let distinct: BTreeSet<u64> = seen.iter().copied().collect();
    let missing = written.acknowledged.difference(&distinct).count();
    let strange =
        distinct.iter().filter(|number| !written.acknowledged.contains(number) && !written.unknown.contains(number));
    let strange = strange.count();
    let repeated = seen.len() - distinct.len();
    let (acknowledged, unknown) = (written.acknowledged.len(), written.unknown.len());
    let happened = written.unknown.intersection(&distinct).count();
    println!("{acknowledged} acknowledged, {unknown} unknown ({happened} happened), {} seen", seen.len());
    if missing + strange + repeated == 0 {
        println!("whole: nothing missing, nothing repeated");
        Ok(())
    } else {
        Err(Error::client(format!("{missing} missing, {repeated} repeated, {strange} never sent")))
    }
}
