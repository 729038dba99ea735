//! What to do next, told after the error: lines `hint: ...` on stderr, below the `Error:` line that scripts read.

use dolmen_cli::Failure;
use dolmen_client::{ConnectionError, ConnectionReason, Error, text};

/// A failed call as the end of a command with exit code 1, with advice where there is some.
pub fn failure(error: &Error) -> Failure {
    failure_with(1, error, "")
}

/// As [`failure`] with an exit code, and the error inside a sentence: `{before} ({error})`; `before` empty: alone.
pub fn failure_with(code: u8, error: &Error, before: &str) -> Failure {
    let failure =
        if before.is_empty() { Failure::new(code, error) } else { Failure::new(code, format!("{before} ({error})")) };
    advise(failure, error)
}

/// Adds the advice that belongs to `error`.
pub fn advise(mut failure: Failure, error: &Error) -> Failure {
    for hint in hints(error) {
        failure = failure.hint(hint);
    }
    failure
}

/// The advice for one error; empty where the error says all.
pub fn hints(error: &Error) -> Vec<String> {
    let mut hints = Vec::new();
    if error.is(text::NO_SPACE) {
        hints.push(
            "the members' quota (--quota-backend-bytes) is used up and the NOSPACE alarm is raised; writes are refused, \
             reads and deletes still work"
                .to_owned(),
        );
        hints.push(
            "make room: `etcdctl compaction <revision>`, then `etcdctl defrag --cluster`, then `etcdctl alarm disarm`"
                .to_owned(),
        );
    } else if error.is(text::USER_EMPTY) {
        hints.push("authentication is on: give --user name[:password]".to_owned());
    } else if error.is(text::NO_LEADER) {
        hints.push("the member sees no leader; `etcdctl endpoint status --cluster` shows who answers".to_owned());
    }
    if let Some(connection) = error.connection() {
        hints.extend(connection_hint(connection));
    }
    hints
}

fn connection_hint(at: &ConnectionError) -> Option<String> {
    let endpoint = &at.endpoint;
    Some(match at.reason {
        ConnectionReason::Refused => format!("connection refused: nobody listens at {endpoint}"),
        ConnectionReason::UnknownHost => format!("the host of {endpoint} has no address: {}", at.text),
        ConnectionReason::Timeout => format!("{endpoint} does not answer; a firewall may swallow the packets"),
        ConnectionReason::ServerCertificate => {
            format!(
                "the certificate of {endpoint} is not accepted; look at --cacert, and at the name in it: {}",
                at.text
            )
        }
        ConnectionReason::ClientCertificate => {
            format!("{endpoint} does not accept this client's certificate; look at --cert and --key: {}", at.text)
        }
        ConnectionReason::Protocol => other_scheme(endpoint),
        // One side spoke TLS and the other did not: it hangs up at once.
        ConnectionReason::Other if at.text.ends_with("EOF") => other_scheme(endpoint),
        ConnectionReason::Configuration => at.text.clone(),
        ConnectionReason::Other => format!("{endpoint}: {}", at.text),
    })
}

fn other_scheme(endpoint: &str) -> String {
    format!("{endpoint} does not speak what was expected; is it https:// instead of http://, or the reverse?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dolmen_client::code;

    #[test]
    fn a_full_store_is_explained_and_other_errors_stand_alone() {
        let full = Error::status(code::RESOURCE_EXHAUSTED, text::NO_SPACE);
        let failure = failure_with(1, &full, "failed to grant lease");
        assert_eq!(
            failure.text(),
            Some("failed to grant lease (etcdserver: mvcc: database space exceeded)"),
            "the error line is etcd's"
        );
        assert_eq!(hints(&full).len(), 2);
        assert!(hints(&Error::status(code::OUT_OF_RANGE, text::COMPACTED)).is_empty());
    }
}
