//! Stale UDP flows are deleted from the running kernel. Each test has its own network namespace. Needs root, and
//! fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "conntrack/net.rs"]
mod net;
#[path = "conntrack/passive.rs"]
mod passive;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use portolan_conntrack::{Check, Cleaner, CleanerThread, Listed, NodePorts, Report, flows_to};
use portolan_model::catalog::PerFamily;
use portolan_model::{Family, NodePortAddresses, Protocol};
use portolan_testkit::eventually;

use net::{
    Net, Number, Plan, V4, V6, addresses, cluster_ip, node_port, resident_high_water, service,
    stay_on_one_processor,
};

/// Held for writing by the test that measures this process's memory, so that it runs alone.
static ALONE: RwLock<()> = RwLock::new(());

/// Runs a test inside a namespace with the plan's addresses.
fn in_net(plan: &'static Plan, test: impl FnOnce(&Net) + Send) {
    let _shared = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    let net = Net::new(plan);
    net.namespace.run(|| test(&net)).unwrap();
}

fn clean(plan: &Plan, check: &Check) -> Report {
    Cleaner::open(plan.family).unwrap().clean(check).unwrap()
}

/// Creates flows of every kind around one frontend. Their source ports tell them apart.
fn flows_of_every_kind(net: &Net) {
    let plan = net.plan;
    net.send(1001, plan.frontend, 53);
    net.translate((plan.frontend, 53), (plan.gone, 5353));
    net.send(1002, plan.frontend, 53);
    net.translate((plan.frontend, 53), (plan.serving, 5353));
    net.send(1003, plan.frontend, 53);
    net.send(1004, plan.outside, 53);
    net.send(1005, plan.other_frontend, 53);
    net.send(1006, plan.frontend, 54);
    net.send(1007, plan.gone, 5353);
    net.insert("tcp", 1008, plan.frontend, 53);
    net.insert("sctp", 1009, plan.frontend, 53);
}

fn the_flows_to_one_destination(plan: &'static Plan) {
    in_net(plan, |net| {
        flows_of_every_kind(net);
        let destination = SocketAddr::new(plan.frontend, 53);
        let listed = flows_to(destination, Protocol::Udp, None, 10).unwrap();
        let mut ports: Vec<_> =
            listed.flows.iter().map(|flow| flow.original.source_port().unwrap()).collect();
        ports.sort_unstable();
        assert_eq!((ports.as_slice(), listed.partial), ([1001, 1002, 1003].as_slice(), false));
        let few = flows_to(destination, Protocol::Udp, None, 2).unwrap();
        assert_eq!((few.flows.len(), few.partial), (2, true));
        let other = flows_to(destination, Protocol::Sctp, None, 2).unwrap();
        assert_eq!(other.flows.len(), 1);
        let client = listed.flows[0].original.source;
        assert_eq!(flows_to(destination, Protocol::Udp, Some(client), 10).unwrap().flows.len(), 3);
        let stranger = flows_to(destination, Protocol::Udp, Some(plan.gone), 2).unwrap();
        assert_eq!(stranger, Listed::default(), "flows of other clients do not count towards the limit");
    });
}

#[test]
fn the_flows_to_one_destination_ipv4() {
    the_flows_to_one_destination(&V4);
}

#[test]
fn the_flows_to_one_destination_ipv6() {
    the_flows_to_one_destination(&V6);
}

fn exactly_the_stale_flows(plan: &'static Plan) {
    in_net(plan, |net| {
        flows_of_every_kind(net);
        assert_eq!(net.sources(), [1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009]);
        let dns = service("dns", vec![cluster_ip(plan.frontend, 53)], &[(plan.serving, 5353)]);
        let check = Check::new(plan.family, [&dns], addresses(plan));
        let report = clean(plan, &check);
        assert_eq!((report.deleted, report.refused, report.partial), (2, 0, false));
        assert_eq!(net.sources(), [1003, 1004, 1005, 1006, 1007, 1008, 1009]);
        assert_eq!(clean(plan, &check).deleted, 0);
    });
}

#[test]
fn exactly_the_stale_ipv4_flows_are_deleted() {
    exactly_the_stale_flows(&V4);
}

#[test]
fn exactly_the_stale_ipv6_flows_are_deleted() {
    exactly_the_stale_flows(&V6);
}

/// With more ports than the kernel is asked for one by one, all UDP flows are listed.
fn many_ports(plan: &'static Plan) {
    in_net(plan, |net| {
        flows_of_every_kind(net);
        let frontends = (50..60).map(|port| cluster_ip(plan.frontend, port)).collect();
        let dns = service("dns", frontends, &[(plan.serving, 5353)]);
        let report = clean(plan, &Check::new(plan.family, [&dns], addresses(plan)));
        // 1001, 1002 and 1006, of seven UDP flows.
        assert_eq!(report, Report { listed: 7, deleted: 3, ..Report::default() });
        assert_eq!(net.sources(), [1003, 1004, 1005, 1007, 1008, 1009]);
    });
}

