//! The addresses and ports that a Service holds, and taking those it needs.

use std::net::IpAddr;

use serde_json::Value;

use super::{may_have_node_ports, needs_address, needs_health_check_port, needs_node_ports};
use crate::{
    allocate::{AllocationError, Allocator, Protocol},
    error::FieldError,
    json::{self, Object},
    kinds::network::parse_address,
};

/// Addresses and ports.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Claims {
    addresses: Vec<IpAddr>,
    ports: Vec<(Protocol, u16)>,
}

impl Claims {
    /// What the Service with this spec holds.
    pub(crate) fn of(spec: &Object) -> Self {
        let mut claims = Self::default();
        if needs_address(spec) {
            claims.addresses.extend(json::texts(spec, "clusterIPs").filter_map(parse_address));
        }
        if may_have_node_ports(spec) {
            let ports = json::list(spec, "ports").iter().filter_map(Value::as_object);
            claims.ports.extend(ports.filter_map(node_port));
        }
        if needs_health_check_port(spec) {
            claims.ports.extend(port_number(spec, "healthCheckNodePort").map(|port| (Protocol::Tcp, port)));
        }
        claims
    }

    /// Gives back everything here that is not in `kept`.
    pub(crate) fn release_except(&self, kept: &Self, allocator: &mut dyn Allocator, owner: &str) {
        for address in self.addresses.iter().filter(|address| !kept.addresses.contains(address)) {
            allocator.release_address(*address, owner);
        }
        for (protocol, port) in self.ports.iter().filter(|port| !kept.ports.contains(port)) {
            allocator.release_port(*protocol, *port, owner);
        }
    }
}

/// Takes what the Service needs beyond what it holds, and writes the numbers into `spec`. On error, and on a later
/// failure of the write, [`Claims::release_except`] of the new spec's claims undoes it. With `lenient`, values that
/// the allocator refuses stay in the object unclaimed.
pub(crate) fn allocate(
    spec: &mut Object,
    held: &Claims,
    allocator: &mut dyn Allocator,
    owner: &str,
    lenient: bool,
) -> Result<(), Vec<FieldError>> {
    let mut taker = Taker { held, taken: Claims::default(), allocator, owner, lenient, errors: Vec::new() };
    if needs_address(spec) {
        taker.addresses(spec);
    }
    taker.ports(spec);
    if needs_health_check_port(spec) {
        taker.health_check_port(spec);
    }
    if taker.errors.is_empty() {
        return Ok(());
    }
    let Taker { taken, allocator, errors, .. } = taker;
    taken.release_except(held, allocator, owner);
    Err(errors)
}

struct Taker<'a> {
    held: &'a Claims,
    taken: Claims,
    allocator: &'a mut dyn Allocator,
    owner: &'a str,
    lenient: bool,
    errors: Vec<FieldError>,
}

impl Taker<'_> {
    fn addresses(&mut self, spec: &mut Object) {
        let mut texts: Vec<String> = json::texts(spec, "clusterIPs").map(str::to_owned).collect();
        for (index, text) in texts.iter().enumerate() {
            if let Some(address) =
                parse_address(text).filter(|address| !self.held.addresses.contains(address))
            {
                let result = self.allocator.claim_address(address, self.owner);
                let taken = self.note(result, || FieldSpot {
                    field: format!("spec.clusterIPs[{index}]"),
                    value: text.as_str().into(),
                });
                self.taken.addresses.extend(taken.map(|()| address));
            }
        }
        let families: Vec<String> = json::texts(spec, "ipFamilies").map(str::to_owned).collect();
        for family in families.iter().skip(texts.len()) {
            let result = self.allocator.next_address(family == "IPv6", self.owner);
            let spot = || FieldSpot { field: "spec.clusterIPs".to_owned(), value: Value::Null };
            if let Some(address) = self.note_always(result, spot) {
                self.taken.addresses.push(address);
                texts.push(address.to_string());
            }
        }
        if let Some(first) = texts.first() {
            // The lenient server leaves a client's own `clusterIP` as it is.
            json::default_text(spec, "clusterIP", first);
            spec.insert("clusterIPs".to_owned(), texts.into());
        }
    }

    /// Asked-for numbers first, so that no free one is chosen that a later port asks for.
    fn ports(&mut self, spec: &mut Object) {
        if may_have_node_ports(spec) {
            for (index, port) in json::list(spec, "ports").iter().filter_map(Value::as_object).enumerate() {
                if let Some((protocol, number)) = node_port(port) {
                    self.claim_port(protocol, number, &format!("spec.ports[{index}].nodePort"));
                }
            }
        }
        if !needs_node_ports(spec) {
            return;
        }
        for (index, port) in json::objects_mut(spec, "ports").enumerate() {
            let missing = json::integer(port, "nodePort").is_none();
            let protocol = Protocol::from_api(json::text(port, "protocol")).unwrap_or(Protocol::Tcp);
            if missing
                && let Some(number) = self.next_port(protocol, &format!("spec.ports[{index}].nodePort"))
            {
                port.insert("nodePort".to_owned(), number.into());
            }
        }
    }

    fn health_check_port(&mut self, spec: &mut Object) {
        let field = "spec.healthCheckNodePort";
        if let Some(number) = port_number(spec, "healthCheckNodePort") {
            self.claim_port(Protocol::Tcp, number, field);
        } else if let Some(number) = self.next_port(Protocol::Tcp, field) {
            spec.insert("healthCheckNodePort".to_owned(), number.into());
        }
    }

    fn claim_port(&mut self, protocol: Protocol, number: u16, field: &str) {
        if self.held.ports.contains(&(protocol, number)) {
            return;
        }
        let result = self.allocator.claim_port(protocol, number, self.owner);
        let taken = self.note(result, || FieldSpot { field: field.to_owned(), value: number.into() });
        self.taken.ports.extend(taken.map(|()| (protocol, number)));
    }

    fn next_port(&mut self, protocol: Protocol, field: &str) -> Option<u16> {
        let result = self.allocator.next_port(protocol, self.owner);
        let number =
            self.note_always(result, || FieldSpot { field: field.to_owned(), value: Value::Null })?;
        self.taken.ports.push((protocol, number));
        Some(number)
    }

    fn note<T>(&mut self, result: Result<T, AllocationError>, spot: impl FnOnce() -> FieldSpot) -> Option<T> {
        if self.lenient { result.ok() } else { self.note_always(result, spot) }
    }

    fn note_always<T>(
        &mut self,
        result: Result<T, AllocationError>,
        spot: impl FnOnce() -> FieldSpot,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let FieldSpot { field, value } = spot();
                self.errors.push(FieldError::allocation(field, value, &error));
                None
            }
        }
    }
}

struct FieldSpot {
    field: String,
    value: Value,
}

fn node_port(port: &Object) -> Option<(Protocol, u16)> {
    Some((Protocol::from_api(json::text(port, "protocol"))?, port_number(port, "nodePort")?))
}

fn port_number(map: &Object, key: &str) -> Option<u16> {
    json::integer(map, key).and_then(|number| u16::try_from(number).ok())
}
