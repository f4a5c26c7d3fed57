//! Completes a Service that a client wrote and determines which addresses and node ports must be taken and released
//! for it.
//!
//! Making a plan changes nothing, so a dry run discards the plan. A plan is carried out in one transaction of the
//! store: it writes the Service, creates an `IPAddress` for each address taken and deletes that of each address
//! released. In memory, [`Allocations::take`] precedes the transaction. If the transaction succeeds, the plan's
//! released claims are released; if it fails, the taken ones are.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use thiserror::Error;

use crate::{
    error::{CLUSTER_IPS, FieldError, HEALTH_CHECK, Refusal},
    families::decide,
    family::{Families, parse_address},
    node_port::NodePorts,
    pools::{AddressError, AddressPools},
    random::Random,
    service::{Claims, Protocol, ServiceKey, ServiceSpec},
    update::{carry_over, normalise_create},
};

#[cfg(test)]
mod tests;

/// All allocations of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocations {
    /// Cluster IPs.
    pub addresses: AddressPools,
    /// Node ports and health-check node ports.
    pub ports: NodePorts,
}

/// Plans the creation, update and deletion of Services.
#[derive(Clone, Copy)]
pub struct Planner<'a> {
    /// The families of the configured ranges.
    pub families: Families,
    /// The current allocations.
    pub allocations: &'a Allocations,
    /// The holders of the allocated addresses and node ports.
    pub holders: &'a dyn Holders,
    /// True if a Service is planned even if some of its addresses or ports cannot be allocated. It is then planned
    /// without them, and there are no errors. This is for servers that test clients with objects that an API server
    /// would not store.
    pub is_lenient: bool,
}

/// Looks up the holder of an address or a node port, as recorded in the store's `IPAddress` objects.
pub trait Holders {
    /// Returns the holder of the address.
    fn of_address(&self, address: IpAddr) -> Holder;
    /// Returns the holder of the node port.
    fn of_port(&self, port: u16) -> Holder;
}

/// The holder of an address or a node port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// It has no holder, or the holder is not known.
    Unknown,
    /// A Service.
    Service(ServiceKey),
    /// An object other than a Service, such as a Gateway.
    Other,
}

/// A store without records of holders. Every Service may then release the addresses that it lists.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHolders;

/// A write of a Service and its allocations. A plan is applied as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The complete spec.
    pub spec: ServiceSpec,
    /// Claims that the Service gets.
    pub take: Claims,
    /// Claims that the Service has and keeps.
    pub keep: Claims,
    /// Claims that the Service loses. They are released only after the write has succeeded.
    pub release: Claims,
}

impl Plan {
    /// Returns the plan that leaves a stored Service with this spec as it is.
    pub fn unchanged(spec: ServiceSpec) -> Self {
        let keep = spec.claims();
        Self { spec, take: Claims::default(), keep, release: Claims::default() }
    }
}

/// The plan is stale: another request took one of its claims. Make a new plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Conflict {
    /// The address is taken, or its range was removed.
    #[error("{0} is no longer free")]
    Address(IpAddr),
    /// The node port is taken.
    #[error("node port {0} is no longer free")]
    Port(u16),
}

impl Holders for NoHolders {
    fn of_address(&self, _: IpAddr) -> Holder {
        Holder::Unknown
    }

    fn of_port(&self, _: u16) -> Holder {
        Holder::Unknown
    }
}

impl Allocations {
    /// Takes all claims. On a conflict, takes none and returns the first conflict.
    pub fn take(&mut self, claims: &Claims) -> Result<(), Conflict> {
        let mut taken = Claims::default();
        let result = self.take_each(claims, &mut taken);
        if result.is_err() {
            self.release(&taken);
        }
        result
    }

    /// Frees the claims. Claims that are free already are ignored.
    pub fn release(&mut self, claims: &Claims) {
        for address in &claims.addresses {
            self.addresses.release(*address);
        }
        for port in &claims.ports {
            self.ports.release(*port);
        }
    }

    fn take_each(&mut self, claims: &Claims, taken: &mut Claims) -> Result<(), Conflict> {
        for address in &claims.addresses {
            self.addresses.check(*address).map_err(|_| Conflict::Address(*address))?;
            self.addresses.take(*address);
            taken.addresses.push(*address);
        }
        for port in &claims.ports {
            if !self.ports.take(*port) {
                return Err(Conflict::Port(*port));
            }
            taken.ports.push(*port);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Planner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Planner").field("families", &self.families).finish_non_exhaustive()
    }
}

impl Planner<'_> {
    /// Plans a new Service. `owner` is `None` if another Service has its name already: what is recorded for this name
    /// belongs to that one.
    pub fn create(
        self,
        owner: Option<&ServiceKey>,
        mut spec: ServiceSpec,
        random: &mut dyn Random,
    ) -> Result<Plan, Vec<FieldError>> {
        normalise_create(&mut spec);
        self.settle(decide(&mut spec, None, self.families))?;
        Draft::new(self, owner, &spec, Claims::default(), random).finish(spec, None)
    }

