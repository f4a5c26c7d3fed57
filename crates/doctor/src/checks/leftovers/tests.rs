//! Tests of what is left.

use super::*;
use crate::checks::testing::{chain, codes, iptables, own, process, proxied, upstream};
use crate::facts::Link;
use crate::rules::{Chain, Program as Tool};

const OF_KUBE_PROXY: (Code, Severity) = (Code::LeftoversOfKubeProxy, Severity::Warning);
const OF_ANOTHER: (Code, Severity) = (Code::LeftoversOfAnotherMode, Severity::Warning);
const OF_IPVS: (Code, Severity) = (Code::LeftoversOfIpvs, Severity::Warning);
const OF_ROUTING: (Code, Severity) = (Code::LeftoversOfRouting, Severity::Warning);

fn portolan(mode: &str) -> Vec<Process> {
    vec![Process { mode: Some(mode.to_owned()), ..process(7, Program::Portolan) }]
}

fn object(part: Part, kind: &'static str, name: &str) -> Object {
    Object { part, kind, name: name.to_owned() }
}

fn device() -> Object {
    object(Part::Ipvs, "device", IPVS_DEVICE)
}

fn set(name: &str) -> Object {
    object(Part::Ipvs, "ipset", name)
}

fn rule() -> Object {
    object(Part::Routing, "rule", "500: mark 0x1000/0x1000 to table 28783")
}

fn capture() -> Chain {
    chain(Tool::Nft, "portolan-userspace", "capture")
}

fn with(chains: Vec<Chain>, processes: Vec<Process>, objects: Vec<Object>) -> Facts {
    Facts { objects, ..proxied(chains, processes) }
}

/// Asserts that these findings are there, and that none of them has a fix or suggests kube-proxy's clean-up.
fn careful(facts: &Facts, expected: &[(Code, Severity)]) -> Vec<Finding> {
    let found = findings(facts);
    assert_eq!(codes(&found), expected, "{found:#?}");
    for finding in &found {
        assert!(finding.fix.is_none() && !finding.mend.contains("kube-proxy --cleanup"), "{finding:#?}");
    }
    found
}

#[test]
fn leftovers_are_removed_only_if_no_proxy_can_use_them() {
    let unknown = vec![process(7, Program::Portolan)];
    let running = portolan("nftables");
    careful(&proxied(vec![own(), iptables()], unknown.clone()), &[OF_ANOTHER]);
    assert_eq!(findings(&proxied(vec![own(), upstream()], unknown))[0].fix, Some(Fix::RemoveLeftovers));
    let found = findings(&proxied(vec![own(), iptables(), upstream()], running.clone()));
    assert_eq!(codes(&found), [OF_KUBE_PROXY]);
    assert_eq!(
        (found[0].fix.clone(), found[0].mend.as_str()),
        (Some(Fix::RemoveLeftovers), "portolan doctor --fix")
    );
    assert_eq!(
        found[0].title,
        "kube-proxy left the table kube-proxy, chains KUBE-* of iptables-nft, beside other rules for Services"
    );
    let mut unseen = proxied(vec![own(), iptables()], running.clone());
    unseen.proxies.complete = false;
    let found = careful(&unseen, &[OF_KUBE_PROXY]);
    assert!(found[0].mend.starts_with("stop kube-proxy if it runs"), "{}", found[0].mend);
    let mut with_device = proxied(vec![own(), iptables(), upstream()], running.clone());
    with_device.links.push(Link { name: IPVS_DEVICE.to_owned(), ..Link::default() });
    let found = careful(&with_device, &[OF_KUBE_PROXY, OF_IPVS]);
    assert!(
        found[1].title.ends_with("left: device kube-ipvs0, chains KUBE-* of iptables-nft"),
        "{}",
        found[1].title
    );
    assert_eq!(findings(&proxied(vec![own()], running.clone())), []);
    assert_eq!(findings(&proxied(vec![iptables()], running)), [], "no rules of its own yet");
}

/// Their chains have kube-proxy's names.
#[test]
fn chains_that_portolan_uses_stay() {
    for mode in ["iptables", "ipvs", "userspace"] {
        let with_table = proxied(vec![own(), iptables()], portolan(mode));
        let found = careful(&with_table, &[OF_ANOTHER]);
        let title = format!("Portolan runs in the {mode} mode, and another mode left: table portolan");
        assert_eq!((found[0].title.as_str(), found[0].mend.as_str()), (title.as_str(), RESTART));
        let of_kube_proxy = proxied(vec![upstream(), iptables()], portolan(mode));
        let found = careful(&of_kube_proxy, &[OF_KUBE_PROXY]);
        assert_eq!(found[0].mend, RESTART);
        assert_eq!(findings(&proxied(vec![iptables()], portolan(mode))), []);
    }
    let unknown = vec![process(7, Program::Portolan)];
    careful(&proxied(vec![upstream(), iptables()], unknown.clone()), &[OF_KUBE_PROXY]);
    careful(&proxied(vec![own(), upstream(), iptables()], unknown), &[OF_KUBE_PROXY, OF_ANOTHER]);
    let mut unseen = proxied(vec![own(), iptables()], Vec::new());
    unseen.proxies.complete = false;
    assert_eq!(careful(&unseen, &[OF_ANOTHER])[0].mend, FIND_OUT);
}

