//! Services: their frontends and policies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;

use super::lenient::{Faults, Loose, Text, fault, record};
use super::{Fault, Kind, Metadata, Moment, Notice, ObjectBody, RawMetadata, WithMetadata, parse};
use crate::{ExternalPolicy, Family, InternalPolicy, IpvsScheduler, Protocol};

/// Default session affinity timeout of the API server in seconds: 3 hours.
pub const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// Longest session affinity timeout that the API allows, in seconds: one day.
pub const MAX_AFFINITY_SECONDS: u32 = 86_400;

/// [`Service::created`] of a Service without creation time, which counts as the youngest.
pub const UNKNOWN_AGE: u32 = u32::MAX;

/// Returns a source range that matches no client: the unspecified address, which is never the source of a unicast
/// packet (RFC 1122, 3.2.1.3; RFC 4291, 2.5.2). It closes a family whose source ranges cannot be parsed.
pub fn no_source(family: Family) -> IpNet {
    match family {
        Family::Ipv4 => IpNet::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        Family::Ipv6 => IpNet::from(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    }
}

/// A Service with the fields that a node needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// `metadata.creationTimestamp` in seconds since the Unix epoch, or [`UNKNOWN_AGE`]. If two Services claim the
    /// same frontend with equal rank, the older one gets it.
    pub created: u32,
    /// True if another proxy handles the Service (label `service.kubernetes.io/service-proxy-name`).
    pub foreign_proxy: bool,
    /// IPv4 cluster IP. Headless and `ExternalName` Services have neither this nor an IPv6 one.
    pub cluster_ipv4: Option<Ipv4Addr>,
    /// IPv6 cluster IP.
    pub cluster_ipv6: Option<Ipv6Addr>,
    /// Ports in the given order. Of two with equal name and protocol only the later is kept.
    pub ports: Arc<[ServicePort]>,
    /// Fields that most Services do not have; `None` if all of them are empty.
    pub external: Option<Box<External>>,
    /// Timeout in seconds of session affinity by client IP. `None` if there is no affinity.
    pub affinity: Option<u32>,
    /// The requested IPVS scheduler (annotation `portolan.dev/ipvs-scheduler`).
    pub ipvs_scheduler: Option<IpvsScheduler>,
    /// True if endpoints should see the client's address in userspace mode (annotation
    /// `portolan.dev/userspace-keep-client-address`).
    pub keep_client_address: bool,
    /// `internalTrafficPolicy`.
    pub internal_policy: InternalPolicy,
    /// `externalTrafficPolicy`. It is Cluster if the Service cannot be reached by external traffic.
    pub external_policy: ExternalPolicy,
}

/// The external addresses of a Service and their restrictions, besides node ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct External {
    /// `externalIPs` of both families in the given order, without duplicates.
    pub ips: Box<[IpAddr]>,
    /// Load-balancer ingress IPs with ipMode VIP, of both families, in the given order.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// Source ranges of both families, each list sorted and aggregated. A family with a range of length zero, or
    /// without ranges, is not restricted and has no entry. If entries cannot be parsed and a family has no other
    /// range, the family is closed: it has [`no_source`].
    pub source_ranges: Box<[IpNet]>,
    /// The health check port of a load balancer with external policy Local.
    pub health_check_port: Option<u16>,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServicePort {
    /// Name; empty if there is none.
    pub name: Arc<str>,
    /// Port on cluster, external and load-balancer IPs.
    pub port: u16,
    /// Node port, or `None`.
    pub node_port: Option<u16>,
    /// Protocol.
    pub protocol: Protocol,
}

