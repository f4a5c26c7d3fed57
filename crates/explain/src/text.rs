//! A report as lines for people.

use std::fmt::Write as _;

use crate::obstacles::POLICIES_NOTE;
use crate::report::{
    Client, ClientKind, ConnectionReport, Connections, EndpointReport, Filtered, Obstacle, ObstacleKind,
    Outcome, Programmed, Report, ReversePath, Routing, RoutingFault, Source, Stage, Step,
};

/// How a report is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Without escape sequences.
    Plain,
    /// With the colours of a terminal (ECMA-48, SGR).
    Colour,
}

/// Width of the first column.
const WIDTH: usize = 14;

/// End of the codes of hints that no endpoint has. They are of no interest to people.
const ABSENT_HINTS: &str = "-hints-absent";

/// The colours, as parameters of SGR.
const GREEN: &str = "32";
const RED: &str = "31";
const YELLOW: &str = "33";
const BOLD: &str = "1";
const FAINT: &str = "2";

impl Report {
    /// Returns the report for people: the question, one line for each reason and endpoint, and the outcome.
    pub fn text(&self, style: Style) -> String {
        let mut page = Page { style, text: String::new() };
        let (client, to) = (client(&self.from), &self.to);
        page.line(page.paint(BOLD, &format!("{client} -> {} ({})", to.socket, to.protocol)));
        page.line(page.paint(FAINT, &format!("on node {}, {} mode, {}", self.node, self.mode, to.family)));
        page.line(page.paint(FAINT, &self.sources()));
        page.line("");
        page.wanted(self);
        page.programmed(self.programmed.as_ref());
        if let Some(connections) = &self.connections {
            page.connections(connections);
        }
        if let Some(firewall) = &self.firewall {
            page.firewall(firewall, self.notes.iter().any(|note| note.code == POLICIES_NOTE));
        }
        page.reverse_path(&self.reverse_path);
        page.routing(&self.routing);
        for (index, note) in self.notes.iter().enumerate() {
            page.row(if index == 0 { "note" } else { "" }, &note.text);
        }
        page.line("");
        let outcome = page.paint(colour(self.outcome), word(self.outcome));
        page.line(outcome.then(&format!(": {}", self.summary)));
        page.text
    }

    /// Returns where the parts of the report come from.
    fn sources(&self) -> String {
        let (wanted, reader) = match self.source {
            Source::Manifests => ("the manifests", ""),
            Source::ApiServer => ("the API server", ""),
            Source::Agent => ("the running proxy", ", read by the proxy"),
            Source::Snapshot => ("the snapshot", ", as it was then"),
        };
        match self.programmed {
            None => format!("wanted: from {wanted}"),
            Some(_) => format!("wanted: from {wanted}; programmed: from the kernel{reader}"),
        }
    }
}

/// Returns a text without line breaks and other control characters, which a terminal would obey. Names in objects and texts of
/// the kernel may have them.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Returns the outcome in one word or two.
const fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Reachable => "reachable",
        Outcome::Refused => "refused",
        Outcome::Dropped => "dropped",
        Outcome::NotAService => "not a Service's",
        Outcome::NotAsWanted => "not as wanted",
    }
}

const fn colour(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Reachable => GREEN,
        Outcome::Refused | Outcome::Dropped | Outcome::NotAsWanted => RED,
        Outcome::NotAService => YELLOW,
    }
}

fn client(client: &Client) -> String {
    let kind = match client.kind {
        ClientKind::Node => "this node",
        ClientKind::Pod => "pod",
        ClientKind::Outside => "outside",
    };
    let name = client.pod.as_ref().map_or_else(String::new, |name| format!(" {name}"));
    let example = if client.example { " as an example" } else { "" };
    format!("{kind}{name} ({}{example})", client.address)
}

/// A text without control characters besides the colours of [`Page::paint`].
struct Painted(String);

impl<T: AsRef<str>> From<T> for Painted {
    fn from(text: T) -> Self {
        Self(printable(text.as_ref()))
    }
}

impl Painted {
    /// Continues with a text.
    fn then(self, text: &str) -> Self {
        Self(self.0 + &printable(text))
    }
}

struct Page {
    style: Style,
    text: String,
}

impl Page {
    fn paint(&self, colour: &str, text: &str) -> Painted {
        let text = printable(text);
        match self.style {
            Style::Plain => Painted(text),
            Style::Colour => Painted(format!("\u{1b}[{colour}m{text}\u{1b}[0m")),
        }
    }

    fn line(&mut self, text: impl Into<Painted>) {
        let _ = writeln!(self.text, "{}", text.into().0);
    }

