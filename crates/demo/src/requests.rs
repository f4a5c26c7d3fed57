//! Sends requests to the Services from every kind of sender, and checks the results.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use portolan_testkit::{Family, Namespace, Pod, Probe, ProbeResult, Reached, probe_many};

use super::cluster::Cluster;
use super::objects::{self, Frontend, Nature, Service};

/// Requests per row. The probability that one of three backends gets none of them is below 10^-10.
const REQUESTS: u32 = 60;

/// The sender of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// A pod on the node.
    Pod,
    /// A pod on the other node.
    RemotePod,
    /// The node itself.
    Node,
    /// A host outside of the cluster.
    Client,
    /// A pod that is a backend of the Service.
    Backend,
}

/// Requests from one sender to one frontend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    pub(super) sender: Sender,
    pub(super) service: &'static Service,
    pub(super) frontend: Frontend,
    pub(super) family: Family,
}

/// The results of the requests of a path: a row of the table.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) sent: u32,
    hits: BTreeMap<IpAddr, u32>,
    /// Source addresses that backends saw, with the owner: the sender or the node.
    sources: BTreeSet<(&'static str, IpAddr)>,
    pub(super) faults: Vec<String>,
}

impl Sender {
    pub(super) fn namespace(self, cluster: &Cluster) -> &Namespace {
        self.pod(cluster).map_or_else(|| cluster.world.node().namespace(), Pod::namespace)
    }

    fn pod(self, cluster: &Cluster) -> Option<&Pod> {
        let [backend, ..] = &cluster.pods.backends;
        match self {
            Self::Pod => Some(&cluster.pods.sender),
            Self::RemotePod => Some(&cluster.pods.remote_sender),
            Self::Node => None,
            Self::Client => Some(cluster.world.client()),
            Self::Backend => Some(backend),
        }
    }
}

impl Path {
    /// Creates an IPv4 path.
    pub(super) const fn new(sender: Sender, service: &'static Service, frontend: Frontend) -> Self {
        Self { sender, service, frontend, family: Family::Ipv4 }
    }

    /// Returns the same path with IPv6.
    pub(super) const fn ipv6(self) -> Self {
        Self { family: Family::Ipv6, ..self }
    }

    /// Returns the destination of the requests.
    pub(super) const fn destination(self) -> SocketAddr {
        self.service.at(self.frontend, self.family)
    }

    pub(super) const fn probe(self) -> Probe {
        Probe::new(self.service.protocol, self.destination())
    }

    /// Returns an empty row for this path.
    pub(super) fn row(self, cluster: &Cluster) -> Row {
        let frontend = match self.frontend {
            Frontend::ClusterIp => "cluster IP",
            Frontend::NodePort => "node port",
            Frontend::LoadBalancerIp => "load balancer",
        };
        let Service { name, protocol, .. } = self.service;
        Row {
            from: self.sender.namespace(cluster).name().to_owned(),
            to: format!("{name} {frontend} {}/{protocol}", self.destination()),
            ..Row::default()
        }
    }

    /// Returns the backends among `pods` that may respond.
    fn backends(self, pods: &[Pod]) -> BTreeSet<IpAddr> {
        let outside = self.frontend != Frontend::ClusterIp;
        let local_only = outside && self.service.nature == Nature::ExternalLocal;
        let pods = pods.iter().filter(|pod| !(local_only && objects::is_remote(pod)));
        pods.map(|pod| pod.address(self.family)).collect()
    }

    /// Returns true if the backend should see the sender's address. The node masquerades requests from outside with
    /// traffic policy `Cluster`, its own requests, and requests of a backend to itself (hairpin).
    fn keeps_source(self, own: Option<IpAddr>, backend: IpAddr) -> bool {
        let outside = self.frontend != Frontend::ClusterIp;
        let cluster_policy = outside && self.service.nature != Nature::ExternalLocal;
        !cluster_policy && own.is_some_and(|own| own != backend)
    }
}

impl Row {
    /// Returns the number of requests that got a response.
    pub(super) fn answered(&self) -> u32 {
        self.hits.values().sum()
    }

