//! What this node tells the cluster as Events, with kube-proxy's reasons and actions. How they get there is not
//! known here.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use portolan_node::health::ListenFailure;
use portolan_node::http::BindError;

/// One Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) regarding: Regarding,
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) action: &'static str,
    pub(super) text: String,
}

/// What an Event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Regarding {
    /// This node.
    Node,
    /// A Service.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// How long the end of the program waits for the Event that says why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where Events go. Telling never blocks.
#[derive(Clone)]
pub(super) struct Notes {
    sink: Rc<dyn Fn(Note)>,
    flushed: Rc<dyn Fn() -> Flushed>,
}

/// Resolves when every Event that was told has been sent.
type Flushed = Pin<Box<dyn Future<Output = ()>>>;

impl Notes {
    /// Hands every Event to `sink`; `flushed` resolves when all of them are sent.
    pub(super) fn to(sink: impl Fn(Note) + 'static, flushed: impl Fn() -> Flushed + 'static) -> Self {
        Self { sink: Rc::new(sink), flushed: Rc::new(flushed) }
    }

    pub(super) fn tell(&self, note: Note) {
        (self.sink)(note);
    }

    /// Tells something after which the program ends; waits a moment for it to be sent.
    pub(super) async fn tell_last(&self, note: Note) {
        self.tell(note);
        // Who ends does not wait for an API server that does not answer.
        let _ = tokio::time::timeout(LAST_WORDS, (self.flushed)()).await;
    }
}

impl Note {
    /// Once, when the watches are set up.
    pub(super) fn starting() -> Self {
        Self::of_node(false, "Starting", "StartKubeProxy", String::new())
    }

    /// A server that had to listen, or else, cannot.
    pub(super) fn cannot_listen(error: &BindError) -> Self {
        let reason = match error.server {
            "metrics" => "FailedToStartMetricServer",
            _ => "FailedToStartProxierHealthcheck",
        };
        Self::of_node(true, reason, "StartKubeProxy", error.to_string())
    }

    /// The health-check node port of a Service cannot be opened.
    pub(super) fn no_health_check(node: &str, failure: &ListenFailure) -> Self {
        let (service, port) = (&failure.service, failure.address.port());
        let (namespace, name) = (service.namespace.clone(), service.name.clone());
        let error = &failure.source;
        Self {
            text: format!(
                "node {node} failed to start healthcheck \"{namespace}/{name}\" on port {port}: {error}"
            ),
            regarding: Regarding::Service { namespace, name },
            warning: true,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
        }
    }

    /// A changed configuration file is in use.
    pub(super) fn reloaded(changes: &[&str]) -> Self {
        Self::of_node(false, "ConfigurationReloaded", RELOAD, format!("changed: {}", changes.join(", ")))
    }

    /// A changed configuration file is not used.
    pub(super) fn not_reloaded(reasons: &str) -> Self {
        let text = format!("the configuration in use stays: {reasons}");
        Self::of_node(true, "ConfigurationRefused", RELOAD, text)
    }

    fn of_node(warning: bool, reason: &'static str, action: &'static str, text: String) -> Self {
        Self { regarding: Regarding::Node, warning, reason, action, text }
    }
}

const RELOAD: &str = "ReloadConfiguration";
