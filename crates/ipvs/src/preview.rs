//! What a comparison would write, as lines in the words of ipvsadm, ipset, ip and iptables-restore.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portolan_engine::table::Table;
use portolan_model::Family;

use super::dataplane::{Ipvs, Read};
use super::desired::{Desired, Touched};
use super::device::{Addresses, DEVICE};
use super::difference::{Difference, WriteSettings};
use super::draining::UptimeSecs;
use super::frontend::{Config, Key};
use super::rules::{Part, Present, Rules};
use super::set::Set;
use super::words::lines_of;
use super::{Error, IpvsOptions};

/// All that a comparison would write, in the order of writing.
#[derive(Debug, Default)]
struct Preview {
    has_device: bool,
    missing: Vec<Set>,
    difference: Difference,
    /// Restores before and after the virtual servers.
    rules: [String; 2],
}

/// Returns what a start would write for a table into a kernel without objects of this mode. `addresses` are those of this
/// node.
pub fn preview_of_all(table: &Table, options: &IpvsOptions, addresses: &[IpAddr]) -> Vec<String> {
    let family = table.family();
    let mut desired = Desired::new(table.settings().clone(), options.exclude.clone());
    desired.apply(&table.all(), &mut Touched::default());
    let is_of_node = |address: &&IpAddr| Family::of(**address) == family && !address.is_loopback();
    let own: BTreeSet<IpAddr> = addresses.iter().filter(is_of_node).copied().collect();
    desired.set_node_addresses(own.into_iter().collect(), table);
    let mut difference = Difference::default();
    difference.addresses(&Addresses::default(), &desired);
    for set in Set::ALL {
        difference.members(set, &BTreeSet::new(), &desired);
    }
    let manner = WriteSettings { default: options.scheduler, missing: &[], drained_by: UptimeSecs::now() };
    for (key, server) in desired.servers() {
        difference.server(*key, None, Some(server), manner);
    }
    let (rules, present) = (Rules::new(table.settings()), Present::default());
    let rules = [Part::Before, Part::After].map(|part| rules.restore(&present, part));
    Preview { has_device: false, missing: Set::ALL.into(), difference, rules }.lines(family)
}

impl Ipvs {
    /// Returns what [`compare`](portolan_engine::dataplane::Dataplane::compare) would write for a table, one line for each
    /// object. Empty if the kernel has everything. Writes nothing; the kernel may load its modules. Timeouts of IPVS are not
    /// compared. To be called before any other method, and instead of them: the data plane takes over the table.
    ///
    /// # Errors
    /// The kernel refuses a listing, or a program failed.
    pub fn preview(&mut self, table: &Table) -> Result<Vec<String>, portolan_engine::Error> {
        let family = table.family();
        Ok(self.previewed(table)?.lines(family))
    }

    fn previewed(&mut self, table: &Table) -> Result<Preview, Error> {
        self.desired.apply(&table.all(), &mut Touched::default());
        if self.desired.configure(table) {
            self.rules = Rules::new(self.desired.settings());
        }
        let device = self.kernel.device()?;
        // Index 0 is that of no device.
        self.device = device.unwrap_or_default();
        let Read { owners, mut difference, missing } = self.read(table)?;
        let found: BTreeMap<Key, Option<Config>> = self.compare_servers(&mut difference)?;
        difference.remove_stale(found, &owners);
        let present = self.present_rules()?;
        let rules = [Part::Before, Part::After].map(|part| self.rules.restore(&present, part));
        Ok(Preview { has_device: device.is_some(), missing, difference, rules })
    }
}

impl Preview {
    fn lines(&self, family: Family) -> Vec<String> {
        let [before, after] = &self.rules;
        let mut lines = Vec::new();
        if !self.has_device {
            lines.push(format!("ip link add {DEVICE} type dummy"));
        }
        lines.extend(self.missing.iter().map(|set| {
            let counters = if set.counts() { " counters" } else { "" };
            let kind = set.kind().name();
            format!("ipset create {} {kind} family {}{counters}", set.name(family), ipset_family(family))
        }));
        lines.extend(lines_of(&self.difference, before, after, family));
        lines
    }
}

const fn ipset_family(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "inet",
        Family::Ipv6 => "inet6",
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::{IpvsScheduler, Protocol};
    use portolan_wire::ipset::Member;
    use portolan_wire::ipvs::FLAG_PERSISTENT;

    use super::super::difference::Operation;
    use super::*;

    #[test]
    fn each_write_is_one_line() {
        let key = Key { address: IpAddr::from([10, 96, 0, 1]), port: 80, protocol: Protocol::Tcp };
        let other = Key { protocol: Protocol::Udp, ..key };
        let config = Config { scheduler: IpvsScheduler::default(), flags: FLAG_PERSISTENT, timeout: 60 };
        let endpoint = "10.244.1.2:8080".parse().unwrap();
        let preview = Preview {
            has_device: false,
            missing: vec![Set::ClusterIp, Set::Drop],
            difference: Difference {
                add: vec![
                    (Set::ClusterIp, key.member()),
                    (Set::LoadBalancerSourceCidr, Member::IpPortNet(key.address, 6, 80, key.address, 24)),
                ],
                servers: vec![Operation::New(key, config), Operation::NewReal(key, endpoint)],
                bind: vec![key.address],
                gone: vec![Operation::Delete(other), Operation::DeleteReal(key, endpoint)],
                unbind: vec![IpAddr::from([10, 96, 0, 9])],
                remove: vec![(Set::NodePort(Protocol::Tcp), Member::Port(30_080))],
                ..Difference::default()
            },
            rules: ["*nat\n-A KUBE-SERVICES -j ACCEPT\nCOMMIT\n".to_owned(), String::new()],
        };
        insta::assert_snapshot!(preview.lines(Family::Ipv4).join("\n"), @r"
        ip link add kube-ipvs0 type dummy
        ipset create KUBE-CLUSTER-IP hash:ip,port family inet
        ipset create PORTOLAN-DROP hash:ip,port family inet counters
        ipset add KUBE-CLUSTER-IP 10.96.0.1,tcp:80
        ipset add KUBE-LOAD-BALANCER-SOURCE-CIDR 10.96.0.1,tcp:80,10.96.0.1/24
        *nat
        -A KUBE-SERVICES -j ACCEPT
        COMMIT
        ipvsadm -A -t 10.96.0.1:80 -s rr -p 60
        ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.2:8080 -m -w 1
        ip address add 10.96.0.1/32 dev kube-ipvs0
        ipvsadm -D -u 10.96.0.1:80
        ipvsadm -d -t 10.96.0.1:80 -r 10.244.1.2:8080
        ip address del 10.96.0.9/32 dev kube-ipvs0
        ipset del KUBE-NODE-PORT-TCP 30080
        ");
    }
}
