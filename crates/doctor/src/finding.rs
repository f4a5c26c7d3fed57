//! Findings: what is wrong, what it breaks, and how to mend it. The list of all codes is [`Code::ALL`].

use std::fmt;

use serde::{Serialize, Serializer};

/// How bad a finding is. The order is from worst to mildest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Services do not work for some clients.
    Error,
    /// Services may fail for some clients, or will fail under load or after a change.
    Warning,
    /// A fact that explains a behaviour. Nothing has to be done.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// Makes [`Code`] from a list of names, texts, and what `docs/doctor.md` says about each.
macro_rules! codes {
    ($($name:ident: $text:literal, breaks $breaks:literal, mend $mend:literal;)*) => {
        /// What kind of finding it is. The text of a code never changes: scripts may compare it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $breaks] $name,)*
        }

        impl Code {
            /// All codes, in the order of a report.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the text of the code, in kebab-case.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Returns what a finding of this kind breaks, and for whom.
            pub const fn breaks(self) -> &'static str {
                match self { $(Self::$name => $breaks,)* }
            }

            /// Returns how a finding of this kind is mended, without the names of the finding's objects.
            pub const fn usual_mend(self) -> &'static str {
                match self { $(Self::$name => $mend,)* }
            }
        }
    };
}

codes! {
    KernelTooOld: "kernel-too-old",
        breaks "The nftables mode cannot run: no Service is programmed.",
        mend "boot Linux 5.13 or newer, or choose `mode: iptables`";
    ModeCannotRun: "mode-cannot-run",
        breaks "The proxy does not start in this mode, or serves one family only: the kernel or a program lacks something.",
        mend "load the modules or install the programs that the mode needs, or choose another `mode`";
    IpvsMissing: "ipvs-missing",
        breaks "The IPVS mode cannot run: the iptables mode runs instead.",
        mend "`modprobe ip_vs && modprobe ip_vs_rr`, or choose `mode: nftables`";
    ConntrackMissing: "conntrack-missing",
        breaks "Connections to Services cannot be translated.",
        mend "`modprobe nf_conntrack`";
    ForwardingOff: "forwarding-off",
        breaks "Connections of pods and from outside do not reach endpoints; connections of the node itself do.",
        mend "`sysctl -w net.ipv4.ip_forward=1` or `net.ipv4.conf.INTERFACE.forwarding=1`; for IPv6 `net.ipv6.conf.INTERFACE.accept_ra=2` where it is 1, then `net.ipv6.conf.all.forwarding=1`";
    ReversePathStrict: "reverse-path-strict",
        breaks "Packets whose answers would leave through another interface are dropped without a trace.",
        mend "`sysctl -w net.ipv4.conf.INTERFACE.rp_filter=2`, unless the network plug-in wants 1";
    BridgeBypassesRules: "bridge-bypasses-rules",
        breaks "A pod does not reach a Service whose endpoint is on the same bridge: the answer bypasses the translation.",
        mend "`modprobe br_netfilter`, `sysctl -w net.bridge.bridge-nf-call-iptables=1`, for IPv6 `net.bridge.bridge-nf-call-ip6tables=1`";
    BridgeLosesPackets: "bridge-loses-packets",
        breaks "In the userspace mode with tproxy, no pod on the bridge reaches a Service.",
        mend "`sysctl -w net.bridge.bridge-nf-call-iptables=0`, for IPv6 `net.bridge.bridge-nf-call-ip6tables=0`, or restart the agent as root with iptables, so that packets are redirected";
    ConntrackNearlyFull: "conntrack-nearly-full",
        breaks "New connections of the whole node are dropped when the table is full.",
        mend "`sysctl -w net.netfilter.nf_conntrack_max=ENTRIES`, and raise `conntrack.maxPerCore`";
    ConntrackDrops: "conntrack-drops",
        breaks "The kernel dropped packets, or entries of unanswered connections, because the table was full.",
        mend "`sysctl -w net.netfilter.nf_conntrack_max=ENTRIES`, and raise `conntrack.maxPerCore`";
    ConntrackInsertFailed: "conntrack-insert-failed",
        breaks "Two packets of one client raced for the same entry and one was dropped: DNS queries that time out once.",
        mend "let clients use one socket for each query (`options single-request-reopen` in resolv.conf)";
    TcpWindowsStrict: "tcp-windows-strict",
        breaks "Packets that arrive late are not translated: the client sees a reset in the middle of a transfer.",
        mend "`conntrack.tcpBeLiberal: true`, or `sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1`";
    AffinityListFull: "affinity-list-full",
        breaks "With session affinity in the iptables mode, an endpoint remembers the last clients only: others lose their endpoint.",
        mend "load xt_recent with `ip_list_tot=CLIENTS`, or choose `mode: nftables`";
    NodePortsNotReserved: "node-ports-not-reserved",
        breaks "The node may use a node port for a connection of its own, whose answers then go to the Service.",
        mend "`sysctl -w net.ipv4.ip_local_reserved_ports=RANGE`";
    MtuMismatch: "mtu-mismatch",
        breaks "Large packets of pods are fragmented or dropped: small requests work, large transfers hang.",
        mend "set the MTU of pods in the network plug-in to the smaller one";
    ForwardDropped: "forward-dropped",
        breaks "Connections to Services that are forwarded to pods get no answer.",
        mend "accept what was translated: `nft insert rule FAMILY TABLE CHAIN ct status dnat accept`";
    InputDropped: "input-dropped",
        breaks "From pods and from outside, Services get no answer in the IPVS and userspace modes, and in others if their endpoint is a process of this node.",
        mend "accept what was translated: `nft insert rule FAMILY TABLE CHAIN ct status dnat accept`";
    OutputDropped: "output-dropped",
        breaks "Connections of this node to Services get no answer.",
        mend "accept what was translated: `nft insert rule FAMILY TABLE CHAIN ct status dnat accept`";
    PreroutingDropped: "prerouting-dropped",
        breaks "Packets to Services are dropped before they are translated.",
        mend "remove the rule: `nft delete rule FAMILY TABLE CHAIN handle HANDLE`";
    PostroutingDropped: "postrouting-dropped",
        breaks "Translated packets are dropped when they leave the node.",
        mend "accept what was translated: `nft insert rule FAMILY TABLE CHAIN ct status dnat accept`";
    NotTracked: "not-tracked",
        breaks "Packets that are exempt from connection tracking are not translated: they are not delivered to endpoints.",
        mend "remove the rule: `nft delete rule FAMILY TABLE CHAIN handle HANDLE`";
    ServiceAddressTaken: "service-address-taken",
        breaks "Another program's rule sends packets to a Service's address elsewhere.",
        mend "remove the rule: `nft delete rule FAMILY TABLE CHAIN handle HANDLE`";
    NodePortTaken: "node-port-taken",
        breaks "Another program's rule sends packets to a node port elsewhere, such as a published port of a container.",
        mend "publish the container at a port outside of the range of node ports";
    FirewallPresent: "firewall-present",
        breaks "Nothing by itself. A reload of this firewall may remove or reorder rules.",
        mend "nothing to do";
    OtherServiceProxy: "other-service-proxy",
        breaks "If this program replaces kube-proxy, it handles Services before Portolan's rules see their packets.",
        mend "switch off its replacement of kube-proxy, or Portolan";
    TwoProxies: "two-proxies",
        breaks "Two proxies program the same Services: they undo each other's changes or translate with old endpoints.",
        mend "remove one of them from this node";
    LeftoversOfKubeProxy: "leftovers-of-kube-proxy",
        breaks "Rules that are not updated may send connections to endpoints that are gone.",
        mend "`portolan doctor --fix`, or restart Portolan; beside a running kube-proxy: `kube-proxy --cleanup`, then start it again";
    LeftoversOfPortolan: "leftovers-of-portolan",
        breaks "Rules that are not updated may send connections to endpoints that are gone.",
        mend "`portolan-proxy cleanup --only-ours`";
    LeftoversOfAnotherMode: "leftovers-of-another-mode",
        breaks "Rules that are not updated may send connections to endpoints that are gone.",
        mend "restart Portolan: `systemctl restart portolan-proxy` (or `portolan-up`), or delete its pod";
    LeftoversOfIpvs: "leftovers-of-ipvs",
        breaks "Addresses of removed Services stay addresses of this node, and virtual servers may send connections to endpoints that are gone.",
        mend "restart Portolan: `systemctl restart portolan-proxy` (or `portolan-up`), or delete its pod";
    LeftoversOfRouting: "leftovers-of-routing",
        breaks "Packets with the mark of the userspace mode are delivered to this node. Programs that use the same mark lose packets.",
        mend "restart Portolan: `systemctl restart portolan-proxy` (or `portolan-up`), or delete its pod";
    NoProxy: "no-proxy",
        breaks "Services keep their last state: connections go to endpoints that may be gone.",
        mend "start a proxy, or `portolan-proxy cleanup`";
    ProxyWithoutRules: "proxy-without-rules",
        breaks "No Service works on this node.",
        mend "`portolan status`, and the log of the agent: it may not reach the API server";
    RoutingMissing: "routing-missing",
        breaks "In the userspace mode with tproxy, captured packets do not reach the agent: no Service works in this IP family.",
        mend "wait a moment: a running agent adds it again; or restart Portolan: `systemctl restart portolan-proxy` (or `portolan-up`), or delete its pod";
    ApiUnreachable: "api-unreachable",
        breaks "The proxy keeps the last state that it knows and does not follow changes.",
        mend "check `clientConnection.kubeconfig`, the network and the certificate";
    ApiDenied: "api-denied",
        breaks "The proxy cannot read a collection that it needs.",
        mend "apply the roles of `deploy/kustomize/base/rbac.yaml`";
    ApiLacks: "api-lacks",
        breaks "The proxy does not start: it needs EndpointSlices of Kubernetes 1.21 or newer.",
        mend "give the kubeconfig of the cluster's API server, or upgrade it";
    ServiceCidrsDenied: "service-cidrs-denied",
        breaks "Without `list`, packets to cluster IPs that no Service has are not dropped, and `addressGuard.serviceCIDRs` has no effect. Without `watch`, changes of ServiceCIDRs take effect late. Services work.",
        mend "apply the roles of `deploy/kustomize/base/rbac.yaml`; nothing to do on Kubernetes before 1.33, which has no ServiceCIDRs";
    EventsDenied: "events-denied",
        breaks "What the proxy reports about this node does not show in `kubectl get events`. Services work.",
        mend "apply the roles of `deploy/kustomize/base/rbac.yaml`";
    NodeWritesDenied: "node-writes-denied",
        breaks "The Node does not show that the proxy is ready: its taint stays, or it does not get the condition.",
        mend "apply the role of `deploy/kustomize/readiness/rbac.yaml`";
    ClockSkewed: "clock-skewed",
        breaks "Certificates and tokens are taken for expired or not yet valid, and metrics of latency are wrong.",
        mend "`timedatectl set-ntp true`";
    ApiServer: "api-server",
        breaks "Nothing. It says which API server was asked, and its version.",
        mend "nothing to do";
    NodeMissing: "node-missing",
        breaks "No endpoint counts as local, and the health check is 503.",
        mend "`--hostname-override=NAME-OF-THE-NODE`";
    NoPodCidr: "no-pod-cidr",
        breaks "With `detectLocalMode: NodeCIDR` the proxy does not start; otherwise nothing.",
        mend "let the controller manager allocate them (`--allocate-node-cidrs`), or choose another `detectLocalMode`";
    OverlappingRanges: "overlapping-ranges",
        breaks "Addresses belong to two networks: packets to one of them are translated or routed to the other.",
        mend "choose another range for one of them; of Services with a new ServiceCIDR";
    EndpointsUnready: "endpoints-unready",
        breaks "Connections to the Service are refused on every node.",
        mend "`kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME`, then mend the pods' readiness";
    NoLocalEndpoint: "no-local-endpoint",
        breaks "With the policy Local, packets that arrive at this node for the Service are dropped.",
        mend "use a node with an endpoint, or set the traffic policy to Cluster";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

/// A kernel setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Setting {
    /// The path below `/proc/sys`, such as `net/ipv4/ip_forward`.
    pub path: String,
    /// The value to write.
    pub value: String,
}

