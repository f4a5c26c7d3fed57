//! The Kubernetes manifests.

use portolan_node::config::{self, Mode};
use serde_json::{Value, json};

use crate::files::{self, BINARY, all_below, of_kind, one_yaml, patience, read, run, yaml};

const BASE: &str = "deploy/kustomize/base";

fn daemon_set() -> Value {
    one_yaml(&format!("{BASE}/daemonset.yaml"))
}

#[test]
fn every_file_is_yaml_or_json() {
    let mut checked = 0;
    for path in all_below(&files::path("deploy")) {
        let name = path.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml") if !name.contains("/templates/") => drop(yaml(&name, &text)),
            Some("json") => drop(serde_json::from_str::<Value>(&text).expect(&name)),
            _ => continue,
        }
        checked += 1;
    }
    assert!(checked >= 10, "{checked} files");
}

/// Seconds in which the agent ends after a signal: the userspace mode lets its connections go on.
const SHUTDOWN_LIMIT: u64 = 25;

#[test]
fn the_agent_has_two_capabilities_and_nothing_else() {
    let set = daemon_set();
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(set["spec"]["updateStrategy"]["type"], "RollingUpdate");
    let [agent] = pod["containers"].as_array().unwrap().as_slice() else { panic!("one container") };
    let security = &agent["securityContext"];
    assert_eq!(security["privileged"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["runAsNonRoot"], true);
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"], "add": ["NET_ADMIN", "NET_BIND_SERVICE"]}));
    assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(security["seLinuxOptions"], json!({"type": "spc_t", "level": "s0"}));
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() >= SHUTDOWN_LIMIT);
    let probe = |name: &str| agent[name]["httpGet"]["path"].as_str().unwrap().to_owned();
    assert_eq!(
        [probe("livenessProbe"), probe("readinessProbe"), probe("startupProbe")],
        ["/livez", "/readyz", "/livez"]
    );
    assert_eq!(patience(&agent["livenessProbe"]), 600, "kubelet forgets earlier ends after ten minutes");
}

/// A container that is not privileged runs as `container_t`, which may not open the netlink sockets of nftables and conntrack.
#[test]
fn the_container_of_the_page_has_the_selinux_type_of_the_manifests() {
    let page = read("docs/serve.md");
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("podman run ")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(" --security-opt label=type:spc_t ")));
}

/// The agent is not root, and its root file system is read-only.
#[test]
fn the_agent_can_open_its_control_socket() {
    let pod = &daemon_set()["spec"]["template"]["spec"];
    let folder = std::path::Path::new(config::CONTROL_SOCKET).parent().unwrap().to_str().unwrap();
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["mountPath"] == folder).expect("a mount for the socket");
    assert!(mount["readOnly"].is_null());
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
    assert_eq!(volume["emptyDir"], json!({}), "every user may write there, and it ends with the pod");
    let unit = read("deploy/systemd/portolan-proxy.service");
    let name = folder.strip_prefix("/run/").unwrap();
    assert_eq!(unit.matches(&format!("\nRuntimeDirectory={name}\n")).count(), 1, "{unit}");
}

/// A test beside the check of the memory limit verifies that this limit is enough for 16,000 Services with 10
/// endpoints each in both families in the iptables mode.
#[test]
fn the_memory_limit_is_that_of_the_iptables_mode_everywhere() {
    let limits = |set: &Value| {
        let pod = &set["spec"]["template"]["spec"];
        let containers = ["initContainers", "containers"].map(|of| pod[of].as_array().unwrap().clone());
        let limits = containers.concat().into_iter().map(|it| it["resources"]["limits"]["memory"].clone());
        limits.collect::<Vec<Value>>()
    };
    assert_eq!(limits(&daemon_set()), ["1280Mi", "1280Mi"]);
    assert_eq!(limits(&crate::kustomize::with_iptables()), ["1280Mi", "1280Mi"]);
    assert_eq!(one_yaml("deploy/helm/portolan/values.yaml")["resources"]["limits"]["memory"], "1280Mi");
    let unit = read("deploy/systemd/portolan-proxy.service");
    assert!(
        !unit.contains("MemoryMax") && !unit.contains("MemoryHigh"),
        "docs/install.md says that it has none"
    );
    assert!(read("deploy/monitoring/alerts.yaml").contains("The manifests give it 1.25 GiB"));
    assert!(read("docs/install.md").contains("resources.limits.memory` is 1.25 GiB"));
}

