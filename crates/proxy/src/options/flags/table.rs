//! All flags.

use super::Kind::{
    Boolean, Duration, File, Gates, Integer, Ip, IpPort, Level, List, Number, Patterns, Quantity, Text,
    Version,
};
use super::{Flag, flag};

const ACTION: &str = "Actions";
const FILE: &str = "Configuration";
const API: &str = "API server";
const NODE: &str = "This node";
const MODE: &str = "Mode";
const IPTABLES: &str = "iptables and nftables";
const IPVS: &str = "ipvs";
const USERSPACE: &str = "userspace";
const LOCAL: &str = "Local traffic";
const SETTINGS: &str = "Node settings";
const LOG: &str = "Logging";

/// All flags, in the order of the help.
pub(in crate::options) const FLAGS: &[Flag] = &[
    flag(FILE, "config", File, "", "KubeProxyConfiguration (v1alpha1), YAML or JSON; replaces most flags")
        .counts_with_config(),
    flag(
        FILE,
        "config-reload",
        Boolean,
        "true",
        "Follow changes of the configuration file; with false they end the process",
    )
    .counts_with_config(),
    flag(FILE, "feature-gates", Gates, "", "Feature gates to turn on or off").field("featureGates"),
    flag(
        FILE,
        "config-sync-period",
        Duration,
        "15m0s",
        "Accepted; changes of objects are followed as they come",
    )
    .field("configSyncPeriod"),
    flag(
        FILE,
        "show-hidden-metrics-for-version",
        Text,
        "",
        "Show metrics that were hidden since this version; only 1.35",
    )
    .field("showHiddenMetricsForVersion"),
    flag(ACTION, "write-config-to", File, "", "Write the effective configuration to this file and exit")
        .counts_with_config(),
    flag(
        ACTION,
        "cleanup",
        Boolean,
        "false",
        "Remove the rules of all modes from this node and exit; with 0 only where nothing is left",
    )
    .counts_with_config(),
    flag(
        ACTION,
        "only-ours",
        Boolean,
        "false",
        "With --cleanup, leave what kube-proxy uses, for when it does the work",
    )
    .counts_with_config(),
    flag(ACTION, "init-only", Boolean, "false", "Do only what needs privileges and exit")
        .counts_with_config(),
    flag(
        ACTION,
        "version",
        Version,
        "false",
        "Print the version and exit; raw prints more, vX.Y.Z is reported instead",
    )
    .counts_with_config(),
    flag(
        API,
        "kubeconfig",
        File,
        "",
        "Kubeconfig file; without it and --master, in-cluster credentials are used",
    )
    .field("clientConnection.kubeconfig"),
    flag(API, "master", Text, "", "URL of the API server, in place of the kubeconfig's").counts_with_config(),
    flag(
        API,
        "kube-api-content-type",
        Text,
        "application/vnd.kubernetes.protobuf",
        "Content type of watches: protobuf or JSON",
    )
    .field("clientConnection.contentType"),
    flag(API, "kube-api-qps", Number, "5", "Requests a second, on average; negative means no limit")
        .field("clientConnection.qps"),
    flag(API, "kube-api-burst", Integer, "10", "Requests that may exceed the average for a moment")
        .field("clientConnection.burst"),
    flag(
        API,
        "empty-list-hold",
        Duration,
        "30s",
        "Where more than one Service or EndpointSlice is known, an empty list is not believed; one that is asked for after this time and is empty, too, is. 0 believes the first",
    )
    .counts_with_config(),
    flag(NODE, "hostname-override", Text, "", "Name of this node, in place of the host's name")
        .field("hostnameOverride")
        .counts_with_config(),
    flag(NODE, "bind-address", Ip, "0.0.0.0", "This node's primary address, in place of the Node object's")
        .field("bindAddress"),
    flag(NODE, "healthz-bind-address", IpPort, "0.0.0.0:10256", "Address of the health server")
        .field("healthzBindAddress"),
    flag(NODE, "metrics-bind-address", IpPort, "127.0.0.1:10249", "Address of the metrics server")
        .field("metricsBindAddress"),
    flag(NODE, "healthz-port", Integer, "10256", "Port of the health server; 0 switches it off")
        .deprecated("use --healthz-bind-address"),
    flag(NODE, "metrics-port", Integer, "10249", "Port of the metrics server; 0 switches it off")
        .deprecated("use --metrics-bind-address"),
    flag(
        NODE,
        "bind-address-hard-fail",
        Boolean,
        "false",
        "Fail where the health or the metrics server cannot listen",
    )
    .field("bindAddressHardFail"),
    flag(NODE, "profiling", Boolean, "false", "Answer under /debug on the metrics server")
        .field("enableProfiling"),
    flag(
        NODE,
        "control-socket",
        File,
        "/run/portolan/proxy.sock",
        "Unix socket on which the subcommands status and explain ask this proxy; empty means none",
    )
    .field("portolan.controlSocket")
    .counts_with_config(),
    flag(
        NODE,
        "control-socket-group",
        Text,
        "",
        "Group that may use the control socket, besides its owner: name or number",
    )
    .field("portolan.controlSocketGroup")
    .counts_with_config(),
    flag(
        NODE,
        "state-on-any-address",
        Boolean,
        "false",
        "Serve /debug/portolan/ on the metrics port even where that is not on a loopback address",
    )
    .field("portolan.stateOnAnyAddress")
    .counts_with_config(),
    flag(
        NODE,
        "recorder-bytes",
        Integer,
        "4194304",
        "Memory for the history of the last syncs, which the subcommand snapshot writes; 0 records nothing",
    )
    .field("portolan.recorderBytes")
    .counts_with_config(),
    flag(
        NODE,
        "service-counters",
        Boolean,
        "false",
        "Count the connections of each Service port and endpoint, and what is refused, in the nftables mode",
    )
    .field("portolan.serviceCounters")
    .counts_with_config(),
    flag(
        NODE,
        "passive-health-checks",
        Boolean,
        "false",
        "Set endpoints aside for a while if TCP connections of this node to them fail, in all modes but userspace",
    )
    .field("portolan.passiveHealthChecks")
    .counts_with_config(),
    flag(
        NODE,
        "service-metrics",
        Integer,
        "0",
        "Number of Service ports, those with the most connections, that /metrics/services shows; 0 shows none",
    )
    .field("portolan.serviceMetrics")
    .counts_with_config(),
    flag(
        NODE,
        "nodeport-addresses",
        List,
        "",
        "Addresses that accept node ports: CIDRs, or the word primary",
    )
    .field("nodePortAddresses"),
    flag(
        NODE,
        "address-guard",
        List,
        "",
        "What happens to external addresses of Services that belong to something else: clusterIPs, podCIDRs, nodeAddresses, serviceCIDRs or clusterCIDR, each with =Allow, =Warn or =Refuse",
    )
    .field("addressGuard"),
    flag(
        NODE,
        "address-guard-allowed",
        List,
        "",
        "CIDRs in which external addresses of Services are always served",
    )
    .field("addressGuard.allowed"),
    flag(
        NODE,
        "readiness-taint",
        Text,
        "",
        "KEY or KEY:EFFECT: a taint that is removed from the Node when everything was programmed and read back once",
    )
    .field("readiness.taint"),
    flag(
        NODE,
        "readiness-condition",
        Text,
        "",
        "Type of a Node condition that is True until everything was programmed and read back once, and False afterwards",
    )
    .field("readiness.condition"),
    flag(
        MODE,
        "proxy-mode",
        Text,
        "",
        "nftables, iptables, ipvs or userspace; iptables where none is given, or nftables without iptables",
    )
    .field("mode"),
    flag(
        MODE,
        "default-mode",
        Text,
        "iptables",
        "The mode if the configuration names none: iptables, with nftables where iptables cannot be used; or nftables",
    )
    .counts_with_config(),
    flag(MODE, "masquerade-all", Boolean, "false", "Masquerade all traffic to cluster IPs")
        .field("iptables.masqueradeAll"),
    flag(
        IPTABLES,
        "iptables-masquerade-bit",
        Integer,
        "14",
        "Bit of the packet mark that asks for masquerading (iptables, ipvs)",
    )
    .field("iptables.masqueradeBit"),
    flag(
        IPTABLES,
        "iptables-localhost-nodeports",
        Boolean,
        "true",
        "Node ports on IPv4 loopback addresses (iptables)",
    )
    .field("iptables.localhostNodePorts"),
    flag(
        IPTABLES,
        "iptables-sync-period",
        Duration,
        "30s",
        "Everything is compared at least this often (iptables, nftables)",
    )
    .field("iptables.syncPeriod"),
    flag(
        IPTABLES,
        "iptables-min-sync-period",
        Duration,
        "1s",
        "Least time between two syncs (iptables, nftables)",
    )
    .field("iptables.minSyncPeriod"),
    flag(IPVS, "ipvs-sync-period", Duration, "30s", "Everything is compared at least this often")
        .field("ipvs.syncPeriod"),
    flag(IPVS, "ipvs-min-sync-period", Duration, "1s", "Least time between two syncs")
        .field("ipvs.minSyncPeriod"),
    flag(IPVS, "ipvs-scheduler", Text, "", "How a backend is chosen; rr where none is given")
        .field("ipvs.scheduler"),
    flag(IPVS, "ipvs-exclude-cidrs", List, "", "Virtual servers inside these CIDRs are left alone")
        .field("ipvs.excludeCIDRs"),
    flag(IPVS, "ipvs-strict-arp", Boolean, "false", "Set arp_ignore to 1 and arp_announce to 2")
        .field("ipvs.strictARP"),
    flag(IPVS, "ipvs-tcp-timeout", Duration, "0s", "Timeout of idle TCP connections; 0 leaves the kernel's")
        .field("ipvs.tcpTimeout"),
    flag(
        IPVS,
        "ipvs-tcpfin-timeout",
        Duration,
        "0s",
        "Timeout of TCP connections after a FIN; 0 leaves the kernel's",
    )
    .field("ipvs.tcpFinTimeout"),
    flag(IPVS, "ipvs-udp-timeout", Duration, "0s", "Timeout of UDP flows; 0 leaves the kernel's")
        .field("ipvs.udpTimeout"),
    flag(
        IPVS,
        "ipvs-fallback",
        Boolean,
        "true",
        "Run the iptables mode where the kernel lacks what the ipvs mode needs; with false that is an error",
    )
    .counts_with_config(),
    flag(
        USERSPACE,
        "userspace-capture",
        Text,
        "auto",
        "How packets come to the relay: tproxy (nftables), redirect (iptables), or auto: redirect where the kernel has no tproxy",
    )
    .counts_with_config(),
    flag(
        USERSPACE,
        "proxy-port-range",
        Text,
        "",
        "Ports that the relay listens on: the first two; empty means 10261-10262",
    )
    .field("portRange"),
    flag(
        USERSPACE,
        "udp-timeout",
        Duration,
        "0s",
        "How long a UDP flow without datagrams is kept; 0 means 30s",
    )
    .field("udpIdleTimeout"),
    flag(
        LOCAL,
        "detect-local-mode",
        Text,
        "",
        "Tells local pods by ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
    )
    .field("detectLocalMode"),
    flag(LOCAL, "cluster-cidr", Text, "", "CIDRs of the cluster's pods: one, or one of each family")
        .field("clusterCIDR"),
    flag(LOCAL, "pod-bridge-interface", Text, "", "The bridge of this node's pods, for BridgeInterface")
        .field("detectLocal.bridgeInterface"),
    flag(
        LOCAL,
        "pod-interface-name-prefix",
        Text,
        "",
        "How the names of pods' interfaces start, for InterfaceNamePrefix",
    )
    .field("detectLocal.interfaceNamePrefix"),
    flag(SETTINGS, "oom-score-adj", Integer, "-999", "Score for the out-of-memory killer, -1000 to 1000")
        .field("oomScoreAdj"),
    flag(
        SETTINGS,
        "conntrack-max-per-core",
        Integer,
        "32768",
        "Tracked connections for each CPU; 0 leaves the kernel's",
    )
    .field("conntrack.maxPerCore"),
    flag(SETTINGS, "conntrack-min", Integer, "131072", "Tracked connections at least").field("conntrack.min"),
    flag(
        SETTINGS,
        "conntrack-tcp-timeout-established",
        Duration,
        "24h0m0s",
        "Timeout of idle established TCP connections; 0 leaves the kernel's",
    )
    .field("conntrack.tcpEstablishedTimeout"),
    flag(
        SETTINGS,
        "conntrack-tcp-timeout-close-wait",
        Duration,
        "1h0m0s",
        "Timeout of TCP connections in CLOSE-WAIT; 0 leaves the kernel's",
    )
    .field("conntrack.tcpCloseWaitTimeout"),
    flag(
        SETTINGS,
        "conntrack-tcp-be-liberal",
        Boolean,
        "false",
        "Do not judge TCP segments that are out of the window",
    )
    .field("conntrack.tcpBeLiberal"),
    flag(
        SETTINGS,
        "conntrack-udp-timeout",
        Duration,
        "0s",
        "Timeout of UDP flows without an answer; 0 leaves the kernel's",
    )
    .field("conntrack.udpTimeout"),
    flag(
        SETTINGS,
        "conntrack-udp-timeout-stream",
        Duration,
        "0s",
        "Timeout of UDP flows with an answer; 0 leaves the kernel's",
    )
    .field("conntrack.udpStreamTimeout"),
    flag(LOG, "v", Level, "0", "How much to log: 0 what operators need, 2 what happens, 4 why")
        .field("logging.verbosity")
        .counts_with_config(),
    flag(LOG, "vmodule", Patterns, "", "Verbosity for single source files, in the text format")
        .field("logging.vmodule")
        .counts_with_config(),
    flag(LOG, "logging-format", Text, "text", "text or json").field("logging.format").counts_with_config(),
    flag(LOG, "log-flush-frequency", Duration, "5s", "Accepted; lines are written at once")
        .field("logging.flushFrequency")
        .counts_with_config(),
    flag(
        LOG,
        "log-text-split-stream",
        Boolean,
        "false",
        "Errors to stderr, the rest to stdout (text; gate LoggingAlphaOptions)",
    )
    .field("logging.options.text.splitStream")
    .counts_with_config(),
    flag(
        LOG,
        "log-text-info-buffer-size",
        Quantity,
        "0",
        "Accepted; lines are written at once (text; gate LoggingAlphaOptions)",
    )
    .field("logging.options.text.infoBufferSize")
    .counts_with_config(),
    flag(
        LOG,
        "log-json-split-stream",
        Boolean,
        "false",
        "Errors to stderr, the rest to stdout (json; gate LoggingAlphaOptions)",
    )
    .field("logging.options.json.splitStream")
    .counts_with_config(),
    flag(
        LOG,
        "log-json-info-buffer-size",
        Quantity,
        "0",
        "Accepted; lines are written at once (json; gate LoggingAlphaOptions)",
    )
    .field("logging.options.json.infoBufferSize")
    .counts_with_config(),
    flag(NODE, "machine-id-file", List, "/etc/machine-id,/var/lib/dbus/machine-id", "Accepted and ignored")
        .hidden()
        .counts_with_config(),
    flag(NODE, "boot-id-file", List, "/proc/sys/kernel/random/boot_id", "Accepted and ignored")
        .hidden()
        .counts_with_config(),
];
