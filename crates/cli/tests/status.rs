//! The control socket, the state document and `portolan status`, with the real binary. Needs root, nft and iptables, and
//! fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;
#[path = "status/counters.rs"]
mod counters;
#[path = "status/live.rs"]
mod live;

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use portolan_testkit::{PortolanProcess, Protocol, eventually};
use serde_json::Value;
use tempfile::TempDir;

use common::gate::Gate;
use common::kernel::nft;
use common::load::busy_services;
use common::{BINARY, Cluster, PATIENCE, at, http, in_sync, logged, objects, programs, reaches};

const LISTENING: &str = "listening on the control socket";
const NO_SOCKET: &str = "no control socket";
const METRICS: &str = "127.0.0.1:10249";

/// The output of one run of `portolan status`.
struct Shown {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Shown {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.stdout, self.stderr))
    }
}

/// Runs `portolan status` on a control socket.
fn status(socket: &Path, arguments: &[&str]) -> Shown {
    let output =
        Command::new(BINARY).arg("status").arg("--socket").arg(socket).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Shown { code: output.status.code().unwrap(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// Waits until the state document satisfies a condition. Returns it with the exit status.
fn until(proxy: &PortolanProcess, socket: &Path, what: &str, is: impl Fn(&Value) -> bool) -> (Value, i32) {
    let mut last = (Value::Null, 0);
    let outcome = eventually(PATIENCE, what, || {
        let shown = status(socket, &["-o", "json"]);
        last = (shown.json(), shown.code);
        is(&last.0)
    });
    assert!(outcome.is_ok(), "{what}: {:#}\n{}", last.0, proxy.output());
    last
}

fn codes(state: &Value) -> Vec<&str> {
    state["problems"].as_array().unwrap().iter().map(|problem| problem["code"].as_str().unwrap()).collect()
}

#[test]
fn the_state_follows_the_kernel() {
    let mut cluster = Cluster::new();
    busy_services(&cluster);
    let socket = cluster.control_socket();
    cluster.stop_server();
    let mut proxy = cluster.start_proxy("");
    logged(&mut proxy, LISTENING, 1);
    let (state, code) = until(&proxy, &socket, "an answer", |_| true);
    assert_eq!((code, &state["inSync"]), (1, &Value::from(false)), "{state:#}");
    assert_eq!(codes(&state)[0], "notReady");
    assert_eq!(state["families"], Value::Array(Vec::new()));
    assert!(state["health"]["waitingFor"].to_string().contains("the list of Services"), "{state:#}");
    let shown = status(&socket, &["--service", "default/v4"]);
    assert_eq!(shown.code, 3);
    assert!(shown.stderr.contains("the Services are not known completely yet"), "{}", shown.stderr);

    cluster.restart_server();
    in_sync(&mut proxy);
    let is_good = |state: &Value| state["inSync"] == true && codes(state).is_empty();
    let (state, code) = until(&proxy, &socket, "in sync", is_good);
    assert_eq!(code, 0, "{state:#}");
    assert_eq!(
        (&state["version"], &state["mode"], &state["agent"]["node"]),
        (&1.into(), &"nftables".into(), &"node1".into())
    );
    assert_eq!(state["agent"]["pid"], proxy.id());
    assert_eq!(state["objects"]["services"], 2);
    assert_eq!(state["configuration"]["clusterCIDR"], "10.244.0.0/16,fd00:10:244::/48");
    assert!(state["conntrack"]["max"].as_u64().unwrap() > 0);
    assert!(state["relay"].is_null() && state["capture"].is_null());
    let [v4, v6] = state["families"].as_array().unwrap().as_slice() else {
        panic!("two families: {state:#}")
    };
    for (family, name) in [(v4, "IPv4"), (v6, "IPv6")] {
        assert_eq!((&family["family"], &family["services"]), (&name.into(), &1.into()));
        // Each Service has a TCP and a UDP port with three endpoints.
        assert_eq!((&family["servicePorts"], &family["endpoints"]), (&2.into(), &6.into()));
        let start = family["syncs"].as_array().unwrap().last().unwrap();
        assert_eq!((&start["reason"], &start["full"]), (&"start".into(), &true.into()), "{start:#}");
        assert!(start["elements"].as_u64().unwrap() > 0 && start["durationSeconds"].as_f64().unwrap() > 0.0);
    }
    let watches = state["watches"].as_array().unwrap();
    assert!(watches.len() == 4 && watches.iter().all(|watch| watch["ageSeconds"].is_number()), "{watches:?}");

    // A change is named, and a repair is counted.
    cluster.service(objects::cluster_ip("late", "10.96.0.78"), &[&cluster.world.pods()[0]]);
    reaches(
        cluster.world.client().namespace(),
        Protocol::Tcp,
        at("10.96.0.78:80"),
        &[&cluster.world.pods()[0]],
    );
    let (state, _) = until(&proxy, &socket, "the change", |state| {
        let syncs = state["families"][0]["syncs"].as_array().unwrap();
        syncs.iter().any(|sync| sync["examples"].to_string().contains("default/late"))
    });
    assert_eq!(state["families"][1]["services"], 1, "{state:#}");
    nft(cluster.world.node().namespace(), "flush map ip portolan services");
    let (state, _) = until(&proxy, &socket, "the repair", |state| {
        state["families"][0]["drift"]["repaired"] == 1 && state["inSync"] == true
    });
    assert_eq!(codes(&state), ["drift"]);
    assert_eq!(state["families"][1]["drift"]["noticed"], 0);

    // The same on the metrics port, and as text and YAML.
    let node = cluster.world.node().namespace();
    let page = http::get(node, at(METRICS), "/debug/portolan/state").unwrap();
    assert_eq!(page.status, 200);
    let page: Value = serde_json::from_str(&page.body).unwrap();
    assert_eq!(page["families"][0]["family"], "IPv4");
    let by_url = || {
        let shown = node.output(BINARY, &["status", "--url", &format!("http://{METRICS}")]);
        shown.unwrap_or_else(|error| error.to_string())
    };
    shows(by_url, |text| text.starts_with("In sync: the kernel has every Service (mode nftables"));
    let text = || {
        let shown = status(&socket, &[]);
        format!("exit code {}\n{}", shown.code, shown.stdout)
    };
    let is_repaired =
        |text: &str| text.starts_with("exit code 0\n") && text.contains("another program changed the rules");
    shows(text, is_repaired);
    let yaml = || status(&socket, &["-o", "yaml"]).stdout;
    shows(yaml, |yaml| {
        let read: Value = serde_saphyr::from_str(yaml).unwrap();
        read["inSync"] == true && read["mode"] == "nftables"
    });
}

#[test]
fn an_api_server_that_does_not_answer_is_a_problem_and_services_stay_in_sync() {
    let mut cluster = Cluster::new();
    busy_services(&cluster);
    let socket = cluster.control_socket();
    let proxy = cluster.proxy();
    let is_good = |state: &Value| state["inSync"] == true && codes(state).is_empty();
    until(&proxy, &socket, "in sync", is_good);
    cluster.stop_server();
    let (state, code) = until(&proxy, &socket, "the failures", |state| codes(state) == ["watchFails"]);
    assert_eq!((code, &state["inSync"]), (0, &true.into()), "{state:#}");
    let failures = state["watches"].as_array().unwrap().iter().map(|watch| &watch["failure"]);
    assert!(failures.clone().any(|failure| failure["times"].as_u64() > Some(1)), "{state:#}");
    shows(
        || status(&socket, &[]).stdout,
        |text| text.starts_with("In sync: the kernel has the last known state"),
    );
    cluster.restart_server();
    until(&proxy, &socket, "the API server", is_good);
}

/// Waits until an output is as it should be. On a busy machine the engine may answer too late, and the state says so.
fn shows(output: impl Fn() -> String, is: impl Fn(&str) -> bool) {
    let mut last = String::new();
    let outcome = eventually(PATIENCE, "the right output", || {
        last = output();
        is(&last)
    });
    assert!(outcome.is_ok(), "{last}");
}

#[test]
fn one_service_and_pages_of_services() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let proxy = cluster.proxy();
    let socket = cluster.control_socket();
    // The log may say so before the state does.
    until(&proxy, &socket, "in sync", |state| state["inSync"] == true);
    let shown = status(&socket, &["--service", "default/v4"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    for part in [
        "default/v4\n",
        "cluster IP        10.96.0.10:80 (traffic policy Cluster)",
        "node port         30080",
        "8080",
    ] {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
    let page = status(&socket, &["--service", "default/v4", "-o", "json"]).json();
    let port = &page["services"][0]["ports"][0];
    assert_eq!(port["endpoints"].as_array().unwrap().len(), 3, "{page:#}");
    let candidates = port["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 3, "{page:#}");
    for candidate in candidates {
        let (used, code) = (&candidate["cluster"]["used"], &candidate["cluster"]["code"]);
        assert_eq!((used, code), (&true.into(), &"endpoint-ready".into()), "{candidate:#}");
    }
    let missing = status(&socket, &["--service", "default/none"]);
    assert_eq!(
        (missing.code, missing.stdout.as_str()),
        (1, "The proxy knows no port of the Service default/none.\n")
    );
    let node = cluster.world.node().namespace();
    let get =
        |query: &str| http::get(node, at(METRICS), &format!("/debug/portolan/services{query}")).unwrap();
    let first: Value = serde_json::from_str(&get("?limit=1").body).unwrap();
    assert_eq!(
        (&first["services"][0]["name"], &first["next"]),
        (&"v4".into(), &"default/v4".into()),
        "{first:#}"
    );
    let second: Value = serde_json::from_str(&get("?limit=1&after=default/v4").body).unwrap();
    assert_eq!((&second["services"][0]["name"], &second["next"]), (&"v6".into(), &Value::Null), "{second:#}");
    assert!(first["services"][0]["ports"][0]["candidates"].is_null(), "{first:#}");
    for search in ["v6", "fd00:96::10", "ault/v6"] {
        let found: Value = serde_json::from_str(&get(&format!("?search={search}")).body).unwrap();
        let names: Vec<_> = found["services"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["v6"], "{search}");
    }
    let wrong = get("?limit=0");
    assert_eq!((wrong.status, wrong.body.as_str()), (400, "limit: `0` is not a number from 1 to 1000\n"));
    assert_eq!(http::get(node, at(METRICS), "/debug/portolan/other").unwrap().status, 404);
}

#[test]
fn the_web_page_comes_with_its_policy() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    let node = cluster.world.node().namespace();
    let page = http::get(node, at(METRICS), "/debug/portolan/").unwrap();
    assert_eq!(page.status, 200);
    assert!(page.body.starts_with("<!doctype html>") && page.body.ends_with("</html>\n"), "{}", page.body);
    for header in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; script-src 'sha256-",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
        "referrer-policy: no-referrer",
    ] {
        assert!(page.head.contains(header), "{header}: {}", page.head);
    }
}

/// Programs that restore rules, in front of those of the node. They wait at the gate while it is shut, and fail while
/// there is a file `fail`.
struct Programs {
    folder: TempDir,
    gate: Gate,
}

impl Programs {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (gate, fail) = (Gate::new(folder.path()), folder.path().join("fail"));
        let script = |own: &Path| {
            format!(
                "{}[ ! -e {} ] || {{ echo broken >&2; exit 1; }}\nexec {} \"$@\"\n",
                gate.line(),
                fail.display(),
                own.display()
            )
        };
        programs::in_front(folder.path(), &["-restore", "-nft-restore", "-legacy-restore"], script);
        Self { folder, gate }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the proxy in iptables mode with these programs.
    fn proxy(&self, cluster: &Cluster) -> PortolanProcess {
        cluster.configure("mode: iptables\n");
        let (file, master, socket) =
            (cluster.configuration_file(), cluster.master(), cluster.control_socket());
        let [file, socket] = [&file, &socket].map(|path| path.to_str().unwrap());
        let arguments = ["proxy", "--config", file, "--master", &master, "--control-socket", socket];
        let path = programs::path(self.folder.path());
        let node = cluster.world.node().namespace();
        let mut proxy =
            PortolanProcess::start_with_environment(node, BINARY.as_ref(), &arguments, &[("PATH", &path)])
                .unwrap();
        in_sync(&mut proxy);
        proxy
    }
}

#[test]
fn a_failed_commit_is_not_in_sync_until_it_is_mended() {
    let (cluster, programs) = (Cluster::new(), Programs::new());
    let proxy = programs.proxy(&cluster);
    let socket = cluster.control_socket();
    until(&proxy, &socket, "in sync", |state| state["inSync"] == true);
    fs::write(programs.file("fail"), "").unwrap();
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[&cluster.world.pods()[0]]);
    let (state, code) = until(&proxy, &socket, "the failure", |state| {
        // While the engine is busy, the state is that before the commit.
        let failures = state["families"][0]["failures"].as_array();
        state["engineAnswered"] == true && failures.is_some_and(|failures| !failures.is_empty())
    });
    assert_eq!((code, codes(&state)), (1, vec!["notInSync"]), "{state:#}");
    let v4 = &state["families"][0];
    assert_eq!((&v4["sync"], &v4["reason"]), (&"comparing".into(), &"failure".into()));
    assert!(v4["failures"][0]["error"].as_str().unwrap().contains("broken"), "{v4:#}");
    assert!(v4["failures"][0]["examples"].is_array() && v4["since"]["ageSeconds"].is_number());
    assert_eq!(state["families"][1]["sync"], "inSync", "the other family");
    let text = status(&socket, &[]);
    assert!(text.stdout.starts_with("NOT IN SYNC") && text.stdout.contains("FAILED: "), "{}", text.stdout);
    fs::remove_file(programs.file("fail")).unwrap();
    let (state, code) = until(&proxy, &socket, "mended", |state| state["inSync"] == true);
    assert_eq!(code, 0);
    assert_eq!(state["families"][0]["syncs"][0]["reason"], "failure", "{state:#}");
}

#[test]
fn an_answer_does_not_wait_for_a_commit() {
    let (cluster, programs) = (Cluster::new(), Programs::new());
    let proxy = programs.proxy(&cluster);
    let socket = cluster.control_socket();
    let (before, _) = until(&proxy, &socket, "in sync", |state| state["inSync"] == true);
    programs.gate.hold();
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[&cluster.world.pods()[0]]);
    let held = programs.gate.held(&proxy);
    let (state, code) = until(&proxy, &socket, "a long commit", |state| state["engineAnswered"] == false);
    assert_eq!((code, codes(&state)), (1, vec!["engineBusy"]), "{state:#}");
    assert_eq!(state["families"][0]["family"], before["families"][0]["family"], "as it was before");
    let livez = http::get(cluster.world.node().namespace(), at("127.0.0.1:10256"), "/livez").unwrap();
    assert_eq!(livez.status, 200);
    programs.gate.release(held);
    until(&proxy, &socket, "in sync again", |state| state["inSync"] == true);
}

#[test]
fn the_userspace_mode_shows_its_relay_and_what_it_refuses() {
    let cluster = Cluster::new();
    let proxy = cluster.proxy_with("mode: userspace\n");
    let socket = cluster.control_socket();
    let mut sctp = objects::cluster_ip("signals", "10.96.0.77");
    sctp["spec"]["ports"] = serde_json::json!([{"name": "sctp", "port": 80, "protocol": "SCTP"}]);
    cluster.service(sctp, &[&cluster.world.pods()[0]]);
    let (state, code) =
        until(&proxy, &socket, "the refusal", |state| state["families"][0]["refusedCount"] == 1);
    assert!(code == 0 && codes(&state).contains(&"servicePortsRefused"), "{state:#}");
    let refused = &state["families"][0]["refused"][0];
    assert_eq!(
        (&refused["servicePort"], &refused["protocol"]),
        (&"default/signals:sctp".into(), &"SCTP".into())
    );
    assert_eq!((&state["mode"], &state["relay"]["draining"]), (&"userspace".into(), &0.into()));
    assert!(["tproxy", "redirect"].contains(&state["capture"].as_str().unwrap()));
    let shown = status(&socket, &["--service", "default/signals"]);
    assert!(shown.stdout.contains("NOT PROGRAMMED: "), "{}", shown.stdout);
    cluster.delete(portolan_serve::Resource::Service, "signals");
    until(&proxy, &socket, "no refusal", |state| state["families"][0]["refusedCount"] == 0);
}

#[test]
fn the_socket_is_for_one_proxy_and_goes_with_it() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("run/proxy.sock");
    let argument = format!("--control-socket={}", socket.display());
    let arguments = [argument.as_str(), "--control-socket-group=4711"];
    let mut first = cluster.proxy_with_arguments("", &arguments);
    logged(&mut first, LISTENING, 1);
    let file = fs::metadata(&socket).unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!(file.permissions().mode() & 0o7777, 0o660);
    assert_eq!(std::os::unix::fs::MetadataExt::gid(&file), 4711);
    // Another proxy works without a socket, and opens it when it is free.
    let mut second = other.proxy_with_arguments("", &arguments);
    logged(&mut second, NO_SOCKET, 1);
    assert!(second.output().contains("another process listens on"), "{}", second.output());
    assert_eq!(status(&socket, &["-o", "json"]).json()["agent"]["pid"], first.id());
    first.terminate(PATIENCE).unwrap();
    logged(&mut second, LISTENING, 1);
    assert_eq!(status(&socket, &["-o", "json"]).json()["agent"]["pid"], second.id());
    assert_eq!(second.output().matches(NO_SOCKET).count(), 1, "{}", second.output());
    // The socket of a killed proxy is replaced.
    second.kill().unwrap();
    assert!(socket.exists());
    let shown = status(&socket, &[]);
    assert!(shown.code == 2 && shown.stderr.contains("no proxy answers"), "{}", shown.stderr);
    let mut third = cluster.proxy_with_arguments("", &arguments);
    logged(&mut third, LISTENING, 1);
    assert_eq!(status(&socket, &["-o", "json"]).json()["agent"]["pid"], third.id());
    third.terminate(PATIENCE).unwrap();
    assert!(!socket.exists(), "{}", third.output());
}

#[test]
fn a_proxy_without_a_socket_works() {
    let cluster = Cluster::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let below = format!("--control-socket={}/proxy.sock", file.display());
    let mut proxy = cluster.proxy_with_arguments("", &[&below]);
    logged(&mut proxy, NO_SOCKET, 1);
    assert!(proxy.output().contains("portolan.controlSocket"), "the mend: {}", proxy.output());
    drop(proxy);
    let proxy = cluster.proxy_with_arguments("", &["--control-socket="]);
    assert!(!proxy.output().contains("control socket"), "{}", proxy.output());
}

#[test]
fn other_users_may_not_ask_and_other_hosts_only_if_the_configuration_allows_it() {
    let cluster = Cluster::new();
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = folder.path().join("proxy.sock");
    let argument = format!("--control-socket={}", socket.display());
    let mut proxy = cluster.proxy_with_arguments("metricsBindAddress: 0.0.0.0:10249\n", &[&argument]);
    logged(&mut proxy, LISTENING, 1);
    let copy = folder.path().join("portolan");
    common::copy_binary(&copy);
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = Command::new("setpriv");
    let output = command.args(user).arg(copy).arg("status").arg("--socket").arg(&socket).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("no permission to ask the proxy") && stderr.contains("controlSocketGroup"),
        "{stderr}"
    );

    let node = cluster.world.node().namespace();
    let answers = |path: &str| http::get(node, at(METRICS), path).unwrap().status;
    let state = || answers("/debug/portolan/state");
    assert_eq!((state(), answers("/debug/portolan/"), answers("/debug/portolan/services")), (404, 404, 404));
    let shown = node.output(BINARY, &["status", "--url", &format!("http://{METRICS}")]);
    assert!(shown.unwrap_err().to_string().contains("portolan.stateOnAnyAddress"));
    cluster.configure("metricsBindAddress: 0.0.0.0:10249\nportolan: {stateOnAnyAddress: true}\n");
    let outcome = eventually(PATIENCE, "the state on any address", || state() == 200);
    assert!(outcome.is_ok(), "{}", proxy.output());
    assert_eq!(answers("/debug/portolan/"), 200);
}
