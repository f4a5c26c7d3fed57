//! EndpointSlices: addresses, their conditions, and the names of nodes and zones. Each name is stored once.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::de::{IgnoredAny, SeqAccess};

use super::lenient::{Faults, Loose, Shape, Text, fault, record};
use super::message::{Malformed, Value};
use super::{Kind, Metadata, ObjectBody, RawMetadata, WithMetadata, parse};
use crate::{Family, Protocol};

/// An EndpointSlice with the fields that a node needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// The owning Service's name in the slice's namespace (label `kubernetes.io/service-name`).
    pub service: Option<Box<str>>,
    /// True if the slice belongs to a headless Service (label `service.kubernetes.io/headless`). Proxies ignore it.
    pub headless: bool,
    /// Family of the addresses. `None` for `FQDN`, for headless Services and for unknown address types, which a proxy
    /// ignores.
    pub family: Option<Family>,
    /// Usable ports, in the given order.
    pub ports: Box<[SlicePort]>,
    /// Usable endpoints, in the given order.
    pub endpoints: Box<[SliceEndpoint]>,
    /// Time of the change that led to this state, in nanoseconds since the Unix epoch (annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time`).
    pub trigger_time: Option<i64>,
    names: Box<[Box<str>]>,
    hints: Box<[u32]>,
}

/// A port of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlicePort {
    /// Name by which Service ports are matched; empty for the unnamed port.
    pub name: Arc<str>,
    /// Target port.
    pub port: u16,
    /// Protocol.
    pub protocol: Protocol,
}

/// An endpoint of an EndpointSlice. Its names are read through the slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// The first address, the only one that a proxy uses.
    pub address: IpAddr,
    /// Condition `ready`; unset means true.
    pub ready: bool,
    /// Condition `serving`; unset means true.
    pub serving: bool,
    /// Condition `terminating`; unset means false.
    pub terminating: bool,
    node: u32,
    first_hint: u32,
    zone_hints: u16,
    node_hints: u16,
}

/// The index of a missing node name.
const NO_NAME: u32 = u32::MAX;

impl EndpointSlice {
    /// Returns the name of an endpoint's node, or `None` if it is missing.
    pub fn node(&self, endpoint: &SliceEndpoint) -> Option<&str> {
        self.name(endpoint.node)
    }

    /// Returns the zones that should use this endpoint (`hints.forZones`, KEP-2433).
    pub fn zone_hints(&self, endpoint: &SliceEndpoint) -> impl Iterator<Item = &str> + use<'_> {
        self.hint_names(endpoint.first_hint, endpoint.zone_hints)
    }

    /// Returns the nodes that should use this endpoint (`hints.forNodes`, KEP-3015).
    pub fn node_hints(&self, endpoint: &SliceEndpoint) -> impl Iterator<Item = &str> + use<'_> {
        self.hint_names(
            endpoint.first_hint.saturating_add(u32::from(endpoint.zone_hints)),
            endpoint.node_hints,
        )
    }

    fn hint_names(&self, first: u32, count: u16) -> impl Iterator<Item = &str> + use<'_> {
        let ids = self.hints.iter().skip(first as usize).take(usize::from(count));
        ids.filter_map(|id| self.name(*id))
    }

    fn name(&self, id: u32) -> Option<&str> {
        self.names.get(id as usize).map(|name| &**name)
    }
}

record!(
    RawSlice {
        kind: "kind" => Text<'de>,
        metadata: "metadata" = 1 => RawMetadata<'de>,
        address_type: "addressType" = 4 kept => Text<'de>,
        endpoints: "endpoints" = 2 => Vec<Loose<RawEndpoint<'de>>>,
        ports: "ports" = 3 => Vec<Loose<RawPort<'de>>>,
    }
);
record!(
    RawPort {
        name: "name" = 1 kept => Text<'de>,
        protocol: "protocol" = 2 kept => Text<'de>,
        port: "port" = 3 kept => i64,
    }
);
record!(
    RawEndpoint {
        addresses: "addresses" = 1 => First<'de>,
        conditions: "conditions" = 2 => RawConditions<'de>,
        node: "nodeName" = 6 kept => Text<'de>,
        hints: "hints" = 8 => RawHints<'de>,
    }
);
record!(
    RawConditions {
        ready: "ready" = 1 kept => bool,
        serving: "serving" = 2 kept => bool,
        terminating: "terminating" = 3 kept => bool,
    }
);
record!(
    RawHints {
        zones: "forZones" = 1 => Vec<Loose<RawHint<'de>>>,
        nodes: "forNodes" = 2 => Vec<Loose<RawHint<'de>>>,
    }
);
record!(
    RawHint {
        name: "name" = 1 kept => Text<'de>,
    }
);

