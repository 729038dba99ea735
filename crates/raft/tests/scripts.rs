//! The conformance suite: etcd's own data-driven raft scripts, run in place and compared byte for byte.
//!
//! The scripts ship with the Go module `go.etcd.io/raft/v3`; `go mod download` says where it is. They come in three
//! dialects: whole groups of members (`interaction`), quorum arithmetic (`quorums`), membership changes (`changes`).

#![allow(clippy::disallowed_methods, reason = "a test has the real clock and real files")]

#[path = "support/changes.rs"]
mod changes;
#[path = "support/corpus.rs"]
mod corpus;
#[path = "support/datadriven.rs"]
mod datadriven;
#[path = "support/interaction.rs"]
mod interaction;
#[path = "support/quorums.rs"]
mod quorums;

use std::panic::{AssertUnwindSafe, catch_unwind};

use datadriven::Directive;

/// How many scripts the pinned module has, by folder.
const SCRIPTS: [(&str, usize); 3] = [("testdata", 28), ("confchange/testdata", 9), ("quorum/testdata", 4)];

/// What runs the directives of one script.
type Runner = Box<dyn FnMut(&Directive) -> String>;

fn runner(folder: &str) -> Runner {
    match folder {
        "testdata" => {
            let mut group = interaction::Group::default();
            Box::new(move |directive| group.handle(directive))
        }
        "confchange/testdata" => {
            let mut members = changes::Members::default();
            Box::new(move |directive| members.handle(directive))
        }
        _ => Box::new(quorums::handle),
    }
}

#[test]
fn raft_scripts() {
    let module = corpus::module_dir();
    let (mut good, mut total, mut failures) = (0, 0, Vec::new());
    for (folder, count) in SCRIPTS {
        let scripts = corpus::scripts(&module.join(folder));
        assert_eq!(scripts.len(), count, "scripts in {folder} of the pinned module");
        for (name, text) in scripts {
            total += 1;
            let mut run = runner(folder);
            // A panic in one script must not hide the state of the others.
            let outcome = catch_unwind(AssertUnwindSafe(|| datadriven::run(&text, &mut *run)));
            match outcome {
                Ok(Ok(())) => good += 1,
                Ok(Err(difference)) => failures.push(format!("{folder}/{name}:{difference}")),
                Err(_) => failures.push(format!("{folder}/{name}: panicked")),
            }
        }
    }
    println!("raft scripts: {good} of {total}");
    assert!(failures.is_empty(), "raft scripts: {good} of {total}\n\n{}", failures.join("\n\n"));
    assert_eq!(total, 41);
}
