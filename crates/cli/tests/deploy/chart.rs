//! The Helm chart: values, schema and templates agree, and the templates render the same objects as the manifests.

use std::collections::BTreeSet;
use std::process::Command;

use portolan_node::config;
use serde_json::{Map, Value, json};

use crate::files::{self, all_below, of_kind, one_yaml, patience, read, run, tool, yaml};
use crate::{kustomize, permissions};

const CHART: &str = "deploy/helm/portolan";

fn values() -> Value {
    one_yaml(&format!("{CHART}/values.yaml"))
}

/// Returns the name and text of every template.
fn templates() -> Vec<(String, String)> {
    let files = all_below(&files::path(&format!("{CHART}/templates")));
    let texts = files.iter().map(|path| std::fs::read_to_string(path).unwrap());
    files.iter().map(|path| path.display().to_string()).zip(texts).collect()
}

/// Returns the actions between `{{` and `}}`, without the dashes.
fn actions(text: &str) -> Vec<&str> {
    let parts = text.split("{{").skip(1);
    parts.map(|part| part.split("}}").next().unwrap().trim_matches('-').trim()).collect()
}

#[test]
fn every_value_has_its_schema() {
    fn compare(path: &str, value: &Value, schema: &Value) {
        let (Some(value), Some(known)) = (value.as_object(), schema["properties"].as_object()) else {
            return;
        };
        for (name, value) in value {
            let schema = known.get(name).unwrap_or_else(|| panic!("{path}.{name} is not in the schema"));
            assert!(has_type(value, schema), "{path}.{name}: {value} is not {schema}");
            compare(&format!("{path}.{name}"), value, schema);
        }
        for name in known.keys().filter(|name| *name != "global") {
            assert!(value.contains_key(name), "{path}.{name} is only in the schema");
        }
    }
    let schema: Value = serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).unwrap();
    compare("values", &values(), &schema);
}

fn has_type(value: &Value, schema: &Value) -> bool {
    if let Some(members) = schema["enum"].as_array() {
        return members.contains(value);
    }
    match schema["type"].as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        other => panic!("{other}"),
    }
}

#[test]
fn templates_use_the_values_that_there_are() {
    let mut used = BTreeSet::new();
    for (name, text) in templates() {
        for action in actions(&text) {
            for path in action.split(".Values.").skip(1) {
                let end = path.find(|c: char| !c.is_alphanumeric() && c != '.').unwrap_or(path.len());
                let path = path[..end].trim_end_matches('.');
                let pointer = format!("/{}", path.replace('.', "/"));
                assert!(values().pointer(&pointer).is_some(), "{name}: .Values.{path} is not in values.yaml");
                used.insert(path.to_owned());
            }
        }
    }
    for (name, value) in values().as_object().unwrap() {
        let inner = value.as_object().filter(|inner| !inner.is_empty()).cloned().unwrap_or_else(Map::new);
        let whole = used.contains(name);
        let parts = inner.keys().map(|key| format!("{name}.{key}")).collect::<Vec<_>>();
        assert!(
            whole || !parts.is_empty() && parts.iter().all(|part| used.contains(part)),
            "{name} is not used"
        );
    }
}

#[test]
fn blocks_are_closed() {
    for (name, text) in templates() {
        assert_eq!(text.matches("{{").count(), text.matches("}}").count(), "{name}");
        let mut depth = 0_usize;
        for action in actions(&text) {
            match action.split_whitespace().next() {
                Some("if" | "with" | "range" | "define") => depth += 1,
                Some("end") => {
                    depth = depth.checked_sub(1).unwrap_or_else(|| panic!("{name}: one end too many"));
                }
                _ => {}
            }
        }
        assert_eq!(depth, 0, "{name}: a block is not closed");
    }
}

#[test]
fn included_templates_are_defined() {
    let all = templates();
    let named = |word: &str| -> BTreeSet<String> {
        let start = format!("{word} \"");
        let texts = all.iter().flat_map(|(_, text)| text.split(&start).skip(1));
        texts.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    };
    assert_eq!(named("include"), named("define"));
}

#[test]
fn the_default_configuration_is_one_that_portolan_takes() {
    let mut configuration = values()["configuration"].clone();
    configuration["apiVersion"] = "kubeproxy.config.k8s.io/v1alpha1".into();
    configuration["kind"] = "KubeProxyConfiguration".into();
    config::parse(&configuration.to_string()).unwrap();
    let base = one_yaml("deploy/kustomize/base/configmap.yaml");
    let base = &yaml("config.conf", base["data"]["config.conf"].as_str().unwrap())[0];
    for (name, value) in configuration.as_object().unwrap() {
        assert_eq!(&base[name], value, "{name}");
    }
}

