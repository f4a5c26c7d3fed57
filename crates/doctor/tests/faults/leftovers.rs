//! What another mode left beside the one that runs, and mends that must not remove what is in use.

use portolan_doctor::{Code, Finding, Severity};
use portolan_testkit::Namespace;

use super::support::{
    Proxy, codes, fix, look, nft, node, only, own_table, set, shell, upstream_chains, upstream_table,
};

const OF_ANOTHER: (Code, Severity) = (Code::LeftoversOfAnotherMode, Severity::Warning);
const OF_IPVS: (Code, Severity) = (Code::LeftoversOfIpvs, Severity::Warning);
const OF_KUBE_PROXY: (Code, Severity) = (Code::LeftoversOfKubeProxy, Severity::Warning);

/// Creates the device of the IPVS mode, as a bridge, which every kernel has, and sets of kube-proxy and of Portolan.
fn ipvs_objects(node: &Namespace) {
    shell(
        node,
        "ip link add kube-ipvs0 type bridge
         ip addr add 10.96.0.10/32 dev kube-ipvs0
         ipset create KUBE-CLUSTER-IP hash:ip,port
         ipset create PORTOLAN-REJECT hash:ip,port
         ipset create KUBE-ROUTER-PODS hash:ip",
    );
    set(node, "net/ipv4/conf/kube-ipvs0/rp_filter", "0");
}

fn remove_ipvs_objects(node: &Namespace) {
    shell(node, "ip link delete kube-ipvs0; ipset destroy KUBE-CLUSTER-IP; ipset destroy PORTOLAN-REJECT");
}

/// Asserts that a mend cannot remove rules that serve.
fn is_harmless(finding: &Finding) {
    assert!(finding.fix.is_none(), "{finding:#?}");
    assert!(!finding.mend.contains("kube-proxy --cleanup"), "{finding:#?}");
}

/// The chains of these modes have kube-proxy's names.
#[test]
fn chains_of_portolans_own_mode_are_no_leftovers() {
    for mode in ["iptables", "ipvs", "userspace"] {
        let node = node("own-chains");
        let own = Proxy::with(&node, "portolan", &[&format!("--proxy-mode={mode}")]);
        upstream_chains(&node);
        let before = of_leftovers(&node);
        assert!(before.is_empty(), "{mode}: {before:#?}");
        own_table(&node);
        let found = of_leftovers(&node);
        let [finding] = found.as_slice() else { panic!("{mode}: {found:#?}") };
        assert_eq!((finding.code, finding.severity), OF_ANOTHER, "{mode}");
        assert!(finding.title.contains("table portolan"), "{}", finding.title);
        assert!(finding.mend.starts_with("restart Portolan"), "{}", finding.mend);
        is_harmless(finding);
        assert_eq!(fix(&node).fixed, []);
        let chains = node.output("iptables-nft", &["-t", "nat", "-S"]).expect("the chains");
        assert!(chains.contains("-A PREROUTING -j KUBE-SERVICES"), "{chains}");
        // As a start of Portolan does.
        shell(&node, "nft delete table ip portolan");
        assert_eq!(of_leftovers(&node), [], "{mode}");
        own.end();
    }
}

/// Returns the findings about leftovers. In the IPVS mode, a kernel may lack IPVS.
fn of_leftovers(node: &Namespace) -> Vec<Finding> {
    let is_left = |finding: &Finding| finding.code.text().starts_with("leftovers-");
    look(node).findings.into_iter().filter(is_left).collect()
}

/// A configuration file decides about the mode, also beside the flag.
#[test]
fn nothing_is_removed_if_the_mode_is_not_known() {
    let command_lines: [&[&str]; 3] = [&[], &["--config=x", "--proxy-mode=nftables"], &["--proxy-mode="]];
    for arguments in command_lines {
        let node = node("unknown-mode");
        let own = Proxy::with(&node, "portolan", arguments);
        own_table(&node);
        upstream_chains(&node);
        upstream_table(&node);
        let report = fix(&node);
        assert_eq!(codes(&report), [OF_KUBE_PROXY, OF_ANOTHER], "{arguments:?}");
        report.findings.iter().for_each(is_harmless);
        assert_eq!(report.fixed, [], "{arguments:?}");
        own.end();
    }
}

