//! Random worlds, applied event by event.

use proptest::prelude::*;

use super::*;
use crate::ExternalPolicy;
use crate::selection::{Choice, Explained};
use crate::world::{Edit, Ranges, Rng, World, random_edit};

/// Applies changes as a data plane does, and checks that each starts where the last one ended.
fn replay(mirror: &mut Table, changes: Vec<Change>) {
    for Change { name, family, old, new } in changes {
        assert_ne!(old, new, "{name} changed into itself");
        let key = (family, (*name).clone());
        assert_eq!(mirror.get(&key), old.as_deref(), "what {name} was before");
        match new {
            Some(new) => mirror.insert(key, (*new).clone()),
            None => mirror.remove(&key),
        };
    }
}

/// Addresses and ports that Services of the random worlds claim and that the guard may refuse.
const CONTESTED: [&str; 4] = ["10.96.0.2:80", "10.1.0.1:80", "10.1.0.2:443", "[2001:db8:1::1]:53"];

fn socket(text: &str) -> std::net::SocketAddr {
    text.parse().expect("a socket")
}

/// Returns the comparable state of a Catalog.
fn portrait(catalog: &Catalog) -> impl PartialEq + std::fmt::Debug {
    let mut conflicts: Vec<String> = catalog.conflicts().map(|c| format!("{}: {}", c.key, c.fault)).collect();
    conflicts.sort();
    let mut udp: Vec<UdpService> =
        Family::BOTH.into_iter().flat_map(|family| catalog.udp_services(family)).collect();
    udp.sort_by(|a, b| (&a.name, &a.frontends).cmp(&(&b.name, &b.frontends)));
    let counts = Family::BOTH.map(|family| catalog.no_local_endpoints(family));
    let cidrs = Family::BOTH.map(|family| catalog.service_cidrs(family));
    let guarded = (catalog.guarded_addresses().clone(), catalog.api_server_addresses());
    let left_out: Vec<Vec<LeftOut>> =
        CONTESTED.map(|at| catalog.left_out_at(socket(at), Protocol::Tcp)).into();
    (table(catalog), conflicts, udp, catalog.health_checks(), counts, cidrs, guarded, left_out)
}

/// A world, its zone and its CIDR, and the Catalog and mirror that follow it event by event.
struct Follower {
    rng: Rng,
    ranges: Ranges,
    world: World,
    zone: &'static str,
    cidrs: Option<&'static str>,
    api_server: ApiServer,
    /// This node's addresses and pod CIDRs.
    node: (Vec<&'static str>, Vec<&'static str>),
    guard: (AddressGuard, Vec<IpNet>),
    catalog: Catalog,
    mirror: Table,
}

impl Follower {
    fn new(seed: u64) -> Self {
        let (mut rng, ranges) = (Rng::new(seed), Ranges::example());
        let world = World::random(&mut rng, 6, &ranges);
        let mut edits = world.edits();
        // The events may arrive in any order.
        for last in (1..edits.len()).rev() {
            edits.swap(last, rng.below(last + 1));
        }
        let (catalog, mirror) = (Catalog::new("n1"), Table::new());
        let mut follower = Self {
            rng,
            ranges,
            world,
            zone: "",
            cidrs: None,
            api_server: ApiServer::default(),
            node: Default::default(),
            guard: Default::default(),
            catalog,
            mirror,
        };
        for edit in edits {
            follower.tell(&edit);
        }
        follower
    }

    fn tell(&mut self, edit: &Edit) {
        self.catalog.apply(edit.event().expect("worlds decode"));
    }