impl Service {
    /// Returns the cluster IP of a family.
    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::Ipv4 => self.cluster_ipv4.map(IpAddr::V4),
            Family::Ipv6 => self.cluster_ipv6.map(IpAddr::V6),
        }
    }

    /// Returns [`External::ips`].
    pub fn external_ips(&self) -> &[IpAddr] {
        self.external.as_ref().map_or(&[], |external| &external.ips)
    }

    /// Removes [`External::ips`]. Used if the feature gate `AllowServiceExternalIPs` is off.
    pub fn ignore_external_ips(&mut self) {
        if let Some(external) = &mut self.external {
            external.ips = Box::default();
        }
        self.external.take_if(|external| **external == External::default());
    }

    /// Returns [`External::load_balancer_ips`].
    pub fn load_balancer_ips(&self) -> &[IpAddr] {
        self.external.as_ref().map_or(&[], |external| &external.load_balancer_ips)
    }

    /// Returns [`External::source_ranges`].
    pub fn source_ranges(&self) -> &[IpNet] {
        self.external.as_ref().map_or(&[], |external| &external.source_ranges)
    }

    /// Returns [`External::health_check_port`].
    pub fn health_check_port(&self) -> Option<u16> {
        self.external.as_ref()?.health_check_port
    }

    /// Returns true if the Service is handled by this proxy and has a cluster IP.
    pub fn is_proxied(&self) -> bool {
        !self.foreign_proxy && (self.cluster_ipv4.is_some() || self.cluster_ipv6.is_some())
    }

    /// Returns true if external traffic of a family can reach this port.
    pub fn externally_accessible(&self, port: &ServicePort, family: Family) -> bool {
        port.node_port.is_some()
            || self.load_balancer_ips().iter().chain(self.external_ips()).any(|ip| Family::of(*ip) == family)
    }
}

record!(
    RawService {
        kind: "kind" => Text<'de>,
        metadata: "metadata" = 1 => RawMetadata<'de>,
        spec: "spec" = 2 => RawSpec<'de>,
        status: "status" = 3 => RawStatus<'de>,
    }
);
record!(
    RawSpec {
        kind: "type" = 4 => Text<'de>,
        cluster_ip: "clusterIP" = 3 => Text<'de>,
        cluster_ips: "clusterIPs" = 18 => Vec<Loose<Text<'de>>>,
        ip_families: "ipFamilies" = 19 => Vec<Loose<Text<'de>>>,
        ports: "ports" = 1 => Vec<Loose<RawPort<'de>>>,
        external_ips: "externalIPs" = 5 => Vec<Loose<Text<'de>>>,
        source_ranges: "loadBalancerSourceRanges" = 9 => Vec<Loose<Text<'de>>>,
        affinity: "sessionAffinity" = 7 => Text<'de>,
        affinity_config: "sessionAffinityConfig" = 14 => RawAffinityConfig<'de>,
        internal_policy: "internalTrafficPolicy" = 22 kept => Text<'de>,
        external_policy: "externalTrafficPolicy" = 11 => Text<'de>,
        health_check_port: "healthCheckNodePort" = 12 => i64,
    }
);
record!(
    RawPort {
        name: "name" = 1 => Text<'de>,
        protocol: "protocol" = 2 => Text<'de>,
        port: "port" = 3 kept => i64,
        node_port: "nodePort" = 5 => i64,
    }
);
record!(
    RawAffinityConfig {
        client_ip: "clientIP" = 1 => RawClientIp<'de>,
    }
);
record!(
    RawClientIp {
        timeout: "timeoutSeconds" = 1 kept => i64,
    }
);
record!(
    RawStatus {
        load_balancer: "loadBalancer" = 1 => RawLoadBalancer<'de>,
    }
);
record!(
    RawLoadBalancer {
        ingress: "ingress" = 1 => Vec<Loose<RawIngress<'de>>>,
    }
);
record!(
    RawIngress {
        ip: "ip" = 1 => Text<'de>,
        ip_mode: "ipMode" = 3 kept => Text<'de>,
    }
);

impl<'de> WithMetadata<'de> for RawService<'de> {
    fn kind(&self) -> &Loose<Text<'de>> {
        &self.kind
    }

    fn metadata(&mut self) -> Loose<RawMetadata<'de>> {
        std::mem::take(&mut self.metadata)
    }
}

