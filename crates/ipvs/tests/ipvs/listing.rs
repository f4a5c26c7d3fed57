//! Snapshots of what `ipvsadm`, `ipset`, `ip` and iptables print for an example.

use portolan_engine::HealthCheckPort;
use portolan_model::Family;

use super::support::{everything, example, in_namespace, ipvsadm, loaded, open, rules, run};

fn listed(family: Family) -> Option<String> {
    in_namespace(|| {
        let mut ipvs = open(family);
        let check = HealthCheckPort {
            namespace: "demo".into(),
            service: "edge".into(),
            port: Some(32222),
            local_ready: 1,
        };
        ipvs.open_health_check_ports(&[check]).unwrap();
        ipvs.apply(&example(family)).unwrap();
        ipvs.resync().unwrap();
        assert!(ipvs.is_intact().unwrap());
        everything()
    })
}

#[test]
fn an_example_in_ipv4() {
    if let Some(listed) = listed(Family::Ipv4) {
        insta::assert_snapshot!(listed);
    }
}

#[test]
fn an_example_in_ipv6() {
    if let Some(listed) = listed(Family::Ipv6) {
        insta::assert_snapshot!(listed);
    }
}

/// The node has these addresses for itself only: it must not answer for them on any network.
#[test]
fn the_device_is_down_and_answers_no_arp() {
    in_namespace(|| {
        let _ipvs = loaded(Family::Ipv4, &example(Family::Ipv4));
        let line = run("ip", "-oneline link show dev kube-ipvs0");
        let flags = line.split(['<', '>']).nth(1).unwrap();
        let flags: Vec<&str> = flags.split(',').collect();
        assert!(flags.contains(&"NOARP") && !flags.contains(&"UP"), "{line}");
        assert!(line.contains(" state DOWN "), "{line}");
    });
}

#[test]
fn the_rules() {
    let rules = in_namespace(|| {
        let _ipvs = loaded(Family::Ipv4, &[]);
        rules()
    });
    if let Some(rules) = rules {
        insta::assert_snapshot!(rules);
    }
}

#[test]
fn a_restart_writes_nothing() {
    in_namespace(|| {
        for family in Family::BOTH {
            drop(loaded(family, &example(family)));
        }
        for family in Family::BOTH {
            let mut again = open(family);
            again.apply(&example(family)).unwrap();
            let commit = again.resync().unwrap();
            assert_eq!((commit.elements, commit.objects, commit.bytes), (0, 0, 0), "{family}: {commit:?}");
        }
    });
}

#[test]
fn a_removal_leaves_nothing_behind() {
    in_namespace(|| {
        let mut planes = Family::BOTH.map(|family| loaded(family, &example(family)));
        for plane in &mut planes {
            plane.remove().unwrap();
        }
        assert_eq!(ipvsadm("--list --numeric").lines().count(), 3);
        assert!(!run("ip", "link").contains("kube-ipvs0"));
        assert!(!rules().contains("KUBE"), "{}", rules());
        // The kernel releases sets a moment after the rules that refer to them are removed.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while !run("ipset", "list -n").is_empty() {
            assert!(std::time::Instant::now() < deadline, "{}", run("ipset", "list -n"));
            for plane in &mut planes {
                plane.remove().unwrap();
            }
        }
    });
}
