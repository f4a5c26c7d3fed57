//! The load of a way there and back, and which losses count.

use portolan_testkit::{Traffic, TrafficPlan, TrafficReport};

use crate::common::Cluster;
use crate::common::load::{plan, start_plans};

type Load = Vec<(&'static str, Traffic)>;

/// TCP connections and streams over the whole way, and UDP flows.
pub(crate) struct Loads {
    tcp: Load,
    udp: Load,
}

impl Loads {
    pub(crate) fn start(cluster: &Cluster) -> Self {
        Self {
            tcp: start_plans(cluster, |to| TrafficPlan { udp: None, ..plan(to) }),
            udp: start_flows(cluster),
        }
    }

    /// Asserts that the UDP flows have lost nothing and have kept their endpoints, and starts others. When kube-proxy starts, it
    /// deletes the entries of all UDP Services from the connection table, so flows may move, and each may lose the
    /// reply that is on its way at that moment.
    pub(crate) fn change_flows(&mut self, cluster: &Cluster) {
        let former = std::mem::replace(&mut self.udp, start_flows(cluster));
        assert_all(former, |report| report.is_lossless() && report.udp_sent > 0);
    }

    /// Asserts that no connection failed and no stream or UDP flow broke.
    pub(crate) fn assert_nothing_lost(self) {
        assert_all(self.tcp, |report| report.is_lossless() && report.connections_ok > 0);
        let flows = plan("192.0.2.1:80").udp_flows as u64;
        assert_all(self.udp, |report| report.udp_lost <= flows && report.udp_sent > 0);
    }
}

fn start_flows(cluster: &Cluster) -> Load {
    start_plans(cluster, |to| TrafficPlan { tcp: None, ..plan(to) })
}

fn assert_all(load: Load, is_good: impl Fn(&TrafficReport) -> bool) {
    let ended: Vec<_> = load.into_iter().map(|(name, traffic)| (name, traffic.stop().unwrap())).collect();
    let total: u64 = ended.iter().map(|(_, report)| report.connections_ok + report.udp_sent).sum();
    let bad: Vec<String> = ended
        .into_iter()
        .filter(|(_, report)| !is_good(report))
        .map(|(name, report)| format!("{name}: {report}"))
        .collect();
    assert!(bad.is_empty(), "of {total} connections and datagrams:\n{}", bad.join("\n"));
    eprintln!("nothing lost of {total} connections and datagrams");
}