impl ObjectBody for Service {
    type Raw<'de> = RawService<'de>;
    const KIND: Kind = Kind::Service;

    fn build(raw: RawService<'_>, metadata: &Metadata<'_>, faults: &mut Faults) -> Self {
        let spec = raw.spec.or_empty(faults, "spec", "an object");
        let status = raw.status.or_empty(faults, "status", "an object");
        let foreign_proxy = metadata.labels.service_proxy_name.is_present();
        let kind = spec.kind.take(faults, || "spec.type".to_owned(), "a Service type").unwrap_or_default();
        if foreign_proxy || kind == "ExternalName" {
            return Self::unproxied(foreign_proxy);
        }
        let (cluster_ipv4, cluster_ipv6) =
            cluster_ips(spec.cluster_ip, spec.cluster_ips, spec.ip_families, faults);
        if cluster_ipv4.is_none() && cluster_ipv6.is_none() {
            return Self::unproxied(false);
        }
        let ips = addresses(spec.external_ips, faults, "spec.externalIPs");
        let reachable = matches!(&*kind, "LoadBalancer" | "NodePort") || !ips.is_empty();
        let local = policy_is_local(spec.external_policy, faults, "spec.externalTrafficPolicy");
        let external_policy =
            if reachable && local { ExternalPolicy::Local } else { ExternalPolicy::Cluster };
        let wants_health_check = kind == "LoadBalancer" && external_policy == ExternalPolicy::Local;
        let ports = ports(spec.ports, faults).into();
        let families = [cluster_ipv4.map(|_| Family::Ipv4), cluster_ipv6.map(|_| Family::Ipv6)];
        let external = External {
            ips,
            load_balancer_ips: ingress_ips(status, faults),
            source_ranges: source_ranges(spec.source_ranges, families.into_iter().flatten(), faults),
            health_check_port: None,
        };
        let affinity = affinity(spec.affinity, spec.affinity_config, faults);
        let ipvs_scheduler = metadata.annotations.ipvs_scheduler.text();
        let ipvs_scheduler = ipvs_scheduler.and_then(|name| self::ipvs_scheduler(name, faults));
        let keep_client_address = metadata.annotations.keep_client_address.text();
        let keep_client_address =
            keep_client_address.is_some_and(|text| self::keep_client_address(text, faults));
        let internal_policy = internal_policy(spec.internal_policy, faults);
        let health_check = spec.health_check_port;
        let health_check_port = wants_health_check.then(|| health_check_port(health_check, faults)).flatten();
        let external = External { health_check_port, ..external };
        Self {
            created: created(&metadata.creation_timestamp, faults),
            foreign_proxy,
            cluster_ipv4,
            cluster_ipv6,
            ports,
            external: (external != External::default()).then(|| Box::new(external)),
            affinity,
            ipvs_scheduler,
            keep_client_address,
            internal_policy,
            external_policy,
        }
    }
}

impl Service {
    fn unproxied(foreign_proxy: bool) -> Self {
        Self {
            created: UNKNOWN_AGE,
            foreign_proxy,
            cluster_ipv4: None,
            cluster_ipv6: None,
            ports: Arc::default(),
            external: None,
            affinity: None,
            ipvs_scheduler: None,
            keep_client_address: false,
            internal_policy: InternalPolicy::Cluster,
            external_policy: ExternalPolicy::Cluster,
        }
    }
}

