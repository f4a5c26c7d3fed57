//! What an event says, and the events that there are.

/// Whether an event is worth a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// All is well.
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
    /// Its kind, of API version `v1`.
    pub kind: &'static str,
    /// Its namespace; empty for objects of the cluster.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

impl Regarding {
    /// A Node. As upstream without a UID, so that it needs no Node object.
    pub fn node(name: &str) -> Self {
        Self { kind: "Node", namespace: Box::default(), name: name.into() }
    }

    /// A Service.
    pub fn service(namespace: &str, name: &str) -> Self {
        Self { kind: "Service", namespace: namespace.into(), name: name.into() }
    }
}

/// An event. Two that are equal are one series.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventNote {
    /// The object that it is about.
    pub regarding: Regarding,
    /// Whether it is worth a look.
    pub event_type: EventType,
    /// Why, in one word for machines, at most 128 bytes.
    pub reason: &'static str,
    /// What was being done, in one word for machines, at most 128 bytes.
    pub action: &'static str,
    /// Why, for people; cut off after 1,024 bytes. May be empty.
    pub note: Box<str>,
}

/// upstream's action of all events about its start.
const START: &str = "StartKubeProxy";

/// Our action of events about a changed configuration file.
const RELOAD: &str = "ReloadConfiguration";

impl EventNote {
    /// The proxy is about to work; once, after the watches are set up.
    pub fn starting(node_name: &str) -> Self {
        Self::of_node(node_name, EventType::Normal, "Starting", START, "")
    }

    /// The health server cannot listen, and `bindAddressHardFail` makes that an end.
    pub fn failed_to_start_proxier_healthcheck(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "FailedToStartProxierHealthcheck", START, note)
    }

    /// The metrics server cannot listen, and `bindAddressHardFail` makes that an end.
    pub fn failed_to_start_metric_server(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "FailedToStartMetricServer", START, note)
    }

    /// A Service's health-check node port cannot be listened on. `service` is namespace and name.
    pub fn failed_to_start_service_healthcheck(service: (&str, &str), note: &str) -> Self {
        Self {
            regarding: Regarding::service(service.0, service.1),
            event_type: EventType::Warning,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            note: note.into(),
        }
    }

    /// Another mode runs than the one that the configuration names. Not upstream's.
    pub fn proxy_mode_fallback(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "ProxyModeFallback", START, note)
    }

    /// The memory limit of the process is too low for the rules that it is to load. Not upstream's.
    pub fn memory_limit_too_low(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "MemoryLimitTooLow", "ProgramServices", note)
    }

    /// A port of a Service cannot be programmed in this mode. Not upstream's. `service` is namespace and name.
    pub fn service_port_not_programmed(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "ServicePortNotProgrammed", note)
    }

    /// A port of a Service has more endpoints than this mode can use. Not upstream's.
    pub fn endpoints_left_out(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "EndpointsLeftOut", note)
    }

    /// A Service asks for the place where a node reaches the API server. Not upstream's.
    pub fn api_server_address_left_out(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "APIServerAddressLeftOut", note)
    }

    /// No source range of a Service can be read, so that no client is let in. Not upstream's.
    pub fn source_ranges_closed(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "SourceRangesClosed", note)
    }

    /// A Service asks for what another one has. Not upstream's.
    pub fn frontend_in_use(service: (&str, &str), note: &str) -> Self {
        Self::of_service(service, "FrontendInUse", note)
    }

    /// A list of the API server was empty where objects are known, and is not believed yet. Not upstream's.
    pub fn empty_list_held(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Warning, "EmptyListHeld", "ListObjects", note)
    }

    /// A changed configuration file is in force. Not upstream's.
    pub fn configuration_reloaded(node_name: &str, note: &str) -> Self {
        Self::of_node(node_name, EventType::Normal, "ConfigurationReloaded", RELOAD, note)
    }

    /// A changed configuration file was refused for these reasons; the one before stays. Not upstream's.
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