/// The first entry of a list. The others are skipped.
#[derive(Debug, Default)]
pub(crate) struct First<'de>(Loose<Text<'de>>);

impl<'de> Shape<'de> for First<'de> {
    fn field(field: Value<'de>, so_far: Loose<Self>) -> Result<Loose<Self>, Malformed> {
        let first = || Ok(Loose::Value(Self(Text::field(field, Loose::Absent)?)));
        if so_far.is_present() { Ok(so_far) } else { first() }
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let first = list.next_element()?.unwrap_or_default();
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Some(Self(first)))
    }
}

impl<'de> WithMetadata<'de> for RawSlice<'de> {
    fn kind(&self) -> &Loose<Text<'de>> {
        &self.kind
    }

    fn metadata(&mut self) -> Loose<RawMetadata<'de>> {
        std::mem::take(&mut self.metadata)
    }
}

impl ObjectBody for EndpointSlice {
    type Raw<'de> = RawSlice<'de>;
    const KIND: Kind = Kind::EndpointSlice;

    fn build(raw: RawSlice<'_>, metadata: &Metadata<'_>, faults: &mut Faults) -> Self {
        let service = metadata.labels.service_name.text().filter(|name| !name.is_empty());
        let headless = metadata.labels.headless.is_present();
        let family = if headless { None } else { family(raw.address_type, faults) };
        let trigger_time = metadata.annotations.trigger_time.text().and_then(parse::parse_time);
        let mut builder = Builder::default();
        let mut ports = Box::default();
        if let Some(family) = family {
            if service.is_none() {
                let mend = "is missing; name the Service that the slice belongs to";
                fault(faults, "metadata.labels[kubernetes.io/service-name]", mend);
            }
            ports = self::ports(raw.ports, faults);
            builder.endpoints(raw.endpoints, family, faults);
        }
        Self {
            service: service.map(Into::into),
            headless,
            family,
            ports,
            endpoints: builder.endpoints.into(),
            trigger_time,
            names: builder.names.into(),
            hints: builder.hints.into(),
        }
    }
}

fn family(address_type: Loose<Text<'_>>, faults: &mut Faults) -> Option<Family> {
    const FIELD: &str = "addressType";
    let text = address_type.take(faults, || FIELD.to_owned(), "IPv4, IPv6 or FQDN").unwrap_or_default();
    let family = parse::family(&text);
    if family.is_none() && text != "FQDN" {
        fault(faults, FIELD, format!("{:?} is not known; write IPv4, IPv6 or FQDN", parse::clip(&text)));
    }
    family
}

fn ports(list: Loose<Vec<Loose<RawPort<'_>>>>, faults: &mut Faults) -> Box<[SlicePort]> {
    let list = list.or_empty(faults, "ports", "a list of ports");
    let mut ports = Vec::with_capacity(list.len());
    for (index, raw) in list.into_iter().enumerate() {
        if let Some(raw) = raw.take(faults, || format!("ports[{index}]"), "an object") {
            ports.extend(port(raw, index, faults));
        }
    }
    ports.into_boxed_slice()
}

fn port(raw: RawPort<'_>, index: usize, faults: &mut Faults) -> Option<SlicePort> {
    let path = |field: &str| format!("ports[{index}].{field}");
    let absent = raw.name.is_missing();
    let name = raw.name.take(faults, || path("name"), "text");
    if absent {
        fault(faults, path("name"), "is missing; write the name of the Service port, or \"\"");
    }
    let protocol = parse::protocol(raw.protocol, faults, || path("protocol"))?;
    if raw.port.is_missing() {
        fault(faults, path("port"), "is missing; write 1 to 65535 (a slice for all ports is not supported)");
    }
    let port = raw.port.take(faults, || path("port"), "a number from 1 to 65535")?;
    let port = parse::port_number(port, faults, || path("port"))?;
    Some(SlicePort { name: name?.into(), port, protocol })
}