/// Returns the creation time in seconds since the Unix epoch. A time out of range (before 1970, after 2106) counts as
/// unknown.
fn created(timestamp: &Loose<Moment<'_>>, faults: &mut Faults) -> u32 {
    let (found, seconds) = match timestamp {
        Loose::Absent | Loose::Null => return UNKNOWN_AGE,
        Loose::Mismatch(found) => ((*found).to_owned(), None),
        Loose::Value(Moment::Seconds(seconds)) => (format!("{seconds} s after 1970"), Some(*seconds)),
        Loose::Value(Moment::Text(text)) => {
            let nanoseconds = parse::parse_time(text);
            let seconds = nanoseconds.map(|nanoseconds| nanoseconds.div_euclid(1_000_000_000));
            (format!("{:?}", parse::clip(text)), seconds)
        }
    };
    let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
    if seconds.is_none() {
        let reason =
            format!("{found} is not a time from 1970 to 2106; write one such as 2026-01-31T12:00:00Z");
        fault(faults, "metadata.creationTimestamp", reason);
    }
    seconds.unwrap_or(UNKNOWN_AGE)
}

/// Returns the cluster IPs. `ipFamilies` gives the family of each entry of `clusterIPs`. Without it (an old server)
/// only `clusterIP` is used.
fn cluster_ips(
    scalar: Loose<Text<'_>>,
    list: Loose<Vec<Loose<Text<'_>>>>,
    families: Loose<Vec<Loose<Text<'_>>>>,
    faults: &mut Faults,
) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let scalar = scalar.take(faults, || "spec.clusterIP".to_owned(), "an IP address").unwrap_or_default();
    if scalar.is_empty() || scalar == "None" {
        return (None, None);
    }
    let families = families.or_empty(faults, "spec.ipFamilies", "a list of families");
    let mut list = list.or_empty(faults, "spec.clusterIPs", "a list of IP addresses").into_iter();
    let mut found = (None, None);
    let mut note = |address: Option<IpAddr>| match address {
        Some(IpAddr::V4(v4)) => found.0 = found.0.or(Some(v4)),
        Some(IpAddr::V6(v6)) => found.1 = found.1.or(Some(v6)),
        None => {}
    };
    if families.is_empty() {
        note(parse::address(Loose::Value(scalar), faults, || "spec.clusterIP".to_owned()));
        return found;
    }
    for (index, family) in families.into_iter().enumerate() {
        let Some(text) = list.next() else { break };
        let path = || format!("spec.ipFamilies[{index}]");
        let Some(family) = family.take(faults, path, "IPv4 or IPv6") else { continue };
        let Some(family) = parse::family(&family) else {
            fault(faults, path(), format!("{:?} is not a family; write IPv4 or IPv6", parse::clip(&family)));
            continue;
        };
        let path = || format!("spec.clusterIPs[{index}]");
        let Some(address) = parse::address(text, faults, path) else { continue };
        if Family::of(address) == family {
            note(Some(address));
        } else {
            fault(faults, path(), format!("{address} is not {family}; make it agree with spec.ipFamilies"));
        }
    }
    found
}

fn ports(list: Loose<Vec<Loose<RawPort<'_>>>>, faults: &mut Faults) -> Box<[ServicePort]> {
    let list = list.or_empty(faults, "spec.ports", "a list of ports");
    let mut ports: Vec<ServicePort> = Vec::with_capacity(list.len());
    for (index, raw) in list.into_iter().enumerate() {
        let Some(raw) = raw.take(faults, || format!("spec.ports[{index}]"), "an object") else { continue };
        let Some(port) = port(raw, index, faults) else { continue };
        ports.push(port);
    }
    keep_last(&mut ports);
    ports.into_boxed_slice()
}

/// Of ports with the same name and protocol keeps the last one, as kube-proxy does.
fn keep_last(ports: &mut Vec<ServicePort>) {
    let mut seen = std::collections::HashSet::new();
    let mut keep: Vec<bool> =
        ports.iter().rev().map(|port| seen.insert((port.name.clone(), port.protocol))).collect();
    ports.retain(|_| keep.pop().unwrap_or(true));
}

