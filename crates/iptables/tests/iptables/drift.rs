//! Tests that changes of our rules by other programs are noticed: by the kernel's notification, or by a check.

use portolan_engine::drift::DriftWatch;
use portolan_iptables::Variant;
use portolan_model::{Change, Family};

use super::example::{ipv4, ipv6, settings};
use super::kernel::{VARIANTS, apply, in_namespace};
use super::load::{driven, programs, programs_of};

/// Input for iptables-restore: changes by another program of our chains and of the jumps to them.
const HARM: [&str; 9] = [
    "*nat\n:KUBE-SVC-XRY76EGRC3BSCIIJ - [0:0]\nCOMMIT\n",
    "*nat\n-I KUBE-SEP-6IU6CSKRWDLZL5LZ -j RETURN\nCOMMIT\n",
    "*filter\n:KUBE-SERVICES - [0:0]\nCOMMIT\n",
    "*filter\n-F KUBE-FIREWALL\nCOMMIT\n",
    "*nat\n-D POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\nCOMMIT\n",
    "*filter\n-F FORWARD\nCOMMIT\n",
    "*mangle\n-X KUBE-PROXY-CANARY\nCOMMIT\n",
    "*nat\n-F\n-X\nCOMMIT\n",
    "*nat\n-F KUBE-MARK-MASQ\nCOMMIT\n",
];

#[test]
fn the_kernel_tells_what_others_do_and_not_what_we_do() {
    for family in Family::BOTH {
        in_namespace(|| {
            let programs = |family| programs_of(family, Variant::Nft);
            let mut data_plane = driven(programs(family), settings(family));
            let mut watch = DriftWatch::open(vec![data_plane.own().unwrap()]).unwrap();
            let changes = if family == Family::Ipv4 { ipv4() } else { ipv6() };
            data_plane.apply(&changes).unwrap();
            data_plane.resync().unwrap();
            assert_eq!(watch.drifted().unwrap(), [], "our own load");
            let gone = Change { new: None, ..changes[0].clone() };
            data_plane.apply(&[gone]).unwrap();
            data_plane.apply(&changes).unwrap();
            assert_eq!(watch.drifted().unwrap(), [], "our own changes");
            let theirs =
                "*nat\n:MINE - [0:0]\n-A PREROUTING -j MINE\n-D PREROUTING -j MINE\n-X MINE\nCOMMIT\n";
            apply(&programs(family), theirs);
            assert_eq!(watch.drifted().unwrap(), [], "what is theirs");
            let other = Family::BOTH.into_iter().find(|other| *other != family).unwrap();
            apply(&programs(other), "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
            assert_eq!(watch.drifted().unwrap(), [], "the other family's");
            let of_ipv4_only = ["KUBE-SVC-XRY", "KUBE-SEP-6IU", "KUBE-FIREWALL"];
            for harm in HARM {
                if family == Family::Ipv6 && of_ipv4_only.iter().any(|chain| harm.contains(chain)) {
                    continue;
                }
                apply(&programs(family), harm);
                assert_eq!(watch.drifted().unwrap(), [family], "{harm}");
                let commit = data_plane.resync().unwrap();
                assert_ne!(commit.elements + commit.objects, 0, "{harm}");
                assert_eq!(watch.drifted().unwrap(), [], "mending is no drift: {harm}");
            }
        });
    }
}

/// In the older iptables, nothing notifies of changes of single Services' rules.
#[test]
fn a_flush_of_any_shared_chain_is_noticed_by_a_check() {
    for variant in VARIANTS {
        in_namespace(|| {
            let family = Family::Ipv4;
            let mut data_plane = driven(programs(variant), settings(family));
            data_plane.apply(&ipv4()).unwrap();
            data_plane.resync().unwrap();
            assert!(data_plane.is_intact().unwrap());
            let chains = [
                ("filter", "KUBE-SERVICES"),
                ("filter", "KUBE-FORWARD"),
                ("filter", "KUBE-PROXY-FIREWALL"),
                ("filter", "KUBE-FIREWALL"),
                ("nat", "KUBE-SERVICES"),
                ("nat", "KUBE-NODEPORTS"),
                ("nat", "KUBE-POSTROUTING"),
                ("nat", "KUBE-MARK-MASQ"),
            ];
            for (table, chain) in chains {
                apply(&programs(variant), &format!("*{table}\n-F {chain}\nCOMMIT\n"));
                assert!(!data_plane.is_intact().unwrap(), "{table} {chain}");
                data_plane.resync().unwrap();
                assert!(data_plane.is_intact().unwrap(), "{table} {chain}");
            }
        });
    }
}
