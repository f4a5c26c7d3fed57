//! Asks the running agent for its part of a snapshot, for `portolan snapshot`.

use std::io;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use portolan_snapshot::{Snapshot, unpack};
use portolan_web::{ServerAddress, ask as request};

use crate::paths::SNAPSHOT;

/// Asks the agent that listens on a control socket for the objects that it holds, its state and its history.
///
/// # Errors
/// No agent answers there, it may not be asked, or it answers with something else.
pub fn ask(socket: &Path) -> anyhow::Result<Snapshot> {
    let place = ServerAddress::Unix(socket.to_owned());
    let answer = request(&place, "GET", SNAPSHOT, b"").map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => anyhow!(
            "no proxy answers at {place}: {error}; is it running here, and is this where it listens (--control-socket of \
             the proxy)?"
        ),
        io::ErrorKind::PermissionDenied => anyhow!(
            "no permission to ask the proxy at {place}: run this as root, or as a member of the group in \
             portolan.controlSocketGroup"
        ),
        _ => anyhow!("cannot ask the proxy at {place}: {error}"),
    })?;
    match answer.status {
        200 => unpack(&answer.body).with_context(|| format!("the answer of {place}")),
        404 => bail!("the proxy at {place} is older and makes no snapshots"),
        status => {
            let text = String::from_utf8_lossy(&answer.body);
            bail!("the proxy at {place} answers with status {status}: {}", text.trim())
        }
    }
}