#[test]
fn a_check_of_many_ports_deletes_exactly_the_stale_flows() {
    many_ports(&V4);
    many_ports(&V6);
}

/// A flow belongs to a node port only if it goes to an address of this node that accepts node ports.
fn node_ports(plan: &'static Plan) {
    in_net(plan, |net| {
        net.send(1001, plan.node, 30053);
        net.translate((plan.node, 30053), (plan.gone, 5353));
        net.send(1002, plan.node, 30053);
        net.translate((plan.node, 30053), (plan.serving, 5353));
        net.send(1003, plan.node, 30053);
        // Flows with that port to a server outside, to another Service's cluster IP, and to an address without node
        // ports.
        net.send(1004, plan.outside, 30053);
        net.translate((plan.other_frontend, 30053), (plan.gone, 5353));
        net.send(1005, plan.other_frontend, 30053);
        net.send(1006, plan.loopback, 30053);
        let frontends = vec![cluster_ip(plan.frontend, 53), node_port(30053)];
        let dns = service("dns", frontends, &[(plan.serving, 5353)]);
        let report = clean(plan, &Check::new(plan.family, [&dns], addresses(plan)));
        assert_eq!(report, Report { listed: 6, deleted: 2, ..Report::default() });
        assert_eq!(net.sources(), [1003, 1004, 1005, 1006]);
    });
}

#[test]
fn foreign_ipv4_flows_on_the_number_of_a_node_port_are_left_alone() {
    node_ports(&V4);
}

#[test]
fn foreign_ipv6_flows_on_the_number_of_a_node_port_are_left_alone() {
    node_ports(&V6);
}

#[test]
fn the_kernel_hands_over_only_what_may_be_stale() {
    in_net(&V4, |net| {
        flows_of_every_kind(net);
        let dns = service("dns", vec![cluster_ip(V4.frontend, 53)], &[(V4.serving, 5353)]);
        let check = Check::new(V4.family, [&dns], addresses(&V4));
        assert_eq!(clean(&V4, &check), Report { listed: 3, deleted: 2, ..Report::default() });
        assert_eq!(clean(&V4, &check), Report { listed: 1, ..Report::default() });
    });
}

#[test]
fn without_a_serving_endpoint_nothing_is_listed() {
    in_net(&V4, |net| {
        net.send(1001, V4.frontend, 53);
        let idle = service("dns", vec![cluster_ip(V4.frontend, 53)], &[]);
        let report = clean(&V4, &Check::new(V4.family, [&idle], addresses(&V4)));
        assert_eq!(report, Report::default());
        assert_eq!(net.sources(), [1001]);
    });
}

#[test]
fn a_cleaner_leaves_the_other_family_alone() {
    in_net(&V4, |net| {
        net.send(1001, V4.frontend, 53);
        let dns = service("dns", vec![cluster_ip(V4.frontend, 53)], &[(V4.serving, 5353)]);
        let check = Check::new(V4.family, [&dns], addresses(&V4));
        let report = Cleaner::open(Family::Ipv6).unwrap().clean(&check).unwrap();
        assert_eq!(report, Report::default());
        assert_eq!(net.sources(), [1001]);
    });
}

#[test]
fn a_flow_of_another_zone_is_deleted_from_there() {
    in_net(&V4, |net| {
        net.send(1001, V4.frontend, 53);
        net.insert("udp", 1001, V4.frontend, 53);
        assert_eq!(net.sources(), [1001, 1001]);
        let dns = service("dns", vec![cluster_ip(V4.frontend, 53)], &[(V4.serving, 5353)]);
        assert_eq!(clean(&V4, &Check::new(V4.family, [&dns], addresses(&V4))).deleted, 2);
        assert!(net.sources().is_empty());
    });
}

#[test]
fn spared_flows_stay() {
    in_net(&V4, |net| {
        net.send(1001, V4.frontend, 53);
        net.send(1002, V4.frontend, 53);
        let dns = service("dns", vec![cluster_ip(V4.frontend, 53)], &[(V4.serving, 5353)]);
        let check = Check::new(V4.family, [&dns], addresses(&V4));
        let mut spare = |flow: &portolan_wire::conntrack::Flow| flow.original.source_port() == Some(1001);
        let report = Cleaner::open(V4.family).unwrap().clean_unless(&check, &mut spare).unwrap();
        assert_eq!(report.deleted, 1);
        assert_eq!(net.sources(), [1001]);
    });
}

/// A flow is found stale. Before it is deleted, it ends and starts again, to a serving endpoint.
///
/// Other flows of this machine may take the memory of the stale flow and keep it, so this is tried with several flows.
fn began_anew_meanwhile(number: Number) {
    let begins = (0..100).any(|_| began_anew_once(number));
    assert!(begins, "no flow gets such a number");
}

