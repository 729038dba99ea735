//! How a member ends: the signals that ask for it, and the exit code that tells of it.

use std::process::ExitCode;

use dolmen_node::{DiskFailure, StopReason};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::EXIT_DATA;

/// A disk failed while the server ran.
const EXIT_DISK: u8 = 74;

/// The signals that stop a member.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes them from the system: they end the process no longer.
    ///
    /// # Errors
    /// The system does not hand them over.
    pub fn take() -> Result<Self, String> {
        let take = |kind| signal(kind).map_err(|error| error.to_string());
        Ok(Self { interrupt: take(SignalKind::interrupt())?, terminate: take(SignalKind::terminate())? })
    }

    /// The next one.
    pub async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        }
    }
}

/// How the node ended; `None` when its thread told nothing.
pub type Outcome = Option<Result<StopReason, DiskFailure>>;

/// Says in the log how the member ended. `stopped_by`: the signal that asked for it.
pub fn report(name: &str, outcome: Outcome, stopped_by: Option<SignalKind>) -> ExitCode {
    match outcome {
        Some(Ok(StopReason::Asked)) => {
            tracing::info!(name, "closed etcd server");
            stopped_by.map_or(ExitCode::SUCCESS, die_by)
        }
        Some(Ok(StopReason::Removed)) => {
            tracing::warn!("server error: the member has been permanently removed from the cluster");
            ExitCode::SUCCESS
        }
        Some(Ok(StopReason::Fatal(error))) => {
            tracing::error!(error, "the state machine cannot go on; restore this member from its peers or a backup");
            ExitCode::from(EXIT_DATA)
        }
        Some(Err(failure)) => {
            let error = failure.to_string();
            tracing::error!(error, "a disk failed; nothing is retried, check the disk before starting again");
            ExitCode::from(EXIT_DISK)
        }
        None => ExitCode::FAILURE,
    }
}

/// The end of a member that was told to stop before it started.
pub fn not_started(kind: SignalKind) -> ExitCode {
    tracing::info!("received signal; nothing was started yet");
    die_by(kind)
}

/// Ends the process as the signal would have, so that whoever waits for it sees why; the first process of a container
/// has no such end and exits with 0.
fn die_by(kind: SignalKind) -> ExitCode {
    if std::process::id() != 1 {
        // Comes back only when the signal has no such effect.
        let _ = signal_hook::low_level::emulate_default_handler(kind.as_raw_value());
    }
    ExitCode::SUCCESS
}
