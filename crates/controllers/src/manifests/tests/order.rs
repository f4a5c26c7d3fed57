//! The order in which documents are applied, and what is tried again at once.

use portolan_api::ServiceRanges;
use portolan_store::{History, Store, faulty::FaultyStore};

use super::*;

/// Returns a Service of type NodePort with this spec besides.
fn node_port(name: &str, namespace: &str, node_port: u16, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{type: NodePort, ports: [{{port: 80, nodePort: {node_port}}}]{more}}}\n"
    )
}

#[tokio::test]
async fn a_renamed_service_keeps_its_address_and_port() {
    let mut folder = folder();
    for (name, namespace) in [("web", "default"), ("web2", "default"), ("web2", "shop"), ("web", "default")] {
        let text = node_port(name, namespace, 30_100, ", clusterIP: 10.96.0.77");
        assert_eq!(folder.sync(contents(&[("a.yaml", &text)])).await, Synced::Done, "{name} {namespace}");
        assert_eq!((names(&folder), complaints(&folder)), (vec![name.to_owned()], Vec::new()));
    }
}

#[tokio::test]
async fn a_node_port_is_handed_on_in_any_order() {
    let mut folder = folder();
    let chain = |first: u16| {
        let of = |(name, port)| node_port(name, "default", port, "");
        [("d", first + 3), ("c", first + 2), ("b", first + 1), ("a", first)].map(of).join("---\n")
    };
    for first in [30_100, 30_101, 30_102, 30_101] {
        let text = chain(first);
        assert_eq!(folder.sync(contents(&[("a.yaml", &text)])).await, Synced::Done, "{first}");
        assert_eq!(complaints(&folder), Vec::<&str>::new());
    }
    // Two cannot exchange theirs.
    let text = node_port("a", "default", 30_102, "") + "---\n" + &node_port("b", "default", 30_101, "");
    assert_eq!(folder.sync(contents(&[("a.yaml", &text)])).await, Synced::Refused);
    assert_eq!(complaints(&folder).len(), 2);
}

