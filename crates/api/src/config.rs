//! The settings of an API: which addresses and ports may be allocated, and how strict it is.

use std::{ops::Deref, str::FromStr};

use ipnet::IpNet;
use portolan_ipam::{
    AddressRange, NodePortRange,
    check::{Neighbours, RangeRefusal, check_configured},
    load_balancer::check_ranges,
};
use portolan_schema::Object;
use portolan_store::History;
use thiserror::Error;

/// Settings of an [`Api`](crate::Api).
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Ranges for cluster IPs (`--service-cluster-ip-range`).
    pub service_ranges: ServiceRanges,
    /// Range for node ports (`--service-node-port-range`).
    pub node_ports: NodePortRange,
    /// Ranges of pods (`--cluster-cidr`). No range of cluster IPs may overlap them.
    pub pod_ranges: Vec<IpNet>,
    /// Ranges for addresses of Services of type LoadBalancer (`--load-balancer-ip-range`). If there are none, another
    /// program has to write these addresses.
    pub load_balancer_ranges: LoadBalancerRanges,
    /// True if objects are validated (`--validation`). If false, only well-formed JSON and metadata are required, so
    /// that clients can be tested with objects that no API server would store.
    pub validate: bool,
    /// True if an EndpointSlice that is applied again, by [`Api::apply`](crate::Api::apply) or server-side apply, keeps
    /// the results of its health checks. False for a server
    /// whose store has no health checks: the results of an earlier run would stay for good.
    pub keeps_health_checks: bool,
    /// Decides which endpoints the health checks of this server judge. `None`: it has none.
    pub health_checked: Option<HealthChecked>,
    /// Size of the history that is kept for watches that resume and for paged lists.
    pub history: History,
}

/// Returns, for each endpoint of a slice, true if it is not ready before a health check has passed. `None` if health
/// checks do not judge the slice. The Service of the slice is given as JSON.
pub type HealthChecked = fn(service: &[u8], slice: &Object) -> Option<Vec<bool>>;

/// One or two CIDRs. The first one is that of the primary family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRanges {
    primary: IpNet,
    secondary: Option<IpNet>,
}

/// CIDRs without common addresses, of one family or both. Addresses are allocated from the first of a family that has a
/// free one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadBalancerRanges(Vec<AddressRange>);

/// A setting that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The text is not a CIDR.
    #[error("service-cluster-ip-range: \"{0}\" is not a CIDR; write it like 10.96.0.0/12 or fd00:96::/112")]
    NotACidr(String),
    /// The CIDR cannot be used for cluster IPs, or the CIDRs cannot be combined.
    #[error("service-cluster-ip-range: {0}")]
    Refused(#[from] RangeRefusal),
    /// The text is not a CIDR.
    #[error("load-balancer-ip-range: \"{0}\" is not a CIDR; write it like 192.0.2.0/24 or 2001:db8::/112")]
    NotALoadBalancerCidr(String),
    /// The CIDR cannot be used for load-balancer addresses.
    #[error("load-balancer-ip-range: {0}")]
    LoadBalancerRefused(RangeRefusal),
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            service_ranges: ServiceRanges::default(),
            node_ports: NodePortRange::default(),
            pod_ranges: Vec::new(),
            load_balancer_ranges: LoadBalancerRanges::default(),
            validate: true,
            keeps_health_checks: true,
            health_checked: None,
            history: History::default(),
        }
    }
}

impl ApiConfig {
    /// Checks that the settings fit together. The ServiceCIDRs of an existing store are not checked against them.
    pub fn check(&self) -> Result<(), ConfigError> {
        let nets: Vec<IpNet> = self.service_ranges.iter().collect();
        check_configured(&nets, Neighbours { pods: &self.pod_ranges, ..Neighbours::default() })?;
        let balancers: Vec<IpNet> = self.load_balancer_ranges.iter().map(|range| range.net()).collect();
        let others = Neighbours { pods: &self.pod_ranges, cluster_ips: &nets, ..Neighbours::default() };
        check_ranges(&balancers, others).map_err(ConfigError::LoadBalancerRefused)?;
        Ok(())
    }
}

impl ServiceRanges {
    /// Returns the primary range, then that of the other family if there is one.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        std::iter::once(self.primary).chain(self.secondary)
    }

    /// Returns the primary range.
    pub fn primary(&self) -> IpNet {
        self.primary
    }
}

impl Deref for LoadBalancerRanges {
    type Target = [AddressRange];

