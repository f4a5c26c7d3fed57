//! Pages of Services, from the engine's tables.
//!
//! A page has at most [`LIMIT_MAX`] Services, and ends early after [`ENDPOINTS_MAX`] endpoints: the size of an answer
//! does not depend on the size of the cluster.

use std::collections::HashMap;
use std::iter::Peekable;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{Request, StatusCode};
use portolan_engine::{FamilySnapshot, Table};
use portolan_model::catalog::PerFamily;
use portolan_model::{ExternalPolicy, Forwarding, Frontend, InternalPolicy, Protocol, ServicePortName};
use portolan_node::health::Now;
use portolan_node::time::rfc3339;
use portolan_status::{self as status, Endpoint, Service, ServicePage, ServicePort};
use portolan_web::Answer;

use super::{Control, Place, RefusedPorts, routes, state};
use crate::agent::Agent;

/// Services on a page, if the request names no number.
const LIMIT: usize = 100;
/// Services on a page at most.
const LIMIT_MAX: usize = 1_000;
/// A page ends with the Service that reaches this number of endpoints.
const ENDPOINTS_MAX: usize = 10_000;

/// A namespace and the name of a Service in it.
type Key = (Arc<str>, Arc<str>);

/// Which Services are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Query {
    /// Only this Service.
    service: Option<Key>,
    /// Only Services of this namespace.
    namespace: Option<Arc<str>>,
    /// Only Services after this one in the order of their names.
    after: Option<Key>,
    limit: usize,
}

/// Answers with a page of Services.
pub(super) async fn answer(control: Arc<Control>, request: Request<Bytes>, place: Place) -> Answer {
    let query = match Query::parse(request.uri().query().unwrap_or_default()) {
        Ok(query) => query,
        Err(error) => return routes::plain(StatusCode::BAD_REQUEST, &error),
    };
    let Some(facts) = control.ask(Agent::facts).await else {
        return routes::plain(StatusCode::SERVICE_UNAVAILABLE, "the agent is ending");
    };
    let Some(engine) = &facts.engine else {
        return routes::plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "the Services are not known completely yet; ask again",
        );
    };
    let Some(snapshots) = Control::snapshots(engine).await else {
        return routes::plain(StatusCode::SERVICE_UNAVAILABLE, "a commit takes long; ask again");
    };
    let refused = facts.refused;
    routes::document(&request, place, move || {
        let tables: Vec<Table> = snapshots.into_iter().map(|FamilySnapshot { table, .. }| table).collect();
        page(&tables, &query, &refused)
    })
    .await
}

impl Query {
    /// Parses the query of a URL.
    fn parse(text: &str) -> Result<Self, String> {
        let mut query = Self { service: None, namespace: None, after: None, limit: LIMIT };
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            // Names of objects need no other escape.
            let value = value.replace("%2F", "/").replace("%2f", "/");
            match name {
                "service" => query.service = Some(key(name, &value)?),
                "after" => query.after = Some(key(name, &value)?),
                "namespace" => query.namespace = Some(value.into()),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    query.limit =
                        limit.ok_or(format!("limit: `{value}` is not a number from 1 to {LIMIT_MAX}"))?;
                }
                _ => return Err(format!("{name}: unknown; use service, namespace, after or limit")),
            }
        }
        Ok(query)
    }

    /// Returns the name after which the Services of the query start; `None` for the first one.
    fn start(&self) -> Option<Arc<ServicePortName>> {
        let (namespace, service) = match (&self.after, &self.namespace) {
            (Some((of, service)), Some(namespace)) if of == namespace => (of.clone(), service.clone()),
            (_, Some(namespace)) => (namespace.clone(), "".into()),
            (Some((namespace, service)), None) => (namespace.clone(), service.clone()),
            (None, None) => return None,
        };
        // The first name that a port of the Service may have.
        Some(Arc::new(ServicePortName { namespace, service, port: "".into(), protocol: Protocol::Tcp }))
    }

    /// Returns true if the query is about this Service port, apart from the number of Services.
    fn has(&self, name: &ServicePortName) -> bool {
        let is = |key: &Key| key.0 == name.namespace && key.1 == name.service;
        self.namespace.as_ref().is_none_or(|namespace| *namespace == name.namespace)
            && self.after.as_ref().is_none_or(|after| !is(after))
    }
}

fn key(parameter: &str, value: &str) -> Result<Key, String> {
    match value.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok((namespace.into(), name.into()))
        }
        _ => Err(format!("{parameter}: `{value}` is not of the form NAMESPACE/NAME")),
    }
}

/// Why Service ports are not programmed.
type Reasons<'a> = HashMap<(portolan_model::Family, &'a ServicePortName), &'static str>;

