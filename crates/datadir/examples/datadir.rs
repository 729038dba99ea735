//! The library by hand: `datadir restore SNAPSHOT DIR [PEER-URL [BUMP]]`, `datadir export DIR TO [X.Y]`,
//! `datadir migrate DIR X.Y`, `datadir import DIR`.

use std::sync::Arc;

use dolmen_datadir::{ExportOptions, ImportOptions, Level, MigrateOptions, Report, RestoreOptions};
use dolmen_env::RealDisk;
use serde_json::Value;

struct Stderr;

impl Report for Stderr {
    fn log(&mut self, level: Level, message: &str, fields: &[(&str, Value)]) {
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        eprintln!("{level:?} {message} {}", fields.join(" "));
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| arguments.get(at).cloned();
    let needed = |at: usize| word(at).expect("see the head of the source for the arguments");
    let result: Result<(), Box<dyn std::error::Error>> = match needed(0).as_str() {
        "restore" => {
            let peer = word(3).unwrap_or_else(|| "http://localhost:2380".into());
            let bump = word(4).map_or(0, |by| by.parse().expect("a number"));
            let options = RestoreOptions {
                snapshot: needed(1).into(),
                name: "default".into(),
                data_dir: needed(2).into(),
                wal_dir: None,
                initial_advertise_peer_urls: vec![peer.clone()],
                initial_cluster: format!("default={peer}"),
                initial_cluster_token: "etcd-cluster".into(),
                skip_hash_check: false,
                initial_memory_map_size: 0,
                bump_revision: bump,
                mark_compacted: bump > 0,
            };
            dolmen_datadir::restore(&options, &mut Stderr).map_err(Into::into)
        }
        "export" => {
            let (data_dir, to) = (needed(1).into(), needed(2).into());
            let options = ExportOptions { data_dir, wal_dir: None, to, target_version: word(3) };
            dolmen_datadir::export(&options, &mut Stderr).map_err(Into::into)
        }
        "migrate" => {
            let options = MigrateOptions { data_dir: needed(1).into(), target_version: needed(2), force: false };
            dolmen_datadir::migrate(&options, &mut Stderr).map_err(Into::into)
        }
        "import" => {
            let layout = dolmen_node::Layout::new(needed(1).as_ref(), None);
            let disk: Arc<dyn dolmen_env::Disk> = Arc::new(RealDisk);
            dolmen_datadir::import(&disk, &ImportOptions::new(layout), &mut Stderr).map(|_| ()).map_err(Into::into)
        }
        other => panic!("{other}: see the head of the source for the words"),
    };
    if let Err(error) = result {
        eprintln!("Error: {}", dolmen_types::error_chain(&*error));
        std::process::exit(1);
    }
}
