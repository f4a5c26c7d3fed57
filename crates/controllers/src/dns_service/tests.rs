use portolan_api::ApiConfig;
use portolan_schema::Resource;

use super::*;

fn api() -> Api {
    let service_ranges = "10.96.0.0/16,fd00:96::/112".parse().unwrap();
    Api::new(&ApiConfig { service_ranges, ..ApiConfig::default() })
}

fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
    texts.iter().map(|address| address.parse().unwrap()).collect()
}

fn service(api: &Api, listens: &[&str]) -> Option<DnsService> {
    let config = ControllersConfig { dns_endpoints: addresses(listens), ..ControllersConfig::default() };
    DnsService::new(&config, api)
}

/// Returns the Service of a server, and what sets the addresses at which the server answers.
fn service_answering(
    api: &Api,
    listens: &[&str],
    answering: &[&str],
) -> (DnsService, watch::Sender<Vec<SocketAddr>>) {
    let (answer, answering) = watch::channel(addresses(answering));
    let dns_answering = Some(answering);
    let dns_endpoints = addresses(listens);
    let config = ControllersConfig { dns_endpoints, dns_answering, ..ControllersConfig::default() };
    (DnsService::new(&config, api).unwrap(), answer)
}

fn stored(api: &Api) -> Value {
    Value::Object(api.store().get(Resource::Service, "kube-system/kube-dns").unwrap().decode())
}

fn slices(api: &Api) -> Vec<String> {
    SERVICE.slices(api).iter().map(|slice| slice.name().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_service_has_the_usual_addresses_and_an_endpoint_for_each_listener() {
    let api = api();
    let dns = service(&api, &["192.0.2.1:10053", "[2001:db8::1]:53", "127.0.0.1:53"]).unwrap();
    dns.begin(&api).await.unwrap();
    assert_eq!(stored(&api)["spec"]["clusterIPs"], json!(["10.96.0.10", "fd00:96::a"]));
    assert_eq!(slices(&api), Vec::<String>::new());
    dns.sync(&api, &mut Presence::default()).await;
    assert_eq!(slices(&api), ["kube-dns-192-0-2-1-10053", "kube-dns-2001-db8--1-53"]);
    let slice = api.store().get(Resource::EndpointSlice, "kube-system/kube-dns-192-0-2-1-10053").unwrap();
    let slice = Value::Object(slice.decode());
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.1"]));
    let port = |index: usize| format!("{}/{}", slice["ports"][index]["name"], slice["ports"][index]["port"]);
    assert_eq!((port(0), port(1)), ("\"dns\"/10053".to_owned(), "\"dns-tcp\"/10053".to_owned()));
    dns.leave(&api).await;
    assert_eq!(slices(&api), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn if_the_usual_address_is_taken_the_service_gets_another_one() {
    let api = api();
    let other = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "other", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]}});
    ensure(&api, other).await.unwrap();
    let dns = service(&api, &["192.0.2.1:53"]).unwrap();
    dns.begin(&api).await.unwrap();
    let addresses = stored(&api)["spec"]["clusterIPs"].clone();
    let addresses = addresses.as_array().unwrap();
    assert_eq!(addresses.len(), 1);
    assert!(addresses[0].as_str().unwrap().starts_with("10.96."), "{addresses:?}");
    assert_ne!(addresses[0].as_str().unwrap(), "10.96.0.10");
}

#[tokio::test(start_paused = true)]
async fn a_service_and_endpoints_of_others_are_left_alone() {
    let api = api();
    let theirs = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "annotations": {"of": "a person"}},
        "spec": {"clusterIP": "10.96.0.53", "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}});
    ensure(&api, theirs).await.unwrap();
    let before = stored(&api);
    let dns = service(&api, &["192.0.2.1:53"]).unwrap();
    let mut presence = Presence::default();
    dns.begin(&api).await.unwrap();
    dns.sync(&api, &mut presence).await;
    assert_eq!(stored(&api), before);
    assert_eq!(slices(&api), ["kube-dns-192-0-2-1-53"], "a Service without endpoints gets this server's");
    let foreign = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "coredns", "namespace": NAMESPACE, "labels": {SERVICE_NAME: NAME}}, "endpoints": []});
    ensure(&api, foreign).await.unwrap();
    dns.sync(&api, &mut presence).await;
    assert_eq!(slices(&api), ["coredns"]);
    dns.sync(&api, &mut presence).await;
    assert_eq!(slices(&api), ["coredns"]);
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_a_crashed_server_are_removed_also_by_a_server_without_dns() {
    let api = api();
    let dns = service(&api, &["192.0.2.1:53"]).unwrap();
    dns.sync(&api, &mut Presence::default()).await;
    assert_eq!(slices(&api).len(), 1);
    // Ends by itself when nothing is left.
    keep(&api, None).await;
    assert_eq!(slices(&api), Vec::<String>::new());
    assert!(api.store().get(Resource::Service, "kube-system/kube-dns").is_some());
}

