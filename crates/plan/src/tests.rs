use std::sync::Arc;

use insta::assert_snapshot;
use portolan_model::observed::precise;
use portolan_model::world::{Ranges, Rng, World};
use portolan_model::{
    Backend, Catalog, ExternalPolicy, Forwarding, Frontend, NodePortAddresses, Protocol, ServicePortName,
};
use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn backends(hosts: &[u8]) -> Box<[Backend]> {
    let backend =
        |host: &u8| Backend { address: IpAddr::from([10, 244, 0, *host]), port: 8080, may_hairpin: false };
    hosts.iter().map(backend).collect()
}

fn entry(service: &str, number: u8, forwarding: impl FnOnce(Forwarding) -> Forwarding) -> Entry {
    let name = ServicePortName {
        namespace: "demo".into(),
        service: service.into(),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let plain = Forwarding::plain(([10, 96, 0, number], 80).into(), Protocol::Tcp, backends(&[2, 3]));
    (Arc::new(name), Arc::new(forwarding(plain)))
}

fn with_node_port(forwarding: Forwarding) -> Forwarding {
    let frontends = forwarding.frontends.iter().copied().chain([Frontend::NodePort(30_080)]).collect();
    Forwarding { frontends, ..forwarding }
}

fn everywhere() -> NodePortReach {
    NodePortReach { addresses: NodePortAddresses::MatchAll, loopback: Vec::new() }
}

fn observed(table: &[Entry], node_ports: NodePortReach) -> Observed {
    Observed { node_ports: Fact::Known(node_ports), ..precise(table) }
}

fn compared(present: Present<'_>, wanted: &[Entry], node_ports: &NodePortReach) -> FamilyPlan {
    let node_addresses = [ip("192.0.2.1"), ip("127.0.0.1")];
    family(&Comparison { family: Family::Ipv4, present, wanted, node_ports, node_addresses: &node_addresses })
}

fn report(family: FamilyPlan) -> Report {
    Report {
        version: VERSION,
        node: "node-1".to_owned(),
        mode: "nftables".to_owned(),
        against: Against::Kernel,
        changes: !family.is_empty(),
        families: vec![family],
        settings: Vec::new(),
        removed: Vec::new(),
        notes: Vec::new(),
    }
}

#[test]
fn a_migration_in_words() {
    let before =
        [entry("gone", 1, |plain| plain), entry("same", 2, |plain| plain), entry("web", 3, with_node_port)];
    let wanted = [
        entry("new", 4, |plain| plain),
        entry("same", 2, |plain| plain),
        entry("web", 3, |plain| Forwarding {
            cluster: backends(&[3, 4]),
            affinity: Some(60),
            ..with_node_port(plain)
        }),
    ];
    let kernel = NodePortReach { loopback: vec!["127.0.0.0/8".parse().unwrap()], ..everywhere() };
    let reach = NodePortReach {
        addresses: NodePortAddresses::Addresses(vec![ip("192.0.2.1")]),
        loopback: Vec::new(),
    };
    let plan = compared(Present::Kernel(&observed(&before, kernel)), &wanted, &reach);
    let rules = Some(RulesPlan { count: 1, lines: vec!["add table ip portolan".to_owned()] });
    let plan = FamilyPlan { present: Some("kube-proxy's nftables mode".to_owned()), rules, ..plan };
    let setting = SettingChange { name: "net.a".to_owned(), present: 1, wanted: 2 };
    let note = Note { code: "conflict".to_owned(), text: "two Services\nwant one address".to_owned() };
    let report = Report {
        settings: vec![setting],
        removed: vec!["table ip kube-proxy".to_owned()],
        notes: vec![note],
        ..report(plan)
    };
    assert_snapshot!(report.text(), @r"
    node-1 in nftables mode, compared with the kernel of this node

    IPv4: the kernel has rules of kube-proxy's nftables mode
      - demo/gone:http (TCP): cluster IP 10.96.0.1:80; 2 endpoints
      + demo/new:http (TCP): cluster IP 10.96.0.4:80; 2 endpoints
      ~ demo/web:http (TCP)
          add endpoint 10.244.0.4:8080 in the cluster list
          remove endpoint 10.244.0.2:8080 in the cluster list
          session affinity 60 s instead of none
      ~ node ports answer at 192.0.2.1 instead of at every address of this node
      ~ node ports do not answer on loopback addresses (127.0.0.0/8)
      Service ports: 1 added, 1 changed, 1 removed, 1 unchanged; endpoints: 3 added, 3 removed
      rules
        add table ip portolan

    kernel settings
      ~ net.a = 2 instead of 1

    removed after the first commit
      - table ip kube-proxy

    notes
      two Services want one address

    changes
    ");
}

#[test]
fn a_report_as_json() {
    let wanted = [entry("web", 1, with_node_port)];
    let report = report(compared(Present::Nothing, &wanted, &everywhere()));
    assert_snapshot!(serde_json::to_string_pretty(&report).unwrap(), @r#"
    {
      "version": 1,
      "node": "node-1",
      "mode": "nftables",
      "against": "kernel",
      "changes": true,
      "families": [
        {
          "family": "IPv4",
          "counts": {
            "added": 1,
            "removed": 0,
            "changed": 0,
            "unchanged": 0,
            "endpointsAdded": 2,
            "endpointsRemoved": 0
          },
          "services": [
            {
              "service": "demo/web:http",
              "protocol": "TCP",
              "action": "add",
              "frontends": [
                "cluster IP 10.96.0.1:80",
                "node port 30080"
              ],
              "endpointsAdded": 2,
              "endpointsRemoved": 0
            }
          ]
        }
      ]
    }
    "#);
    let read: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(read, report);
}

fn texts(before: &[Entry], after: &[Entry]) -> Vec<String> {
    let plan = compared(Present::Table(before), after, &everywhere());
    plan.services.into_iter().flat_map(|service| service.changes).map(|change| change.text).collect()
}

#[test]
fn each_change_of_a_service_port_between_manifests() {
    let before = [entry("web", 1, |plain| plain)];
    let after = |change: fn(Forwarding) -> Forwarding| texts(&before, &[entry("web", 1, change)]);
    assert_eq!(after(|plain| plain), [""; 0]);
    assert_eq!(after(with_node_port), ["add node port 30080"]);
    assert_eq!(
        after(|plain| Forwarding { external_policy: ExternalPolicy::Local, ..plain }),
        ["externalTrafficPolicy Local instead of Cluster"]
    );
    assert_eq!(
        after(|plain| Forwarding { local: backends(&[2]), affinity: Some(60), ..plain }),
        ["add endpoint 10.244.0.2:8080 in the local list", "session affinity 60 s instead of none"]
    );
    let ranges = || -> Box<[ipnet::IpNet]> { ["203.0.113.0/24".parse().unwrap()].into() };
    let restricted = entry("web", 1, |plain| Forwarding { source_ranges: ranges(), ..plain });
    assert_eq!(
        texts(&before, std::slice::from_ref(&restricted)),
        ["allow only the source ranges 203.0.113.0/24"]
    );
    assert_eq!(texts(std::slice::from_ref(&restricted), &before), ["allow all sources"]);
}

#[test]
fn where_node_ports_are_programmed_one_by_one_all_addresses_are_each_address() {
    let wanted = [entry("web", 1, with_node_port)];
    let each = NodePortReach {
        addresses: NodePortAddresses::Addresses(vec![ip("192.0.2.1")]),
        loopback: Vec::new(),
    };
    let of_rules = observed(&wanted, each.clone());
    let changes =
        |observed: &Observed| compared(Present::Kernel(observed), &wanted, &everywhere()).node_ports;
    assert_eq!(changes(&of_rules).len(), 1, "a set of addresses has no others");
    let mut one_by_one = Observed { node_port_addresses: Some(vec![ip("192.0.2.1")]), ..of_rules };
    assert_eq!(changes(&one_by_one), []);
    one_by_one.ports.clear();
    one_by_one.node_port_addresses = Some(Vec::new());
    let plan = compared(Present::Kernel(&one_by_one), &wanted, &each);
    assert_eq!((plan.counts.added, plan.counts.unchanged), (1, 0));
}

fn random_table(seed: u64) -> Vec<Entry> {
    let (mut rng, ranges) = (Rng::new(seed), Ranges::example());
    let mut catalog = Catalog::new("n1");
    for edit in World::random(&mut rng, 6, &ranges).edits() {
        catalog.apply(edit.event().expect("worlds decode"));
    }
    catalog.forwardings(Family::Ipv4).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_table_compared_with_itself_has_no_change(seed in any::<u64>()) {
        let table = random_table(seed);
        prop_assert!(compared(Present::Table(&table), &table, &everywhere()).is_empty());
        let kernel = observed(&table, everywhere());
        prop_assert!(compared(Present::Kernel(&kernel), &table, &everywhere()).is_empty());
    }

    /// Where the kernel differs in terms of Services, so do the tables, and the counts are complete.
    #[test]
    fn the_kernel_and_the_table_have_the_same_service_ports(one in any::<u64>(), other in any::<u64>()) {
        let (before, after) = (random_table(one), random_table(other));
        let kernel = observed(&before, everywhere());
        let by_kernel = compared(Present::Kernel(&kernel), &after, &everywhere());
        let by_table = compared(Present::Table(&before), &after, &everywhere());
        let names = |plan: &FamilyPlan, action: Action| -> Vec<Option<String>> {
            let services = plan.services.iter().filter(|service| service.action == action);
            services.map(|service| service.service.clone()).collect()
        };
        prop_assert_eq!(names(&by_kernel, Action::Add), names(&by_table, Action::Add));
        let changed = names(&by_table, Action::Change);
        prop_assert!(names(&by_kernel, Action::Change).iter().all(|name| changed.contains(name)));
        let programmed = after.iter().filter(|(_, forwarding)| !forwarding.frontends.is_empty()).count();
        for plan in [by_kernel, by_table] {
            prop_assert_eq!(plan.counts.added + plan.counts.changed + plan.counts.unchanged, programmed);
        }
    }
}
