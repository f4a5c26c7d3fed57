//! The folder of manifests: loading, changes, removal and restart.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::{fs, os::unix::fs::symlink, path::Path};

use common::*;
use portolan_serve::{Config, Error, Resource, RunningServer, Server};

fn start_with(folder: &Path) -> RunningServer {
    start(Config { manifests: Some(folder.to_owned()), ..Config::default() })
}

fn names(server: &RunningServer, resource: Resource) -> Vec<String> {
    let snapshot = server.store().snapshot(resource, &portolan_serve::Scope::default(), None).unwrap();
    snapshot.objects.iter().map(|object| object.key().to_owned()).collect()
}

/// Waits until the folder has been read.
fn ready(server: &RunningServer) {
    until("the server is ready", || get(server.local_addr(), "/readyz").code == 200);
}

fn services(server: &RunningServer) -> Vec<String> {
    names(server, Resource::Service)
}

fn yaml(name: &str, port: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  ports:\n  - port: {port}\n")
}

/// Replaces a file atomically, by a rename.
fn put(folder: &Path, name: &str, content: &str) {
    let hidden = folder.join(format!(".{name}.new"));
    fs::write(&hidden, content).unwrap();
    fs::rename(hidden, folder.join(name)).unwrap();
}

#[test]
fn existing_files_are_applied_before_the_first_response() {
    let folder = tempfile::tempdir().unwrap();
    put(
        folder.path(),
        "a.yaml",
        &format!("# two documents\n---\n{}---\n\n---\n{}", yaml("a", "80"), yaml("b", "81")),
    );
    let list = r#"{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"c"},"spec":{"ports":[{"port":1}]}}]}"#;
    put(folder.path(), "b.json", list);
    let list =
        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: n1\n";
    put(folder.path(), "c.yml", list);
    put(folder.path(), "notes.txt", "not a manifest");
    let server = start_with(folder.path());
    let first = get(server.local_addr(), SERVICES).expect(200);
    assert_eq!(first["items"].as_array().unwrap().len(), 3);
    assert_eq!(services(&server), ["default/a", "default/b", "default/c"]);
    assert_eq!(names(&server, Resource::Node), ["n1"]);
}

#[test]
fn changes_are_followed_and_what_is_gone_is_pruned() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.yaml", &format!("{}---\n{}", yaml("a", "80"), yaml("b", "80")));
    let server = start_with(folder.path());
    ready(&server);
    server.api().blocking().apply(service("by-hand")).unwrap();
    let port =
        || get(server.local_addr(), &format!("{SERVICES}/a")).json()["spec"]["ports"][0]["port"].clone();
    put(folder.path(), "a.yaml", &yaml("a", "8080"));
    until("the port changes", || port() == 8080);
    until("b is pruned", || services(&server) == ["default/a", "default/by-hand"]);
    put(folder.path(), "c.yaml", &yaml("c", "80"));
    until("c comes", || services(&server).contains(&"default/c".to_owned()));
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    until("a goes", || services(&server) == ["default/by-hand", "default/c"]);
    fs::write(folder.path().join("c.yaml"), yaml("d", "80")).unwrap();
    until("a file written in place counts", || services(&server) == ["default/by-hand", "default/d"]);
}

#[test]
fn a_bad_document_harms_only_itself_and_prunes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.yaml", &format!("{}---\n{}", yaml("a", "80"), yaml("b", "80")));
    let server = start_with(folder.path());
    ready(&server);
    put(
        folder.path(),
        "a.yaml",
        &format!("{}---\nnot: [closed\n---\n{}---\n{}", yaml("a", "0"), yaml("c", "80"), yaml("d", "\"80\"")),
    );
    until("c comes", || services(&server).contains(&"default/c".to_owned()));
    assert_eq!(services(&server), ["default/a", "default/b", "default/c"]);
    put(folder.path(), "b.yaml", &yaml("c", "9999"));
    put(folder.path(), "c.yaml", &yaml("e", "80"));
    until("the next file is applied", || services(&server).contains(&"default/e".to_owned()));
    let port =
        || get(server.local_addr(), &format!("{SERVICES}/c")).json()["spec"]["ports"][0]["port"].clone();
    assert_eq!(port(), 80, "the first file that declares an object has it");
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    until("the other declaration takes over", || port() == 9999);
    until("the rest goes", || services(&server) == ["default/c", "default/e"]);
}

