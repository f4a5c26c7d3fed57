//! Asks the API server: whether it answers, what the client may do there, and for this Node and the ServiceCIDRs.

use portolan_doctor::Code;
use portolan_model::Catalog;
use portolan_model::catalog::ApiServer;
use portolan_model::object::Kind;
use portolan_proxy::packets::Configured;
use portolan_proxy::preflight::{Item, Outcome, Part};
use portolan_watch::objects::{Access, ListError, is_allowed, list_kind, try_list};
use portolan_watch::{Client, Peers, connect};

use crate::objects::{Objects, host_name};

/// A kind that the agent watches: its group, its resource, and its name and version in objects.
type Watched = (Kind, &'static str, &'static str, &'static str, &'static str);

const WATCHED: [Watched; 4] = [
    (Kind::Service, "", "services", "Service", "v1"),
    (Kind::EndpointSlice, "discovery.k8s.io", "endpointslices", "EndpointSlice", "discovery.k8s.io/v1"),
    (Kind::Node, "", "nodes", "Node", "v1"),
    (Kind::ServiceCidr, "networking.k8s.io", "servicecidrs", "ServiceCIDR", "networking.k8s.io/v1"),
];
/// What the agent does with Events.
const EVENTS: [Access<'static>; 2] = [
    Access { verb: "create", group: "events.k8s.io", resource: "events" },
    Access { verb: "patch", group: "events.k8s.io", resource: "events" },
];

/// What the API server answered.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) items: Vec<Item>,
    /// This Node and the ServiceCIDRs; `None` if they could not be read.
    pub(super) catalog: Option<Catalog>,
}

/// Asks the API server of a configuration.
pub(super) fn ask(configured: &Configured) -> anyhow::Result<Asked> {
    let name = configured.node_name().map_or_else(host_name, |name| Ok(name.to_owned()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async {
        match connect(&configured.client_settings(&Peers::default())).await {
            Ok(client) => Asking { client, name, asked: Asked::default() }.all(configured).await,
            Err(error) => Asked { items: vec![unreachable(&error)], catalog: None },
        }
    }))
}

fn unreachable(error: &impl std::fmt::Display) -> Item {
    Item::new(Part::Api, Outcome::Failure, format!("the API server cannot be reached: {error}"))
        .with_mend(Code::ApiUnreachable.usual_mend())
}

struct Asking {
    client: Client,
    name: String,
    asked: Asked,
}

impl Asking {
    async fn all(mut self, configured: &Configured) -> Asked {
        let mut is_readable = true;
        for (kind, group, resource, ..) in WATCHED {
            match try_list(&self.client, kind, &self.name).await {
                Ok(true) => {}
                // Kubernetes before 1.33 has none.
                Ok(false) if kind == Kind::ServiceCidr => {
                    self.add(Outcome::Ok, format!("the API server has no {resource}"));
                    continue;
                }
                Ok(false) => {
                    is_readable = false;
                    self.add(
                        Outcome::Failure,
                        format!("the API server has no {resource}: is it that of a cluster?"),
                    );
                    continue;
                }
                Err(ListError::Refused { code: 401 | 403, message, .. }) => {
                    is_readable = false;
                    self.denied(Outcome::Failure, &format!("list {resource} ({message})"));
                }
                Err(error) => {
                    self.asked.items.push(unreachable(&error));
                    return self.asked;
                }
            }
            self.permission(Access { verb: "watch", group, resource }, Outcome::Failure).await;
        }
        for access in EVENTS {
            self.permission(access, Outcome::Warning).await;
        }
        if self.asked.items.iter().all(|item| item.outcome == Outcome::Ok) {
            self.add(Outcome::Ok, "the API server answers, and permits what the agent needs".to_owned());
        }
        if is_readable {
            self.asked.catalog = self.catalog(configured).await;
        }
        self.asked
    }

    fn add(&mut self, outcome: Outcome, text: String) {
        self.asked.items.push(Item::new(Part::Api, outcome, text));
    }

    fn denied(&mut self, outcome: Outcome, what: &str) {
        let item = Item::new(Part::Api, outcome, format!("the API server does not permit: {what}"));
        self.asked.items.push(item.with_mend(Code::ApiDenied.usual_mend()));
    }

    /// Asks for a permission. An API server that does not say is not asked about.
    async fn permission(&mut self, access: Access<'_>, outcome: Outcome) {
        match is_allowed(&self.client, access).await {
            Ok(Some(true) | None) => {}
            Ok(Some(false)) => self.denied(outcome, &format!("{} {}", access.verb, access.resource)),
            Err(error) => {
                let text =
                    format!("the permission to {} {} is not known: {error}", access.verb, access.resource);
                self.add(Outcome::Warning, text);
            }
        }
    }

    /// Returns a Catalog with this Node and the ServiceCIDRs.
    async fn catalog(&mut self, configured: &Configured) -> Option<Catalog> {
        let mut lists = Vec::new();
        for (kind, _, _, name, version) in WATCHED {
            if !matches!(kind, Kind::Node | Kind::ServiceCidr) {
                continue;
            }
            match list_kind(&self.client, kind, &self.name).await {
                Ok(list) => {
                    let list = list.unwrap_or_default().into_iter().map(Into::into).collect();
                    lists.push((name, version, list));
                }
                Err(error) => {
                    self.add(Outcome::Warning, format!("checks of the Node were left out: {error}"));
                    return None;
                }
            }
        }
        let (catalog, faults) =
            Objects::of_lists(lists).catalog(&self.name, configured, ApiServer::default());
        for fault in faults {
            self.add(Outcome::Warning, fault);
        }
        Some(catalog)
    }
}
