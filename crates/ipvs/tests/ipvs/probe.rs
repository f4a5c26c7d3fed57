//! Tests that a probe reports what the kernel lacks, and leaves nothing behind.

use portolan_iptables::{Programs, Variant};
use portolan_ipvs::{available, try_rules};
use portolan_model::{Family, IpvsScheduler};
use portolan_sock::namespace::in_new_network_namespace;

use super::load::LOCK;
use super::support::{in_namespace, ipvsadm, rules, run};

#[test]
fn a_kernel_without_ipvs_is_recognized() {
    let has_it = in_namespace(|| ()).is_some();
    let (reported, device) = in_new_network_namespace(|| {
        let reported = available("no-such", &Family::BOTH).unwrap_err().to_string();
        (reported, run("ip", "link").contains("kube-ipvs0"))
    })
    .unwrap();
    assert!(!device, "the device is gone again");
    assert!(reported.contains("no scheduler is called `no-such`; write one of rr, wrr"), "{reported}");
    assert_eq!(reported.contains("IPVS is missing (module ip_vs"), !has_it, "{reported}");
}

/// Also runs in guests without one of the modules.
#[test]
fn the_rules_are_tried_before_the_mode_is_chosen() {
    let without = std::env::var("PORTOLAN_TEST_WITHOUT").ok();
    in_namespace(|| {
        for (family, variant) in
            [(Family::Ipv4, Variant::Nft), (Family::Ipv6, Variant::Nft), (Family::Ipv4, Variant::Legacy)]
        {
            let programs = Programs::of(family, variant).unwrap().with_lock(LOCK);
            let missing = try_rules(&programs, family).unwrap();
            assert_eq!(missing.is_some(), without.is_some(), "{family} {variant:?}: {missing:?}");
            let is_named = |module: &String| missing.as_ref().is_some_and(|text| text.contains(module));
            assert!(without.iter().all(is_named), "{missing:?}");
            assert_eq!(run("ipset", "list -n"), "");
            assert!(!rules().contains("TRIAL"), "{}", rules());
        }
    });
}

#[test]
fn a_probe_leaves_nothing_behind() {
    in_namespace(|| {
        run("ipvsadm", "--add-service --tcp-service 198.51.100.0:20000 --scheduler lc");
        assert_eq!(available("", &Family::BOTH).unwrap(), IpvsScheduler::Rr);
        assert_eq!(available("lc", &[Family::Ipv4]).unwrap(), IpvsScheduler::Lc);
        assert_eq!(ipvsadm("--save --numeric").trim_end(), "-A -t 198.51.100.0:20000 -s lc");
        assert!(!run("ip", "link").contains("kube-ipvs0"));
    });
}