    /// Plans the update of a Service. `new` is the spec that the client wrote.
    pub fn update(
        self,
        owner: &ServiceKey,
        mut new: ServiceSpec,
        old: &ServiceSpec,
        random: &mut dyn Random,
    ) -> Result<Plan, Vec<FieldError>> {
        carry_over(&mut new, old);
        self.settle(decide(&mut new, Some(old), self.families))?;
        let both_need = new.needs_health_check_port() && old.needs_health_check_port();
        if both_need && old.health_check_node_port != 0 {
            let number = new.health_check_node_port;
            if number != old.health_check_node_port {
                self.settle(Err(vec![FieldError::new(HEALTH_CHECK, &number, Refusal::Immutable)]))?;
            }
        }
        Draft::new(self, Some(owner), &new, old.claims(), random).finish(new, Some(old))
    }

    /// Returns the claims that the deletion of a Service releases. Claims that another object holds are left out.
    pub fn delete(self, owner: &ServiceKey, old: &ServiceSpec) -> Claims {
        self.held_by(Some(owner), &old.claims())
    }

    fn settle(self, result: Result<(), Vec<FieldError>>) -> Result<(), Vec<FieldError>> {
        result.or_else(|errors| if self.is_lenient { Ok(()) } else { Err(errors) })
    }

    fn held_by(self, owner: Option<&ServiceKey>, claims: &Claims) -> Claims {
        let is_own = |holder: Holder| match holder {
            Holder::Unknown => true,
            Holder::Service(holder) => owner == Some(&holder),
            Holder::Other => false,
        };
        let addresses = claims.addresses.iter().copied();
        let ports = claims.ports.iter().copied();
        Claims {
            addresses: addresses.filter(|address| is_own(self.holders.of_address(*address))).collect(),
            ports: ports.filter(|port| is_own(self.holders.of_port(*port))).collect(),
            ..Claims::default()
        }
    }
}

/// A plan under construction. A Service may list very many ports, so every port is found by a hash lookup, never by a
/// search.
struct Draft<'a> {
    planner: Planner<'a>,
    owner: Option<&'a ServiceKey>,
    random: &'a mut dyn Random,
    held: Claims,
    /// The cluster's node ports, with those taken that the Service held and those that this plan takes.
    ports: NodePorts,
    held_ports: HashSet<u16>,
    /// Node ports of the Service under this plan.
    own_ports: HashSet<u16>,
    take: Claims,
    keep: Claims,
    errors: Vec<FieldError>,
}

impl<'a> Draft<'a> {
    fn new(
        planner: Planner<'a>,
        owner: Option<&'a ServiceKey>,
        spec: &ServiceSpec,
        held: Claims,
        random: &'a mut dyn Random,
    ) -> Self {
        // Most Services have no node ports, so the set is not cloned for them.
        let mut ports = if spec.may_have_node_ports() {
            planner.allocations.ports.clone()
        } else {
            NodePorts::new(planner.allocations.ports.range())
        };
        for port in &held.ports {
            ports.take(*port);
        }
        Self {
            planner,
            owner,
            random,
            ports,
            held_ports: held.ports.iter().copied().collect(),
            held,
            own_ports: HashSet::new(),
            take: Claims::default(),
            keep: Claims::default(),
            errors: Vec::new(),
        }
    }

    fn finish(mut self, mut spec: ServiceSpec, old: Option<&ServiceSpec>) -> Result<Plan, Vec<FieldError>> {
        if spec.needs_address() {
            self.addresses(&mut spec);
        }
        if spec.may_have_node_ports() {
            self.explicit_ports(&spec);
        }
        if spec.needs_node_ports() {
            self.missing_ports(&mut spec, old.is_none());
        }
        if spec.needs_health_check_port() {
            self.health_check_port(&mut spec);
        }
        self.planner.settle(if self.errors.is_empty() { Ok(()) } else { Err(self.errors) })?;
        let mut release = self.held;
        release.addresses.retain(|address| !self.keep.addresses.contains(address));
        release.ports.retain(|port| !self.own_ports.contains(port));
        let release = self.planner.held_by(self.owner, &release);
        Ok(Plan { spec, take: self.take, keep: self.keep, release })
    }

    fn addresses(&mut self, spec: &mut ServiceSpec) {
        for address in spec.cluster_ips.iter().filter_map(|text| parse_address(text)) {
            if let Err(reason) = self.claim_address(address) {
                self.errors.push(FieldError::new(CLUSTER_IPS, &spec.cluster_ips.join(","), reason));
            }
        }
        for family in spec.ip_families.iter().skip(spec.cluster_ips.len()) {
            match self.planner.allocations.addresses.find(*family, self.random) {
                Ok(address) => {
                    self.take.addresses.push(address);
                    spec.cluster_ips.push(address.to_string());
                }
                Err(error) => self.errors.push(FieldError::new(CLUSTER_IPS, &"", error.into())),
            }
        }
        if let Some(first) = spec.cluster_ips.first() {
            spec.cluster_ip.clone_from(first);
        }
    }

