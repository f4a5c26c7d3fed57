//! The metrics server, with the paths that kube-proxy has on port 10249.
//!
//! Paths match exactly. The method is ignored unless noted.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};
use portolan_web::metrics::TEXT_FORMAT;
use portolan_web::{self as web, Answer, PLAIN, Reply, Server};
use serde_json::json;

use self::slis::Slis;
use super::ProxyMetrics;
use crate::config::Configuration;

mod debug;
mod healthz;
mod negotiate;
mod slis;
#[cfg(test)]
mod tests;
mod zpages;

/// Changes klog's verbosity while the program runs.
pub type SetVerbosity = Box<dyn Fn(u32) + Send + Sync>;

/// Answers requests below [`AGENT_PAGES`] and at [`SERVICE_METRICS`]; `None` for an unknown path.
pub type AgentPages = Box<dyn Fn(&Request<Bytes>) -> Option<Reply> + Send + Sync>;

/// What the paths of the agent's own pages start with.
pub const AGENT_PAGES: &str = "/debug/portolan/";

/// The path of the metrics of single Services. The agent answers there, because it has to read the kernel.
pub const SERVICE_METRICS: &str = "/metrics/services";

/// What the pages contain besides the metrics.
pub struct PagesSettings<'a> {
    /// The effective configuration.
    pub configuration: &'a Configuration,
    /// Every command-line flag with its value, for `/flagz`.
    pub flags: Vec<(String, String)>,
    /// Sets the verbosity for `/debug/flags/v`. If it is `None`, that path rejects changes.
    pub set_verbosity: Option<SetVerbosity>,
    /// The agent's own pages. They are served on loopback addresses, and on others if the configuration allows it.
    pub agent_pages: Option<AgentPages>,
    /// Name, stage (empty for GA) and state of every feature gate, for `kubernetes_feature_enabled`. They also determine
    /// whether `/flagz` and `/statusz` exist.
    pub gates: Vec<(String, String, bool)>,
}

/// The pages of the server. The configuration can be replaced while it runs.
pub struct Pages {
    metrics: Arc<ProxyMetrics>,
    shown: Mutex<Shown>,
    flags: Vec<(String, String)>,
    flagz: bool,
    statusz: bool,
    set_verbosity: Option<SetVerbosity>,
    of_agent: Option<AgentPages>,
    slis: Slis,
}

struct Shown {
    profiling: bool,
    /// Whether the agent's own pages are served on every address.
    agent_pages_anywhere: bool,
    configz: String,
}

impl Pages {
    /// Creates the pages of these metrics. Adds the feature gates to the metrics.
    pub fn new(metrics: Arc<ProxyMetrics>, settings: PagesSettings<'_>) -> Self {
        let PagesSettings { configuration, mut flags, set_verbosity, agent_pages, gates } = settings;
        for (name, stage, enabled) in &gates {
            metrics.feature(name, stage, *enabled);
        }
        // Both gates are enabled unless the operator disables them.
        let on = |name: &str| gates.iter().find(|gate| gate.0 == name).is_none_or(|gate| gate.2);
        flags.sort();
        Self {
            flagz: on("ComponentFlagz"),
            statusz: on("ComponentStatusz"),
            shown: Mutex::new(Shown::of(configuration)),
            slis: Slis::new(),
            metrics,
            flags,
            set_verbosity,
            of_agent: agent_pages,
        }
    }

    /// Replaces the configuration.
    pub fn set_configuration(&self, configuration: &Configuration) {
        *self.shown() = Shown::of(configuration);
    }

    /// Answers a request to a server whose address is, or is not, on loopback.
    fn reply(&self, request: &Request<Bytes>, is_loopback: bool) -> Reply {
        let is_metrics = request.uri().path() == SERVICE_METRICS;
        if is_metrics || request.uri().path().starts_with(AGENT_PAGES) {
            // The operator has asked for metrics of Services, and other hosts scrape them.
            let may_see = is_metrics || is_loopback || self.shown().agent_pages_anywhere;
            let pages = self.of_agent.as_ref().filter(|_| may_see);
            return pages.and_then(|pages| pages(request)).unwrap_or_else(|| web::not_found().into());
        }
        self.answer(request).into()
    }

    fn answer(&self, request: &Request<Bytes>) -> Answer {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        match path {
            "/metrics" => text_format(request, self.metrics.page()),
            "/metrics/slis" if request.method() == Method::DELETE => {
                self.slis.reset();
                web::answer(StatusCode::OK, PLAIN, "metrics reset\n")
            }
            "/metrics/slis" => text_format(request, self.slis.page()),
            "/healthz" => {
                let (checked, body) = healthz::check(query);
                if checked {
                    self.slis.ping_succeeded();
                }
                web::answer(StatusCode::OK, PLAIN, body)
            }
            "/healthz/ping" => web::answer(StatusCode::OK, PLAIN, "ok"),
            "/proxyMode" => web::answer(StatusCode::OK, PLAIN, self.metrics.running_mode()),
            "/configz" => web::answer(StatusCode::OK, web::JSON, self.shown().configz.clone()),
            "/flagz" if self.flagz => zpages::flagz(request.headers(), &self.flags),
            "/statusz" if self.statusz => {
                zpages::statusz(request.headers(), self.metrics.version(), self.flagz)
            }
            _ if path.starts_with("/debug/") && self.shown().profiling => {
                debug::answer(request, self.set_verbosity.as_deref())
            }
            _ => web::not_found(),
        }
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shown {
    /// Like upstream, fills in the platform's defaults.
    fn of(configuration: &Configuration) -> Self {
        let mode = configuration.mode_or_default();
        let effective = Configuration {
            mode: Some(mode),
            node_port_addresses: configuration.node_port_addresses(),
            ..configuration.clone()
        };
        let configz = json!({ "kubeproxy.config.k8s.io": effective.to_v1alpha1() }).to_string();
        let agent_pages_anywhere = configuration.portolan.state_on_any_address;
        Self { profiling: configuration.enable_profiling, agent_pages_anywhere, configz }
    }
}

/// Creates the metrics server.
pub fn server(address: SocketAddr, hard_fail: bool, pages: Arc<Pages>) -> Server {
    let is_loopback = address.ip().to_canonical().is_loopback();
    let handler = move |request: &Request<Bytes>| pages.reply(request, is_loopback);
    Server::new("metrics", "metricsBindAddress", address, hard_fail, Arc::new(handler))
}

fn text_format(request: &Request<Bytes>, page: String) -> Answer {
    let answer = web::answer(StatusCode::OK, TEXT_FORMAT, Bytes::new());
    web::compressed(request.headers(), answer, page)
}
