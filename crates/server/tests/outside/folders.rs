//! Data directories that are not what they should be: each is refused with an error that says what to do, and nothing in it
//! is changed; or it is as good as whole, and nothing that was acknowledged is lost.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::server::{PATIENCE, Server, Start, give_to_nobody};
use crate::wire::{DATA, END_HEADERS, END_STREAM, HEADERS, call, frame, message};

/// Data on disk is damaged.
const DAMAGED: i32 = 65;
const KEYS: u8 = 30;

/// A directory with some keys in it, left behind by kill -9.
fn filled(at: &Path) {
    let mut server = Start::on(at).spawn();
    server.wait_until_ready();
    let slots = || ["acked-0", "acked-1"].map(|name| fs::read(at.join("member").join(name)).ok());
    let before = slots();
    let mut wire = server.client[0].connect();
    wire.greet();
    for number in 0..KEYS {
        let id = 1 + 2 * u32::from(number);
        let put = [&[0x0a, 2, b'k', number, 0x12, 100], &[b'v'; 100][..]].concat();
        let ask = [
            frame(HEADERS, END_HEADERS, id, &call("/etcdserverpb.KV/Put")),
            frame(DATA, END_STREAM, id, &message(&put)),
        ];
        wire.send(&ask.concat()).expect("it listens");
        while let Some(frame) = wire.frame() {
            if frame.stream == id && frame.flags & END_STREAM != 0 {
                break;
            }
        }
    }
    assert_eq!(count(&server), KEYS);
    // Once the log has nothing to do, it notes how far it was durable, apart from itself. The store is written later.
    let stored = || {
        let files = contents(&at.join("member/store"));
        files.values().any(|bytes| bytes.windows(100).any(|value| value == [b'v'; 100]))
    };
    let begin = Instant::now();
    while slots() == before || !stored() {
        assert!(begin.elapsed() < PATIENCE, "nothing was noted, or stored");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.kill();
}

/// How many of the keys are there.
fn count(server: &Server) -> u8 {
    let mut found = 0;
    let mut wire = server.client[0].connect();
    wire.greet();
    for number in 0..KEYS {
        let id = 1 + 2 * u32::from(number);
        let ask = [
            frame(HEADERS, END_HEADERS, id, &call("/etcdserverpb.KV/Range")),
            frame(DATA, END_STREAM, id, &message(&[0x0a, 2, b'k', number])),
        ];
        wire.send(&ask.concat()).expect("it listens");
        while let Some(frame) = wire.frame() {
            if frame.stream == id && frame.kind == DATA && frame.payload.windows(100).any(|value| value == [b'v'; 100])
            {
                found += 1;
            }
            if frame.stream == id && frame.flags & END_STREAM != 0 {
                break;
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            // Of a log's 64 MB most are a hole, and stay one.
            let bytes = fs::read(&from).expect("a file");
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            fs::write(&to, &bytes[..used]).expect("a file");
            fs::File::options()
                .write(true)
                .open(&to)
                .and_then(|file| file.set_len(bytes.len() as u64))
                .expect("a file");
        }
    }
}

/// Every file below a directory, and what is in it.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).expect("a file"));
        }
    }
    found
}

/// Those of one folder.
fn below(mut files: BTreeMap<PathBuf, Vec<u8>>, folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files.retain(|path, _| path.starts_with(folder));
    files
}

/// Asserts that every file is as it was.
fn untouched(before: &BTreeMap<PathBuf, Vec<u8>>, dir: &Path) {
    let after = contents(dir);
    for (path, bytes) in before {
        assert!(after.get(path) == Some(bytes), "{} was changed", path.display());
    }
}

/// The one file of a folder whose name ends so.
fn only(dir: &Path, ending: &str) -> PathBuf {
    let names = fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = names.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    found.sort();
    found.pop().expect("one")
}

fn refused(dir: &Path, code: i32, says: &[&str]) {
    check_refusal(Start::on(dir), code, says);
}