/// What is named may be one of 14 addresses and of 4 ports. The others are chosen at random.
#[tokio::test]
async fn services_that_name_their_addresses_come_first() {
    for _ in 0..50 {
        let service_ranges: ServiceRanges = "10.96.0.0/28".parse().unwrap();
        let node_ports = "30000-30003".parse().unwrap();
        let config = ApiConfig { service_ranges, node_ports, ..ApiConfig::default() };
        let mut folder = Folder::new(Arc::new(Api::new(&config)), DIR.into());
        let free: String = (0..10).map(|number| service(&format!("free-{number}"), "80") + "---\n").collect();
        let ports = "apiVersion: v1\nkind: Service\nmetadata: {name: any}\n\
                     spec: {type: NodePort, ports: [{port: 1, name: a}, {port: 2, name: b}]}\n";
        let only_port = node_port("only-port", "default", 30_003, "");
        let all = node_port("all", "default", 30_002, ", clusterIP: 10.96.0.14");
        let text = format!("{free}{ports}---\n{only_port}---\nmetadata: {{}}\n");
        let files = [("a.yaml", text.as_str()), ("b.yaml", "a: [closed"), ("z.yaml", all.as_str())];
        folder.sync(contents(&files)).await;
        assert_eq!(names(&folder).len(), 13, "{:?}", complaints(&folder));
        let places = complaints(&folder).into_iter().map(|it| it.split(", ").next().unwrap());
        let expected = ["/manifests/a.yaml: document 13", "/manifests/b.yaml: document 1"];
        assert_eq!(places.collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn complaints_stay_in_the_order_of_the_documents() {
    let mut folder = folder();
    let fixed = |name: &str| format!("{}  clusterIP: 192.0.2.1\n", service(name, "80"));
    let text = [service("a", "0"), fixed("b"), service("c", "0"), fixed("d")].join("---\n");
    folder.sync(contents(&[("a.yaml", &text)])).await;
    let complaints = complaints(&folder);
    let is_of = |(complaint, number): (&&str, usize)| complaint.contains(&format!("document {number},"));
    assert!(complaints.len() == 4 && complaints.iter().zip(1..).all(is_of), "{complaints:#?}");
}

/// Returns a folder of an API server that checks the health of all endpoints.
fn health_checked() -> Folder {
    let health_checked = |_: &[u8], _: &json::Object| Some(vec![true]);
    let config = ApiConfig { health_checked: Some(health_checked), ..ApiConfig::default() };
    Folder::new(Arc::new(Api::new(&config)), DIR.into())
}

fn slice(name: &str, service: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nmetadata:\n  name: {name}\n  \
         labels: {{kubernetes.io/service-name: {service}}}\nendpoints: [{{addresses: [10.1.1.1]}}]\n"
    )
}

/// Returns each EndpointSlice, with what its endpoint is.
fn slices(folder: &Folder) -> Vec<(String, Value)> {
    let snapshot = folder.api.store().snapshot(Resource::EndpointSlice, &Scope::default(), None).unwrap();
    let is_ready = |object: &StoredObject| object.decode()["endpoints"][0]["conditions"]["ready"].clone();
    snapshot.objects.iter().map(|object| (object.name().to_owned(), is_ready(object))).collect()
}

#[tokio::test]
async fn endpoints_of_a_new_service_wait_for_their_first_health_check() {
    let mut folder = health_checked();
    let text = format!("{}---\n{}", slice("a-1", "a"), service("a", "80"));
    assert_eq!(folder.sync(contents(&[("a.yaml", &text)])).await, Synced::Done);
    assert_eq!(slices(&folder), [("a-1".to_owned(), false.into())]);
}

#[tokio::test]
async fn endpoints_of_a_renamed_service_wait_for_their_first_health_check() {
    for spec in ["", "  clusterIP: 10.96.0.77\n"] {
        for next in ["web-1", "web2-1"] {
            let mut folder = health_checked();
            for (name, slice_name) in [("web", "web-1"), ("web2", next)] {
                let text = format!("{}---\n{}{spec}", slice(slice_name, name), service(name, "80"));
                assert_eq!(folder.sync(contents(&[("a.yaml", &text)])).await, Synced::Done);
                assert_eq!(names(&folder), [name]);
                assert_eq!(slices(&folder), [(slice_name.to_owned(), false.into())], "{spec}");
            }
        }
    }
}

#[tokio::test]
async fn a_renamed_slice_is_there_before_the_old_one_goes() {
    let mut folder = folder();
    let text = |name| format!("{}---\n{}", slice(name, "a"), service("a", "80"));
    folder.sync(contents(&[("a.yaml", &text("a-1"))])).await;
    let store = Arc::clone(folder.api.store());
    let before = store.revision();
    folder.sync(contents(&[("a.yaml", &text("a-2"))])).await;
    let changes = store.changes(Resource::EndpointSlice, before, 10).unwrap().changes;
    let new = changes.iter().map(|change| change.new.as_ref().map(|object| object.name().to_owned()));
    assert_eq!(new.collect::<Vec<_>>(), [Some("a-2".to_owned()), None]);
}

#[tokio::test]
async fn endpoints_of_a_refused_service_are_applied() {
    let mut folder = health_checked();
    let text = format!("{}---\n{}  clusterIP: 192.0.2.1\n", slice("a-1", "a"), service("a", "80"));
    assert_eq!(folder.sync(contents(&[("a.yaml", &text)])).await, Synced::Refused);
    assert_eq!(slices(&folder).len(), 1);
    assert_eq!(complaints(&folder).len(), 1);
}

/// Returns a folder with these node ports, and the Services that have them.
async fn with_node_ports(range: &str, services: &[String]) -> Folder {
    let config = ApiConfig { node_ports: range.parse().unwrap(), ..ApiConfig::default() };
    let mut folder = Folder::new(Arc::new(Api::new(&config)), DIR.into());
    let synced = folder.sync(contents(&[("a.yaml", &services.join("---\n"))])).await;
    assert_eq!(synced, Synced::Done, "{:?}", complaints(&folder));
    folder
}

fn any_node_port(name: &str, port_name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{type: NodePort, ports: [{{port: 80, name: {port_name}}}]}}\n"
    )
}

/// Applies the Services, of which only the third is refused: it names nothing, and nothing is left.
async fn refuses_the_third(folder: &mut Folder, services: &[String]) {
    assert_ne!(folder.sync(contents(&[("a.yaml", &services.join("---\n"))])).await, Synced::Done);
    let complaints = complaints(folder);
    assert!(complaints.len() == 1 && complaints[0].contains("document 3,"), "{complaints:#?}");
}

