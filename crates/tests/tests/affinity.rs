//! Session affinity: clients stay with their endpoint while it exists and the timeout has not passed.
#![allow(clippy::unwrap_used, reason = "a test program: its helpers fail the test, too")]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use portolan_model::Protocol;
use portolan_testkit::eventually_some;
use portolan_tests::{At, Attempt, Cluster, Mode, ProbedAttempt, attempts_of, in_every_mode, service};

in_every_mode! {
    a_client_stays_with_its_endpoint_at_every_frontend,
    it_outlives_changes_of_other_endpoints_but_not_of_its_own,
    policies_share_it,
    it_outlives_a_restart_that_writes_nothing,
    without_it_everybody_reaches_everything_again,
    it_ends_when_its_time_is_over_and_not_before,
}

/// Longer than any test.
const HOUR: u32 = 3600;

/// The endpoint of each client. Clients are identified by address, Service ports by protocol, and frontends only if
/// each has its own bindings.
type Bindings = BTreeMap<(IpAddr, Protocol, Option<SocketAddr>), SocketAddr>;

fn everybody(cluster: &Cluster, at: &[At]) -> Vec<Attempt> {
    let mut attempts: Vec<_> = cluster.senders().iter().flat_map(|sender| attempts_of(sender, at)).collect();
    attempts.retain(|attempt| cluster.mode().carries(attempt.protocol));
    attempts
}

/// Returns the endpoint that a packet reached. Every packet reaches one, but a remote pod that is assigned to itself gets no
/// response.
fn reached(outcome: &ProbedAttempt) -> Option<SocketAddr> {
    let ProbedAttempt { attempt, result, .. } = outcome;
    let backend = result.backend();
    assert!(backend.is_some() || attempt.sender.name.starts_with('r'), "{attempt}: {result:?}");
    backend
}

/// Sends packets from every sender to each of these places, twice. No client may reach two endpoints.
fn bindings(cluster: &mut Cluster, at: &[At]) -> Bindings {
    let attempts = everybody(cluster, at);
    let mut bindings = Bindings::new();
    for outcome in [cluster.attempt(&attempts), cluster.attempt(&attempts)].concat() {
        let Some(backend) = reached(&outcome) else { continue };
        let attempt = outcome.attempt;
        let frontend = (cluster.mode() == Mode::Ipvs).then_some(attempt.destination);
        let client = (attempt.sender.address(attempt.family()), attempt.protocol, frontend);
        let before = bindings.insert(client, backend);
        assert!(before.is_none_or(|before| before == backend), "{attempt}: {backend} after {before:?}");
    }
    bindings
}

fn moved(before: &Bindings, after: &Bindings) -> Vec<SocketAddr> {
    let both = before.iter().filter_map(|(client, backend)| Some((backend, after.get(client)?)));
    both.filter(|(before, after)| before != after).map(|(before, _)| *before).collect()
}

fn a_client_stays_with_its_endpoint_at_every_frontend(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let frontends = [At::ClusterIp, At::ExternalIp, At::LoadBalancerIp, At::NodePort];
    cluster.put(&service().external().affinity(HOUR), "Rl1 Rl2 Rl3 Rr2");
    let bound = bindings(&mut cluster, &frontends);
    let mut drawn: Vec<_> = bound.values().collect();
    drawn.sort_unstable();
    drawn.dedup();
    // Most modes draw endpoints at random, which leaves one of them out once in some thousand tests.
    assert!(drawn.len() >= 7, "clients are spread over four endpoints of each family: {bound:?}");
    let attempts = everybody(&cluster, &frontends);
    for verdict in cluster.judge(&attempts) {
        assert!(verdict.codes().any(|code| code == "session-affinity"), "{verdict:?}");
    }
    let faults = cluster.faults(&attempts);
    assert!(faults.is_empty(), "{faults:#?}");
}

fn it_outlives_changes_of_other_endpoints_but_not_of_its_own(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let at = &[At::ClusterIp];
    cluster.put(&service().affinity(HOUR), "Rl1 Rl2 Rl3");
    let first = bindings(&mut cluster, at);
    cluster.put_endpoints("Rl1 Rl2 Rl3 Rl4");
    assert_eq!(moved(&first, &bindings(&mut cluster, at)), [], "one endpoint came");
    cluster.put_endpoints("Rl2 Rl3 Rl4");
    let second = bindings(&mut cluster, at);
    let lost = moved(&first, &second);
    assert!(
        !lost.is_empty() && lost.iter().all(|backend| is_pod(&cluster, 0, *backend)),
        "l1 went: {lost:?}"
    );
    assert_eq!(first.values().filter(|backend| is_pod(&cluster, 0, **backend)).count(), lost.len());
    cluster.put_endpoints("Rl1 Rl2 Rl3 Rl4");
    assert_eq!(moved(&second, &bindings(&mut cluster, at)), [], "l1 came back, too late");
    cluster.put_endpoints("Rl1 Tl2 Rl3 Rl4");
    let third = bindings(&mut cluster, at);
    assert!(moved(&second, &third).iter().all(|backend| is_pod(&cluster, 1, *backend)), "l2 is terminating");
    cluster.put_endpoints("");
    cluster.expect(at, "pod reject, client reject", "all went");
    cluster.put_endpoints("Rr1");
    cluster.expect(at, "pod r1, client r1*", "another one came");
}

