//! Kernel settings and interfaces.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};

use portolan_doctor::command::DoctorOptions;
use portolan_doctor::fix::FixState;
use portolan_doctor::{Code, Severity};

use super::support::{codes, fix, is_found_and_mended, look, node, only, set, setting, shell, with};

#[test]
fn a_node_without_faults_has_no_findings() {
    assert_eq!(codes(&look(&node("healthy"))), []);
}

const FORWARD: &str = "net/ipv4/ip_forward";
const BRIDGE: &str = "net/bridge/bridge-nf-call-iptables";
const LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";

#[test]
fn forwarding_that_is_off_is_switched_on_by_a_fix_only() {
    let node = node("forwarding");
    set(&node, FORWARD, "0");
    let found = look(&node);
    assert_eq!(codes(&found), [(Code::ForwardingOff, Severity::Error)]);
    assert_eq!(found.status(), 1);
    let dry = with(&node, &DoctorOptions { fix: true, dry_run: true, ..DoctorOptions::default() });
    assert_eq!(dry.fixed.iter().map(|fixed| fixed.outcome).collect::<Vec<_>>(), [FixState::WouldDo]);
    assert_eq!(setting(&node, FORWARD), "0");
    let fixed = fix(&node);
    assert_eq!(fixed.fixed.iter().map(|fixed| fixed.outcome).collect::<Vec<_>>(), [FixState::Done]);
    assert_eq!((codes(&fixed), fixed.status()), (Vec::new(), 0));
    assert_eq!(setting(&node, FORWARD), "1");
    set(&node, FORWARD, "0");
    is_found_and_mended(&node, Code::ForwardingOff, Severity::Error);
}

#[test]
fn one_interface_forwards_nothing() {
    let node = node("arriving");
    set(&node, "net/ipv4/conf/eth0/forwarding", "0");
    is_found_and_mended(&node, Code::ForwardingOff, Severity::Warning);
    assert_eq!(setting(&node, "net/ipv4/conf/eth0/forwarding"), "1");
}

#[test]
fn strict_reverse_path_filters() {
    let node = node("reverse");
    set(&node, "net/ipv4/conf/veth1/rp_filter", "1");
    assert_eq!(codes(&look(&node)), [(Code::ReversePathStrict, Severity::Note)]);
    set(&node, "net/ipv4/conf/veth1/rp_filter", "0");
    shell(
        &node,
        "ip link add eth1 type bridge
         ip link set eth1 up
         ip addr add 198.51.100.1/24 dev eth1
         ip route add default via 198.51.100.254 dev eth1 metric 100",
    );
    set(&node, "net/ipv4/conf/eth1/rp_filter", "1");
    is_found_and_mended(&node, Code::ReversePathStrict, Severity::Warning);
}

#[test]
fn a_bridge_of_pods_whose_packets_pass_no_rules() {
    let node = node("bridge");
    shell(&node, "ip link add cni0 type bridge; ip link set veth1 master cni0; ip link set cni0 up");
    set(&node, "net/ipv4/conf/cni0/rp_filter", "0");
    set(&node, BRIDGE, "0");
    let report = look(&node);
    assert_eq!(only(&report).code, Code::BridgeBypassesRules);
    if only(&report).fix.is_none() {
        // br_netfilter is not loaded on this machine, and its settings do not exist.
        assert!(only(&report).mend.starts_with("modprobe br_netfilter"), "{}", only(&report).mend);
        return;
    }
    assert_eq!(codes(&fix(&node)), []);
    assert_eq!(setting(&node, BRIDGE), "1");
    set(&node, BRIDGE, "0");
    is_found_and_mended(&node, Code::BridgeBypassesRules, Severity::Warning);
    assert_eq!(setting(&node, BRIDGE), "1");
}

