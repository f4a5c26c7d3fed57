//! kubectl with `portolan serve`: the commands of docs/serve-api.md and other common uses, with every kubectl of this
//! machine. `make test` provides Debian's kubectl and that of the Kubernetes version that the server implements.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "deploy/files.rs"]
#[allow(dead_code, reason = "most of it is for the tests of deploy/")]
mod files;
#[path = "kubectl/health_checks.rs"]
mod health_checks;
#[path = "kubectl/scripts.rs"]
mod scripts;
#[path = "kubectl/shell.rs"]
mod shell;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};
use std::time::Duration;

use portolan_testkit::{Namespace, PortolanProcess, eventually};
use serde_json::Value;
use tempfile::TempDir;

use files::{BINARY, read, tool, tools};
use shell::Shell;

const PATIENCE: Duration = Duration::from_secs(120);
const SERVER: &str = "kubectl --kubeconfig admin.conf";

/// Returns the page with the manifests of the example.
fn page() -> String {
    read("docs/serve.md")
}

/// Returns the code blocks of one language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    page.split(&start).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// Returns the kubectl commands of the section about the API.
fn commands() -> Vec<String> {
    let page = read("docs/serve-api.md");
    let part = page.split("\n## ").find(|part| part.starts_with("The API\n")).unwrap();
    part.lines().filter(|line| line.starts_with("kubectl --")).map(str::to_owned).collect()
}

/// Returns one shell for each kubectl.
fn shells() -> Vec<Shell> {
    shells_with(&[])
}

fn shells_with(arguments: &[&str]) -> Vec<Shell> {
    // Fails if there is none but the Makefile provides one.
    drop(tool("kubectl"));
    let programs: BTreeSet<_> =
        tools("kubectl").into_iter().map(|kubectl| kubectl.canonicalize().unwrap()).collect();
    programs.iter().map(|kubectl| Shell::new(kubectl, arguments)).collect()
}

#[test]
fn the_commands_of_the_page_work() {
    let commands = commands();
    let (last, first) = commands.split_last().unwrap();
    assert!(first.len() > 5 && last.contains(" delete "), "{commands:?}");
    for shell in shells() {
        let printed: Vec<String> = first.iter().map(|line| shell.good(line)).collect();
        assert!(printed.concat().contains("service/web created"), "{printed:#?}");
        let service = shell.object("service web");
        assert_eq!(service["spec"]["clusterIP"], "10.96.0.80");
        assert_eq!(service["spec"]["sessionAffinity"], "ClientIP");
        assert_eq!(service["metadata"]["labels"]["tier"], "front");
        shell.good(last);
        // The server's own Service is in another namespace.
        assert_eq!(shell.kubectl("get services,endpointslices,nodes -o name"), "");
    }
}

#[test]
fn load_balancer_addresses_are_external_ips() {
    for shell in shells_with(&["--load-balancer-ip-range", "192.0.2.0/30"]) {
        shell.kubectl("create namespace shop");
        for name in ["a", "b", "late"] {
            shell.kubectl(&format!("create service loadbalancer {name} --tcp=80"));
        }
        let external = |name: &str| {
            let line = shell.kubectl(&format!("get service {name} --no-headers"));
            line.split_whitespace().nth(3).unwrap().to_owned()
        };
        let (a, late) = (external("a"), external("late"));
        assert!(a.starts_with("192.0.2.") && a != external("b"), "{a}");
        assert_eq!(late, "<pending>");
        let addresses = shell.kubectl("get ipaddresses -o name");
        assert!(addresses.contains(&format!("ipaddress.networking.k8s.io/{a}\n")), "{addresses}");
        let taken =
            shell.bad(&format!("{SERVER} -n shop annotate service late portolan.dev/load-balancer-ips={a}"));
        assert!(taken.contains(&format!("\"{a}\": is already allocated to Service shop/a")), "{taken}");
        let events = shell.follow("get events --watch");
        events.until("LoadBalancerIPPending");
        let service = shell.follow("get service late --watch --no-headers");
        assert!(service.next().contains("<pending>"));
        shell.kubectl("delete service a");
        assert!(service.next().contains(&a), "the only address that is free");
    }
}

