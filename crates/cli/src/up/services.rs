//! The Services that the command line of `portolan up` names: their grammar, and the objects that they stand for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use portolan_model::{Family, Protocol};
use portolan_serve::SERVICE_NAME;
use portolan_serve::json::{Value, json};

/// The form of a Service, with an example.
const FORM: &str = "write [NAMESPACE/]NAME=PORT[/PROTOCOL]:BACKEND[,BACKEND...], such as \
                    web=80:10.0.0.11:8080,10.0.0.12:8080";
const DEFAULT_NAMESPACE: &str = "default";
/// Label of objects that a controller maintains (`k8s.io/api/discovery/v1` `LabelManagedBy`).
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "portolan-up";
/// Annotation that says how the endpoints of a Service are probed.
const HEALTH_CHECK: &str = "portolan.dev/health-check";

/// What the Services of arguments get by the flags.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extras {
    /// Endpoints are probed by TCP connections (`--health-checks`).
    pub(super) are_checked: bool,
    /// There are addresses for the type LoadBalancer (`--load-balancer-ip-range`).
    pub(super) has_load_balancer_ips: bool,
}

/// Namespace and name of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    namespace: String,
    name: String,
}

/// A port and its protocol. The order is that of the ports of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    number: u16,
    protocol: Protocol,
}

/// One argument: a Service, one of its ports, and the backends of this port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declared {
    service: Name,
    port: Port,
    backends: Vec<SocketAddr>,
}

/// Parses an argument.
pub(super) fn parse(text: &str) -> Result<Declared, String> {
    declared(text).map_err(|reason| format!("{reason}; {FORM}"))
}

fn declared(text: &str) -> Result<Declared, String> {
    let (service, rest) = text.split_once('=').ok_or("there is no `=` after the name of the Service")?;
    let (namespace, name) = service.split_once('/').unwrap_or((DEFAULT_NAMESPACE, service));
    if namespace.is_empty() || name.is_empty() {
        return Err("the name of the Service, or of its namespace, is missing".to_owned());
    }
    let (port, backends) = rest.split_once(':').ok_or("there is no `:` between the port and the backends")?;
    let backends = backends.split(',').map(backend).collect::<Result<Vec<_>, _>>()?;
    let service = Name { namespace: namespace.to_owned(), name: name.to_owned() };
    Ok(Declared { service, port: self::port(port)?, backends })
}

fn port(text: &str) -> Result<Port, String> {
    let (number, protocol) = text.split_once('/').unwrap_or((text, "TCP"));
    let is_it = |known: &Protocol| known.to_string().eq_ignore_ascii_case(protocol);
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(is_it);
    let protocol = protocol.ok_or_else(|| format!("`{text}` has no known protocol: TCP, UDP or SCTP"))?;
    match number.parse() {
        Ok(number) if number > 0 => Ok(Port { number, protocol }),
        _ => Err(format!("`{number}` is no port: 1 to 65535")),
    }
}

