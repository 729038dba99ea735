//! What random databases do not have: authentication that is on, and a full quota with its alarm.

use std::path::Path;

use super::state::{Auth, State, etcdctl, kept_buckets};
use super::{Release, export};
use crate::go::Judge;
use crate::member::Cluster;
use crate::run::{self, Result};

/// Small enough to be full soon; for databases of etcd and Dolmen alike.
const QUOTA: &str = "--quota-backend-bytes=1048576";

/// Puts with this much each fill the quota.
const VALUE: usize = 100_000;

/// A root user with its password, as `--user` takes it.
const ROOT: &str = "root:top";

/// Imported, exported and compared, down to a login.
///
/// # Errors
/// What is not kept.
pub fn kept(release: &Release, dolmen: &Path, tools: &Path, dir: &Path) -> Result<String> {
    let mut cluster = Cluster::start(&release.program, 1, dir, &[QUOTA])?;
    let endpoints = cluster.endpoints();
    let run = |arguments: &[&str]| run::text(etcdctl(&endpoints).args(arguments));
    let granted = run(&["lease", "grant", "600"])?;
    let lease = granted.split(' ').nth(1).unwrap_or_default();
    run(&["put", "leased", "value", "--lease", lease])?;
    for arguments in [
        "user add root:top",
        "user add reader:secret",
        "role add readers",
        "role grant-permission readers read key/ --prefix",
        "user grant-role root root",
        "user grant-role reader readers",
    ] {
        // 3.5 has no role root of its own.
        if arguments.ends_with("root root") {
            let _there_already = run(&["role", "add", "root"]);
        }
        run(&arguments.split(' ').collect::<Vec<_>>())?;
    }
    let value = "v".repeat(VALUE);
    let full = (0..40).find_map(|at| run(&["put", &format!("key/{at:02}"), &value]).err());
    let full = full.ok_or("the quota does not get full")?;
    if !full.contains("database space exceeded") {
        return Err(full);
    }

    let (theirs, auth) = (State::of(&endpoints)?, Auth::of_as(&endpoints, None)?);
    if theirs.alarms.len() != 1 || auth.len() != 4 {
        return Err(format!("too little to keep: {theirs:?} {auth:?}"));
    }
    // The passwords are the same: one logs in, and may what its role says.
    let logins = |whose: &str| -> Result {
        run(&["get", "key/00", "--user", "reader:secret"])?;
        let denied = run(&["get", "leased", "--user", "reader:secret"]).err().unwrap_or_default();
        let wrong = run(&["get", "key/00", "--user", "reader:wrong"]).err().unwrap_or_default();
        let nobody = run(&["get", "key/00"]).err().unwrap_or_default();
        let refused = denied.contains("permission denied")
            && wrong.contains("invalid user ID or password")
            && nobody.contains("user name is empty");
        if refused { Ok(()) } else { Err(format!("{whose}: {denied:?}, {wrong:?}, {nobody:?}")) }
    };
    run(&["auth", "enable"])?;
    logins("etcd before the import")?;
    cluster.stop();

    cluster.set_program(dolmen);
    cluster.restart()?;
    logins("imported")?;
    theirs.expect("imported", &State::of_as(&endpoints, ROOT)?)?;
    auth.expect("imported", &Auth::of_as(&endpoints, Some(ROOT))?)?;
    let full = run(&["put", "more", &value, "--user", ROOT]).err().unwrap_or_default();
    if !full.contains("database space exceeded") {
        return Err(format!("the alarm is there and stops nobody: {full:?}"));
    }
    cluster.stop();
    let data = cluster.data(0).to_owned();
    let ours = data.with_extension("ours");
    std::fs::rename(&data, &ours).map_err(|error| error.to_string())?;
    export(tools, &ours, &data, None)?;
    let original = kept_buckets(tools, &ours.join("member.etcd/snap/db"))?;
    let exported = kept_buckets(tools, &data.join("member/snap/db"))?;
    if original != exported {
        return Err(format!("buckets: were {original:?}, are {exported:?}"));
    }
    cluster.set_program(&Judge::Etcd37.path());
    cluster.restart()?;
    logins("exported")?;
    theirs.expect("exported", &State::of_as(&endpoints, ROOT)?)?;
    auth.expect("exported", &Auth::of_as(&endpoints, Some(ROOT))?)?;
    cluster.stop();
    Ok(format!(
        "etcd {}: users, roles, passwords, authentication that is on, a lease and the alarm are kept there and back",
        release.name
    ))
}