fn check_refusal(start: Start<'_>, code: i32, says: &[&str]) {
    let (ended, log) = start.spawn().ends();
    assert_eq!(ended, code, "{log}");
    let error =
        log.lines().rfind(|line| line.contains("\"level\":\"error\"")).unwrap_or_else(|| panic!("no error: {log}"));
    for words in says {
        assert!(error.contains(words), "{words:?} is not in {error}");
    }
}

#[test]
fn a_directory_in_use_is_left_alone() {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path().join("data");
    let mut server = Start::on(&dir).spawn();
    server.wait_until_ready();
    // Its log would be that of the first: another name for the same directory.
    let alias = scratch.path().join("alias");
    std::os::unix::fs::symlink(&dir, &alias).expect("a link");
    refused(&alias, 1, &["is in use by another process: stop it, or choose another --data-dir"]);
    server.is_well();
}

#[test]
fn damaged_directories_are_refused_and_not_touched() {
    let scratch = tempfile::tempdir().expect("a directory");
    let good = scratch.path().join("good");
    filled(&good);
    type Harm = fn(&Path);
    let cases: &[(&str, Harm, &[&str])] = &[
        (
            "no manifest",
            |m| fs::remove_file(m.join("store/MANIFEST")).unwrap(),
            &["MANIFEST: missing", "restore the directory"],
        ),
        ("empty manifest", |m| fs::write(m.join("store/MANIFEST"), b"").unwrap(), &["MANIFEST", "add it again"]),
        ("half a manifest", |m| cut(&m.join("store/MANIFEST"), 32), &["MANIFEST", "add it again"]),
        ("foreign manifest", |m| fs::write(m.join("store/MANIFEST"), [7; 64]).unwrap(), &["MANIFEST", "move it out"]),
        ("no segment", |m| fs::remove_file(only(&m.join("store"), ".seg")).unwrap(), &[".seg: missing", "restore"]),
        (
            "empty segment",
            |m| fs::write(only(&m.join("store"), ".seg"), b"").unwrap(),
            &[".seg: damaged at byte 0", "restore"],
        ),
        ("no log", |m| fs::remove_dir_all(m.join("wal")).unwrap(), &["member/wal are missing", "bring them back"]),
        (
            "an empty log",
            |m| fs::write(only(&m.join("wal"), ".wal"), b"").unwrap(),
            &["the log is damaged", "remove the member"],
        ),
        ("a cut log", |m| cut(&only(&m.join("wal"), ".wal"), 300), &["the log is damaged", "remove the member"]),
        (
            "a log of junk",
            |m| fs::write(only(&m.join("wal"), ".wal"), [7; 4096]).unwrap(),
            &["the log is damaged", "remove the member"],
        ),
    ];
    for (name, harm, says) in cases {
        let dir = scratch.path().join(name);
        copy(&good, &dir);
        harm(&dir.join("member"));
        let before = contents(&dir);
        refused(&dir, DAMAGED, says);
        // A store is opened, and loses what stands behind its last batch, before the log is looked at.
        let before = if name.contains("log") { below(before, &dir.join("member/wal")) } else { before };
        untouched(&before, &dir);
    }
    // Whoever undoes the harm has lost nothing.
    let mut server = Start::on(&good).spawn();
    server.wait_until_ready();
    assert_eq!(count(&server), KEYS);
}

fn cut(path: &Path, len: u64) {
    fs::File::options().write(true).open(path).and_then(|file| file.set_len(len)).expect("a file");
}

