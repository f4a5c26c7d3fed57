//! The kustomize folders, and the result of applying them to kubeadm's `DaemonSet`.
//!
//! The kustomizations use few features of kustomize, which are implemented here. A kubectl that is new enough must
//! give the same result.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::files::{self, of_kind, one_yaml, read, run, tool, tools, yaml};

const BASE: &str = "deploy/kustomize/base";
const OVERLAY: &str = "deploy/kustomize/overlays/kubeadm";
const READINESS: &str = "deploy/kustomize/readiness";
const IPTABLES: &str = "deploy/kustomize/overlays/iptables";

/// Returns the `DaemonSet` for modes that call iptables.
pub(crate) fn with_iptables() -> Value {
    of_kind(&build(IPTABLES), "DaemonSet").clone()
}

/// Returns the objects of a folder.
pub(crate) fn build(folder: &str) -> Vec<Value> {
    let built = built(folder);
    let kubectls = tools("kubectl");
    let new_enough = kubectls.iter().find(|kubectl| knows_folders(kubectl));
    assert!(new_enough.is_some() || !files::is_provided("kubectl"), "{kubectls:?}");
    if let Some(kubectl) = new_enough {
        let mut command = Command::new(kubectl);
        command.arg("kustomize").arg(files::path(folder));
        let theirs = yaml(folder, &run(command));
        assert_eq!(theirs.len(), built.len(), "{folder}");
        for object in &theirs {
            assert!(built.contains(object), "{folder}: {object:#}");
        }
    }
    built
}

/// Returns true if the kubectl's kustomize accepts folders as resources: since kubectl 1.21. Debian 12 has 1.20.
fn knows_folders(kubectl: &Path) -> bool {
    let mut command = Command::new(kubectl);
    command.args(["version", "--client", "--output=json"]);
    let version: Value = serde_json::from_str(&run(command)).unwrap();
    let minor = version["clientVersion"]["minor"].as_str().unwrap().trim_end_matches('+');
    minor.parse::<u32>().unwrap() >= 21
}

/// Builds a kustomization. Fails on a feature that this code does not support.
fn built(folder: &str) -> Vec<Value> {
    let kustomization = one_yaml(&format!("{folder}/kustomization.yaml"));
    let mut objects = Vec::new();
    let list = |name: &str| kustomization[name].as_array().cloned().unwrap_or_default();
    for resource in list("resources") {
        let name = format!("{folder}/{}", resource.as_str().unwrap());
        let is_folder = files::path(&name).is_dir();
        objects.extend(if is_folder { built(&name) } else { yaml(&name, &read(&name)) });
    }
    for patch in list("patches") {
        apply(&patch, &mut objects);
    }
    for image in list("images") {
        for object in &mut objects {
            set_image(object, &image);
        }
    }
    let known = ["apiVersion", "kind", "resources", "patches", "images"];
    assert!(kustomization.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())));
    objects
}

fn apply(patch: &Value, objects: &mut Vec<Value>) {
    let content = yaml("patch", patch["patch"].as_str().unwrap()).remove(0);
    let is = |object: &Value, target: &Value, name: &Value| {
        object["kind"] == target["kind"] && object["metadata"]["name"] == *name
    };
    let before = objects.len();
    if content["$patch"] == "delete" {
        objects.retain(|object| !is(object, &content, &content["metadata"]["name"]));
        assert_eq!(objects.len(), before - 1, "{content}");
        return;
    }
    let target = &patch["target"];
    let object = objects.iter_mut().find(|object| is(object, target, &target["name"])).unwrap();
    for operation in content.as_array().unwrap() {
        let pointer = operation["path"].as_str().unwrap();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("{parent}"));
        if let Some(list) = parent.as_array_mut().filter(|_| operation["op"] == "add") {
            list.insert(name.parse().unwrap(), operation["value"].clone());
            continue;
        }
        let slot = match parent.as_array_mut() {
            Some(list) => &mut list[name.parse::<usize>().unwrap()],
            None => &mut parent[name],
        };
        assert_eq!(slot.is_null(), operation["op"] == "add", "{operation}");
        *slot = operation["value"].clone();
    }
}

fn set_image(object: &mut Value, image: &Value) {
    for list in ["containers", "initContainers"] {
        let Some(containers) = object.pointer_mut(&format!("/spec/template/spec/{list}")) else { continue };
        for container in containers.as_array_mut().unwrap() {
            if container["image"].as_str().unwrap().split(':').next() == image["name"].as_str() {
                let (name, tag) = (image["newName"].as_str().unwrap(), image["newTag"].as_str().unwrap());
                container["image"] = format!("{name}:{tag}").into();
            }
        }
    }
}

