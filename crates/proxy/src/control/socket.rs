//! The control socket: a Unix socket on which commands of this node ask the agent.
//!
//! It is no part of what packets depend on. If it cannot be opened, that is logged, and it is tried again.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use portolan_node::config::Portolan;
use portolan_web::{self as web, Handler, Listener, UnixSocket};

use super::Control;
use super::routes::{self, Entrance};

/// The pause after a failure. The same as that of the other servers.
const RETRY: Duration = Duration::from_secs(5);
/// The groups of this host.
const GROUPS: &str = "/etc/group";

/// Serves the control socket until it is dropped, which removes the socket. Does nothing if none is configured.
pub(crate) async fn serve(control: Arc<Control>, settings: &Portolan) -> Infallible {
    if settings.control_socket.is_empty() {
        return std::future::pending().await;
    }
    let path = settings.control_socket.as_str();
    let answer = move |request: &Request<Bytes>| {
        routes::reply(&control, request, Entrance::Socket).unwrap_or_else(|| web::not_found().into())
    };
    let handler: Handler = Arc::new(answer);
    let mut logged = String::new();
    loop {
        let error = match open(settings) {
            Ok(socket) => {
                tracing::info!(path, "listening on the control socket");
                web::serve(Listener::Unix(socket.listener()), &handler).await.to_string()
            }
            Err(error) => error,
        };
        // A lasting failure is logged once.
        if logged != error {
            tracing::warn!(
                path,
                error,
                "no control socket, so that the commands status and explain cannot ask this proxy; trying again"
            );
            logged = error;
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn open(settings: &Portolan) -> Result<UnixSocket, String> {
    let group = group_of(settings)?;
    UnixSocket::open(Path::new(&settings.control_socket), group).map_err(|error| {
        format!("{error}; let this user write there, or set another path in portolan.controlSocket")
    })
}

/// Returns the number of the group that may use the socket. `None` if none is configured.
///
/// # Errors
/// This host has no such group.
pub(crate) fn group_of(settings: &Portolan) -> Result<Option<u32>, String> {
    match settings.control_socket_group.as_str() {
        "" => Ok(None),
        name => group(name).map(Some).map_err(|error| format!("portolan.controlSocketGroup: {error}")),
    }
}

/// Returns the number of a group of this host.
fn group(name: &str) -> Result<u32, String> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = std::fs::read_to_string(GROUPS).and_then(|text| {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "there is no such group");
        number_of(&text, name).ok_or_else(missing)
    });
    found.map_err(|error| format!("`{name}`: {error} ({GROUPS}); write its number"))
}

/// Returns the number of a group in the text of `group(5)`.
fn number_of(text: &str, name: &str) -> Option<u32> {
    let mut groups = text.lines().map(|line| line.split(':'));
    let mut fields = groups.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    fields.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_and_number() {
        let text = "root:x:0:\nadm:x:4:syslog\nbroken\noperators:x:1000:a,b\n";
        assert_eq!((number_of(text, "adm"), number_of(text, "operators")), (Some(4), Some(1000)));
        assert_eq!((number_of(text, "broken"), number_of(text, "ad")), (None, None));
        assert_eq!(group("1234"), Ok(1234));
        assert_eq!(group("root"), Ok(0));
        let error = group("no-such-group").unwrap_err();
        assert!(error.contains("`no-such-group`: there is no such group"), "{error}");
    }
}