    /// Writes a row of two columns.
    fn row(&mut self, label: &str, text: impl Into<Painted>) {
        let _ = writeln!(self.text, "  {label:<WIDTH$}{}", text.into().0);
    }

    fn wanted(&mut self, report: &Report) {
        let mut last = None;
        let steps = report.wanted.steps.iter().filter(|step| !step.code.ends_with(ABSENT_HINTS));
        for step in steps {
            if last == Some(Stage::Endpoints) && step.stage != Stage::Endpoints {
                self.endpoints(&report.wanted.endpoints);
            }
            let label = if last == Some(step.stage) { "" } else { label(step.stage) };
            self.row(label, sentence(step));
            last = Some(step.stage);
        }
        if last == Some(Stage::Endpoints) {
            self.endpoints(&report.wanted.endpoints);
        }
        for (index, nearest) in report.wanted.nearest.iter().enumerate() {
            self.row(if index == 0 { "nearest" } else { "" }, &nearest.text);
        }
    }

    fn endpoints(&mut self, endpoints: &[EndpointReport]) {
        for endpoint in endpoints {
            let mark = if endpoint.used { self.paint(GREEN, "+") } else { self.paint(RED, "-") };
            let place: Vec<String> = [
                endpoint.pod.as_ref().map(|pod| format!("pod {pod}")),
                endpoint.node.as_ref().map(|node| format!("node {node}")),
            ]
            .into_iter()
            .flatten()
            .collect();
            let place = if place.is_empty() { String::new() } else { format!(" ({})", place.join(", ")) };
            let source =
                if endpoint.masqueraded == Some(true) { "; it sees an address of this node" } else { "" };
            let text = format!(" {}{place} {}{source}", endpoint.endpoint, endpoint.text);
            self.row("", mark.then(&text));
        }
    }

    fn programmed(&mut self, programmed: Option<&Programmed>) {
        let Some(programmed) = programmed else { return };
        if programmed.as_wanted {
            self.row("programmed", "the kernel has what is wanted");
        }
        for (index, difference) in programmed.differences.iter().enumerate() {
            let service = difference.service.as_deref().unwrap_or("no Service");
            let text = self.paint(RED, &format!("{service}: {}", difference.text));
            self.row(if index == 0 { "programmed" } else { "" }, text);
        }
    }

    fn connections(&mut self, connections: &Connections) {
        match connections.count {
            0 if connections.partial => {
                self.row("connections", "none of this flow was found, but not all connections could be read");
            }
            count if connections.partial => {
                self.row("connections", format!("conntrack has at least {count}; not all could be read"));
            }
            0 => self.row("connections", "conntrack has none of this flow"),
            1 => self.row("connections", "conntrack has one"),
            count => self.row("connections", format!("conntrack has {count}")),
        }
        for connection in &connections.some {
            self.row("", one_connection(connection));
        }
        let more = connections.count.saturating_sub(connections.some.len());
        if more > 0 {
            self.row("", format!("and {more} more"));
        }
    }

    fn firewall(&mut self, obstacles: &[Obstacle], has_policies: bool) {
        match obstacles {
            [] if has_policies => {
                self.row(
                    "firewall",
                    "no rule of another program affects the packet, besides network policies",
                );
            }
            [] => self.row("firewall", "no rule of another program affects the packet"),
            _ => {}
        }
        for (index, obstacle) in obstacles.iter().enumerate() {
            let text = one_obstacle(obstacle);
            let text = if obstacle.certain { self.paint(RED, &text) } else { self.paint(YELLOW, &text) };
            self.row(if index == 0 { "firewall" } else { "" }, text);
        }
    }

    fn reverse_path(&mut self, filters: &[ReversePath]) {
        for (index, filter) in filters.iter().enumerate() {
            let text = one_filter(filter);
            let text = if filter.certain { self.paint(RED, &text) } else { self.paint(YELLOW, &text) };
            self.row(if index == 0 { "reverse path" } else { "" }, text);
        }
    }

    fn routing(&mut self, faults: &[Routing]) {
        for (index, fault) in faults.iter().enumerate() {
            let text = self.paint(RED, &one_fault(fault));
            self.row(if index == 0 { "route" } else { "" }, text);
        }
    }
}