#[test]
fn replace_writes_what_the_file_says() {
    for shell in shells() {
        shell.good(&format!("{SERVER} create -f web.yaml"));
        shell.good("sed -i 's/8080/8090/' web.yaml");
        shell.good(&format!("{SERVER} replace -f web.yaml"));
        let slice = shell.object("endpointslice web-1");
        assert_eq!(slice["ports"][0]["port"], 8090);
        assert_eq!(slice["endpoints"].as_array().map(Vec::len), Some(2));
        assert_eq!(shell.object("service web")["spec"]["ports"][0]["targetPort"], 8090);
    }
}

#[test]
fn apply_creates_and_changes() {
    for shell in shells() {
        assert!(shell.kubectl("apply -f web.yaml").contains("service/web created"));
        shell.good("sed -i 's/targetPort: 8080/targetPort: 8090/' web.yaml");
        let diff = shell.run(&format!("{SERVER} diff -f web.yaml"));
        let changed = String::from_utf8(diff.stdout).unwrap();
        assert_eq!(diff.status.code(), Some(1), "{}", String::from_utf8_lossy(&diff.stderr));
        assert!(changed.contains("-    targetPort: 8080\n+    targetPort: 8090\n"), "{changed}");
        assert!(shell.kubectl("apply --dry-run=server -f web.yaml").contains("service/web configured"));
        assert_eq!(shell.object("service web")["spec"]["ports"][0]["targetPort"], 8080);
        let address = shell.object("service web")["spec"]["clusterIP"].clone();
        assert!(shell.kubectl("apply -f web.yaml").contains("service/web configured"));
        assert!(shell.kubectl("apply -f web.yaml").contains("service/web unchanged"));
        let service = shell.object("service web");
        assert_eq!(
            (&service["spec"]["ports"][0]["targetPort"], &service["spec"]["clusterIP"]),
            (&8090.into(), &address)
        );
        let annotation =
            &service["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
        assert!(annotation.as_str().unwrap().contains("8090"));
        let typo =
            "apiVersion: v1\nkind: Service\nmetadata: {name: typo}\nspec: {prots: [], ports: [{port: 80}]}\n";
        shell.write("typo.yaml", typo);
        let complaint = shell.bad(&format!("{SERVER} apply -f typo.yaml"));
        assert!(complaint.contains("unknown field") && complaint.contains("prots"), "{complaint}");
    }
}

#[test]
fn server_side_apply_distinguishes_writers() {
    for shell in shells() {
        let applied = shell.kubectl("apply --server-side -f web.yaml");
        assert!(applied.contains("service/web serverside-applied"), "{applied}");
        shell.kubectl(r#"patch service web --type merge -p '{"spec":{"sessionAffinity":"ClientIP"}}'"#);
        shell.good(
            "sed -i 's/  ports:/  sessionAffinity: None\\n  ports:/' web.yaml && grep -q Affinity web.yaml",
        );
        let conflict = shell.bad(&format!("{SERVER} apply --server-side -f web.yaml"));
        assert!(conflict.contains(".spec.sessionAffinity"), "{conflict}");
        assert_eq!(shell.object("service web")["spec"]["sessionAffinity"], "ClientIP");
        shell.kubectl("apply --server-side --force-conflicts -f web.yaml");
        assert_eq!(shell.object("service web")["spec"]["sessionAffinity"], "None");
    }
}

#[test]
fn what_get_prints() {
    for shell in shells() {
        shell.kubectl("apply -f web.yaml");
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let wide = shell.kubectl("get services -o wide");
        let lines: Vec<_> = wide.lines().map(cells).collect();
        assert_eq!(lines[0], ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE", "SELECTOR"]);
        assert_eq!(lines[1][..5], ["web", "NodePort", "10.96.0.80", "<none>", "80:30080/TCP"]);
        assert_eq!(lines[1][6], "<none>");
        let slices = shell.kubectl("get endpointslices --no-headers");
        assert_eq!(cells(&slices)[..4], ["web-1", "IPv4", "8080", "192.168.100.21,192.168.100.22"]);
        let wide = shell.kubectl("get endpointslices -o wide --no-headers");
        assert_eq!(cells(&wide)[5], "1/2", "ready endpoints");
        let everywhere = shell.kubectl("get svc -A --no-headers");
        assert!(everywhere.lines().any(|line| cells(line)[..2] == ["shop", "web"]), "{everywhere}");
        let address = shell.kubectl("get ipaddress 10.96.0.80");
        let lines: Vec<_> = address.lines().map(cells).collect();
        assert_eq!(lines, [["NAME", "PARENTREF"], ["10.96.0.80", "services/shop/web"]]);
        let ready = shell.kubectl("get nodes --no-headers");
        assert_eq!(cells(&ready)[..3], ["host1", "Unknown", "<none>"]);
        assert!(shell.kubectl("get servicecidrs").contains("10.96.0.0/16"));
        assert!(shell.kubectl("get ns").contains("Active"));
        assert_eq!(shell.kubectl("get svc -o name"), "service/web\n");
        assert_eq!(shell.kubectl("get all -o name"), "service/web\n");
        assert_eq!(shell.kubectl("get svc web -o jsonpath='{.spec.ports[*].nodePort}'"), "30080");
        assert_eq!(shell.kubectl("get svc -l a=b -o name"), "");
        let list: Value = serde_json::from_str(&shell.kubectl("get svc -o json")).unwrap();
        assert_eq!((&list["kind"], &list["items"][0]["kind"]), (&"List".into(), &"Service".into()));
        let described = shell.kubectl("describe service web");
        for text in ["NodePort:", "30080/TCP", "10.96.0.80", "Session Affinity:"] {
            assert!(described.contains(text), "{text} in {described}");
        }
        assert!(shell.bad(&format!("{SERVER} get svc none")).contains("(NotFound)"));
    }
}

#[test]
fn patches_labels_and_the_editor() {
    for shell in shells() {
        shell.kubectl("apply -f web.yaml");
        shell.kubectl(r#"patch service web -p '{"spec":{"ports":[{"port":80,"name":"strategic"}]}}'"#);
        assert_eq!(shell.object("service web")["spec"]["ports"][0]["nodePort"], 30080);
        assert_eq!(shell.object("service web")["spec"]["ports"][0]["name"], "strategic");
        shell.kubectl(r#"patch service web --type json -p '[{"op":"add","path":"/metadata/labels","value":{"json":"1"}}]'"#);
        shell.kubectl(r#"patch service web --type merge -p '{"metadata":{"labels":{"merge":"1"}}}'"#);
        shell.kubectl("label service web tier=front");
        shell.kubectl("annotate service web note=seen");
        shell.write(
            "editor",
            "#!/bin/sh\nsed -i 's/sessionAffinity: None/sessionAffinity: ClientIP/' \"$1\"\n",
        );
        let editor = shell.folder.path().join("editor");
        fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
        let edited =
            shell.good(&format!("KUBE_EDITOR={} {SERVER} -n shop edit service web", editor.display()));
        assert!(edited.contains("service/web edited"), "{edited}");
        let service = shell.object("service web");
        let labels = serde_json::json!({"json": "1", "merge": "1", "tier": "front"});
        assert_eq!(
            (&service["metadata"]["labels"], &service["spec"]["sessionAffinity"]),
            (&labels, &"ClientIP".into())
        );
        assert_eq!(service["metadata"]["annotations"]["note"], "seen");
    }
}

#[test]
fn the_editor_shows_no_empty_annotations() {
    for shell in shells() {
        shell.kubectl("create -f web.yaml");
        shell.kubectl("annotate service web note=seen");
        shell.kubectl("annotate service web note-");
        shell.write("editor", "#!/bin/sh\ncp \"$1\" edited\n");
        let editor = shell.folder.path().join("editor");
        fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
        shell.good(&format!("KUBE_EDITOR={} {SERVER} -n shop edit service web", editor.display()));
        let shown = fs::read_to_string(shell.folder.path().join("edited")).unwrap();
        assert!(shown.contains("name: web\n") && !shown.contains("annotations"), "{shown}");
    }
}

#[test]
fn descriptions_have_the_events_of_the_server() {
    for shell in shells_with(&["--load-balancer-ip-range", "192.0.2.7/32"]) {
        shell.kubectl("apply -f web.yaml");
        shell.kubectl("create service loadbalancer one --tcp=80");
        // The only address is taken.
        shell.kubectl("create service loadbalancer other --tcp=80");
        let describe = || shell.kubectl("describe service other");
        let seen = eventually(PATIENCE, "the Event", || describe().contains("LoadBalancerIPPending"));
        assert!(seen.is_ok(), "{}\n{}", describe(), shell.kubectl("get events -o yaml"));
    }
}

#[test]
fn nodes_are_described_and_drained() {
    for shell in shells() {
        shell.kubectl("apply -f web.yaml");
        let described = shell.kubectl("describe node host1");
        for text in ["InternalIP:  192.168.100.1", "Non-terminated Pods:", "(0 in total)"] {
            assert!(described.contains(text), "{text} in {described}");
        }
        assert!(shell.kubectl("drain host1").contains("node/host1 drained"));
        assert_eq!(shell.object("node host1")["spec"]["unschedulable"], true);
        shell.kubectl("uncordon host1");
        assert_eq!(shell.kubectl("get pods -A -o name"), "");
        let all = shell.kubectl("get all");
        assert!(all.contains("service/web") && !all.contains("pod/"), "{all}");
    }
}

#[test]
fn users_learn_what_they_may_do() {
    for shell in shells() {
        assert_eq!(shell.kubectl("auth can-i delete nodes"), "yes\n");
        assert!(shell.kubectl("auth can-i --list").contains("*.*"));
        let knows_whoami = shell.minor() >= 28;
        if knows_whoami {
            let user = shell.kubectl("auth whoami");
            for text in ["portolan-admin", "system:masters", "system:authenticated"] {
                assert!(user.contains(text), "{text} in {user}");
            }
        }
        shell.good(&format!("{BINARY} serve kubeconfig --role proxy --data-dir data --output proxy.conf"));
        let proxy = "kubectl --kubeconfig proxy.conf -n shop";
        assert_eq!(shell.good(&format!("{proxy} auth can-i list services")), "yes\n");
        let refused = shell.run(&format!("{proxy} auth can-i delete services"));
        assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(1), b"no\n".as_slice()));
        let list = shell.good(&format!("{proxy} auth can-i --list"));
        assert!(list.contains("endpointslices.discovery.k8s.io") && !list.contains("*.*"), "{list}");
        if knows_whoami {
            assert!(shell.good(&format!("{proxy} auth whoami")).contains("system:kube-proxy"));
        }
    }
}

#[test]
fn apply_prunes_with_an_allowlist() {
    for shell in shells() {
        shell.kubectl("apply -f web.yaml");
        let extra = "apiVersion: v1\nkind: Service\nmetadata: {name: extra, namespace: shop}\nspec: {ports: [{port: 80}]}\n";
        shell.write("extra.yaml", extra);
        shell.kubectl("apply -f extra.yaml");
        let list = if shell.minor() >= 26 { "--prune-allowlist" } else { "--prune-whitelist" };
        let pruned = shell.kubectl(&format!("apply -f web.yaml --prune --all {list}=core/v1/Service"));
        assert!(pruned.contains("service/extra pruned"), "{pruned}");
        assert_eq!(shell.kubectl("get services -o name"), "service/web\n");
        // Without the list, kubectl looks for all kinds that it knows, and stops at the first missing one.
        let refused = shell.bad(&format!("{SERVER} -n shop apply -f web.yaml --prune --all"));
        assert!(refused.contains("ConfigMap"), "{refused}");
    }
}

#[test]
fn objects_that_kubectl_makes_by_itself() {
    // kubectl sends these as protobuf, from some version on.
    for shell in shells() {
        shell.kubectl("create namespace shop");
        shell.kubectl("create service clusterip one --tcp=80:8080");
        shell.kubectl("create service nodeport two --tcp=443");
        shell.kubectl("create service externalname three --external-name=a.example");
        shell.kubectl("create namespace stock");
        let service = shell.object("service one");
        assert_eq!(service["spec"]["ports"][0]["targetPort"], 8080);
        assert!(service["spec"]["clusterIP"].as_str().unwrap().starts_with("10.96."));
        assert_eq!(service["spec"]["selector"]["app"], "one");
        assert!(shell.object("service two")["spec"]["ports"][0]["nodePort"].as_u64().unwrap() >= 30000);
        assert_eq!(shell.object("service three")["spec"]["externalName"], "a.example");
        assert!(shell.kubectl("get namespaces -o name").contains("namespace/stock"));
        let taken = shell.bad(&format!("{SERVER} -n shop create service clusterip one --tcp=80"));
        assert!(taken.contains("already exists"), "{taken}");
    }
}

#[test]
fn watching_and_waiting() {
    for shell in shells() {
        let follow = shell.follow("get services --watch --no-headers");
        shell.kubectl("apply -f web.yaml");
        assert!(follow.next().starts_with("web "));
        shell.kubectl("label service web tier=front");
        assert!(follow.next().starts_with("web "));
        shell.kubectl("wait --for=condition=Ready servicecidr/kubernetes --timeout=100s");
        // Its log shows the request. The object must not be deleted before the watch starts.
        let waiting = shell.follow("wait --for=delete service/web --timeout=100s -v=6 2>&1");
        waiting.until("watch=true");
        shell.kubectl("delete service web");
        waiting.until("service/web condition met");
        assert!(follow.next().starts_with("web "));
    }
}

#[test]
fn many_objects_in_one_file() {
    const COUNT: usize = 500;
    for shell in shells() {
        let service = |number| {
            format!(
                "---\n{{apiVersion: v1, kind: Service, metadata: {{name: s{number}}}, spec: {{ports: [{{port: 80}}]}}}}\n"
            )
        };
        shell.kubectl("create namespace shop");
        shell.write("many.yaml", &(0..COUNT).map(service).collect::<String>());
        let count = |text: &str, word: &str| text.lines().filter(|line| line.ends_with(word)).count();
        assert_eq!(count(&shell.kubectl("apply -f many.yaml"), "created"), COUNT);
        assert_eq!(shell.kubectl("get services -o name --chunk-size=70").lines().count(), COUNT);
        let addresses = shell.kubectl("get services -o jsonpath='{.items[*].spec.clusterIP}'");
        assert_eq!(addresses.split(' ').collect::<BTreeSet<_>>().len(), COUNT);
        assert_eq!(count(&shell.kubectl("apply --server-side -f many.yaml"), "serverside-applied"), COUNT);
        shell.kubectl("delete services --all --wait=false");
        assert_eq!(shell.kubectl("get services -o name"), "");
        // The IPAddress of the server's own Service, default/kubernetes.
        assert_eq!(shell.kubectl("get ipaddresses -o name"), "ipaddress.networking.k8s.io/10.96.0.1\n");
    }
}

#[test]
fn what_the_server_says_of_itself() {
    for shell in shells() {
        let resources = shell.kubectl("api-resources --no-headers");
        for line in ["services svc v1 true Service", "servicecidrs networking.k8s.io/v1 false ServiceCIDR"] {
            let found =
                resources.lines().any(|it| it.split_whitespace().collect::<Vec<_>>().join(" ") == line);
            assert!(found, "{line} in {resources}");
        }
        assert_eq!(
            shell.kubectl("api-versions"),
            "authentication.k8s.io/v1\nauthorization.k8s.io/v1\ncoordination.k8s.io/v1\ndiscovery.k8s.io/v1\nevents.k8s.io/v1\nnetworking.k8s.io/v1\nv1\n"
        );
        assert!(shell.kubectl("version").contains("v1.36.0+portolan"));
        let ports = shell.kubectl("explain service.spec.ports");
        assert!(ports.contains("targetPort") && ports.contains("-required-"), "{ports}");
        let kind = shell.kubectl("explain service.spec.type");
        assert!(kind.contains("LoadBalancer"), "{kind}");
        // Older ones read OpenAPI v2 and do not list the values.
        if shell.minor() >= 29 {
            assert!(kind.contains("ENUM:") && kind.contains("    LoadBalancer\n"), "{kind}");
        }
        let conditions = shell.kubectl("explain endpointslices.endpoints.conditions");
        assert!(conditions.contains("serving"), "{conditions}");
        let all = shell.kubectl("explain service --recursive");
        assert!(all.contains("sessionAffinityConfig"), "{all}");
    }
}

#[test]
fn the_plugin_explains_what_the_objects_require() {
    for shell in shells() {
        shell.kubectl("apply -f web.yaml");
        std::os::unix::fs::symlink(BINARY, shell.folder.path().join("kubectl-portolan")).unwrap();
        let question = "outside svc/web.shop -o json --proxy-mode nftables";
        let plugin = shell.good(&format!("KUBECONFIG=none:admin.conf kubectl portolan explain {question}"));
        let mut of_cluster: Value = serde_json::from_str(&plugin).unwrap();
        assert_eq!((&of_cluster["source"], &of_cluster["node"]), (&"api-server".into(), &"host1".into()));
        assert_eq!(of_cluster["outcome"], "reachable");
        let endpoints = of_cluster["wanted"]["endpoints"].as_array().unwrap();
        let used: Vec<_> = endpoints.iter().map(|endpoint| endpoint["used"].as_bool().unwrap()).collect();
        assert_eq!(used, [true, false]);
        let direct = shell.good(&format!("{BINARY} explain {question} --kubeconfig admin.conf --node host1"));
        assert_eq!(serde_json::from_str::<Value>(&direct).unwrap(), of_cluster);
        // What kubectl writes into a file is the same.
        shell.good(&format!(
            "{SERVER} get nodes,services,endpointslices,servicecidrs -A -o yaml > cluster.yaml"
        ));
        let offline = shell.good(&format!("{BINARY} explain {question} --manifests cluster.yaml"));
        of_cluster["source"] = "manifests".into();
        assert_eq!(serde_json::from_str::<Value>(&offline).unwrap(), of_cluster);

        let text = shell.good("kubectl portolan explain node 192.168.100.1:30080 --kubeconfig admin.conf");
        assert!(text.contains("\nwanted: from the API server\n"), "{text}");
        let refused = shell.run("kubectl portolan explain outside 10.96.0.80:81 --kubeconfig admin.conf");
        assert_eq!(refused.status.code(), Some(4), "kubectl passes the status on");
        let wrong =
            shell.bad("kubectl portolan explain outside svc/web --kubeconfig admin.conf --node host2");
        assert!(wrong.contains("the cluster has no Node `host2`"), "{wrong}");
        let context =
            shell.bad("kubectl portolan explain outside svc/web --kubeconfig admin.conf --context x");
        assert!(context.contains('x'), "{context}");
        let help = shell.good("kubectl portolan --help");
        assert!(help.contains("Usage: kubectl portolan <COMMAND>") && !help.contains("serve"), "{help}");
        assert!(shell.bad("kubectl portolan status").contains("unrecognized subcommand 'status'"));
        assert!(shell.good("kubectl plugin list").contains("kubectl-portolan"));
    }
}

#[test]
fn a_kept_connection_outlives_its_token() {
    let Some(python) = files::tools("python-with-kubernetes").pop() else {
        assert!(!files::is_provided("python-with-kubernetes"));
        return;
    };
    let (node, folder) = (Namespace::new("renewed").unwrap(), TempDir::new().unwrap());
    node.ip("link set lo up\n").unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (data, tokens, authority) = (at("data"), at("tokens"), at("data/pki/ca.crt"));
    fs::write(&tokens, "first,eve,1,system:masters\n").unwrap();
    let arguments = ["serve", "--in-memory", "--data-dir", &data, "--token-auth-file", &tokens];
    let mut server = PortolanProcess::start(&node, BINARY.as_ref(), &arguments).unwrap();
    server.wait_for_output(PATIENCE, "tls=true").unwrap();
    let mut command = node.command(python);
    let script = include_str!("kubectl/renewed.py");
    command.args(["-c", script, "https://127.0.0.1:6443", &authority, &tokens]);
    // The configuration of the machine's user must not be used.
    command.env("HOME", folder.path()).env("KUBECONFIG", "/dev/null").env("no_proxy", "*");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Output { status, stdout, stderr } = command.spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&stdout);
    let complaint = String::from_utf8_lossy(&stderr);
    assert!(status.success() && said.contains("all is well"), "{said}{complaint}");
}
