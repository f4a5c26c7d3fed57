//! Pages of Services, from the engine's tables.
//!
//! - `query`: which Services a request asks for
//! - `select`: what of the tables is on the page, on the engine's thread
//! - `counters`: what the kernel has counted of them, if that is asked for
//!
//! A page has at most 1,000 Services, and ends early after 10,000 endpoints or 20,000 Service ports that were looked at: the
//! size and the cost of an answer do not depend on the size of the cluster. If one Service is asked for, the agent adds why
//! each endpoint is in use or left out.

pub(super) mod counters;
mod query;
mod select;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{Request, StatusCode};
use portolan_engine::{Extent, FamilySnapshot, Table, endpoints};
use portolan_model::catalog::PerFamily;
use portolan_model::table::Entry;
use portolan_model::{
    Catalog, ExternalPolicy, Family, Forwarding, Frontend, InternalPolicy, ServicePortName, selection,
};
use portolan_node::health::Now;
use portolan_node::time::rfc3339;
use portolan_status::{self as status, Candidate, Choice, Endpoint, Service, ServicePage, ServicePort};
use portolan_web::Answer;

use self::counters::Counts;
use self::query::Query;
use self::select::{Picked, Selected, select};
use super::{Control, RequestPermit, SHORT_ENGINE_WAIT, routes};
use crate::agent::Agent;
use crate::agent::facts::RefusedPorts;

/// A namespace and the name of a Service in it.
type Key = (Arc<str>, Arc<str>);

/// Why Service ports are not programmed, or not with all endpoints.
type Reasons<'a> = HashMap<(Family, &'a ServicePortName), (&'static str, Extent)>;

/// The endpoints of Service ports, in use or left out.
type Candidates = HashMap<(Family, Arc<ServicePortName>), Vec<Candidate>>;

/// Answers with a page of Services.
pub(super) async fn answer(control: Arc<Control>, request: Request<Bytes>, place: RequestPermit) -> Answer {
    let query = match Query::parse(request.uri().query().unwrap_or_default()) {
        Ok(query) => query,
        Err(error) => return routes::plain(StatusCode::BAD_REQUEST, &error),
    };
    let ending = || routes::plain(StatusCode::SERVICE_UNAVAILABLE, "the agent is ending");
    let Some(facts) = control.ask(Agent::facts).await else { return ending() };
    let Some(engine) = &facts.engine else {
        return routes::plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "the Services are not known completely yet; ask again",
        );
    };
    let (is_one, is_counted) = (query.service.is_some(), query.counters);
    let selecting = Control::ask_engine(engine, SHORT_ENGINE_WAIT, move |snapshots| {
        let tables: Vec<Table> = snapshots.into_iter().map(|FamilySnapshot { table, .. }| table).collect();
        select(&tables, &query)
    });
    let Some(selected) = selecting.await else {
        return routes::plain(StatusCode::SERVICE_UNAVAILABLE, "a commit takes long; ask again");
    };
    let mut known = Candidates::new();
    if is_one {
        let ports = selected.services.iter().flat_map(|service| service.ports.clone());
        let ports: Vec<Entry> = ports.take(Service::MAX_EXPLAINED).collect();
        let asked = control.ask(move |agent| candidates(agent.catalog(), &ports)).await;
        let Some(answered) = asked else { return ending() };
        known = answered;
    }
    let counts = if is_counted { counters::read(&control).await } else { Arc::default() };
    let refused = facts.refused;
    routes::document(&request, place, move || page(selected, known, &counts, &refused)).await
}

/// Returns the endpoints that EndpointSlices list for these Service ports, with the reasons of the selection.
fn candidates(catalog: &Catalog, ports: &[Entry]) -> Candidates {
    let mut known = Candidates::new();
    for (name, forwarding) in ports {
        let Some(explained) = catalog.explain(name, forwarding.family) else { continue };
        let all = first_of(explained.selection.endpoints, ServicePort::MAX_CANDIDATES);
        let candidate = |it: selection::Explained<portolan_model::catalog::SliceOf>| Candidate {
            address: it.endpoint.backend.socket().to_string(),
            slice: it.from.slice.into(),
            on_this_node: it.endpoint.local,
            cluster: choice(it.cluster),
            local: choice(it.local),
        };
        known.insert((forwarding.family, name.clone()), all.into_iter().map(candidate).collect());
    }
    known
}

/// Returns the first endpoints, with those in use before the others: a long list does not hide them.
fn first_of<T>(mut all: Vec<selection::Explained<T>>, most: usize) -> Vec<selection::Explained<T>> {
    all.sort_by_key(|it| !(it.cluster.is_used() || it.local.is_used()));
    all.truncate(most);
    all
}

fn choice(choice: selection::Choice) -> Choice {
    Choice { used: choice.is_used(), code: choice.code().to_owned(), text: choice.to_string() }
}

/// Returns the page of what was selected.
fn page(
    selected: Selected,
    mut known: Candidates,
    counts: &Counts,
    refused: &PerFamily<RefusedPorts>,
) -> ServicePage {
    let mut reasons = Reasons::new();
    for family in Family::BOTH {
        for refusal in &refused.get(family).some {
            reasons.insert((family, &*refusal.name), (refusal.reason, refusal.extent));
        }
    }
    let Selected { services, next } = selected;
    ServicePage {
        version: status::VERSION,
        time: rfc3339(Now::read().wall),
        services: services.into_iter().map(|picked| service(picked, &mut known, counts, &reasons)).collect(),
        next: next.map(|(namespace, name)| format!("{namespace}/{name}")),
        not_counted: counts.missing().map(str::to_owned),
        counted_at: counts.at.map(|at| rfc3339(at.wall)),
    }
}

fn service(picked: Picked, known: &mut Candidates, counts: &Counts, reasons: &Reasons<'_>) -> Service {
    let Picked { key: (namespace, name), health_check_port, ports } = picked;
    let port = |(name, forwarding): Entry| {
        let key = (forwarding.family, name.clone());
        let candidates = known.remove(&key);
        let mut port = ServicePort { candidates, ..service_port(&name, &forwarding, reasons) };
        if let Some(counted) = counts.ports.get(&key) {
            counters::add(&mut port, &forwarding, counted);
        }
        port
    };
    Service {
        namespace: namespace.to_string(),
        name: name.to_string(),
        health_check_node_port: health_check_port,
        ports: ports.into_iter().map(port).collect(),
    }
}

fn service_port(name: &ServicePortName, forwarding: &Forwarding, reasons: &Reasons<'_>) -> ServicePort {
    let policy = |is_local| if is_local { "Local" } else { "Cluster" }.to_owned();
    let refusal = reasons.get(&(forwarding.family, name));
    let endpoints = endpoints(forwarding);
    let endpoints = endpoints.map(|(at, cluster, local)| Endpoint {
        address: at.socket().to_string(),
        cluster,
        local,
        counters: None,
    });
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
        counters: None,
        candidates: None,
        refused: refusal.map(|(reason, _)| (*reason).to_owned()),
        refused_in_part: refusal.is_some_and(|(_, extent)| *extent == Extent::Endpoints),
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
