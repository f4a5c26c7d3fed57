//! The documents as text for a terminal.

use crate::counters;
use crate::document::event;
use crate::format::{age, columns, one_line, percent, short};
use crate::problems;
use crate::{AgentState, Candidate, Family, ServicePage, ServicePort, ServiceRate, ServiceRates, Sync};

/// How many syncs are shown.
const SYNCS: usize = 6;
/// How many Service ports that are not programmed are shown for each family.
const REFUSED: usize = 10;

/// Returns the state as lines: whether everything is in sync, problems, numbers, families, and the last syncs.
pub fn state(state: &AgentState) -> Vec<String> {
    let mut lines = vec![headline(state)];
    if !state.problems.is_empty() {
        lines.extend([String::new(), "Problems".to_owned()]);
        lines.extend(state.problems.iter().map(|problem| format!("  {}", problem.text)));
    }
    lines.push(String::new());
    lines.extend(facts(state));
    if !state.families.is_empty() {
        lines.push(String::new());
        lines.extend(families(state));
    }
    lines.extend(refused(state));
    lines.extend(syncs(state));
    lines
}

pub use crate::counters::table as counters;

/// Returns the rate of new connections with the busiest Services, as lines below an empty one.
pub fn busiest(rates: &ServiceRates) -> Vec<String> {
    let mut lines = vec![String::new()];
    let (Some(all), Some(over)) = (rates.per_second, rates.over_seconds) else {
        let why = rates.not_counted.as_ref().map_or_else(|| "no rates yet".to_owned(), |why| one_line(why));
        lines.push(format!("New connections: {why}"));
        return lines;
    };
    let active = match rates.active {
        0 => String::new(),
        1 => "; one Service".to_owned(),
        active => format!("; the busiest of {active} Services"),
    };
    lines.push(format!("New connections: {all:.1}/s over {}{active}", age(over)));
    let row = |service: &ServiceRate| {
        vec![format!("{}/{}", service.namespace, service.name), format!("{:.1}/s", service.per_second)]
    };
    lines.extend(columns("  ", &rates.services.iter().map(row).collect::<Vec<_>>()));
    lines
}

/// Returns a page of Services as lines.
pub fn services(page: &ServicePage) -> Vec<String> {
    let mut lines = Vec::new();
    for service in &page.services {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(format!("{}/{}", service.namespace, service.name));
        if let Some(port) = service.health_check_node_port {
            lines.push(format!("  health check on node port {port}"));
        }
        for port in &service.ports {
            lines.extend(service_port(port));
        }
    }
    if let Some(why) = &page.not_counted {
        lines.push(format!("Not counted: {}.", one_line(why)));
    }
    if page.next.is_some() {
        lines.push("More Services follow; name one, or read the JSON.".into());
    }
    lines
}

fn headline(state: &AgentState) -> String {
    let mode = mode(state);
    if state.in_sync {
        let since = compared(state).map(|since| format!(", compared {} ago", age(since))).unwrap_or_default();
        let what = if problems::is_cut_off(state) { "the last known state" } else { "every Service" };
        return format!("In sync: the kernel has {what} ({mode}{since}).");
    }
    format!("NOT IN SYNC: the kernel may lack changes of Services ({mode}).")
}

/// Returns the seconds since the last comparison.
pub(crate) fn compared(state: &AgentState) -> Option<f64> {
    let since = state.families.iter().filter_map(|family| family.since.as_ref());
    since.map(|since| since.age_seconds).min_by(f64::total_cmp)
}

pub(crate) fn mode(state: &AgentState) -> String {
    let capture = state.capture.as_ref().map(|capture| format!(" by {capture}")).unwrap_or_default();
    format!("mode {}{capture}", state.mode)
}

fn facts(state: &AgentState) -> Vec<String> {
    let agent = &state.agent;
    let mut rows = vec![
        row("node", &agent.node),
        row(
            "agent",
            &format!(
                "{}, process {}, started {} ago",
                agent.version,
                agent.pid,
                age(agent.started.age_seconds)
            ),
        ),
        row("health", &health(state)),
        row("objects", &objects(state)),
    ];
    let watches: Vec<String> = state
        .watches
        .iter()
        .map(|watch| match watch.age_seconds {
            Some(silence) => format!("{} {} ago", watch.resource, age(silence)),
            None => format!("{} not listed", watch.resource),
        })
        .collect();
    rows.push(row("API server", &watches.join(", ")));
    if let Some(conntrack) = &state.conntrack {
        let (entries, max) = (conntrack.entries, conntrack.max);
        let text = format!("{entries} of {max} connections tracked ({}%)", percent(entries, max));
        rows.push(row("conntrack", &text));
    }
    if let Some(relay) = &state.relay {
        let mut text = format!("{} connections, {} UDP flows", relay.connections, relay.flows);
        if relay.failing_endpoints > 0 {
            text = format!("{text}, {} endpoints fail", relay.failing_endpoints);
        }
        if relay.draining > 0 {
            text = format!("{text}, {} former relays drain", relay.draining);
        }
        rows.push(row("relay", &text));
    }
    columns("", &rows)
}

