//! Rows of decision tables: a Service, its endpoints, and the backends that each sender reaches.

use std::net::SocketAddr;

use portolan_model::verdict::Fate;
use portolan_model::{Family, Protocol};
use portolan_testkit::Site;

use crate::objects::{CLUSTER_IPS, EXTERNAL_IPS, LOAD_BALANCER_IPS, NODE_PORT, PORT, place};
use crate::{Attempt, Cluster, Endpoint, Sender, Service, TARGET_PORTS, slices};

/// A place at which the Service `default/web` may be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The cluster IPs.
    ClusterIp,
    /// The external IPs.
    ExternalIp,
    /// The load-balancer IPs.
    LoadBalancerIp,
    /// The node port on the node's own addresses.
    NodePort,
    /// The node port on the loopback addresses.
    LoopbackNodePort,
    /// A port of the cluster IPs that the Service does not have.
    WrongPort,
    /// A port of the external IPs that the Service does not have.
    WrongExternalPort,
    /// An address of the service CIDRs that no Service has.
    Unallocated,
}

impl At {
    /// All places for external traffic.
    pub const EXTERNAL: [Self; 3] = [Self::ExternalIp, Self::LoadBalancerIp, Self::NodePort];

    /// Returns the address of a family, and the port.
    pub fn socket(self, family: Family) -> SocketAddr {
        let index = usize::from(family == Family::Ipv6);
        let fixed = |addresses: [&str; 2]| addresses[index].parse().unwrap();
        let (address, port) = match self {
            Self::ClusterIp => (fixed(CLUSTER_IPS), PORT),
            Self::ExternalIp => (fixed(EXTERNAL_IPS), PORT),
            Self::LoadBalancerIp => (fixed(LOAD_BALANCER_IPS), PORT),
            Self::NodePort => (Site::Local.node().of(family), NODE_PORT),
            Self::LoopbackNodePort => (fixed(["127.0.0.1", "::1"]), NODE_PORT),
            Self::WrongPort => (fixed(CLUSTER_IPS), PORT + 1),
            Self::WrongExternalPort => (fixed(EXTERNAL_IPS), PORT + 1),
            Self::Unallocated => (fixed(["10.96.0.99", "fd00:10:96::99"]), PORT),
        };
        SocketAddr::new(address, port)
    }
}

impl Cluster {
    /// Sets the Service `default/web` and its endpoints (see [`Endpoint`]).
    pub fn put(&mut self, service: &Service, endpoints: &str) {
        let version = self.next_version();
        let mut edits = slices(&Endpoint::parse_all(endpoints), version);
        edits.push(service.edit(version));
        self.apply(&edits);
    }

    /// Sets the endpoints of `default/web`.
    pub fn put_endpoints(&mut self, endpoints: &str) {
        let version = self.next_version();
        self.apply(&slices(&Endpoint::parse_all(endpoints), version));
    }

    /// Checks one row of a decision table. `expected` names the expected fate of each sender's packets, such as
    /// `pod l1 r2, node l1* r2*, client drop`: names of endpoints (with `*` if they see an address of the node instead
    /// of the sender's), `reject`, `drop` or `ignored`. The differing fate in a mode follows in brackets:
    /// `node reject [iptables: ignored]`. Codes of reasons may follow, such as
    /// `client drop because source-outside-ranges`, also with those of a mode in brackets. The oracle and the kernel
    /// must both agree on the fate, in every protocol and family, and the oracle must give these reasons, among others.
    ///
    /// # Panics
    ///
    /// If the oracle or the kernel disagrees.
    pub fn check(&mut self, at: &[At], service: &Service, endpoints: &str, expected: &str) {
        self.put(service, endpoints);
        self.expect(at, expected, &format!("{endpoints:?}"));
    }

    /// Checks a row like [`Cluster::check`], with the present Service. `row` names the row in the message.
    ///
    /// # Panics
    ///
    /// If the oracle or the kernel disagrees.
    pub fn expect(&mut self, at: &[At], expected: &str, row: &str) {
        self.expect_in(&Family::BOTH, at, expected, row);
    }

