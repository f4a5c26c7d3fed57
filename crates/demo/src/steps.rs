//! The steps of the demo.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use portolan_testkit::{Family, Namespace, Pod, Probe, ProbeResult, Traffic, TrafficPlan, World, eventually};

use super::Finding;
use super::changes::{self, Change, Observed};
use super::cluster::{API_SERVER, Cluster};
use super::objects::{AUDIT, CART, DNS, EMPTY, Frontend, Service, WEB};
use super::requests::{self, Path, Row, Sender};
use super::screen::{Backend, Screen};

use Frontend::{ClusterIp, LoadBalancerIp, NodePort};

/// Duration of the traffic before, during and after the time without a proxy.
const TRAFFIC_PHASE: Duration = Duration::from_millis(500);
/// Most of these is reserve for a busy machine.
const GONE_WITHIN: Duration = Duration::from_secs(60);
const PROGRAMMED_WITHIN: Duration = Duration::from_secs(60);

/// Starts everything, including the proxy.
pub(super) fn set_up(screen: &mut Screen) -> anyhow::Result<Cluster> {
    screen.heading("A cluster in network namespaces")?;
    let world = screen.step("a node with 4 pods, a second one with 2, and a client outside", || {
        let (world, took) = timed(World::new)?;
        Ok((world, found(format!("up in {}", milliseconds(took)))))
    })?;
    let mut cluster = screen.step("portolan serve: an API server on the node", || {
        Ok((Cluster::start(world)?, found(format!("http://{API_SERVER}"))))
    })?;
    let ([first, second, third], spare) = (&cluster.pods.backends, &cluster.pods.spare);
    screen.columns([first, second, spare, third].map(Backend::of).into());
    screen.step("portolan proxy: the node agent, in mode nftables", || {
        let took = cluster.start_proxy()?;
        Ok(((), found(format!("in sync with the kernel after {}", milliseconds(took)))))
    })?;
    Ok(cluster)
}

/// Runs the steps between set-up and take-down.
pub(super) fn show(screen: &mut Screen, cluster: &mut Cluster) -> anyhow::Result<()> {
    screen.heading("Services, and requests to them")?;
    create_web(screen, cluster)?;
    create_others(screen, cluster)?;
    send_requests(screen, cluster)?;
    kinds(screen, cluster)?;
    screen.heading("Without the proxy")?;
    crash(screen, cluster)?;
    screen.heading("Changes, while connections are made all the time")?;
    endpoint_leaves(screen, cluster)?;
    endpoint_joins(screen, cluster)?;
    list_table(screen, cluster)
}

/// Stops everything and checks that nothing is left.
pub(super) fn take_down(screen: &mut Screen, cluster: Cluster) -> anyhow::Result<()> {
    screen.heading("The end")?;
    let ids = namespace_ids(&cluster.world);
    gone(screen, &ids, cluster)
}

/// Drops everything that runs, and checks that nothing is left in its namespaces.
pub(super) fn gone<T>(screen: &mut Screen, namespaces: &[u64], everything: T) -> anyhow::Result<()> {
    screen.step("processes and namespaces are gone", || {
        let ((), took) = timed(|| -> anyhow::Result<()> {
            drop(everything);
            eventually(GONE_WITHIN, "the end of every namespace", || !is_any_thread_in(namespaces))?;
            Ok(())
        })?;
        Ok(((), found(format!("after {}", milliseconds(took)))))
    })
}

/// Returns the IDs of all network namespaces.
pub(super) fn namespace_ids(world: &World) -> Vec<u64> {
    let pods = world.pods().iter().chain(world.remote_pods()).chain([world.client()]);
    let nodes = [world.node(), world.remote_node()].map(|node| node.namespace().id());
    pods.map(|pod| pod.namespace().id()).chain(nodes).collect()
}

fn create_web(screen: &mut Screen, cluster: &mut Cluster) -> anyhow::Result<()> {
    screen.step("Service web is created, with endpoints on both nodes", || {
        let backends = cluster.pods.backends.clone();
        cluster.endpoints(&WEB, &backends)?;
        cluster.pause();
        let since = cluster.apply(WEB.object())?;
        let path = Path::new(Sender::Pod, &WEB, ClusterIp);
        let took = changes::until_reached(path.sender.namespace(cluster), path.probe(), since)?;
        Ok(((), found(format!("first connection {} after the API's answer", milliseconds(took)))))
    })
}

