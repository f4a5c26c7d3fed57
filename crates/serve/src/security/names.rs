//! The names in the server's certificate.

use std::net::{IpAddr, SocketAddr};

use portolan_api::ServiceRanges;

/// The names by which clients inside a cluster reach the API server, the same as upstream's.
const CLUSTER_NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// Returns host names and addresses for a server that listens on `listen` on the host `host`: the cluster names, the
/// host name, loopback, the listen address, the cluster IP of the Service `kubernetes`, which is the first address of
/// each range, and `extra`.
pub fn server_names(listen: SocketAddr, host: &str, ranges: &ServiceRanges, extra: &[String]) -> Vec<String> {
    let mut addresses = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
    if !listen.ip().is_unspecified() {
        addresses.push(listen.ip());
    }
    addresses.extend(ranges.iter().filter_map(|range| range.hosts().next()).map(|first| match first {
        // The iterator of an IPv6 range starts with the address of the range itself.
        IpAddr::V6(address) if ranges.iter().any(|range| range.addr() == first) => {
            IpAddr::V6((u128::from(address).saturating_add(1)).into())
        }
        other => other,
    }));
    let names = CLUSTER_NAMES.iter().map(|&name| name.to_owned());
    let host = Some(host.to_ascii_lowercase()).filter(|host| !host.is_empty());
    let mut all: Vec<String> = names.chain(host).chain(addresses.iter().map(ToString::to_string)).collect();
    // A certificate has addresses in their usual form. In another form they would be missed in every new certificate.
    all.extend(extra.iter().map(|name| match name.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => name.clone(),
    }));
    let mut seen = std::collections::HashSet::new();
    all.retain(|name| seen.insert(name.clone()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses() {
        let ranges = "10.96.0.0/16,fd00:96::/112".parse().unwrap();
        let extra = ["api.example.org", "::1", "FD00:96:0::1"].map(str::to_owned);
        let names = server_names("192.0.2.7:6443".parse().unwrap(), "Host1", &ranges, &extra);
        let expected = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "host1",
            "127.0.0.1",
            "::1",
            "192.0.2.7",
            "10.96.0.1",
            "fd00:96::1",
            "api.example.org",
        ];
        assert_eq!(names, expected);
        let any = server_names("[::]:6443".parse().unwrap(), "localhost", &ranges, &[]);
        assert!(
            !any.contains(&"::".to_owned()) && any.iter().filter(|name| *name == "localhost").count() == 1
        );
    }
}