fn port(raw: RawPort<'_>, index: usize, faults: &mut Faults) -> Option<ServicePort> {
    let path = |field: &str| format!("spec.ports[{index}].{field}");
    let unnamed = raw.name.is_missing().then(Text::default);
    let name = raw.name.take(faults, || path("name"), "text").or(unnamed)?;
    let protocol = parse::protocol(raw.protocol, faults, || path("protocol"))?;
    if raw.port.is_missing() {
        fault(faults, path("port"), "is missing; write 1 to 65535");
    }
    let port = raw.port.take(faults, || path("port"), "a number from 1 to 65535")?;
    let port = parse::port_number(port, faults, || path("port"))?;
    let node_port = raw
        .node_port
        .take(faults, || path("nodePort"), "a number from 1 to 65535")
        .filter(|value| *value != 0)
        .and_then(|value| parse::port_number(value, faults, || path("nodePort")));
    Some(ServicePort { name: name.into(), port, node_port, protocol })
}

fn addresses(list: Loose<Vec<Loose<Text<'_>>>>, faults: &mut Faults, field: &str) -> Box<[IpAddr]> {
    let mut addresses = Vec::new();
    for (index, entry) in list.or_empty(faults, field, "a list of IP addresses").into_iter().enumerate() {
        let blank = matches!(&entry, Loose::Value(text) if text.trim().is_empty());
        if !blank && let Some(address) = parse::address(entry, faults, || format!("{field}[{index}]")) {
            addresses.push(address);
        }
    }
    keep_first(&mut addresses);
    addresses.into_boxed_slice()
}

fn keep_first(addresses: &mut Vec<IpAddr>) {
    let mut seen = std::collections::HashSet::new();
    addresses.retain(|address| seen.insert(*address));
}

/// Returns the ingress IPs that this node handles: those with `ipMode` unset or VIP (KEP-1860). As in kube-proxy, the
/// type of the Service does not matter.
fn ingress_ips(status: RawStatus<'_>, faults: &mut Faults) -> Box<[IpAddr]> {
    const INGRESS: &str = "status.loadBalancer.ingress";
    let load_balancer = status.load_balancer.or_empty(faults, "status.loadBalancer", "an object");
    let mut addresses = Vec::new();
    let ingress = load_balancer.ingress.or_empty(faults, INGRESS, "a list of objects");
    for (index, entry) in ingress.into_iter().enumerate() {
        let path = |field: &str| format!("{INGRESS}[{index}]{field}");
        let Some(entry) = entry.take(faults, || path(""), "an object") else { continue };
        let is_vip = match entry.ip_mode {
            mode if mode.is_missing() => true,
            mode => mode.take(faults, || path(".ipMode"), "VIP or Proxy").is_some_and(|mode| mode == "VIP"),
        };
        let blank = matches!(&entry.ip, Loose::Value(text) if text.is_empty());
        if is_vip && !blank {
            addresses.extend(parse::address(entry.ip, faults, || path(".ip")));
        }
    }
    keep_first(&mut addresses);
    addresses.into_boxed_slice()
}

/// Returns the source ranges of both families. `families` are those of the Service.
fn source_ranges(
    list: Loose<Vec<Loose<Text<'_>>>>,
    families: impl Iterator<Item = Family>,
    faults: &mut Faults,
) -> Box<[IpNet]> {
    const FIELD: &str = "spec.loadBalancerSourceRanges";
    let (mut nets, bad) = parse::cidrs(list, faults, FIELD);
    if bad {
        // A list requests a restriction. Without a valid entry the safe restriction is to allow no client.
        let lacks = |family: &Family| !nets.iter().any(|net| Family::of(net.addr()) == *family);
        let closed: Vec<Family> = families.filter(lacks).collect();
        for family in closed {
            nets.push(no_source(family));
            let reason = format!(
                "no entry can be read for {family}: its load-balancer IPs are closed to all; mend the entries"
            );
            faults.push(Fault::new(FIELD, reason).noticed(Notice::ClosedSourceRanges));
        }
    }
    let mut ranges = IpNet::aggregate(&nets);
    // Aggregation can also result in length zero (0.0.0.0/1 and 128.0.0.0/1), which means the same.
    let open = |family| ranges.iter().any(|net| net.prefix_len() == 0 && Family::of(net.addr()) == family);
    let (open4, open6) = (open(Family::Ipv4), open(Family::Ipv6));
    ranges.retain(|net| match Family::of(net.addr()) {
        Family::Ipv4 => !open4,
        Family::Ipv6 => !open6,
    });
    ranges.sort_unstable();
    ranges.into_boxed_slice()
}

