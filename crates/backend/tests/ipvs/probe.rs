//! What the kernel lacks is told, and asking leaves nothing behind.

use portolan_backend::ipvs::available;
use portolan_model::{Family, IpvsScheduler};
use portolan_sock::namespace::in_new_network_namespace;

use super::support::{in_namespace, run};

#[test]
fn a_kernel_without_ipvs_is_told_from_one_that_has_it() {
    let has_it = in_namespace(|| ()).is_some();
    let (told, device) = in_new_network_namespace(|| {
        let told = available("no-such", &Family::BOTH).unwrap_err().to_string();
        (told, run("ip", "link").contains("kube-ipvs0"))
    })
    .unwrap();
    assert!(!device, "the device is gone again");
    assert!(told.contains("no scheduler is called `no-such`; write one of rr, wrr"), "{told}");
    assert_eq!(told.contains("IPVS is missing (module ip_vs"), !has_it, "{told}");
}

#[test]
fn asking_leaves_nothing() {
    in_namespace(|| {
        run("ipvsadm", "--add-service --tcp-service 198.51.100.0:20000 --scheduler lc");
        assert_eq!(available("", &Family::BOTH).unwrap(), IpvsScheduler::Rr);
        assert_eq!(available("lc", &[Family::Ipv4]).unwrap(), IpvsScheduler::Lc);
        assert_eq!(run("ipvsadm", "--save --numeric").trim_end(), "-A -t 198.51.100.0:20000 -s lc");
        assert!(!run("ip", "link").contains("kube-ipvs0"));
    });
}
