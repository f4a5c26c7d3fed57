use portolan_api::{ApiConfig, DeleteOptions};

use super::*;

mod order;

const DIR: &str = "/manifests";

fn folder() -> Folder {
    Folder::new(Arc::new(Api::new(&ApiConfig::default())), DIR.into())
}

fn contents(files: &[(&str, &str)]) -> Contents {
    let found =
        |(name, text): &(&str, &str)| (Path::new(DIR).join(name), Found::Content(text.as_bytes().to_vec()));
    files.iter().map(found).collect()
}

fn service(name: &str, port: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  ports:\n  - port: {port}\n")
}

fn names(folder: &Folder) -> Vec<String> {
    let snapshot = folder.api.store().snapshot(Resource::Service, &Scope::default(), None).unwrap();
    snapshot.objects.iter().map(|object| object.name().to_owned()).collect()
}

fn complaints(folder: &Folder) -> Vec<&str> {
    folder.files.values().flat_map(|file| &file.complaints).map(String::as_str).collect()
}

#[tokio::test]
async fn complaints_name_file_document_line_and_field() {
    let mut folder = folder();
    let text =
        format!("# first\n---\n{}---\na:\n  b: [closed\n---\n{}", service("a", "80"), service("b", "0"));
    let json =
        "\n{\"apiVersion\": \"v1\"}\n\n{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [3]}\n{";
    folder.sync(contents(&[("a.yaml", &text), ("b.json", json)])).await;
    assert_eq!(names(&folder), ["a"]);
    let complaints = complaints(&folder);
    let expected = [
        ["/manifests/a.yaml: document 2, line 10: ", "YAML"],
        ["/manifests/a.yaml: document 3, line 13: Service \"b\" is invalid: [spec.ports[0].port: ", "0"],
        ["/manifests/b.json: document 1, line 2: ", "kind"],
        ["/manifests/b.json: document 2, item 1, line 4: ", "expected an object"],
        ["/manifests/b.json: document 3, line 5: ", "JSON"],
    ];
    assert_eq!(complaints.len(), expected.len(), "{complaints:#?}");
    for (complaint, [start, part]) in complaints.iter().zip(expected) {
        assert!(complaint.starts_with(start) && complaint.contains(part), "{complaint}");
    }
    let mistake = complaints[0].split("YAML").nth(1).unwrap();
    assert!(
        ["12", "13"].iter().any(|line| mistake.contains(line)),
        "the parser's line is the file's: {mistake}"
    );
}

#[tokio::test]
async fn objects_without_manifests_are_pruned_at_the_start() {
    let mut folder = folder();
    folder.sync(contents(&[("a.yaml", &service("a", "80")), ("b.yaml", &service("b", "80"))])).await;
    let api = Arc::clone(&folder.api);
    api.apply(
        portolan_schema::json::json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hand"},
        "spec": {"ports": [{"port": 1}]}}),
    )
    .await
    .unwrap();
    // A copy under another name does not belong to the folder, although it has the annotation.
    let stored = api.store().get(Resource::Service, "default/a").unwrap().decode();
    let mut copy = Value::Object(stored);
    copy["metadata"]["name"] = "copy".into();
    copy["spec"] = portolan_schema::json::json!({"ports": [{"port": 1}]});
    api.apply(copy).await.unwrap();
    let mut other = Folder::new(Arc::clone(&api), "/other".into());
    other.sync(Contents::new()).await;
    assert_eq!(names(&folder), ["a", "b", "copy", "hand"], "another folder has nothing to do with it");
    let mut next = Folder::new(api, DIR.into());
    next.sync(contents(&[("b.yaml", &service("b", "80"))])).await;
    assert_eq!(names(&folder), ["b", "copy", "hand"]);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_prunes_nothing_after_a_restart() {
    let mut folder = folder();
    folder.sync(contents(&[("a.yaml", &service("a", "80"))])).await;
    let mut next = Folder::new(Arc::clone(&folder.api), DIR.into());
    next.sync(contents(&[("a.yaml", "a: [closed")])).await;
    assert_eq!(names(&folder), ["a"]);
    let mut unfinished = contents(&[("a.yaml", "")]);
    unfinished.insert(Path::new(DIR).join("a.yaml"), Found::Unfinished);
    next.sync(unfinished).await;
    assert_eq!(names(&folder), ["a"]);
    next.sync(contents(&[("a.yaml", "")])).await;
    assert_eq!(names(&folder), Vec::<String>::new());
}