    /// Checks a row like [`Cluster::expect`], in some families only.
    ///
    /// # Panics
    ///
    /// If the oracle or the kernel disagrees.
    pub fn expect_in(&mut self, families: &[Family], at: &[At], expected: &str, row: &str) {
        let mut faults = Vec::new();
        let mut attempts = Vec::new();
        for clause in expected.split(", ") {
            let (sender, words) = clause.split_once(' ').unwrap_or_else(|| panic!("no word on {clause}"));
            let (words, codes) = words.split_once(" because ").unwrap_or((words, ""));
            let (words, codes) = (self.words(words), words_in(self.mode().name(), codes));
            let mut own = attempts_of(self.sender(sender), at);
            own.retain(|attempt| families.contains(&attempt.family()));
            for (attempt, verdict) in own.iter().zip(self.judge(&own)) {
                let verdict = self.with_endpoints(verdict, attempt.family());
                let says = in_words(&verdict.fate, attempt.family());
                let given: Vec<&str> = verdict.codes().collect();
                let is_explained = codes.split_whitespace().all(|code| given.contains(&code));
                // A Service port whose protocol the mode does not support has no endpoints.
                if (says != words || !is_explained) && self.mode().carries(attempt.protocol) {
                    let given = given.join(" ");
                    let expected = format!("expected {words} because {codes}");
                    faults.push(format!("{attempt}: {expected}, but the oracle says {says} because {given}"));
                }
            }
            attempts.extend(own);
        }
        faults.extend(self.faults(&attempts));
        assert!(faults.is_empty(), "{row} at {at:?}: {expected}\n{}", faults.join("\n"));
    }

    /// Returns the fate that a row names for this mode. In modes that hide clients, every endpoint sees an address of
    /// the node.
    fn words(&self, words: &str) -> String {
        let words = words_in(self.mode().name(), words);
        if !self.differences(Family::Ipv4).hides_clients || ["reject", "drop", "ignored"].contains(&words) {
            return words.to_owned();
        }
        let hidden = words.split(' ').map(|name| format!("{}*", name.trim_end_matches('*')));
        hidden.collect::<Vec<_>>().join(" ")
    }
}

/// Selects the words of a mode from `usual [mode: others]` or `usual [mode/another: others]`.
fn words_in<'a>(mode: &str, words: &'a str) -> &'a str {
    let Some((usual, others)) = words.strip_suffix(']').and_then(|words| words.split_once(" [")) else {
        return words;
    };
    let others = others.split_once(": ").filter(|(modes, _)| modes.split('/').any(|one| one == mode));
    others.map_or(usual, |(_, others)| others)
}

/// Returns a packet to each place, in every protocol and family.
pub fn attempts_of(sender: &Sender, at: &[At]) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for place in at {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            for family in Family::BOTH {
                attempts.push(Attempt {
                    sender: sender.clone(),
                    protocol,
                    destination: place.socket(family),
                });
            }
        }
    }
    attempts
}

fn in_words(fate: &Fate, family: Family) -> String {
    match fate {
        Fate::Reject => "reject".to_owned(),
        Fate::Drop => "drop".to_owned(),
        Fate::NotOurs => "ignored".to_owned(),
        Fate::Backends { set, masqueraded, .. } => {
            let words = set.iter().zip(masqueraded).map(|(backend, masqueraded)| {
                let name = name_of(backend.socket(), family);
                if *masqueraded { name + "*" } else { name }
            });
            words.collect::<Vec<_>>().join(" ")
        }
    }
}

fn name_of(backend: SocketAddr, family: Family) -> String {
    for (site, letter) in [(Site::Local, 'l'), (Site::Remote, 'r')] {
        for number in 0..=9 {
            if backend == SocketAddr::new(place(site, number).of(family), TARGET_PORTS[0]) {
                return format!("{letter}{number}");
            }
        }
    }
    backend.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_mode() {
        for (mode, words, expected) in [
            ("iptables", "l1 r1*", "l1 r1*"),
            ("nftables", "drop [iptables: l1 r1*]", "drop"),
            ("iptables", "drop [iptables: l1 r1*]", "l1 r1*"),
            ("ipvs", "no-endpoints [iptables/ipvs: other-port strays-ignored]", "other-port strays-ignored"),
        ] {
            assert_eq!(words_in(mode, words), expected);
        }
    }
}
