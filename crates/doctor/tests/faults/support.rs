//! A node in a namespace, and its examination.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use portolan_doctor::command::{Callbacks, DoctorOptions, FromApi, examine};
use portolan_doctor::facts::{Object, Part};
use portolan_doctor::gather::{Listed, Whose};
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
/// The older iptables does not wait for the lock that all namespaces share: each namespace has its own here.
pub(crate) fn shell(node: &Namespace, lines: &str) {
    let lines = format!("export XTABLES_LOCKFILE=/proc/thread-self/ns/net\n{lines}");
    node.output("sh", &["-ec", &lines]).expect("commands of a test");
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
    on(node, &Host::default(), options)
}

/// Examines a node whose files are those of a host.
pub(crate) fn on(node: &Namespace, host: &Host, options: &DoctorOptions) -> Report {
    let remove = || {
        // KUBE-FIREWALL is kubelet's, too.
        let (removed, errors) = leftovers::remove(&Keep { firewall: true, ipvs: true, ..Keep::default() });
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        if errors.is_empty() { Ok(format!("{removed:?}")) } else { Err(errors.join("; ")) }
    };
    let examine = || {
        let callbacks = Callbacks { list: &list, try_mode: &|_| Ok(Vec::new()), remove: &remove };
        examine(options, host, &FromApi::default(), callbacks)
    };
    let report = node.run(examine).expect("the namespace");
    assert!(report.unread.is_empty(), "{:?}", report.unread);
    report
}

/// Lists what only the IPVS mode has. The tests of crate cli list tables and policy routing, too.
fn list(whose: Whose) -> Listed {
    let (objects, errors) = match whose {
        Whose::All => leftovers::find_ipvs(&[]),
        Whose::Portolans => {
            let (found, errors) = leftovers::find_own(&[]);
            (found.objects, errors)
        }
    };
    assert!(errors.is_empty(), "{errors:?}");
    let object =
        |object: leftovers::Object| Object { part: Part::Ipvs, kind: object.kind.name(), name: object.name };
    Listed { objects: objects.into_iter().map(object).collect(), unread: Vec::new() }
}

/// A process with the name and arguments of a proxy. It waits for the end of its input.
pub(crate) struct Proxy {
    process: Child,
    _folder: tempfile::TempDir,
}

impl Proxy {
    /// Starts it in the nftables mode.
    pub(crate) fn start(node: &Namespace, name: &str) -> Self {
        Self::with(node, name, &["--proxy-mode=nftables"])
    }

    pub(crate) fn with(node: &Namespace, name: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let program: PathBuf = folder.path().join(name);
        // A symbolic link, because a copy that is still open for writing in another test's child cannot be run.
        std::os::unix::fs::symlink("/bin/sh", &program).expect("a link to the shell");
        let mut command = node.command(&program);
        command.args(["-c", "read end", "proxy"]).args(arguments).stdin(Stdio::piped());
        Self { process: command.spawn().expect("a process"), _folder: folder }
    }

    /// Starts it with a command line that is only a title, as k3s has it.
    pub(crate) fn titled(node: &Namespace, title: &str) -> Self {
        let mut command = node.command("/bin/bash");
        command.args(["-c", &format!("exec -a '{title}' cat")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process");
        // cat answers when it has the title.
        process.stdin.as_mut().expect("its input").write_all(b"x").expect("a byte to it");
        process.stdout.take().expect("its output").read_exact(&mut [0]).expect("a byte of it");
        Self { process, _folder: tempfile::tempdir().expect("a scratch folder") }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn end(mut self) {
        drop(self.process.stdin.take());
        self.process.wait().expect("the end of a process");
    }
}

pub(crate) fn own_table(node: &Namespace) {
    nft(node, "table ip portolan { chain services { }; }");
}

pub(crate) fn upstream_table(node: &Namespace) {
    nft(node, "table ip kube-proxy { chain services { }; }");
}

pub(crate) fn upstream_chains(node: &Namespace) {
    shell(
        node,
        "iptables-nft -t nat -N KUBE-SERVICES
         iptables-nft -t nat -N KUBE-MARK-MASQ
         iptables-nft -t nat -N KUBE-SVC-XRY76EGRC3BSCIIJ
         iptables-nft -t nat -A KUBE-SERVICES -d 10.96.0.10/32 -p tcp --dport 80 -j KUBE-SVC-XRY76EGRC3BSCIIJ
         iptables-nft -t nat -A PREROUTING -j KUBE-SERVICES",
    );
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
