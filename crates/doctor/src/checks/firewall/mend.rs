//! The commands that let packets of Services pass.

use ipnet::IpNet;
use portolan_model::Family;

use super::path::Path;
use crate::facts::{Facts, Part};
use crate::finding::shell_word;
use crate::rules::{Chain, Hit, Hook, Packet, Passage, Program, RuleId};

/// The mark of captured packets in userspace mode, where the kernel does not say it.
const CAPTURE_MARK: &str = "0x1000/0x1000";

/// Returns the command that lets packets of Services pass, and no others. Where nothing in a packet tells that it is one, the
/// rule itself goes.
pub(super) fn command(facts: &Facts, path: Path, hit: &Hit<'_>, packet: &Packet) -> String {
    let of_mode = match path {
        Path::Nat => None,
        Path::Ipvs => of_ipvs(facts, hit, packet),
        Path::Tproxy | Path::Redirect => of_userspace(facts, path, hit, packet),
    };
    match of_mode {
        Some(command) => command,
        None if packet.translated => translated(facts, hit),
        None => remove(hit),
    }
}

/// Accepts packets that connection tracking has translated.
fn translated(facts: &Facts, hit: &Hit<'_>) -> String {
    let place = &hit.base.place;
    let forward = hit.base.base.is_some_and(|base| base.hook == Hook::Forward);
    // Docker leaves this chain to the operator, and calls it first.
    let docker =
        forward && facts.rules.chain(place, "DOCKER-USER").is_some() && place.program != Program::Nft;
    let chain = if docker { "DOCKER-USER" } else { &hit.base.name };
    match place.program {
        Program::Nft => insert(hit, "ct status dnat"),
        Program::IptablesNft | Program::IptablesLegacy => {
            insert_into(hit, chain, "-m conntrack --ctstate DNAT")
        }
    }
}

/// Returns the command that removes the rule of a hit.
pub(in crate::checks) fn remove(hit: &Hit<'_>) -> String {
    let place = &hit.chain.place;
    match hit.rule.map(|rule| &rule.id) {
        Some(RuleId::Line(line)) => format!("{} -t {} -D {line}", place.command(), place.table),
        Some(RuleId::Handle(handle)) => format!(
            "nft delete rule {} {} {} handle {handle}",
            place.family,
            shell_word(&place.table),
            shell_word(&hit.chain.name)
        ),
        None => accept_policy(hit.base),
    }
}

fn accept_policy(base: &Chain) -> String {
    let (place, name) = (&base.place, &base.name);
    match place.program {
        Program::Nft => {
            let (table, chain) = (shell_word(&place.table), shell_word(name));
            format!("nft chain {} {table} {chain} '{{ policy accept ; }}'", place.family)
        }
        Program::IptablesNft | Program::IptablesLegacy => {
            format!("{} -t {} -P {name} ACCEPT", place.command(), place.table)
        }
    }
}

/// Returns the command where IPVS translates packets. `None` if nothing in a packet tells that it is one of a Service.
fn of_ipvs(facts: &Facts, hit: &Hit<'_>, packet: &Packet) -> Option<String> {
    let base = hit.base.base?;
    match base.hook {
        Hook::Input => to_services(facts, hit, packet.family),
        // These chains also see the packets that the node itself sends to Services.
        Hook::Output if Passage::BeforeIpvs(Hook::Output).is_of(base) => None,
        Hook::Output | Hook::Postrouting => accept(hit, "-m ipvs --ipvs", None),
        Hook::Forward => of_pods(hit, packet),
        Hook::Ingress | Hook::Prerouting | Hook::Egress => None,
    }
}

/// Returns the command in userspace mode. `None` if nothing in a packet tells that it is one of a Service.
fn of_userspace(facts: &Facts, path: Path, hit: &Hit<'_>, packet: &Packet) -> Option<String> {
    match hit.base.base?.hook {
        Hook::Input if path == Path::Tproxy => {
            let mark = capture_mark(facts);
            let of_nft = mark.split_once('/').map(|(value, mask)| format!("meta mark and {mask} == {value}"));
            accept(hit, &format!("-m mark --mark {mark}"), of_nft.as_deref())
        }
        Hook::Forward => of_pods(hit, packet),
        _ => None,
    }
}

/// Returns the mark of captured packets and its mask, as the rule of policy routing has them.
fn capture_mark(facts: &Facts) -> &str {
    let routing = facts.objects.iter().filter(|object| object.part == Part::Routing);
    let mut of_rules = routing.filter_map(|object| {
        let (_, rest) = object.name.split_once("mark ")?;
        rest.split_whitespace().next().filter(|mark| mark.contains('/'))
    });
    of_rules.next().unwrap_or(CAPTURE_MARK)
}