    /// Returns the number of requests to which a backend with these addresses responded.
    pub(super) fn hits_of(&self, addresses: &[IpAddr]) -> u32 {
        addresses.iter().filter_map(|address| self.hits.get(address)).sum()
    }

    /// Returns the number of backends that responded.
    pub(super) fn backends(&self) -> usize {
        self.hits.len()
    }

    pub(super) fn seen_sources(&self) -> String {
        let of = |whose: &str| {
            let addresses = self.sources.iter().filter(|(of, _)| *of == whose);
            let addresses: Vec<String> = addresses.map(|(_, address)| address.to_string()).collect();
            (!addresses.is_empty()).then(|| format!("{whose} {}", addresses.join(", ")))
        };
        [of("its own"), of("the node's")].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Records the result of one request of a path.
    pub(super) fn take(&mut self, path: Path, cluster: &Cluster, pods: &[Pod], result: ProbeResult) {
        self.sent += 1;
        let ProbeResult::Reached(Reached { backend, seen_source }) = result else {
            return self.fault(&format!("a request was not answered: {result:?}"));
        };
        let (backend, source) = (backend.ip(), seen_source.ip());
        *self.hits.entry(backend).or_default() += 1;
        let own = path.sender.pod(cluster).map(|pod| pod.address(path.family));
        self.sources.insert((if own == Some(source) { "its own" } else { "the node's" }, source));
        if !path.backends(pods).contains(&backend) {
            self.fault(&format!("{backend} answered, which is not to get such requests"));
        }
        let as_expected = if path.keeps_source(own, backend) {
            own == Some(source)
        } else {
            cluster.world.node().all_addresses().contains(&source)
        };
        if !as_expected {
            self.fault(&format!("{backend} saw the request come from {source}"));
        }
    }

    pub(super) fn fault(&mut self, text: &str) {
        self.faults.push(format!("{} to {}: {text}", self.from, self.to));
    }
}

/// Sends requests along each path, all at the same time. `pods` are the ready endpoints, each of which should get
/// some.
pub(super) fn send(cluster: &Cluster, paths: &[Path], pods: &[Pod]) -> anyhow::Result<Vec<Row>> {
    let mut rows = send_some(cluster, paths, pods, REQUESTS)?;
    for (row, path) in rows.iter_mut().zip(paths) {
        let idle: Vec<IpAddr> =
            path.backends(pods).into_iter().filter(|backend| row.hits_of(&[*backend]) == 0).collect();
        if path.service.nature != Nature::Affinity {
            for backend in idle {
                row.fault(&format!("{backend} got no request"));
            }
        }
    }
    Ok(rows)
}

/// Sends `count` requests along each path. Does not check how they are spread over the backends.
pub(super) fn send_some(
    cluster: &Cluster,
    paths: &[Path],
    pods: &[Pod],
    count: u32,
) -> anyhow::Result<Vec<Row>> {
    let repeated: Vec<Path> = paths.iter().flat_map(|path| (0..count).map(move |_| *path)).collect();
    let probes: Vec<(&Namespace, Probe)> =
        repeated.iter().map(|path| (path.sender.namespace(cluster), path.probe())).collect();
    let mut results = probe_many(&probes)?.into_iter();
    let rows = paths.iter().map(|path| {
        let mut row = path.row(cluster);
        let own = results.by_ref().take(count as usize);
        own.for_each(|result| row.take(*path, cluster, pods, result));
        row
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{AUDIT, WEB};

    #[test]
    fn the_source_is_kept_unless_replies_must_return_through_the_node() {
        let (own, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let keeps = |service, frontend, own, backend| {
            Path::new(Sender::Pod, service, frontend).keeps_source(own, backend)
        };
        assert!(keeps(&WEB, Frontend::ClusterIp, Some(own), other));
        assert!(!keeps(&WEB, Frontend::ClusterIp, Some(own), own), "hairpin");
        assert!(!keeps(&WEB, Frontend::ClusterIp, None, other), "the node");
        assert!(!keeps(&WEB, Frontend::NodePort, Some(own), other), "policy Cluster");
        assert!(keeps(&AUDIT, Frontend::NodePort, Some(own), other), "policy Local");
    }
}