fn affinity(kind: Loose<Text<'_>>, config: Loose<RawAffinityConfig<'_>>, faults: &mut Faults) -> Option<u32> {
    const TIMEOUT: &str = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    let kind = kind.take(faults, || "spec.sessionAffinity".to_owned(), "None or ClientIP")?;
    if kind != "ClientIP" {
        if kind != "None" && !kind.is_empty() {
            let reason = format!("{:?} is not known; write None or ClientIP", parse::clip(&kind));
            fault(faults, "spec.sessionAffinity", reason);
        }
        return None;
    }
    let config = config.or_empty(faults, "spec.sessionAffinityConfig", "an object");
    let client_ip = config.client_ip.or_empty(faults, "spec.sessionAffinityConfig.clientIP", "an object");
    let Some(seconds) = client_ip.timeout.take(faults, || TIMEOUT.to_owned(), "a number of seconds") else {
        return Some(DEFAULT_AFFINITY_SECONDS);
    };
    let valid = u32::try_from(seconds).ok().filter(|s| (1..=MAX_AFFINITY_SECONDS).contains(s));
    if valid.is_none() {
        let reason = format!("{seconds} is out of range; write 1 to {MAX_AFFINITY_SECONDS}");
        fault(faults, TIMEOUT, reason);
    }
    valid.or(Some(DEFAULT_AFFINITY_SECONDS))
}

fn ipvs_scheduler(name: &str, faults: &mut Faults) -> Option<IpvsScheduler> {
    let scheduler = IpvsScheduler::named(name);
    if scheduler.is_none() {
        let reason = format!("{:?} is not known; write one of {}", parse::clip(name), IpvsScheduler::names());
        fault(faults, "metadata.annotations[portolan.dev/ipvs-scheduler]", reason);
    }
    scheduler
}

fn keep_client_address(text: &str, faults: &mut Faults) -> bool {
    if !matches!(text, "true" | "false") {
        let reason = format!("{:?} is not known; write true or false", parse::clip(text));
        fault(faults, "metadata.annotations[portolan.dev/userspace-keep-client-address]", reason);
    }
    text == "true"
}

fn internal_policy(text: Loose<Text<'_>>, faults: &mut Faults) -> InternalPolicy {
    if policy_is_local(text, faults, "spec.internalTrafficPolicy") {
        InternalPolicy::Local
    } else {
        InternalPolicy::Cluster
    }
}

fn policy_is_local(text: Loose<Text<'_>>, faults: &mut Faults, field: &str) -> bool {
    let policy = text.take(faults, || field.to_owned(), "Cluster or Local").unwrap_or_default();
    if !matches!(&*policy, "" | "Cluster" | "Local") {
        let reason = format!("{:?} is not known; write Cluster or Local", parse::clip(&policy));
        fault(faults, field, reason);
    }
    policy == "Local"
}

fn health_check_port(value: Loose<i64>, faults: &mut Faults) -> Option<u16> {
    let field = || "spec.healthCheckNodePort".to_owned();
    match value.take(faults, field, "a number from 1 to 65535").unwrap_or(0) {
        0 => {
            fault(faults, field(), "is missing; a load balancer with policy Local needs 1 to 65535");
            None
        }
        value => parse::port_number(value, faults, field),
    }
}

#[cfg(test)]
mod tests;