fn policies_share_it(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.put(&service().external_local().affinity(HOUR), "Rl1 Rl2 Rr2");
    let local = bindings(&mut cluster, &[At::ExternalIp]);
    let after = bindings(&mut cluster, &[At::ClusterIp]);
    assert_eq!(moved(&local, &after), [], "what external traffic got is good for internal traffic");
    cluster.put(&service().external().affinity(HOUR), "Rl1 Rl2 Rr2");
    let after = bindings(&mut cluster, &[At::ExternalIp, At::NodePort]);
    assert_eq!(moved(&local, &after), [], "the policy changed");
}

fn it_outlives_a_restart_that_writes_nothing(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let at = &[At::ClusterIp, At::NodePort];
    cluster.put(&service().external().affinity(HOUR), "Rl1 Rl2 Rl3");
    cluster.put_endpoints("Rl2 Rl3 Rl4");
    let before = bindings(&mut cluster, at);
    let commits = cluster.restart();
    for commit in [commits.ipv4, commits.ipv6] {
        assert_eq!((commit.elements, commit.objects, commit.bytes), (0, 0, 0), "{commit:?}");
    }
    if mode.relays() {
        // The bindings of the relay end with its process.
        return;
    }
    assert_eq!(moved(&before, &bindings(&mut cluster, at)), []);
    cluster.put_endpoints("Rl1 Rl2 Rl3 Rl4");
    assert_eq!(moved(&before, &bindings(&mut cluster, at)), [], "an endpoint came after the restart");
}

fn without_it_everybody_reaches_everything_again(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let at = &[At::ClusterIp];
    cluster.put(&service().affinity(HOUR), "Rl1 Rl2 Rl3");
    bindings(&mut cluster, at);
    cluster.put(&service(), "Rl1 Rl2 Rl3");
    // Each protocol and family must see all three; see `Cluster::faults`.
    cluster.expect(at, "pod l1 l2 l3", "affinity was turned off");
    cluster.collect();
    cluster.put(&service().affinity(HOUR), "Rl1 Rl2 Rl3");
    bindings(&mut cluster, at);
}

/// Clients get their bindings at once, and are probed one after another then, each once: a probe renews the binding.
fn it_ends_when_its_time_is_over_and_not_before(mode: Mode) {
    if mode == Mode::Ipvs {
        // The timeout starts when the kernel has removed the connection's entry: minutes after its end.
        return;
    }
    let timeout = Duration::from_secs(2);
    let mut cluster = Cluster::new(mode);
    cluster.put(&service().affinity(2), "Rl1 Rl2 Rl3 Rl4");
    let clients = everybody(&cluster, &[At::ClusterIp]);
    let who = |attempt: &Attempt| (attempt.sender.address(attempt.family()), attempt.protocol);
    // No client has a binding before this.
    let bound = Instant::now();
    let outcomes = cluster.attempt(&clients);
    // No binding is used after this. Counted from here, the bindings of most clients are over when their turn comes, however
    // long all this took.
    let used = Instant::now();
    let before: BTreeMap<_, _> =
        outcomes.iter().filter_map(|outcome| Some((who(&outcome.attempt), reached(outcome)?))).collect();
    let pace = 3 * timeout / u32::try_from(clients.len()).unwrap();
    let mut clients = clients.into_iter().zip(1..);
    let mut next = clients.next();
    let last = eventually_some(Duration::from_secs(120), "a client moved on", || {
        let (attempt, _) = next.take_if(|(_, number)| used.elapsed() >= *number * pace)?;
        next = clients.next();
        let outcome = cluster.attempt(std::slice::from_ref(&attempt)).remove(0);
        let old = before.get(&who(&attempt))?;
        let moved = reached(&outcome).is_some_and(|new| new != *old);
        let after = bound.elapsed();
        assert!(!moved || after >= timeout, "{attempt} moved after {after:?}");
        moved.then_some(after)
    });
    assert!(last.is_ok(), "{last:?}");
}

fn is_pod(cluster: &Cluster, index: usize, backend: SocketAddr) -> bool {
    cluster.world().pods().get(index).is_some_and(|pod| pod.addresses().both().contains(&backend.ip()))
}
