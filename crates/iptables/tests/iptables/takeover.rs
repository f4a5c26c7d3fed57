//! Tests the takeover of kube-proxy's rules under load.

use portolan_model::Family;

use super::example::{cluster_ip, put};
use super::kernel::{VARIANTS, apply, in_namespace, save, unordered};
use super::load::{assert_lossless, data_plane, in_use, programs, start, world};

/// The tables of a kube-proxy that serves `demo/web` and a Service that is gone, with kubelet's chains: without
/// counters for node ports on loopback, and with the Services in another order.
pub(crate) const KUBE_PROXY: &str = r#"*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.99/32 -p tcp -m comment --comment "demo/old:metrics has no endpoints" -m tcp --dport 9 -j REJECT
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SEP-4R67FX26EEAQJQLI - [0:0]
:KUBE-SEP-RG4IJX7XPUXV7D7S - [0:0]
:KUBE-SEP-NOSZTYP2FVG5BARL - [0:0]
:KUBE-SEP-AYN4ILCQ4OHYDW4M - [0:0]
:KUBE-SEP-4BZWMAQ7OSZ7FCBU - [0:0]
:KUBE-SEP-OKBCHLFN6ZJ4XFCO - [0:0]
:KUBE-SEP-YOMRCOALWHLQ33K5 - [0:0]
:KUBE-SVC-XRY76EGRC3BSCIIJ - [0:0]
:KUBE-SVC-S4P2ZY2RGUQ3VBJP - [0:0]
:KUBE-SVC-IHSDW6B34HFOY7TM - [0:0]
:KUBE-EXT-IHSDW6B34HFOY7TM - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.96.0.99/32 -p tcp -m comment --comment "demo/old:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-IHSDW6B34HFOY7TM
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "demo/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-XRY76EGRC3BSCIIJ
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "demo/web:dns cluster IP" -m udp --dport 80 -j KUBE-SVC-S4P2ZY2RGUQ3VBJP
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m comment --comment "demo/old:http" -m tcp --dport 30099 -j KUBE-EXT-IHSDW6B34HFOY7TM
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SVC-XRY76EGRC3BSCIIJ ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m comment --comment "demo/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment "demo/web:http -> 10.244.1.11:8080" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-4R67FX26EEAQJQLI
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment "demo/web:http -> 10.244.1.12:8080" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-RG4IJX7XPUXV7D7S
-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment "demo/web:http -> 10.244.2.11:8080" -j KUBE-SEP-NOSZTYP2FVG5BARL
-A KUBE-SEP-4R67FX26EEAQJQLI -s 10.244.1.11/32 -m comment --comment "demo/web:http" -j KUBE-MARK-MASQ
-A KUBE-SEP-4R67FX26EEAQJQLI -p tcp -m comment --comment "demo/web:http" -m tcp -j DNAT --to-destination 10.244.1.11:8080
-A KUBE-SEP-RG4IJX7XPUXV7D7S -s 10.244.1.12/32 -m comment --comment "demo/web:http" -j KUBE-MARK-MASQ
-A KUBE-SEP-RG4IJX7XPUXV7D7S -p tcp -m comment --comment "demo/web:http" -m tcp -j DNAT --to-destination 10.244.1.12:8080
-A KUBE-SEP-NOSZTYP2FVG5BARL -s 10.244.2.11/32 -m comment --comment "demo/web:http" -j KUBE-MARK-MASQ
-A KUBE-SEP-NOSZTYP2FVG5BARL -p tcp -m comment --comment "demo/web:http" -m tcp -j DNAT --to-destination 10.244.2.11:8080
-A KUBE-SVC-S4P2ZY2RGUQ3VBJP ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p udp -m comment --comment "demo/web:dns cluster IP" -m udp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-S4P2ZY2RGUQ3VBJP -m comment --comment "demo/web:dns -> 10.244.1.11:8080" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-AYN4ILCQ4OHYDW4M
-A KUBE-SVC-S4P2ZY2RGUQ3VBJP -m comment --comment "demo/web:dns -> 10.244.1.12:8080" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-4BZWMAQ7OSZ7FCBU
-A KUBE-SVC-S4P2ZY2RGUQ3VBJP -m comment --comment "demo/web:dns -> 10.244.2.11:8080" -j KUBE-SEP-OKBCHLFN6ZJ4XFCO
-A KUBE-SEP-AYN4ILCQ4OHYDW4M -s 10.244.1.11/32 -m comment --comment "demo/web:dns" -j KUBE-MARK-MASQ
-A KUBE-SEP-AYN4ILCQ4OHYDW4M -p udp -m comment --comment "demo/web:dns" -m udp -j DNAT --to-destination 10.244.1.11:8080
-A KUBE-SEP-4BZWMAQ7OSZ7FCBU -s 10.244.1.12/32 -m comment --comment "demo/web:dns" -j KUBE-MARK-MASQ
-A KUBE-SEP-4BZWMAQ7OSZ7FCBU -p udp -m comment --comment "demo/web:dns" -m udp -j DNAT --to-destination 10.244.1.12:8080
-A KUBE-SEP-OKBCHLFN6ZJ4XFCO -s 10.244.2.11/32 -m comment --comment "demo/web:dns" -j KUBE-MARK-MASQ
-A KUBE-SEP-OKBCHLFN6ZJ4XFCO -p udp -m comment --comment "demo/web:dns" -m udp -j DNAT --to-destination 10.244.2.11:8080
-A KUBE-SVC-IHSDW6B34HFOY7TM -m comment --comment "demo/old:http -> 10.244.1.11:8080" -j KUBE-SEP-YOMRCOALWHLQ33K5
-A KUBE-EXT-IHSDW6B34HFOY7TM -m comment --comment "masquerade traffic for demo/old:http external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-IHSDW6B34HFOY7TM -j KUBE-SVC-IHSDW6B34HFOY7TM
-A KUBE-SEP-YOMRCOALWHLQ33K5 -s 10.244.1.11/32 -m comment --comment "demo/old:http" -j KUBE-MARK-MASQ
-A KUBE-SEP-YOMRCOALWHLQ33K5 -p tcp -m comment --comment "demo/old:http" -m tcp -j DNAT --to-destination 10.244.1.11:8080
COMMIT
"#;

