//! Creates, changes and deletes random Services, with writes that fail. The allocations must equal the Services'
//! claims.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
struct Step {
    service: u8,
    wish: Wish,
    end: End,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The plan is discarded.
    Planned,
    /// The store refuses the write.
    Failed,
    Written,
}

#[derive(Debug, Clone)]
enum Wish {
    Delete,
    Put(ServiceSpec),
}

fn spec() -> impl Strategy<Value = ServiceSpec> {
    let policy = prop_oneof![Just(SingleStack), Just(PreferDualStack), Just(RequireDualStack)];
    let service_type = prop_oneof![
        Just(ServiceType::ClusterIp),
        Just(ServiceType::NodePort),
        Just(ServiceType::LoadBalancer),
        Just(ServiceType::ExternalName)
    ];
    let ports = prop::collection::vec((0..3_u8, prop_oneof![3 => Just(0), 1 => 30_000..30_019_u16]), 0..3);
    let ip = prop_oneof![3 => Just(None), 1 => (0..16_u8).prop_map(Some)];
    (policy, service_type, ports, ip, any::<bool>()).prop_map(|(policy, service_type, ports, ip, local)| {
        let ports = ports.into_iter().zip(80..).map(|((name, node_port), port)| ServicePort {
            name: format!("{name}{port}"),
            port,
            node_port,
            ..ServicePort::default()
        });
        let is_external = service_type == ServiceType::ExternalName;
        ServiceSpec {
            service_type,
            ports: ports.collect(),
            ip_family_policy: (!is_external).then_some(policy),
            cluster_ip: ip.filter(|_| !is_external).map(|ip| format!("10.0.0.{ip}")).unwrap_or_default(),
            has_selector: true,
            is_external_local: local,
            ..ServiceSpec::default()
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let end = prop_oneof![1 => Just(End::Planned), 1 => Just(End::Failed), 4 => Just(End::Written)];
    let wish = prop_oneof![1 => Just(Wish::Delete), 3 => spec().prop_map(Wish::Put)];
    (0..8_u8, wish, end).prop_map(|(service, wish, end)| Step { service, wish, end })
}

fn carry_out(cluster: &mut Cluster, live: &mut BTreeMap<u8, ServiceSpec>, step: &Step) {
    let old = live.get(&step.service).cloned();
    let plan = match (&step.wish, &old) {
        (Wish::Delete, None) => return,
        (Wish::Delete, Some(old)) => {
            if matches!(step.end, End::Written) {
                cluster.allocations.release(&cluster.delete(old));
                live.remove(&step.service);
            }
            return;
        }
        (Wish::Put(spec), None) => cluster.create(spec.clone()),
        (Wish::Put(spec), Some(old)) => cluster.update(spec.clone(), old),
    };
    let Ok(plan) = plan else { return };
    match step.end {
        End::Planned => {}
        End::Failed => {
            cluster.allocations.take(&plan.take).unwrap();
            cluster.allocations.release(&plan.take);
        }
        End::Written => {
            cluster.carry_out(&plan);
            live.insert(step.service, plan.spec);
        }
    }
}

proptest! {
    #[test]
    fn allocations_equal_the_claims_of_all_services(steps in prop::collection::vec(step(), 1..60)) {
        let mut cluster = Cluster::dual();
        let mut live = BTreeMap::new();
        for step in &steps {
            carry_out(&mut cluster, &mut live, step);
            let mut expected = Cluster::dual().allocations;
            for spec in live.values() {
                prop_assert_eq!(expected.take(&spec.claims()), Ok(()), "held twice: {:?}", live);
                prop_assert_eq!(spec.cluster_ips.len(), spec.ip_families.len());
            }
            prop_assert_eq!(&cluster.allocations, &expected);
        }
    }
}