impl Setting {
    /// Creates a setting.
    pub fn new(path: impl Into<String>, value: impl Into<String>) -> Self {
        Self { path: path.into(), value: value.into() }
    }
}

impl fmt::Display for Setting {
    /// Writes the command that writes the setting.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sysctl_command(&self.path, &self.value))
    }
}

/// A safe mend, as data. Executed by [`crate::fix`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Fix {
    /// Writes a kernel setting.
    Sysctl {
        /// The settings that are written before it. Without them, it would do harm.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        first: Vec<Setting>,
        /// The setting.
        #[serde(flatten)]
        setting: Setting,
    },
    /// Removes tables and chains that kube-proxy left.
    RemoveLeftovers,
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl { first, setting } => {
                first.iter().try_for_each(|setting| write!(f, "{setting} && "))?;
                write!(f, "{setting}")
            }
            Self::RemoveLeftovers => f.write_str("remove kube-proxy's tables and chains"),
        }
    }
}

/// Something that is wrong on this node or in its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The kind of finding.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// One sentence that names the object.
    pub title: String,
    /// What it breaks, and for whom.
    pub breaks: String,
    /// The command that mends it, or what to do.
    pub mend: String,
    /// The safe mend that `--fix` executes; `None` if an operator has to decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
}

impl Finding {
    /// Creates a finding that breaks what its code says, without a safe fix.
    pub fn new(code: Code, severity: Severity, title: impl Into<String>, mend: impl Into<String>) -> Self {
        let (title, breaks, mend) = (title.into(), code.breaks().to_owned(), mend.into());
        Self { code, severity, title, breaks, mend, fix: None }
    }

