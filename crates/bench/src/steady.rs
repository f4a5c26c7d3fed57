//! A Service whose endpoints are all addresses of one pod that answers. Connections are timed through it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use portolan_testkit::{Namespace, Pod};
use serde_json::Value;

use crate::workload;

/// The port of all Services.
pub(crate) const SERVICE_PORT: u16 = 80;
/// The port of all endpoints.
pub(crate) const TARGET_PORT: u16 = 8080;
/// The pod's port for direct connections. It differs from the port of endpoints, so that a direct connection does not
/// match an old entry of a connection through the Service in the kernel's connection table.
const DIRECT_PORT: u16 = 8081;
/// Last octet of the pod's second address, and the maximum number of its addresses.
const FIRST_FURTHER: u8 = 100;
const MOST_ADDRESSES: usize = 100;

/// Such a Service and its pod.
#[derive(Debug)]
pub(crate) struct Steady {
    name: &'static str,
    vip: Ipv4Addr,
    /// An address of no Service, for one rule written by hand.
    rule: Ipv4Addr,
    endpoints: Vec<Ipv4Addr>,
    listeners: Vec<TcpListener>,
}

impl Steady {
    /// Adds as many addresses to a pod as the Service has endpoints, and listens on them.
    pub(crate) fn new(name: &'static str, number: u8, pod: &Pod, endpoints: usize) -> anyhow::Result<Self> {
        let first = pod.addresses().ipv4;
        let [a, b, c, _] = first.octets();
        let further = (FIRST_FURTHER..).take(endpoints.min(MOST_ADDRESSES).saturating_sub(1));
        let further: Vec<Ipv4Addr> = further.map(|d| Ipv4Addr::new(a, b, c, d)).collect();
        if !further.is_empty() {
            pod.add_addresses(&further.iter().copied().map(IpAddr::V4).collect::<Vec<_>>())?;
        }
        Ok(Self {
            name,
            vip: Ipv4Addr::new(10, 111, 0, number),
            rule: Ipv4Addr::new(10, 112, 0, number),
            endpoints: std::iter::once(first).chain(further).collect(),
            listeners: listen(pod)?,
        })
    }

    /// Returns the Service and its EndpointSlice.
    pub(crate) fn objects(&self) -> [Value; 2] {
        let service = workload::service(workload::OWN, self.name, self.vip);
        [service, workload::slice(workload::OWN, self.name, 0, &self.endpoints)]
    }

    /// Returns the addresses of the endpoints.
    pub(crate) fn endpoints(&self) -> &[Ipv4Addr] {
        &self.endpoints
    }

    /// Returns the VIP of the Service.
    pub(crate) fn vip(&self) -> SocketAddr {
        SocketAddr::from((self.vip, SERVICE_PORT))
    }

    /// Returns the address that the rule written by hand translates to the pod.
    pub(crate) fn rule(&self) -> SocketAddr {
        SocketAddr::from((self.rule, SERVICE_PORT))
    }

    /// Returns the endpoints' addresses for direct connections.
    pub(crate) fn direct(&self) -> impl Iterator<Item = SocketAddr> + Clone {
        self.endpoints.iter().map(|&address| SocketAddr::from((address, DIRECT_PORT)))
    }

    /// Measures while one rule, as an administrator would write it by hand, translates [`Steady::rule`] on a node.
    pub(crate) fn with_rule<T>(
        &self,
        node: &Namespace,
        measure: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.add_rule(node)?;
        let measured = measure()?;
        node.output("nft", &["delete", "table", "ip", &format!("bench-{}", self.name)])?;
        Ok(measured)
    }

    fn add_rule(&self, node: &Namespace) -> anyhow::Result<()> {
        let (name, from) = (self.name, self.rule);
        let count = self.endpoints.len();
        let endpoints = self.endpoints.iter().enumerate();
        let map: Vec<String> =
            endpoints.map(|(index, address)| format!("{index} : {address} . {TARGET_PORT}")).collect();
        let map = map.join(", ");
        let table = format!(
            "table ip bench-{name} {{\n chain prerouting {{\n type nat hook prerouting priority dstnat - 1;\n \
             ip daddr {from} tcp dport {SERVICE_PORT} dnat ip to numgen random mod {count} map {{ {map} }}\n }}\n}}\n"
        );
        node.output_with_input("nft", &["-f", "-"], &table)?;
        Ok(())
    }

    /// Returns the pod's end of a waiting connection, if there is one.
    pub(crate) fn accept(&self) -> Option<TcpStream> {
        self.listeners.iter().find_map(|listener| listener.accept().ok()).map(|(stream, _)| stream)
    }

    /// Removes connections from the listeners' queues.
    pub(crate) fn drain(&self) {
        for listener in &self.listeners {
            while listener.accept().is_ok() {}
        }
    }
}

fn listen(pod: &Pod) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for port in [TARGET_PORT, DIRECT_PORT] {
        let listener = pod.namespace().run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
        listener.set_nonblocking(true)?;
        listeners.push(listener);
    }
    Ok(listeners)
}
