//! The steps of `portolan demo up`.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use portolan_testkit::{Family, Pod, World};

use super::host::{self, Host};
use super::traffic::{self, Connections};
use crate::Finding;
use crate::screen::Screen;
use crate::steps::{found, gone, milliseconds, timed};

/// Starts everything.
pub(super) fn set_up(screen: &mut Screen) -> anyhow::Result<Host> {
    screen.heading("A host without Kubernetes, in network namespaces")?;
    let world = screen.step("the host, 3 backends, one of them in another network, a client", || {
        let (world, took) = timed(World::new)?;
        Ok((world, found(format!("up in {}", milliseconds(took)))))
    })?;
    screen.step("portolan up, with the Service web in a folder of manifests", || {
        let started = Instant::now();
        let host = Host::start(world)?;
        let first = traffic::until_reached(host.client(), host::LOAD_BALANCER);
        first.with_context(|| format!("log of portolan up:\n{}", host.log()))?;
        let result =
            format!("first answer at {} after {}", host::LOAD_BALANCER, milliseconds(started.elapsed()));
        Ok((host, found(result)))
    })
}

/// Runs the steps between set-up and take-down.
pub(super) fn show(screen: &mut Screen, host: &mut Host) -> anyhow::Result<()> {
    let [first, second, third] = host.backends().clone();
    let all = [&first, &second, &third];
    screen.heading("Its addresses and its name")?;
    screen.step("every backend passes its first health check", || {
        let outside = |all: &Connections| all.backends.len() == 3;
        let (_, took) =
            timed(|| traffic::until(host.client(), host::LOAD_BALANCER, "three backends", outside))?;
        Ok(((), found(format!("after another {}", milliseconds(took)))))
    })?;
    requests(screen, host, &all)?;

    screen.heading("Health checks, every second, while connections are made all the time")?;
    let name = second.namespace().name().to_owned();
    screen.step(&format!("the program of {name} ends: two checks fail"), || {
        host.end(&second)?;
        let ended = Instant::now();
        let quiet = |all: &Connections| all.refused > 0 && all.answered_in_a_row >= traffic::CONNECTIONS;
        let seen = traffic::until(host.client(), host::LOAD_BALANCER, "no failure any more", quiet)?;
        let took = seen.last_failure.map_or(Duration::ZERO, |last| last.duration_since(ended));
        let result = format!("taken out after {} ({} connections refused)", seconds(took), seen.refused);
        Ok(((), Finding { result, faults: seen.faults.into_iter().collect() }))
    })?;
    requests(screen, host, &[&first, &third])?;
    screen.step(&format!("the program of {name} starts again: two checks pass"), || {
        host.start_again(&second)?;
        let started = Instant::now();
        let back = second.address(Family::Ipv4);
        let used = |all: &Connections| all.backends.contains(&back);
        let seen = traffic::until(host.client(), host::LOAD_BALANCER, "its first connection", used)?;
        let (took, lost) = (seconds(started.elapsed()), seen.made - seen.answered);
        let result = format!("its first connection after {took} ({} made, {lost} failed)", seen.made);
        let faults = if lost == 0 { vec![] } else { vec![format!("{seen:?}")] };
        Ok(((), Finding { result, faults }))
    })?;
    screen.heading("Without portolan")?;
    screen.step("SIGTERM: the rules stay in the kernel", || {
        host.stop()?;
        let addresses = all.map(|backend| backend.address(Family::Ipv4));
        let seen = traffic::send(host.client(), &[host::LOAD_BALANCER], &addresses)?;
        Ok(((), summary(seen)))
    })
}

/// Stops everything and checks that nothing is left.
pub(super) fn take_down(screen: &mut Screen, host: Host) -> anyhow::Result<()> {
    screen.heading("The end")?;
    let ids = host.namespace_ids();
    gone(screen, &ids, host)
}

/// Connects to the addresses and, on the host, to the name. These backends must answer.
fn requests(screen: &mut Screen, host: &Host, backends: &[&Pod]) -> anyhow::Result<()> {
    let expected: Vec<IpAddr> = backends.iter().map(|backend| backend.address(Family::Ipv4)).collect();
    screen.step("from the client: load-balancer address and node port", || {
        let to: [SocketAddr; 2] = [host::LOAD_BALANCER, host.node_port()];
        Ok(((), summary(traffic::send(host.client(), &to, &expected)?)))
    })?;
    screen.step("on the host: the name web.default.svc.cluster.local", || {
        let cluster_ip = traffic::resolve(host.namespace(), host.dns_server(), host::NAME)?;
        let seen =
            traffic::send(host.namespace(), &[SocketAddr::new(cluster_ip.into(), host::PORT)], &expected)?;
        let Finding { result, faults } = summary(seen);
        Ok(((), Finding { result: format!("{cluster_ip}: {result}"), faults }))
    })
}

fn summary(seen: Connections) -> Finding {
    let result = format!("{} of {} answered, by {} backends", seen.answered, seen.made, seen.backends.len());
    Finding { result, faults: seen.faults.into_iter().collect() }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
