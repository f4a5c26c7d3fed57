//! Tests that objects of other programs stay, and that changes of ours by other programs are undone.

use std::time::Duration;

use portolan_engine::{Commit, Condition};
use portolan_ipvs::IpvsOptions;
use portolan_model::{Change, Family, Frontend, NodePortAddresses};
use portolan_testkit::eventually;

use super::example::settings;
use super::support::{
    addresses, everything, example, in_namespace, ipvsadm, loaded, open, open_with, options, rules, run,
    sets, virtual_servers,
};

fn gone(changes: &[Change]) -> Vec<Change> {
    changes.iter().map(|change| Change { old: change.new.clone(), new: None, ..change.clone() }).collect()
}

/// Virtual servers by firewall mark, at an address of an interface, at an address that the node does not have, and in
/// the other family.
const OTHERS: [&str; 5] = [
    "--add-service --fwmark-service 7 --scheduler wlc",
    "--add-service --tcp-service 192.168.0.2:81 --scheduler wlc",
    "--add-service --tcp-service 203.0.113.1:80 --scheduler wlc",
    "--add-server --tcp-service 203.0.113.1:80 --real-server 203.0.113.2:80 --gatewaying",
    "--add-service --tcp-service [2001:db8::1]:80 --scheduler wlc",
];

#[test]
fn virtual_servers_and_addresses_of_others_stay() {
    in_namespace(|| {
        for arguments in OTHERS {
            run("ipvsadm", arguments);
        }
        run("ip", "address add 172.30.99.1/32 dev eth0");
        run("ipset", "create foreign hash:ip");
        let before = ipvsadm("--save --numeric");
        let changes = example(Family::Ipv4);
        let mut ipvs = loaded(Family::Ipv4, &changes);
        for server in before.lines() {
            assert!(ipvsadm("--save --numeric").contains(server), "{server}");
        }
        // A restart. All Services have gone in the meantime.
        drop(ipvs);
        ipvs = loaded(Family::Ipv4, &[]);
        let sorted = |text: String| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(ipvsadm("--save --numeric")), sorted(before.clone()));
        assert!(addresses().iter().all(|word| !word.contains('.')), "{:?}", addresses());
        ipvs.remove().unwrap();
        assert_eq!(sorted(ipvsadm("--save --numeric")), sorted(before));
        assert!(run("ip", "address show dev eth0").contains("172.30.99.1/32"));
        assert!(run("ipset", "list -n").contains("foreign"));
    });
}

/// A set that an earlier version or another program made does not count. Everything else works.
#[test]
fn sets_without_counters_are_used_as_they_are() {
    use super::example::{cluster_ip, put};
    in_namespace(|| {
        let mut changes = example(Family::Ipv4);
        changes.push(put("empty", "", cluster_ip("172.30.10.9", 80, &[])));
        run("ipset", "create PORTOLAN-REJECT hash:ip,port");
        let mut ipvs = loaded(Family::Ipv4, &changes);
        let more = put("more", "", cluster_ip("172.30.10.8", 80, &[]));
        ipvs.apply(std::slice::from_ref(&more)).unwrap();
        let members = || run("ipset", "save PORTOLAN-REJECT -sorted");
        for address in ["172.30.10.8", "172.30.10.9"] {
            assert!(members().contains(&format!("add PORTOLAN-REJECT {address},tcp:80\n")), "{}", members());
        }
        let commit = ipvs.resync().unwrap();
        assert_eq!((commit.elements, commit.objects), (0, 0));
        ipvs.remove().unwrap();
        assert!(!run("ipset", "list -n").contains("PORTOLAN"));
        // Made by this version, it counts.
        let mut ipvs = loaded(Family::Ipv4, &changes);
        assert!(members().contains("172.30.10.9,tcp:80 packets 0 bytes 0"), "{}", members());
        ipvs.remove().unwrap();
    });
}

