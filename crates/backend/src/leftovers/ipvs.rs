//! What kube-proxy's IPVS mode left: a network device with every cluster IP, and virtual servers.

use std::io;

use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::route::{self, Event};

use super::Error;

/// The network device of the IPVS mode. Its addresses make this host take in what is for cluster IPs.
pub const DEVICE: &str = "kube-ipvs0";
/// The list of virtual servers, which there is where the kernel has IPVS.
const SERVERS: &str = "/proc/thread-self/net/ip_vs";
/// How often an inconsistent list is asked for again.
const ATTEMPTS: usize = 5;

/// Whether the device is in the network namespace of this thread.
///
/// # Errors
/// Links cannot be listed.
pub fn has_device() -> Result<bool, Error> {
    let index = Socket::open(Protocol::Route).and_then(|mut socket| index(&mut socket));
    index.map(|index| index.is_some()).map_err(|source| Error::Device { source })
}

/// Removes the device in the network namespace of this thread; says whether there was one, and what stays. Virtual
/// servers do, whoever made them.
pub fn remove() -> (bool, Vec<Error>) {
    let removed = remove_device().map_err(|source| Error::Device { source });
    let left = virtual_servers_left(std::fs::read_to_string(SERVERS));
    let (removed, error) = removed.map_or_else(|error| (false, Some(error)), |removed| (removed, None));
    (removed, error.into_iter().chain(left).collect())
}

fn remove_device() -> Result<bool, SocketError> {
    let mut socket = Socket::open(Protocol::Route)?;
    let Some(index) = index(&mut socket)? else { return Ok(false) };
    socket.query(&mut route::delete_link(index), |_| Ok(()))?;
    Ok(true)
}

fn index(socket: &mut Socket) -> Result<Option<u32>, SocketError> {
    let mut last = Ok(None);
    for _ in 0..ATTEMPTS {
        let mut found = None;
        let listed = socket.dump(&mut route::links(), |frame| {
            if let Event::NewLink(link) = Event::decode(frame)?
                && link.name == DEVICE
            {
                found = Some(link.index);
            }
            Ok(())
        });
        last = listed.map(|()| found);
        if !matches!(last, Err(SocketError::Interrupted | SocketError::Overrun)) {
            break;
        }
    }
    last
}

fn virtual_servers_left(list: io::Result<String>) -> Option<Error> {
    match list.as_deref().map(count) {
        Ok(0) => None,
        Ok(count) => Some(Error::VirtualServersLeft { count }),
        // A kernel without IPVS.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) => list.err().map(|source| Error::VirtualServers { file: SERVERS, source }),
    }
}

/// Virtual servers start their lines with a protocol or a mark; their destinations with an arrow.
fn count(list: &str) -> usize {
    const STARTS: [&str; 4] = ["TCP ", "UDP ", "SCTP ", "FWM "];
    list.lines().filter(|line| STARTS.iter().any(|start| line.starts_with(start))).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_servers_are_told() {
        let list = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr 
  -> AC120002:192B      Masq    1      4          0         
UDP  0A60000A:0035 rr 
FWM  00000001 wlc 
";
        let left = |list: &str| virtual_servers_left(Ok(list.to_owned()));
        assert!(matches!(left(list), Some(Error::VirtualServersLeft { count: 3 })));
        let none = list.lines().take(3).collect::<Vec<_>>().join("\n");
        assert!(left(&none).is_none());
    }

    #[test]
    fn a_list_that_is_not_there_is_empty_and_one_that_cannot_be_read_is_told() {
        let failed = |kind: io::ErrorKind| virtual_servers_left(Err(kind.into()));
        assert!(failed(io::ErrorKind::NotFound).is_none());
        assert!(matches!(failed(io::ErrorKind::PermissionDenied), Some(Error::VirtualServers { .. })));
    }
}
