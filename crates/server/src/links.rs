//! `dolmen install-links DIR`: the names that manifests and scripts call, as links to this binary.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::ExitCode;

/// What the binary does depends on the name it is called by; see `main`.
pub const NAMES: [&str; 4] = ["etcd", "etcdctl", "etcdutl", "etcd-defrag"];

/// Makes the links, or says why not and changes nothing. A link that is already ours is left as it is.
pub fn run(arguments: &[String]) -> ExitCode {
    let [dir] = arguments else {
        eprintln!("usage: dolmen install-links DIR\nmakes {} in DIR, each a link to this binary", NAMES.join(", "));
        return ExitCode::from(2);
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return refuse(&format!("this binary's own path is unknown: {error}")),
    };
    match install(&program, Path::new(dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => refuse(&text),
    }
}

fn refuse(text: &str) -> ExitCode {
    eprintln!("dolmen install-links: {text}");
    ExitCode::FAILURE
}

fn install(program: &Path, dir: &Path) -> Result<(), String> {
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
    for link in wanted {
        symlink(program, &link).map_err(|error| format!("{}: {error}", link.display()))?;
        println!("{} -> {}", link.display(), program.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_all_links_or_none() {
        let scratch = std::env::temp_dir().join(format!("dolmen-links-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&scratch);
        let (program, dir) = (scratch.join("dolmen"), scratch.join("bin"));
        install(&program, &dir).expect("an empty folder");
        for name in NAMES {
            assert_eq!(std::fs::read_link(dir.join(name)).expect("a link"), program);
        }
        install(&program, &dir).expect("a second time changes nothing");

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
