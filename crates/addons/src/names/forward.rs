//! The servers that are asked about names outside of the cluster domain.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use portolan_api::Api;
use portolan_dns::ObjectName;
use portolan_dns::forward::{Forwarder, PATIENCE, PORT, ResolvConf};
use portolan_schema::{Resource, json};
use thiserror::Error;

use crate::AddonError;

/// Time from one read of a file that names no server to the next.
const PAUSE: Duration = Duration::from_secs(2);

/// Where the servers are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forward {
    /// In a file with the format of resolv.conf, which is read at the start, and then until it names a server.
    File(PathBuf),
    /// These.
    Servers(Vec<SocketAddr>),
}

/// A text is neither a file nor a list of servers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no server; write IP or IP:PORT, several with commas, or the path of a file such as /etc/resolv.conf"
)]
pub struct ForwardParseError(String);

impl FromStr for Forward {
    type Err = ForwardParseError;

    fn from_str(text: &str) -> Result<Self, ForwardParseError> {
        if text.starts_with('/') {
            return Ok(Self::File(text.into()));
        }
        let server = |text: &str| {
            let text = text.trim();
            let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT));
            address.or_else(|_| text.parse()).map_err(|_| ForwardParseError(text.to_owned()))
        };
        text.split(',').map(server).collect::<Result<_, _>>().map(Self::Servers)
    }
}

impl Forward {
    /// Reads the servers.
    pub(super) fn read(&self) -> Result<Servers, AddonError> {
        Ok(match self {
            Self::Servers(servers) => Servers::Listed(servers.clone()),
            Self::File(path) => {
                let file = path.display().to_string();
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|source| AddonError::Forward { file: file.clone(), source })?;
                Servers::File { file, text }
            }
        })
    }

    /// Reads the servers again until there is one. `own` returns the addresses of this server, which may change. `known` is
    /// what was read before, with those addresses.
    pub(super) async fn wait(
        &self,
        mut known: (Servers, Vec<SocketAddr>),
        own: impl Fn() -> Vec<SocketAddr>,
    ) -> Forwarder {
        loop {
            tokio::time::sleep(PAUSE).await;
            // The file may be missing while it is replaced.
            let Ok(servers) = self.read() else { continue };
            let found = (servers, own());
            if found == known {
                continue;
            }
            if let Some(forwarder) = found.0.forwarder(&found.1) {
                return forwarder;
            }
            known = found;
        }
    }
}

/// The servers as they were written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Servers {
    Listed(Vec<SocketAddr>),
    File { file: String, text: String },
}

impl Servers {
    /// Returns the forwarder; `None` if no server is left. Addresses of this server are left out, because it would ask
    /// itself.
    pub(super) fn forwarder(&self, own: &[SocketAddr]) -> Option<Forwarder> {
        let servers: Vec<SocketAddr> = match self {
            Self::Listed(servers) => servers.iter().copied().filter(|server| !own.contains(server)).collect(),
            Self::File { file, text } => {
                let own: Vec<IpAddr> =
                    own.iter().filter(|own| own.port() == PORT).map(SocketAddr::ip).collect();
                let found = ResolvConf::read(text, &own);
                for nameserver in &found.unusable {
                    tracing::warn!(file, nameserver, "not an address: left out");
                }
                found.servers
            }
        };
        if servers.is_empty() {
            tracing::warn!("--dns-forward names no server besides this one: names of others are refused");
            return None;
        }
        tracing::info!(?servers, "names outside of the cluster domain are asked of other servers");
        Some(Forwarder::new(servers, PATIENCE))
    }
}

/// Returns the addresses at which this server answers: those that it listens on, and the cluster IPs of its Service.
pub(super) fn own_addresses(listens: &[SocketAddr], service: &ObjectName, api: &Api) -> Vec<SocketAddr> {
    let mut own: Vec<SocketAddr> = listens.to_vec();
    let key = format!("{}/{}", service.namespace, service.name);
    let stored = api.store().get(Resource::Service, &key).map(|stored| stored.decode());
    let spec = stored.as_ref().and_then(|stored| json::object(stored, "spec")).cloned().unwrap_or_default();
    let cluster_ips = json::texts(&spec, "clusterIPs").filter_map(|ip| ip.parse::<IpAddr>().ok());
    own.extend(cluster_ips.map(|ip| SocketAddr::new(ip, PORT)));
    own
}

#[cfg(test)]
mod tests {
    use portolan_api::ApiConfig;

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn files_and_lists_are_told_apart() {
        assert_eq!("/etc/resolv.conf".parse(), Ok(Forward::File("/etc/resolv.conf".into())));
        let servers = addresses(&["192.0.2.1:53", "192.0.2.2:5353", "[2001:db8::1]:53", "[2001:db8::2]:54"]);
        let text = "192.0.2.1, 192.0.2.2:5353,2001:db8::1,[2001:db8::2]:54";
        assert_eq!(text.parse(), Ok(Forward::Servers(servers)));
        for wrong in ["", "resolv.conf", "192.0.2.1,", "192.0.2.1:x"] {
            let error = wrong.parse::<Forward>().unwrap_err().to_string();
            assert!(error.contains("write IP or IP:PORT"), "{error}");
        }
    }

    #[test]
    fn a_server_does_not_ask_itself() {
        let api = Api::new(&ApiConfig::default());
        let service = json::json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 53}]}});
        api.blocking().apply(service).unwrap();
        let listens = addresses(&["192.0.2.1:53", "127.0.0.1:54"]);
        let own = own_addresses(&listens, &ObjectName::new("kube-system", "kube-dns"), &api);
        let asked = |servers: Servers| servers.forwarder(&own).map(|it| it.servers().to_vec());
        let listed = addresses(&["127.0.0.1:54", "192.0.2.1:53", "192.0.2.1:54", "10.96.0.10:53"]);
        assert_eq!(asked(Servers::Listed(listed)), Some(addresses(&["192.0.2.1:54"])));
        let text = "nameserver 10.96.0.10\nnameserver 192.0.2.9\nnameserver 192.0.2.1\nnameserver x\n";
        let file = Servers::File { file: String::new(), text: text.to_owned() };
        assert_eq!(asked(file), Some(addresses(&["192.0.2.9:53"])));
        assert_eq!(asked(Servers::Listed(addresses(&["10.96.0.10:53"]))), None);
    }
}