#[tokio::test]
async fn objects_without_the_annotation_are_not_pruned() {
    let mut folder = folder();
    folder.sync(contents(&[("a.yaml", &service("a", "80"))])).await;
    let target = Target { resource: Resource::Service, namespace: "default", name: "a" };
    let patch = portolan_schema::json::json!({"metadata": {"annotations": {MARKER: null}}});
    let patch = patch.as_object().unwrap().clone();
    folder.api.merge_patch(target, portolan_api::Part::Main, patch, <_>::default()).await.unwrap();
    folder.sync(Contents::new()).await;
    assert_eq!(names(&folder), ["a"]);
}

#[tokio::test]
async fn a_rename_keeps_the_object() {
    let mut folder = folder();
    let of = |name| contents(&[(name, &service("a", "80"))]);
    folder.sync(of("a.yaml")).await;
    let uid = |folder: &Folder| {
        let stored = folder.api.store().get(Resource::Service, "default/a").unwrap();
        stored.decode()["metadata"]["uid"].clone()
    };
    let before = uid(&folder);
    folder.sync(of("b.yaml")).await;
    assert_eq!(uid(&folder), before);
    let mut next = Folder::new(Arc::clone(&folder.api), DIR.into());
    next.sync(of("b.yaml")).await;
    assert_eq!(uid(&folder), before);
}

#[tokio::test]
async fn finalizers_and_owners_set_by_other_clients_stay() {
    let mut folder = folder();
    folder.sync(contents(&[("a.yaml", &service("a", "80"))])).await;
    let target = Target { resource: Resource::Service, namespace: "default", name: "a" };
    let patch = portolan_schema::json::json!({"metadata": {"finalizers": ["example.com/hold"]}});
    let patch = patch.as_object().unwrap().clone();
    folder.api.merge_patch(target, portolan_api::Part::Main, patch, <_>::default()).await.unwrap();
    folder.sync(contents(&[("a.yaml", &service("a", "81"))])).await;
    let stored = folder.api.store().get(Resource::Service, "default/a").unwrap().decode();
    assert_eq!(stored["spec"]["ports"][0]["port"], 81);
    assert_eq!(stored["metadata"]["finalizers"], portolan_schema::json::json!(["example.com/hold"]));
}

#[tokio::test]
async fn objects_refused_by_a_terminating_namespace_are_retried() {
    let mut folder = folder();
    let namespace = Target { resource: Resource::Namespace, namespace: "", name: "shop" };
    let text =
        "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {ports: [{port: 1}]}\n";
    assert_eq!(folder.sync(contents(&[("a.yaml", text)])).await, Synced::Done);
    folder.api.delete_with(namespace, &DeleteOptions::default()).await.unwrap();
    let service = Target { resource: Resource::Service, namespace: "shop", name: "a" };
    folder.api.delete_with(service, &DeleteOptions::default()).await.unwrap();
    folder.files.values_mut().for_each(|file| file.content = None);
    assert_eq!(folder.sync(contents(&[("a.yaml", text)])).await, Synced::TryAgain);
    assert!(complaints(&folder)[0].contains("being terminated"), "{:?}", complaints(&folder));
}

/// Returns the port of a Service.
fn port(folder: &Folder, name: &str) -> Option<Value> {
    let stored = folder.api.store().get(Resource::Service, &format!("default/{name}"))?;
    Some(stored.decode()["spec"]["ports"][0]["port"].clone())
}

/// Changes the port of a Service as another client.
async fn edit(folder: &Folder, name: &str, port: u16) {
    let target = Target { resource: Resource::Service, namespace: "default", name };
    let patch = portolan_schema::json::json!({"spec": {"ports": [{"port": port}]}});
    let patch = patch.as_object().unwrap().clone();
    folder.api.merge_patch(target, portolan_api::Part::Main, patch, <_>::default()).await.unwrap();
}