/// A connection that is older than the first rule for connection tracking is not known to it.
#[test]
fn packets_that_belong_to_no_connection() {
    let node = node("late");
    let connect = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        TcpStream::connect(listener.local_addr().expect("an address")).map(|stream| (listener, stream))
    };
    let (_listener, mut stream) = node.run(connect).expect("the namespace").expect("a connection");
    shell(
        &node,
        "nft add table ip tracked
         nft add chain ip tracked out '{ type filter hook output priority 0; }'
         nft add rule ip tracked out ct state new counter",
    );
    // Otherwise connections that are not known are taken over.
    set(&node, "net/netfilter/nf_conntrack_tcp_loose", "0");
    set(&node, LIBERAL, "0");
    assert_eq!(codes(&look(&node)), []);
    stream.write_all(b"late").expect("room in the socket's buffer");
    let report = look(&node);
    let [finding] = report.findings.as_slice() else { panic!("{:#?}", report.findings) };
    assert_eq!((finding.code, finding.severity), (Code::TcpWindowsStrict, Severity::Note));
    let (_, mend) = finding.mend.split_once(", or ").expect("a command after the setting");
    shell(&node, mend);
    assert_eq!(codes(&look(&node)), []);
}

/// The kernel's file of a list takes lines with clients.
#[test]
fn endpoints_that_forget_clients() {
    let node = node("affinity");
    shell(
        &node,
        "iptables-nft -t nat -N CLIENTS; iptables-nft -t nat -A CLIENTS -m recent --name KUBE-SEP-A --set",
    );
    let limit =
        std::fs::read_to_string("/sys/module/xt_recent/parameters/ip_list_tot").expect("a loaded module");
    let limit: u16 = limit.trim().parse().expect("a number");
    let add = |number: u16| {
        let client = std::net::Ipv4Addr::from(0x0a00_0000 + u32::from(number));
        let write = || std::fs::write("/proc/thread-self/net/xt_recent/KUBE-SEP-A", format!("+{client}\n"));
        node.run(write).expect("the namespace").expect("a list");
    };
    (1..limit).for_each(add);
    assert_eq!(codes(&look(&node)), []);
    add(limit);
    let report = look(&node);
    assert_eq!(codes(&report), [(Code::AffinityListFull, Severity::Warning)]);
    let (command, _) = only(&report).mend.split_once(", then start the node again").expect("a command");
    // The limit is read when the module is loaded. The folder of this machine stays as it is.
    let written =
        format!("mount -t tmpfs none /etc/modprobe.d\n{command}\ncat /etc/modprobe.d/xt_recent.conf");
    let written = node.output("unshare", &["--mount", "sh", "-ec", &written]).expect("a file");
    assert_eq!(written, format!("options xt_recent ip_list_tot={}\n", 10 * u32::from(limit)));
}

#[test]
fn node_ports_among_the_ports_of_the_node() {
    let node = node("ports");
    set(&node, "net/ipv4/ip_local_port_range", "1024 65535");
    set(&node, "net/ipv4/ip_local_reserved_ports", "8080");
    assert_eq!(codes(&look(&node)), [(Code::NodePortsNotReserved, Severity::Warning)]);
    assert_eq!(codes(&fix(&node)), []);
    assert_eq!(setting(&node, "net/ipv4/ip_local_reserved_ports"), "8080,30000-32767");
}

#[test]
fn pods_with_larger_packets_than_the_uplink() {
    let node = node("mtu");
    shell(&node, "ip link set eth0 mtu 1400");
    let report = look(&node);
    let finding = only(&report);
    assert_eq!((finding.code, finding.severity), (Code::MtuMismatch, Severity::Warning));
    let mend = "set the MTU of pods to 1400 in the network plug-in";
    assert!(finding.mend.starts_with(mend), "{}", finding.mend);
    // As the plug-in does, at both ends.
    shell(&node, "ip link set veth1 mtu 1400; ip link set pod1 mtu 1400");
    assert_eq!(codes(&look(&node)), []);
}
