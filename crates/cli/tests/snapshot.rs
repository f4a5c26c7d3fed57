//! `portolan snapshot` beside the proxy: what is in the file, what is not, and its replay by `portolan explain` and
//! `portolan plan`. Needs root,
//! nft and iptables, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use portolan_model::Family;
use portolan_recorder::{Entry, Verb};
use portolan_snapshot::{Snapshot, pack};
use portolan_testkit::{Namespace, PortolanProcess, Protocol, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

use common::kernel::nft;
use common::{BINARY, Cluster, PATIENCE, at, configuration, http, in_sync, logged, objects, reaches};

const LISTENING: &str = "listening on the control socket";
const VIP: &str = "10.96.0.10";

/// Exit status, standard output and standard error of a run.
struct Run {
    status: Option<i32>,
    out: String,
    err: String,
}

fn run(namespace: &Namespace, arguments: &[&str]) -> Run {
    let output = namespace.run(|| Command::new(BINARY).args(arguments).output().unwrap()).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a snapshot on the node, and reads it.
fn take(node: &Namespace, socket: &Path, file: &Path) -> Snapshot {
    let taken = run(node, &["snapshot", "-o", path(file), "--force", "--control-socket", path(socket)]);
    assert_eq!(taken.status, Some(0), "{}", taken.err);
    Snapshot::read(file).unwrap()
}

/// Waits until a snapshot satisfies a condition.
fn until(
    node: &Namespace,
    socket: &Path,
    file: &Path,
    what: &str,
    is: impl Fn(&Snapshot) -> bool,
) -> Snapshot {
    let mut last = None;
    let outcome = eventually(PATIENCE, what, || {
        let snapshot = take(node, socket, file);
        let is_it = is(&snapshot);
        last = Some(snapshot);
        is_it
    });
    let last = last.unwrap();
    assert!(outcome.is_ok(), "{what}: {:#?}", last.history);
    last
}

/// What an answer says of Services, without names of pods and nodes, which a snapshot does not have.
fn meaning(report: &Value) -> Value {
    let wanted = &report["wanted"];
    let endpoints = wanted["endpoints"].as_array().into_iter().flatten();
    let endpoint = |of: &Value| json!([of["endpoint"], of["used"], of["code"], of["masqueraded"]]);
    let steps = wanted["steps"].as_array().unwrap().iter().map(|step| step["code"].clone());
    json!({
        "mode": report["mode"], "node": report["node"], "from": report["from"]["address"],
        "to": report["to"],
        "fate": wanted["fate"], "decidedBy": wanted["decidedBy"], "masquerade": wanted["masquerade"],
        "affinity": wanted["affinity"], "steps": steps.collect::<Vec<_>>(),
        "endpoints": endpoints.map(endpoint).collect::<Vec<_>>(), "programmed": report["programmed"],
    })
}

fn report(run: &Run) -> Value {
    serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {} {}", run.out, run.err))
}

/// The same question about a snapshot, elsewhere and without privileges for the kernel, and about the objects and the kernel
/// of the node has the same answer.
fn replays(cluster: &Cluster, mode: &str, folder: &Path, snapshot: &Path) {
    let list =
        json!({ "apiVersion": "v1", "kind": "List", "items": Snapshot::read(snapshot).unwrap().objects });
    let manifests = folder.join("objects.json");
    fs::write(&manifests, list.to_string()).unwrap();
    let (node, elsewhere) = (cluster.world.node().namespace(), Namespace::new("elsewhere").unwrap());
    let client = cluster.world.pods()[1].address(Family::Ipv4).to_string();
    let node_address = cluster.world.node().address(Family::Ipv4);
    let config = cluster.configuration_file();
    let node_port = format!("{node_address}:30080");
    let questions = [
        [client.as_str(), "svc/web:80/tcp"],
        ["node", "10.96.0.10:80/udp"],
        ["outside", &node_port],
        ["outside", "192.0.2.200:80"],
        [&client, "10.96.0.11:80"],
        ["node", "10.96.0.99:80"],
        [&client, "10.96.0.10:81"],
        ["outside", "[fd00:96::10]:80"],
    ];
    for [from, to] in questions {
        let asked = ["explain", from, to, "-o=json"];
        let offline = run(&elsewhere, &[&asked[..], &["--snapshot", path(snapshot)]].concat());
        let on_node = ["--manifests", path(&manifests), "--kernel", "--config", path(&config)];
        let beside = run(node, &[&asked[..], &on_node, &["--hostname-override=node1"]].concat());
        let (mut replayed, answered) = (report(&offline), report(&beside));
        // A snapshot has no routes, and the IPVS mode adds the addresses of Services to the node, so the node sends from them.
        if mode == "ipvs" && from == "node" {
            replayed["from"]["address"] = answered["from"]["address"].clone();
        }
        assert_eq!(meaning(&replayed), meaning(&answered), "{from} {to}: {}", offline.err);
        assert_eq!(offline.status, beside.status, "{from} {to}");
        assert!(replayed["programmed"]["asWanted"].is_boolean(), "{replayed:#}");
        let mut notes = replayed["notes"].as_array().unwrap().iter();
        assert!(notes.any(|note| note["code"] == "connections-not-read"), "{replayed:#}");
        assert_eq!(replayed["mode"], mode);
    }
}

/// Checks that commits say what they wrote, in the words of the mode's programs.
fn has_messages(snapshot: &Snapshot, mode: &str) {
    let commits = snapshot.history.records.iter().filter_map(|record| match &record.entry {
        Entry::Commit(commit) if commit.error.is_none() => Some(commit),
        _ => None,
    });
    let word = match mode {
        "nftables" | "userspace" => "add set ip portolan",
        "iptables" => ":KUBE-",
        _ => "ipset add KUBE-",
    };
    let lines: Vec<&String> = commits.flat_map(|commit| &commit.messages).collect();
    assert!(lines.iter().any(|line| line.starts_with(word)), "{word}: {lines:#?}");
}

fn is_replayed(cluster: &Cluster, mode: &str) {
    let (node, folder) = (cluster.world.node().namespace(), TempDir::new().unwrap());
    let (socket, file) = (cluster.control_socket(), folder.path().join("s.json.gz"));
    let mut web = objects::load_balancer("web", VIP, 30080, "192.0.2.200");
    web["spec"]["loadBalancerSourceRanges"] = json!(["203.0.113.0/24"]);
    cluster.service(web, &cluster.all_pods());
    let mut local = objects::cluster_ip("local", "10.96.0.11");
    local["spec"]["internalTrafficPolicy"] = "Local".into();
    cluster.service(local, &[&cluster.world.remote_pods()[0]]);
    let mut sticky = objects::cluster_ip("v6", "fd00:96::10");
    sticky["spec"]["sessionAffinity"] = "ClientIP".into();
    cluster.service(sticky, &cluster.all_pods()[..1]);
    let mut proxy = cluster.proxy_with(&format!("mode: {mode}\n"));
    logged(&mut proxy, LISTENING, 1);
    let vip = at(&format!("{VIP}:80"));
    reaches(cluster.world.client().namespace(), Protocol::Tcp, vip, &cluster.all_pods());
    let snapshot = take(node, &socket, &file);
    assert_eq!((&*snapshot.state.mode, &*snapshot.node.name), (mode, "node1"));
    has_messages(&snapshot, mode);
    assert_eq!(snapshot.programmed.len(), 2, "{:?}", snapshot.unread);
    assert!(!snapshot.kernel.release.is_empty() && snapshot.doctor["findings"].is_array());
    replays(cluster, mode, folder.path(), &file);
}

/// A rule of another program stops a packet; the snapshot says which one.
#[test]
fn rules_of_other_programs_are_in_a_snapshot() {
    let cluster = Cluster::new();
    let (node, folder) = (cluster.world.node().namespace(), TempDir::new().unwrap());
    let (socket, file) = (cluster.control_socket(), folder.path().join("s.json.gz"));
    cluster.service(objects::cluster_ip("web", VIP), &cluster.all_pods());
    let _proxy = cluster.proxy();
    let vip = at(&format!("{VIP}:80"));
    reaches(cluster.world.client().namespace(), Protocol::Tcp, vip, &cluster.all_pods());
    let add = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        node.output("iptables-nft", &arguments).unwrap();
    };
    add("-N ufw-user-forward");
    add("-A FORWARD -j ufw-user-forward");
    add("-A ufw-user-forward -p tcp --dport 8080 -j DROP");
    let snapshot = take(node, &socket, &file);
    assert!(snapshot.rules.is_some(), "{:?}", snapshot.unread);
    let elsewhere = Namespace::new("elsewhere").unwrap();
    let question = ["explain", "outside", &format!("{VIP}:80"), "-o=json", "--snapshot", path(&file)];
    let replayed = run(&elsewhere, &question);
    let report = report(&replayed);
    let obstacle = &report["firewall"][0];
    assert_eq!(obstacle["owner"], "ufw", "{report:#}");
    assert!(obstacle["rule"].as_str().unwrap().ends_with("dport 8080 drop"), "{report:#}");
}

#[test]
fn a_snapshot_of_the_nftables_mode_is_replayed() {
    is_replayed(&Cluster::new(), "nftables");
}

#[test]
fn a_snapshot_of_the_iptables_mode_is_replayed() {
    is_replayed(&Cluster::new(), "iptables");
}

#[test]
fn a_snapshot_of_the_userspace_mode_is_replayed() {
    is_replayed(&Cluster::new(), "userspace");
}

/// Left out without IPVS in the kernel.
#[test]
fn a_snapshot_is_replayed_in_ipvs_mode() {
    let Some(cluster) = common::ipvs::cluster() else { return };
    is_replayed(&cluster, "ipvs");
}

#[test]
fn the_last_syncs_are_recorded() {
    let cluster = Cluster::new();
    let (node, folder) = (cluster.world.node().namespace(), TempDir::new().unwrap());
    let (socket, file) = (cluster.control_socket(), folder.path().join("s.json.gz"));
    let mut proxy = cluster.proxy();
    logged(&mut proxy, LISTENING, 1);
    let pods = cluster.all_pods();
    cluster.service(objects::cluster_ip("web", VIP), &pods[..1]);
    let vip = at(&format!("{VIP}:80"));
    reaches(cluster.world.client().namespace(), Protocol::Tcp, vip, &pods[..1]);
    let is_drift = |entry: &Entry| matches!(entry, Entry::Drift(drift) if drift.family == "IPv4");
    let is_repair = |entry: &Entry| matches!(entry, Entry::Commit(commit) if commit.repaired);
    until(node, &socket, &file, "the drift and its repair", |snapshot| {
        let has = |is: &dyn Fn(&Entry) -> bool| snapshot.history.records.iter().any(|it| is(&it.entry));
        if !has(&is_drift) {
            // The agent records no change that comes before its subscription, so another one follows.
            nft(node, "flush map ip portolan services");
        }
        has(&is_drift) && has(&is_repair)
    });
    cluster.delete(portolan_serve::Resource::Service, "web");
    let is_removal = |entry: &Entry| matches!(entry, Entry::Change(change) if change.after.is_none());
    let snapshot = until(node, &socket, &file, "the removal", |snapshot| {
        snapshot.state.in_sync && snapshot.history.records.iter().any(|record| is_removal(&record.entry))
    });

    // An object comes in, its Service port changes, and a commit writes it.
    let entries: Vec<&Entry> = snapshot.history.records.iter().map(|record| &record.entry).collect();
    let position = |what: &str, is: &dyn Fn(&Entry) -> bool| {
        entries.iter().position(|entry| is(entry)).unwrap_or_else(|| panic!("{what}: {entries:#?}"))
    };
    let start = position("the start", &|entry| matches!(entry, Entry::Note(it) if it.about == "start"));
    let object = position("the object", &|entry| {
        matches!(entry, Entry::Object(event) if event.kind == "Service" && event.name == "web" && event.changed
            && event.verb == Verb::Applied && !event.resource_version.is_empty() && event.kept.contains(VIP))
    });
    let is_slice =
        |entry: &Entry| matches!(entry, Entry::Object(event) if event.kept.starts_with("of web; IPv4"));
    assert!(object < position("the EndpointSlice", &is_slice));
    let change = position(
        "the change",
        &|entry| matches!(entry, Entry::Change(change) if change.service_port == "default/web:tcp" && change.family == "IPv4"),
    );
    let commit = position("the commit", &|entry| {
        matches!(entry, Entry::Commit(commit) if commit.elements > 0 && commit.bytes > 0 && commit.duration_us > 0
            && commit.service_ports.contains(&"default/web:tcp".to_owned()))
    });
    let Entry::Commit(written) = entries[commit] else { panic!("a commit") };
    assert!(
        written
            .messages
            .iter()
            .any(|line| line.starts_with("add element ip portolan ") && line.contains(VIP)),
        "{written:#?}"
    );
    let drift = position("the drift", &is_drift);
    let deletion = position(
        "the deletion",
        &|entry| matches!(entry, Entry::Object(event) if event.verb == Verb::Deleted && event.kind == "Service"),
    );
    assert!(start < object && object < change && change < commit && commit < drift && drift < deletion);
    let sequences: Vec<u64> = snapshot.history.records.iter().map(|record| record.sequence).collect();
    assert_eq!(sequences, (0..snapshot.history.total).collect::<Vec<_>>());

    let shown = run(node, &["snapshot", "show", path(&file)]);
    assert_eq!((shown.status, shown.err.as_str()), (Some(0), ""));
    for part in [
        "node node1, mode nftables, in sync",
        "change  IPv4 default/web:tcp (TCP): ",
        "commit  IPv4 nftables",
        "repaired",
    ] {
        assert!(shown.out.contains(part), "{part}: {}", shown.out);
    }

    // The history ends when the configuration says so, without a restart.
    cluster.configure("portolan: {recorderBytes: 0}\n");
    let off = until(node, &socket, &file, "no history", |snapshot| snapshot.history.limit == 0);
    assert!(off.history.records.is_empty() && off.history.total >= snapshot.history.total);
}

#[test]
fn the_file_is_for_its_owner_and_is_not_replaced_by_accident() {
    let cluster = Cluster::new();
    let (node, folder) = (cluster.world.node().namespace(), TempDir::new().unwrap());
    let socket = cluster.control_socket();
    let mut proxy = cluster.proxy();
    logged(&mut proxy, LISTENING, 1);
    let file = folder.path().join("s.json.gz");
    let snapshot = |more: &[&str]| {
        run(node, &[&["snapshot", "-o", path(&file), "--control-socket", path(&socket)], more].concat())
    };
    let page = http::get(node, at("127.0.0.1:10249"), "/debug/portolan/snapshot").unwrap();
    assert_eq!(page.status, 404, "the metrics port does not serve it");
    fs::write(&file, "precious").unwrap();
    let refused = snapshot(&[]);
    assert_eq!((refused.status, refused.out.as_str()), (Some(1), ""));
    assert!(refused.err.contains("exists; name another file, or replace it with --force"), "{}", refused.err);
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(snapshot(&["--force"]).status, Some(0));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let asked = ["explain", "node", "10.96.0.10:80", "--snapshot", path(&file)];
    let with_flag = run(node, &[&asked[..], &["--proxy-mode=ipvs"]].concat());
    assert!(with_flag.err.contains("leave out --proxy-mode"), "{}", with_flag.err);
    let with_kernel = run(node, &[&asked[..], &["--kernel"]].concat());
    assert!(
        with_kernel.status == Some(1) && with_kernel.err.contains("cannot be used with"),
        "{}",
        with_kernel.err
    );
    fs::write(&file, "something else").unwrap();
    for arguments in [&asked[..], &["snapshot", "show", path(&file)]] {
        let wrong = run(node, arguments);
        assert!(wrong.status == Some(1) && wrong.err.contains("this is no snapshot: "), "{}", wrong.err);
    }
    assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
    let alone = snapshot(&["--force"]);
    assert!(alone.status == Some(1) && alone.err.contains("no proxy answers at"), "{}", alone.err);
}

/// Returns the exit status and the report of a plan about a snapshot, elsewhere and without privileges for the kernel.
fn plan(snapshot: &Path, flags: &[&str]) -> (Option<i32>, Value) {
    let elsewhere = Namespace::new("elsewhere").unwrap();
    let planned = run(&elsewhere, &[&["plan", "-o=json", "--snapshot", path(snapshot)], flags].concat());
    (planned.status, report(&planned))
}

#[test]
fn a_plan_about_a_snapshot_says_what_other_flags_would_change() {
    let cluster = Cluster::new();
    let (node, folder) = (cluster.world.node().namespace(), TempDir::new().unwrap());
    let (socket, file) = (cluster.control_socket(), folder.path().join("s.json.gz"));
    cluster.service(objects::load_balancer("web", VIP, 30080, "192.0.2.200"), &cluster.all_pods());
    let mut proxy = cluster.proxy_with("mode: nftables\n");
    logged(&mut proxy, LISTENING, 1);
    let vip = at(&format!("{VIP}:80"));
    reaches(cluster.world.client().namespace(), Protocol::Tcp, vip, &cluster.all_pods());
    take(node, &socket, &file);

    let (status, same) = plan(&file, &[]);
    assert_eq!((status, &same["changes"]), (Some(0), &json!(false)), "{same:#}");
    assert_eq!((&same["against"], &same["node"]), (&json!("snapshot"), &json!("node1")), "{same:#}");
    assert_eq!(same["families"][0]["present"], "the nftables mode");
    assert_ne!(same["families"][0]["counts"]["unchanged"], json!(0), "{same:#}");

    let (status, other_mode) = plan(&file, &["--proxy-mode=iptables"]);
    assert_eq!((status, &other_mode["mode"]), (Some(2), &json!("iptables")), "{other_mode:#}");
    assert_eq!(
        other_mode["removed"],
        json!(["IPv4 rules of the nftables mode", "IPv6 rules of the nftables mode"])
    );
    assert_eq!(other_mode["families"][0]["counts"]["changed"], json!(0), "{other_mode:#}");

    let (status, node_ports) = plan(&file, &["--nodeport-addresses=198.51.100.0/24"]);
    assert_eq!((status, &node_ports["removed"]), (Some(2), &Value::Null), "{node_ports:#}");
    assert_ne!(node_ports["families"][0]["nodePorts"], Value::Null, "{node_ports:#}");

    // What is gone from the kernel would be written again.
    let mut without = Snapshot::read(&file).unwrap();
    without.programmed.iter_mut().for_each(|family| family.ports.clear());
    let mut packed = Vec::new();
    pack(&without, &mut packed).unwrap();
    fs::write(&file, packed).unwrap();
    let (status, added) = plan(&file, &[]);
    assert_eq!((status, &added["families"][0]["counts"]["added"]), (Some(2), &json!(2)), "{added:#}");

    let elsewhere = Namespace::new("elsewhere").unwrap();
    for flag in ["--rules", "--against=nothing", "--manifests=x", "--from=x"] {
        let refused = run(&elsewhere, &["plan", "--snapshot", path(&file), flag]);
        assert!(refused.status == Some(1) && refused.err.contains("cannot be used with"), "{}", refused.err);
    }
}

/// Returns a value of a kubeconfig.
fn value_of<'a>(kubeconfig: &'a str, field: &str) -> &'a str {
    let (_, rest) = kubeconfig.split_once(field).unwrap_or_else(|| panic!("{field}: {kubeconfig}"));
    rest.split_whitespace().find(|word| word.len() > 16).unwrap().trim_matches('"')
}