#[tokio::test]
async fn a_retry_applies_only_what_was_refused() {
    let mut folder = folder();
    let with_ip = |name: &str, port: &str| format!("{}  clusterIP: 10.96.0.77\n", service(name, port));
    folder.api.apply(serde_saphyr::from_str::<Value>(&with_ip("other", "80")).unwrap()).await.unwrap();
    let twice = service("b", "80");
    let text = format!("{}---\n{}---\n{twice}---\n{twice}", service("a", "80"), with_ip("c", "80"));
    let contents = || contents(&[("a.yaml", &text)]);
    assert_eq!(folder.sync(contents()).await, Synced::Refused);
    assert_eq!(names(&folder), ["a", "b", "other"]);
    let before: Vec<String> = complaints(&folder).into_iter().map(str::to_owned).collect();
    assert_eq!(before.len(), 2, "{before:?}");
    edit(&folder, "a", 81).await;
    edit(&folder, "b", 82).await;
    assert_eq!(folder.sync(contents()).await, Synced::Refused);
    assert_eq!(complaints(&folder), before);
    assert_eq!((port(&folder, "a"), port(&folder, "b")), (Some(81.into()), Some(82.into())));
    let other = Target { resource: Resource::Service, namespace: "default", name: "other" };
    folder.api.delete_with(other, &DeleteOptions::default()).await.unwrap();
    folder.sync(contents()).await;
    assert_eq!(names(&folder), ["a", "b", "c"]);
    assert_eq!((port(&folder, "a"), port(&folder, "b")), (Some(81.into()), Some(82.into())));
}

#[tokio::test]
async fn an_object_that_is_gone_comes_back_alone() {
    let mut folder = folder();
    let text = format!("{}---\n{}", service("a", "80"), service("b", "80"));
    let contents = || contents(&[("a.yaml", &text)]);
    folder.sync(contents()).await;
    let mut feed = crate::Feed::new(folder.api.store(), [Resource::Service]);
    feed.take();
    edit(&folder, "a", 81).await;
    edit(&folder, "b", 82).await;
    let target = Target { resource: Resource::Service, namespace: "default", name: "b" };
    folder.api.delete_with(target, &DeleteOptions::default()).await.unwrap();
    assert!(folder.observe(feed.take(), Instant::now()));
    assert_eq!(folder.sync_changed(contents()).await, Some(Synced::Done));
    assert_eq!((port(&folder, "a"), port(&folder, "b")), (Some(81.into()), Some(80.into())));
    assert_eq!(folder.sync_changed(contents()).await, None);
    // A change of the file applies all of it.
    let text = format!("{text}# changed\n");
    folder.sync_changed(super::tests::contents(&[("a.yaml", &text)])).await;
    assert_eq!((port(&folder, "a"), port(&folder, "b")), (Some(80.into()), Some(80.into())));
}

#[tokio::test]
async fn what_other_controllers_would_delete_is_left_out_or_refused() {
    let mut folder = folder();
    // As kubectl prints it: the owner is a Service of another cluster.
    let exported = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nmetadata:\n  name: NAME\n  uid: 1b4e28ba\n  \
        labels: {endpointslice.kubernetes.io/managed-by: MANAGER}\n  \
        ownerReferences: [{apiVersion: v1, kind: Service, name: web, uid: 7ad1}]\nendpoints: [{addresses: [10.1.1.1]}]\n";
    let exported = |name: &str, manager: &str| exported.replace("NAME", name).replace("MANAGER", manager);
    let ours = exported("web-1", "endpointslice-controller.k8s.io");
    let mirrored = exported("web-2", "endpointslicemirroring-controller.k8s.io");
    let text = format!("{ours}---\n{mirrored}");
    assert_eq!(folder.sync(contents(&[("a.yaml", &text)])).await, Synced::Done);
    let snapshot = folder.api.store().snapshot(Resource::EndpointSlice, &Scope::default(), None).unwrap();
    assert_eq!(snapshot.objects.iter().map(|it| it.name()).collect::<Vec<_>>(), ["web-1"]);
    let stored = snapshot.objects[0].decode();
    assert_eq!(stored["metadata"].get("ownerReferences"), None);
    let complaints = complaints(&folder);
    assert!(
        complaints.len() == 1 && complaints[0].contains("endpointslice.kubernetes.io/managed-by"),
        "{complaints:?}"
    );
}