/// Returns false if the new flow does not get a number of this kind.
fn began_anew_once(number: Number) -> bool {
    let begins = AtomicBool::new(false);
    in_net(&V4, |net| {
        stay_on_one_processor();
        net.send(1001, V4.frontend, 53);
        let dns = service("dns", vec![cluster_ip(V4.frontend, 53)], &[(V4.serving, 5353)]);
        let check = Check::new(V4.family, [&dns], addresses(&V4));
        let mut again = |flow: &portolan_wire::conntrack::Flow| {
            net.translate((V4.frontend, 53), (V4.serving, 5353));
            begins.store(net.begin_anew(flow, number, || net.send(1001, V4.frontend, 53)), Relaxed);
            false
        };
        let report = Cleaner::open(V4.family).unwrap().clean_unless(&check, &mut again).unwrap();
        assert!(report.listed > 0, "the flow is not listed");
        if !begins.load(Relaxed) {
            return;
        }
        assert_eq!(report.deleted, 1, "the flow that was stale is gone");
        let flow = net.flows().into_iter().find(|flow| flow.original.source_port() == Some(1001));
        assert_eq!(flow.map(|flow| flow.reply.source), Some(V4.serving));
    });
    begins.load(Relaxed)
}

#[test]
fn a_flow_that_began_anew_meanwhile_is_not_hit() {
    began_anew_meanwhile(Number::Other);
}

/// The kernel reuses the memory of the stale flow at once, so the new flow has its id.
#[test]
fn a_flow_that_began_anew_in_the_same_place_is_not_hit() {
    began_anew_meanwhile(Number::Same);
}

#[test]
fn the_memory_of_a_clean_up_does_not_depend_on_the_number_of_flows() {
    let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
    let net = Net::new(&V4);
    net.namespace
        .run(|| {
            let count = net.send_many(100_000, V4.frontend, 53);
            net.send(1001, V4.outside, 53);
            assert_eq!(net.count(), count + 1, "raise net.netfilter.nf_conntrack_max");
            let dns = service("dns", vec![cluster_ip(V4.frontend, 53)], &[(V4.serving, 5353)]);
            let check = Check::new(V4.family, [&dns], addresses(&V4));
            let mut cleaner = Cleaner::open(V4.family).unwrap();
            let (report, grown) = resident_high_water(|| cleaner.clean(&check).unwrap());
            assert_eq!(report, Report { listed: count, deleted: count, ..Report::default() });
            assert_eq!(net.sources(), [1001]);
            // 100,000 flows would take 13 MiB.
            assert!(grown < 2 << 10, "{grown} KiB more than before");
        })
        .unwrap();
}

#[test]
fn the_thread_cleans_up_both_families_with_the_addresses_that_the_node_has() {
    for plan in [&V4, &V6] {
        in_net(plan, |net| {
            let device =
                format!("link add virtual type bridge\naddr add {} dev virtual\n", plan.other_frontend);
            net.namespace.ip(&device).unwrap();
            let (sender, reports) = channel();
            let all = NodePorts { addresses: NodePortAddresses::MatchAll, loopback: Vec::new() };
            let all = PerFamily { ipv4: all.clone(), ipv6: all };
            let thread =
                CleanerThread::spawn(all, "virtual", move |cleaned| sender.send(cleaned).unwrap()).unwrap();
            net.send(1001, plan.node, 30053);
            net.send(1002, plan.loopback, 30053);
            net.send(1003, plan.outside, 30053);
            net.send(1004, plan.other_frontend, 30053);
            let dns = service("dns", vec![node_port(30053)], &[(plan.serving, 5353)]);
            thread.requests().request(plan.family, vec![dns.clone()]);
            let cleaned = reports.recv_timeout(Duration::from_secs(120)).unwrap();
            assert_eq!((cleaned.family, cleaned.outcome.unwrap().deleted), (plan.family, 1));
            assert_eq!(net.sources(), [1002, 1003, 1004]);

            net.send(1001, plan.node, 30053);
            thread.requests().request(plan.family, vec![dns.clone()]);
            eventually(Duration::from_secs(120), "the flow's end", || net.sources() == [1002, 1003, 1004])
                .unwrap();

            let loopback = NodePorts { loopback: vec![plan.loopback.into()], ..NodePorts::default() };
            thread.requests().configure(plan.family, loopback);
            thread.requests().request(plan.family, vec![dns]);
            eventually(Duration::from_secs(120), "the end of that to loopback", || {
                net.sources() == [1003, 1004]
            })
            .unwrap();
        });
    }
}

#[test]
fn a_namespace_that_tracks_nothing_has_nothing_to_clean_up() {
    portolan_sock::namespace::in_new_network_namespace(|| {
        let dns = service("dns", vec![cluster_ip(V4.frontend, 53)], &[(V4.serving, 5353)]);
        assert_eq!(clean(&V4, &Check::new(V4.family, [&dns], Vec::new())), Report::default());
    })
    .unwrap();
}