fn row(name: &str, value: &str) -> Vec<String> {
    vec![name.to_owned(), value.to_owned()]
}

pub(crate) fn health(state: &AgentState) -> String {
    let health = &state.health;
    let word = |yes: bool, good: &str, bad: &str| if yes { good } else { bad }.to_owned();
    let words = [
        word(health.healthy, "healthy", "not healthy"),
        word(health.ready, "ready", "not ready"),
        word(health.node_eligible, "node eligible for traffic", "node not eligible for traffic"),
    ];
    words.join(", ")
}

pub(crate) fn objects(state: &AgentState) -> String {
    let objects = &state.objects;
    let mut text = format!("{} Services, {} EndpointSlices", objects.services, objects.endpoint_slices);
    let pending = objects.pending_services.saturating_add(objects.pending_endpoint_slices);
    if pending > 0 {
        text = format!("{text}, {pending} changes on their way to the kernel");
    }
    text
}

fn families(state: &AgentState) -> Vec<String> {
    let head = ["FAMILY", "MODE", "STATE", "SINCE", "SERVICES", "PORTS", "ENDPOINTS", "WAITING", "DRIFT"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(state.families.iter().map(|family| {
        vec![
            family.family.clone(),
            family_mode(family),
            sync_state(family).to_owned(),
            family.since.as_ref().map_or_else(|| "-".to_owned(), |since| age(since.age_seconds)),
            family.services.to_string(),
            family.service_ports.to_string(),
            family.endpoints.to_string(),
            family.pending.to_string(),
            family.drift.repaired.to_string(),
        ]
    }));
    columns("", &rows)
}

/// Returns the state of a family in words.
pub(crate) fn sync_state(family: &Family) -> &'static str {
    match family.sync.as_str() {
        "inSync" => "in sync",
        "waiting" => "waiting",
        _ => "not in sync",
    }
}

fn family_mode(family: &Family) -> String {
    let mut text = family.mode.clone();
    if family.place != family.mode {
        text = format!("{text} ({})", family.place);
    }
    if let Some(successor) = &family.successor {
        text = format!("{text}, {successor} follows");
    }
    text
}

fn refused(state: &AgentState) -> Vec<String> {
    let mut lines = Vec::new();
    for family in state.families.iter().filter(|family| family.refused_count > 0) {
        lines.push(String::new());
        lines.push(format!("Not programmed, or not with all endpoints ({})", family.family));
        let shown = family.refused.iter().take(REFUSED);
        lines.extend(shown.map(|port| format!("  {} {}: {}", port.service_port, port.protocol, port.reason)));
        let rest = family.refused_count.saturating_sub(family.refused.len().min(REFUSED));
        lines.extend((rest > 0).then(|| format!("  and {rest} more")));
    }
    lines
}

/// Returns the newest commits and failures of all families as lines.
fn syncs(state: &AgentState) -> Vec<String> {
    let mut all = newest_syncs(state);
    if all.is_empty() {
        return Vec::new();
    }
    all.truncate(SYNCS);
    let mut lines = vec![String::new(), "Last syncs".to_owned()];
    lines.extend(columns("  ", &sync_rows(&all)));
    lines
}

/// Returns the commits and failures of all families, the newest first.
pub(crate) fn newest_syncs(state: &AgentState) -> Vec<(&Family, &Sync)> {
    let of = |family| move |sync| (family, sync);
    let mut all: Vec<(&Family, &Sync)> = state
        .families
        .iter()
        .flat_map(|family| family.syncs.iter().chain(&family.failures).map(of(family)))
        .collect();
    all.sort_by(|(_, one), (_, other)| one.ended.age_seconds.total_cmp(&other.ended.age_seconds));
    all
}

/// Returns the rows of syncs, below those of their heading.
pub(crate) fn sync_rows(syncs: &[(&Family, &Sync)]) -> Vec<Vec<String>> {
    let head = ["AGO", "FAMILY", "TOOK", "KERNEL", "WROTE", "BECAUSE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(syncs.iter().map(|(family, sync)| {
        vec![
            age(sync.ended.age_seconds),
            family.family.clone(),
            short(sync.duration_seconds),
            if sync.error.is_some() { "-".to_owned() } else { short(sync.kernel_seconds) },
            wrote(sync),
            because(sync),
        ]
    }));
    rows
}

