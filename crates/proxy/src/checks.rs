//! The checks before the start. They find what this node or its configuration lacks, change nothing, and report all
//! findings together.
//!
//! Whether the kernel supports a mode is tried with a transaction that leaves nothing in the kernel. Capabilities and
//! IP families are checked too. Checks that need the Node object run again when it is known ([`of_families`]).

mod family;
mod host;

use portolan_model::Family;
use portolan_node::config::Configuration;

use super::finding::Finding;
use super::modes;

pub(super) use family::{Node, of_families};

/// Returns the findings that need no Node object. Changes nothing on the node. Removes the families from `families`
/// that the proxy cannot serve. `mode` returns why the mode cannot run; it is not called without the capability for it.
pub(super) fn before_the_start(
    configuration: &Configuration,
    families: &mut Vec<Family>,
    mode: impl FnOnce(&Configuration, &[Family]) -> Vec<Finding>,
) -> Vec<Finding> {
    let mut findings = host::findings(configuration, families, mode);
    if modes::configured(configuration).may_leave_out_a_family() {
        leave_out(&mut findings, families);
    }
    // The Node object is unknown here. The primary family is known if `bindAddress` or a single family decides it.
    let bound = configuration.bind_address;
    let primary = match families[..] {
        _ if !bound.is_unspecified() => Some(Family::of(bound)),
        [only] => Some(only),
        _ => None,
    };
    if let Some(primary) = primary {
        let node = Node { primary, pod_cidrs: &[], port_cidrs: None };
        findings.extend(of_families(configuration, families, &node));
    }
    findings
}

/// Leaves out the families in which the mode cannot run, if it can in the other one. A later check reports a missing
/// primary family.
fn leave_out(findings: &mut Vec<Finding>, families: &mut Vec<Family>) {
    let broken: Vec<Family> = findings.iter().filter_map(Finding::family).collect();
    if families.iter().all(|family| broken.contains(family)) {
        return;
    }
    families.retain(|family| !broken.contains(family));
    for finding in findings {
        if finding.family().is_some() {
            *finding = Finding::LeftOut(Box::new(finding.clone()));
        }
    }
}

/// Returns why the configured mode cannot run in the served families. Runs programs.
pub(super) fn mode(configuration: &Configuration, families: &[Family]) -> Vec<Finding> {
    let driver = modes::configured(configuration);
    families.iter().filter_map(|&family| driver.trial(configuration, family)).collect()
}