    /// Creates a finding about a kernel setting, which `--fix` writes.
    pub fn setting(
        code: Code,
        severity: Severity,
        title: impl Into<String>,
        path: &str,
        value: &str,
    ) -> Self {
        Self::settings(code, severity, title, Vec::new(), Setting::new(path, value))
    }

    /// Creates a finding about a kernel setting that may be written only after others. `--fix` writes all of them.
    pub fn settings(
        code: Code,
        severity: Severity,
        title: impl Into<String>,
        first: Vec<Setting>,
        setting: Setting,
    ) -> Self {
        let fix = Fix::Sysctl { first, setting };
        let mend = fix.to_string();
        Self { fix: Some(fix), ..Self::new(code, severity, title, mend) }
    }
}

/// Returns the name of a setting for `sysctl(8)`: the separators are dots, and dots in names of interfaces are slashes.
pub fn sysctl_name(path: &str) -> String {
    let swapped = path.chars().map(|c| match c {
        '/' => '.',
        '.' => '/',
        c => c,
    });
    swapped.collect()
}

/// Returns the command that writes a kernel setting.
pub fn sysctl_command(path: &str, value: &str) -> String {
    format!("sysctl -w {}={}", sysctl_name(path), shell_word(value))
}

/// Returns a text as one word of a shell command.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_different_and_in_kebab_case() {
        let texts: BTreeSet<&str> = Code::ALL.iter().map(|code| code.text()).collect();
        assert_eq!(texts.len(), Code::ALL.len());
        let is_kebab = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(texts.iter().all(|text| is_kebab(text)), "{texts:?}");
    }

    #[test]
    fn names_of_settings() {
        assert_eq!(sysctl_command("net/ipv4/ip_forward", "1"), "sysctl -w net.ipv4.ip_forward=1");
        assert_eq!(
            sysctl_command("net/ipv4/conf/eth0.100/rp_filter", "2"),
            "sysctl -w net.ipv4.conf.eth0/100.rp_filter=2"
        );
    }

    #[test]
    fn words_of_a_shell_are_quoted_where_needed() {
        assert_eq!(shell_word("10.0.0.0/8"), "10.0.0.0/8");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("it's; rm"), r"'it'\''s; rm'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn severities_are_ordered_from_worst_to_mildest() {
        assert!(Severity::Error < Severity::Warning && Severity::Warning < Severity::Note);
    }

    #[test]
    fn a_finding_as_json() {
        let finding = Finding::setting(
            Code::ForwardingOff,
            Severity::Error,
            "net.ipv4.ip_forward is 0",
            "net/ipv4/ip_forward",
            "1",
        );
        insta::assert_snapshot!(serde_json::to_string_pretty(&finding).expect("plain values"), @r#"
        {
          "code": "forwarding-off",
          "severity": "error",
          "title": "net.ipv4.ip_forward is 0",
          "breaks": "Connections of pods and from outside do not reach endpoints; connections of the node itself do.",
          "mend": "sysctl -w net.ipv4.ip_forward=1",
          "fix": {
            "kind": "sysctl",
            "path": "net/ipv4/ip_forward",
            "value": "1"
          }
        }
        "#);
    }
}
