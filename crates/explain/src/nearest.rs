//! What resembles a destination that no frontend matches: the frequent mistakes.

use std::net::IpAddr;

use portolan_model::table::Entry;
use portolan_model::{Frontend, NodePortAddresses, ServicePortName};

use crate::facts::Facts;
use crate::report::Nearest;
use crate::resolve::Asked;

/// Most frontends and endpoints that are listed.
const MOST: usize = 16;

/// Returns the frontends and endpoints that resemble the destination, most similar first.
pub(crate) fn nearest(asked: &Asked<'_>, facts: &Facts<'_>, table: &[Entry]) -> Vec<Nearest> {
    let mut found: Vec<(u8, Nearest)> =
        table.iter().flat_map(|entry| of_entry(asked, facts, entry)).collect();
    found.sort_by(|(a, first), (b, second)| (a, &first.text).cmp(&(b, &second.text)));
    found.dedup();
    found.truncate(MOST);
    found.into_iter().map(|(_, nearest)| nearest).collect()
}

fn of_entry(asked: &Asked<'_>, facts: &Facts<'_>, (name, forwarding): &Entry) -> Vec<(u8, Nearest)> {
    let (address, port) = (asked.destination.ip(), asked.destination.port());
    let same_protocol = forwarding.protocol == asked.protocol;
    let mut found = Vec::new();
    for frontend in &forwarding.frontends {
        let text = || format!("{name} has {frontend} ({})", forwarding.protocol);
        match frontend {
            Frontend::NodePort(number) if *number == port && facts.node.has(address) => {
                if same_protocol {
                    let text = format!("{}; {}", text(), accepted(asked));
                    found.push((0, near("node-port-not-accepted", name, text)));
                } else {
                    found.push((1, near("node-port-other-protocol", name, text())));
                }
            }
            Frontend::NodePort(_) => {}
            other if other.socket() == Some(asked.destination) => {
                found.push((1, near("other-protocol", name, text())));
            }
            other if is_at(*other, address) => found.push((3, near("other-port", name, text()))),
            _ => {}
        }
    }
    let mut endpoints = forwarding.cluster.iter().chain(&forwarding.local);
    if same_protocol && endpoints.any(|backend| backend.socket() == asked.destination) {
        let text = format!(
            "{} is an endpoint of {name} ({}): packets to endpoints pass without Services",
            asked.destination, forwarding.protocol
        );
        found.push((2, near("endpoint", name, text)));
    }
    found
}

fn is_at(frontend: Frontend, address: IpAddr) -> bool {
    frontend.socket().is_some_and(|socket| socket.ip() == address)
}

/// Tells which addresses accept node ports.
fn accepted(asked: &Asked<'_>) -> String {
    match &asked.view.settings.node_port_addresses {
        NodePortAddresses::MatchAll => {
            "node ports are accepted at every address of this node that is no loopback address".to_owned()
        }
        NodePortAddresses::Addresses(addresses) if addresses.is_empty() => {
            "no address of this node accepts node ports (nodePortAddresses)".to_owned()
        }
        NodePortAddresses::Addresses(addresses) => {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            format!("node ports are accepted at {} only (nodePortAddresses)", addresses.join(", "))
        }
    }
}

fn near(code: &str, name: &ServicePortName, text: String) -> Nearest {
    Nearest { code: code.to_owned(), service: name.to_string(), text }
}
