//! A namespace that has all addresses itself: all traffic goes over loopback and gets no reply.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use portolan_model::catalog::UdpService;
use portolan_model::{Family, Frontend, Protocol, ServicePortName};
use portolan_sock::Socket;
use portolan_testkit::{Namespace, eventually};
use portolan_wire::Batch;
use portolan_wire::conntrack::{self, ConntrackEvent, Filter, Flow};
use portolan_wire::nfnetlink;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

/// The addresses of one family.
pub(crate) struct Plan {
    pub(crate) family: Family,
    /// The node's address.
    pub(crate) node: IpAddr,
    pub(crate) loopback: IpAddr,
    /// The cluster IP of a checked Service, and that of a Service that is not checked.
    pub(crate) frontend: IpAddr,
    pub(crate) other_frontend: IpAddr,
    /// A serving endpoint, and a former endpoint.
    pub(crate) serving: IpAddr,
    pub(crate) gone: IpAddr,
    /// The address of a server outside the cluster.
    pub(crate) outside: IpAddr,
    set_up: &'static str,
}

pub(crate) static V4: Plan = Plan {
    family: Family::Ipv4,
    node: v4(192, 0, 2, 1),
    loopback: v4(127, 0, 0, 1),
    frontend: v4(10, 96, 0, 10),
    other_frontend: v4(10, 96, 0, 11),
    serving: v4(10, 1, 0, 4),
    gone: v4(10, 1, 0, 5),
    outside: v4(198, 51, 100, 7),
    set_up: "link set lo up\n\
        addr add 192.0.2.1/24 dev lo\n\
        route add local 10.0.0.0/8 dev lo\n\
        route add local 198.51.100.0/24 dev lo\n",
};

pub(crate) static V6: Plan = Plan {
    family: Family::Ipv6,
    node: v6(0x2001, 1, 1),
    loopback: IpAddr::V6(Ipv6Addr::LOCALHOST),
    frontend: v6(0xfd00, 96, 10),
    other_frontend: v6(0xfd00, 96, 11),
    serving: v6(0xfd00, 1, 4),
    gone: v6(0xfd00, 1, 5),
    outside: v6(0x2001, 2, 7),
    set_up: "link set lo up\n\
        addr add 2001:db8:1::1/64 dev lo nodad\n\
        route add local fd00:db8::/32 dev lo\n\
        route add local 2001:db8:2::/64 dev lo\n",
};

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// Returns `first:db8:subnet::host`.
const fn v6(first: u16, subnet: u16, host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(first, 0xdb8, subnet, 0, 0, 0, 0, host))
}

/// Rules that track connections. The chain `translate` is empty at first.
const RULES: &str = "table inet test {
    chain translate {
        type nat hook output priority -100
    }
    chain track {
        type filter hook output priority 0
        ct state new counter
    }
}
";

/// Whether a flow that starts again gets the id that it had before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    Same,
    Other,
}

/// The namespace of a test.
pub(crate) struct Net {
    pub(crate) namespace: Namespace,
    pub(crate) plan: &'static Plan,
}

impl Net {
    pub(crate) fn new(plan: &'static Plan) -> Self {
        let namespace = Namespace::new("conntrack").expect("this test needs root");
        namespace.ip(plan.set_up).unwrap();
        let net = Self { namespace, plan };
        net.await_own_address();
        net.nft(RULES);
        // A flow without a reply would end after 30 s, and a test may take longer on a busy machine.
        let timeout = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout";
        net.namespace.run(|| fs::write(timeout, "600")).unwrap().unwrap();
        net
    }

    /// Waits for the local route of the node's address. The kernel adds that of an IPv6 address in the background
    /// (`addrconf_dad_work`), and drops datagrams until then, without an error for the sender.
    fn await_own_address(&self) {
        let node = self.plan.node.to_string();
        eventually(Duration::from_secs(60), "the local route of the node's address", || {
            let route = self.namespace.output("ip", &["route", "get", &node]);
            route.is_ok_and(|route| route.starts_with("local "))
        })
        .unwrap();
    }

    /// Translates flows to one address and port to another, from now on. Removes an earlier translation.
    pub(crate) fn translate(&self, (from, port): (IpAddr, u16), (to, to_port): (IpAddr, u16)) {
        let rule = match self.plan.family {
            Family::Ipv4 => format!("ip daddr {from} udp dport {port} dnat ip to {to}:{to_port}"),
            Family::Ipv6 => format!("ip6 daddr {from} udp dport {port} dnat ip6 to [{to}]:{to_port}"),
        };
        self.nft(&format!("flush chain inet test translate\nadd rule inet test translate {rule}\n"));
    }

    /// Sends one datagram.
    pub(crate) fn send(&self, source_port: u16, to: IpAddr, port: u16) {
        send((self.plan.node, source_port), to, port);
    }