/// Returns the page of a query. `tables` are those of the families, IPv4 first.
fn page(tables: &[Table], query: &Query, refused: &PerFamily<RefusedPorts>) -> ServicePage {
    let mut reasons = Reasons::new();
    for family in portolan_model::Family::BOTH {
        for refusal in &refused.get(family).some {
            reasons.insert((family, &*refusal.name), refusal.reason);
        }
    }
    let mut page =
        ServicePage { version: status::VERSION, time: rfc3339(Now::read().wall), ..ServicePage::default() };
    if let Some(key) = &query.service {
        let ports = tables.iter().flat_map(|table| table.of_service(&key.0, &key.1));
        let ports: Vec<ServicePort> = ports.map(|(name, it)| service_port(name, &it, &reasons)).collect();
        page.services = (!ports.is_empty()).then(|| service(key, ports, tables)).into_iter().collect();
        return page;
    }
    let start = query.start();
    let mut lists: Vec<Peekable<_>> = tables
        .iter()
        .map(|table| {
            let after = table.iter_after(start.as_ref()).skip_while(|(name, _)| {
                query.after.as_ref().is_some_and(|after| after.0 == name.namespace && after.1 == name.service)
            });
            after.take_while(|(name, _)| query.has(name)).peekable()
        })
        .collect();
    let mut endpoints = 0_usize;
    loop {
        let next = lists.iter_mut().filter_map(|list| list.peek().map(|(name, _)| key_of(name))).min();
        let Some(key) = next else { return page };
        if page.services.len() >= query.limit || endpoints >= ENDPOINTS_MAX {
            page.next = page.services.last().map(|last| format!("{}/{}", last.namespace, last.name));
            return page;
        }
        let mut ports = Vec::new();
        for list in &mut lists {
            while let Some((name, forwarding)) = list.next_if(|(name, _)| key_of(name) == key) {
                ports.push(service_port(name, &forwarding, &reasons));
            }
        }
        endpoints = ports.iter().fold(endpoints, |sum, port| sum.saturating_add(port.endpoints.len()));
        page.services.push(service(&key, ports, tables));
    }
}

fn key_of(name: &ServicePortName) -> Key {
    (name.namespace.clone(), name.service.clone())
}

fn service((namespace, name): &Key, ports: Vec<ServicePort>, tables: &[Table]) -> Service {
    Service {
        namespace: namespace.to_string(),
        name: name.to_string(),
        health_check_node_port: tables.iter().find_map(|table| table.health_check_port(namespace, name)),
        ports,
    }
}

fn service_port(name: &ServicePortName, forwarding: &Forwarding, reasons: &Reasons<'_>) -> ServicePort {
    let policy = |is_local| if is_local { "Local" } else { "Cluster" }.to_owned();
    let endpoints = state::endpoints(forwarding);
    let endpoints =
        endpoints.map(|(at, cluster, local)| Endpoint { address: at.socket().to_string(), cluster, local });
    ServicePort {
        family: forwarding.family.name().to_owned(),
        name: name.port.to_string(),
        protocol: name.protocol.name().to_owned(),
        frontends: forwarding.frontends.iter().map(|&frontend| shown(frontend)).collect(),
        internal_traffic_policy: policy(forwarding.internal_policy == InternalPolicy::Local),
        external_traffic_policy: policy(forwarding.external_policy == ExternalPolicy::Local),
        session_affinity_seconds: forwarding.affinity,
        source_ranges: forwarding.source_ranges.iter().map(ToString::to_string).collect(),
        has_endpoints: forwarding.has_endpoints,
        endpoints: endpoints.collect(),
        refused: reasons.get(&(forwarding.family, name)).map(ToString::to_string),
    }
}

fn shown(frontend: Frontend) -> status::Frontend {
    let (kind, address, port) = match frontend {
        Frontend::ClusterIp(address, port) => ("clusterIP", Some(address), port),
        Frontend::ExternalIp(address, port) => ("externalIP", Some(address), port),
        Frontend::LoadBalancerIp(address, port) => ("loadBalancerIP", Some(address), port),
        Frontend::NodePort(port) => ("nodePort", None, port),
    };
    status::Frontend { kind: kind.to_owned(), address: address.map(|address| address.to_string()), port }
}

#[cfg(test)]
mod tests {
    use portolan_engine::{HealthCheckPort, Refusal};
    use portolan_model::{Backend, Change, Family, Settings};

    use super::*;