/// Accepts what is for cluster IPs. Load-balancer IPs are not accepted as a whole: their source ranges are checked later.
fn to_services(facts: &Facts, hit: &Hit<'_>, family: Family) -> Option<String> {
    let known = facts.cluster.as_ref().and_then(|cluster| cluster.service_cidrs(family).into_iter().next());
    let set = if family == Family::Ipv4 { "KUBE-CLUSTER-IP" } else { "KUBE-6-CLUSTER-IP" };
    let command = match known {
        Some(range) => accept_range(hit, Side::Destination, range),
        None => accept(hit, &format!("-m set --match-set {set} dst,dst"), None),
    }?;
    Some(format!("{command}; and accept the external addresses and node ports that clients may use"))
}

/// Accepts packets of other nodes for pods of this one, or answers.
fn of_pods(hit: &Hit<'_>, packet: &Packet) -> Option<String> {
    match (packet.destination, packet.source) {
        (Some(pods), _) => accept_range(hit, Side::Destination, pods),
        (None, Some(pods)) => accept_range(hit, Side::Source, pods),
        (None, None) => None,
    }
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

fn accept_range(hit: &Hit<'_>, side: Side, range: IpNet) -> Option<String> {
    let (short, long) = match side {
        Side::Source => ("-s", "saddr"),
        Side::Destination => ("-d", "daddr"),
    };
    let protocol = if range.addr().is_ipv4() { "ip" } else { "ip6" };
    accept(hit, &format!("{short} {range}"), Some(&format!("{protocol} {long} {range}")))
}

/// Returns the command that accepts packets with a condition: of iptables, and of nft if it has one.
fn accept(hit: &Hit<'_>, of_iptables: &str, of_nft: Option<&str>) -> Option<String> {
    match hit.base.place.program {
        Program::Nft => of_nft.map(|test| insert(hit, test)),
        Program::IptablesNft | Program::IptablesLegacy => Some(insert_into(hit, &hit.base.name, of_iptables)),
    }
}

/// Returns the command of nft that accepts packets with a condition.
fn insert(hit: &Hit<'_>, test: &str) -> String {
    let place = &hit.base.place;
    let (table, chain) = (shell_word(&place.table), shell_word(&hit.base.name));
    format!("nft insert rule {} {table} {chain} {test} accept", place.family)
}

/// Returns the command of iptables that accepts packets with a condition, in a chain of the table.
fn insert_into(hit: &Hit<'_>, chain: &str, test: &str) -> String {
    let place = &hit.base.place;
    let table = if place.table == "filter" { String::new() } else { format!("-t {} ", place.table) };
    format!("{} {table}-I {chain} {test} -j ACCEPT", place.command())
}

#[cfg(test)]
mod tests {
    use super::super::{findings, tests::facts};
    use super::*;
    use crate::checks::testing::{chain, codes, iptables, process};
    use crate::facts::{Cluster, Link, Mode, Object, Process, Program as Proxy, Proxies};
    use crate::finding::{Code, Finding, Severity};
    use crate::rules::Ruleset;

    /// Returns facts with one rule of the older iptables and the device of the IPVS mode.
    fn with(table: &str, rule: &str) -> Facts {
        let chain = rule.split(' ').next().expect("a chain");
        let device = Link { name: "kube-ipvs0".to_owned(), ..Link::default() };
        let text = format!("*{table}\n:{chain} ACCEPT [0:0]\n-A {rule}\nCOMMIT\n");
        Facts { links: vec![device], ..facts(&text) }
    }

    fn only(facts: &Facts) -> Finding {
        let mut found = findings(facts);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn input_stops_packets_to_every_service() {
        let dropped = with("filter", "INPUT -j DROP");
        assert_eq!(codes(&findings(&dropped)), [(Code::InputDropped, Severity::Error)]);
        assert_eq!(
            only(&dropped).mend,
            "iptables-legacy -I INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT; and accept the external \
             addresses and node ports that clients may use"
        );
        let range = "10.96.0.0/12".parse().expect("a range");
        let cluster = Some(Cluster { service_cidrs: vec![range], ..Cluster::default() });
        let known = only(&Facts { cluster, ..dropped }).mend;
        assert!(known.starts_with("iptables-legacy -I INPUT -d 10.96.0.0/12 -j ACCEPT; and "), "{known}");
    }

    #[test]
    fn a_rule_for_what_connection_tracking_translates_does_not_help() {
        let chains = ":OUTPUT DROP [0:0]\n-A OUTPUT -m conntrack --ctstate DNAT -j ACCEPT";
        let text = format!("*filter\n{chains}\nCOMMIT\n");
        assert_eq!(codes(&findings(&facts(&text))), [], "in other modes it does");
        let ipvs = Facts { links: with("filter", "OUTPUT -j DROP").links, ..facts(&text) };
        let found = only(&ipvs);
        assert_eq!((found.code, found.severity), (Code::OutputDropped, Severity::Error));
        assert_eq!(found.mend, "iptables-legacy -I OUTPUT -m ipvs --ipvs -j ACCEPT");
        let early = only(&with("raw", "OUTPUT -j DROP"));
        assert_eq!(early.mend, "iptables-legacy -t raw -D OUTPUT -j DROP");
    }

    #[test]
    fn packets_of_other_nodes_to_pods_are_forwarded() {
        let dropped = with("filter", "FORWARD -j DROP");
        assert_eq!(only(&dropped).mend, "iptables-legacy -t filter -D FORWARD -j DROP");
        let pods = vec!["10.244.1.0/24".parse().expect("a range")];
        let node = portolan_model::object::Node { pod_cidrs: pods, ..Default::default() };
        let cluster = Some(Cluster { node: Some(node), ..Cluster::default() });
        let known = only(&Facts { cluster, ..dropped });
        assert_eq!(known.mend, "iptables-legacy -I FORWARD -d 10.244.1.0/24 -j ACCEPT");
    }

    /// Returns facts in userspace mode with one rule of the older iptables.
    fn userspace(capture: Chain, table: &str, rule: &str) -> Facts {
        let process = Process { mode: Some("userspace".to_owned()), ..process(1, Proxy::Portolan) };
        let proxies = Proxies { processes: vec![process], complete: true, ..Proxies::default() };
        let rules = with(table, rule).rules;
        let chains = rules.chains().iter().cloned().chain([capture]).collect();
        Facts { rules: Ruleset::new(chains), proxies, ..Facts::default() }
    }

    fn captured() -> Chain {
        chain(Program::Nft, "portolan-userspace", "capture")
    }

    #[test]
    fn in_userspace_mode_captured_packets_pass_input_with_a_mark() {
        let dropped = userspace(captured(), "filter", "INPUT -j DROP");
        let found = only(&dropped);
        assert_eq!((found.code, found.severity), (Code::InputDropped, Severity::Error));
        assert_eq!(found.mend, "iptables-legacy -I INPUT -m mark --mark 0x1000/0x1000 -j ACCEPT");
        let name = "500: mark 0x40/0x40 to table 28783".to_owned();
        let routing = Object { part: Part::Routing, kind: "rule", name };
        let other = only(&Facts { objects: vec![routing], ..dropped });
        assert_eq!(other.mend, "iptables-legacy -I INPUT -m mark --mark 0x40/0x40 -j ACCEPT");
        let redirected = only(&userspace(iptables(), "filter", "INPUT -j DROP"));
        assert_eq!(redirected.severity, Severity::Error);
        assert_eq!(redirected.mend, "iptables-legacy -I INPUT -m conntrack --ctstate DNAT -j ACCEPT");
    }

    #[test]
    fn in_userspace_mode_only_packets_of_other_nodes_are_forwarded() {
        let found = only(&userspace(captured(), "filter", "FORWARD -j DROP"));
        assert_eq!((found.code, found.severity), (Code::ForwardDropped, Severity::Warning));
        assert_eq!(
            found.breaks,
            "Connections that other nodes bring to endpoints on this node get no answer."
        );
        assert_eq!(found.mend, "iptables-legacy -t filter -D FORWARD -j DROP");
    }

    #[test]
    fn in_userspace_mode_the_agent_sends_packets_to_endpoints() {
        for capture in [captured(), iptables()] {
            let found = only(&userspace(capture, "filter", "OUTPUT -j DROP"));
            assert_eq!((found.code, found.severity), (Code::OutputDropped, Severity::Error));
            assert_eq!(found.mend, "iptables-legacy -t filter -D OUTPUT -j DROP");
            assert!(found.breaks.starts_with("No Service gets an answer"), "{}", found.breaks);
        }
    }

    #[test]
    fn a_planned_start_is_judged_by_its_own_mode() {
        let runs = userspace(captured(), "filter", "INPUT -j DROP");
        let planned = |mode| codes(&findings(&Facts { next_mode: Some(mode), ..runs.clone() }));
        assert_eq!(planned(Mode::Nftables), [(Code::InputDropped, Severity::Warning)]);
        assert_eq!(planned(Mode::Ipvs), [(Code::InputDropped, Severity::Error)]);
        let iptables =
            Facts { proxies: Proxies::default(), ..userspace(iptables(), "filter", "INPUT -j DROP") };
        assert_eq!(codes(&findings(&iptables)), [(Code::InputDropped, Severity::Warning)]);
        let found = only(&Facts { next_mode: Some(Mode::Userspace), ..iptables.clone() });
        assert_eq!(found.severity, Severity::Error);
        assert!(found.mend.contains("-m mark"), "chains of another mode capture nothing: {}", found.mend);
        let found = only(&Facts { next_mode: Some(Mode::Userspace), next_redirects: true, ..iptables });
        assert!(found.mend.contains("--ctstate DNAT"), "{}", found.mend);
    }
}
