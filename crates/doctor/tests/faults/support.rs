//! A node in a namespace, and its examination.

use portolan_doctor::command::{DoctorOptions, FromApi, examine};
use portolan_doctor::report::Report;
use portolan_doctor::{Code, Finding, Severity};
use portolan_leftovers::{self as leftovers, Keep};
use portolan_node::sysctl::Host;
use portolan_testkit::Namespace;

/// Returns a node without faults: an uplink, a pod, and a default route. The uplink is a bridge, which every kernel has.
pub(crate) fn node(name: &str) -> Namespace {
    let node = Namespace::new(name).expect("a namespace");
    node.ip("link set lo up\n\
             link add eth0 type bridge\n\
             link add veth1 type veth peer name pod1\n\
             link set eth0 up\n\
             link set veth1 up\n\
             link set pod1 up\n\
             addr add 192.0.2.1/24 dev eth0\n\
             route add default via 192.0.2.254 dev eth0\n")
        .expect("links");
    for path in ["net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"] {
        set(&node, path, "1");
    }
    for link in ["all", "lo", "eth0", "veth1", "pod1"] {
        set(&node, &format!("net/ipv4/conf/{link}/rp_filter"), "0");
    }
    set(&node, "net/ipv4/ip_local_port_range", "32768 60999");
    node
}

pub(crate) fn set(node: &Namespace, path: &str, value: &str) {
    node.write_sysctls(&[(path.to_owned(), value)]).expect("a setting");
}

pub(crate) fn setting(node: &Namespace, path: &str) -> String {
    let read = || std::fs::read_to_string(format!("/proc/sys/{path}"));
    node.run(read).expect("the namespace").expect("a setting").trim().to_owned()
}

/// Runs lines of a shell, and stops at the first that fails.
pub(crate) fn shell(node: &Namespace, lines: &str) {
    node.output("sh", &["-ec", lines]).expect("commands of a test");
}

pub(crate) fn nft(node: &Namespace, ruleset: &str) {
    node.output_with_input("nft", &["-f", "-"], ruleset).expect("a ruleset");
}

/// Examines a node.
pub(crate) fn look(node: &Namespace) -> Report {
    with(node, &DoctorOptions::default())
}

/// Examines a node and mends what is safe.
pub(crate) fn fix(node: &Namespace) -> Report {
    with(node, &DoctorOptions { fix: true, ..DoctorOptions::default() })
}

pub(crate) fn with(node: &Namespace, options: &DoctorOptions) -> Report {
    let remove = || {
        // KUBE-FIREWALL is kubelet's, too.
        let (removed, errors) = leftovers::remove(&Keep { firewall: true, ipvs: true, ..Keep::default() });
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        if errors.is_empty() { Ok(format!("{removed:?}")) } else { Err(errors.join("; ")) }
    };
    let examine = || examine(options, &Host::default(), &FromApi::default(), &remove);
    let report = node.run(examine).expect("the namespace");
    assert!(report.unread.is_empty(), "{:?}", report.unread);
    report
}

/// Returns codes and severities.
pub(crate) fn codes(report: &Report) -> Vec<(Code, Severity)> {
    report.findings.iter().map(|finding| (finding.code, finding.severity)).collect()
}

/// Returns the only finding that is no note.
pub(crate) fn only(report: &Report) -> &Finding {
    let found: Vec<&Finding> =
        report.findings.iter().filter(|finding| finding.severity != Severity::Note).collect();
    let [finding] = found.as_slice() else { panic!("{:#?}", report.findings) };
    finding
}

/// Asserts that the only finding is this one, runs its command, and asserts that nothing but notes is found afterwards.
pub(crate) fn is_found_and_mended(node: &Namespace, code: Code, severity: Severity) {
    let report = look(node);
    let finding = only(&report);
    assert_eq!((finding.code, finding.severity), (code, severity), "{finding:#?}");
    shell(node, &finding.mend);
    let after: Vec<_> = codes(&look(node));
    let left: Vec<_> = after.iter().filter(|(_, severity)| *severity != Severity::Note).collect();
    assert!(left.is_empty(), "after `{}`: {left:?}", finding.mend);
}