#[test]
fn what_kube_proxy_wrote_is_taken_over_under_load_and_nothing_is_lost() {
    for variant in VARIANTS {
        let world = world();
        let node = world.node().namespace();
        node.run(|| apply(&programs(variant), KUBE_PROXY)).unwrap();
        let load = start(&world);
        let (before, after) = node
            .run(|| {
                let before = save(Family::Ipv4, variant);
                let mut data_plane = data_plane(programs(variant));
                let new = put("new", "http", cluster_ip("10.96.0.11", 80, &["10.244.1.11:8080"]));
                data_plane.apply(&[in_use(), vec![new]].concat()).unwrap();
                data_plane.resync().unwrap();
                assert_eq!(data_plane.resync().unwrap().elements, 0, "a second look finds all of it there");
                (before, save(Family::Ipv4, variant))
            })
            .unwrap();
        assert_lossless(load);

        let (before, after) = (unordered(&before), unordered(&after));
        let gone: Vec<&str> =
            before.keys().filter(|key| !after.contains_key(*key)).map(|(_, name)| *name).collect();
        let old = ["KUBE-EXT-IHSDW6B34HFOY7TM", "KUBE-SEP-YOMRCOALWHLQ33K5", "KUBE-SVC-IHSDW6B34HFOY7TM"];
        assert_eq!(gone, old, "{variant:?}");
        let came: Vec<&str> =
            after.keys().filter(|key| !before.contains_key(*key)).map(|(_, name)| *name).collect();
        assert_eq!(came.len(), 2, "those of demo/new: {came:?}");
        let changed: Vec<&str> = before
            .iter()
            .filter(|(key, rules)| after.get(*key).is_some_and(|after| after != *rules))
            .map(|((_, name), _)| *name)
            .collect();
        // Whether KUBE-FORWARD counts invalid packets depends on the kernel.
        let changed = changed.into_iter().filter(|name| *name != "KUBE-FORWARD").collect::<Vec<_>>();
        let expected = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-SERVICES"];
        assert_eq!(changed, expected, "of the filter table, then of the nat table, {variant:?}");
    }
}

/// kube-proxy refuses TCP with an ICMP error. After the takeover a second load does not write the rule again, and a
/// new endpoint removes it by its new text, without a rewrite of the chain.
#[test]
fn a_refusal_of_kube_proxy_becomes_a_reset() {
    for variant in VARIANTS {
        in_namespace(|| {
            apply(&programs(variant), KUBE_PROXY);
            let refusals = || {
                let saved = save(Family::Ipv4, variant);
                let lines = saved.lines().filter(|line| line.contains("REJECT")).map(str::to_owned);
                lines.collect::<Vec<_>>()
            };
            assert_eq!(refusals().len(), 1, "{variant:?}");
            assert!(refusals()[0].ends_with("--reject-with icmp-port-unreachable"), "{:?}", refusals());
            let old = |places: &[&str]| put("old", "metrics", cluster_ip("10.96.0.99", 9, places));
            let mut data_plane = data_plane(programs(variant));
            data_plane.apply(&[in_use(), vec![old(&[])]].concat()).unwrap();
            data_plane.resync().unwrap();
            assert_eq!(
                refusals(),
                [
                    "-A KUBE-SERVICES -d 10.96.0.99/32 -p tcp -m comment --comment \"demo/old:metrics has no endpoints\" \
                     -m tcp --dport 9 -j REJECT --reject-with tcp-reset"
                ],
                "{variant:?}"
            );
            assert_eq!(data_plane.resync().unwrap().elements, 0, "{variant:?}: a second look finds it there");
            data_plane.apply(&[old(&["10.244.1.11:9"])]).unwrap();
            assert_eq!(refusals(), [""; 0], "{variant:?}");
            data_plane.apply(&[old(&[])]).unwrap();
            assert_eq!(refusals().len(), 1, "{variant:?}");
            // A kube-proxy that comes back writes the whole chain.
            apply(&programs(variant), KUBE_PROXY);
            assert!(refusals()[0].ends_with("--reject-with icmp-port-unreachable"), "{:?}", refusals());
            assert_eq!(refusals().len(), 1, "{variant:?}");
        });
    }
}