/// Two addresses of servers, and their EndpointSlices.
const LISTENS: [&str; 2] = ["192.0.2.1:53", "192.0.2.2:53"];
const SLICES: [&str; 2] = ["kube-dns-192-0-2-1-53", "kube-dns-192-0-2-2-53"];

#[tokio::test(start_paused = true)]
async fn an_address_is_an_endpoint_while_the_server_answers_there() {
    let api = api();
    let (dns, answer) = service_answering(&api, &LISTENS, &LISTENS[..1]);
    let mut presence = Presence::default();
    let leases = || SLICES.map(|name| dns.holder.holds(&api, name));
    dns.sync(&api, &mut presence).await;
    assert_eq!((slices(&api), leases()), (vec![SLICES[0].to_owned()], [true, false]));
    answer.send_replace(addresses(&LISTENS));
    dns.sync(&api, &mut presence).await;
    assert_eq!((slices(&api), leases()), (SLICES.map(str::to_owned).to_vec(), [true, true]));
    answer.send_replace(addresses(&LISTENS[1..]));
    dns.sync(&api, &mut presence).await;
    assert_eq!((slices(&api), leases()), (vec![SLICES[1].to_owned()], [false, true]));
}

#[tokio::test(start_paused = true)]
async fn a_server_leaves_the_endpoint_to_another_that_has_the_virtual_address() {
    let api = api();
    let (one, at_one) = service_answering(&api, &LISTENS[..1], &LISTENS[..1]);
    let (other, at_other) = service_answering(&api, &LISTENS[..1], &[]);
    let (mut seen_by_one, mut seen_by_other) = (Presence::default(), Presence::default());
    let is_whole = || slices(&api) == SLICES[..1] && one.holder.holds(&api, SLICES[0]);
    one.sync(&api, &mut seen_by_one).await;
    other.sync(&api, &mut seen_by_other).await;
    assert!(is_whole());
    // The standby stops.
    other.leave(&api).await;
    assert!(is_whole());
    // The address moves there and back. Each time, the server that had it notices last.
    for (loses, lost, takes, taken) in
        [(&one, &at_one, &other, &at_other), (&other, &at_other, &one, &at_one)]
    {
        taken.send_replace(addresses(&LISTENS[..1]));
        takes.sync(&api, &mut seen_by_other).await;
        lost.send_replace(Vec::new());
        loses.sync(&api, &mut seen_by_one).await;
        loses.leave(&api).await;
        assert!(slices(&api) == SLICES[..1] && takes.holder.holds(&api, SLICES[0]));
    }
    one.leave(&api).await;
    assert_eq!(slices(&api), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn changed_and_removed_endpoints_are_noticed_before_the_next_check() {
    let api = api();
    let (dns, answer) = service_answering(&api, &LISTENS, &[]);
    let mut keeping = Box::pin(keep(&api, Some(&dns)));
    // The time is paused: all steps together end before the next check.
    let mut run = async || tokio::time::timeout(RECHECK_INTERVAL / 4, &mut keeping).await.unwrap_err();
    run().await;
    assert_eq!(slices(&api), Vec::<String>::new());
    answer.send_replace(addresses(&LISTENS));
    run().await;
    assert_eq!(slices(&api), SLICES);
    let other = Holder::new("other");
    other.renew(&api, SLICES[0]).await.unwrap();
    other.leave(&api, SERVICE, SLICES[0]).await;
    assert_eq!(slices(&api), SLICES[1..]);
    run().await;
    assert_eq!(slices(&api), SLICES);
}

#[test]
fn only_addresses_that_pods_can_reach_are_endpoints() {
    let api = api();
    let endpoints = |listens: &[&str]| {
        let found = service(&api, listens).map(|dns| dns.endpoints);
        found.unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(endpoints(&["127.0.0.1:53", "[::1]:53", "0.0.0.0:53"]), Vec::<String>::new());
    assert_eq!(endpoints(&["192.0.2.1:53", "127.0.0.1:53", "192.0.2.1:53"]), ["192.0.2.1:53"]);
    let single = Api::new(&ApiConfig::default());
    assert!(service(&single, &["[2001:db8::1]:53"]).is_none(), "no range of cluster IPs of this family");
    assert!(service(&single, &[]).is_none());
}
