use portolan_engine::{HealthCheckPort, Refusal};
use portolan_model::{Backend, Change, Family, Protocol, Settings};

use super::query::LIMIT;
use super::select::{ENDPOINTS_MAX, LOOKED_AT_MAX};
use super::*;

fn name(namespace: &str, service: &str, port: &str) -> Arc<ServicePortName> {
    let (namespace, service, port) = (namespace.into(), service.into(), port.into());
    Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp })
}

/// Returns a table with these Service ports, each with this number of endpoints.
fn table(family: Family, names: &[Arc<ServicePortName>], endpoints: u8) -> Table {
    let mut table = Table::new(Settings::plain(family));
    let address = |last: u8| match family {
        Family::Ipv4 => std::net::IpAddr::from([10, 0, 0, last]),
        Family::Ipv6 => std::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()]),
    };
    let backend = |last| Backend { address: address(last), port: 80, may_hairpin: false };
    let backends: Box<[Backend]> = (1..=endpoints).map(backend).collect();
    let change = |name: &Arc<ServicePortName>| {
        let new = Forwarding::plain((address(96), 80).into(), Protocol::Tcp, backends.clone());
        Change { name: name.clone(), family, old: None, new: Some(Arc::new(new)) }
    };
    table.take(names.iter().map(change), []);
    table
}

fn both(names: &[Arc<ServicePortName>]) -> Vec<Table> {
    Family::BOTH.map(|family| table(family, names, 1)).into()
}

fn ask(tables: &[Table], query: &str) -> ServicePage {
    let selected = select(tables, &Query::parse(query).unwrap());
    page(selected, Candidates::new(), &Counts::default(), &PerFamily::default())
}

fn names(page: &ServicePage) -> Vec<String> {
    page.services.iter().map(|service| format!("{}/{}", service.namespace, service.name)).collect()
}

#[test]
fn pages_have_every_service_once_in_order() {
    let mut all = Vec::new();
    for namespace in ["a", "a-b", "b"] {
        for service in ["x", "x-1", "y"] {
            for port in ["", "http", "https"] {
                all.push(name(namespace, service, port));
            }
        }
    }
    let mut tables = both(&all);
    // A Service of one family only.
    let other = tables[1].all().forwardings.remove(0);
    tables[1].take([Change { name: name("a", "x", "six"), ..other }], []);
    for limit in [1, 2, 4, 9, 1000] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = ask(&tables, &format!("limit={limit}{after}"));
            assert!(page.services.len() <= limit);
            seen.extend(names(&page));
            let Some(next) = page.next else { break };
            after = format!("&after={}", next.replace('/', "%2F"));
        }
        let want = ["a/x", "a/x-1", "a/y", "a-b/x", "a-b/x-1", "a-b/y", "b/x", "b/x-1", "b/y"];
        assert_eq!(seen, want, "{limit} on a page");
    }
    let of_namespace = ask(&tables, "namespace=a-b&limit=2");
    assert_eq!(names(&of_namespace), ["a-b/x", "a-b/x-1"]);
    let rest = ask(&tables, &format!("namespace=a-b&after={}", of_namespace.next.unwrap()));
    assert_eq!((names(&rest), rest.next), (vec!["a-b/y".to_owned()], None));
    let one = ask(&tables, "service=a/x");
    assert_eq!(names(&one), ["a/x"]);
    let ports = one.services[0].ports.iter().map(|port| format!("{} {}", port.family, port.name));
    let want = ["IPv4 ", "IPv4 http", "IPv4 https", "IPv6 ", "IPv6 http", "IPv6 https", "IPv6 six"];
    assert_eq!(ports.collect::<Vec<_>>(), want);
    assert!(ask(&tables, "service=a/z").services.is_empty());
    assert!(ask(&tables, "namespace=z").services.is_empty());
    assert!(ask(&tables, "after=z/z").services.is_empty());
}

#[test]
fn the_size_of_a_page_does_not_depend_on_the_number_of_services() {
    let all: Vec<_> = (0..10_000).map(|number| name("default", &format!("s{number:05}"), "http")).collect();
    let small = ask(&both(&all), "");
    assert_eq!((small.services.len(), small.next.as_deref()), (LIMIT, Some("default/s00099")));
    let tables = [table(Family::Ipv4, &all, 200)];
    let large = ask(&tables, "limit=1000");
    assert_eq!(large.services.len(), ENDPOINTS_MAX / 200);
    assert_eq!(large.next.as_deref(), Some("default/s00049"));
}

