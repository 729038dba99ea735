//! `dolmen install-links DIR`: the names that manifests and scripts call, as links to this binary.

use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::fs::symlink;
use std::path::Path;

use dolmen_cli::{Call, Failure, print};

/// What the binary does depends on the name it is called by; see `main`.
pub const NAMES: [&str; 4] = ["etcd", "etcdctl", "etcdutl", "etcd-defrag"];

/// Makes the links, or says why not and changes nothing. A link that is already ours is left as it is.
///
/// # Errors
/// The folder is not there and nobody wants it made, or something is in the way.
pub fn run(call: &Call) -> Result<(), Failure> {
    let dir = call.args().first().map(Path::new).ok_or_else(|| Failure::bad_args("which folder?"))?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::error(format!("this binary's own path is unknown: {error}")))?;
    if !dir.exists() && !call.boolean("create") && !agreed(dir) {
        return Err(Failure::error(format!("{} is not there", dir.display()))
            .hint("make it first, or have it made with --create"));
    }
    for link in install(&program, dir).map_err(Failure::error)? {
        print(format!("{link} -> {}\n", program.display()));
    }
    Ok(())
}

/// Asks whoever sits there; without anybody nothing is made.
fn agreed(dir: &Path) -> bool {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    eprint!("{} is not there. Make it? [y/N] ", dir.display());
    // Whether the question shows or not, what counts is the answer.
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Returns the links that were made.
fn install(program: &Path, dir: &Path) -> Result<Vec<String>, String> {
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut wanted = Vec::new();
    for name in NAMES {
        let link = dir.join(name);
        match std::fs::symlink_metadata(&link) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => wanted.push(link),
            Err(error) => return Err(format!("{}: {error}", link.display())),
            Ok(_) if std::fs::read_link(&link).is_ok_and(|target| target == program) => {}
            Ok(_) => return Err(format!("{} is there already; move it away, or name another folder", link.display())),
        }
    }
    let mut made = Vec::new();
    for link in wanted {
        symlink(program, &link).map_err(|error| format!("{}: {error}", link.display()))?;
        made.push(link.display().to_string());
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_all_links_or_none() {
        let scratch = std::env::temp_dir().join(format!("dolmen-links-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&scratch);
        let (program, dir) = (scratch.join("dolmen"), scratch.join("bin"));
        assert_eq!(install(&program, &dir).expect("an empty folder").len(), NAMES.len());
        for name in NAMES {
            assert_eq!(std::fs::read_link(dir.join(name)).expect("a link"), program);
        }
        assert!(install(&program, &dir).expect("a second time").is_empty(), "nothing changes");

        let occupied = scratch.join("occupied");
        std::fs::create_dir_all(&occupied).expect("a folder");
        std::fs::write(occupied.join("etcdutl"), "somebody's").expect("a file");
        let refused = install(&program, &occupied).expect_err("a file is in the way");
        assert!(refused.contains("etcdutl is there already"), "{refused}");
        assert!(!occupied.join("etcd").exists() && !occupied.join("etcdctl").exists(), "nothing was made");
        assert_eq!(std::fs::read_to_string(occupied.join("etcdutl")).expect("untouched"), "somebody's");
        std::fs::remove_dir_all(&scratch).expect("clean");
    }
}
