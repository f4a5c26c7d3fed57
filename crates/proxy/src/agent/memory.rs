//! Checks whether the memory limit of this process is enough for the rules of the iptables mode.
//!
//! The programs that load rules are much larger than the agent. The kernel charges rules to the cgroup that creates
//! them. If the limit is too low, the kernel kills a program, or the whole container, at each load.

use portolan_iptables::{Memory, Size, Variant};
use portolan_model::Change;
use portolan_model::catalog::PerFamily;
use portolan_node::cgroup::{self, Room};
use portolan_node::sysctl::Host;

use super::{Agent, Plane};

/// Memory of the agent itself, in bytes: the base without Services, and the amount per endpoint with its share of
/// objects.
const AGENT: u64 = 12 << 20;
const AGENT_ENDPOINT: u64 = 180;

/// Estimate of the memory that the iptables mode needs.
#[derive(Debug, Default)]
pub(super) struct Need {
    sizes: PerFamily<Size>,
    /// The iptables variant of each family. `None` if the family does not use the iptables mode.
    variants: PerFamily<Option<Variant>>,
    /// The need that was last reported, in bytes.
    reported: Option<u64>,
}

impl Need {
    /// Updates the sizes for a changed Service port.
    pub(super) fn take(&mut self, change: &Change) {
        let of = |side: &Option<_>| side.as_deref().map(Size::of).unwrap_or_default();
        let size = self.sizes.get_mut(change.family);
        *size = size.plus(of(&change.new)).minus(of(&change.old));
    }

    /// Resets the sizes of all Services.
    pub(super) fn forget_services(&mut self) {
        self.sizes = PerFamily::default();
    }

    /// Returns the needed bytes: the rules of every family in the kernel, the larger one of the programs (they run
    /// one after the other) and the agent. `None` if no family uses the iptables mode.
    fn bytes(&self) -> Option<u64> {
        let of = |size: &Size, variant: &Option<Variant>| Some(size.memory((*variant)?));
        let families = [of(&self.sizes.ipv4, &self.variants.ipv4), of(&self.sizes.ipv6, &self.variants.ipv6)];
        let known = || families.iter().flatten();
        let program = known().map(|memory: &Memory| memory.program).max()?;
        let kernel = known().fold(0_u64, |sum, memory| sum.saturating_add(memory.kernel));
        let endpoints = self.sizes.ipv4.plus(self.sizes.ipv6).endpoints;
        let agent = AGENT.saturating_add(AGENT_ENDPOINT.saturating_mul(endpoints));
        Some(agent.saturating_add(kernel).saturating_add(program))
    }

    /// Returns the needed bytes and the available room if the need exceeds the room and has not been reported. A need
    /// is reported again when it has grown by a tenth.
    fn too_much_for(&mut self, room: impl FnOnce() -> Option<Room>) -> Option<(u64, Room)> {
        let Some(needed) = self.bytes() else {
            self.reported = None;
            return None;
        };
        if self.reported.is_some_and(|reported| needed < reported.saturating_add(reported / 10)) {
            return None;
        }
        let room = room().filter(|room| room.free() < needed)?;
        self.reported = Some(needed);
        Some((needed, room))
    }
}

impl Agent {
    /// Warns if the memory limit is too low for the rules that are loaded or about to be loaded.
    pub(super) fn review_memory(&mut self) {
        if let Some(running) = self.running.take() {
            self.report_memory(&running.planes);
            self.running = Some(running);
        }
    }

