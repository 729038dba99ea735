//! The data directory as it is found: made, and looked at for what an operator should know.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dolmen_env::Disk;

use crate::failure::Failure;

/// What a member keeps there: its data, and certificates that it has made itself.
const OWN: [&str; 2] = ["member", "fixtures"];

/// Makes the directory if it is not there, and warns of what is odd about one that is: others who may read it, and files
/// that are not the member's.
///
/// # Errors
/// It cannot be made or entered.
pub fn prepare(disk: &dyn Disk, dir: &Path) -> Result<(), Failure> {
    disk.create_dir_all(dir).map_err(|error| Failure::of_directory(dir, &error))?;
    if let Some(error) = std::fs::metadata(dir).ok().and_then(|found| open_to_others(dir, found.mode())) {
        tracing::warn!(error, "check file permission");
    }
    let names = disk.read_dir(dir).map_err(|error| Failure::of_directory(dir, &error))?;
    for filename in foreign(names) {
        tracing::warn!(filename, data_dir = %dir.display(), "found invalid file under data directory");
    }
    Ok(())
}

/// etcd's words for a directory of another mode than 0700.
fn open_to_others(dir: &Path, mode: u32) -> Option<String> {
    let permissions = mode & 0o777;
    (permissions != 0o700).then(|| {
        let letters: String = (0..9)
            .map(|bit| if permissions & (0o400 >> bit) == 0 { '-' } else { char::from(b"rwx"[bit % 3]) })
            .collect();
        let sticky = if mode & 0o1000 == 0 { "" } else { "t" };
        format!(
            "directory {dir:?} exist, but the permission is \"d{sticky}{letters}\". The recommended permission is \"-rwx------\" to \
             prevent possible unprivileged access to the data"
        )
    })
}

fn foreign(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| !OWN.contains(&name.as_str()));
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_who_may_read_are_named_as_etcd_names_them() {
        let dir = Path::new("/d");
        assert_eq!(open_to_others(dir, 0o040_700), None);
        assert_eq!(
            open_to_others(dir, 0o040_777).as_deref(),
            Some(
                "directory \"/d\" exist, but the permission is \"drwxrwxrwx\". The recommended permission is \"-rwx------\" to \
                 prevent possible unprivileged access to the data"
            )
        );
        assert!(open_to_others(dir, 0o041_750).is_some_and(|text| text.contains("\"dtrwxr-x---\"")));
    }

    #[test]
    fn files_of_others_are_told_from_our_own() {
        let names = ["member", "lost+found", "fixtures", "a"].map(str::to_owned).to_vec();
        assert_eq!(foreign(names), ["a", "lost+found"]);
    }
}
