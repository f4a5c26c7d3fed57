//! What a comparison would write, as lines in the words of nft.
//!
//! Pure: the wanted table and the kernel's table go in, lines come out in the order of writing. The decisions are those of
//! [`Difference`]. The rules of a chain are counted, not written out. What a collection removes later, such as chains of
//! classes that no Service uses, has no line.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_engine::dataplane::Messages;
use portolan_engine::table::Table;
use portolan_model::{Family, Protocol};

use super::chain::{ChainBody, FamilyTable};
use super::changeset::{Changeset, Operation};
use super::element::{Set, address_length, read_address, read_number};
use super::layout::{Layout, Target};
use super::load::Pieces;
use super::planner::{Plan, Planner};
use super::readback::View;
use super::resync::{ChainWork, Difference};
use super::skeleton;

/// Returns what a start would write for a table into a kernel that has nothing of this mode.
pub fn preview_of_all(table: &Table) -> Vec<String> {
    lines(table, Target::Endpoints, &mut View::default())
}

/// Returns what a comparison of a table with the kernel's table would write.
pub(super) fn lines(table: &Table, target: Target, view: &mut View) -> Vec<String> {
    let mut planner = Planner::new(table.settings().clone());
    planner.target = target;
    let exists = view.table.is_some();
    let difference = Difference::between(&mut planner, table, view);
    let place = planner.layout().place();
    let mut lines = Lines::new(place, planner.settings.counters, usize::MAX);
    if difference.is_empty() {
        return lines.written;
    }
    lines.objects(&difference, planner.layout(), exists);
    lines.elements(&difference.elements);
    lines.elements(&difference.later);
    if !exists {
        let mut pieces = Pieces::default();
        while let Some(elements) = pieces.next(&planner, table) {
            lines.elements(&elements);
        }
        lines.base_chains(planner.layout());
    }
    lines.written
}

/// Returns the first lines of what a change writes.
pub(super) fn first_of_plan(layout: Layout<'_>, plan: &Plan) -> Vec<String> {
    let mut lines = Lines::new(layout.place(), layout.settings.counters, Messages::LINES.saturating_add(1));
    if plan.creates_source_range_check {
        for body in skeleton::source_range_chains(layout) {
            lines.chain("add", &body);
        }
    }
    for (number, class) in &plan.classes {
        lines.class("add", *number, &format!(" : goto {class}"));
    }
    plan.all_elements().into_iter().for_each(|elements| lines.elements(elements));
    lines.written
}

/// Returns the first lines of what a comparison writes.
pub(super) fn first_of_difference(layout: Layout<'_>, difference: &Difference, exists: bool) -> Vec<String> {
    let mut lines = Lines::new(layout.place(), layout.settings.counters, Messages::LINES.saturating_add(1));
    lines.objects(difference, layout, exists);
    lines.elements(&difference.elements);
    lines.elements(&difference.later);
    lines.written
}

struct Lines {
    place: FamilyTable,
    /// True if elements count.
    counters: bool,
    /// No more lines are made.
    most: usize,
    written: Vec<String>,
}

impl Lines {
    const fn new(place: FamilyTable, counters: bool, most: usize) -> Self {
        Self { place, counters, most, written: Vec::new() }
    }

    const fn is_full(&self) -> bool {
        self.written.len() >= self.most
    }

    fn add(&mut self, verb: &str, kind: &str, rest: &str) {
        if self.is_full() {
            return;
        }
        let family = match self.place.family {
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
        };
        let space = if rest.is_empty() { "" } else { " " };
        self.written.push(format!("{verb} {kind} {family} {}{space}{rest}", self.place.table));
    }

    /// Adds everything but the elements of Services, in the order of [`Difference::encode`].
    fn objects(&mut self, difference: &Difference, layout: Layout<'_>, exists: bool) {
        if difference.rebuild {
            if exists {
                self.add("delete", "table", "");
            }
            self.add("add", "table", "");
            for set in Set::ALL.into_iter().filter(|set| layout.has_at_start(*set)) {
                self.add("add", "set", set.name());
            }
            for body in skeleton::chains(layout).iter().filter(|body| body.base.is_none()) {
                self.chain("add", body);
            }
            if exists {
                self.base_chains(layout);
            }
        }
        for set in &difference.sets {
            self.add("add", "set", set.name());
        }
        for work in &difference.chains {
            match work {
                ChainWork::Make(body) => self.chain("add", body),
                ChainWork::Refill(body) => self.chain("refill", body),
            }
        }
        for chain in &difference.foreign_base_chains {
            self.add("delete", "chain", chain);
        }
        for work in &difference.classes {
            if work.replace {
                self.class("delete", work.number, "");
            }
            if let Some(class) = work.class {
                self.class("add", work.number, &format!(" : goto {class}"));
            }
        }
    }

    /// Adds the element of a class. `rest` follows its number.
    fn class(&mut self, verb: &str, number: u16, rest: &str) {
        let element = format!("{} {{ {}{rest} }}", Set::Classes.name(), mark(number.into()));
        self.add(verb, "element", &element);
    }