/// Collects endpoints and stores each distinct name once.
#[derive(Default)]
struct Builder<'de> {
    endpoints: Vec<SliceEndpoint>,
    names: Vec<Box<str>>,
    hints: Vec<u32>,
    ids: HashMap<Text<'de>, u32>,
}

impl<'de> Builder<'de> {
    fn endpoints(&mut self, list: Loose<Vec<Loose<RawEndpoint<'de>>>>, family: Family, faults: &mut Faults) {
        let list = list.or_empty(faults, "endpoints", "a list of endpoints");
        self.endpoints.reserve_exact(list.len());
        for (index, raw) in list.into_iter().enumerate() {
            if let Some(raw) = raw.take(faults, || format!("endpoints[{index}]"), "an object") {
                self.endpoint(raw, index, family, faults);
            }
        }
    }

    fn endpoint(&mut self, raw: RawEndpoint<'de>, index: usize, family: Family, faults: &mut Faults) {
        let path = |field: &str| format!("endpoints[{index}].{field}");
        let empty = raw.addresses.is_missing().then(First::default);
        let first = raw.addresses.take(faults, || path("addresses"), "a list of addresses").or(empty);
        let Some(First(first)) = first else { return };
        let field = || path("addresses[0]");
        if first.is_missing() {
            return fault(faults, field(), format!("is missing; write an {family} address"));
        }
        let Some(address) = parse::address(first, faults, field) else { return };
        if Family::of(address) != family {
            return fault(
                faults,
                field(),
                format!("{address} is not {family}; make it agree with addressType"),
            );
        }
        let conditions = raw.conditions.take(faults, || path("conditions"), "an object").unwrap_or_default();
        let mut flag = |value: Loose<bool>, name: &str, default: bool| {
            value.take(faults, || path(&format!("conditions.{name}")), "true or false").unwrap_or(default)
        };
        let ready = flag(conditions.ready, "ready", true);
        let serving = flag(conditions.serving, "serving", true);
        let terminating = flag(conditions.terminating, "terminating", false);
        let node = raw.node.take(faults, || path("nodeName"), "a node name");
        let node = node.map_or(NO_NAME, |node| self.intern(node));
        let hints = raw.hints.take(faults, || path("hints"), "an object").unwrap_or_default();
        let first_hint = u32::try_from(self.hints.len()).unwrap_or(u32::MAX);
        let zone_hints = self.hints(hints.zones, faults, || path("hints.forZones"));
        let node_hints = self.hints(hints.nodes, faults, || path("hints.forNodes"));
        self.endpoints.push(SliceEndpoint {
            address,
            ready,
            serving,
            terminating,
            node,
            first_hint,
            zone_hints,
            node_hints,
        });
    }

    /// Appends the names of one list of hints and returns how many were added.
    fn hints(
        &mut self,
        list: Loose<Vec<Loose<RawHint<'de>>>>,
        faults: &mut Faults,
        field: impl Fn() -> String,
    ) -> u16 {
        let mut count = 0_u16;
        for (index, raw) in
            list.take(faults, &field, "a list of hints").unwrap_or_default().into_iter().enumerate()
        {
            let path = || format!("{}[{index}]", field());
            let name = raw.take(faults, path, "an object with a name").unwrap_or_default().name;
            let Some(name) = name.take(faults, path, "text") else { continue };
            if count < u16::MAX {
                let id = self.intern(name);
                self.hints.push(id);
                count += 1;
            }
        }
        count
    }

    fn intern(&mut self, name: Text<'de>) -> u32 {
        if let Some(id) = self.ids.get(&name) {
            return *id;
        }
        let id = u32::try_from(self.names.len()).unwrap_or(NO_NAME);
        self.names.push((&*name).into());
        self.ids.insert(name, id);
        id
    }
}

#[cfg(test)]
mod tests;