/// Compared as text without the actions, which only are in names and labels in this file.
#[test]
fn the_role_is_that_of_the_manifests() {
    let text = read(&format!("{CHART}/templates/rbac.yaml"));
    let plain: Vec<String> =
        text.lines().filter(|line| !line.trim_start().starts_with("{{")).map(without_actions).collect();
    let chart = permissions::given("rbac.yaml", &plain.join("\n"));
    assert_eq!(chart, permissions::given("base", &read("deploy/kustomize/base/rbac.yaml")));
}

/// Compared as text without the actions, like the other role.
#[test]
fn the_role_for_readiness_is_that_of_the_manifests() {
    let text = read(&format!("{CHART}/templates/readiness.yaml"));
    assert!(
        text.contains("\n{{- if and .Values.rbac.create (or $readiness.taint $readiness.condition) }}\n")
    );
    let plain: Vec<String> =
        text.lines().filter(|line| !line.trim_start().starts_with("{{")).map(without_actions).collect();
    let chart = permissions::given("readiness.yaml", &plain.join("\n"));
    assert_eq!(chart, permissions::given("manifests", &read("deploy/kustomize/readiness/rbac.yaml")));
}

fn without_actions(line: &str) -> String {
    let Some((before, rest)) = line.split_once("{{") else { return line.to_owned() };
    before.to_owned() + rest.split_once("}}").map_or("", |(_, after)| after)
}

/// Tests the regular expressions of the templates, whose syntax is the same in helm, against the program's parser.
#[test]
fn bind_addresses_are_read_as_the_program_reads_them() {
    let helpers = read(&format!("{CHART}/templates/_helpers.tpl"));
    let expression = |function: &str| {
        let (_, rest) = helpers.split_once(&format!("{function} \"")).expect(function);
        let literal = format!("\"{}\"", rest.split('"').next().unwrap());
        regex::Regex::new(&serde_json::from_str::<String>(&literal).unwrap()).unwrap()
    };
    let (with_port, parts) = (expression("regexFind"), expression("regexReplaceAll"));
    assert!(helpers.contains("\"${1}${2}\""));
    let addresses = [
        "0.0.0.0:10256",
        "127.0.0.1:99",
        "127.0.0.1",
        "0.0.0.0",
        "::",
        "::1",
        "[::]:77",
        "[::1]:5",
        "fd00::1:2",
    ];
    for address in addresses {
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhealthzBindAddress: '{address}'\n"
        );
        let read = config::parse(&text).unwrap().healthz_bind_address.unwrap();
        let port =
            with_port.find(address).map_or("10256", |found| found.as_str().rsplit(':').next().unwrap());
        assert_eq!(port, read.port().to_string(), "{address}");
        assert_eq!(parts.replace_all(address, "${1}${2}"), read.ip().to_string(), "{address}");
    }
}

/// A server of one address does not listen on the node's address, which a probe without a host would use.
#[test]
fn probes_ask_where_the_server_listens() {
    let set = read(&format!("{CHART}/templates/daemonset.yaml"));
    assert_eq!((set.matches("Probe:").count(), set.matches("\"portolan.probe\"").count()), (3, 3));
    assert!(!set.contains("httpGet"));
    let helpers = read(&format!("{CHART}/templates/_helpers.tpl"));
    let (_, probe) = helpers.split_once("define \"portolan.probe\"").unwrap();
    assert!(probe.contains("include \"portolan.host\" .address") && probe.contains("host: {{ . | quote }}"));
}

#[test]
fn the_schema_knows_the_modes_of_this_version() {
    let schema: Value = serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).unwrap();
    let modes = &schema["properties"]["configuration"]["properties"]["mode"]["enum"];
    assert_eq!(modes, &json!(["", "nftables", "iptables", "ipvs", "userspace"]));
}

const URL: &str = "apiServer.url=https://192.0.2.1:6443";

/// Returns helm with a command for the chart and these values, if it is installed.
fn helm(arguments: &[&str], values: &[&str]) -> Option<Command> {
    let mut helm = tool("helm")?;
    helm.args(arguments).arg(files::path(CHART));
    for value in values {
        helm.args(["--set", value]);
    }
    Some(helm)
}

/// Returns the objects that helm renders with these values and a URL.
fn rendered(values: &[&str]) -> Option<Vec<Value>> {
    let command = ["template", "portolan", "--namespace", "kube-system"];
    let text = run(helm(&command, &[&[URL], values].concat())?);
    Some(yaml("chart", &text).into_iter().filter(|it| !it.is_null()).collect())
}

fn pod(objects: &[Value]) -> &Value {
    &of_kind(objects, "DaemonSet")["spec"]["template"]["spec"]
}