/// In excluded networks, a set notes which virtual servers are ours.
#[test]
fn a_virtual_server_of_others_at_the_address_of_a_service_stays() {
    use super::example::{cluster_ip, put};
    in_namespace(|| {
        let exclude = vec!["172.30.10.0/24".parse().unwrap()];
        let excluding =
            || open_with(settings(Family::Ipv4), IpvsOptions { exclude: exclude.clone(), ..options() });
        run("ipvsadm", "--add-service --tcp-service 172.30.10.1:80 --scheduler wlc");
        run("ipvsadm", "--add-server --tcp-service 172.30.10.1:80 --real-server 203.0.113.2:80 --gatewaying");
        let theirs = virtual_servers();
        let changes = example(Family::Ipv4);
        let check = |commit: &Commit| {
            let left: Vec<String> = virtual_servers().into_iter().take(2).collect();
            assert_eq!(left, theirs);
            assert!(!addresses().contains(&"172.30.10.1/32".to_owned()), "{:?}", addresses());
            assert!(addresses().contains(&"172.30.10.2/32".to_owned()));
            assert_eq!(commit.refused.len(), 1, "{:?}", commit.refused);
            assert!(commit.refused[0].reason.contains("ipvs.excludeCIDRs"), "{:?}", commit.refused);
        };
        let mut ipvs = excluding();
        ipvs.apply(&changes).unwrap();
        check(&ipvs.resync().unwrap());
        // The virtual server stays after a restart, after a change, and when another Service needs it. Ours go on.
        let mut ipvs = excluding();
        ipvs.apply(&changes).unwrap();
        let commit = ipvs.resync().unwrap();
        assert_eq!(commit.elements, 0);
        check(&commit);
        assert!(ipvs.is_intact().unwrap());
        run("ipvsadm", "--add-service --tcp-service 172.30.10.2:81 --scheduler wlc");
        let late = put("late", "", cluster_ip("172.30.10.2", 81, &["10.180.0.11:8080"]));
        assert_eq!(ipvs.apply(std::slice::from_ref(&late)).unwrap().refused.len(), 2);
        assert!(virtual_servers().contains(&"TCP 172.30.10.2:81 wlc".to_owned()));
        ipvs.apply(&gone(&[late])).unwrap();
        let less = put("late", "", cluster_ip("172.30.10.20", 80, &["10.180.0.11:8080"]));
        ipvs.apply(std::slice::from_ref(&less)).unwrap();
        assert!(virtual_servers().contains(&"TCP 172.30.10.20:80 rr".to_owned()));
        // Ours are removed with their Services, also after a restart.
        let mut ipvs = excluding();
        ipvs.apply(&changes).unwrap();
        check(&ipvs.resync().unwrap());
        assert!(!virtual_servers().contains(&"TCP 172.30.10.20:80 rr".to_owned()), "{:?}", virtual_servers());
        assert!(!addresses().contains(&"172.30.10.20/32".to_owned()), "{:?}", addresses());
        // One that no Service needs may come and go.
        run("ipvsadm", "--add-service --tcp-service 172.30.10.99:80 --scheduler wlc");
        ipvs.resync().unwrap();
        run("ipvsadm", "--delete-service --tcp-service 172.30.10.99:80");
        assert_eq!(ipvs.check().unwrap(), Condition::Intact);
        // When it is removed, the Service gets its virtual server there. That is no change of ours.
        run("ipvsadm", "--delete-service --tcp-service 172.30.10.1:80");
        assert_eq!(ipvs.check().unwrap(), Condition::Outdated);
        assert_eq!(ipvs.resync().unwrap().refused, []);
        assert!(virtual_servers().contains(&"TCP 172.30.10.1:80 rr".to_owned()));
        ipvs.remove().unwrap();
        assert_eq!(virtual_servers(), ["TCP 172.30.10.2:81 wlc"]);
        assert!(!run("ip", "link").contains("kube-ipvs0"));
    });
}

#[test]
fn leftovers_in_excluded_networks_stay() {
    use portolan_leftovers::Keep;
    in_namespace(|| {
        // The state that kube-proxy leaves.
        drop(loaded(Family::Ipv4, &example(Family::Ipv4)));
        leftovers_of_kube_proxy();
        let exclude = vec!["172.30.10.2/31".parse().unwrap()];
        let (removed, errors) = portolan_leftovers::remove(&Keep { exclude, ..Keep::default() });
        assert!(errors.is_empty(), "{errors:?}");
        assert!(removed.virtual_servers > 0 && removed.devices == 0, "{removed:?}");
        let left = virtual_servers();
        let heads: Vec<&String> = left.iter().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(heads, ["TCP 172.30.10.2:443 rr", "TCP 172.30.10.3:443 rr persistent 600"]);
        assert_eq!(addresses(), ["172.30.10.2/32", "172.30.10.3/32", "DOWN", "kube-ipvs0"]);
        assert!(!rules().contains("KUBE"), "{}", rules());
        let (removed, _) = portolan_leftovers::remove(&Keep::default());
        assert_eq!((removed.virtual_servers, removed.devices), (2, 1));
        assert!(!run("ip", "link").contains("kube-ipvs0"));
    });
}