fn backend(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<SocketAddr>() {
        Ok(backend) if backend.port() > 0 => Ok(backend),
        _ => Err(format!(
            "`{text}` is no backend: an address and a port, with an IPv6 address in brackets, such as 10.0.0.11:8080 or \
             [2001:db8::11]:8080"
        )),
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Port {
    /// Returns the name of the port in the Service, such as `tcp-80`.
    fn name(self) -> String {
        format!("{}-{}", self.protocol.to_string().to_lowercase(), self.number)
    }
}

/// The ports of a Service with their backends.
type Ports = BTreeMap<Port, BTreeSet<SocketAddr>>;

/// Returns the Services with their EndpointSlices. `families` are those that cluster IPs can have.
///
/// # Errors
/// A port is named twice, or a backend has a family without cluster IPs.
pub(super) fn objects(all: &[Declared], families: &[Family], extras: Extras) -> anyhow::Result<Vec<Value>> {
    let mut services: BTreeMap<&Name, Ports> = BTreeMap::new();
    for Declared { service, port, backends } in all {
        let ports = services.entry(service).or_default();
        let Port { number, protocol } = port;
        anyhow::ensure!(
            ports.insert(*port, backends.iter().copied().collect()).is_none(),
            "{service}: port {number}/{protocol} is given twice; write its backends into one argument, with commas"
        );
        for backend in backends {
            let family = Family::of(backend.ip());
            anyhow::ensure!(
                families.contains(&family),
                "{service}: the backend {backend} is {family}, and --service-cluster-ip-range has no {family} range; add \
                 one, such as --service-cluster-ip-range 10.96.0.0/12,fd00:96::/112"
            );
        }
    }
    let of_service = |(name, ports): (&Name, Ports)| {
        let slices = slices(name, &ports);
        std::iter::once(service(name, &ports, extras)).chain(slices).collect::<Vec<_>>()
    };
    Ok(services.into_iter().flat_map(of_service).collect())
}

/// Returns the names of Services that cannot be probed although endpoints are: they have ports of UDP or SCTP.
pub(super) fn unchecked(all: &[Declared]) -> BTreeSet<String> {
    let other = all.iter().filter(|declared| declared.port.protocol != Protocol::Tcp);
    other.map(|declared| declared.service.to_string()).collect()
}

fn service(Name { namespace, name }: &Name, ports: &Ports, extras: Extras) -> Value {
    let has = |family| ports.values().flatten().any(|backend| Family::of(backend.ip()) == family);
    let mut spec = json!({
        "type": if extras.has_load_balancer_ips { "LoadBalancer" } else { "NodePort" },
        "ports": ports.keys().map(|port| {
            json!({"name": port.name(), "port": port.number, "protocol": port.protocol.to_string()})
        }).collect::<Vec<_>>(),
    });
    let families = match (has(Family::Ipv4), has(Family::Ipv6)) {
        (true, true) => json!({"ipFamilyPolicy": "RequireDualStack"}),
        (true, false) => json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}),
        _ => json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}),
    };
    if let (Some(spec), Some(families)) = (spec.as_object_mut(), families.as_object()) {
        spec.extend(families.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    let mut metadata = json!({"name": name, "namespace": namespace});
    let is_tcp = ports.keys().all(|port| port.protocol == Protocol::Tcp);
    if let (true, Some(metadata)) = (extras.are_checked && is_tcp, metadata.as_object_mut()) {
        metadata.insert("annotations".to_owned(), json!({HEALTH_CHECK: "tcp"}));
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}

/// Returns one EndpointSlice for each port, port of its backends and family.
fn slices(name: &Name, ports: &Ports) -> Vec<Value> {
    let mut endpoints: BTreeMap<(Port, u16, Family), Vec<Value>> = BTreeMap::new();
    for (port, backends) in ports {
        for backend in backends {
            let key = (*port, backend.port(), Family::of(backend.ip()));
            // Without conditions, endpoints are ready, and results of health checks stay.
            endpoints.entry(key).or_default().push(json!({"addresses": [backend.ip().to_string()]}));
        }
    }
    let Name { namespace, name } = name;
    let slice = |((port, target, family), endpoints): ((Port, u16, Family), Vec<Value>)| {
        let address_type = if family == Family::Ipv4 { "IPv4" } else { "IPv6" };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{}-{target}-{}", port.name(), address_type.to_lowercase()),
                "namespace": namespace,
                "labels": {SERVICE_NAME: name, MANAGED_BY: MANAGER},
            },
            "addressType": address_type,
            "ports": [{"name": port.name(), "port": target, "protocol": port.protocol.to_string()}],
            "endpoints": endpoints,
        })
    };
    endpoints.into_iter().map(slice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Family; 2] = Family::BOTH;

    fn made(arguments: &[&str], families: &[Family]) -> anyhow::Result<Vec<Value>> {
        let all: Vec<Declared> = arguments.iter().map(|text| parse(text).unwrap()).collect();
        objects(&all, families, Extras::default())
    }

    fn at(objects: &[Value], pointer: &str) -> Vec<String> {
        objects
            .iter()
            .map(|object| object.pointer(pointer).map(ToString::to_string).unwrap_or_default())
            .collect()
    }

    #[test]
    fn one_service_with_two_backends() {
        let made = made(&["web=80:10.0.0.11:8080,10.0.0.12:8080"], &[Family::Ipv4]).unwrap();
        let yaml: Vec<String> = made.iter().map(|object| serde_saphyr::to_string(object).unwrap()).collect();
        insta::assert_snapshot!(yaml.join("---\n"));
    }

    #[test]
    fn ports_families_and_protocols() {
        let made = made(
            &[
                "shop/dns=53/udp:10.0.0.1:5353,[2001:db8::1]:5353",
                "shop/dns=53:10.0.0.1:5353,10.0.0.1:5353,10.0.0.2:5354",
                "b=1/Sctp:[::9]:2",
            ],
            &BOTH,
        );
        let made = made.unwrap();
        assert_eq!(
            at(&made, "/metadata/name"),
            [
                "\"b\"",
                "\"b-sctp-1-2-ipv6\"",
                "\"dns\"",
                "\"dns-tcp-53-5353-ipv4\"",
                "\"dns-tcp-53-5354-ipv4\"",
                "\"dns-udp-53-5353-ipv4\"",
                "\"dns-udp-53-5353-ipv6\"",
            ]
        );
        assert_eq!(at(&made, "/spec/ipFamilyPolicy").join(""), "\"SingleStack\"\"RequireDualStack\"");
        assert_eq!(at(&made, "/endpoints/1").join(""), "", "a backend that is named twice counts once");
    }

    #[test]
    fn flags_add_health_checks_and_load_balancer_addresses() {
        let all = ["web=80:10.0.0.1:1", "web=443:10.0.0.1:2", "dns=53:10.0.0.1:3", "dns=53/udp:10.0.0.1:3"];
        let all: Vec<Declared> = all.iter().map(|text| parse(text).unwrap()).collect();
        let annotation = "/metadata/annotations/portolan.dev~1health-check";
        let made = |extras| {
            let services = objects(&all, &BOTH, extras).unwrap();
            services.into_iter().filter(|object| object["kind"] == "Service").collect::<Vec<_>>()
        };
        let with = made(Extras { are_checked: true, has_load_balancer_ips: true });
        assert_eq!(at(&with, "/spec/type"), ["\"LoadBalancer\"", "\"LoadBalancer\""]);
        assert_eq!(at(&with, annotation), ["", "\"tcp\""], "dns also has a port of UDP");
        assert_eq!(unchecked(&all), BTreeSet::from(["default/dns".to_owned()]));
        let without = made(Extras::default());
        assert_eq!(at(&without, "/spec/type"), ["\"NodePort\"", "\"NodePort\""]);
        assert_eq!(at(&without, annotation), ["", ""]);
    }

    #[test]
    fn mistakes_show_the_form() {
        for (text, part) in [
            ("web", "no `=`"),
            ("web=80", "no `:`"),
            ("=80:10.0.0.1:1", "is missing"),
            ("/web=80:10.0.0.1:1", "is missing"),
            ("a/=80:10.0.0.1:1", "is missing"),
            ("web=0:10.0.0.1:1", "`0` is no port"),
            ("web=x:10.0.0.1:1", "`x` is no port"),
            ("web=80/icmp:10.0.0.1:1", "no known protocol"),
            ("web=80:10.0.0.1", "`10.0.0.1` is no backend"),
            ("web=80:10.0.0.1:0", "`10.0.0.1:0` is no backend"),
            ("web=80:10.0.0.1:1,", "`` is no backend"),
            ("web=80:2001:db8::1:80", "in brackets"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part) && error.contains("such as web=80:"), "{text}: {error}");
        }
        let error = made(&["a=1:10.0.0.1:1", "a=1/TCP:10.0.0.2:1"], &BOTH).unwrap_err().to_string();
        assert!(error.starts_with("default/a: port 1/TCP is given twice"), "{error}");
        let error = made(&["a=1:[2001:db8::1]:1"], &[Family::Ipv4]).unwrap_err().to_string();
        assert!(error.contains("has no IPv6 range"), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,60}") {
            if let Ok(declared) = parse(&text) {
                objects(&[declared], &BOTH, Extras::default()).unwrap();
            }
        }
    }
}
