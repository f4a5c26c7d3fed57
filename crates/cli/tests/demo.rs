//! `portolan demo` as root, as another user, and interrupted. Needs root, and fails without.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use portolan_testkit::{can_create_namespaces, eventually};
use rustix::process::{Pid, Signal, kill_process};

/// Environment variable of the demo and of all its child processes.
const MARK: &str = "PORTOLAN_TEST_OF_DEMO";
const GONE_WITHIN: Duration = Duration::from_secs(60);
const UNPRIVILEGED: [&str; 6] = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];

/// Output of steps with a cluster.
const CLUSTER: [&str; 8] = [
    "TCP from a pod, a pod of the other node, the node: cluster IP  180 of 180 answered, by 3 backends",
    "TCP from outside and from a pod: node port, load balancer      180 of 180 answered, by 3 backends",
    "TCP from a backend to its own Service (hairpin)                60 of 60 answered, by 3 backends",
    "UDP: cluster IP, node port, load balancer                      180 of 180 answered, by 3 backends",
    "IPv6, TCP and UDP                                              180 of 180 answered, by 3 backends",
    "started again: it finds everything as it should be             0 commits",
    " requests, 0 failed",
    "All 21 steps went as expected",
];
/// Output of steps with a host without Kubernetes.
const HOST: [&str; 7] = [
    "from the client: load-balancer address and node port           120 of 120 answered, by 3 backends",
    "on the host: the name web.default.svc.cluster.local            10.96.",
    "60 of 60 answered, by 3 backends",
    "from the client: load-balancer address and node port           120 of 120 answered, by 2 backends",
    "60 of 60 answered, by 2 backends",
    " made, 0 failed)",
    "All 11 steps went as expected",
];

#[test]
fn as_root() {
    assert!(can_create_namespaces(), "run this as root: it makes network namespaces");
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.arg("demo");
    assert_complete(&mut command, &CLUSTER, "as_root");
}

#[test]
fn a_host_without_kubernetes() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.args(["demo", "up"]);
    assert_complete(&mut command, &HOST, "up");
}

/// If the kernel refuses user namespaces, the demo has to say so.
#[test]
fn as_plain_user() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The build folder may be readable by its owner only.
    let binary = folder.path().join("portolan");
    // A child that another test starts meanwhile would have an open file of this process, and the kernel starts no program from
    // a file that is open for writing.
    let mut copy = Command::new("cp");
    copy.args(["--preserve=mode", env!("CARGO_BIN_EXE_portolan")]).arg(&binary);
    assert!(copy.status().unwrap().success());
    let mut command = as_nobody(&binary);
    command.arg("demo");
    let allowed = as_nobody("unshare".as_ref()).args(["--user", "--map-root-user", "--net", "true"]).output();
    if allowed.unwrap().status.success() {
        assert_complete(&mut command, &CLUSTER, "as_plain_user");
        let mut command = as_nobody(&binary);
        command.args(["demo", "up"]);
        assert_complete(&mut command, &HOST, "up_as_plain_user");
    } else {
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains("allow user namespaces"), "{errors}");
    }
}

#[test]
fn no_process_and_no_namespace_is_left_however_it_ends() {
    let cluster = "portolan proxy: the node agent";
    let host = "portolan up, with the Service web";
    for (arguments, signal, line) in [
        (["demo", "--keep"], Signal::INT, "Everything stays up until Ctrl-C"),
        (["demo", "--keep"], Signal::TERM, cluster),
        (["demo", "--keep"], Signal::KILL, cluster),
        (["demo", "up"], Signal::INT, host),
        (["demo", "up"], Signal::TERM, host),
        (["demo", "up"], Signal::KILL, host),
    ] {
        interrupt(&arguments, signal, line);
    }
}

/// Sends a signal when the demo has printed a line, by which its proxy runs. Asserts that the signal ends it, and that nothing is
/// left but the files that may stay.
fn interrupt(arguments: &[&str], signal: Signal, line: &str) {
    let what = format!("{arguments:?} {signal:?}");
    let files = tempfile::tempdir().unwrap();
    // A shell starts background commands with SIGINT ignored, which may include this test.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_portolan")]).args(arguments);
    command.env(MARK, &what).env("TMPDIR", files.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut demo = command.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    assert!(lines.any(|printed| printed.unwrap().contains(line)), "{what}");
    let running = processes(&what);
    assert!(running.len() > 1, "{what}: the proxy runs, too: {running:?}");
    let namespaces = namespaces(&running);
    assert!(namespaces.len() > 1, "{what}: {namespaces:?}");

    let process = Pid::from_raw(demo.id().try_into().unwrap()).unwrap();
    kill_process(process, signal).unwrap();
    assert_eq!(demo.wait().unwrap().signal(), Some(signal.as_raw()), "{what}");
    assert_nothing_runs(&what);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let held: Vec<_> = namespaces.iter().filter(|namespace| mounts.contains(*namespace)).collect();
    assert!(held.is_empty(), "{what}: {held:?} are mounted");
    for file in names(files.path()) {
        // Former values of kernel settings, and the folder of manifests.
        let may_stay =
            file.starts_with("portolan-state-") || (arguments == ["demo", "up"] && file.starts_with(".tmp"));
        assert!(may_stay, "{what}: {file}");
    }
}

#[test]
fn says_what_is_missing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    let output = command.arg("demo").env("PATH", "/nowhere").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("ip could not be started") && errors.contains("is it installed?"), "{errors}");
}

/// Runs the demo to its end. Asserts success, the output of its steps, plain text, and that nothing is left.
fn assert_complete(command: &mut Command, steps: &[&str], mark: &str) {
    let files = tempfile::tempdir().unwrap();
    fs::set_permissions(files.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = command.env(MARK, mark).env("TMPDIR", files.path()).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for line in steps {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "escape sequences where there is no terminal:\n{text}");
    assert_nothing_runs(mark);
    assert_eq!(names(files.path()), Vec::<String>::new(), "{mark}");
}

fn assert_nothing_runs(mark: &str) {
    let ended =
        eventually(GONE_WITHIN, "the end of all processes of the demo", || processes(mark).is_empty());
    assert!(ended.is_ok(), "{mark}: {:?}", processes(mark));
}

/// Returns the names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns the network namespaces of the threads of these processes, such as `net:[4026532000]`, other than that of this test.
fn namespaces(processes: &[PathBuf]) -> BTreeSet<String> {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let threads = processes.iter().filter_map(|process| fs::read_dir(process.join("task")).ok()).flatten();
    // A thread may have ended since.
    let all = threads.filter_map(|thread| fs::read_link(thread.ok()?.path().join("ns/net")).ok());
    all.filter(|namespace| *namespace != own).map(|namespace| namespace.display().to_string()).collect()
}

/// Returns the processes of the demo with this mark, except zombies.
fn processes(mark: &str) -> Vec<PathBuf> {
    let needle = format!("{MARK}={mark}\0");
    let of_demo = |process: &Path| {
        fs::read(process.join("environ")).is_ok_and(|environment| contains(&environment, needle.as_bytes()))
    };
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    all.filter(|process| of_demo(process)).collect()
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(UNPRIVILEGED).arg(program);
    command
}