#[test]
fn the_base_is_its_files() {
    let kinds: Vec<Value> = build(BASE).iter().map(|object| object["kind"].clone()).collect();
    assert_eq!(kinds, ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet"]);
}

#[test]
fn the_role_for_readiness_can_be_added_to_every_folder() {
    let kinds: Vec<Value> = build(READINESS).iter().map(|object| object["kind"].clone()).collect();
    assert_eq!(kinds, ["ClusterRole", "ClusterRoleBinding"]);
}

#[test]
fn modes_that_call_iptables_have_what_it_needs_and_no_more() {
    let (set, base) = (with_iptables(), one_yaml(&format!("{BASE}/daemonset.yaml")));
    let pod = &set["spec"]["template"]["spec"];
    let (agent, initial) = (&pod["containers"][0], &pod["initContainers"][0]);
    let theirs = kubeadm();
    let theirs = &theirs["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][1], theirs["volumes"][1]);
    for container in [agent, initial] {
        assert_eq!(container["volumeMounts"][1], theirs["containers"][0]["volumeMounts"][1]);
    }
    let mut expected = base["spec"]["template"]["spec"]["containers"][0]["securityContext"].clone();
    expected["runAsNonRoot"] = false.into();
    expected["runAsUser"] = 0.into();
    expected["runAsGroup"] = 0.into();
    expected["allowPrivilegeEscalation"] = false.into();
    expected["capabilities"]["add"] = json!(["NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"]);
    assert_eq!(agent["securityContext"], expected);
}

fn overlay() -> Value {
    let mut built = build(OVERLAY);
    assert_eq!(built.len(), 1, "{built:#?}");
    built.remove(0)
}

#[test]
fn the_overlay_is_the_daemon_set_of_kubeadm() {
    let (set, theirs) = (overlay(), kubeadm());
    for path in
        ["/kind", "/metadata/name", "/metadata/namespace", "/metadata/labels/k8s-app", "/spec/selector"]
    {
        assert_eq!(set.pointer(path).unwrap(), theirs.pointer(path).unwrap(), "{path}");
    }
    let (template, pod) = (&set["spec"]["template"], &set["spec"]["template"]["spec"]);
    assert_eq!(template["metadata"]["labels"]["k8s-app"], "kube-proxy");
    assert_eq!(pod["serviceAccountName"], "kube-proxy");
    assert_eq!(pod["containers"][0]["name"], "kube-proxy");
    let state = json!({"name": "state", "hostPath": {"path": "/run/portolan", "type": "DirectoryOrCreate"}});
    let volumes = json!([
        {"name": "kube-proxy", "configMap": {"name": "kube-proxy"}},
        state,
        {"name": "run", "emptyDir": {}},
    ]);
    assert_eq!(pod["volumes"], volumes);
    let mounts = |list: &str| pod[list][0]["volumeMounts"].as_array().unwrap().len();
    assert_eq!((mounts("initContainers"), mounts("containers")), (2, 2), "the agent has no path of the host");
    let base = one_yaml(&format!("{BASE}/daemonset.yaml"));
    let security = |set: &Value| set["spec"]["template"]["spec"]["containers"][0]["securityContext"].clone();
    assert_eq!(security(&set), security(&base));
}

/// Returns the relevant parts of the `DaemonSet` that kubeadm creates.
fn kubeadm() -> Value {
    let labels = json!({"k8s-app": "kube-proxy"});
    let container = json!({
        "name": "kube-proxy",
        "image": "registry.k8s.io/kube-proxy:v1.36.0",
        "command": ["/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"],
        "securityContext": {"privileged": true},
        "volumeMounts": [
            {"name": "kube-proxy", "mountPath": "/var/lib/kube-proxy"},
            {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
            {"name": "lib-modules", "mountPath": "/lib/modules", "readOnly": true},
        ],
    });
    let volumes = json!([
        {"name": "kube-proxy", "configMap": {"name": "kube-proxy"}},
        {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
        {"name": "lib-modules", "hostPath": {"path": "/lib/modules"}},
    ]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "volumes": volumes, "serviceAccountName": "kube-proxy"},
            },
        },
    })
}

fn host_paths(set: &Value) -> usize {
    let volumes = set["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    volumes.iter().filter(|volume| volume["hostPath"].is_object()).count()
}

/// `kubectl apply` removes only what an earlier apply recorded in the object, and kubeadm records nothing. It is then
/// a strategic merge patch, which keeps every volume.
#[test]
fn kubeadm_s_daemon_set_has_to_be_replaced() {
    assert_eq!(host_paths(&overlay()), 1);
    if let Some(mut kubectl) = tool("kubectl") {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeadm.json");
        std::fs::write(&file, kubeadm().to_string()).unwrap();
        kubectl
            .args(["patch", "--local", "--type=strategic", "--output=json", "--patch"])
            .arg(overlay().to_string());
        kubectl.arg("--filename").arg(file);
        let applied: Value = serde_json::from_str(&run(kubectl)).unwrap();
        assert_eq!(
            applied["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"],
            false
        );
        assert_eq!(host_paths(&applied), 3);
    }
    let page = read("docs/migrate.md");
    assert!(page.contains(&format!("kubectl kustomize {OVERLAY} | kubectl replace --save-config -f -")));
    assert!(
        !page.contains(&format!("apply -k {OVERLAY}"))
            && !read(&format!("{OVERLAY}/kustomization.yaml")).contains("apply -k")
    );
}