    fn step(&mut self) {
        match self.rng.below(15) {
            0 => self.relist(Kind::Service),
            1 => self.relist(Kind::EndpointSlice),
            2 => {
                self.zone = ["", "z1", "z2"][self.rng.below(3)];
                self.catalog.apply(self.node());
            }
            3 => {
                self.cidrs = [None, Some("10.96.0.0/12"), Some("2001:db8:1::/64")][self.rng.below(3)];
                self.catalog.apply(match self.cidrs {
                    Some(text) => cidr("main", &[text]),
                    None => Event::ServiceCidrDeleted(ObjectKey::new("", "main")),
                });
            }
            4 | 5 => self.take(),
            6 => {
                let sockets = ["10.1.0.1:80", "10.1.0.2:443", "[2001:db8:1::1]:53"]
                    .map(|s| s.parse().expect("a socket"));
                self.api_server = ApiServer {
                    sockets: self.rng.some(&sockets, 2).into_iter().copied().collect(),
                    addresses: self
                        .rng
                        .some(&[[10, 1, 0, 2].into(), [10, 2, 0, 1].into()], 1)
                        .into_iter()
                        .copied()
                        .collect(),
                    node_ports: self.rng.some(&[(Family::Ipv4, 30001)], 1).into_iter().copied().collect(),
                };
                self.catalog.set_api_server(self.api_server.clone());
            }
            7 => {
                let addresses = ["10.1.0.1", "10.2.0.1", "2001:db8:1::1"];
                self.node = (
                    self.rng.some(&addresses, 2).into_iter().copied().collect(),
                    self.rng.some(&["10.1.0.0/31", "10.2.0.0/24"], 1).into_iter().copied().collect(),
                );
                self.catalog.apply(self.node());
            }
            8 => self.change_guard(),
            _ => {
                let edit = random_edit(&mut self.rng, &mut self.world, &self.ranges);
                self.tell(&edit);
            }
        }
    }

    /// Returns the current state of this node.
    fn node(&self) -> Event {
        let (addresses, pod_cidrs) = &self.node;
        let list: Vec<_> =
            addresses.iter().map(|address| json!({ "type": "InternalIP", "address": address })).collect();
        let object = json!({
            "metadata": { "name": "n1", "labels": { "topology.kubernetes.io/zone": self.zone } },
            "spec": { "podCIDRs": pod_cidrs }, "status": { "addresses": list },
        });
        Event::Node(decode_node(object.to_string().as_bytes()).expect("decodes"))
    }

    fn change_guard(&mut self) {
        let mut policy = AddressGuard::default();
        for owner in AddressOwner::ALL {
            policy.set(owner, GuardAction::ALL[self.rng.below(3)]);
        }
        let nets = |texts: Vec<&&str>| texts.into_iter().map(|text| text.parse().expect("a CIDR")).collect();
        policy.allowed = nets(self.rng.some(&["10.1.0.2/32", "10.96.0.0/30"], 1));
        self.guard = (policy, nets(self.rng.some(&["10.1.0.0/16", "10.0.0.0/8"], 1)));
        self.catalog.set_address_guard(self.guard.0.clone(), self.guard.1.clone());
    }

    /// Lists a kind after a lost connection, during which objects were deleted.
    fn relist(&mut self, kind: Kind) {
        let objects = if kind == Kind::Service { &mut self.world.services } else { &mut self.world.slices };
        objects.retain(|_, _| self.rng.chance(80));
        let list: Vec<Edit> = objects.values().map(|value| Edit::Upsert(kind, value.clone())).collect();
        self.catalog.apply(Event::ListStart(kind));
        let before =
            if kind == Kind::Service { self.catalog.service_count() } else { self.catalog.slice_count() };
        for edit in &list {
            self.tell(edit);
        }
        let after =
            if kind == Kind::Service { self.catalog.service_count() } else { self.catalog.slice_count() };
        assert!(after >= before, "a list removes nothing before its end");
        self.catalog.apply(Event::ListEnd(kind));
    }

    fn take(&mut self) {
        let changes = self.catalog.take_changes();
        for change in changes.changes.iter().filter(|change| change.name.protocol == Protocol::Udp) {
            assert!(*changes.conntrack_check.get(change.family), "{} changed", change.name);
        }
        replay(&mut self.mirror, changes.changes);
        assert_eq!(self.mirror, table(&self.catalog), "the changes lead to the table");
    }

