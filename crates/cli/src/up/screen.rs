//! What `portolan up` prints at its start: the Services, where they are reached, and where to look next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use portolan_serve::json::{self, Object, Value};
use portolan_serve::{Api, Resource, SERVICE_NAME, Scope};

/// Service ports that are printed. Of more, the number is.
const SHOWN: usize = 40;
/// The Service of the API server itself, which is not printed.
const OWN: (&str, &str) = ("default", "kubernetes");
/// What is printed in place of the summary if the store is not open within a second.
pub(super) const OPENING: &str = "The store is not open yet. The Services are printed when it is.\n";

/// The namespace and name of a Service.
type Name = (String, String);
/// The name and protocol of a port.
type PortName = (String, String);
/// The addresses of the ready endpoints of a Service, by the ports of their EndpointSlices. Each with its number.
type Backends = BTreeMap<PortName, BTreeSet<(String, i64)>>;

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// Namespace and name of the Service.
    pub(super) service: String,
    /// The port.
    pub(super) port: i64,
    /// The protocol.
    pub(super) protocol: String,
    /// The addresses that answer at this port.
    pub(super) addresses: Vec<String>,
    /// The node port.
    pub(super) node_port: Option<i64>,
    /// The number of ready backends of the port.
    pub(super) backends: usize,
}

/// What is printed.
pub(super) struct Summary<'a> {
    pub(super) node: &'a str,
    pub(super) addresses: &'a [IpAddr],
    pub(super) rows: &'a [Row],
    pub(super) unstored: Unstored<'a>,
    pub(super) url: &'a str,
    /// The kubeconfig of kubectl, if there is one.
    pub(super) kubeconfig: Option<&'a str>,
    /// The control socket, if it is not the usual one. Empty: there is none.
    pub(super) socket: Option<&'a str>,
}

/// What the rows lack because it is not stored yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Unstored<'a> {
    /// True if Services of the command line are not.
    pub(super) arguments: bool,
    /// The folder of manifests, if it has not been read yet.
    pub(super) manifests: Option<&'a str>,
}

/// Returns the ports of all Services, in the order of their names.
pub(super) fn rows(api: &Api) -> Vec<Row> {
    let objects = |resource| {
        let snapshot = api.store().snapshot(resource, &Scope::default(), None);
        snapshot
            .map(|snapshot| snapshot.objects)
            .unwrap_or_default()
            .into_iter()
            .map(|object| object.decode())
    };
    let mut backends: BTreeMap<Name, Backends> = BTreeMap::new();
    for slice in objects(Resource::EndpointSlice) {
        let Some(service) = label(&slice, SERVICE_NAME) else { continue };
        let key = (metadata(&slice, "namespace").to_owned(), service.to_owned());
        let addresses = ready(&slice);
        for port in json::list(&slice, "ports").iter().filter_map(Value::as_object) {
            let number = json::integer(port, "port").unwrap_or_default();
            let of_port = backends.entry(key.clone()).or_default().entry(name_of(port)).or_default();
            of_port.extend(addresses.iter().map(|address| (address.clone(), number)));
        }
    }
    let of_service = |service: Object| {
        let key = (metadata(&service, "namespace").to_owned(), metadata(&service, "name").to_owned());
        let none = Backends::new();
        let backends = backends.get(&key).unwrap_or(&none);
        if (key.0.as_str(), key.1.as_str()) == OWN { Vec::new() } else { ports(&service, &key, backends) }
    };
    objects(Resource::Service).flat_map(of_service).collect()
}

/// Returns true if the store has each of these Services and EndpointSlices.
pub(super) fn are_stored(api: &Api, objects: &[Value]) -> bool {
    objects.iter().filter_map(Value::as_object).all(|object| {
        let is_service = json::text(object, "kind") == Some("Service");
        let resource = if is_service { Resource::Service } else { Resource::EndpointSlice };
        let key = format!("{}/{}", metadata(object, "namespace"), metadata(object, "name"));
        api.store().get(resource, &key).is_some()
    })
}

/// Returns the `InternalIP`s of a Node.
pub(super) fn node_addresses(api: &Api, name: &str) -> Vec<IpAddr> {
    let Some(node) = api.store().get(Resource::Node, name).map(|node| node.decode()) else {
        return Vec::new();
    };
    let addresses = json::object(&node, "status").map(|status| json::list(status, "addresses"));
    let addresses = addresses.unwrap_or_default().iter().filter_map(Value::as_object);
    let internal = addresses.filter(|address| json::text(address, "type") == Some("InternalIP"));
    internal.filter_map(|address| json::text(address, "address")?.parse().ok()).collect()
}

