//! Asks an API server what the agent would find out there: whether it answers, its version and clock, what it permits, and for
//! objects.

use std::time::{Duration, SystemTime};

use portolan_doctor::facts::{self, Api, Denied};
use portolan_model::catalog::ApiServer;
use portolan_model::object::Kind;
use portolan_model::{Catalog, Family};
use portolan_node::config::Readiness;
use portolan_proxy::packets::Configured;
use portolan_watch::objects::{About, Access, ListError, about, is_allowed, try_list};
use portolan_watch::{Peers, server_url};

use super::{COLLECTIONS, Cluster, Collection, Extent};
use crate::objects::{Objects, host_name};

/// What the agent does with Events.
const EVENTS: [Access<'static>; 2] =
    [Access::new("create", "events.k8s.io", "events"), Access::new("patch", "events.k8s.io", "events")];

/// What follows if the API server does not permit the list of ServiceCIDRs.
const WITHOUT_SERVICE_CIDRS: &str = "the agent runs without them: packets to cluster IPs that no Service has are not dropped, \
     and addressGuard.serviceCIDRs has no effect";

/// What the API server answered.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// What the requests showed.
    pub(crate) api: Api,
    /// Permissions that are not known, each with the reason.
    pub(crate) not_known: Vec<String>,
    /// The objects that were asked for. `None` if not everything could be listed.
    pub(crate) objects: Option<Found>,
    /// Why these could not be read, although the API server permits it; and what in them cannot be used.
    pub(crate) faults: Vec<String>,
}

/// Objects of the API server.
#[derive(Debug)]
pub(crate) struct Found {
    objects: Objects,
    /// What the agent of the node makes of them.
    pub(crate) catalog: Catalog,
}

/// Asks the API server of a configuration, and for the objects of some kinds that the node needs.
pub(crate) fn ask(configured: &Configured, kinds: &[Kind]) -> anyhow::Result<Asked> {
    let name = configured.node_name().map_or_else(host_name, |name| Ok(name.to_owned()))?;
    let settings = configured.client_settings(&Peers::default());
    let mut asked = Asked::default();
    asked.api.url = server_url(&settings).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answered = runtime.block_on(async {
        let cluster = Cluster::connect(&settings).await.map_err(|error| error.to_string())?;
        asked.permissions(&cluster, &name).await.map_err(|error| error.to_string())?;
        asked.writes(&cluster, &name, configured.readiness()).await;
        if asked.may_list() {
            asked.read(&cluster, configured, &name, kinds).await;
        }
        Ok::<_, String>(())
    });
    asked.api.failure = answered.err();
    Ok(asked)
}

impl Asked {
    /// Returns true if the agent could list what it needs.
    fn may_list(&self) -> bool {
        let is_needed = |denied: &Denied| denied.verb == "list" && denied.needed;
        self.api.lacks.is_empty() && !self.api.denied.iter().any(is_needed)
    }

    /// Returns those of these kinds whose list is permitted.
    fn permitted(&self, kinds: &[Kind]) -> Vec<Kind> {
        let is_denied = |collection: &Collection| {
            self.api.denied.iter().any(|it| it.verb == "list" && it.resource == collection.resource)
        };
        let permitted = COLLECTIONS.iter().filter(|collection| !is_denied(collection));
        permitted.map(|collection| collection.kind).filter(|kind| kinds.contains(kind)).collect()
    }

    /// Asks for permissions. An API server that does not say is not asked about.
    ///
    /// # Errors
    /// The API server does not answer.
    async fn permissions(&mut self, cluster: &Cluster, node_name: &str) -> Result<(), ListError> {
        let sent = SystemTime::now();
        let About { version, date } = about(&cluster.client).await?;
        self.api.version = version;
        self.api.clock_offset = date.map(|date| clock_offset(date, sent, SystemTime::now()));
        for collection in &COLLECTIONS {
            let resource = collection.resource;
            match try_list(&cluster.client, collection.kind, node_name).await {
                Ok(true) => {}
                Ok(false) if collection.may_be_missing() => continue,
                Ok(false) => {
                    self.api.lacks.push(resource.to_owned());
                    continue;
                }
                Err(ListError::Refused { code: 403, message, .. }) if collection.may_be_missing() => {
                    let answer = format!("{message}; {WITHOUT_SERVICE_CIDRS}");
                    self.deny("list", resource, Some(answer), false);
                    continue;
                }
                Err(ListError::Refused { code: 401 | 403, message, .. }) => {
                    self.deny("list", resource, Some(message), true);
                }
                Err(error) => return Err(error),
            }
            let is_needed = !collection.may_be_missing();
            self.permission(cluster, Access::new("watch", collection.group, resource), is_needed).await;
        }
        for access in EVENTS {
            self.permission(cluster, access, false).await;
        }
        Ok(())
    }

    /// Asks for the writes to the own Node that the configuration wants.
    async fn writes(&mut self, cluster: &Cluster, node_name: &str, wanted: &Readiness) {
        let object = Access { name: node_name, ..Access::new("patch", "", "nodes") };
        if let Some(taint) = &wanted.taint
            && self.is_denied(cluster, object).await
        {
            self.api.denied_writes.push(format!("{object}, so the taint {taint} stays on the Node"));
        }
        let status = Access { subresource: "status", ..object };
        if let Some(condition) = &wanted.condition
            && self.is_denied(cluster, status).await
        {
            self.api
                .denied_writes
                .push(format!("{status}, so the Node does not get the condition {condition}"));
        }
    }