#[test]
fn a_service_shows_its_health_check_port_and_why_it_is_refused() {
    let web = name("default", "web", "http");
    let mut tables = both(std::slice::from_ref(&web));
    let (namespace, service) = ("default".into(), "web".into());
    tables[1].take([], [HealthCheckPort { namespace, service, port: Some(31_000), local_ready: 1 }]);
    let mut refused = PerFamily::<RefusedPorts>::default();
    refused.get_mut(Family::Ipv4).some =
        vec![Refusal { extent: Extent::Endpoints, ..Refusal::whole(web.clone(), "too long") }];
    refused.get_mut(Family::Ipv6).some = vec![Refusal::whole(web, "too many")];
    let selected = select(&tables, &Query::parse("").unwrap());
    let page = page(selected, Candidates::new(), &Counts::default(), &refused);
    let [service] = &page.services[..] else { panic!("one Service") };
    assert_eq!(service.health_check_node_port, Some(31_000));
    let reason = |port: &ServicePort| (port.refused.clone().unwrap(), port.refused_in_part);
    let reasons: Vec<_> = service.ports.iter().map(reason).collect();
    assert_eq!(reasons, [("too long".to_owned(), true), ("too many".to_owned(), false)]);
}

#[test]
fn endpoints_in_use_are_named_before_the_others() {
    use portolan_model::selection::{Choice, Endpoint, Explained, Hint};
    let explained = |number: u8, cluster, local| {
        let backend = Backend { address: [10, 0, 0, number].into(), port: 80, may_hairpin: false };
        let endpoint = Endpoint {
            backend,
            ready: true,
            serving: true,
            terminating: false,
            aside: false,
            local: false,
            node_hint: Hint::default(),
            zone_hint: Hint::default(),
        };
        Explained { endpoint, from: number, cluster, local }
    };
    let all = vec![
        explained(1, Choice::NotReady, Choice::NoTraffic),
        explained(2, Choice::NotReady, Choice::NoTraffic),
        explained(3, Choice::NoTraffic, Choice::Ready),
        explained(4, Choice::Ready, Choice::NoTraffic),
    ];
    let first: Vec<u8> = first_of(all, 3).iter().map(|it| it.from).collect();
    assert_eq!(first, [3, 4, 1]);
}

#[test]
fn a_search_finds_names_and_addresses_and_keeps_all_ports_of_a_service() {
    let all = [
        name("default", "web", "http"),
        name("default", "web", "metrics"),
        name("default", "dns", ""),
        name("faults", "web-2", "http"),
    ];
    let mut tables = both(&all);
    let backend = Backend { address: [10, 1, 2, 3].into(), port: 80, may_hairpin: false };
    let new = Forwarding::plain(([10, 96, 7, 7], 80).into(), Protocol::Tcp, Box::new([backend]));
    let cart =
        Change { name: name("shop", "cart", ""), family: Family::Ipv4, old: None, new: Some(Arc::new(new)) };
    tables[0].take([cart], []);
    let found = |search: &str| names(&ask(&tables, &format!("search={search}")));
    assert_eq!(found("web"), ["default/web", "faults/web-2"]);
    assert_eq!(found("METRICS"), ["default/web"]);
    assert_eq!(ask(&tables, "search=metrics").services[0].ports.len(), 4, "also the ports that do not match");
    assert_eq!(found("faults"), ["faults/web-2"]);
    assert_eq!(found("lt%2Fd"), ["default/dns"]);
    assert_eq!(found("default%2Fweb"), ["default/web"]);
    for address in ["10.96.7.7", "10.1.2.3", "[::ffff:10.1.2.3]"] {
        assert_eq!(found(address), ["shop/cart"], "{address}");
    }
    assert_eq!(found("fd00::1").len(), 3, "the endpoint of all IPv6 Services");
    assert_eq!(found("nothing"), [""; 0]);
    let first = ask(&tables, "search=web&limit=1");
    assert_eq!(first.next.as_deref(), Some("default/web"));
    let rest = ask(&tables, "search=web&limit=1&after=default%2Fweb");
    assert_eq!((names(&rest), rest.next.as_deref()), (vec!["faults/web-2".to_owned()], Some("faults/web-2")));
    // The Services after it are not looked at before the next page.
    let last = ask(&tables, "search=web&limit=1&after=faults%2Fweb-2");
    assert_eq!((names(&last), last.next), (Vec::new(), None));
}

#[test]
fn a_search_looks_at_a_bounded_number_of_ports_and_the_next_page_goes_on() {
    let all: Vec<_> = (0..50_000).map(|number| name("default", &format!("s{number:05}"), "http")).collect();
    let tables = [table(Family::Ipv4, &all, 1)];
    let (mut seen, mut pages, mut after) = (Vec::new(), 0, String::new());
    loop {
        let page = ask(&tables, &format!("search=s49999{after}"));
        seen.extend(names(&page));
        pages += 1;
        let Some(next) = page.next else { break };
        after = format!("&after={next}");
    }
    assert_eq!((seen, pages), (vec!["default/s49999".to_owned()], 50_000_usize.div_ceil(LOOKED_AT_MAX)));
}