#[test]
fn what_the_system_refuses_is_not_called_damaged() {
    let scratch = tempfile::tempdir().expect("a directory");
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let good = scratch.path().join("good");
    filled(&good);
    // Where the binary lies, others may not go.
    let program = scratch.path().join("dolmen");
    fs::copy(env!("CARGO_BIN_EXE_dolmen"), &program).expect("a copy");
    let program = program.to_string_lossy();
    let remedy = "let the user that this server runs as read and write everything below the data directory";
    for (number, place) in
        ["", "member", "member/wal", "member/store", "member/LOCK", "member/store/MANIFEST", "member/acked-0"]
            .iter()
            .enumerate()
    {
        let dir = scratch.path().join(format!("mode{number}"));
        copy(&good, &dir);
        give_to_nobody(&dir);
        let path = dir.join(place);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("ours");
        let start = Start { as_nobody: true, program: &program, ..Start::on(&dir) };
        check_refusal(start, 1, &["Permission denied", remedy]);
        // For whoever removes the directory.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("ours");
    }
    let in_the_way = "something else lies where the member keeps its files: move it away";
    let file = scratch.path().join("file");
    fs::write(&file, b"a file").expect("a file");
    refused(&file, 1, &["cannot access data directory", in_the_way]);
    for place in ["member/wal", "member/store", "member/snap"] {
        let dir = scratch.path().join(place.replace('/', "-"));
        copy(&good, &dir);
        fs::remove_dir_all(dir.join(place)).expect("a directory");
        fs::write(dir.join(place), b"a file").expect("a file");
        refused(&dir, 1, &[in_the_way]);
    }
}

#[test]
fn a_first_start_killed_anywhere_is_begun_again() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut wait = Duration::from_millis(2);
    for number in 0..10 {
        let dir = scratch.path().join(format!("data{number}"));
        let mut server = Start::on(&dir).spawn();
        std::thread::sleep(wait);
        server.kill();
        wait = wait * 3 / 2;
        Start { ports: Some(server.ports()), ..Start::on(&dir) }.spawn().wait_until_ready();
    }
    // As good as never started: empty folders, in whatever number.
    for (number, folders) in
        [&["member"][..], &["member/snap", "member/wal"], &["member/wal", "member/store"]].iter().enumerate()
    {
        let dir = scratch.path().join(format!("empty{number}"));
        for folder in *folders {
            fs::create_dir_all(dir.join(folder)).expect("a directory");
        }
        Start::on(&dir).spawn().wait_until_ready();
    }
}

/// The binary as one of its tools.
fn tool(arguments: &[&str]) {
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_dolmen")).args(arguments).output().expect("the binary starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_directory_of_etcd_is_taken_over_whole_or_refused() {
    let scratch = tempfile::tempdir().expect("a directory");
    let of_dolmen = scratch.path().join("of-dolmen");
    filled(&of_dolmen);
    let file = scratch.path().join("snapshot.db");
    let file = file.to_str().expect("text");
    let mut server = Start::on(&of_dolmen).spawn();
    server.wait_until_ready();
    tool(&["ctl", "--endpoints", &server.client[0].address.to_string(), "snapshot", "save", file]);
    drop(server);
    let of_etcd = scratch.path().join("of-etcd");
    let (urls, cluster) = ("http://127.0.0.1:2380", "n=http://127.0.0.1:2380");
    let place = of_etcd.to_str().expect("text");
    tool(&[
        "utl",
        "snapshot",
        "restore",
        file,
        "--data-dir",
        place,
        "--name",
        "n",
        "--initial-cluster",
        cluster,
        "--initial-advertise-peer-urls",
        urls,
    ]);

    let half = scratch.path().join("half");
    copy(&of_etcd, &half);
    let db = half.join("member/snap/db");
    cut(&db, fs::metadata(&db).expect("a file").len() / 2);
    let before = contents(&half);
    refused(&half, DAMAGED, &["member/snap/db is no sound etcd database", "restore a snapshot"]);
    untouched(&before, &half);

    let mut server = Start::on(&of_etcd).spawn();
    server.wait_until_ready();
    assert_eq!(count(&server), KEYS);
    server.kill();
    // An etcd was started on it since: which of the two has the newer data, only its owner can know.
    fs::create_dir_all(of_etcd.join("member/snap")).expect("a directory");
    fs::copy(file, of_etcd.join("member/snap/db")).expect("a file");
    refused(&of_etcd, 1, &["holds an etcd database beside a store of this server's", "move one of the two away"]);
}