/// If the init container chose another mode than the agent, its settings would be wrong for it: with `route_localnet`, the
/// network reaches what listens on loopback unless the iptables mode guards it.
#[test]
fn both_containers_choose_the_same_mode() {
    let flags = |set: &Value| {
        let pod = &set["spec"]["template"]["spec"];
        ["initContainers", "containers"].map(|of| {
            let words = pod[of][0]["command"].as_array().unwrap().iter().filter_map(|word| word.as_str());
            let is_choice =
                |word: &&str| word.starts_with("--default-mode") || word.starts_with("--userspace-capture");
            words.filter(is_choice).map(str::to_owned).collect::<Vec<_>>()
        })
    };
    let base = ["--default-mode=nftables", "--userspace-capture=tproxy"];
    assert_eq!(flags(&daemon_set()), [base, base]);
    let with_iptables = ["--default-mode=iptables", "--userspace-capture=auto"];
    assert_eq!(flags(&crate::kustomize::with_iptables()), [with_iptables, with_iptables]);
}

#[test]
fn the_command_lines_exist() {
    let pod = &daemon_set()["spec"]["template"]["spec"];
    for list in ["containers", "initContainers"] {
        for container in pod[list].as_array().unwrap() {
            let words: Vec<&str> =
                container["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
            let (program, options) = words.split_first().unwrap();
            assert!(read("deploy/image/Dockerfile").contains(&format!("ENTRYPOINT [\"{program}\"]")));
            assert!(options.contains(&"--hostname-override=$(NODE_NAME)"), "{options:?}");
            assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
            // `portolan proxy` has the flags of `portolan-proxy`.
            let mut command = std::process::Command::new(BINARY);
            command.arg("proxy").args(options).arg("--help");
            run(command);
        }
    }
}

#[test]
fn the_configuration_is_one_that_portolan_takes() {
    let map = one_yaml(&format!("{BASE}/configmap.yaml"));
    let configuration = config::parse(map["data"]["config.conf"].as_str().unwrap()).unwrap();
    assert_eq!(configuration.mode, Some(Mode::Nftables));
    let kubeconfig_path = configuration.client_connection.kubeconfig;
    let mount = &daemon_set()["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"];
    assert_eq!(kubeconfig_path, format!("{}/kubeconfig.conf", mount.as_str().unwrap()));
    let kubeconfig = yaml("kubeconfig.conf", map["data"]["kubeconfig.conf"].as_str().unwrap());
    assert_eq!(kubeconfig[0]["current-context"], kubeconfig[0]["contexts"][0]["name"]);
}

#[test]
fn roles_are_bound_to_the_account_of_the_daemon_set() {
    let objects = yaml("rbac.yaml", &read(&format!("{BASE}/rbac.yaml")));
    let (role, binding) = (of_kind(&objects, "ClusterRole"), of_kind(&objects, "ClusterRoleBinding"));
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let account = one_yaml(&format!("{BASE}/serviceaccount.yaml"));
    let subject = &binding["subjects"][0];
    assert_eq!(subject["name"], account["metadata"]["name"]);
    assert_eq!(subject["namespace"], account["metadata"]["namespace"]);
    let set = daemon_set();
    assert_eq!(set["spec"]["template"]["spec"]["serviceAccountName"], account["metadata"]["name"]);
    assert_eq!(set["metadata"]["namespace"], account["metadata"]["namespace"]);
}

/// The `config.conf` of a kubeadm 1.36 cluster with default settings: it has every field, and most are empty.
const KUBEADM: &str = r#"
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
"#;

#[test]
fn the_configuration_of_kubeadm_is_taken_as_it_is() {
    let configuration = config::parse(KUBEADM).unwrap();
    let everything_else = config::parse(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n\
         clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}\nnftables: {minSyncPeriod: 0s}\n\
         iptables: {minSyncPeriod: 0s}\n",
    );
    assert_eq!(configuration, everything_else.unwrap(), "what is empty has its default");
    assert_eq!(configuration.mode_or_default(), Mode::Iptables);
}