/// An API server with TLS and a proxy with a token for it.
struct Secured {
    folder: TempDir,
    token: String,
    certificate: String,
    _server: PortolanProcess,
    proxy: PortolanProcess,
}

impl Secured {
    fn start(world: &portolan_testkit::World, manifests: &[Value]) -> Self {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (data, folder_of_manifests, socket) = (at("data"), at("manifests"), Self::socket(&folder));
        let node = world.node().namespace();
        let roles = ["serve", "kubeconfig", "--role", "proxy", "--token", "--data-dir", path(&data)];
        let kubeconfig = run(node, &roles).out;
        fs::write(at("proxy.conf"), &kubeconfig).unwrap();
        fs::create_dir(&folder_of_manifests).unwrap();
        for (number, manifest) in manifests.iter().enumerate() {
            fs::write(folder_of_manifests.join(format!("{number}.json")), manifest.to_string()).unwrap();
        }
        let arguments = ["serve", "--data-dir", path(&data), "--manifests", path(&folder_of_manifests)];
        let mut server = PortolanProcess::start(node, BINARY.as_ref(), &arguments).unwrap();
        server.wait_for_output(PATIENCE, "tls=true").unwrap();
        let yaml = format!(
            "clientConnection: {{kubeconfig: {}}}\nportolan: {{serviceCounters: true}}\n",
            at("proxy.conf").display()
        );
        fs::write(at("config.yaml"), configuration(&yaml)).unwrap();
        let config = at("config.yaml");
        let arguments = ["proxy", "--config", path(&config), "--control-socket", path(&socket)];
        let mut proxy = PortolanProcess::start(node, BINARY.as_ref(), &arguments).unwrap();
        in_sync(&mut proxy);
        logged(&mut proxy, LISTENING, 1);
        let token = value_of(&kubeconfig, "token:").to_owned();
        let certificate = value_of(&kubeconfig, "certificate-authority-data:").to_owned();
        Self { folder, token, certificate, _server: server, proxy }
    }