/// Removes the set of our virtual servers, which kube-proxy does not have.
fn leftovers_of_kube_proxy() {
    run("ipset", "destroy PORTOLAN-VIRTUAL-SERVERS");
}

/// A full set affects only the Services that need a member that does not fit.
#[test]
fn service_ports_that_do_not_fit_into_a_set_are_left_out() {
    use super::example::{cluster_ip, put};
    in_namespace(|| {
        run("ipset", "create KUBE-CLUSTER-IP hash:ip,port maxelem 4");
        let service = |number: u8| {
            let address = format!("172.30.40.{number}");
            put(&format!("web-{number}"), "", cluster_ip(&address, 80, &["10.180.0.11:8080"]))
        };
        let heads = || virtual_servers().iter().filter(|line| line.starts_with("TCP 172.30.40.")).count();
        let bound = || addresses().iter().filter(|word| word.starts_with("172.30.40.")).count();
        let all: Vec<Change> = (1..=6).map(service).collect();
        let mut ipvs = open(Family::Ipv4);
        ipvs.apply(&all).unwrap();
        let commit = ipvs.resync().unwrap();
        assert_eq!(commit.refused.len(), 2, "{:?}", commit.refused);
        assert!(commit.refused.iter().all(|refusal| refusal.reason.contains("full")), "{:?}", commit.refused);
        assert_eq!((heads(), bound()), (4, 4));
        assert!(ipvs.is_intact().unwrap());
        // A change of a Service port that fits stays a partial write. So does a change of one that does not fit and
        // needs the same members. A new Service port does not fit either.
        let (left_out, fits): (Vec<&Change>, Vec<&Change>) =
            all.iter().partition(|change| commit.refused.iter().any(|refusal| refusal.name == change.name));
        let busy = |change: &Change| {
            let mut new = (**change.new.as_ref().unwrap()).clone();
            new.cluster[0].port += 1;
            Change { old: change.new.clone(), new: Some(std::sync::Arc::new(new)), ..change.clone() }
        };
        for change in [fits[0], left_out[0]] {
            let commit = ipvs.apply(&[busy(change)]).unwrap();
            assert!(!commit.full && commit.refused.len() == 2, "{commit:?}");
            assert_eq!((heads(), bound()), (4, 4));
        }
        let commit = ipvs.apply(&[service(7)]).unwrap();
        assert_eq!((commit.refused.len(), heads(), bound()), (3, 4, 4), "{commit:?}");
        // Free room is used at once.
        let commit = ipvs.apply(&gone(&[fits[1].clone()])).unwrap();
        assert_eq!((commit.refused.len(), heads(), bound()), (2, 4, 4), "{commit:?}");
        let rest: Vec<Change> = fits[2..].iter().map(|change| (*change).clone()).collect();
        let commit = ipvs.apply(&gone(&rest)).unwrap();
        assert_eq!((commit.refused.len(), heads(), bound()), (0, 4, 4), "{commit:?}");
        assert!(ipvs.is_intact().unwrap());
        assert_eq!(ipvs.resync().unwrap().elements, 0);
    });
}

#[test]
fn excluded_addresses_stay() {
    in_namespace(|| {
        drop(loaded(Family::Ipv4, &example(Family::Ipv4)));
        let exclude = vec!["172.30.10.2/31".parse().unwrap()];
        let mut ipvs = open_with(settings(Family::Ipv4), IpvsOptions { exclude, ..options() });
        ipvs.resync().unwrap();
        let left = virtual_servers();
        let heads: Vec<&String> = left.iter().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(heads, ["TCP 172.30.10.2:443 rr", "TCP 172.30.10.3:443 rr persistent 600"]);
        assert_eq!(addresses()[..2], ["172.30.10.2/32", "172.30.10.3/32"]);
    });
}

/// A virtual server of kube-proxy for a node port is recognized only by its port in kube-proxy's set.
#[test]
fn node_ports_of_kube_proxy_are_taken_over() {
    in_namespace(|| {
        run("ipset", "create KUBE-NODE-PORT-TCP bitmap:port range 0-65535");
        run("ipset", "add KUBE-NODE-PORT-TCP 30001");
        run("ipvsadm", "--add-service --tcp-service 192.168.0.2:30001 --scheduler rr");
        run("ipvsadm", "--add-service --tcp-service 192.168.0.2:30002 --scheduler rr");
        let _ipvs = loaded(Family::Ipv4, &[]);
        assert_eq!(virtual_servers(), ["TCP 192.168.0.2:30002 rr"]);
    });
}

