//! The membership dialect: `simple`, `enter-joint` and `leave-joint` on one membership; input is a list of changes.

use dolmen_proto::raftpb::{ConfChangeSingle, ConfChangeType};
use dolmen_raft::ProgressTracker;
use dolmen_raft::confchange::Changer;

use crate::datadriven::Directive;

pub struct Members {
    tracker: ProgressTracker,
    /// Grows by one a command, so that scripts see where a member was added.
    last_index: u64,
}

impl Default for Members {
    fn default() -> Self {
        Self { tracker: ProgressTracker::new(10, 0), last_index: 0 }
    }
}

impl Members {
    pub fn handle(&mut self, directive: &Directive) -> String {
        let changes = parse_changes(&directive.input);
        let mut changer = Changer::new(&self.tracker, self.last_index);
        self.last_index += 1;
        let outcome = match directive.command.as_str() {
            "simple" => changer.simple(&changes),
            "enter-joint" => changer.enter_joint(directive.value("autoleave") == Some("true"), &changes),
            "leave-joint" => {
                assert!(changes.is_empty(), "this command takes no input");
                changer.leave_joint()
            }
            other => panic!("unknown command {other}"),
        };
        if let Err(error) = outcome {
            return format!("{error}\n");
        }
        (self.tracker.config, self.tracker.progress) = changer.into_parts();
        format!("{}\n{}", self.tracker.config, self.tracker.progress)
    }
}

/// `v1 l2 r3 u4`: make a voter, make a learner, remove, update.
pub fn parse_changes(text: &str) -> Vec<ConfChangeSingle> {
    text.split_whitespace()
        .map(|token| {
            let kind = match token.chars().next() {
                Some('v') => ConfChangeType::ConfChangeAddNode,
                Some('l') => ConfChangeType::ConfChangeAddLearnerNode,
                Some('r') => ConfChangeType::ConfChangeRemoveNode,
                Some('u') => ConfChangeType::ConfChangeUpdateNode,
                _ => panic!("unknown change {token}"),
            };
            ConfChangeSingle { r#type: kind as i32, node_id: crate::datadriven::number(&token[1..]) }
        })
        .collect()
}