#[test]
fn a_swapped_symlink_is_a_change_of_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let version = |name: &str, services: &[&str]| {
        fs::create_dir(path.join(name)).unwrap();
        let text: Vec<String> = services.iter().map(|service| yaml(service, "80")).collect();
        fs::write(path.join(name).join("all.yaml"), text.join("---\n")).unwrap();
    };
    version("..1", &["a", "b"]);
    symlink("..1", path.join("..data")).unwrap();
    symlink("..data/all.yaml", path.join("all.yaml")).unwrap();
    let server = start_with(path);
    ready(&server);
    assert_eq!(services(&server), ["default/a", "default/b"]);
    version("..2", &["b", "c"]);
    symlink("..2", path.join("..data_tmp")).unwrap();
    fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    until("the swap is followed", || services(&server) == ["default/b", "default/c"]);
}

#[test]
fn objects_stay_while_the_folder_is_gone() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("manifests");
    fs::create_dir(&folder).unwrap();
    put(&folder, "a.yaml", &yaml("a", "80"));
    let server = start_with(&folder);
    ready(&server);
    let fresh = parent.path().join("fresh");
    fs::create_dir(&fresh).unwrap();
    put(&fresh, "b.yaml", &yaml("b", "80"));
    fs::rename(&folder, parent.path().join("away")).unwrap();
    assert_eq!(services(&server), ["default/a"]);
    fs::rename(&fresh, &folder).unwrap();
    until("the new folder is followed", || services(&server) == ["default/b"]);
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let folder = tempfile::tempdir().unwrap().path().join("missing");
    let config = Config { manifests: Some(folder.clone()), ..Config::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        portolan_serve::serve(config, listener, std::future::pending()).await.unwrap_err()
    });
    assert!(matches!(&error, Error::Manifests { folder: named, .. } if *named == folder), "{error}");
}

#[test]
fn a_deleted_object_of_a_manifest_is_created_again() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.yaml", &yaml("a", "80"));
    let in_shop =
        "apiVersion: v1\nkind: Service\nmetadata: {name: b, namespace: shop}\nspec: {ports: [{port: 1}]}\n";
    put(folder.path(), "b.yaml", in_shop);
    let server = start_with(folder.path());
    let address = server.local_addr();
    let uid = |path: &str| get(address, path).json()["metadata"]["uid"].clone();
    let (a, shop) = (format!("{SERVICES}/a"), "/api/v1/namespaces/shop");
    for (path, gone) in [(a.as_str(), a.as_str()), ("/api/v1/namespaces/shop/services/b", shop)] {
        let before = uid(path);
        delete(address, gone).expect(200);
        until("it is made anew", || uid(path).is_string() && uid(path) != before);
    }
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    until("pruned", || services(&server) == ["shop/b"]);
}

#[test]
fn a_file_counts_when_it_is_closed() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.yaml", &format!("{}---\n{}", yaml("a", "80"), yaml("b", "80")));
    let server = start_with(folder.path());
    ready(&server);
    let mut writer = fs::File::create(folder.path().join("a.yaml")).unwrap();
    writer.write_all(format!("{}---\n", yaml("a", "8080")).as_bytes()).unwrap();
    put(folder.path(), "c.yaml", &yaml("c", "80"));
    until("another file is followed meanwhile", || services(&server).contains(&"default/c".to_owned()));
    assert_eq!(services(&server), ["default/a", "default/b", "default/c"]);
    let port =
        || get(server.local_addr(), &format!("{SERVICES}/a")).json()["spec"]["ports"][0]["port"].clone();
    assert_eq!(port(), 80, "half a file is nothing");
    writer.write_all(yaml("d", "80").as_bytes()).unwrap();
    drop(writer);
    until("the whole file counts", || services(&server) == ["default/a", "default/c", "default/d"]);
    assert_eq!(port(), 8080);
}

#[test]
fn objects_of_files_removed_while_no_server_ran_are_pruned() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "a.yaml", &yaml("a", "80"));
    put(folder.path(), "b.yaml", &yaml("b", "80"));
    let server = start_with(folder.path());
    ready(&server);
    server.api().blocking().apply(service("by-hand")).unwrap();
    let api = server.stop().unwrap();
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    put(folder.path(), "c.yaml", &yaml("b", "81"));
    fs::remove_file(folder.path().join("b.yaml")).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config { manifests: Some(folder.path().to_owned()), ..Config::default() };
    let server = Server::start_with(api, config, listener).unwrap();
    ready(&server);
    assert_eq!(services(&server), ["default/b", "default/by-hand"]);
}