    /// Starts this many flows, but at most three quarters of what the kernel's table can hold. Returns the number.
    #[allow(clippy::unused_self, reason = "the caller is inside the namespace")]
    pub(crate) fn send_many(&self, wanted: usize, to: IpAddr, port: u16) -> usize {
        let max: usize =
            fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap().trim().parse().unwrap();
        let count = wanted.min(max / 4 * 3);
        let hosts = (0_u8..).map(|host| v4(10, 2, 0, host));
        let sources = hosts.flat_map(|host| (10_000_u16..60_000).map(move |port| (host, port)));
        sources.take(count).for_each(|source| send(source, to, port));
        count
    }

    /// Adds a flow of another protocol, or a UDP flow of another zone, to the kernel's table.
    pub(crate) fn insert(&self, protocol: &str, source_port: u16, to: IpAddr, port: u16) {
        let (source, destination) = (self.plan.node.to_string(), to.to_string());
        let (source_port, port) = (source_port.to_string(), port.to_string());
        let more: &[&str] = match protocol {
            "tcp" => &["--state", "SYN_SENT"],
            "sctp" => &["--state", "COOKIE_WAIT", "--orig-vtag", "1", "--reply-vtag", "1"],
            _ => &["--zone", "7"],
        };
        let addresses = ["-I", "-p", protocol, "-s", &source, "-d", &destination];
        let rest = ["--sport", &source_port, "--dport", &port, "-t", "100"];
        self.namespace.output("conntrack", &[&addresses[..], &rest[..], more].concat()).unwrap();
    }

    /// Ends a flow and starts it again, some times, until the kernel gives it the same id, or another one, as `number` says.
    /// Returns false if it does not. The kernel derives the id from the original tuple and the flow's address in memory.
    pub(crate) fn begin_anew(&self, flow: &Flow, number: Number, begin: impl Fn()) -> bool {
        let find = || self.flows().into_iter().find(|other| other.original == flow.original).unwrap();
        for attempt in 0..20 {
            let mut socket = socket();
            let mut batch = Batch::new(socket.next_sequence(1));
            conntrack::delete(&mut batch, &find());
            socket.submit(&batch).unwrap();
            if number == Number::Other {
                // Another flow takes its memory.
                self.send(20_000 + attempt, self.plan.outside, 9);
            }
            begin();
            if (find().id == flow.id) == (number == Number::Same) {
                return true;
            }
        }
        false
    }

    /// Returns all flows of the family.
    pub(crate) fn flows(&self) -> Vec<Flow> {
        let mut flows = Vec::new();
        socket()
            .dump(&mut conntrack::list(&Filter::family(self.family())), |frame| {
                if let ConntrackEvent::New(flow) = ConntrackEvent::decode(frame)? {
                    flows.push(flow);
                }
                Ok(())
            })
            .unwrap();
        flows
    }

    /// Returns the source ports of all flows of protocols that have ports, sorted.
    pub(crate) fn sources(&self) -> Vec<u16> {
        let mut ports: Vec<u16> =
            self.flows().iter().filter_map(|flow| flow.original.source_port()).collect();
        ports.sort_unstable();
        ports
    }

    /// Returns the number of flows of protocols that have ports.
    pub(crate) fn count(&self) -> usize {
        self.flows().iter().filter(|flow| flow.original.source_port().is_some()).count()
    }

    pub(crate) fn nft(&self, ruleset: &str) {
        self.namespace.output_with_input("nft", &["-f", "-"], ruleset).unwrap();
    }

    fn family(&self) -> nfnetlink::Family {
        match self.plan.family {
            Family::Ipv4 => nfnetlink::Family::IPV4,
            Family::Ipv6 => nfnetlink::Family::IPV6,
        }
    }
}

/// Keeps this thread on one processor: the kernel reuses freed memory first on the processor where it was freed.
pub(crate) fn stay_on_one_processor() {
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one).unwrap();
}

/// Returns the addresses that accept node ports: the node's.
pub(crate) fn addresses(plan: &Plan) -> Vec<IpAddr> {
    vec![plan.node]
}

pub(crate) fn cluster_ip(address: IpAddr, port: u16) -> Frontend {
    Frontend::ClusterIp(address, port)
}

pub(crate) fn node_port(port: u16) -> Frontend {
    Frontend::NodePort(port)
}

pub(crate) fn service(name: &str, frontends: Vec<Frontend>, serving: &[(IpAddr, u16)]) -> UdpService {
    let name = ServicePortName {
        namespace: "default".into(),
        service: name.into(),
        port: "".into(),
        protocol: Protocol::Udp,
    };
    UdpService::new(Arc::new(name), frontends, serving.iter().copied().map(Into::into).collect())
}

/// Returns the result of `work`, and by how many KiB the largest resident set of this process during it exceeds that
/// before it.
pub(crate) fn resident_high_water<T>(work: impl FnOnce() -> T) -> (T, u64) {
    // proc(5): writing 5 resets the high-water mark to the current resident size.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = high_water();
    let answer = work();
    (answer, high_water().saturating_sub(before))
}

fn high_water() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

fn send(source: (IpAddr, u16), to: IpAddr, port: u16) {
    UdpSocket::bind(source).unwrap().send_to(b"hello", (to, port)).unwrap();
}

fn socket() -> Socket {
    Socket::open(portolan_sock::Protocol::Netfilter).unwrap()
}
