//! Findings: facts about this node and its configuration that an operator should know. The checks, the trials of modes and
//! the writes of kernel settings report them.

use std::net::SocketAddr;

use anyhow::bail;
use portolan_model::Family;

/// A fact about this node or its configuration that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Finding {
    /// The process lacks a capability.
    #[error(
        "the process lacks the capability {capability}; run it as root, or add the capability to its \
         securityContext"
    )]
    Capability { capability: &'static str },
    /// The kernel lacks something for nftables.
    #[error(
        "nftables, {family}: {reason}; it takes Linux 5.13 or newer with nftables, NAT and conntrack: let the node \
         load the modules nf_tables and nft_chain_nat (`modprobe`), or boot a kernel that has them"
    )]
    Kernel { family: Family, reason: String },
    /// The rules of the iptables mode cannot be written.
    #[error(
        "iptables, {family}: {reason}; let the node load the modules of iptables (`modprobe`), install iptables, or \
         choose another proxy mode"
    )]
    Iptables { family: Family, reason: String },
    /// The node lacks something for the IPVS mode.
    #[error("ipvs, {family}: {reason}; or choose another proxy mode")]
    Ipvs { family: Family, reason: String },
    /// The kernel cannot capture packets for a relay.
    #[error(
        "userspace, {family}: {reason}; it takes a kernel with nftables, TPROXY and sockets in rules: let the node load the \
         modules nft_tproxy and nft_socket (`modprobe`), install iptables so that packets can be redirected, or choose another \
         proxy mode"
    )]
    Userspace { family: Family, reason: String },
    /// In the userspace mode, the process may not send from ports of system services.
    #[error(
        "the process lacks the capability CAP_NET_BIND_SERVICE: in the userspace mode with tproxy, clients get no answers \
         from UDP ports below net.ipv4.ip_unprivileged_port_start, such as that of DNS; add the capability to its \
         securityContext, or to the unit"
    )]
    NoLowPorts,
    /// In the userspace mode with TPROXY, the kernel loses packets because of a setting.
    #[error(
        "{setting} is 1: in the userspace mode with tproxy, {lost} do not arrive; set it to 0, or let packets be \
         redirected (as root, with iptables)"
    )]
    LosesCaptured { setting: String, lost: &'static str },
    /// Kernel settings of the IPVS mode are wrong and cannot be written.
    #[error(
        "kernel settings that the ipvs mode needs cannot be written here and stay as they are: {settings}"
    )]
    IpvsSettings { settings: String },
    /// A finding that leaves out one family. The other family is served.
    #[error("{0}; {family} is left out until the proxy starts again", family = .0.family().map_or_else(String::new, |family| family.to_string()))]
    LeftOut(Box<Finding>),
    /// Node ports are not served on loopback addresses.
    #[error(
        "node ports will not answer on loopback addresses: {settings}; or set iptables.localhostNodePorts to false"
    )]
    NoLocalhostNodePorts { settings: String },
    /// The primary family of the node is one that the host does not support.
    #[error(
        "no support for primary IP family \"{family}\": enable it in the kernel \
         (net.ipv6.conf.all.disable_ipv6), or let the Node's first address or bindAddress be of the other family"
    )]
    PrimaryFamily { family: Family },
    /// The kernel does not forward packets.
    #[error(
        "{path} is 0: traffic of pods and from outside is not passed on to endpoints; run {first}`sysctl -w {name}=1`",
        first = before_forwarding(path)
    )]
    Forwarding { path: &'static str, name: &'static str },
    /// Kernel settings are wrong and cannot be written.
    #[error(
        "kernel settings cannot be written here and stay as they are: {}; run the commands on the node, make \
         /proc/sys writable for this process, or set conntrack.maxPerCore and the conntrack timeouts to 0",
        settings.join("; ")
    )]
    KernelSettings { settings: Vec<String> },
    /// Node ports are served on every address.
    #[error(
        "nodePortAddresses is not set: node ports answer on every address of this node; consider \
         nodePortAddresses: [primary]"
    )]
    NodePortsEverywhere,
    /// Node ports are not restricted in the secondary family.
    #[error(
        "cluster appears to be dual-stack but nodePortAddresses has only {primary} entries: {other} node ports \
         answer on every address; add {other} CIDRs, or use primary"
    )]
    NodePortsOfPrimaryOnly { primary: Family, other: Family },
    /// Node ports are not restricted in the primary family.
    #[error(
        "nodePortAddresses has no {primary} entry: {primary} node ports answer on every address; add {primary} \
         CIDRs, or use primary"
    )]
    NodePortsWithoutPrimary { primary: Family },
    /// A field only has values of a family that is not the node's primary one.
    #[error(
        "{field} is {values}, none of which is {primary}, the primary family of this node; add one that is"
    )]
    OtherFamily { field: &'static str, values: String, primary: Family, fatal: bool },
    /// Local traffic is to be detected by pod CIDRs, and the Node has none.
    #[error(
        "detectLocalMode is NodeCIDR and the Node has no spec.podCIDRs, so traffic of \
         its pods cannot be recognised: let the cluster allocate them, or choose another mode"
    )]
    NoPodCidrs,
    /// A server's address is of a family that the node does not have.
    #[error("{field} is {address}, which is not {primary}, the only family of this node")]
    BindFamily { field: &'static str, address: SocketAddr, primary: Family },
}

