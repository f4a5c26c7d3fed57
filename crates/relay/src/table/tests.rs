use super::*;

const LIMITS: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(500)];

fn name(service: &str) -> Arc<ServicePortName> {
    let (namespace, service, port) = ("default".into(), service.into(), "".into());
    Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp })
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn backends(ports: &[u16]) -> Box<[Backend]> {
    ports.iter().map(|&port| Backend { address: [10, 0, 0, 1].into(), port, may_hairpin: false }).collect()
}

fn forwarding(frontends: &[Frontend], cluster: &[u16], local: &[u16], affinity: Option<u32>) -> Forwarding {
    Forwarding {
        frontends: frontends.into(),
        local: backends(local),
        affinity,
        ..Forwarding::plain(socket("10.96.0.1:80"), Protocol::Tcp, backends(cluster))
    }
}

fn change(service: &str, new: Option<Forwarding>) -> Change {
    Change { name: name(service), family: Family::Ipv4, old: None, new: new.map(Arc::new) }
}

fn cluster_ip(last: u8) -> Frontend {
    Frontend::ClusterIp([10, 96, 0, last].into(), 80)
}

fn choose(table: &mut RelayTable, id: ServiceId, scope: Scope, client: u8, now: Instant) -> Option<u16> {
    let client = [10, 1, 0, client].into();
    let chosen = table.choose(id, scope, client, &mut Attempts::default(), &LIMITS, now);
    chosen.map(|(backend, _)| backend.port())
}

#[test]
fn frontends_are_found_until_they_are_removed() {
    let mut table = RelayTable::default();
    let frontends = [cluster_ip(1), Frontend::NodePort(30_080)];
    table.apply(&change("a", Some(forwarding(&frontends, &[1], &[], None))));
    let found = table.find(Protocol::Tcp, socket("10.96.0.1:80")).unwrap();
    assert_eq!(table.find(Protocol::Tcp, socket("192.0.2.1:30080")), Some(found));
    assert_eq!(table.find(Protocol::Udp, socket("10.96.0.1:80")), None);
    assert_eq!(table.find(Protocol::Tcp, socket("[2001:db8::1]:30080")), None);
    table.apply(&change("a", Some(forwarding(&[cluster_ip(2)], &[1], &[], None))));
    assert_eq!(table.find(Protocol::Tcp, socket("10.96.0.1:80")), None);
    assert_eq!(table.find(Protocol::Tcp, socket("10.96.0.2:80")), Some(found));
    table.apply(&change("a", None));
    assert_eq!(table.find(Protocol::Tcp, socket("10.96.0.2:80")), None);
    assert_eq!(table.services.len() + table.names.len() + table.addresses.len() + table.node_ports.len(), 0);
}

#[test]
fn a_frontend_that_moved_stays_with_its_new_owner() {
    let mut table = RelayTable::default();
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1], &[], None))));
    table.apply(&change("b", Some(forwarding(&[cluster_ip(1)], &[2], &[], None))));
    table.apply(&change("a", None));
    let id = table.find(Protocol::Tcp, socket("10.96.0.1:80")).unwrap();
    assert_eq!(choose(&mut table, id, Scope::Cluster, 1, Instant::now()), Some(2));
}

#[test]
fn scopes_have_backends_of_their_own() {
    let (mut table, now) = (RelayTable::default(), Instant::now());
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1, 2], &[2], None))));
    let id = table.find(Protocol::Tcp, socket("10.96.0.1:80")).unwrap();
    let turns: Vec<_> = (0..3).filter_map(|_| choose(&mut table, id, Scope::Cluster, 1, now)).collect();
    assert_eq!(turns, [1, 2, 1]);
    assert_eq!(choose(&mut table, id, Scope::Local, 1, now), Some(2));
}

