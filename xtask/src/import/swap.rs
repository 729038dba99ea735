//! Three members of etcd's become three of ours, one after the other, while somebody writes; and three of etcd's again.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::state::{State, etcdctl};
use super::{Release, export};
use crate::go::Judge;
use crate::member::Cluster;
use crate::run::Result;

/// How long members serve between two swaps.
const BETWEEN: Duration = Duration::from_secs(2);

/// The way there and back. Back is etcd 3.7.3 always: a cluster whose last member of an older release is gone has become 3.7.
///
/// # Errors
/// A member does not come up, acknowledged writes are gone, or hashes differ.
pub fn swap(release: &Release, dolmen: &Path, tools: &Path, dir: &Path) -> Result<String> {
    let mut cluster = Cluster::start(&release.program, 3, dir, &["--snapshot-count=400"])?;
    let endpoints = cluster.endpoints();
    let stop = AtomicBool::new(false);
    let (written, swapped) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&endpoints, &stop));
        let swapped = (|| -> Result {
            for member in 0..3 {
                std::thread::sleep(BETWEEN);
                cluster.stop_one(member);
                cluster.set_program_of(member, dolmen);
                cluster.restart()?;
            }
            for member in 0..3 {
                std::thread::sleep(BETWEEN);
                cluster.stop_one(member);
                let (data, ours) = (cluster.data(member).to_owned(), cluster.data(member).with_extension("ours"));
                std::fs::rename(&data, &ours).map_err(|error| error.to_string())?;
                export(tools, &ours, &data, None)?;
                cluster.set_program_of(member, &Judge::Etcd37.path());
                cluster.restart()?;
            }
            std::thread::sleep(BETWEEN);
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        (writer.join().map_err(|_| "the writer panicked".to_owned()), swapped)
    });
    swapped?;
    let written = written??;
    let text = crate::run::text(etcdctl(&endpoints).args(["get", "swap/", "--prefix", "--keys-only"]))?;
    let there: BTreeSet<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let lost: Vec<&String> = written.acknowledged.iter().filter(|key| !there.contains(key.as_str())).collect();
    let hashes: BTreeSet<String> = State::of(&endpoints)?
        .hashes
        .into_iter()
        .map(|hash| hash.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    cluster.stop();
    if !lost.is_empty() || hashes.len() != 1 || written.acknowledged.is_empty() {
        return Err(format!("{} acknowledged writes are gone; hashes {hashes:?}", lost.len()));
    }
    Ok(format!(
        "etcd {} swapped member by member, and back to etcd 3.7.3: {} writes acknowledged, none lost, {} failed, longest \
         pause {} ms, equal hashes",
        release.name,
        written.acknowledged.len(),
        written.failed,
        written.pause.as_millis()
    ))
}

struct Written {
    acknowledged: Vec<String>,
    failed: usize,
    pause: Duration,
}

/// Puts one key after another.
fn write_until(endpoints: &str, stop: &AtomicBool) -> Result<Written> {
    let mut written = Written { acknowledged: Vec::new(), failed: 0, pause: Duration::ZERO };
    let mut last = Instant::now();
    for at in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("swap/{at:06}");
        let mut put = Command::new(Judge::Etcdctl.path());
        put.args(["--endpoints", endpoints, "--command-timeout=3s", "put", &key, "value"]);
        let status = put.stdout(Stdio::null()).stderr(Stdio::null()).status().map_err(|error| error.to_string())?;
        if status.success() {
            written.pause = written.pause.max(last.elapsed());
            last = Instant::now();
            written.acknowledged.push(key);
        } else {
            written.failed += 1;
        }
    }
    Ok(written)
}
