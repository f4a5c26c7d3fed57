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

/// What became of the leftovers of the IPVS mode.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ipvs {
    /// The device was there, and is gone.
    pub device_removed: bool,
    /// Virtual servers that are left, whoever made them.
    pub virtual_servers: usize,
}

/// Whether the device is in the network namespace of this thread.
///
/// # Errors
/// Links cannot be listed.
pub fn has_device() -> Result<bool, Error> {
    let index = Socket::open(Protocol::Route).and_then(|mut socket| index(&mut socket));
    index.map(|index| index.is_some()).map_err(|source| Error::Device { source })
}

/// Removes the device in the network namespace of this thread and counts the virtual servers, which stay.
///
/// # Errors
/// One for the device, one for the list of virtual servers.
pub fn remove() -> (Ipvs, Vec<Error>) {
    let (mut ipvs, mut errors) = (Ipvs::default(), Vec::new());
    match remove_device() {
        Ok(removed) => ipvs.device_removed = removed,
        Err(source) => errors.push(Error::Device { source }),
    }
    match std::fs::read_to_string(SERVERS) {
        Ok(list) => ipvs.virtual_servers = count(&list),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => errors.push(Error::VirtualServers { file: SERVERS, source }),
    }
    (ipvs, errors)
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
        last = listed.map(|_| found);
        if !matches!(last, Err(SocketError::Interrupted | SocketError::Overrun)) {
            break;
        }
    }
    last
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
    fn virtual_servers_are_counted() {
        let list = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr 
  -> AC120002:192B      Masq    1      4          0         
UDP  0A60000A:0035 rr 
FWM  00000001 wlc 
";
        assert_eq!(count(list), 3);
        let none: String = list.lines().take(3).map(|line| format!("{line}\n")).collect();
        assert_eq!(count(&none), 0);
    }
}
