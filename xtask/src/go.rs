//! The outside judges: Go etcd, its tools and its tests, built from `interop/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{self, Result};

const NEEDED: (u32, u32) = (1, 26);

/// Whether Go is there and new enough.
///
/// # Errors
/// It is not; says what to do.
pub fn check() -> Result {
    let remedy = "install Go 1.26 or newer and put its bin folder on PATH; the tests from outside \
                  need it and are never skipped";
    let said = run::text(Command::new("go").arg("version")).map_err(|_| format!("Go is missing: {remedy}"))?;
    match version(&said) {
        Some(found) if found >= NEEDED => Ok(()),
        _ => Err(format!("`go version` says {:?}, which is too old or unknown: {remedy}", said.trim())),
    }
}

/// `go version go1.26.8 linux/amd64`
fn version(said: &str) -> Option<(u32, u32)> {
    let word = said.split(' ').find_map(|word| word.strip_prefix("go1."))?;
    let minor: String = word.chars().take_while(char::is_ascii_digit).collect();
    Some((1, minor.parse().ok()?))
}

/// A judge, and how it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The oracle.
    Etcd37,
    /// The last release, and the faster one.
    Etcd36,
    Etcdctl,
    Etcdutl,
    /// etcd's `tests/common`.
    CommonTest,
    /// etcd's `tests/e2e`.
    E2eTest,
    /// Our tests with the Go client.
    InteropTest,
    Differential,
    Kill9,
    Walcheck,
    Boltcheck,
    /// Fills a cluster with everything there is.
    Randomdb,
    /// etcd's load tool.
    Benchmark,
}

impl Judge {
    /// File name, folder below `interop`, arguments of `go` before `-o`, and after it.
    fn recipe(self) -> (&'static str, &'static str, &'static [&'static str], &'static str) {
        const BUILD: &[&str] = &["build"];
        match self {
            Judge::Etcd37 => ("etcd-3.7.3", "", BUILD, "go.etcd.io/etcd/server/v3"),
            Judge::Etcd36 => ("etcd-3.6.16", "etcd36", BUILD, "go.etcd.io/etcd/server/v3"),
            Judge::Etcdctl => ("etcdctl", "", BUILD, "go.etcd.io/etcd/etcdctl/v3"),
            Judge::Etcdutl => ("etcdutl", "", BUILD, "go.etcd.io/etcd/etcdutl/v3"),
            Judge::CommonTest => {
                ("common.test", "", &["test", "-c", "-tags", "e2e"], "go.etcd.io/etcd/tests/v3/common")
            }
            Judge::E2eTest => ("e2e.test", "", &["test", "-c", "-tags", "e2e"], "go.etcd.io/etcd/tests/v3/e2e"),
            Judge::InteropTest => ("interop.test", "", &["test", "-c"], "."),
            Judge::Differential => ("differential", "", BUILD, "./cmd/differential"),
            Judge::Kill9 => ("kill9", "", BUILD, "./cmd/kill9"),
            Judge::Walcheck => ("walcheck", "", BUILD, "./cmd/walcheck"),
            Judge::Randomdb => ("randomdb", "", BUILD, "./cmd/randomdb"),
            Judge::Boltcheck => ("boltcheck", "", BUILD, "./cmd/boltcheck"),
            Judge::Benchmark => ("benchmark", "benchmark", BUILD, "go.etcd.io/etcd/v3/tools/benchmark"),
        }
    }

    /// Where it lies once built.
    pub fn path(self) -> PathBuf {
        run::target().join("judges").join(self.recipe().0)
    }

    /// Builds it, which is quick when nothing has changed, and returns where it is.
    ///
    /// # Errors
    /// Go is missing or refuses.
    pub fn build(self) -> Result<PathBuf> {
        let (_, folder, arguments, package) = self.recipe();
        let path = self.path();
        if let Some(dir) = path.parent() {
            run::make_dir(dir)?;
        }
        let mut go = command(&run::root().join("interop").join(folder));
        go.args(arguments).arg("-o").arg(&path).arg(package);
        run::run(&mut go)?;
        Ok(path)
    }
}

/// Builds several.
///
/// # Errors
/// As [`Judge::build`].
pub fn build(judges: &[Judge]) -> Result {
    check()?;
    for judge in judges {
        judge.build()?;
    }
    Ok(())
}

/// `go` in a folder, set up so that only what is pinned gets built.
pub fn command(folder: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(folder).env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=readonly -trimpath -buildvcs=false");
    go
}

/// The folder of a module that `interop` pins. Reading it is fine; it is not to be changed.
///
/// # Errors
/// Go is missing, or the module cannot be had.
pub fn module_dir(module: &str) -> Result<PathBuf> {
    let said = run::text(command(&run::root().join("interop")).args(["list", "-m", "-f", "{{.Dir}}", module]))?;
    if said.trim().is_empty() {
        return Err(format!("go list -m {module} names no folder: run `go mod download` in interop"));
    }
    Ok(PathBuf::from(said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("go version go1.26.8 linux/amd64\n"), Some((1, 26)));
        assert_eq!(version("go version go1.9 linux/amd64"), Some((1, 9)));
        assert_eq!(version("no such thing"), None);
    }
}