    /// Does the same for `planes`.
    pub(super) fn report_memory(&mut self, planes: &[Plane]) {
        for plane in planes {
            let loads_much = plane.blueprint.loads_each_endpoint();
            let claims = plane.claims.filter(|_| loads_much);
            let variant = claims.and_then(|claims| Variant::at(claims.place));
            *self.need.variants.get_mut(plane.family) = variant;
        }
        let Some((needed, room)) = self.need.too_much_for(|| cgroup::memory_room(&Host::default())) else {
            return;
        };
        let size = self.need.sizes.ipv4.plus(self.need.sizes.ipv6);
        let (needed_mib, limit_mib, others_mib) =
            (needed.div_ceil(1 << 20), room.limit >> 20, room.others >> 20);
        tracing::warn!(
            limit_mib,
            others_mib,
            needed_mib,
            frontends = size.frontends,
            endpoints = size.endpoints,
            "the memory limit of this process is too low to load the rules of the iptables mode: raise it \
             (resources.limits.memory, or MemoryMax of the unit), or choose another proxy mode"
        );
        self.notes.memory_limit_too_low(limit_mib, others_mib, needed_mib);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_model::{Backend, Family, Forwarding, Protocol, ServicePortName};

    use super::*;

    fn size(services: u64) -> Size {
        Size { frontends: services, endpoints: services * 10 }
    }

    fn need(services: u64, variant: Variant) -> Need {
        let mut need = Need::default();
        *need.sizes.get_mut(Family::Ipv4) = size(services);
        *need.variants.get_mut(Family::Ipv4) = Some(variant);
        need
    }

    /// Returns a cgroup limit in MiB that no other process uses.
    fn mebibytes(limit: u64) -> Room {
        Room { limit: limit << 20, others: 0 }
    }

    #[test]
    fn a_limit_that_is_too_low_is_reported_once_and_again_after_much_growth() {
        let mut need = need(12_000, Variant::Legacy);
        let limit = || Some(mebibytes(256));
        let (needed, _) = need.too_much_for(limit).expect("more than that");
        assert!((600 << 20..700 << 20).contains(&needed), "{needed}");
        assert_eq!(need.too_much_for(limit), None, "reported");
        *need.sizes.get_mut(Family::Ipv4) = size(13_000);
        assert_eq!(need.too_much_for(limit), None, "nearly the same");
        *need.sizes.get_mut(Family::Ipv4) = size(14_000);
        assert!(need.too_much_for(limit).is_some());
        *need.sizes.get_mut(Family::Ipv4) = size(20_000);
        assert_eq!(need.too_much_for(|| None), None, "no limit");
    }

    #[test]
    fn a_slowly_growing_need_is_reported_when_it_exceeds_the_limit() {
        let mut need = need(12_000, Variant::Legacy);
        let room = Some(mebibytes(650));
        let mut reported = Vec::new();
        for services in (12_000..13_000).step_by(10) {
            *need.sizes.get_mut(Family::Ipv4) = size(services);
            let fits = need.bytes().expect("a need") <= 650 << 20;
            reported.extend(need.too_much_for(|| room).map(|_| fits));
        }
        assert_eq!(reported, [false], "the first that does not fit");
    }

    #[test]
    fn memory_of_other_processes_reduces_the_room() {
        let mut need = need(12_000, Variant::Legacy);
        assert_eq!(need.too_much_for(|| Some(mebibytes(800))), None);
        let shared = || Some(Room { limit: 800 << 20, others: 300 << 20 });
        assert_eq!(need.too_much_for(shared).map(|(_, room)| room), shared());
    }

    #[test]
    fn a_low_limit_is_reported_again_after_another_mode() {
        let mut need = need(12_000, Variant::Legacy);
        let limit = || Some(mebibytes(256));
        assert!(need.too_much_for(limit).is_some());
        *need.variants.get_mut(Family::Ipv4) = None;
        assert_eq!(need.too_much_for(limit), None);
        *need.variants.get_mut(Family::Ipv4) = Some(Variant::Legacy);
        assert!(need.too_much_for(limit).is_some());
    }

    /// That the manifests set this limit is tested by the test program `deploy`.
    #[test]
    fn the_limit_of_the_manifests_holds_16_000_services_with_10_endpoints_in_both_families() {
        for variant in [Variant::Nft, Variant::Legacy] {
            let both = |services| {
                let mut need = need(services, variant);
                *need.sizes.get_mut(Family::Ipv6) = size(services);
                *need.variants.get_mut(Family::Ipv6) = Some(variant);
                need
            };
            let mib = |need: &Need| need.bytes().expect("a need").div_ceil(1 << 20);
            println!(
                "{variant:?}: {} MiB, in both families {}",
                mib(&need(16_000, variant)),
                mib(&both(16_000))
            );
            assert_eq!(need(16_000, variant).too_much_for(|| Some(mebibytes(1280))), None, "{variant:?}");
            assert_eq!(both(16_000).too_much_for(|| Some(mebibytes(1280))), None, "{variant:?}");
            assert!(both(20_000).too_much_for(|| Some(mebibytes(1280))).is_some(), "{variant:?}");
        }
    }

    #[test]
    fn other_modes_need_no_memory_and_changes_update_the_sizes() {
        let mut need = need(16_000, Variant::Nft);
        *need.variants.get_mut(Family::Ipv4) = None;
        assert_eq!(need.bytes(), None);
        need.forget_services();
        let backend = |last| Backend { address: [10, 0, 0, last].into(), port: 80, may_hairpin: false };
        let frontend = "10.96.0.1:80".parse().expect("an address");
        let forwarding = |backends: Vec<Backend>| {
            Some(Arc::new(Forwarding::plain(frontend, Protocol::Tcp, backends.into())))
        };
        let name = Arc::new(ServicePortName {
            namespace: "n".into(),
            service: "s".into(),
            port: "p".into(),
            protocol: Protocol::Tcp,
        });
        let change = |old, new| Change { name: name.clone(), family: Family::Ipv4, old, new };
        let (one, two) = (forwarding(vec![backend(1)]), forwarding(vec![backend(1), backend(2)]));
        need.take(&change(None, one.clone()));
        need.take(&change(one, two.clone()));
        assert_eq!(need.sizes.ipv4.endpoints, 2);
        need.take(&change(two, None));
        assert_eq!(need.sizes.ipv4, Size::default());
    }
}