#[test]
fn helm_has_no_complaint() {
    let Some(lint) = helm(&["lint", "--strict"], &[URL]) else { return };
    run(lint);
}

#[test]
fn helm_renders_the_base() {
    let Some(chart) = rendered(&[]) else { return };
    let base = one_yaml("deploy/kustomize/base/daemonset.yaml");
    assert_eq!(pod(&chart), &base["spec"]["template"]["spec"]);
    let base = yaml("rbac.yaml", &read("deploy/kustomize/base/rbac.yaml"));
    for (kind, field) in [("ClusterRole", "rules"), ("ClusterRoleBinding", "roleRef")] {
        assert_eq!(of_kind(&chart, kind)[field], of_kind(&base, kind)[field], "{kind}");
    }
    let files = &of_kind(&chart, "ConfigMap")["data"];
    config::parse(files["config.conf"].as_str().unwrap()).unwrap();
    let kubeconfig = &yaml("kubeconfig.conf", files["kubeconfig.conf"].as_str().unwrap())[0];
    assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://192.0.2.1:6443");
}

#[test]
fn helm_gives_iptables_what_it_needs_where_a_mode_calls_it() {
    let (with, without) = (kustomize::with_iptables(), one_yaml("deploy/kustomize/base/daemonset.yaml"));
    let modes =
        [("", &with), ("iptables", &with), ("ipvs", &with), ("nftables", &without), ("userspace", &without)];
    for (mode, expected) in modes {
        let Some(chart) = rendered(&[&format!("configuration.mode={mode}")]) else { return };
        assert_eq!(pod(&chart), &expected["spec"]["template"]["spec"], "{mode:?}");
    }
}

#[test]
fn helm_adds_the_role_for_readiness_where_it_is_configured() {
    for setting in ["taint=portolan.dev/agent-not-ready", "condition=ServicesUnavailable"] {
        let Some(chart) = rendered(&[&format!("configuration.readiness.{setting}")]) else { return };
        let base = yaml("rbac.yaml", &read("deploy/kustomize/readiness/rbac.yaml"));
        for (kind, field) in [("ClusterRole", "rules"), ("ClusterRoleBinding", "roleRef")] {
            let name = &of_kind(&base, kind)["metadata"]["name"];
            let found =
                chart.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == *name).unwrap();
            assert_eq!(found[field], of_kind(&base, kind)[field], "{kind}");
        }
    }
}

#[test]
fn helm_renders_what_the_values_say() {
    let values = [
        "configuration.healthzBindAddress=[fd00::7]:10300",
        "configuration.clusterCIDR=10.244.0.0/16",
        "nodeSettings.enabled=false",
        "runAsRoot=true",
        "extraArgs={--v=2}",
        "image.tag=other",
        "podMonitor.enabled=true",
        "serviceAccount.create=false",
        "serviceAccount.name=mine",
        "nameOverride=proxy",
    ];
    let Some(chart) = rendered(&values) else { return };
    let pod = pod(&chart);
    assert!(pod["initContainers"].is_null() && pod["serviceAccountName"] == "mine", "{pod:#}");
    let container = &pod["containers"][0];
    assert_eq!((&container["image"], &container["command"][5]), (&json!("portolan:other"), &json!("--v=2")));
    assert_eq!(
        (&container["securityContext"]["runAsUser"], &container["ports"][0]["hostPort"]),
        (&json!(0), &json!(10300))
    );
    for (probe, path) in
        [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
    {
        let expected = json!({"host": "fd00::7", "path": path, "port": "healthz"});
        assert_eq!(container[probe]["httpGet"], expected, "{probe}");
    }
    assert_eq!(patience(&container["livenessProbe"]), 600);
    let configuration = of_kind(&chart, "ConfigMap")["data"]["config.conf"].as_str().unwrap();
    assert_eq!(config::parse(configuration).unwrap().cluster_cidrs.len(), 1);
    let names: BTreeSet<&str> =
        chart.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, BTreeSet::from(["proxy"]));
    let selector = &of_kind(&chart, "PodMonitor")["spec"]["selector"];
    assert_eq!(selector, &of_kind(&chart, "DaemonSet")["spec"]["selector"]);
    assert!(chart.iter().all(|object| object["kind"] != "ServiceAccount"));
}

#[test]
fn helm_renders_a_configuration_with_less_in_it() {
    let Some(chart) = rendered(&["configuration.readiness=null"]) else { return };
    let base = one_yaml("deploy/kustomize/base/daemonset.yaml");
    assert_eq!(pod(&chart), &base["spec"]["template"]["spec"]);
    let chart = rendered(&["configuration=null"]).unwrap();
    assert_eq!(
        pod(&chart),
        &kustomize::with_iptables()["spec"]["template"]["spec"],
        "no mode means iptables"
    );
    config::parse(of_kind(&chart, "ConfigMap")["data"]["config.conf"].as_str().unwrap()).unwrap();
}