/// The first attempt of the comparison fails, because a set is full. The second one knows the virtual server by our set only.
#[test]
fn node_ports_of_kube_proxy_are_taken_over_by_a_second_attempt() {
    use super::example::{cluster_ip, put};
    in_namespace(|| {
        run("ipset", "create KUBE-CLUSTER-IP hash:ip,port maxelem 1");
        run("ipset", "create KUBE-NODE-PORT-TCP bitmap:port range 0-65535");
        run("ipset", "add KUBE-NODE-PORT-TCP 30001");
        // What an interrupted start left.
        run("ipset", "create PORTOLAN-VIRTUAL-SERVERS-NEW hash:ip,port");
        run("ipset", "add PORTOLAN-VIRTUAL-SERVERS-NEW 192.168.0.2,tcp:30002");
        for port in [30001, 30002] {
            run("ipvsadm", &format!("--add-service --tcp-service 192.168.0.2:{port} --scheduler rr"));
        }
        let service = |number: u8| {
            let address = format!("172.30.40.{number}");
            put(&format!("web-{number}"), "", cluster_ip(&address, 80, &["10.180.0.11:8080"]))
        };
        let mut ipvs = loaded(Family::Ipv4, &[service(1), service(2)]);
        let servers = virtual_servers();
        let heads: Vec<&String> = servers.iter().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(heads.len(), 2, "{servers:?}");
        assert!(heads.contains(&&"TCP 192.168.0.2:30002 rr".to_owned()), "{servers:?}");
        assert!(sets().iter().all(|line| !line.contains("VIRTUAL-SERVERS")), "{:?}", sets());
        assert!(!run("ipset", "list -n").contains("-NEW"));
        assert!(ipvs.is_intact().unwrap());
    });
}

#[test]
fn changes_by_other_programs_are_noticed_and_undone() {
    in_namespace(|| {
        let mut ipvs = loaded(Family::Ipv4, &example(Family::Ipv4));
        let (all, all_rules) = (everything(), rules());
        for (program, arguments, noticed) in [
            ("ipvsadm", "--delete-service --tcp-service 172.30.10.1:80", true),
            ("ipvsadm", "--edit-service --tcp-service 172.30.10.1:80 --scheduler lc", true),
            ("ipvsadm", "--clear", true),
            ("ipvsadm", "--delete-server --tcp-service 172.30.10.1:80 --real-server 10.180.0.11:8080", true),
            (
                "ipvsadm",
                "--edit-server --tcp-service 172.30.10.1:80 --real-server 10.180.0.11:8080 --masquerading --weight 7",
                true,
            ),
            ("ipvsadm", "--add-service --tcp-service 172.30.10.1:81 --scheduler rr", false),
            ("ip", "address delete 172.30.10.1/32 dev kube-ipvs0", true),
            ("ip", "address add 172.30.77.1/32 dev kube-ipvs0", true),
            ("ip", "link delete kube-ipvs0", true),
            ("ipset", "flush KUBE-CLUSTER-IP", true),
            ("ipset", "add KUBE-CLUSTER-IP 172.30.99.1,tcp:80", true),
            ("iptables-nft", "--table nat --flush KUBE-SERVICES", true),
            ("iptables-nft", "--table filter --flush INPUT", true),
            ("iptables-nft", "--table mangle --flush", true),
        ] {
            run(program, arguments);
            let expected = if noticed { Condition::Changed } else { Condition::Intact };
            assert_eq!(ipvs.check().unwrap(), expected, "{program} {arguments}");
            let commit = ipvs.resync().unwrap();
            assert!(commit.elements + commit.objects > 0, "{program} {arguments}");
            assert_listed(&all, &format!("{program} {arguments}"));
            let sorted = |text: &str| {
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.sort();
                lines
            };
            assert_eq!(sorted(&rules()), sorted(&all_rules), "{program} {arguments}");
        }
    });
}

