//! The content of an event, and all events that exist.

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Normal operation.
    Normal,
    /// Something may be wrong.
    Warning,
}

impl EventType {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// The object's kind, of API version `v1`.
    pub kind: &'static str,
    /// The object's namespace; empty for cluster-scoped objects.
    pub namespace: Box<str>,
    /// The object's name.
    pub name: Box<str>,
}

impl Regarding {
    /// A Node.
    pub fn node(name: &str) -> Self {
        Self { kind: "Node", namespace: Box::default(), name: name.into() }
    }

    /// A Service.
    pub fn service(namespace: &str, name: &str) -> Self {
        Self { kind: "Service", namespace: namespace.into(), name: name.into() }
    }
}

/// An event. Equal events form one series.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventNote {
    /// The object that the event is about.
    pub regarding: Regarding,
    /// The type of the event.
    pub event_type: EventType,
    /// Why the event happened: one machine-readable word of at most 128 bytes.
    pub reason: &'static str,
    /// What was being done: one machine-readable word of at most 128 bytes.
    pub action: &'static str,
    /// Why the event happened, for people. Cut after 1,024 bytes; may be empty.
    pub note: Box<str>,
}

/// kube-proxy's action for all events about its start.
const START: &str = "StartKubeProxy";

/// Portolan's action for events about a changed configuration file.
const RELOAD: &str = "ReloadConfiguration";

impl EventNote {
    /// The proxy starts. Sent once, after the watches are set up.
    pub fn starting(node_name: &str) -> Self {
        Self::of_node(node_name, EventType::Normal, "Starting", START, "")
    }

    /// The health server cannot listen, and `bindAddressHardFail` makes the process exit.
    pub fn failed_to_start_proxier_healthcheck(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "FailedToStartProxierHealthcheck", START, note)
    }

    /// The metrics server cannot listen, and `bindAddressHardFail` makes the process exit.
    pub fn failed_to_start_metric_server(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "FailedToStartMetricServer", START, note)
    }

    /// The health-check node port of a Service cannot be listened on. `service` is namespace and name.
    pub fn failed_to_start_service_healthcheck(service: (&str, &str), note: &str) -> Self {
        Self {
            regarding: Regarding::service(service.0, service.1),
            event_type: EventType::Warning,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            note: note.into(),
        }
    }

    /// Another mode runs than the configuration names. kube-proxy has no such event.
    pub fn proxy_mode_fallback(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "ProxyModeFallback", START, note)
    }

    /// The memory limit of the process is too low for the rules to be loaded. kube-proxy has no such event.
    pub fn memory_limit_too_low(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "MemoryLimitTooLow", "ProgramServices", note)
    }

    /// A port of a Service cannot be programmed in this mode. kube-proxy has no such event. `service` is namespace
    /// and name.
    pub fn service_port_not_programmed(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "ServicePortNotProgrammed", note)
    }

    /// A port of a Service has more endpoints than this mode can use. kube-proxy has no such event.
    pub fn endpoints_left_out(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "EndpointsLeftOut", note)
    }

    /// An external address of a Service belongs to something else and is refused. kube-proxy has no such event.
    pub fn external_address_left_out(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "ExternalAddressLeftOut", note)
    }

    /// An external address of a Service belongs to something else and is served nevertheless, as in kube-proxy, which
    /// has no such event.
    pub fn external_address_shared(service: (&str, &str), note: &str) -> Self {
        Self { event_type: EventType::Normal, ..Self::of_service(service, "ExternalAddressShared", note) }
    }

    /// The taint of the Node cannot be removed or its condition cannot be set. kube-proxy has no such event.
    pub fn node_not_updated(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "NodeNotUpdated", "ShowReadiness", note)
    }

    /// What kube-proxy left on the node cannot be removed, and sends packets to endpoints that may be gone. kube-proxy has no
    /// such event.
    pub fn leftovers_not_removed(node_name: &str, reasons: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "LeftoversNotRemoved", "RemoveLeftovers", reasons)
    }

    /// A Service claims the address and port at which a node reaches the API server. kube-proxy has no such event.
    pub fn api_server_address_left_out(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "APIServerAddressLeftOut", note)
    }

    /// No source range of a Service can be parsed, so no client is admitted. kube-proxy has no such event.
    pub fn source_ranges_closed(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "SourceRangesClosed", note)
    }

    /// A Service claims an address and port that another Service has. kube-proxy has no such event.
    pub fn frontend_in_use(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "FrontendInUse", note)
    }

    /// A list of the API server was empty where objects are known, and is not accepted yet. kube-proxy has no such
    /// event.
    pub fn empty_list_held(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "EmptyListHeld", "ListObjects", note)
    }

    /// A changed configuration file is active. kube-proxy has no such event.
    pub fn configuration_reloaded(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Normal, "ConfigurationReloaded", RELOAD, note)
    }

    /// A changed configuration file was refused for these reasons; the previous configuration stays active.
    /// kube-proxy has no such event.
    pub fn configuration_refused(node_name: &str, reasons: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "ConfigurationRefused", RELOAD, reasons)
    }

    fn of_service(service: (&str, &str), reason: &'static str, note: &str) -> Self {
        Self {
            regarding: Regarding::service(service.0, service.1),
            event_type: EventType::Warning,
            reason,
            action: "ProgramService",
            note: note.into(),
        }
    }

    fn of_node(
        node_name: &str,
        event_type: EventType,
        reason: &'static str,
        action: &'static str,
        note: &str,
    ) -> Self {
        Self { regarding: Regarding::node(node_name), event_type, reason, action, note: note.into() }
    }
}
