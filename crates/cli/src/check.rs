//! `portolan check`: everything that a start of the proxy would find out about its configuration, this node and the API
//! server, in one report.
//!
//! The checks of a start are those of crate `proxy`, and those of the node's surroundings are the doctor's. `api` says what the API
//! server answered, `report` has the report.

mod api;
mod report;

use std::process::ExitCode;

use clap::Args;
use portolan_doctor::facts::{Facts, Mode, Program};
use portolan_doctor::{Code, Finding, Severity, checks};
use portolan_model::object::Kind;
use portolan_proxy::packets::Configured;
use portolan_proxy::preflight::{self, CheckResult, Item, Part};

use crate::cluster::access::{self, Found};
use crate::doctor;
use crate::output::{self, Output};
use report::Report;

/// Exit code if the agent would not start, or Services would not work.
pub(crate) const FAILURE: u8 = 1;

/// Finds out everything that a start of the proxy would, and prints one report. Changes nothing.
///
/// Takes the flags of the proxy. The mode is tried in a network namespace of its own, which needs root. Works also on a node
/// that runs kube-proxy.
///
/// Exit codes: 0 nothing prevents a start; 1 something does.
#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    /// Do not ask the API server.
    #[arg(long)]
    offline: bool,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    proxy: Box<portolan_proxy::ProxyOptions>,
}

/// Prints the report.
pub(crate) fn run(options: &CheckOptions) -> anyhow::Result<ExitCode> {
    let mut preflight = preflight::examine(&options.proxy);
    let mut found = None;
    if let Some(configured) = &preflight.configured
        && !options.offline
    {
        // Services are not examined.
        let asked = access::ask(configured, &[Kind::Node, Kind::ServiceCidr])?;
        preflight.items.extend(api::items(&asked));
        found = asked.objects;
    }
    if let Some(found) = &found {
        preflight.with_node(&found.catalog);
    }
    let mut items = preflight.items;
    items.extend(surroundings(preflight.configured.as_ref(), found.as_ref()));
    let report = Report::new(items);
    output::print(&report, options.output, || report.text())?;
    Ok(if report.outcome == CheckResult::Failure { ExitCode::from(FAILURE) } else { ExitCode::SUCCESS })
}

/// Returns what else on this node affects Services.
fn surroundings(configured: Option<&Configured>, found: Option<&Found>) -> Vec<Item> {
    // The checks of a start report a missing pod CIDR.
    let cluster = found.map(|found| found.facts(false));
    let next_mode = configured.and_then(Configured::mode_name).and_then(Mode::named);
    let next_redirects = configured.is_some_and(Configured::redirects);
    let facts = Facts { cluster, next_mode, next_redirects, ..doctor::facts(configured) };
    let mut items: Vec<Item> = facts.proxies.processes.iter().map(other_proxy).collect();
    items.extend(checks::findings(&facts).iter().filter_map(of_finding));
    items.extend(facts.unread.iter().map(|unread| {
        let text = format!("could not read {}: {}", unread.what, unread.reason);
        Item::new(Part::Surroundings, CheckResult::Warning, text)
    }));
    if items.is_empty() {
        let text = "no other proxy runs, and nothing else on this node affects Services";
        items.push(Item::new(Part::Surroundings, CheckResult::Ok, text));
    }
    items
}

fn other_proxy(process: &portolan_doctor::facts::Process) -> Item {
    let text = format!("{} (process {}) programs Services on this node", process.program, process.pid);
    let mend = match process.program {
        Program::KubeProxy => {
            "stop it before the agent starts; its rules stay until the agent takes them over"
        }
        Program::Portolan => "nothing to do, if it is the agent that is to be replaced",
    };
    let outcome = if process.program == Program::KubeProxy { CheckResult::Warning } else { CheckResult::Ok };
    Item::new(Part::Surroundings, outcome, text).with_mend(mend)
}

/// Returns a finding of the doctor. `None` for what the checks of a start report themselves.
fn of_finding(finding: &Finding) -> Option<Item> {
    let Finding { code, severity, title, mend, .. } = finding;
    let outcome = match (code, severity) {
        (Code::ForwardingOff, Severity::Error) => return None,
        // A start mends it.
        (Code::ProxyWithoutRules | Code::RoutingMissing, _) => CheckResult::Warning,
        // A start takes them over, or removes them.
        (
            Code::NoProxy
            | Code::LeftoversOfKubeProxy
            | Code::LeftoversOfPortolan
            | Code::LeftoversOfAnotherMode
            | Code::LeftoversOfIpvs
            | Code::LeftoversOfRouting,
            _,
        )
        | (_, Severity::Note) => CheckResult::Ok,
        (_, Severity::Warning) => CheckResult::Warning,
        (_, Severity::Error) => CheckResult::Failure,
    };
    let item = Item::new(Part::Surroundings, outcome, format!("{code}: {title}"));
    Some(if outcome == CheckResult::Ok { item } else { item.with_mend(mend.clone()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_of_the_doctor_have_an_outcome() {
        let of = |code, severity| {
            let item = of_finding(&Finding::new(code, severity, "title", "mend"))?;
            Some((item.outcome, item.mend.is_some()))
        };
        assert_eq!(of(Code::ForwardDropped, Severity::Error), Some((CheckResult::Failure, true)));
        assert_eq!(of(Code::ConntrackNearlyFull, Severity::Warning), Some((CheckResult::Warning, true)));
        assert_eq!(of(Code::FirewallPresent, Severity::Note), Some((CheckResult::Ok, false)));
        assert_eq!(of(Code::LeftoversOfKubeProxy, Severity::Warning), Some((CheckResult::Ok, false)));
        assert_eq!(of(Code::ForwardingOff, Severity::Error), None, "a start reports it itself");
    }
}