#[test]
fn the_notes_ask_where_the_servers_listen() {
    for (values, health, metrics) in [
        (&[][..], "127.0.0.1:10256", "127.0.0.1:10249"),
        (&["configuration=null"], "127.0.0.1:10256", "127.0.0.1:10249"),
        (&["configuration.metricsBindAddress=192.0.2.7:77"], "127.0.0.1:10256", "192.0.2.7:77"),
        (&["configuration.metricsBindAddress=[fd00::7]:77"], "127.0.0.1:10256", "[fd00::7]:77"),
        (&["configuration.metricsBindAddress=0.0.0.0"], "127.0.0.1:10256", "127.0.0.1:10249"),
        (
            &["configuration.metricsBindAddress=::1", "configuration.healthzBindAddress=::1"],
            "[::1]:10256",
            "[::1]:10249",
        ),
    ] {
        let Some(helm) = helm(&["install", "portolan", "--dry-run=client"], &[&[URL], values].concat())
        else {
            return;
        };
        let notes = run(helm);
        for line in [format!("curl http://{health}/readyz\n"), format!("curl http://{metrics}/proxyMode\n")] {
            assert!(notes.contains(&line), "{values:?}: {line}: {notes}");
        }
        let is_hidden = metrics.starts_with("127.") || metrics.starts_with("[::1]");
        let listens_everywhere = values.iter().any(|value| value.ends_with("0.0.0.0"));
        let says_so = notes.contains("Metrics are served on the node's loopback only");
        assert_eq!(says_so, is_hidden && !listens_everywhere, "{values:?}: {notes}");
    }
}

/// The kubelet creates a folder for root, so an agent of another user needs one that is there.
#[test]
fn helm_puts_the_control_socket_on_the_node_where_asked() {
    for (values, state, socket) in [
        (&["controlSocket.hostPath=/run/portolan"][..], "Directory", "Directory"),
        (
            &["controlSocket.hostPath=/run/portolan", "runAsRoot=true"],
            "DirectoryOrCreate",
            "DirectoryOrCreate",
        ),
        (
            &["controlSocket.hostPath=/run/portolan", "configuration.mode=ipvs"],
            "DirectoryOrCreate",
            "DirectoryOrCreate",
        ),
        (&["controlSocket.hostPath=/run/agent"], "DirectoryOrCreate", "Directory"),
    ] {
        let Some(chart) = rendered(values) else { return };
        let pod = pod(&chart);
        let volume = |name: &str| {
            let volumes = pod["volumes"].as_array().unwrap();
            volumes.iter().find(|volume| volume["name"] == name).unwrap().clone()
        };
        let path = values[0].split('=').next_back().unwrap();
        let expected = |name: &str, path: &str, kind: &str| json!({"name": name, "hostPath": {"path": path, "type": kind}});
        assert_eq!(volume("run"), expected("run", path, socket), "{values:?}");
        assert_eq!(volume("state"), expected("state", "/run/portolan", state), "{values:?}");
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        assert!(mounts.contains(&json!({"name": "run", "mountPath": "/run/portolan"})), "{values:?}");
    }
}

/// `null` removes a default value of a chart. What is given for a map is merged with its default.
#[test]
fn helm_leaves_the_selinux_type_out_or_sets_another() {
    for (value, expected) in [
        ("seLinuxOptions=null", Value::Null),
        ("seLinuxOptions.type=portolan_t", json!({"type": "portolan_t", "level": "s0"})),
    ] {
        let Some(chart) = rendered(&[value]) else { return };
        assert_eq!(pod(&chart)["containers"][0]["securityContext"]["seLinuxOptions"], expected, "{value}");
    }
}

#[test]
fn helm_refuses_values_that_make_no_sense() {
    let cases = [
        (&[][..], "url"),
        (&[URL, "configuration.mode=kernelspace"], "mode"),
        (&[URL, "runAsRoot=perhaps"], "runAsRoot"),
        (&[URL, "nosuch=1"], "nosuch"),
        (&[URL, "controlSocket.hostPath=run"], "hostPath"),
        (&[URL, "configuration.hostnameOverride=node-1"], "hostnameOverride"),
    ];
    for (values, named) in cases {
        let Some(mut helm) = helm(&["template", "portolan"], values) else { return };
        let output = helm.output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && complaint.contains(named), "{values:?}: {complaint}");
    }
}