#[test]
fn affinity_holds_and_moves_with_a_failure() {
    let (mut table, now) = (RelayTable::default(), Instant::now());
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1, 2, 3], &[], Some(60)))));
    let id = table.find(Protocol::Tcp, socket("10.96.0.1:80")).unwrap();
    assert_eq!(choose(&mut table, id, Scope::Cluster, 1, now), Some(1));
    assert_eq!(choose(&mut table, id, Scope::Cluster, 2, now), Some(2));
    assert_eq!(choose(&mut table, id, Scope::Cluster, 1, now), Some(1));

    let mut attempts = Attempts::default();
    let client = [10, 1, 0, 1].into();
    let (backend, _) = table.choose(id, Scope::Cluster, client, &mut attempts, &LIMITS, now).unwrap();
    table.failed(id, backend, &mut attempts, Failure::Refused, now, now);
    let (moved, _) = table.choose(id, Scope::Cluster, client, &mut attempts, &LIMITS, now).unwrap();
    assert_eq!((backend.port(), moved.port()), (1, 3));
    assert_eq!(
        choose(&mut table, id, Scope::Cluster, 1, now),
        Some(3),
        "the next connection goes there at once"
    );

    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1, 2], &[], Some(60)))));
    assert_ne!(choose(&mut table, id, Scope::Cluster, 1, now), Some(3), "its endpoint is gone");
    assert_eq!(choose(&mut table, id, Scope::Cluster, 2, now), Some(2), "other clients stay");
}

#[test]
fn of_the_clients_bound_to_a_failed_backend_one_tries_it_again() {
    const CLIENTS: [u8; 5] = [1, 2, 3, 4, 5];
    let (mut table, now) = (RelayTable::default(), Instant::now());
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1], &[], Some(60)))));
    let id = table.find(Protocol::Tcp, socket("10.96.0.1:80")).unwrap();
    for client in CLIENTS {
        assert_eq!(choose(&mut table, id, Scope::Cluster, client, now), Some(1));
    }
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1, 2], &[], Some(60)))));
    table.failed(id, socket("10.0.0.1:1"), &mut Attempts::default(), Failure::Refused, now, now);
    let after_the_pause = now + Duration::from_secs(1);
    let chosen = CLIENTS.map(|client| choose(&mut table, id, Scope::Cluster, client, after_the_pause));
    assert_eq!(chosen, [Some(1), Some(2), Some(2), Some(2), Some(2)], "until it is known how that ends");
}

#[test]
fn a_removed_service_is_dropped_with_its_last_connection() {
    let mut table = RelayTable::default();
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1], &[], None))));
    let id = table.find(Protocol::Tcp, socket("10.96.0.1:80")).unwrap();
    table.hold(id);
    assert!(table.has_backend(id, socket("10.0.0.1:1")));
    assert_eq!(table.apply(&change("a", None)), Some(id), "connections may have to be drained");
    assert!(!table.has_backend(id, socket("10.0.0.1:1")));
    assert_eq!((table.held(id), table.services.len()), (1, 1));
    table.let_go(id);
    assert_eq!((table.services.len(), table.names.len()), (0, 0));
}

#[test]
fn a_service_that_comes_back_is_the_same_one() {
    let mut table = RelayTable::default();
    let there = change("a", Some(forwarding(&[cluster_ip(1)], &[1], &[], None)));
    table.apply(&there);
    let id = table.find(Protocol::Tcp, socket("10.96.0.1:80")).unwrap();
    table.hold(id);
    table.apply(&change("a", None));
    table.apply(&there);
    assert_eq!(table.find(Protocol::Tcp, socket("10.96.0.1:80")), Some(id));
    table.let_go(id);
    assert!(table.has_backend(id, socket("10.0.0.1:1")));
}