    /// Returns a new Catalog of the same world.
    fn rebuilt(&self) -> Catalog {
        let mut catalog = Catalog::new("n1");
        catalog.apply(self.node());
        catalog.set_api_server(self.api_server.clone());
        catalog.set_address_guard(self.guard.0.clone(), self.guard.1.clone());
        if let Some(text) = self.cidrs {
            catalog.apply(cidr("main", &[text]));
        }
        for edit in self.world.edits() {
            catalog.apply(edit.event().expect("worlds decode"));
        }
        catalog.take_changes();
        catalog
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn incremental_equals_from_scratch(seed in any::<u64>(), steps in 0_usize..60) {
        let mut follower = Follower::new(seed);
        for _ in 0..steps {
            follower.step();
        }
        follower.take();
        let scratch = follower.rebuilt();
        prop_assert_eq!(portrait(&follower.catalog), portrait(&scratch));
    }

    #[test]
    fn repeated_events_change_nothing(seed in any::<u64>(), steps in 0_usize..20) {
        let mut follower = Follower::new(seed);
        for _ in 0..steps {
            follower.step();
        }
        follower.take();
        for edit in follower.world.edits() {
            let applied = follower.catalog.apply(edit.event().expect("worlds decode"));
            prop_assert!(!applied.changed, "{:?}", edit);
        }
        prop_assert!(!follower.catalog.has_pending());
        prop_assert!(follower.catalog.take_changes().is_empty());
    }

    #[test]
    fn no_records_remain_after_all_objects_are_deleted(seed in any::<u64>(), steps in 0_usize..20) {
        let mut follower = Follower::new(seed);
        for _ in 0..steps {
            follower.step();
        }
        for kind in [Kind::Service, Kind::EndpointSlice] {
            follower.catalog.apply(Event::ListStart(kind));
            follower.catalog.apply(Event::ListEnd(kind));
        }
        follower.world.services.clear();
        follower.world.slices.clear();
        follower.take();
        let catalog = &follower.catalog;
        prop_assert_eq!((catalog.services.len(), catalog.slices.len()), (0, 0));
        prop_assert_eq!(catalog.claims.len(), 0);
        prop_assert!(catalog.review.is_empty());
        prop_assert!(catalog.health_checks.is_empty() && catalog.pending.triggers.is_empty());
        prop_assert_eq!(Family::BOTH.map(|f| catalog.no_local_endpoints(f)), [NoLocalEndpoints::default(); 2]);
    }

    #[test]
    fn explained_endpoints_are_those_of_the_table(seed in any::<u64>(), zone in 0_usize..3) {
        let mut follower = Follower::new(seed);
        follower.catalog.apply(node(["", "z1", "z2"][zone]));
        let catalog = &follower.catalog;
        for family in Family::BOTH {
            for (name, forwarding) in catalog.forwardings(family) {
                let explained = catalog.explain(&name, family).expect("is in the table");
                prop_assert_eq!((&explained.name, &explained.forwarding), (&name, &forwarding));
                let used = |list: fn(&Explained<SliceOf>) -> Choice| {
                    let used = explained.selection.endpoints.iter().filter(move |e| list(e).is_used());
                    used.map(|e| e.endpoint.backend).collect::<Vec<_>>()
                };
                prop_assert_eq!(&used(|e| e.cluster)[..], &forwarding.cluster[..]);
                prop_assert_eq!(&used(|e| e.local)[..], &forwarding.local[..]);
            }
        }
    }

    /// Checks that every frontend has one owner and that the invariants on which data planes rely hold.
    #[test]
    fn frontends_have_one_owner_and_the_invariants_hold(seed in any::<u64>()) {
        let follower = Follower::new(seed);
        for family in Family::BOTH {
            let mut seen = std::collections::HashSet::new();
            for (name, forwarding) in follower.catalog.forwardings(family) {
                for frontend in &forwarding.frontends {
                    let (claim, _) = claim::Claim::of(*frontend, family, name.protocol);
                    prop_assert!(seen.insert(claim), "{} has {:?} twice", name, frontend);
                }
                let accessible = forwarding.externally_accessible();
                let no_cluster = forwarding.cluster.is_empty();
                prop_assert!(!(accessible && forwarding.has_endpoints && no_cluster), "{}: {:?}", name, forwarding);
                let uses_local = forwarding.internal_policy == crate::InternalPolicy::Local
                    || forwarding.external_policy == ExternalPolicy::Local;
                prop_assert!(uses_local || forwarding.local.is_empty());
            }
        }
    }
}