fn wrote(sync: &Sync) -> String {
    if let Some(error) = &sync.error {
        return format!("FAILED: {}", one_line(error));
    }
    match (sync.elements, sync.objects) {
        (0, 0) => "nothing".to_owned(),
        (elements, 0) => format!("{elements} elements"),
        (0, objects) => format!("{objects} objects"),
        (elements, objects) => format!("{elements} elements, {objects} objects"),
    }
}

fn because(sync: &Sync) -> String {
    match (sync.step.as_str(), sync.reason.as_deref()) {
        ("replacement", _) => return format!("the mode changed to {}", sync.mode),
        ("collection", _) => return "removal of what deleted Services used".to_owned(),
        (_, Some(reason)) => return event::because(reason).to_owned(),
        _ => {}
    }
    let rest = sync.changed.saturating_sub(sync.examples.len());
    let mut text = sync.examples.join(", ");
    match (text.is_empty(), rest) {
        (_, 0) => {}
        (true, rest) => text = format!("{rest} Service ports"),
        (false, rest) => text = format!("{text} and {rest} more"),
    }
    if text.is_empty() { "changes without effect on rules".to_owned() } else { text }
}

fn service_port(port: &ServicePort) -> Vec<String> {
    let name = if port.name.is_empty() { String::new() } else { format!("{} ", port.name) };
    let mut lines = vec![format!("  {name}{} {}", port.protocol, port.family)];
    if let Some(reason) = &port.refused {
        let what = if port.refused_in_part { "NOT ALL ENDPOINTS ARE USED" } else { "NOT PROGRAMMED" };
        lines.push(format!("    {what}: {reason}"));
    }
    let mut rows: Vec<Vec<String>> = port
        .frontends
        .iter()
        .map(|frontend| {
            let (kind, policy) = match frontend.kind.as_str() {
                "clusterIP" => ("cluster IP", &port.internal_traffic_policy),
                "externalIP" => ("external IP", &port.external_traffic_policy),
                "loadBalancerIP" => ("load-balancer IP", &port.external_traffic_policy),
                _ => ("node port", &port.external_traffic_policy),
            };
            let at = match &frontend.address {
                Some(address) if address.contains(':') => format!("[{address}]:{}", frontend.port),
                Some(address) => format!("{address}:{}", frontend.port),
                None => frontend.port.to_string(),
            };
            vec![kind.to_owned(), format!("{at} (traffic policy {policy})")]
        })
        .collect();
    if let Some(seconds) = port.session_affinity_seconds {
        rows.push(row("session affinity", &format!("by client address, {}", age(seconds.into()))));
    }
    if !port.source_ranges.is_empty() {
        rows.push(row("source ranges", &port.source_ranges.join(", ")));
    }
    if port.endpoints.is_empty() {
        let text = if port.has_endpoints {
            "none on this node: clients get no answer"
        } else {
            "none: clients are refused"
        };
        rows.push(row("endpoints", text));
    }
    for (index, endpoint) in port.endpoints.iter().enumerate() {
        let only = match (endpoint.cluster, endpoint.local) {
            (true, true) => " (policies Cluster and Local)",
            (false, true) => " (policy Local)",
            _ => "",
        };
        let counted = endpoint.counters.as_ref().map(|passed| format!(": {}", counters::passed(passed)));
        let text = format!("{}{only}{}", endpoint.address, counted.unwrap_or_default());
        rows.push(row(if index == 0 { "endpoints" } else { "" }, &text));
    }
    if let Some(counted) = &port.counters {
        let passed = counted.passed.as_ref().map(counters::passed);
        let all = passed.into_iter().chain(counters::refused(&counted.refused));
        for (index, text) in all.enumerate() {
            rows.push(row(if index == 0 { "counted" } else { "" }, &text));
        }
    }
    let left_out = |candidate: &Candidate| {
        let choice = candidate.left_out()?;
        let reason = choice.text.strip_prefix("is left out: ").unwrap_or(&choice.text);
        Some(format!("{}: {reason}", candidate.address))
    };
    let left_out = port.candidates.iter().flatten().filter_map(left_out);
    for (index, text) in left_out.enumerate() {
        rows.push(row(if index == 0 { "left out" } else { "" }, &text));
    }
    lines.extend(columns("    ", &rows));
    lines
}
