//! The Services that come, change and go at random: of both families, with and without a node port, of both external traffic
//! policies, with any endpoints or none.

use std::net::{IpAddr, SocketAddr};

use fastrand::Rng;
use portolan_serve::Resource;
use portolan_testkit::{Family, Namespace, Pod, ProbeResult, Protocol};
use serde_json::Value;

use crate::Chaos;
use crate::common::{ends_as, objects, reaches};

/// The number of Services.
const SERVICES: u8 = 6;
/// The port of each cluster IP.
const PORT: u16 = 80;

/// What a Service has.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    /// Its endpoints, as indexes of all pods.
    endpoints: Vec<usize>,
    /// Its node port, and true if that has the external traffic policy Local.
    node_port: Option<(u16, bool)>,
}

impl Chaos {
    /// Creates, changes and deletes Services.
    pub(crate) fn edit(&mut self, times: u8) {
        for _ in 0..times {
            let number = self.rng.u8(..SERVICES);
            let name = format!("random-{number}");
            if self.rng.u8(..4) == 0 && self.services.remove(&number).is_some() {
                self.cluster.delete(Resource::Service, &name);
                self.cluster.delete(Resource::EndpointSlice, &format!("{name}-1"));
                continue;
            }
            let pods = self.cluster.all_pods();
            let drawn = Drawn::draw(&mut self.rng, number, pods.len());
            let endpoints: Vec<&Pod> = drawn.endpoints.iter().map(|&index| pods[index]).collect();
            self.cluster.service(service(number, &name, drawn.node_port), &endpoints);
            self.services.insert(number, drawn);
        }
    }

    /// Checks that every Service reaches exactly its endpoints: at its node port from outside, and at its cluster IP from outside, a
    /// pod or the node, by turns.
    pub(crate) fn services_are_right(&self) {
        let world = &self.cluster.world;
        let client = world.client().namespace();
        let places = [client, world.pods()[0].namespace(), self.node()];
        let place = places[self.number % places.len()];
        let local = 0..world.pods().len();
        for (number, Drawn { endpoints, node_port }) in &self.services {
            let ip = address(*number);
            self.reaches(place, SocketAddr::new(ip, PORT), endpoints, ProbeResult::Refused);
            let Some((port, is_local)) = *node_port else { continue };
            let to = SocketAddr::new(world.node().address(Family::of(ip)), port);
            let mut usable = endpoints.clone();
            usable.retain(|pod| !is_local || local.contains(pod));
            let has_others = usable.len() < endpoints.len();
            let without = if has_others { ProbeResult::TimedOut } else { ProbeResult::Refused };
            self.reaches(client, to, &usable, without);
        }
    }

    /// Checks that an address reaches exactly these pods, or that a probe has this result if there are none.
    fn reaches(&self, from: &Namespace, to: SocketAddr, pods: &[usize], without: ProbeResult) {
        let all = self.cluster.all_pods();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            if pods.is_empty() {
                ends_as(from, protocol, to, without);
            } else {
                let pods: Vec<&Pod> = pods.iter().map(|&index| all[index]).collect();
                reaches(from, protocol, to, &pods);
            }
        }
    }
}

impl Drawn {
    fn draw(rng: &mut Rng, number: u8, pods: usize) -> Self {
        let mut endpoints: Vec<usize> = (0..pods).collect();
        endpoints.retain(|_| rng.bool());
        let node_port = rng.bool().then(|| (30_100 + u16::from(number), rng.bool()));
        Self { endpoints, node_port }
    }
}

/// Returns a Service with ports of TCP, UDP and SCTP, and perhaps the same node port of each.
fn service(number: u8, name: &str, node_port: Option<(u16, bool)>) -> Value {
    let mut service = objects::with_sctp(objects::cluster_ip(name, &address(number).to_string()));
    if let Some((node_port, is_local)) = node_port {
        let spec = &mut service["spec"];
        spec["type"] = "NodePort".into();
        spec["externalTrafficPolicy"] = if is_local { "Local" } else { "Cluster" }.into();
        for port in spec["ports"].as_array_mut().unwrap() {
            port["nodePort"] = node_port.into();
        }
    }
    service
}

/// Returns the cluster IP of a Service: of IPv4 and IPv6 by turns.
fn address(number: u8) -> IpAddr {
    let last = 100 + number;
    if number.is_multiple_of(2) { format!("10.96.0.{last}") } else { format!("fd00:96::{last}") }
        .parse()
        .unwrap()
}