fn create_others(screen: &mut Screen, cluster: &mut Cluster) -> anyhow::Result<()> {
    screen.step("Services dns (UDP), cart, audit and empty are created", || {
        let backends = cluster.pods.backends.clone();
        for service in [&DNS, &CART, &AUDIT] {
            cluster.endpoints(service, &backends)?;
            cluster.apply(service.object())?;
        }
        cluster.apply(EMPTY.object())?;
        let ((), took) = timed(|| cluster.until_programmed())?;
        Ok(((), found(format!("all programmed {} later (minSyncPeriod: 1 s)", milliseconds(took)))))
    })
}

fn send_requests(screen: &mut Screen, cluster: &Cluster) -> anyhow::Result<()> {
    let path = Path::new;
    let (pod, remote_pod, node) = (Sender::Pod, Sender::RemotePod, Sender::Node);
    let (client, backend) = (Sender::Client, Sender::Backend);
    let groups: [(&str, Vec<Path>); 5] = [
        (
            "TCP from a pod, a pod of the other node, the node: cluster IP",
            [pod, remote_pod, node].map(|sender| path(sender, &WEB, ClusterIp)).to_vec(),
        ),
        (
            "TCP from outside and from a pod: node port, load balancer",
            vec![
                path(client, &WEB, NodePort),
                path(client, &WEB, LoadBalancerIp),
                path(pod, &WEB, LoadBalancerIp),
            ],
        ),
        ("TCP from a backend to its own Service (hairpin)", vec![path(backend, &WEB, ClusterIp)]),
        (
            "UDP: cluster IP, node port, load balancer",
            vec![
                path(pod, &DNS, ClusterIp),
                path(client, &DNS, NodePort),
                path(client, &DNS, LoadBalancerIp),
            ],
        ),
        (
            "IPv6, TCP and UDP",
            vec![
                path(pod, &WEB, ClusterIp).ipv6(),
                path(client, &WEB, LoadBalancerIp).ipv6(),
                path(remote_pod, &DNS, ClusterIp).ipv6(),
            ],
        ),
    ];
    for (title, paths) in groups {
        let rows = screen.step(title, || {
            let rows = requests::send(cluster, &paths, &cluster.pods.backends)?;
            let finding = summary(&rows);
            Ok((rows, finding))
        })?;
        screen.rows(rows);
    }
    Ok(())
}

fn kinds(screen: &mut Screen, cluster: &Cluster) -> anyhow::Result<()> {
    let backends = &cluster.pods.backends;
    let rows = screen.step("cart has session affinity: each client keeps its backend", || {
        let senders =
            [(Sender::Pod, ClusterIp), (Sender::RemotePod, ClusterIp), (Sender::Client, LoadBalancerIp)];
        let paths = senders.map(|(sender, frontend)| Path::new(sender, &CART, frontend));
        let mut rows = requests::send(cluster, &paths, backends)?;
        let scattered = rows.iter_mut().filter(|row| row.backends() != 1);
        scattered.for_each(|row| row.fault(&format!("{} backends, not one", row.backends())));
        let Finding { result, faults } = summary(&rows);
        Ok((rows, Finding { result: format!("{result} for each client"), faults }))
    })?;
    screen.rows(rows);
    let rows = screen.step("audit has externalTrafficPolicy Local: its pods see the client", || {
        let paths = [NodePort, LoadBalancerIp].map(|frontend| Path::new(Sender::Client, &AUDIT, frontend));
        let rows = requests::send(cluster, &paths, backends)?;
        let finding = summary(&rows);
        Ok((rows, finding))
    })?;
    screen.rows(rows);
    screen.step("empty has no endpoints: connections are refused at once", || Ok(((), refusals(cluster)?)))
}

fn refusals(cluster: &Cluster) -> anyhow::Result<Finding> {
    let (mut faults, mut slowest) = (Vec::new(), Duration::ZERO);
    let senders = [(Sender::Pod, ClusterIp), (Sender::Node, ClusterIp), (Sender::Client, LoadBalancerIp)];
    for (sender, frontend) in senders {
        let path = Path::new(sender, &EMPTY, frontend);
        let namespace = path.sender.namespace(cluster);
        let result = namespace.probe(path.probe())?;
        if result != ProbeResult::Refused {
            faults.push(format!("{sender:?} to {}: {result:?}", path.destination()));
            continue;
        }
        match namespace.run(|| refused(path.destination()))? {
            Ok(took) => slowest = slowest.max(took),
            Err(fault) => faults.push(format!("{sender:?} to {}: {fault}", path.destination())),
        }
    }
    Ok(Finding { result: format!("connect() returns after {} at most", milliseconds(slowest)), faults })
}