    async fn permission(&mut self, cluster: &Cluster, access: Access<'_>, needed: bool) {
        if self.is_denied(cluster, access).await {
            self.deny(access.verb, access.resource, None, needed);
        }
    }

    /// Returns true if the API server says that it does not permit this. Notes an answer that says nothing.
    async fn is_denied(&mut self, cluster: &Cluster, access: Access<'_>) -> bool {
        match is_allowed(&cluster.client, access).await {
            Ok(allowed) => allowed == Some(false),
            Err(error) => {
                self.not_known.push(format!("the permission to {access} is not known: {error}"));
                false
            }
        }
    }

    fn deny(&mut self, verb: &str, resource: &str, answer: Option<String>, needed: bool) {
        let denied = Denied { verb: verb.to_owned(), resource: resource.to_owned(), answer, needed };
        self.api.denied.push(denied);
    }

    async fn read(&mut self, cluster: &Cluster, configured: &Configured, name: &str, kinds: &[Kind]) {
        match cluster.objects(&self.permitted(kinds), Extent::Node(name)).await {
            Ok(objects) => {
                let (catalog, faults) = objects.catalog(name, configured, ApiServer::default());
                self.faults.extend(objects.faults.iter().cloned().chain(faults));
                self.objects = Some(Found { objects, catalog });
            }
            Err(error) => self.faults.push(format!("checks of the Node were left out: {error:#}")),
        }
    }
}

impl Found {
    /// Returns what the checks of the doctor need. `needs_pod_cidr` tells whether the agent starts only with a pod CIDR.
    pub(crate) fn facts(&self, needs_pod_cidr: bool) -> facts::Cluster {
        let Self { objects, catalog } = self;
        let cidrs = Family::BOTH.into_iter().flat_map(|family| catalog.service_cidrs(family)).collect();
        let slices = objects.slices.iter().cloned();
        let node = catalog.node().cloned();
        let cluster = facts::Cluster::new(catalog.node_name(), node, cidrs, objects.services(), slices);
        facts::Cluster { needs_pod_cidr, ..cluster }
    }
}

/// Returns the seconds that the server's clock is ahead of this node's. The server wrote the date between the request and the
/// end of the answer, in whole seconds.
fn clock_offset(date: SystemTime, sent: SystemTime, answered: SystemTime) -> i64 {
    let seconds = |of: Duration| i64::try_from(of.as_secs()).unwrap_or(i64::MAX);
    if let Ok(ahead) = date.duration_since(answered) {
        return seconds(ahead);
    }
    sent.duration_since(date).map_or(0, |behind| seconds(behind).saturating_neg())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use portolan_watch::ClientSettings;

    use super::*;
    use crate::cluster::ALL_KINDS;

    /// Answers one request as an API server that has no objects, and whose roles do not know ServiceCIDRs.
    fn answer(stream: TcpStream) {
        let mut request = BufReader::new(stream);
        let lines = request.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty());
        let head: Vec<String> = lines.map(|line| line.to_lowercase()).collect();
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        request.read_exact(&mut vec![0; length.unwrap_or(0)]).expect("a body");
        let (status, body) = match head.first().expect("a request") {
            line if line.contains("/servicecidrs") => ("403 Forbidden", r#"{"message":"forbidden"}"#),
            line if line.starts_with("post ") => ("201 Created", r#"{"status":{"allowed":true}}"#),
            _ => ("200 OK", r#"{"items":[]}"#),
        };
        let length = body.len();
        let text =
            format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        request.into_inner().write_all(text.as_bytes()).expect("a client");
    }

    fn server() -> ClientSettings {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let master = Some(format!("http://{}", listener.local_addr().expect("an address")));
        std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(answer));
        ClientSettings { master, qps: -1.0, ..ClientSettings::default() }
    }

    #[test]
    fn service_cidrs_that_are_forbidden_prevent_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let cluster = Cluster::connect(&server()).await.expect("settings");
            let mut asked = Asked::default();
            asked.permissions(&cluster, "n1").await.expect("answers");
            let denied = Denied {
                verb: "list".to_owned(),
                resource: "servicecidrs".to_owned(),
                answer: Some(format!("forbidden; {WITHOUT_SERVICE_CIDRS}")),
                needed: false,
            };
            assert_eq!(asked.api.denied, [denied]);
            assert!(asked.may_list() && asked.not_known.is_empty(), "{:?}", asked.not_known);
            let permitted = [Kind::Service, Kind::EndpointSlice, Kind::Node];
            assert_eq!(asked.permitted(&ALL_KINDS), permitted);
            let objects = cluster.objects(&ALL_KINDS, Extent::Node("n1")).await.expect("what is needed");
            let fault = "/apis/networking.k8s.io/v1/servicecidrs: the API server answers 403: forbidden; \
                         not known: which addresses are cluster IPs";
            assert_eq!(objects.faults, [fault]);
        });
    }

    #[test]
    fn clocks_are_compared_with_the_time_of_the_request() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(clock_offset(at(1000), at(1000), at(1060)), 0);
        assert_eq!(clock_offset(at(1060), at(1000), at(1060)), 0, "a slow answer is no difference");
        assert_eq!(clock_offset(at(1100), at(1000), at(1060)), 40);
        assert_eq!(clock_offset(at(960), at(1000), at(1060)), -40);
    }
}
