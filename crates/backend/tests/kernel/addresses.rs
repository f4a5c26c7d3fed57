//! Changes of the node's addresses are reported, except for those that the IPVS mode makes.

use portolan_backend::addresses::Addresses;

use super::priority::run;
use super::support::in_namespace;

#[test]
fn addresses_of_the_ipvs_device_are_no_change() {
    in_namespace(|| {
        run("link add other type veth peer name peer");
        let mut addresses = Addresses::open().unwrap();
        // The device is created after that, as when the mode changes. It is recognized by its name; here it is no
        // dummy device, because not every kernel has those.
        run("link add kube-ipvs0 type veth peer name unused");
        run("addr add 10.96.0.1/32 dev kube-ipvs0");
        assert!(!addresses.changed().unwrap(), "the first");
        for last in 2..100 {
            run(&format!("addr add 10.96.0.{last}/32 dev kube-ipvs0"));
        }
        run("addr add fd00:10:96::1/128 dev kube-ipvs0");
        run("addr del 10.96.0.1/32 dev kube-ipvs0");
        assert!(!addresses.changed().unwrap());
        run("addr add 192.0.2.1/32 dev other");
        assert!(addresses.changed().unwrap());
        assert!(!addresses.list_own().unwrap().contains(&"10.96.0.2".parse().unwrap()));
        run("link del kube-ipvs0");
        assert!(!addresses.changed().unwrap(), "all of its addresses went");
        run("addr del 192.0.2.1/32 dev other");
        assert!(addresses.changed().unwrap());
    });
}
