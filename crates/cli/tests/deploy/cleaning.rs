//! The manifests of the clean-up.

use std::process::Command;

use serde_json::{Value, json};

use crate::files::{BINARY, of_kind, one_yaml, read, run};
use crate::kustomize::{build, with_iptables};

const ALL: &str = "deploy/kustomize/cleanup";
const ONLY_OURS: &str = "deploy/kustomize/cleanup-only-ours";

fn pod(folder: &str) -> Value {
    let built = build(folder);
    assert_eq!(built.len(), 1, "{folder}");
    of_kind(&built, "DaemonSet")["spec"]["template"]["spec"].clone()
}

fn arguments(container: &Value) -> Vec<&str> {
    container["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

#[test]
fn one_container_cleans_up_and_the_other_waits() {
    const PROGRAM: &str = "/usr/local/bin/portolan-proxy";
    for (folder, options) in [(ALL, &[][..]), (ONLY_OURS, &["--only-ours"])] {
        let pod = pod(folder);
        let (cleanup, done) = (&pod["initContainers"][0], &pod["containers"][0]);
        assert_eq!(arguments(cleanup), [&[PROGRAM, "cleanup"], options].concat(), "{folder}");
        let waits = [&[PROGRAM, "cleanup"], options, &["--dry-run", "--wait"]].concat();
        assert_eq!(arguments(done), waits, "{folder}: the container that is started again removes nothing");
        for container in [cleanup, done] {
            let mut command = Command::new(BINARY);
            command.args(arguments(container).into_iter().skip(1)).arg("--help");
            run(command);
        }
    }
}

/// The clean-up needs what the agent of any mode has used: the node's lock, and the file with the former sysctls.
#[test]
fn it_reaches_what_the_agent_has_used() {
    let (pod, agent) = (pod(ALL), with_iptables());
    let agent = &agent["spec"]["template"]["spec"];
    for field in ["hostNetwork", "nodeSelector", "tolerations"] {
        assert_eq!(pod[field], agent[field], "{field}");
    }
    for volume in pod["volumes"].as_array().unwrap() {
        assert!(agent["volumes"].as_array().unwrap().contains(volume), "{volume}");
    }
    let theirs = &agent["initContainers"][0];
    let ours = &pod["initContainers"][0];
    for mount in ours["volumeMounts"].as_array().unwrap() {
        assert!(theirs["volumeMounts"].as_array().unwrap().contains(mount), "{mount}");
    }
    assert_eq!(ours["securityContext"], theirs["securityContext"], "it writes sysctls, too");
    let mut expected = agent["containers"][0]["securityContext"].clone();
    expected["capabilities"]["add"] = json!(["NET_ADMIN", "NET_RAW"]);
    for field in ["runAsNonRoot", "runAsGroup"] {
        expected.as_object_mut().unwrap().remove(field);
    }
    assert_eq!(pod["containers"][0]["securityContext"], expected);
    // A selector that matches the agent's pods would take them over.
    let labels =
        |file: &str| one_yaml(file)["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"].clone();
    assert_ne!(labels(&format!("{ALL}/daemonset.yaml")), labels("deploy/kustomize/base/daemonset.yaml"));
}

#[test]
fn the_pages_name_it_where_there_is_only_the_image() {
    for (page, folder) in [
        ("docs/cleanup.md", ALL),
        ("docs/install.md", ALL),
        ("docs/migrate.md", ONLY_OURS),
        ("docs/cleanup.md", ONLY_OURS),
    ] {
        assert!(
            read(page).contains(&format!("{folder}\n")) || read(page).contains(&format!("{folder}`")),
            "{page}: {folder}"
        );
    }
    let notes = read("deploy/helm/portolan/templates/NOTES.txt");
    assert!(notes.contains(ALL), "{notes}");
}