#[tokio::test]
async fn a_node_port_that_is_handed_on_is_kept_for_the_service_that_names_it() {
    let named = |name, port| node_port(name, "default", port, "");
    let mut folder = with_node_ports("30000-30001", &[named("old", 30_001), named("mid", 30_000)]).await;
    let web = node_port("web", "default", 30_000, ", clusterIP: 10.96.0.77");
    refuses_the_third(&mut folder, &[web, named("mid", 30_001), any_node_port("free", "a")]).await;
}

#[tokio::test]
async fn a_node_port_that_a_service_gives_up_is_kept_for_the_service_that_names_it() {
    let named = |name, port| node_port(name, "default", port, "");
    let mut folder = with_node_ports("30000-30002", &[named("a", 30_000), named("other", 30_002)]).await;
    let (renamed, free) = (any_node_port("a", "renamed"), any_node_port("free", "a"));
    refuses_the_third(&mut folder, &[named("web", 30_000), renamed, free, named("other", 30_002)]).await;
}

#[tokio::test]
async fn a_stored_service_that_needs_another_node_port_comes_later() {
    for _ in 0..20 {
        let mut folder = with_node_ports("30000-30002", &[node_port("a", "default", 30_000, "")]).await;
        let named = node_port("named", "default", 30_001, ", clusterIP: 10.96.0.77");
        let files = [("a.yaml", any_node_port("a", "renamed")), ("b.yaml", named)];
        let files = files.each_ref().map(|(path, text)| (*path, text.as_str()));
        assert_eq!(folder.sync(contents(&files)).await, Synced::Done, "{:?}", complaints(&folder));
    }
}

/// Endpoints of a Service that is not there yet would not wait for their first health check.
#[tokio::test]
async fn what_follows_a_document_that_the_store_refuses_waits_for_it() {
    let store = Arc::new(FaultyStore::new(History::default()));
    let shared = Arc::clone(&store) as Arc<dyn Store>;
    let api = Api::open(shared, &ApiConfig::default()).await.unwrap();
    let mut folder = Folder::new(Arc::new(api), DIR.into());
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nendpoints: []\nports: []\n\
                 metadata: {name: a-1, labels: {kubernetes.io/service-name: a}}\n";
    let text = format!("{slice}---\n{}", node_port("a", "default", 30_100, ", clusterIP: 10.96.0.77"));
    store.refuse_writes(true);
    assert_eq!(folder.sync(contents(&[("a.yaml", &text)])).await, Synced::TryAgain);
    let found = complaints(&folder);
    assert!(found.len() == 2 && found[0].contains("waits until"), "{found:?}");
    store.refuse_writes(false);
    assert_eq!(folder.sync(contents(&[("a.yaml", &text)])).await, Synced::Done);
    assert_eq!((names(&folder), complaints(&folder)), (vec!["a".to_owned()], Vec::new()));
    assert!(folder.api.store().get(Resource::EndpointSlice, "default/a-1").is_some());
}

#[tokio::test]
async fn what_the_store_refuses_is_logged_at_once() {
    let (log, _guard) = portolan_testkit::Log::listen();
    let store = Arc::new(FaultyStore::new(History::default()));
    let shared = Arc::clone(&store) as Arc<dyn Store>;
    let api = Api::open(shared, &ApiConfig::default()).await.unwrap();
    let mut folder = Folder::new(Arc::new(api), DIR.into());
    let text = format!("{}---\n{}", service("a", "0"), service("b", "80"));
    store.refuse_writes(true);
    for _ in 0..2 {
        assert_eq!(folder.sync(contents(&[("a.yaml", &text)])).await, Synced::TryAgain);
        let errors = log.errors();
        let parts = ["document 2, ", "document 1, "];
        assert!(
            errors.len() == 2 && errors.iter().zip(parts).all(|(error, part)| error.contains(part)),
            "{errors:#?}"
        );
    }
    store.refuse_writes(false);
    folder.sync(contents(&[("a.yaml", &text)])).await;
    assert_eq!((names(&folder), log.errors().len()), (vec!["b".to_owned()], 2));
}