/// A network manager that sets the device up makes the kernel add an address of link scope. Other programs add addresses with any
/// prefix.
#[test]
fn addresses_that_the_device_gets_when_it_is_set_up_stay() {
    in_namespace(|| {
        let mut ipvs = loaded(Family::Ipv6, &example(Family::Ipv6));
        run("ip", "link set kube-ipvs0 up");
        let has = |start: &str| addresses().iter().any(|word| word.starts_with(start));
        eventually(Duration::from_secs(120), "the kernel's address", || has("fe80:")).unwrap();
        assert!(ipvs.is_intact().unwrap());
        assert_eq!(ipvs.resync().unwrap().elements, 0);
        run("ip", "address add fd00:77::1/64 dev kube-ipvs0 nodad");
        assert!(!ipvs.is_intact().unwrap());
        assert_eq!(ipvs.resync().unwrap().elements, 1);
        assert!(has("fe80:") && !has("fd00:77:"), "{:?}", addresses());
        assert!(ipvs.is_intact().unwrap());
        ipvs.remove().unwrap();
        assert!(!run("ip", "link").contains("kube-ipvs0"));

        let mut ipvs = loaded(Family::Ipv4, &example(Family::Ipv4));
        for prefix in [24, 32] {
            run("ip", &format!("address add 172.30.77.1/{prefix} dev kube-ipvs0"));
        }
        for _ in 0..2 {
            assert!(!ipvs.is_intact().unwrap());
            assert_eq!(ipvs.resync().unwrap().elements, 1);
        }
        assert!(ipvs.is_intact().unwrap());
        assert!(!has("172.30.77."), "{:?}", addresses());
    });
}

/// A node may have new devices without IPv6.
#[test]
fn the_device_has_ipv6_where_other_devices_have_none() {
    in_namespace(|| {
        let setting = |device: &str| format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
        std::fs::write(setting("default"), "1").unwrap();
        let mut ipvs = loaded(Family::Ipv6, &example(Family::Ipv6));
        assert!(addresses().iter().any(|word| word.starts_with("fd00:")), "{:?}", addresses());
        assert!(ipvs.is_intact().unwrap());
        // Another program switches it off, which removes the addresses.
        let before = everything();
        std::fs::write(setting("kube-ipvs0"), "1").unwrap();
        assert!(!ipvs.is_intact().unwrap());
        assert_eq!(ipvs.resync().unwrap().refused, []);
        assert_listed(&before, "after IPv6 was switched off");
        assert_eq!(std::fs::read_to_string(setting("default")).unwrap(), "1\n");
    });
}

/// Retries until the listing is as expected. The kernel continues a listing at a position that it counts over the
/// virtual servers of all namespaces. While other tests change theirs, it repeats or omits some.
fn assert_listed(expected: &str, what: &str) {
    let mut listed = String::new();
    let is_as_expected = || {
        listed = everything();
        listed == expected
    };
    if eventually(Duration::from_secs(120), what, is_as_expected).is_err() {
        assert_eq!(listed, expected, "{what}");
    }
}

/// A change is written even if another program has changed the objects that it needs.
#[test]
fn a_change_that_meets_an_unknown_virtual_server_compares_everything() {
    in_namespace(|| {
        let changes = example(Family::Ipv4);
        let mut ipvs = loaded(Family::Ipv4, &changes);
        run("ipvsadm", "--clear");
        let commit = ipvs.apply(&gone(&changes[..1])).unwrap();
        assert!(!commit.full, "what is gone already is no surprise");
        let commit = ipvs.apply(&changes[..1]).unwrap();
        assert!(!commit.full);
        run("ipvsadm", "--add-service --tcp-service 172.30.10.9:80 --scheduler rr");
        let mut other = changes[0].clone();
        let forwarding = super::example::cluster_ip("172.30.10.9", 80, &["10.180.0.11:8080"]);
        other.name = super::example::put("other", "", forwarding.clone()).name;
        other.new = Some(std::sync::Arc::new(forwarding));
        let commit = ipvs.apply(&[other]).unwrap();
        assert!(commit.full);
        assert!(ipvs.is_intact().unwrap());
    });
}

