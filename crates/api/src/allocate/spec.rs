//! Converts a Service's `spec` from JSON to the allocator's form and back.

use portolan_ipam::{Family, IpFamilyPolicy, Protocol, ServicePort, ServiceSpec, ServiceType};
use portolan_schema::json::{self, Object, Value};

const CLUSTER_IP: &str = "clusterIP";
const CLUSTER_IPS: &str = "clusterIPs";
const FAMILIES: &str = "ipFamilies";
const POLICY: &str = "ipFamilyPolicy";
const PORTS: &str = "ports";
const HEALTH_CHECK: &str = "healthCheckNodePort";

/// A spec in the allocator's form, and the fields that could not be converted.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The spec. Fields that could not be read are unset.
    pub(crate) spec: ServiceSpec,
    unread: Vec<&'static str>,
}

impl Reading {
    /// Reads a spec whose defaults are set.
    pub(crate) fn of(spec: &Object) -> Self {
        let mut reader = Reader { from: spec, unread: Vec::new() };
        let spec = ServiceSpec {
            service_type: reader.service_type(),
            cluster_ip: reader.text(CLUSTER_IP).unwrap_or_default().to_owned(),
            cluster_ips: reader.texts(CLUSTER_IPS, |text| Some(text.to_owned())),
            ip_families: reader.texts(FAMILIES, family),
            ip_family_policy: reader.policy(),
            has_selector: json::object(spec, "selector").is_some_and(|selector| !selector.is_empty()),
            ports: reader.ports(),
            no_load_balancer_node_ports: spec.get("allocateLoadBalancerNodePorts")
                == Some(&Value::Bool(false)),
            is_external_local: json::text(spec, "externalTrafficPolicy") == Some("Local"),
            health_check_node_port: reader.number(HEALTH_CHECK),
        };
        Self { spec, unread: reader.unread }
    }

    /// Returns true if all fields could be read.
    pub(crate) fn is_complete(&self) -> bool {
        self.unread.is_empty()
    }

    /// Writes the planned fields into the spec that was read. Fields that could not be read are left as they are.
    pub(crate) fn write(&self, plan: &ServiceSpec, spec: &mut Object) {
        let text = |text: &str| (!text.is_empty()).then(|| Value::from(text));
        let list = |texts: Vec<&str>| (!texts.is_empty()).then(|| Value::from(texts));
        let health_check = plan.health_check_node_port;
        let fields = [
            (CLUSTER_IP, text(&plan.cluster_ip)),
            (CLUSTER_IPS, list(plan.cluster_ips.iter().map(String::as_str).collect())),
            (FAMILIES, list(plan.ip_families.iter().map(|family| family.name()).collect())),
            (POLICY, plan.ip_family_policy.map(|policy| policy.name().into())),
            (HEALTH_CHECK, (health_check != 0).then(|| health_check.into())),
        ];
        for (key, value) in fields.into_iter().filter(|(key, _)| !self.unread.contains(key)) {
            match value {
                Some(value) => spec.insert(key.to_owned(), value),
                None => spec.remove(key),
            };
        }
        if self.unread.contains(&PORTS) {
            return;
        }
        for (port, planned) in json::objects_mut(spec, PORTS).zip(&plan.ports) {
            match planned.node_port {
                0 => port.remove("nodePort"),
                number => port.insert("nodePort".to_owned(), number.into()),
            };
        }
    }
}

struct Reader<'a> {
    from: &'a Object,
    unread: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    fn text(&mut self, key: &'static str) -> Option<&'a str> {
        match self.from.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text),
            Some(_) => {
                self.unread.push(key);
                None
            }
        }
    }

    fn texts<T>(&mut self, key: &'static str, read: impl Fn(&str) -> Option<T>) -> Vec<T> {
        let values = match self.from.get(key) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(values)) => values.iter().map(|value| read(value.as_str()?)).collect(),
            Some(_) => None,
        };
        values.unwrap_or_else(|| {
            self.unread.push(key);
            Vec::new()
        })
    }

    fn number(&mut self, key: &'static str) -> u16 {
        number(self.from, key).unwrap_or_else(|| {
            self.unread.push(key);
            0
        })
    }

    fn service_type(&mut self) -> ServiceType {
        match self.text("type") {
            None | Some("" | "ClusterIP") => ServiceType::ClusterIp,
            Some("NodePort") => ServiceType::NodePort,
            Some("LoadBalancer") => ServiceType::LoadBalancer,
            Some("ExternalName") => ServiceType::ExternalName,
            Some(_) => {
                self.unread.push("type");
                ServiceType::ClusterIp
            }
        }
    }

    fn policy(&mut self) -> Option<IpFamilyPolicy> {
        match self.text(POLICY)? {
            "SingleStack" => Some(IpFamilyPolicy::SingleStack),
            "PreferDualStack" => Some(IpFamilyPolicy::PreferDualStack),
            "RequireDualStack" => Some(IpFamilyPolicy::RequireDualStack),
            _ => {
                self.unread.push(POLICY);
                None
            }
        }
    }

    fn ports(&mut self) -> Vec<ServicePort> {
        let ports = match self.from.get(PORTS) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(ports)) => ports.iter().map(|port| service_port(port.as_object()?)).collect(),
            Some(_) => None,
        };
        ports.unwrap_or_else(|| {
            self.unread.push(PORTS);
            Vec::new()
        })
    }
}

fn service_port(port: &Object) -> Option<ServicePort> {
    let protocol = match json::text(port, "protocol") {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(_) => return None,
    };
    Some(ServicePort {
        name: json::text(port, "name").unwrap_or_default().to_owned(),
        protocol,
        port: number(port, "port")?,
        node_port: number(port, "nodePort")?,
    })
}

/// Returns the number at `key`; 0 if it is unset, `None` if it is not a 16-bit number.
fn number(map: &Object, key: &str) -> Option<u16> {
    match map.get(key) {
        None | Some(Value::Null) => Some(0),
        Some(value) => value.as_u64().and_then(|number| u16::try_from(number).ok()),
    }
}

fn family(text: &str) -> Option<Family> {
    match text {
        "IPv4" => Some(Family::Ipv4),
        "IPv6" => Some(Family::Ipv6),
        _ => None,
    }
}