#[test]
fn failing_backends_are_counted() {
    let (mut table, now) = (RelayTable::default(), Instant::now());
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1, 2, 3], &[3, 4], None))));
    table.apply(&change("b", Some(forwarding(&[cluster_ip(2)], &[1], &[], None))));
    let [a, b] =
        ["10.96.0.1:80", "10.96.0.2:80"].map(|text| table.find(Protocol::Tcp, socket(text)).unwrap());
    let backend = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
    let fail = |table: &mut RelayTable, id, port| {
        table.failed(id, backend(port), &mut Attempts::default(), Failure::Refused, now, now);
        table.failing()
    };
    assert_eq!(fail(&mut table, a, 1), 1);
    assert_eq!(fail(&mut table, a, 1), 1, "the same one");
    assert_eq!(fail(&mut table, a, 4), 2);
    assert_eq!(fail(&mut table, b, 1), 3);
    table.succeeded(a, backend(1));
    assert_eq!(table.failing(), 2);
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1, 2, 3], &[3], None))));
    assert_eq!(table.failing(), 1);
    assert_eq!(fail(&mut table, a, 4), 1, "its last connection fails after it is gone");
    table.hold(b);
    table.apply(&change("b", None));
    assert_eq!(table.failing(), 0);
    assert_eq!(fail(&mut table, b, 1), 0, "so does that of a Service");
    table.let_go(b);
    assert_eq!(table.failing(), 0);
}

#[test]
fn connections_are_counted_by_backend() {
    let mut table = RelayTable::default();
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1, 2], &[2], None))));
    let id = table.find(Protocol::Tcp, socket("10.96.0.1:80")).unwrap();
    let backend = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
    let counts = |table: &RelayTable| {
        let entries = table.entries(Family::Ipv4);
        let mut by_backend: Vec<_> = entries[0].by_backend.clone().into_iter().collect();
        by_backend.sort_unstable();
        (entries[0].connections, by_backend)
    };
    assert_eq!(counts(&table), (0, vec![]));
    for port in [1, 2, 2, 9] {
        table.count(id, backend(port));
    }
    assert_eq!(counts(&table), (4, vec![(backend(1), 1), (backend(2), 2)]), "one had been removed");
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1, 3], &[], None))));
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1, 2], &[], None))));
    assert_eq!(counts(&table), (4, vec![(backend(1), 1)]), "a backend that comes back starts at 0");
    table.hold(id);
    table.apply(&change("a", None));
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1], &[], None))));
    assert_eq!(counts(&table), (0, vec![]), "so does a Service");
}

#[test]
fn each_service_knows_its_connections() {
    let mut slots = Slots::default();
    let [x, y, z] = [1, 2, 3].map(|value| slots.insert(value));
    let mut table = RelayTable::default();
    table.apply(&change("a", Some(forwarding(&[cluster_ip(1)], &[1], &[], None))));
    let id = table.find(Protocol::Tcp, socket("10.96.0.1:80")).unwrap();
    let places = [x, y, z].map(|slot| table.join(id, slot));
    assert_eq!((places, table.held(id)), ([0, 1, 2], 3));
    assert_eq!(table.leave(id, 0), Some(z), "the last one takes the place");
    assert_eq!(table.connections(id), [z, y]);
    assert_eq!(table.leave(id, 1), None);
    table.apply(&change("a", None));
    assert_eq!((table.leave(id, 0), table.services.len()), (None, 0));
}

#[test]
fn backends_that_see_the_client_address() {
    let mut table = RelayTable::default();
    let frontends = [cluster_ip(1), Frontend::NodePort(30_080)];
    let mut wanted = forwarding(&frontends, &[1, 2], &[], None);
    wanted.cluster[1].may_hairpin = true;
    let (elsewhere, here) = (socket("10.0.0.1:1"), socket("10.0.0.1:2"));
    for keep_client_address in [false, true] {
        table.apply(&change("a", Some(Forwarding { keep_client_address, ..wanted.clone() })));
        let id = table.find(Protocol::Tcp, socket("10.96.0.1:80")).unwrap();
        let keeps = |client: &str, backend, to: &str| {
            table.keeps_client_address(id, client.parse().unwrap(), backend, || {
                table.is_internal(id, socket(to))
            })
        };
        for (client, backend, to, kept) in [
            ("10.1.0.1", elsewhere, "10.96.0.1:80", true),
            ("10.1.0.1", here, "192.0.2.1:30080", true),
            ("10.1.0.1", elsewhere, "192.0.2.1:30080", false),
            ("10.0.0.1", here, "10.96.0.1:80", false),
        ] {
            assert_eq!(keeps(client, backend, to), kept && keep_client_address, "{client} {backend} {to}");
        }
    }
}