    fn deref(&self) -> &[AddressRange] {
        &self.0
    }
}

impl FromStr for LoadBalancerRanges {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let not_a_cidr = |part: &str| ConfigError::NotALoadBalancerCidr(part.to_owned());
        let parse = |part: &str| part.parse().map_err(|_| not_a_cidr(part));
        let nets = text.split(',').map(str::trim).map(parse).collect::<Result<Vec<IpNet>, _>>()?;
        let ranges = check_ranges(&nets, Neighbours::default()).map_err(ConfigError::LoadBalancerRefused)?;
        Ok(Self(ranges))
    }
}

impl Default for ServiceRanges {
    /// Returns 10.96.0.0/12, as in kubeadm.
    fn default() -> Self {
        let primary = ipnet::Ipv4Net::new_assert([10, 96, 0, 0].into(), 12);
        Self { primary: primary.into(), secondary: None }
    }
}

impl FromStr for ServiceRanges {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let parse =
            |part: &str| part.trim().parse().map_err(|_| ConfigError::NotACidr(part.trim().to_owned()));
        let nets = text.split(',').map(parse).collect::<Result<Vec<IpNet>, _>>()?;
        let mut ranges = check_configured(&nets, Neighbours::default())?.into_iter().map(AddressRange::net);
        let primary = ranges.next().ok_or(RangeRefusal::Count(0))?;
        Ok(Self { primary, secondary: ranges.next() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_and_truncated() {
        let ranges: ServiceRanges = "10.96.0.9/16, fd00:96::/112".parse().unwrap();
        let texts: Vec<String> = ranges.iter().map(|range| range.to_string()).collect();
        assert_eq!(texts, ["10.96.0.0/16", "fd00:96::/112"]);
    }

    #[test]
    fn ranges_of_pods_are_no_ranges_of_cluster_ips() {
        let config =
            |pods: &str| ApiConfig { pod_ranges: vec![pods.parse().unwrap()], ..ApiConfig::default() };
        assert_eq!(config("10.244.0.0/16").check(), Ok(()));
        let text = config("10.100.0.0/16").check().unwrap_err().to_string();
        let expected =
            "service-cluster-ip-range: 10.96.0.0/12 overlaps 10.100.0.0/16, which is a range of pods";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn load_balancer_ranges_overlap_nothing() {
        let ranges: LoadBalancerRanges = "192.0.2.0/28, 198.51.100.0/24,fd00::/112".parse().unwrap();
        assert_eq!(ranges.len(), 3);
        for (text, part) in [
            ("192.0.2.0", "\"192.0.2.0\" is not a CIDR"),
            ("", "\"\" is not a CIDR"),
            ("192.0.2.1/28", "bits set behind its prefix"),
            ("192.0.2.0/24,192.0.2.0/28", "overlap"),
            ("127.0.0.0/28", "loopback"),
        ] {
            let text = text.parse::<LoadBalancerRanges>().unwrap_err().to_string();
            assert!(text.starts_with("load-balancer-ip-range: ") && text.contains(part), "{text}");
        }
        let check = |text: &str| {
            let load_balancer_ranges = text.parse().unwrap();
            let pod_ranges = vec!["10.244.0.0/16".parse().unwrap()];
            ApiConfig { pod_ranges, load_balancer_ranges, ..ApiConfig::default() }.check()
        };
        assert_eq!(check("192.0.2.0/28"), Ok(()));
        for (text, user) in [("10.244.7.0/24", "pods"), ("10.100.0.0/24", "cluster IPs")] {
            let text = check(text).unwrap_err().to_string();
            assert!(text.contains(&format!("which is a range of {user}")), "{text}");
        }
    }

    #[test]
    fn each_bad_range_has_its_error() {
        let error = |text: &str| text.parse::<ServiceRanges>().unwrap_err();
        assert!(matches!(error("10.96.0.0"), ConfigError::NotACidr(_)));
        for (text, part) in [
            ("10.0.0.0/24,10.1.0.0/24", "same family"),
            ("10.0.0.0/24,fd00::/112,fd01::/112", "3 ranges"),
            ("10.0.0.0/30", "fewer than 8"),
            ("127.0.0.0/16", "loopback"),
            ("fe80::/64", "link-local"),
        ] {
            let text_of = error(text).to_string();
            assert!(text_of.starts_with("service-cluster-ip-range: ") && text_of.contains(part), "{text_of}");
        }
    }
}