/// Returns how long a blocking `connect()` takes to be refused.
fn refused(to: SocketAddr) -> Result<Duration, String> {
    let started = Instant::now();
    let outcome = TcpStream::connect(to);
    let took = started.elapsed();
    match outcome {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(took),
        outcome => Err(format!("{outcome:?}")),
    }
}

/// Kills the proxy under load and restarts it.
fn crash(screen: &mut Screen, cluster: &mut Cluster) -> anyhow::Result<()> {
    cluster.pause();
    let commits = cluster.commits()?;
    let plan = TrafficPlan {
        tcp: Some(WEB.at(LoadBalancerIp, Family::Ipv4)),
        udp: Some(DNS.at(LoadBalancerIp, Family::Ipv4)),
        ..TrafficPlan::default()
    };
    let traffic = Traffic::start(cluster.world.client().namespace(), plan)?;
    screen.step("killed (SIGKILL) under TCP and UDP traffic: new connections", || {
        thread::sleep(TRAFFIC_PHASE);
        cluster.kill_proxy()?;
        let rows =
            requests::send(cluster, &[Path::new(Sender::Pod, &WEB, ClusterIp)], &cluster.pods.backends)?;
        thread::sleep(TRAFFIC_PHASE);
        Ok(((), summary(&rows)))
    })?;
    screen.step("started again: it finds everything as it should be", || {
        let took = cluster.start_proxy()?;
        cluster.pause();
        let more = cluster.commits()?.wrapping_sub(commits);
        let result = format!("{more} commits, in sync after {}", milliseconds(took));
        let faults = if more == 0 { vec![] } else { vec!["the kernel was written to".to_owned()] };
        Ok(((), Finding { result, faults }))
    })?;
    screen.step("the traffic of all that time", || {
        let report = traffic.stop()?;
        let requests = report.connections_ok + report.stream_lines + report.udp_sent;
        let lost = report.connections_failed + report.streams_broken + report.udp_lost + report.udp_moved;
        let faults = if report.is_lossless() { vec![] } else { vec![report.to_string()] };
        Ok(((), Finding { result: format!("{requests} requests, {lost} failed"), faults }))
    })
}

fn endpoint_leaves(screen: &mut Screen, cluster: &mut Cluster) -> anyhow::Result<()> {
    let [first, second, third] = cluster.pods.backends.clone();
    let title = format!("endpoint {} leaves its slices", second.namespace().name());
    screen.step(&title, || {
        let gone = second.address(Family::Ipv4);
        let observed = observed(cluster, gone, &[first, third], changes::until_avoided)?;
        Ok(((), observed.finding("every connection avoids it")))
    })
}

fn endpoint_joins(screen: &mut Screen, cluster: &mut Cluster) -> anyhow::Result<()> {
    let [first, _, third] = cluster.pods.backends.clone();
    let spare = cluster.pods.spare.clone();
    let title = format!("endpoint {} joins", spare.namespace().name());
    let now = [first, third, spare.clone()];
    screen.step(&title, || {
        let new = spare.address(Family::Ipv4);
        let observed = observed(cluster, new, &now, changes::until_used)?;
        Ok(((), observed.finding("its first connection")))
    })?;
    let rows = screen.step("TCP from outside and from a pod, after both", || {
        let paths =
            [Path::new(Sender::Client, &WEB, LoadBalancerIp), Path::new(Sender::Pod, &WEB, ClusterIp)];
        let mut rows = requests::send(cluster, &paths, &now)?;
        let finding = summary(&rows);
        for row in &mut rows {
            row.to.push_str(" *");
        }
        Ok((rows, finding))
    })?;
    screen.rows(rows);
    Ok(())
}

