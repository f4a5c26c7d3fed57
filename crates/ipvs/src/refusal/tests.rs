use portolan_model::{Backend, Change, Family, IpvsScheduler, Protocol, Settings};
use portolan_sock::Errno;

use super::*;
use crate::dataplane::Written;
use crate::frontend::Config;
use crate::memory::Kernel;

const CONFIG: Config = Config { scheduler: IpvsScheduler::Rr, flags: 0, timeout: 0 };

/// Service `number` at 10.96.0.`number`:80 with the endpoints 10.1.0.9:8080 and 10.1.0.`number`:8080.
fn change(number: u8) -> Change {
    let backend = |last| Backend { address: IpAddr::from([10, 1, 0, last]), port: 8080, may_hairpin: false };
    let mut cluster = [backend(9), backend(number)];
    cluster.sort_unstable();
    let new = Forwarding::plain((address(number), 80).into(), Protocol::Tcp, Box::new(cluster));
    let [namespace, service, port] = ["demo", &number.to_string(), ""].map(Arc::from);
    let name = ServicePortName { namespace, service, port, protocol: Protocol::Tcp };
    Change { name: Arc::new(name), family: Family::Ipv4, old: None, new: Some(Arc::new(new)) }
}

fn address(number: u8) -> IpAddr {
    IpAddr::from([10, 96, 0, number])
}

fn key(number: u8) -> Key {
    Key { address: address(number), port: 80, protocol: Protocol::Tcp }
}

fn place(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 1, 0, last], 8080))
}

fn desired() -> (Desired, Table) {
    let settings = Settings::plain(Family::Ipv4);
    let mut table = Table::new(settings.clone());
    let mut desired = Desired::new(settings, Vec::new());
    desired.apply(&table.take([1, 2, 3, 4, 5].map(change), []), &mut Touched::default());
    (desired, table)
}

fn reported(items: &[Item]) -> Vec<(String, &'static str)> {
    let refused = |item: &Item| {
        let error = Error::Refused { what: String::new(), errno: Errno::ENOENT };
        Refused { item: *item, error }
    };
    let refused: Vec<Refused> = items.iter().map(refused).collect();
    let (desired, table) = desired();
    owners(&refused, &desired, &table)
        .into_iter()
        .map(|(name, reason)| (name.service.to_string(), reason))
        .collect()
}

#[test]
fn a_refusal_is_reported_with_the_service_that_needs_the_object() {
    let items = [
        Item::Address(address(1)),
        Item::Operation(Operation::NewReal(key(2), place(2))),
        Item::Operation(Operation::Set(key(3), CONFIG)),
        Item::Member(Set::ClusterIp, key(4).member()),
    ];
    let all = [("1", ADDRESS), ("2", REAL_SERVER), ("3", VIRTUAL_SERVER), ("4", MEMBER)];
    assert_eq!(reported(&items), all.map(|(name, reason)| (name.to_owned(), reason)));
    assert_eq!(reported(&[]), []);
}

#[test]
fn a_refused_removal_concerns_no_service() {
    let items = [
        Item::Address(address(6)),
        Item::Operation(Operation::Delete(key(6))),
        Item::Operation(Operation::DeleteReal(key(5), place(1))),
        Item::Member(Set::ClusterIp, key(6).member()),
        Item::Member(Set::ExternalIp, key(5).member()),
    ];
    assert_eq!(reported(&items), []);
}

#[test]
fn a_refused_endpoint_concerns_one_virtual_server_only() {
    let items = [Item::Operation(Operation::Restore(key(2), place(9)))];
    assert_eq!(reported(&items), [("2".to_owned(), REAL_SERVER)]);
}

#[test]
fn what_the_kernel_refuses_is_not_written() {
    let (desired, _) = desired();
    let mut kernel = Kernel::default();
    let mut refused = Operation::NewReal(key(1), place(1));
    let commit = |kernel: &mut Kernel, refused: &Operation| {
        let mut difference = kernel.compared(&desired);
        let sent = difference.len();
        difference.servers.retain(|operation| operation != refused);
        kernel.take(&difference);
        let mut written = Written::default();
        written.elements(sent, sent - difference.len());
        (sent, written)
    };
    let (sent, first) = commit(&mut kernel, &refused);
    assert!(sent > 1 && first != Written::default());
    assert_eq!(commit(&mut kernel, &refused), (1, Written::default()), "a lasting refusal");
    refused = Operation::Delete(key(1));
    let (sent, mended) = commit(&mut kernel, &refused);
    assert_eq!(sent, 1);
    assert_ne!(mended, Written::default());
}
