//! Where the server of a data folder listens: a file in the folder has its URL, for `portolan serve kubeconfig`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use portolan_serve::{Pki, Transport};

use super::tls::pki_folder;

/// The file. It stays when the server has ended.
const FILE: &str = "server-url";

/// Returns the URL of a server, for clients on this host.
pub(crate) fn url(address: SocketAddr, has_tls: bool) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    format!("{scheme}://{}", from_here(address))
}

/// Returns the address and port at which this host reaches a listening socket.
pub(crate) fn from_here(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, address.port())
}

/// Writes the file. Clients that need no credentials need no kubeconfig, so a server without TLS writes none.
pub(super) fn note(data_dir: &Path, address: SocketAddr, transport: &Transport) {
    // The folder of certificates is made in the data folder if either is missing. The start of the server reports errors.
    if matches!(transport, Transport::PlainHttp) || Pki::open(pki_folder(data_dir)).is_err() {
        return;
    }
    let (path, temporary) = (data_dir.join(FILE), data_dir.join(format!(".{FILE}.new")));
    let text = format!("{}\n", url(address, true));
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, &path));
    if let Err(error) = written {
        tracing::warn!(
            path = %path.display(), %error,
            "the address of the server cannot be noted: give it to `portolan serve kubeconfig` with --server"
        );
    }
}

/// Returns the URL of the server that ran last with this folder.
pub(super) fn noted(data_dir: &Path) -> Option<String> {
    let text = std::fs::read_to_string(data_dir.join(FILE)).ok()?;
    let url = text.trim();
    url.starts_with("https://").then(|| url.to_owned())
}

/// Returns what cannot be done if the server cannot listen on an address.
pub(super) fn failure(address: SocketAddr) -> String {
    let what = format!("--listen: cannot listen on {address}");
    let is_missing = std::net::UdpSocket::bind(SocketAddr::new(address.ip(), 0))
        .is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable);
    match address.ip() {
        ip if is_missing && ip.is_loopback() => {
            format!("{what}: the loopback interface is down; run `ip link set lo up`, or listen elsewhere")
        }
        _ if is_missing => format!("{what}: this host does not have the address; give one that it has"),
        _ => what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_all_addresses_is_reached_at_loopback() {
        for (listens, reached) in [
            ("0.0.0.0:6443", "http://127.0.0.1:6443"),
            ("[::]:1", "http://[::1]:1"),
            ("192.0.2.1:6443", "http://192.0.2.1:6443"),
        ] {
            assert_eq!(url(listens.parse().unwrap(), false), reached);
        }
    }

    #[test]
    fn the_address_is_noted_in_the_data_folder() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(noted(folder.path()), None);
        std::fs::write(folder.path().join(FILE), "x").unwrap();
        assert_eq!(noted(folder.path()), None, "it is no URL");
        std::fs::write(folder.path().join(FILE), "https://192.0.2.1:7\n").unwrap();
        assert_eq!(noted(folder.path()).as_deref(), Some("https://192.0.2.1:7"));
        note(folder.path(), "192.0.2.2:7".parse().unwrap(), &Transport::PlainHttp);
        assert_eq!(
            noted(folder.path()).as_deref(),
            Some("https://192.0.2.1:7"),
            "without TLS nothing is noted"
        );
    }
}