/// Returns the text of a step. The label already names masquerading.
fn sentence(step: &Step) -> String {
    if let Some(rest) = step.text.strip_prefix("masquerading: ") {
        format!("yes: {rest}")
    } else if let Some(rest) = step.text.strip_prefix("no masquerading: ") {
        format!("no: {rest}")
    } else if let Some(rest) = step.text.strip_prefix("no masquerading ") {
        format!("not {rest}")
    } else if let Some(rest) = step.text.strip_prefix("masquerading ") {
        rest.to_owned()
    } else {
        step.text.clone()
    }
}

const fn label(stage: Stage) -> &'static str {
    match stage {
        Stage::Frontend => "frontend",
        Stage::SourceRanges => "source ranges",
        Stage::Endpoints => "endpoints",
        Stage::Delivery => "delivery",
        Stage::Affinity => "affinity",
        Stage::Masquerading => "masquerading",
    }
}

fn one_connection(connection: &ConnectionReport) -> String {
    let ConnectionReport { source, endpoint, masqueraded, stale, replied, timeout } = connection;
    let mut text = match endpoint {
        Some(endpoint) => format!("{source} goes to {endpoint}"),
        None => format!("{source} is not translated"),
    };
    text.push_str(if *masqueraded { ", masqueraded" } else { "" });
    text.push_str(if *stale { ", which new connections do not" } else { "" });
    text.push_str(if *replied { "" } else { ", without a reply so far" });
    if let Some(seconds) = timeout {
        let _ = write!(text, ", expires in {seconds} s");
    }
    text
}

fn one_filter(filter: &ReversePath) -> String {
    let ReversePath { drops, interface, setting, address, route, endpoints, .. } = filter;
    let endpoints: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
    let back = |to: &str| match route {
        Some(route) => format!("the route back to {to} leads through {route}"),
        None => format!("there is no route back to {to}"),
    };
    match drops {
        Filtered::Packet => {
            let mut text = format!(
                "{setting} drops the packet: it arrives at {interface}, and {}",
                back(&address.to_string())
            );
            if !endpoints.is_empty() {
                let _ = write!(text, "; this concerns the way to {}", endpoints.join(" and "));
            }
            text
        }
        Filtered::Answer => format!(
            "{setting} drops answers of {} that arrive at {interface}: they are sent to its address {address}, and {}",
            endpoints.join(" and "),
            back("the endpoint")
        ),
    }
}

fn one_fault(routing: &Routing) -> String {
    let Routing { fault, answers: _, interface, endpoints } = routing;
    let endpoints: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
    let to = if endpoints.is_empty() { "the endpoint".to_owned() } else { endpoints.join(" and ") };
    match (fault, interface) {
        (RoutingFault::ForwardingOff, None) => format!(
            "this node does not forward packets, so those to {to} are dropped (net.ipv4.ip_forward, \
             net.ipv6.conf.all.forwarding)"
        ),
        (RoutingFault::ForwardingOff, Some(interface)) => {
            format!(
                "this node does not forward packets that arrive at {interface}, so those to {to} are dropped"
            )
        }
        (RoutingFault::NoRoute, _) => format!("this node has no route to {to}"),
        (RoutingFault::RouteRefuses, _) => {
            format!("the route to {to} refuses packets (unreachable, prohibit)")
        }
        (RoutingFault::RouteDiscards, _) => format!("the route to {to} discards packets (blackhole)"),
        (RoutingFault::NoCarrier, interface) => {
            let interface = interface.as_deref().unwrap_or("an interface");
            format!(
                "the route to {to} leads through {interface}, which has no carrier: its other end is down"
            )
        }
    }
}

fn one_obstacle(obstacle: &Obstacle) -> String {
    let Obstacle { kind, certain, owner, chain, rule, only_if, endpoints } = obstacle;
    let verb = match kind {
        ObstacleKind::Drops => "drops the packet",
        ObstacleKind::Rejects => "rejects the packet",
        ObstacleKind::Redirects => "redirects the packet",
        ObstacleKind::NotTracked => "exempts the packet from connection tracking",
        ObstacleKind::NotTranslated => "ends the translation before Services get the packet",
        ObstacleKind::NotJudged => "may decide about the packet in a way that is not known here",
    };
    let what = match rule {
        Some(rule) => format!("{chain}, of {owner}, {verb}: `{rule}`"),
        None => format!("the policy of {chain} {verb}"),
    };
    let mut text = what;
    if !endpoints.is_empty() {
        let endpoints: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        let _ = write!(text, ", if it goes to {}", endpoints.join(" or "));
    }
    if !only_if.is_empty() {
        let _ = write!(text, ", if {}", only_if.join(" and "));
    } else if !certain && *kind != ObstacleKind::NotJudged {
        text.push_str(", unless an earlier rule decides");
    }
    text
}