fn ports(service: &Object, (namespace, name): &Name, backends: &Backends) -> Vec<Row> {
    let Some(spec) = json::object(service, "spec") else { return Vec::new() };
    let ingress = json::object(service, "status")
        .and_then(|status| json::object(status, "loadBalancer"))
        .map(|balancer| json::list(balancer, "ingress"))
        .unwrap_or_default();
    let ingress = ingress.iter().filter_map(|one| json::text(one.as_object()?, "ip"));
    let addresses: Vec<String> = json::texts(spec, "clusterIPs")
        .chain(json::texts(spec, "externalIPs"))
        .chain(ingress)
        .filter(|address| address.parse::<IpAddr>().is_ok())
        .map(str::to_owned)
        .collect();
    let row = |port: &Value| {
        let port = port.as_object()?;
        Some(Row {
            service: format!("{namespace}/{name}"),
            port: json::integer(port, "port")?,
            protocol: json::text(port, "protocol").unwrap_or("TCP").to_owned(),
            addresses: addresses.clone(),
            node_port: json::integer(port, "nodePort").filter(|port| *port > 0),
            backends: backends.get(&name_of(port)).map_or(0, BTreeSet::len),
        })
    };
    json::list(spec, "ports").iter().filter_map(row).collect()
}

/// Returns what a port of a Service and a port of an EndpointSlice have in common. The API fills in the protocol.
fn name_of(port: &Object) -> PortName {
    let text = |key| json::text(port, key);
    (text("name").unwrap_or_default().to_owned(), text("protocol").unwrap_or("TCP").to_owned())
}

/// Returns the addresses of the ready endpoints of an EndpointSlice.
fn ready(slice: &Object) -> Vec<String> {
    let endpoints = json::list(slice, "endpoints").iter().filter_map(Value::as_object).filter(|endpoint| {
        let conditions = json::object(endpoint, "conditions");
        conditions.and_then(|conditions| conditions.get("ready")?.as_bool()).unwrap_or(true)
    });
    endpoints.filter_map(|endpoint| json::texts(endpoint, "addresses").next()).map(str::to_owned).collect()
}

fn metadata<'a>(object: &'a Object, field: &str) -> &'a str {
    json::object(object, "metadata").and_then(|metadata| json::text(metadata, field)).unwrap_or_default()
}

fn label<'a>(object: &'a Object, name: &str) -> Option<&'a str> {
    json::text(json::object(json::object(object, "metadata")?, "labels")?, name)
}

impl Summary<'_> {
    /// Returns the text.
    pub(super) fn text(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let mut text = format!("Services on {} ({}):\n", self.node, addresses.join(", "));
        if self.rows.is_empty() {
            text.push_str("  none yet\n");
        }
        for row in self.rows.iter().take(SHOWN) {
            let Row { service, port, protocol, backends, .. } = row;
            let reached = row.reached(self.addresses);
            let reached = if reached.is_empty() { "no address".to_owned() } else { reached.join(", ") };
            let plural = if *backends == 1 { "" } else { "s" };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {service} {port}/{protocol}: {reached} -> {backends} backend{plural}");
        }
        if let Some(more) = self.rows.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(text, "  and {more} more ports");
        }
        let Unstored { arguments, manifests } = self.unstored;
        if arguments {
            text.push_str("  the Services of the arguments are not stored yet\n");
        }
        if let Some(folder) = manifests {
            let _ = writeln!(text, "  the manifests of {folder} are still being read");
        }
        if self.unstored != Unstored::default() {
            text.push_str("  all Services are printed again when that is done\n");
        }
        let url = self.url;
        let kubectl = match self.kubeconfig {
            Some(path) => format!("kubectl --kubeconfig {path} get services"),
            None => format!("kubectl --server {url} get services"),
        };
        let _ = writeln!(text, "Kubernetes API at {url}: {kubectl}");
        let status = "Whether the rules are in place: portolan status";
        let _ = match self.socket {
            Some("") => Ok(()),
            Some(path) => writeln!(text, "{status} --socket {path}"),
            None => writeln!(text, "{status}"),
        };
        text
    }
}

