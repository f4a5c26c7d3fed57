//! Helpers: Service ports, namespaces, nft.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;

use portolan_engine::Commit;
use portolan_engine::Driven;
pub(crate) use portolan_model::world::Edited;
use portolan_model::{
    Backend, Change, ExternalPolicy, Family, Forwarding, Frontend, InternalPolicy, Protocol, ServicePortName,
    Settings,
};
use portolan_nftables::Nftables;
use portolan_sock::namespace::in_new_network_namespace;

/// Runs a test in a network namespace of its own.
pub(crate) fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    in_new_network_namespace(test)
        .expect("this test needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN in a user namespace")
}

/// Runs nft in this thread's namespace and returns its output.
pub(crate) fn nft(arguments: &str) -> String {
    let output = Command::new("nft").args(arguments.split(' ')).output().expect("nft is installed");
    assert!(
        output.status.success(),
        "nft {arguments}: {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Returns `nft list table` of our table.
pub(crate) fn list(family: Family) -> String {
    nft(match family {
        Family::Ipv4 => "list table ip portolan",
        Family::Ipv6 => "list table ip6 portolan",
    })
}

pub(crate) fn settings(family: Family) -> Settings {
    Settings::plain(family)
}

/// Returns `10.NET.0.HOST` or `2001:db8:NET::HOST`.
pub(crate) fn ip(family: Family, net: u8, host: u16) -> IpAddr {
    match family {
        Family::Ipv4 => {
            let [high, low] = host.to_be_bytes();
            IpAddr::from([10, net, high, low])
        }
        Family::Ipv6 => IpAddr::from([0x2001, 0xdb8, net.into(), 0, 0, 0, 0, host]),
    }
}

pub(crate) fn backends(family: Family, hosts: impl IntoIterator<Item = u16>) -> Box<[Backend]> {
    hosts
        .into_iter()
        .map(|host| Backend { address: ip(family, 244, host), port: 8080, may_hairpin: false })
        .collect()
}

/// Returns TCP port 80 of `10.96.0.NUMBER` with these endpoints.
pub(crate) fn cluster_ip(family: Family, number: u16, hosts: impl IntoIterator<Item = u16>) -> Forwarding {
    let cluster = backends(family, hosts);
    let frontend = SocketAddr::new(ip(family, 96, number), 80);
    Forwarding { has_endpoints: !cluster.is_empty(), ..Forwarding::plain(frontend, Protocol::Tcp, cluster) }
}

pub(crate) fn name(service: &str, protocol: Protocol) -> Arc<ServicePortName> {
    Arc::new(ServicePortName { namespace: "demo".into(), service: service.into(), port: "".into(), protocol })
}

/// Returns a change that adds or replaces a Service port.
pub(crate) fn put(service: &str, forwarding: Forwarding) -> Change {
    Change {
        name: name(service, forwarding.protocol),
        family: forwarding.family,
        old: None,
        new: Some(Arc::new(forwarding)),
    }
}

/// Returns a change that removes the Service port of another change.
pub(crate) fn gone(change: &Change) -> Change {
    Change { old: change.new.clone(), new: None, ..change.clone() }
}

/// Returns a Service port of every kind.
pub(crate) fn every_kind(family: Family) -> Vec<Change> {
    let external = |number: u16, node_port: u16| {
        let frontends = Box::new([
            Frontend::ClusterIp(ip(family, 96, number), 80),
            Frontend::ExternalIp(ip(family, 1, number), 80),
            Frontend::LoadBalancerIp(ip(family, 2, number), 80),
            Frontend::NodePort(node_port),
        ]);
        Forwarding { frontends, ..cluster_ip(family, number, [1, 2, 3]) }
    };
    let mut hairpin = cluster_ip(family, 1, [1, 2]);
    hairpin.cluster[0].may_hairpin = true;
    let node_port = Forwarding {
        frontends: Box::new([Frontend::ClusterIp(ip(family, 96, 2), 53), Frontend::NodePort(30053)]),
        protocol: Protocol::Udp,
        ..cluster_ip(family, 2, [1])
    };
    let ranges = Forwarding { source_ranges: source_ranges(family), ..external(3, 30003) };
    let local = Forwarding {
        external_policy: ExternalPolicy::Local,
        local: backends(family, [2]),
        ..external(4, 30004)
    };
    let local_elsewhere = Forwarding { external_policy: ExternalPolicy::Local, ..external(5, 30005) };
    let affinity = Forwarding { affinity: Some(10_800), ..cluster_ip(family, 6, [1, 2, 3]) };
    let affinity_local = Forwarding {
        affinity: Some(60),
        external_policy: ExternalPolicy::Local,
        local: backends(family, [3]),
        ..external(7, 30007)
    };
    let empty = Forwarding { cluster: Box::default(), has_endpoints: false, ..external(8, 30008) };
    let internal_local_elsewhere =
        Forwarding { internal_policy: InternalPolicy::Local, ..cluster_ip(family, 9, [1]) };
    let internal_local = Forwarding {
        internal_policy: InternalPolicy::Local,
        local: backends(family, [1, 2]),
        protocol: Protocol::Sctp,
        ..cluster_ip(family, 10, [1, 2, 3])
    };
    vec![
        put("web", hairpin),
        put("dns", node_port),
        put("ranges", ranges),
        put("local", local),
        put("local-elsewhere", local_elsewhere),
        put("affinity", affinity),
        put("affinity-local", affinity_local),
        put("empty", empty),
        put("internal-local-elsewhere", internal_local_elsewhere),
        put("internal-local", internal_local),
    ]
}

fn source_ranges(family: Family) -> Box<[ipnet::IpNet]> {
    let texts = match family {
        Family::Ipv4 => ["10.0.0.0/8", "192.0.2.128/25"],
        Family::Ipv6 => ["2001:db8:1::/48", "2001:db8:5::/61"],
    };
    Box::new(texts.map(|text| text.parse().unwrap()))
}

/// Returns a data plane that has programmed nothing.
pub(crate) fn open(settings: Settings) -> Driven<Nftables> {
    Driven::new(settings.clone(), Nftables::open(settings).unwrap())
}

/// Returns a data plane that has programmed these changes.
pub(crate) fn programmed(settings: Settings, changes: &[Change]) -> Driven<Nftables> {
    started(settings, changes).0
}

/// Does the same as [`programmed`] and returns what the first comparison wrote, too.
pub(crate) fn started(settings: Settings, changes: &[Change]) -> (Driven<Nftables>, Commit) {
    let mut nftables = open(settings);
    nftables.probe().unwrap();
    assert_eq!(nftables.apply(changes).unwrap(), Commit::default(), "nothing before the first comparison");
    let commit = nftables.resync().unwrap();
    assert_eq!(commit.refused, []);
    (nftables, commit)
}

/// Collects until nothing is left, and once more.
pub(crate) fn collect(nftables: &mut Driven<Nftables>) {
    while nftables.collect().unwrap() {}
    assert!(!nftables.collect().unwrap());
}

/// Returns the changes of one family.
pub(crate) fn of(family: Family, changes: &[Change]) -> Vec<Change> {
    changes.iter().filter(|change| change.family == family).cloned().collect()
}