#[test]
fn objects_of_the_ipvs_mode() {
    let objects = vec![device(), set("KUBE-A"), set("KUBE-B"), set("KUBE-C"), set("KUBE-D"), set("KUBE-D")];
    let found = careful(&with(vec![own()], portolan("nftables"), objects.clone()), &[OF_IPVS]);
    assert_eq!(
        found[0].title,
        "the IPVS mode, which does not run, left: device kube-ipvs0, ipsets KUBE-A, KUBE-B, KUBE-C and 1 more"
    );
    assert_eq!(found[0].mend, WAIT_AND_RESTART);
    careful(&with(vec![iptables()], portolan("iptables"), objects.clone()), &[OF_IPVS]);
    careful(&with(vec![capture()], portolan("userspace"), objects.clone()), &[OF_IPVS]);
    careful(&with(vec![iptables()], portolan("ipvs"), objects.clone()), &[]);
    let found = careful(&with(Vec::new(), Vec::new(), objects.clone()), &[OF_IPVS]);
    assert_eq!(found[0].mend, START);
    careful(&with(vec![iptables()], Vec::new(), objects.clone()), &[]);
    careful(&with(vec![own()], vec![process(7, Program::Portolan)], objects), &[OF_ANOTHER]);

    let sets = with(vec![own()], portolan("nftables"), vec![set("PORTOLAN-REJECT")]);
    let found = careful(&sets, &[(Code::LeftoversOfIpvs, Severity::Note)]);
    assert!(found[0].breaks.starts_with("Nothing by itself"), "{}", found[0].breaks);
}

#[test]
fn objects_of_the_userspace_mode() {
    let relay = object(Part::Userspace, "table", "portolan-relay");
    let both = vec![relay, rule(), rule()];
    let found = careful(&with(vec![own()], portolan("nftables"), both.clone()), &[OF_ANOTHER, OF_ROUTING]);
    assert!(found[0].title.ends_with("left: table portolan-relay"), "{}", found[0].title);
    assert_eq!(
        found[1].title,
        "the userspace mode, which does not run, left policy routing: rule 500: mark 0x1000/0x1000 to table 28783"
    );
    careful(&with(vec![iptables()], portolan("ipvs"), both.clone()), &[OF_ANOTHER, OF_ROUTING]);
    careful(&with(vec![capture()], portolan("userspace"), both.clone()), &[]);
    careful(&with(vec![iptables()], portolan("userspace"), both), &[]);
    let ways = with(vec![capture(), iptables()], portolan("userspace"), Vec::new());
    careful(&ways, &[OF_ANOTHER]);
    careful(&with(Vec::new(), Vec::new(), vec![rule()]), &[OF_ROUTING]);
    careful(&with(vec![capture()], Vec::new(), vec![rule()]), &[]);
}

#[test]
fn kube_proxy_after_portolan() {
    let upstreams = vec![process(5, Program::KubeProxy)];
    let expected = (Code::LeftoversOfPortolan, Severity::Warning);
    let found = careful(&proxied(vec![own(), upstream()], upstreams.clone()), &[expected]);
    assert_eq!(found[0].title, "kube-proxy runs, and Portolan, which does not run, left: table portolan");
    let found =
        careful(&with(vec![iptables()], upstreams.clone(), vec![set("PORTOLAN-DROP"), rule()]), &[expected]);
    assert!(found[0].title.contains("ipset PORTOLAN-DROP"), "{}", found[0].title);
    assert_eq!(found[0].mend, "portolan-proxy cleanup --only-ours");
    let mut in_ipvs = proxied(vec![iptables()], upstreams.clone());
    in_ipvs.links.push(Link { name: IPVS_DEVICE.to_owned(), ..Link::default() });
    assert_eq!(findings(&in_ipvs), [], "kube-proxy's own device");
    let two_modes = findings(&proxied(vec![upstream(), iptables()], upstreams));
    assert_eq!(codes(&two_modes), [OF_KUBE_PROXY]);
    assert_eq!(two_modes[0].fix, None);
}

#[test]
fn two_proxies_use_everything() {
    let both = vec![process(5, Program::KubeProxy), process(7, Program::Portolan)];
    assert_eq!(findings(&with(vec![own(), iptables()], both, vec![device()])), []);
}