    fn base_chains(&mut self, layout: Layout<'_>) {
        for body in skeleton::chains(layout).iter().filter(|body| body.base.is_some()) {
            self.chain("add", body);
        }
    }

    fn chain(&mut self, verb: &str, body: &ChainBody) {
        let plural = if body.rules.len() == 1 { "" } else { "s" };
        self.add(verb, "chain", &format!("{} with {} rule{plural}", body.name, body.rules.len()));
    }

    fn elements(&mut self, changes: &Changeset) {
        for set in Set::ALL {
            for operation in changes.deletions(set).take(self.most) {
                self.element("delete", set, &operation);
            }
        }
        for set in Set::ALL {
            for operation in changes.additions(set).take(self.most) {
                self.element("add", set, &operation);
            }
        }
    }

    fn element(&mut self, verb: &str, set: Set, operation: &Operation<'_>) {
        if self.is_full() {
            return;
        }
        let (key_fields, data_fields) = fields(set);
        let family = self.place.family;
        let mut key = values(family, key_fields, operation.key);
        if !operation.key_end.is_empty()
            && let Some(last) = key.last_mut()
            && let Some(end) = values(family, key_fields, operation.key_end).last()
        {
            *last = range(last, end);
        }
        let mut text = if operation.key.is_empty() { "*".to_owned() } else { key.join(" . ") };
        if self.counters && set.has_counters() && verb == "add" {
            text.push_str(" counter");
        }
        if !operation.comment.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(text, " comment \"{}\"", operation.comment);
        }
        if verb == "add" && !operation.data.is_empty() {
            let _ = write!(text, " : {}", values(family, data_fields, operation.data).join(" . "));
        }
        self.add(verb, "element", &format!("{} {{ {text} }}", set.name()));
    }
}

/// A field of a key or of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Address,
    Protocol,
    Port,
    /// A packet mark.
    Mark,
}

/// Returns the fields of the keys and of the data of a set.
const fn fields(set: Set) -> (&'static [Field], &'static [Field]) {
    use Field::{Address, Mark, Port, Protocol};
    match set {
        Set::Services => (&[Address, Protocol, Port], &[Mark]),
        Set::NodePorts => (&[Protocol, Port], &[Mark]),
        Set::Endpoints => (&[Mark, Mark], &[Address, Port]),
        Set::Classes | Set::ServiceCounters => (&[Mark], &[]),
        Set::AffinityChoices => (&[Mark, Mark], &[Mark]),
        Set::AffinityEndpoints | Set::AffinityLocalEndpoints => (&[Mark], &[Address, Port]),
        Set::Affinity => (&[Mark, Address], &[Mark]),
        Set::ClusterIps | Set::NodePortIps => (&[Address], &[]),
        Set::NoEndpointServices | Set::NoLocalEndpointServices | Set::FirewallIps | Set::SourceRangeDrops => {
            (&[Address, Protocol, Port], &[])
        }
        Set::NoEndpointNodePorts | Set::NoLocalEndpointNodePorts => (&[Protocol, Port], &[]),
        Set::SourceRanges => (&[Address, Protocol, Port, Address], &[]),
        Set::HairpinConnections => (&[Address, Address, Protocol, Port], &[]),
    }
}

/// Returns the fields as nft prints them. What cannot be read is left out.
fn values(family: Family, fields: &[Field], mut bytes: &[u8]) -> Vec<String> {
    let mut values = Vec::with_capacity(fields.len());
    for field in fields {
        let length = match field {
            Field::Address => address_length(family) as usize,
            Field::Protocol | Field::Port | Field::Mark => 4,
        };
        let Some((field_bytes, rest)) = bytes.split_at_checked(length) else { break };
        values.extend(match field {
            Field::Address => read_address(family, field_bytes).map(|address| address.to_string()),
            Field::Protocol => field_bytes.first().map(|number| protocol(*number)),
            Field::Port => field_bytes.first_chunk::<2>().map(|port| u16::from_be_bytes(*port).to_string()),
            Field::Mark => read_number(field_bytes).map(mark),
        });
        bytes = rest;
    }
    values
}

fn mark(number: u32) -> String {
    format!("{number:#010x}")
}

fn protocol(number: u8) -> String {
    match [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|known| known.number() == number) {
        Some(known) => known.to_string().to_ascii_lowercase(),
        None => number.to_string(),
    }
}

/// Returns a range of addresses, as a network if it is one.
fn range(first: &str, last: &str) -> String {
    if first == last {
        return first.to_owned();
    }
    let network = || {
        let (first, last) = (first.parse::<IpAddr>().ok()?, last.parse::<IpAddr>().ok()?);
        let is_whole = |net: &IpNet| net.network() == first && net.broadcast() == last;
        let longest = if first.is_ipv4() { 32 } else { 128 };
        (0..=longest).filter_map(|prefix| IpNet::new(first, prefix).ok()).find(is_whole)
    };
    network().map_or_else(|| format!("{first}-{last}"), |network| network.to_string())
}

#[cfg(test)]
mod tests;
