//! Tests which objects of our IPVS mode a clean-up with `--only-ours` removes, depending on the owner of the rules.

use portolan_leftovers::{remove_own, runs_ipvs, unserved};
use portolan_model::Family;

use super::support::{addresses, example, in_namespace, loaded, rules, run, sets, virtual_servers};

fn flush(program: &str) {
    for table in ["mangle", "filter", "nat"] {
        for operation in ["--flush", "--delete-chain"] {
            run(program, &format!("--table {table} {operation}"));
        }
    }
}

#[test]
fn while_our_rules_are_active_no_kube_proxy_has_taken_over() {
    in_namespace(|| {
        assert_eq!((unserved().unwrap(), runs_ipvs().unwrap()), (Vec::new(), false));
        drop(loaded(Family::Ipv4, &example(Family::Ipv4)));
        assert_eq!((unserved().unwrap(), runs_ipvs().unwrap()), (vec![Family::Ipv4], false));
        drop(loaded(Family::Ipv6, &example(Family::Ipv6)));
        assert_eq!(unserved().unwrap(), Family::BOTH);
    });
}

#[test]
fn objects_that_kube_proxy_uses_in_the_older_iptables_stay() {
    in_namespace(|| {
        drop(loaded(Family::Ipv4, &example(Family::Ipv4)));
        flush("iptables-nft");
        for line in [
            "--table nat --new-chain KUBE-SERVICES",
            "--table nat --new-chain KUBE-NODE-PORT",
            "--table nat --append KUBE-SERVICES --match addrtype --dst-type LOCAL --jump KUBE-NODE-PORT",
        ] {
            run("iptables-legacy", line);
        }
        assert_eq!((unserved().unwrap(), runs_ipvs().unwrap()), (Vec::new(), true));
        let before = (virtual_servers(), addresses(), run("iptables-legacy-save", "--table nat"));
        let (removed, errors) = remove_own(&[]);
        assert!(
            errors.is_empty() && removed.sets > 0 && removed.virtual_servers == 0,
            "{removed:?} {errors:?}"
        );
        let after = (virtual_servers(), addresses(), run("iptables-legacy-save", "--table nat"));
        let without_times = |saved: &str| saved.lines().filter(|line| line.starts_with(['-', ':'])).count();
        assert_eq!((&after.0, &after.1), (&before.0, &before.1));
        assert_eq!(without_times(&after.2), without_times(&before.2));
        assert!(!run("ipset", "list -n").contains("PORTOLAN-"));
        assert!(sets().iter().any(|line| line.starts_with("KUBE-CLUSTER-IP")), "{:?}", sets());
        // Without rules, nothing shows that the rest was ours.
        flush("iptables-legacy");
        let (removed, errors) = remove_own(&[]);
        assert!(removed.is_empty() && errors.is_empty(), "{removed:?} {errors:?}");
        assert_eq!(virtual_servers(), before.0);
    });
}

#[test]
fn with_the_table_of_kube_proxy_all_of_ours_is_removed() {
    in_namespace(|| {
        run("ipvsadm", "--add-service --tcp-service 203.0.113.1:80 --scheduler wlc");
        let theirs = virtual_servers();
        for family in Family::BOTH {
            drop(loaded(family, &example(family)));
        }
        run("nft", "add table ip kube-proxy");
        assert_eq!(unserved().unwrap(), [Family::Ipv6]);
        run("nft", "add table ip6 kube-proxy");
        assert_eq!(unserved().unwrap(), []);
        let (removed, errors) = remove_own(&[]);
        assert!(errors.is_empty(), "{errors:?}");
        assert!(removed.virtual_servers > 0 && removed.devices == 1 && removed.sets > 0, "{removed:?}");
        assert_eq!(virtual_servers(), theirs);
        assert_eq!(run("ipset", "list -n"), "");
        assert!(!rules().contains("KUBE-"), "{}", rules());
        assert!(!run("ip", "link").contains("kube-ipvs0"));
        assert!(!run("ip6tables-nft-save", "--table nat").contains("KUBE-"));
    });
}
