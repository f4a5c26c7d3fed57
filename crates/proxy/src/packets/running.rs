//! The answer of a running agent about a packet.

use std::path::Path;

use portolan_explain::{Question, Report, Sender};
use portolan_web::ServerAddress;

use crate::asking::{self, Unanswered};
use crate::paths::EXPLAIN;

/// Why a running agent has no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// No agent can be asked there.
    #[error(transparent)]
    NotAsked(#[from] Asking),
    /// The agent says why it has no answer.
    #[error("{0}")]
    Refused(String),
    /// The agent cannot answer at present.
    #[error("the proxy at {place} cannot answer now: {reason}")]
    Busy {
        /// The control socket.
        place: String,
        /// What it waits for.
        reason: String,
    },
    /// The agent gives no such answers, or something else listens there.
    #[error("{place} answers with something else than a report: an older proxy, or another program")]
    NoReport {
        /// The control socket.
        place: String,
    },
}

/// Why an agent could not be asked.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Asking(Unanswered);

/// Asks the agent that listens on a control socket. Blocks.
///
/// # Errors
/// There is no agent, or it has no answer.
pub fn ask(socket: &Path, question: &Question) -> Result<Report, NoAnswer> {
    let place = ServerAddress::Unix(socket.to_owned());
    let no_report = || NoAnswer::NoReport { place: place.to_string() };
    let body = serde_json::to_vec(question).map_err(|_| no_report())?;
    let answer = asking::send(&place, "POST", EXPLAIN, &body).map_err(Asking)?;
    match answer.status {
        200 => serde_json::from_slice(&answer.body).map_err(|_| no_report()),
        400 => Err(NoAnswer::Refused(refusal(question, asking::text(&answer)))),
        404 => Err(no_report()),
        503 => Err(NoAnswer::Busy { place: place.to_string(), reason: asking::text(&answer) }),
        status => {
            let reason = format!("status {status}: {}", asking::text(&answer));
            Err(NoAnswer::Busy { place: place.to_string(), reason })
        }
    }
}

/// Returns why an agent has no answer, and for a pod, of which it knows none, how to ask about it.
fn refusal(question: &Question, reason: String) -> String {
    match question.from {
        Sender::Pod(_) => format!(
            "{reason}\nA pod can be named with the objects of the cluster (portolan explain --kubeconfig FILE --kernel), or with \
             objects in files (--manifests PATH)"
        ),
        _ => reason,
    }
}
