//! Asks a running agent: what the subcommands `status` and `explain` have in common.

use std::io;

use portolan_web::{Received, ServerAddress};

/// Why a running agent has not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error(
        "no proxy answers at {place}: {source}; is it running here, and is this where it listens (--control-socket of the \
         proxy)?"
    )]
    Absent { place: ServerAddress, source: io::Error },
    #[error(
        "no permission to ask the proxy at {0}: run this as root, or as a member of the group in \
         portolan.controlSocketGroup"
    )]
    Forbidden(ServerAddress),
    #[error("the proxy at {0} does not answer in time")]
    Silent(ServerAddress),
    #[error("cannot ask the proxy at {place}: {source}")]
    Failed { place: ServerAddress, source: io::Error },
}

/// Sends a request to a running agent and returns its answer, whatever its status.
pub(crate) fn send(
    place: &ServerAddress,
    method: &str,
    path: &str,
    body: &[u8],
) -> Result<Received, Unanswered> {
    portolan_web::ask(place, method, path, body).map_err(|source| {
        let place = place.clone();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                Unanswered::Absent { place, source }
            }
            io::ErrorKind::PermissionDenied => Unanswered::Forbidden(place),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Unanswered::Silent(place),
            _ => Unanswered::Failed { place, source },
        }
    })
}

/// Returns the body of an answer as text.
pub(crate) fn text(answer: &Received) -> String {
    String::from_utf8_lossy(&answer.body).trim().to_owned()
}
