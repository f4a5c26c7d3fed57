//! Tests how the writes of a change and of a first load grow with the cluster, and that an ipset has room for a large one.

use portolan_engine::Commit;
use portolan_model::{Change, Family};

use super::example::{cluster_ip, put};
use super::support::{example, in_namespace, loaded, open, run, virtual_servers};

const ENDPOINTS: usize = 10;
const CHANGES: usize = 60;

fn service(number: usize, endpoints: usize) -> Change {
    let (high, low) = (number / 250, number % 250 + 1);
    let places: Vec<String> =
        (1..=endpoints).map(|endpoint| format!("10.{}.{low}.{endpoint}:8080", 100 + high)).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let forwarding = cluster_ip(&format!("172.30.{high}.{low}"), 80, &places);
    put(&format!("service-{number}"), "", forwarding)
}

/// The numbers of elements, other objects, and bytes written.
type Cost = [usize; 3];

const fn cost(commit: &Commit) -> Cost {
    [commit.elements, commit.objects, commit.bytes]
}

/// Returns the writes of a first load of this many Services, and those of each of many changes after it.
fn measured(services: usize) -> Option<(Cost, Vec<Cost>)> {
    in_namespace(|| {
        let mut ipvs = open(Family::Ipv4);
        let all: Vec<Change> = (0..services).map(|number| service(number, ENDPOINTS)).collect();
        ipvs.apply(&all).unwrap();
        let load = ipvs.resync().unwrap();
        assert!(load.elements > services * (ENDPOINTS + 1), "{load:?}");
        let change = |index: usize| {
            let change = service(index * 7 % services, ENDPOINTS + 1 - index % 2);
            let commit = ipvs.apply(std::slice::from_ref(&change)).unwrap();
            assert!(!commit.full, "{commit:?}");
            cost(&commit)
        };
        (cost(&load), (0..CHANGES).map(change).collect())
    })
}

#[test]
fn a_change_costs_what_it_changes_and_a_load_what_it_loads() {
    let Some((small_load, small)) = measured(100) else { return };
    let (large_load, large) = measured(2500).unwrap();
    for [elements, objects, bytes] in &large {
        assert!(*elements <= 4 && *objects == 0 && *bytes <= 1024, "{large:?}");
    }
    let total =
        |changes: &[Cost]| changes.iter().fold([0; 3], |sum, cost| [0, 1, 2].map(|i| sum[i] + cost[i]));
    let (small, large) = (total(&small), total(&large));
    assert!(
        large[2] <= small[2] + small[2] / 10,
        "{CHANGES} changes at 100 Services: {small:?}, at 2500: {large:?}"
    );
    // The device, the sets and the rules do not depend on the number of Services.
    assert_eq!(large_load[1], small_load[1], "objects of a load");
    for index in [0, 2] {
        assert!(
            large_load[index] <= small_load[index] * 26,
            "a load of 100 Services: {small_load:?}, of 2500: {large_load:?}"
        );
    }
}

/// An earlier version has made the set with room for 65536 members.
#[test]
fn the_set_of_virtual_servers_is_made_anew_if_it_is_small() {
    in_namespace(|| {
        run("ipset", "create PORTOLAN-VIRTUAL-SERVERS hash:ip,port maxelem 1");
        run("ipset", "add PORTOLAN-VIRTUAL-SERVERS 192.168.0.2,tcp:30002");
        run("ipvsadm", "--add-service --tcp-service 192.168.0.2:30002 --scheduler rr");
        let mut ipvs = loaded(Family::Ipv4, &example(Family::Ipv4));
        let heads: Vec<String> =
            virtual_servers().into_iter().filter(|line| !line.starts_with(' ')).collect();
        assert!(heads.iter().all(|head| !head.contains(":30002 ")), "it was known as ours: {heads:?}");
        let listed = run("ipset", "list PORTOLAN-VIRTUAL-SERVERS");
        assert!(listed.contains("maxelem 4194304") && listed.contains(",tcp:30443"), "{listed}");
        assert!(!run("ipset", "list -n").contains("-NEW"));
        let commit = ipvs.resync().unwrap();
        assert_eq!((commit.elements, commit.objects), (0, 0), "it is made anew once");
    });
}
