//! Tests that a data plane whose programs of iptables cannot be run removes what an earlier run left.

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use portolan_engine::Driven;
use portolan_iptables::{Programs, Variant};
use portolan_ipvs::{Ipvs, IpvsOptions};
use portolan_model::{Family, Forwarding, Protocol};
use portolan_testkit::eventually;

use super::example::{cluster_ip, ip, put, settings};
use super::support::{in_namespace, loaded_by, options, run, virtual_servers};

const PATIENCE: Duration = Duration::from_secs(120);

/// Returns programs that tell their version and nothing else: there is no program that saves or restores.
fn unusable(family: Family) -> Programs {
    let name = if family == Family::Ipv4 { "iptables-nft" } else { "ip6tables-nft" };
    let folder = std::env::temp_dir().join(format!("portolan-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(name);
    let path = std::env::var("PATH").unwrap();
    let own = path.split(':').map(|folder| Path::new(folder).join(name)).find(|file| file.exists());
    let _ = symlink(own.unwrap(), &file);
    Programs::named(file.to_str().unwrap().to_owned()).unwrap()
}

fn open(programs: Option<Programs>, family: Family, drain: Duration) -> Driven<Ipvs> {
    let options = IpvsOptions { drain, ..options() };
    Driven::new(settings(family), Ipvs::open_to_remove(programs, settings(family), options).unwrap())
}

/// Starts a UDP flow, which the kernel keeps for five minutes, and returns the number of virtual servers.
fn leave(variant: Variant, family: Family) -> usize {
    let (address, endpoint) = match family {
        Family::Ipv4 => ("172.30.10.9", "192.168.0.99:53"),
        Family::Ipv6 => ("fd00:172::9", "[fd00:192:168::99]:53"),
    };
    let dns = Forwarding { protocol: Protocol::Udp, ..cluster_ip(address, 53, &[endpoint]) };
    loaded_by(variant, family, &[put("dns", "", dns)]);
    let socket = UdpSocket::bind(SocketAddr::new(ip(address), 0)).unwrap();
    socket.send_to(b"ping", (ip(address), 53)).unwrap();
    virtual_servers().len()
}

/// Returns the number of members of the sets that rules refer to.
fn members() -> usize {
    run("ipset", "save").lines().filter(|line| line.starts_with("add KUBE-")).count()
}

/// Retires what was left. Returns the sets at the end.
fn retire(
    family: Family,
    programs: impl Fn() -> Option<Programs>,
    are_removed: impl Fn(&str) -> bool,
) -> String {
    let sets = || run("ipset", "list -n");
    let servers = virtual_servers();
    let mut former = open(programs(), family, Duration::from_secs(3600));
    eventually(PATIENCE, "the rules are removed, and the sets as far as possible", || {
        // Many steps for each look: looks run programs.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            assert!(former.remove_part(None).unwrap(), "a connection is there");
        }
        are_removed(&sets())
    })
    .unwrap();
    for _ in 0..100 {
        assert!(former.remove_part(None).unwrap(), "a connection is there");
    }
    assert_eq!(virtual_servers(), servers);
    assert!(run("ip", "address").contains("kube-ipvs0"));
    // When the time to drain is over.
    let mut former = open(programs(), family, Duration::ZERO);
    eventually(PATIENCE, "the rest is removed", || !former.remove_part(None).unwrap()).unwrap();
    assert_eq!(virtual_servers(), Vec::<String>::new());
    assert!(!run("ip", "link").contains("kube-ipvs0"));
    sets()
}

const FAMILIES: [(Family, &str, &str); 2] = [
    (Family::Ipv4, "PORTOLAN-VIRTUAL-SERVERS\n", "iptables"),
    (Family::Ipv6, "PORTOLAN-6-VIRTUAL-SERVERS\n", "ip6tables"),
];

#[test]
fn everything_is_removed_without_programs() {
    in_namespace(|| {
        for (family, own, name) in FAMILIES {
            let of_others = "-t nat -A POSTROUTING -j KUBE-MARK-MASQ";
            for programs in [Some as fn(Programs) -> Option<Programs>, |_| None] {
                assert!(leave(Variant::Nft, family) > 0);
                let saved = || run(&format!("{name}-nft-save"), "--counters");
                run(&format!("{name}-nft"), of_others);
                assert_eq!(retire(family, || programs(unusable(family)), |sets| sets == own), "");
                let left = saved();
                let lines = left.lines().filter(|line| line.contains("KUBE-")).count();
                assert!(lines == 2 && left.contains(":KUBE-MARK-MASQ"), "{left}");
                run(&format!("{name}-nft"), &of_others.replace("-A", "-D"));
                run(&format!("{name}-nft"), "-t nat -X KUBE-MARK-MASQ");
            }
        }
    });
}

/// Only root may read and write these rules. The sets that they refer to are waited for, which takes long, so this tests one family.
#[test]
fn rules_of_the_older_iptables_stay_and_match_nothing() {
    in_namespace(|| {
        let (family, own, name) = FAMILIES[1];
        assert!(leave(Variant::Legacy, family) > 0);
        let saved = || run(&format!("{name}-legacy-save"), "-t nat");
        let rules = |text: String| text.lines().filter(|line| line.starts_with("-A")).count();
        let before = rules(saved());
        assert!(members() > 0);
        let sets = retire(family, || None, |sets| sets.contains(own) && members() == 0);
        assert!(sets.contains("KUBE-6-CLUSTER-IP") && !sets.contains(own), "{sets}");
        assert_eq!((rules(saved()), members()), (before, 0));
    });
}