/// Changes the endpoints of `web` while connections are made continuously.
fn observed(
    cluster: &mut Cluster,
    backend: IpAddr,
    pods: &[Pod],
    until: fn(&Namespace, Probe, IpAddr, Change<'_>) -> anyhow::Result<Observed>,
) -> anyhow::Result<Observed> {
    cluster.pause();
    let path = Path::new(Sender::Pod, &WEB, ClusterIp);
    let namespace = path.sender.namespace(cluster).clone();
    until(&namespace, path.probe(), backend, &mut || cluster.endpoints(&WEB, pods))
}

fn list_table(screen: &mut Screen, cluster: &Cluster) -> anyhow::Result<()> {
    let list = ["list", "table", "ip", "portolan"];
    let Ok(listing) = cluster.world.node().namespace().output("nft", &list) else {
        return Ok(screen.line(&"  --   nft is not there to list the table (package nftables); passed over")?);
    };
    screen.step("nft list table ip portolan", || {
        let count = |what: &str| listing.lines().filter(|line| line.trim_start().starts_with(what)).count();
        let (chains, maps, sets) = (count("chain "), count("map "), count("set "));
        let result = format!("{} lines: {chains} chains, {maps} maps, {sets} sets", listing.lines().count());
        let named = listing.contains("default/web");
        let faults = if named { vec![] } else { vec!["it does not name default/web".to_owned()] };
        Ok(((), Finding { result, faults }))
    })
}

impl Observed {
    fn finding(self, what: &str) -> Finding {
        let (delay, connections) = (milliseconds(self.delay), self.connections);
        let failed = self.failures.len();
        let result = format!("{what} after {delay} ({connections} made, {failed} failed)");
        Finding { result, faults: self.failures }
    }
}

impl Backend {
    fn of(pod: &Pod) -> Self {
        Self { name: pod.namespace().name().to_owned(), addresses: pod.addresses().both() }
    }
}

impl Cluster {
    /// Waits until every Service works in both families.
    fn until_programmed(&self) -> anyhow::Result<()> {
        let since = Instant::now();
        let namespace = self.pods.sender.namespace();
        let services: [&'static Service; 3] = [&DNS, &CART, &AUDIT];
        for path in services.map(|service| Path::new(Sender::Pod, service, ClusterIp)) {
            changes::until_reached(namespace, path.probe(), since)?;
            changes::until_reached(namespace, path.ipv6().probe(), since)?;
        }
        // Without a wait for both families, the commit of the other one could come later, among those that `crash` counts.
        let path = Path::new(Sender::Pod, &EMPTY, LoadBalancerIp);
        for probe in [path, path.ipv6()].map(|path| path.probe().expecting_silence()) {
            eventually(PROGRAMMED_WITHIN, "a refusal by a Service without endpoints", || {
                namespace.probe(probe).is_ok_and(|result| result == ProbeResult::Refused)
            })
            .context("Service empty")?;
        }
        Ok(())
    }
}

/// Returns true if a thread of any process is in one of these network namespaces.
fn is_any_thread_in(ids: &[u64]) -> bool {
    let names: Vec<String> = ids.iter().map(|id| format!("net:[{id}]")).collect();
    let entries = |path: &std::path::Path| fs::read_dir(path).into_iter().flatten().flatten();
    let threads = entries("/proc".as_ref()).flat_map(|process| {
        let tasks: Vec<_> = entries(&process.path().join("task")).collect();
        tasks
    });
    // Unreadable entries belong to other users, who are not in these namespaces.
    threads
        .filter_map(|thread| fs::read_link(thread.path().join("ns/net")).ok())
        .any(|link| names.iter().any(|name| link.as_os_str() == name.as_str()))
}

fn summary(rows: &[Row]) -> Finding {
    let (sent, answered): (u32, u32) =
        rows.iter().fold((0, 0), |(sent, answered), row| (sent + row.sent, answered + row.answered()));
    let backends = rows.iter().map(Row::backends).max().unwrap_or_default();
    let plural = if backends == 1 { "backend" } else { "backends" };
    let faults = rows.iter().flat_map(|row| row.faults.iter().cloned()).collect();
    Finding { result: format!("{answered} of {sent} answered, by {backends} {plural}"), faults }
}

pub(super) fn found(result: String) -> Finding {
    Finding { result, faults: Vec::new() }
}

pub(super) fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, Duration), E> {
    let started = Instant::now();
    work().map(|value| (value, started.elapsed()))
}

pub(super) fn milliseconds(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}