/// Endpoints and addresses that the kernel refuses affect nothing else.
#[test]
fn a_refused_object_affects_no_other() {
    use super::example::{cluster_ip, put};
    in_namespace(|| {
        let bad = put("bad", "", cluster_ip("172.30.66.1", 80, &["255.255.255.255:80", "10.180.0.66:80"]));
        let mut nowhere = cluster_ip("172.30.66.2", 80, &["10.180.0.67:80"]);
        let any = Frontend::LoadBalancerIp("0.0.0.0".parse().unwrap(), 80);
        nowhere.frontends = nowhere.frontends.iter().copied().chain([any]).collect();
        let nowhere = put("nowhere", "", nowhere);
        let changes = example(Family::Ipv4);
        let expected = {
            drop(loaded(Family::Ipv4, &changes));
            virtual_servers()
        };
        run("ipvsadm", "--clear");
        let mut ipvs = open(Family::Ipv4);
        ipvs.apply(&[bad.clone(), nowhere.clone()]).unwrap();
        ipvs.apply(&changes).unwrap();
        let reported = |commit: &Commit| {
            commit.refused.iter().map(|refusal| refusal.name.to_string()).collect::<Vec<_>>()
        };
        let commit = ipvs.resync().unwrap();
        assert_eq!(reported(&commit), ["demo/bad"]);
        assert!(commit.refused[0].reason.contains("endpoints"), "{:?}", commit.refused);
        let all = virtual_servers();
        for line in &expected {
            assert!(all.contains(line), "{line} is missing: {all:?}");
        }
        assert!(all.contains(&"  -> 10.180.0.66:80 Masq weight 1".to_owned()), "{all:?}");
        assert!(addresses().contains(&"172.30.10.1/32".to_owned()));
        assert!(ipvs.is_intact().unwrap(), "but for what is refused");
        let written = |commit: &Commit| (commit.elements, commit.objects);
        assert_eq!(written(&ipvs.resync().unwrap()), (0, 0), "what the kernel refuses again is not written");
        run("ipvsadm", "--clear");
        assert_ne!(written(&ipvs.resync().unwrap()), (0, 0), "the first of two attempts counts");
        assert_eq!(written(&ipvs.resync().unwrap()), (0, 0));
        ipvs.apply(&gone(&changes[..1])).unwrap();
        let commit = ipvs.apply(&changes[..1]).unwrap();
        assert!(!commit.full && reported(&commit) == ["demo/bad"], "{commit:?}");
        assert!(ipvs.is_intact().unwrap(), "a change of others makes no difference");
        assert_eq!(reported(&ipvs.apply(&gone(&[bad, nowhere])).unwrap()), [""; 0]);
        ipvs.resync().unwrap();
        assert_eq!(virtual_servers(), expected);
    });
}

#[test]
fn addresses_of_the_node_are_followed() {
    in_namespace(|| {
        let changes = example(Family::Ipv4);
        let mut ipvs = loaded(Family::Ipv4, &changes);
        let has = |address: &str| {
            virtual_servers().iter().any(|server| server.starts_with(&format!("TCP {address}:30443")))
        };
        assert!(has("192.168.0.2") && has("192.168.1.2"));
        // Addresses that pod networks add: the same one for each pod, or one of link scope.
        for address in ["192.168.0.2/32 dev eth1", "169.254.1.1/32 dev eth1 scope link"] {
            run("ip", &format!("address add {address}"));
            assert!(ipvs.is_intact().unwrap(), "{address}");
            run("ip", &format!("address delete {address}"));
            assert!(!ipvs.apply(&[]).unwrap().full, "{address}");
        }
        run("ip", "address add 192.168.2.2/24 dev eth1");
        assert_eq!(ipvs.check().unwrap(), Condition::Outdated);
        ipvs.resync().unwrap();
        assert!(has("192.168.2.2"));
        run("ip", "address delete 192.168.2.2/24 dev eth1");
        ipvs.apply(&[]).unwrap();
        assert!(!has("192.168.2.2"));
        let only = NodePortAddresses::Addresses(vec!["192.168.1.2".parse().unwrap()]);
        ipvs.configure(portolan_model::Settings { node_port_addresses: only, ..settings(Family::Ipv4) });
        ipvs.resync().unwrap();
        assert!(!has("192.168.0.2") && has("192.168.1.2"));
        // An address of another interface is not put on our device.
        run("ip", "address add 198.51.100.7/32 dev eth1");
        ipvs.resync().unwrap();
        assert!(!addresses().contains(&"198.51.100.7/32".to_owned()));
        assert!(virtual_servers().contains(&"TCP 198.51.100.7:443 rr persistent 600".to_owned()));
        // After a restart, the virtual server is recognized by its set.
        drop(ipvs);
        drop(loaded(Family::Ipv4, &[]));
        assert_eq!(virtual_servers(), [""; 0]);
    });
}