#[test]
fn a_table_of_kube_proxy_beside_chains_in_use() {
    let node = node("table-beside-chains");
    let own = Proxy::with(&node, "portolan", &["--proxy-mode=iptables"]);
    upstream_chains(&node);
    upstream_table(&node);
    let report = look(&node);
    assert_eq!(codes(&report), [OF_KUBE_PROXY]);
    is_harmless(only(&report));
    shell(&node, "nft delete table ip kube-proxy");
    assert_eq!(codes(&look(&node)), []);
    own.end();
}

#[test]
fn objects_of_the_ipvs_mode_beside_another_mode() {
    let node = node("of-ipvs");
    let own = Proxy::start(&node, "portolan");
    own_table(&node);
    assert_eq!(codes(&look(&node)), []);
    ipvs_objects(&node);
    let report = look(&node);
    assert_eq!(codes(&report), [OF_IPVS]);
    let finding = only(&report);
    for name in ["device kube-ipvs0", "KUBE-CLUSTER-IP", "PORTOLAN-REJECT"] {
        assert!(finding.title.contains(name), "{}", finding.title);
    }
    assert!(!finding.title.contains("KUBE-ROUTER-PODS"), "{}", finding.title);
    is_harmless(finding);
    shell(&node, "ip link delete kube-ipvs0");
    assert_eq!(codes(&look(&node)), [(Code::LeftoversOfIpvs, Severity::Note)], "sets alone break nothing");
    shell(&node, "ipset destroy KUBE-CLUSTER-IP; ipset destroy PORTOLAN-REJECT");
    assert_eq!(codes(&look(&node)), []);
    own.end();
}

#[test]
fn objects_of_the_ipvs_mode_without_a_proxy() {
    let node = node("ipvs-without");
    ipvs_objects(&node);
    let found = of_leftovers(&node);
    let [finding] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((finding.code, finding.severity), OF_IPVS);
    assert!(finding.mend.ends_with("portolan-proxy cleanup"), "{}", finding.mend);
    remove_ipvs_objects(&node);
    assert_eq!(codes(&look(&node)), []);
}

/// What `ipset list` and `grep` showed before.
#[test]
fn sets_of_portolan_beside_a_running_kube_proxy() {
    let node = node("sets-back");
    let upstream = Proxy::start(&node, "kube-proxy");
    upstream_table(&node);
    shell(&node, "ipset create PORTOLAN-DROP hash:ip,port; ipset create KUBE-CLUSTER-IP hash:ip,port");
    let report = look(&node);
    assert_eq!(codes(&report), [(Code::LeftoversOfPortolan, Severity::Warning)]);
    assert!(only(&report).title.ends_with("left: ipset PORTOLAN-DROP"), "{}", only(&report).title);
    assert_eq!(only(&report).mend, "portolan-proxy cleanup --only-ours");
    shell(&node, "ipset destroy PORTOLAN-DROP");
    assert_eq!(codes(&look(&node)), []);
    upstream.end();
}

#[test]
fn tables_of_the_userspace_mode_beside_another_mode() {
    let node = node("of-userspace");
    let own = Proxy::start(&node, "portolan");
    own_table(&node);
    nft(&node, "table ip portolan-userspace { chain capture { }; }");
    let report = look(&node);
    assert_eq!(codes(&report), [OF_ANOTHER]);
    assert!(only(&report).title.ends_with("left: table portolan-userspace"), "{}", only(&report).title);
    is_harmless(only(&report));
    shell(&node, "nft delete table ip portolan-userspace");
    assert_eq!(codes(&look(&node)), []);
    own.end();
}
