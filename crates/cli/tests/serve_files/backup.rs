//! Backups, restoring, and what is left of a damaged store.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::site::{BINARY, PATIENCE, Site, until};

const SERVICES: &str = "/api/v1/namespaces/team/services";

/// Runs `portolan serve`. Returns the exit code, stdout and stderr.
fn serve(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(BINARY).arg("serve").args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Creates a namespace, 20 Services with node ports, and a slice of each.
fn fill(site: &Site) {
    let create = |path: &str, object: Value| {
        let answer = site.ask("POST", path, &object.to_string());
        assert_eq!(answer.code, 201, "{}", answer.body);
    };
    create("/api/v1/namespaces", json!({"metadata": {"name": "team"}}));
    create(
        "/api/v1/nodes",
        json!({"metadata": {"name": "host1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
    );
    for number in 0..20 {
        let name = format!("web-{number}");
        create(
            SERVICES,
            json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}),
        );
        create(
            "/apis/discovery.k8s.io/v1/namespaces/team/endpointslices",
            json!({
                "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4", "endpoints": [{"addresses": [format!("192.0.2.{number}")]}], "ports": [{"port": 80}],
            }),
        );
    }
}

/// Returns the Services of the namespace by name, as far as users see them, and the revision of the list.
fn services(site: &Site) -> (Vec<(String, Value)>, u64) {
    let list: Value = serde_json::from_str(&site.ask("GET", SERVICES, "").body).unwrap();
    let items = list["items"].as_array().unwrap().iter();
    let items =
        items.map(|item| (item["metadata"]["name"].as_str().unwrap().to_owned(), item["spec"].clone()));
    (items.collect(), list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap())
}

fn watch_from(site: &Site, revision: u64) -> String {
    let path = format!("{SERVICES}?watch=1&timeoutSeconds=1&resourceVersion={revision}");
    site.ask("GET", &path, "").body
}

#[test]
fn a_backup_of_a_running_server_is_restored() {
    let (site, folder) = (Site::new(), tempdir().unwrap());
    let [data, new, file] = ["data", "new", "backup"].map(|name| folder.path().join(name));
    let mut server = site.serve(&[], &["--data-dir", text(&data)]);
    site.ready(&mut server);
    fill(&site);
    let (before, _) = services(&site);
    let (code, checked, error) = serve(&["--check", "--data-dir", text(&data)]);
    assert_eq!((code, error.as_str()), (0, ""), "{checked}");
    for line in ["objects.redb: whole, ", "last revision ", "Service        21", "EndpointSlice  20"] {
        assert!(checked.contains(line), "{checked}");
    }
    let (code, said, error) = serve(&["backup", text(&file), "--data-dir", text(&data)]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(said.contains("backup: written, ") && said.contains("Service        21"), "{said}");
    // The server goes on, and is lost.
    assert_eq!(site.ask("DELETE", &format!("{SERVICES}/web-3"), "").code, 200);
    let (_, seen) = services(&site);
    let (code, _, error) = serve(&["restore", text(&file), "--data-dir", text(&data)]);
    assert!(code == 1 && error.contains("in use by another process"), "{error}");
    assert!(server.terminate(PATIENCE).unwrap().success());
    let (code, _, error) = serve(&["restore", text(&file), "--data-dir", text(&data)]);
    assert!(code == 1 && error.contains("nothing is restored over a store"), "{error}");

    // The server of this folder runs as another user.
    fs::create_dir(&new).unwrap();
    chown(&new, Some(1234), Some(1234)).unwrap();
    let (code, said, error) = serve(&["restore", text(&file), "--data-dir", text(&new)]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(said.contains("objects.redb: restored, "), "{said}");
    for entry in fs::read_dir(&new).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().uid(), 1234, "{entry:?}");
    }
    let mut server = site.serve(&[], &["--data-dir", text(&new)]);
    site.ready(&mut server);
    let (now, revision) = services(&site);
    assert_eq!(now, before);
    assert!(revision > seen);
    let expired = watch_from(&site, seen);
    assert!(expired.contains("\"code\":410"), "a client that has seen {seen} has to list again: {expired}");
    assert_eq!(
        site.ask(
            "POST",
            SERVICES,
            &json!({"metadata": {"name": "new"}, "spec": {"ports": [{"port": 80}]}}).to_string()
        )
        .code,
        201
    );
    assert!(watch_from(&site, revision).contains("\"new\""));
}

#[test]
fn what_a_damaged_store_has_is_named_and_served_again() {
    let (site, folder) = (Site::new(), tempdir().unwrap());
    let [data, manifests, by_client] =
        ["data", "manifests", "by-client"].map(|name| folder.path().join(name));
    let mut server = site.serve(&[], &["--data-dir", text(&data)]);
    site.ready(&mut server);
    fill(&site);
    let (before, _) = services(&site);
    assert!(server.terminate(PATIENCE).unwrap().success());
    drop(server);
    // Nothing refers to the pages any more.
    let store = data.join("objects.redb");
    let mut bytes = fs::read(&store).unwrap();
    bytes[..4096].fill(0);
    fs::write(&store, &bytes).unwrap();

    let (code, said, _) = serve(&["--listen=127.0.0.1:0", "--data-dir", text(&data)]);
    assert_eq!((code, said.as_str()), (1, ""));
    let (code, said, error) = serve(&["--check", "--data-dir", text(&data)]);
    assert_eq!((code, error.as_str()), (2, ""), "{said}");
    assert!(said.contains("objects.redb: damaged: ") && said.contains(" objects can be read: "), "{said}");
    let counts = said.lines().last().unwrap().split_once(" objects").unwrap().0;
    let (readable, all) = counts.split_once(" of ").unwrap();
    assert_eq!(readable, all, "{said}");
    let refused = serve(&["--listen=127.0.0.1:0", "--data-dir", text(&data)]).2;
    assert!(
        refused.contains("objects.redb") && refused.contains(&format!("{counts} objects can be read")),
        "{refused}"
    );

    fs::create_dir(&manifests).unwrap();
    let file = manifests.join("rescued.json");
    let (code, said, error) = serve(&["rescue", text(&file), "--data-dir", text(&data)]);
    assert_eq!((code, error.as_str()), (0, ""));
    // The namespace, the node, the Services and their slices.
    assert!(said.ends_with("rescued.json: 42 manifests\n"), "{said}");
    assert!(fs::read(&store).unwrap() == bytes, "the damaged file was written to");
    let (code, _, error) = serve(&["rescue", text(&file), "--data-dir", text(&data)]);
    assert!(code == 1 && error.contains("rescued.json"), "{error}");

    let other = folder.path().join("other");
    let mut server = site.serve(&[], &["--data-dir", text(&other), "--manifests", text(&manifests)]);
    site.ready(&mut server);
    until("all are there", || services(&site).0.len() == before.len());
    assert_eq!(services(&site).0, before);
    assert_eq!(site.names("/api/v1/nodes"), ["host1"]);
    assert!(
        !server.output().contains("ERROR") && !server.output().contains(": document "),
        "{}",
        server.output()
    );
    assert!(server.terminate(PATIENCE).unwrap().success());

    // A client creates them, as `kubectl create` does.
    let mut server = site.serve(&[], &["--data-dir", text(&by_client)]);
    site.ready(&mut server);
    let list: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for item in list["items"].as_array().unwrap() {
        let path = match item["kind"].as_str().unwrap() {
            "Namespace" => "/api/v1/namespaces",
            "Node" => "/api/v1/nodes",
            "Service" => SERVICES,
            "EndpointSlice" => "/apis/discovery.k8s.io/v1/namespaces/team/endpointslices",
            other => panic!("{other}"),
        };
        let answer = site.ask("POST", path, &item.to_string());
        assert_eq!(answer.code, 201, "{item}: {}", answer.body);
    }
    assert_eq!(services(&site).0, before);
}