impl Finding {
    /// Returns true if the proxy cannot work with this finding.
    pub(super) const fn is_fatal(&self) -> bool {
        match self {
            Self::Capability { .. }
            | Self::Kernel { .. }
            | Self::Iptables { .. }
            | Self::Ipvs { .. }
            | Self::Userspace { .. }
            | Self::PrimaryFamily { .. }
            | Self::NoPodCidrs
            | Self::OtherFamily { fatal: true, .. } => true,
            Self::LeftOut(_)
            | Self::NoLocalhostNodePorts { .. }
            | Self::NoLowPorts
            | Self::LosesCaptured { .. }
            | Self::IpvsSettings { .. }
            | Self::Forwarding { .. }
            | Self::KernelSettings { .. }
            | Self::NodePortsEverywhere
            | Self::NodePortsOfPrimaryOnly { .. }
            | Self::NodePortsWithoutPrimary { .. }
            | Self::OtherFamily { fatal: false, .. }
            | Self::BindFamily { .. } => false,
        }
    }

    /// Returns true if the trial of a mode has found this.
    pub(super) fn is_of_mode(&self) -> bool {
        match self {
            Self::LeftOut(finding) => finding.is_of_mode(),
            Self::NoLowPorts | Self::LosesCaptured { .. } => true,
            _ => self.family().is_some(),
        }
    }

    /// Returns the family that cannot be programmed.
    pub(super) fn family(&self) -> Option<Family> {
        match self {
            Self::Kernel { family, .. }
            | Self::Iptables { family, .. }
            | Self::Ipvs { family, .. }
            | Self::Userspace { family, .. } => Some(*family),
            _ => None,
        }
    }

    /// Returns true if this finding is about the forwarding of packets.
    pub(super) const fn is_of_forwarding(&self) -> bool {
        matches!(self, Self::Forwarding { .. })
    }

    /// Returns true if this finding reports `setting` completely.
    pub(super) fn reports_setting(&self, setting: &str) -> bool {
        matches!(self, Self::KernelSettings { settings } if settings.iter().any(|reports| reports == setting))
    }
}

/// Returns what is to be done before the forwarding is turned on.
fn before_forwarding(path: &str) -> &'static str {
    if path.contains("/ipv6/") {
        "`sysctl -w net.ipv6.conf.INTERFACE.accept_ra=2` for each interface that has 1, without which the node would lose \
         the addresses and routes of router advertisements, then "
    } else {
        ""
    }
}

/// Logs every finding.
pub(super) fn log(findings: &[Finding]) {
    for finding in findings {
        if finding.is_fatal() {
            tracing::error!(fatal = true, "{finding}");
        } else {
            tracing::warn!("{finding}");
        }
    }
}

/// Fails if a finding is fatal.
pub(super) fn judge(findings: &[Finding]) -> anyhow::Result<()> {
    let fatal: Vec<String> =
        findings.iter().filter(|finding| finding.is_fatal()).map(ToString::to_string).collect();
    if !fatal.is_empty() {
        bail!("this node cannot run the proxy: {}", fatal.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn router_advertisements_are_kept_before_ipv6_is_forwarded() {
        let text = |path, name| Finding::Forwarding { path, name }.to_string();
        let ipv4 = text("/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward");
        assert!(ipv4.ends_with("; run `sysctl -w net.ipv4.ip_forward=1`"), "{ipv4}");
        let ipv6 = text("/proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding");
        let (first, then) = ipv6.split_once(", then ").expect("two steps");
        assert!(first.contains("run `sysctl -w net.ipv6.conf.INTERFACE.accept_ra=2` for each"), "{ipv6}");
        assert_eq!(then, "`sysctl -w net.ipv6.conf.all.forwarding=1`");
    }
}