impl Row {
    /// Returns where the port is reached: at its addresses, and at the node port of the node's addresses of the same
    /// families.
    fn reached(&self, node: &[IpAddr]) -> Vec<String> {
        let own: Vec<IpAddr> = self.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        let at = |ip: IpAddr, port: i64| match u16::try_from(port) {
            Ok(port) => SocketAddr::new(ip, port).to_string(),
            Err(_) => ip.to_string(),
        };
        let is_served = |ip: &&IpAddr| own.iter().any(|address| address.is_ipv4() == ip.is_ipv4());
        let node_ports = self
            .node_port
            .into_iter()
            .flat_map(|port| node.iter().filter(is_served).map(move |ip| at(*ip, port)).collect::<Vec<_>>());
        own.iter().map(|ip| at(*ip, self.port)).chain(node_ports).collect()
    }
}

#[cfg(test)]
mod tests {
    use portolan_serve::ApiConfig;
    use portolan_serve::json::json;

    use super::*;

    fn apply(api: &Api, object: Value) {
        api.blocking().apply(object).unwrap();
    }

    #[test]
    fn services_with_their_addresses_and_backends() {
        let service_ranges = "10.96.0.0/16,fd00:96::/112".parse().unwrap();
        let api = Api::new(&ApiConfig { service_ranges, ..ApiConfig::default() });
        apply(
            &api,
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
                "spec": {"type": "NodePort", "clusterIP": "10.96.0.80", "externalIPs": ["198.51.100.1"],
                    "ports": [{"name": "a", "port": 80, "nodePort": 30080},
                        {"name": "b", "port": 53, "protocol": "UDP", "nodePort": 30053}]}}),
        );
        apply(
            &api,
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "headless", "namespace": "default"},
                "spec": {"clusterIP": "None", "ports": [{"port": 1}]}}),
        );
        apply(
            &api,
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": "web-1", "namespace": "default", "labels": {SERVICE_NAME: "web"}},
                "ports": [{"name": "a", "port": 8080}],
                "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"], "conditions": {"ready": false}}]}),
        );
        let rows = rows(&api);
        let addresses = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let summary = Summary {
            node: "host1",
            addresses: &addresses,
            rows: &rows,
            unstored: Unstored { arguments: false, manifests: Some("/etc/portolan/manifests") },
            url: "https://127.0.0.1:6443",
            kubeconfig: Some("/var/lib/portolan/admin.conf"),
            socket: None,
        };
        insta::assert_snapshot!(summary.text(), @r"
        Services on host1 (192.0.2.1, 2001:db8::1):
          default/headless 1/TCP: no address -> 0 backends
          default/web 80/TCP: 10.96.0.80:80, 198.51.100.1:80, 192.0.2.1:30080 -> 1 backend
          default/web 53/UDP: 10.96.0.80:53, 198.51.100.1:53, 192.0.2.1:30053 -> 0 backends
          the manifests of /etc/portolan/manifests are still being read
          all Services are printed again when that is done
        Kubernetes API at https://127.0.0.1:6443: kubectl --kubeconfig /var/lib/portolan/admin.conf get services
        Whether the rules are in place: portolan status
        ");
        let unstored = Unstored { arguments: true, manifests: None };
        let early = Summary { rows: &[], unstored, kubeconfig: None, socket: Some(""), ..summary };
        insta::assert_snapshot!(early.text(), @r"
        Services on host1 (192.0.2.1, 2001:db8::1):
          none yet
          the Services of the arguments are not stored yet
          all Services are printed again when that is done
        Kubernetes API at https://127.0.0.1:6443: kubectl --server https://127.0.0.1:6443 get services
        ");
        let complete = Summary { unstored: Unstored::default(), ..early };
        assert!(!complete.text().contains("again"), "{}", complete.text());
        let many = vec![rows.first().unwrap().clone(); SHOWN + 2];
        assert!(Summary { rows: &many, ..early }.text().contains("and 2 more ports"));
    }

    #[test]
    fn objects_are_stored_when_all_of_them_are() {
        let api = Api::new(&ApiConfig::default());
        let metadata = |name: &str| json!({"name": name, "namespace": "default"});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata("web"),
            "spec": {"ports": [{"port": 80}]}});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": metadata("web-1"), "endpoints": []});
        let objects = [service.clone(), slice.clone()];
        for (object, stored) in [(service, false), (slice, true)] {
            assert!(!are_stored(&api, &objects));
            apply(&api, object);
            assert_eq!(are_stored(&api, &objects), stored);
        }
    }
}