    fn socket(folder: &TempDir) -> PathBuf {
        folder.path().join("proxy.sock")
    }
}

/// Returns what the metrics port serves while a client has connections to the Service: the state, the Service with its counters,
/// and the rates, which name it. And one of these connections: conntrack would forget it within seconds of its end.
fn documents(node: &Namespace, client: &Namespace) -> (String, TcpStream) {
    let get = |path: &str| {
        let answer = http::get(node, at("127.0.0.1:10249"), &format!("/debug/portolan/{path}")).unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    };
    let vip = at(&format!("{VIP}:80"));
    let mut rates = String::new();
    let outcome = eventually(PATIENCE, "a rate", || {
        let stream = client.run(|| TcpStream::connect_timeout(&vip, PATIENCE)).unwrap();
        rates = get("rates");
        drop(stream);
        rates.contains("\"name\":\"web\"")
    });
    assert!(outcome.is_ok(), "{rates}");
    let stream = client.run(|| TcpStream::connect(vip).unwrap()).unwrap();
    let pages = ["state", "services", "services?counters=true", "services?service=default/web&counters=true"];
    (pages.map(get).concat() + &rates, stream)
}

#[test]
fn tokens_certificates_and_annotations_are_not_in_it() {
    const PLANTED: &str = "cGxhbnRlZA-planted";
    let world = common::world();
    let mut service = objects::cluster_ip("web", VIP);
    service["metadata"]["namespace"] = "default".into();
    service["metadata"]["annotations"] = json!({
        "kubectl.kubernetes.io/last-applied-configuration": PLANTED, "portolan.dev/ipvs-scheduler": PLANTED,
    });
    service["metadata"]["labels"] = json!({"planted": PLANTED});
    let ports = objects::ports(&service);
    let mut slice = objects::slice("web", &[&world.pods()[0]], &ports);
    slice["metadata"]["namespace"] = "default".into();
    slice["metadata"]["annotations"] = json!({"planted": PLANTED});
    let mut node = objects::node(&world);
    node["metadata"]["annotations"] = json!({"planted": PLANTED});
    let secured = Secured::start(&world, &[node, service, slice]);
    let file = secured.folder.path().join("s.json.gz");
    let namespace = world.node().namespace();
    let socket = Secured::socket(&secured.folder);
    let snapshot = until(namespace, &socket, &file, "the objects", |snapshot| {
        snapshot.objects.iter().any(|object| object["kind"] == "EndpointSlice")
    });
    let json = serde_json::to_string(&snapshot).unwrap();
    assert!(json.contains("proxy.conf"), "the configuration is there: {json}");
    assert!(json.contains(VIP) && secured.token.len() > 16 && secured.certificate.len() > 100);
    for secret in [PLANTED, &secured.token, &secured.certificate, "BEGIN CERTIFICATE"] {
        assert!(!json.contains(secret), "{secret}: {json}\n{}", secured.proxy.output());
    }

    // Nor are they in the documents of the metrics port, which have no addresses of clients either.
    let client = world.client().address(Family::Ipv4).to_string();
    let (shown, _stream) = documents(namespace, world.client().namespace());
    assert!(
        shown.contains(VIP) && shown.contains("proxy.conf") && shown.contains("\"connections\":"),
        "{shown}"
    );
    for secret in [PLANTED, &secured.token, &secured.certificate, "BEGIN CERTIFICATE", &client] {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
    let asked = ["explain", &client, &format!("{VIP}:80"), "-o=json", "--control-socket", path(&socket)];
    let explained = report(&run(namespace, &asked));
    assert_ne!(explained["connections"]["count"], 0, "the agent knows the client: {explained:#}");
    assert!(explained["connections"].to_string().contains(&client), "{explained:#}");

    assert!(snapshot.objects.iter().all(|object| object.pointer("/metadata/annotations").is_none()));
    // Such a text would be found.
    let mut with = snapshot;
    with.unread.push(portolan_snapshot::Unread { what: PLANTED.into(), reason: String::new() });
    let mut packed = Vec::new();
    pack(&with, &mut packed).unwrap();
    assert!(serde_json::to_string(&portolan_snapshot::unpack(&packed).unwrap()).unwrap().contains(PLANTED));
}