    fn name(namespace: &str, service: &str, port: &str) -> Arc<ServicePortName> {
        let (namespace, service, port) = (namespace.into(), service.into(), port.into());
        Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp })
    }

    /// Returns a table with these Service ports, each with this number of endpoints.
    fn table(family: Family, names: &[Arc<ServicePortName>], endpoints: u8) -> Table {
        let mut table = Table::new(Settings::plain(family));
        let address = |last: u8| match family {
            Family::Ipv4 => std::net::IpAddr::from([10, 0, 0, last]),
            Family::Ipv6 => std::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()]),
        };
        let backend = |last| Backend { address: address(last), port: 80, may_hairpin: false };
        let backends: Box<[Backend]> = (1..=endpoints).map(backend).collect();
        let change = |name: &Arc<ServicePortName>| {
            let new = Forwarding::plain((address(96), 80).into(), Protocol::Tcp, backends.clone());
            Change { name: name.clone(), family, old: None, new: Some(Arc::new(new)) }
        };
        table.take(names.iter().map(change), []);
        table
    }

    fn both(names: &[Arc<ServicePortName>]) -> Vec<Table> {
        Family::BOTH.map(|family| table(family, names, 1)).into()
    }

    fn ask(tables: &[Table], query: &str) -> ServicePage {
        page(tables, &Query::parse(query).unwrap(), &PerFamily::default())
    }

    fn names(page: &ServicePage) -> Vec<String> {
        page.services.iter().map(|service| format!("{}/{}", service.namespace, service.name)).collect()
    }

    #[test]
    fn pages_have_every_service_once_in_order() {
        let mut all = Vec::new();
        for namespace in ["a", "a-b", "b"] {
            for service in ["x", "x-1", "y"] {
                for port in ["", "http", "https"] {
                    all.push(name(namespace, service, port));
                }
            }
        }
        let mut tables = both(&all);
        // A Service of one family only.
        let other = tables[1].all().forwardings.remove(0);
        tables[1].take([Change { name: name("a", "x", "six"), ..other }], []);
        for limit in [1, 2, 4, 9, 1000] {
            let (mut seen, mut after) = (Vec::new(), String::new());
            loop {
                let page = ask(&tables, &format!("limit={limit}{after}"));
                assert!(page.services.len() <= limit);
                seen.extend(names(&page));
                let Some(next) = page.next else { break };
                after = format!("&after={}", next.replace('/', "%2F"));
            }
            let want = ["a/x", "a/x-1", "a/y", "a-b/x", "a-b/x-1", "a-b/y", "b/x", "b/x-1", "b/y"];
            assert_eq!(seen, want, "{limit} on a page");
        }
        let of_namespace = ask(&tables, "namespace=a-b&limit=2");
        assert_eq!(names(&of_namespace), ["a-b/x", "a-b/x-1"]);
        let rest = ask(&tables, &format!("namespace=a-b&after={}", of_namespace.next.unwrap()));
        assert_eq!((names(&rest), rest.next), (vec!["a-b/y".to_owned()], None));
        let one = ask(&tables, "service=a/x");
        assert_eq!(names(&one), ["a/x"]);
        let ports = one.services[0].ports.iter().map(|port| format!("{} {}", port.family, port.name));
        let want = ["IPv4 ", "IPv4 http", "IPv4 https", "IPv6 ", "IPv6 http", "IPv6 https", "IPv6 six"];
        assert_eq!(ports.collect::<Vec<_>>(), want);
        assert!(ask(&tables, "service=a/z").services.is_empty());
        assert!(ask(&tables, "namespace=z").services.is_empty());
        assert!(ask(&tables, "after=z/z").services.is_empty());
    }

    #[test]
    fn the_size_of_a_page_does_not_depend_on_the_number_of_services() {
        let all: Vec<_> =
            (0..10_000).map(|number| name("default", &format!("s{number:05}"), "http")).collect();
        let small = ask(&both(&all), "");
        assert_eq!((small.services.len(), small.next.as_deref()), (LIMIT, Some("default/s00099")));
        let tables = [table(Family::Ipv4, &all, 200)];
        let large = ask(&tables, "limit=1000");
        assert_eq!(large.services.len(), ENDPOINTS_MAX / 200);
        assert_eq!(large.next.as_deref(), Some("default/s00049"));
    }

    #[test]
    fn a_service_shows_its_health_check_port_and_why_it_is_refused() {
        let web = name("default", "web", "http");
        let mut tables = both(std::slice::from_ref(&web));
        let (namespace, service) = ("default".into(), "web".into());
        tables[1].take([], [HealthCheckPort { namespace, service, port: Some(31_000) }]);
        let mut refused = PerFamily::<RefusedPorts>::default();
        refused.get_mut(Family::Ipv6).some = vec![Refusal::whole(web, "too many")];
        let page = page(&tables, &Query::parse("").unwrap(), &refused);
        let [service] = &page.services[..] else { panic!("one Service") };
        assert_eq!(service.health_check_node_port, Some(31_000));
        let reasons: Vec<_> = service.ports.iter().map(|port| port.refused.as_deref()).collect();
        assert_eq!(reasons, [None, Some("too many")]);
    }

    #[test]
    fn a_wrong_query_is_refused_with_the_parameter() {
        for (query, part) in [
            ("limit=0", "limit: `0`"),
            ("limit=1001", "limit: `1001` is not a number from 1 to 1000"),
            ("limit=x", "limit"),
            ("service=web", "service: `web` is not of the form NAMESPACE/NAME"),
            ("service=a/b/c", "service"),
            ("after=/x", "after"),
            ("page=2", "page: unknown; use service, namespace, after or limit"),
        ] {
            let error = Query::parse(query).unwrap_err();
            assert!(error.contains(part), "{query}: {error}");
        }
    }
}
