//! Checks the capabilities of this process and the kernel of its host.

use portolan_model::Family;
use portolan_node::config::Configuration;
use portolan_node::sysctl::Host;

use super::Finding;
use crate::{modes, node_settings};

/// `CAP_NET_ADMIN` (`linux/capability.h`).
const NET_ADMIN: u32 = 12;

pub(super) fn findings(
    configuration: &Configuration,
    families: &[Family],
    mode: impl FnOnce(&Configuration, &[Family]) -> Vec<Finding>,
) -> Vec<Finding> {
    let host = Host::default();
    let mut findings = Vec::new();
    let status = host.read("/proc/self/status").unwrap_or_default();
    if effective_capabilities(&status).is_some_and(|capabilities| capabilities & (1 << NET_ADMIN) == 0) {
        // Without the capability, a trial of the kernel would only report the same lack again.
        findings.push(Finding::Capability { capability: "CAP_NET_ADMIN" });
    } else {
        findings.extend(mode(configuration, families));
        findings.extend(modes::configured(configuration).warnings(configuration, families));
    }
    findings.extend(families.iter().filter_map(|&family| forwarding(&host, family)));
    // The trial loads conntrack at the latest, so its settings exist here.
    let settings = node_settings::conntrack_refusals(configuration, &host);
    findings.extend((!settings.is_empty()).then_some(Finding::KernelSettings { settings }));
    findings
}

fn forwarding(host: &Host, family: Family) -> Option<Finding> {
    let path = node_settings::forwarding(family).path;
    let name = match family {
        Family::Ipv4 => "net.ipv4.ip_forward",
        Family::Ipv6 => "net.ipv6.conf.all.forwarding",
    };
    (host.read(path).as_deref() == Some("0")).then_some(Finding::Forwarding { path, name })
}

/// Returns `CapEff` of `proc_pid_status(5)`.
fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_a_hexadecimal_mask() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n";
        assert_eq!(effective_capabilities(status), Some((1 << 41) - 1));
        assert_eq!(effective_capabilities("Name:\tx\n"), None);
    }
}
