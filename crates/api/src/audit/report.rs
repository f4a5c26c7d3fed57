//! The report of an audit, as text for people and as JSON for programs.

use std::fmt;

use portolan_ipam::repair::{Audit, Finding, Mend, Problem, Subject};
use portolan_schema::json::{Value, json};

/// The findings of one audit.
#[derive(Debug, Clone, Default)]
pub struct Report {
    findings: Vec<Finding>,
    notes: Vec<String>,
    counts: (usize, usize),
}

impl Report {
    /// Creates the report of an audit. `counts` are the numbers of Services and IPAddresses; `notes` name what could
    /// not be examined.
    pub fn new(audit: Audit, counts: (usize, usize), notes: Vec<String>) -> Self {
        Self { findings: audit.findings, notes, counts }
    }

    /// Returns true if there are no findings.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Returns the findings.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Keeps only the findings that `other` has, too. A cluster that is read piece by piece while it changes shows
    /// problems that never existed.
    #[must_use]
    pub fn also_in(mut self, other: &Self) -> Self {
        self.findings.retain(|finding| other.findings.contains(finding));
        self
    }

    /// Returns the report as JSON, with the members `services` and `ipAddresses` (their numbers), `notes`, and `findings`,
    /// each of which has `kind`, `namespace`, `name`, `problem`, `message` and `mend`.
    pub fn to_json(&self) -> Value {
        let findings: Vec<Value> = self.findings.iter().map(finding).collect();
        let (services, addresses) = self.counts;
        json!({"services": services, "ipAddresses": addresses, "notes": self.notes, "findings": findings})
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        for finding in &self.findings {
            let (kind, namespace, name) = names(&finding.subject);
            let name = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
            writeln!(out, "{kind} {name}: {} [{}]", finding.problem, problem(&finding.problem))?;
        }
        let (services, addresses) = self.counts;
        let number = self.findings.len();
        writeln!(out, "{services} Services, {addresses} IPAddresses, {number} findings")
    }
}

fn finding(finding: &Finding) -> Value {
    let (kind, namespace, name) = names(&finding.subject);
    json!({
        "kind": kind, "namespace": namespace, "name": name,
        "problem": problem(&finding.problem), "message": finding.problem.to_string(), "mend": mend(&finding.mend),
    })
}

fn names(subject: &Subject) -> (&'static str, String, String) {
    match subject {
        Subject::Service(key) => ("Service", key.namespace.clone(), key.name.clone()),
        Subject::Address(address) => ("IPAddress", String::new(), address.to_string()),
        Subject::Port(port) => ("NodePort", String::new(), port.to_string()),
        Subject::Node(name) => ("Node", String::new(), name.clone()),
    }
}

/// Returns the reason of the problem's Event, or a name in the same style.
fn problem(problem: &Problem) -> &'static str {
    problem.event_reason().unwrap_or(match problem {
        Problem::WrongLabels(_) => "IPAddressWrongLabels",
        _ => "PortLeaked",
    })
}

fn mend(mend: &Mend) -> &'static str {
    match mend {
        Mend::Nothing => "",
        Mend::CreateAddress(..) => "create the IPAddress",
        Mend::ReplaceAddress(..) => "replace the IPAddress",
        Mend::RecordLoadBalancer(..) => "record the load-balancer address",
        Mend::DeleteAddress(_) => "delete the IPAddress",
        Mend::RecordPort(_) => "record the node port",
        Mend::ReleasePort(_) => "release the node port",
    }
}