    fn claim_address(&mut self, address: IpAddr) -> Result<(), Refusal> {
        if self.held.addresses.contains(&address) {
            self.keep.addresses.push(address);
            return Ok(());
        }
        let holder = self.planner.holders.of_address(address);
        if self.is_own(&holder) {
            // Any client may write an IPAddress that names the Service, for an address outside of all ranges, too.
            self.planner.allocations.addresses.check_range(address)?;
            self.keep.addresses.push(address);
            return Ok(());
        }
        match (self.planner.allocations.addresses.check(address), holder) {
            // A duplicate in the list is refused earlier, except by a lenient planner.
            (Ok(()), _) if self.take.addresses.contains(&address) => {}
            (Ok(()), _) => self.take.addresses.push(address),
            (Err(AddressError::Allocated { .. }), Holder::Service(holder)) => {
                return Err(Refusal::HeldBy(holder));
            }
            (Err(error), _) => return Err(error.into()),
        }
        Ok(())
    }

    fn is_own(&self, holder: &Holder) -> bool {
        matches!(holder, Holder::Service(holder) if self.owner == Some(holder))
    }

    /// Claims the explicitly requested numbers. This runs first, so that no such number is chosen for another port.
    /// Two protocols may share a number.
    fn explicit_ports(&mut self, spec: &ServiceSpec) {
        let mut seen = HashSet::new();
        for (index, port) in spec.ports.iter().enumerate().filter(|(_, port)| port.node_port != 0) {
            let is_new = seen.insert((port.protocol, port.node_port));
            let result = if is_new { self.claim_port(port.node_port) } else { Err(Refusal::PortTwice) };
            if let Err(reason) = result {
                let field = format!("spec.ports[{index}].nodePort");
                self.errors.push(FieldError::new(field, &port.node_port, reason));
            }
        }
    }

    /// Chooses the missing node ports. In a new Service, entries with the same `port`, such as DNS over TCP and UDP,
    /// share one.
    fn missing_ports(&mut self, spec: &mut ServiceSpec, is_new: bool) {
        let mut numbers: HashMap<u16, u16> = HashMap::new();
        let mut used: HashSet<(Protocol, u16)> = HashSet::new();
        for port in spec.ports.iter().filter(|port| is_new && port.node_port != 0) {
            numbers.entry(port.port).or_insert(port.node_port);
            used.insert((port.protocol, port.node_port));
        }
        for (index, port) in spec.ports.iter_mut().enumerate().filter(|(_, port)| port.node_port == 0) {
            let shared = numbers.get(&port.port).filter(|number| !used.contains(&(port.protocol, **number)));
            let number = shared.copied().or_else(|| self.next_port(&format!("spec.ports[{index}].nodePort")));
            // No port is left for the other entries either.
            let Some(number) = number else { return };
            port.node_port = number;
            if is_new {
                numbers.entry(port.port).or_insert(number);
                used.insert((port.protocol, number));
            }
        }
    }

    fn health_check_port(&mut self, spec: &mut ServiceSpec) {
        let number = spec.health_check_node_port;
        if number == 0 {
            spec.health_check_node_port = self.next_port(HEALTH_CHECK).unwrap_or(0);
            return;
        }
        let is_node_port = self.own_ports.contains(&number);
        let result = if is_node_port { Err(Refusal::PortAllocated) } else { self.claim_port(number) };
        if let Err(reason) = result {
            self.errors.push(FieldError::new(HEALTH_CHECK, &number, reason));
        }
    }

    fn claim_port(&mut self, number: u16) -> Result<(), Refusal> {
        if self.own_ports.contains(&number) {
            return Ok(());
        }
        let holder = self.planner.holders.of_port(number);
        let is_own = self.is_own(&holder);
        if self.held_ports.contains(&number) || is_own {
            self.keep.ports.push(number);
        } else if !self.ports.range().contains(number) {
            return Err(Refusal::PortNotInRange(self.ports.range()));
        } else if self.ports.take(number) {
            self.take.ports.push(number);
        } else if let Holder::Service(holder) = holder {
            return Err(Refusal::HeldBy(holder));
        } else {
            return Err(Refusal::PortAllocated);
        }
        self.own_ports.insert(number);
        Ok(())
    }

    fn next_port(&mut self, field: &str) -> Option<u16> {
        let Some(number) = self.ports.find(self.random) else {
            let full = Refusal::PortsFull(self.ports.range());
            self.errors.push(FieldError::new(field, &"", full));
            return None;
        };
        self.ports.take(number);
        self.take.ports.push(number);
        self.own_ports.insert(number);
        Some(number)
    }
}
