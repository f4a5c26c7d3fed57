//! Random worlds of Services and EndpointSlices. The seed is one or two bytes of the input.

use std::net::IpAddr;
use std::sync::OnceLock;

use ipnet::IpNet;
use portolan_engine::table::Table;
use portolan_iptables::IptablesOptions;
use portolan_model::catalog::PerFamily;
use portolan_model::table::Entry;
use portolan_model::world::{Edited, Rng};
use portolan_model::{Family, LocalDetector, NodePortAddresses, Settings};

use crate::script::Script;

/// Services of the largest world.
const MOST: usize = 4;

/// Returns a generator for a seed of two bytes.
pub(crate) fn rng(script: &mut Script<'_>) -> Rng {
    Rng::new(u64::from(u16::from_be_bytes([script.byte(), script.byte()])))
}

/// Returns the Service ports of a random world, with random settings.
pub(crate) fn table(script: &mut Script<'_>) -> Table {
    let family = script.pick(&Family::BOTH);
    let settings = settings(family, script);
    Table::with(settings, entries(script.byte(), script.below(MOST), family))
}

/// Returns the Service ports of a random world. There are few enough of them to keep each one that was made.
fn entries(seed: u8, others: usize, family: Family) -> Vec<Entry> {
    static MADE: [[OnceLock<PerFamily<Vec<Entry>>>; MOST]; 256] =
        [const { [const { OnceLock::new() }; MOST] }; 256];
    let made = MADE[usize::from(seed)][others].get_or_init(|| {
        let mut edited = Edited::new(seed.into(), 1 + others);
        edited.first();
        PerFamily { ipv4: edited.entries(Family::Ipv4), ipv6: edited.entries(Family::Ipv6) }
    });
    made.get(family).clone()
}

/// Returns the rules of a table as the older `iptables-save` prints those of a program that knows nothing of Services.
pub(crate) fn other_rules(table: &Table) -> String {
    let save = portolan_iptables::fuzzing::save(table, IptablesOptions::default());
    save.replace("KUBE-", "OTHER-").replace("[1:60] ", "")
}

fn settings(family: Family, script: &mut Script<'_>) -> Settings {
    let [address, of_pods] = match family {
        Family::Ipv4 => ["10.244.0.9", "10.244.0.0/16"],
        Family::Ipv6 => ["2001:db8::9", "2001:db8:244::/48"],
    };
    let (address, of_pods): (IpAddr, IpNet) = (address.parse().unwrap(), of_pods.parse().unwrap());
    Settings {
        local_detector: match script.below(4) {
            0 => LocalDetector::None,
            1 => LocalDetector::Cidr(of_pods),
            2 => LocalDetector::Interface("cbr0".into()),
            _ => LocalDetector::InterfacePrefix("veth".into()),
        },
        masquerade_all: script.flag(),
        node_port_addresses: match script.below(3) {
            0 => NodePortAddresses::MatchAll,
            1 => NodePortAddresses::Addresses(vec![address]),
            _ => NodePortAddresses::Addresses(vec![of_pods.network(), address]),
        },
        node_ip: script.flag().then_some(address),
        service_cidrs: if script.flag() { vec![of_pods] } else { Vec::new() },
        counters: script.flag(),
        ..Settings::plain(family)
    }
}
