//! The task on paused time, with endpoints and an API server in memory.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Mutex;

use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::*;
use crate::annotations::HealthCheck;
use crate::client::NoLease;
use crate::probe::Failure;
use crate::testing::{patched, service, slice};

mod fights;

/// What the endpoints answer; one that is not listed passes.
#[derive(Debug, Clone, Default)]
struct Endpoints(Arc<Mutex<Answers>>);

#[derive(Debug, Default)]
struct Answers {
    outcomes: HashMap<SocketAddr, ProbeOutcome>,
    /// Times of the probes, and by which server.
    probes: Vec<(SocketAddr, Instant)>,
    /// Probes under way, and the most of them.
    under_way: (usize, usize),
    takes: Duration,
}

impl Probes for Endpoints {
    fn probe(
        &self,
        address: SocketAddr,
        _: &Arc<HealthCheck>,
    ) -> impl Future<Output = ProbeOutcome> + Send + 'static {
        let answers = Arc::clone(&self.0);
        async move {
            let takes = {
                let mut answers = answers.lock().unwrap();
                answers.probes.push((address, Instant::now()));
                answers.under_way.0 += 1;
                answers.under_way.1 = answers.under_way.1.max(answers.under_way.0);
                answers.takes
            };
            sleep(takes).await;
            let mut answers = answers.lock().unwrap();
            answers.under_way.0 -= 1;
            answers.outcomes.get(&address).cloned().unwrap_or(ProbeOutcome::Passed)
        }
    }
}

impl Endpoints {
    fn set(&self, address: &str, passes: bool) {
        let outcome = if passes { ProbeOutcome::Passed } else { ProbeOutcome::Failed(Failure::Refused) };
        self.0.lock().unwrap().outcomes.insert(address.parse().unwrap(), outcome);
    }

    fn probes(&self) -> usize {
        self.0.lock().unwrap().probes.len()
    }
}

/// Endpoints whose answers are known as soon as their probes begin.
struct Near(Endpoints);

impl Probes for Near {
    fn probe(
        &self,
        address: SocketAddr,
        check: &Arc<HealthCheck>,
    ) -> impl Future<Output = ProbeOutcome> + Send + 'static {
        self.0.probe(address, check)
    }

    fn begin(&mut self, probes: &[Wanted], files: usize) -> Vec<Begun> {
        assert!(probes.len() <= files);
        let mut answers = self.0.0.lock().unwrap();
        let mut answer = |address: SocketAddr| {
            answers.probes.push((address, Instant::now()));
            Begun::Ended(answers.outcomes.get(&address).cloned().unwrap_or(ProbeOutcome::Passed))
        };
        probes.iter().map(|wanted| answer(wanted.address)).collect()
    }
}

/// The API server. Every change goes to all probers.
#[derive(Debug, Clone, Default)]
struct Api(Arc<Mutex<Stored>>);

#[derive(Debug, Default)]
struct Stored {
    objects: BTreeMap<String, Value>,
    lease: Option<Value>,
    version: u64,
    writes: usize,
    /// Times at which writes began.
    attempts: Vec<Instant>,
    /// True if another client makes all endpoints ready after each write.
    is_contested: bool,
    /// Errors of the next writes.
    errors: Vec<WriteError>,
    watchers: Vec<mpsc::UnboundedSender<Input>>,
    events: Vec<Report>,
}

impl Stored {
    fn put(&mut self, mut slice: Value) -> String {
        self.version += 1;
        let version = self.version.to_string();
        slice["metadata"]["resourceVersion"] = version.clone().into();
        let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
        let seen = serde_json::from_value(slice.clone()).unwrap();
        self.objects.insert(name, slice);
        self.tell(&Input::EndpointSlice(Box::new(seen)));
        version
    }

    fn tell(&self, input: &Input) {
        // A prober that has ended does not receive.
        self.watchers.iter().for_each(|watcher| drop(watcher.send(input.clone())));
    }
}

impl Writer for Api {
    async fn write(&self, write: &SliceWrite) -> Result<String, WriteError> {
        self.0.lock().unwrap().attempts.push(Instant::now());
        sleep(Duration::from_millis(2)).await;
        let mut stored = self.0.lock().unwrap();
        if let Some(error) = stored.errors.pop() {
            return Err(error);
        }
        let name = write.key.split_once('/').unwrap().1;
        let Some(old) = stored.objects.get(name) else { return Err(WriteError::Gone) };
        if old["metadata"]["resourceVersion"] != *write.resource_version {
            return Err(WriteError::Conflict);
        }
        let new = patched(old, &write.json_patch());
        stored.writes += 1;
        let version = stored.put(new);
        if stored.is_contested {
            fights::overwrite(&mut stored);
        }
        Ok(version)
    }
}

impl Events for Api {
    fn event(&self, report: Report) {
        self.0.lock().unwrap().events.push(report);
    }
}

impl LeaseClient for Api {
    async fn read(&self) -> Result<Option<Held>, WriteError> {
        sleep(Duration::from_millis(2)).await;
        Ok(self.0.lock().unwrap().lease.as_ref().map(Held::of))
    }

    async fn write(&self, claim: &Claim) -> Result<String, WriteError> {
        sleep(Duration::from_millis(2)).await;
        let mut stored = self.0.lock().unwrap();
        let present = stored.lease.as_ref().map(|lease| Held::of(lease).resource_version);
        if present != claim.resource_version {
            return Err(WriteError::Conflict);
        }
        stored.version += 1;
        let version = stored.version.to_string();
        let mut lease = claim.lease("2026-03-01T10:00:00.000000Z");
        lease["metadata"]["resourceVersion"] = version.clone().into();
        stored.lease = Some(lease);
        Ok(version)
    }
}

impl Api {
    fn put(&self, slice: Value) {
        self.0.lock().unwrap().put(slice);
    }

    fn send(&self, input: &Input) {
        self.0.lock().unwrap().tell(input);
    }

    /// Returns address and readiness of each endpoint.
    fn ready(&self, name: &str) -> String {
        let stored = self.0.lock().unwrap();
        let endpoint = |endpoint: &Value| {
            let ready = endpoint["conditions"]["ready"].as_bool();
            let sign = ready.map_or('.', |ready| if ready { '+' } else { '-' });
            format!("{}{sign}", endpoint["addresses"][0].as_str().unwrap().rsplit('.').next().unwrap())
        };
        let endpoints = stored.objects[name]["endpoints"].as_array().unwrap();
        endpoints.iter().map(endpoint).collect::<Vec<_>>().join(" ")
    }

    fn writes(&self) -> usize {
        self.0.lock().unwrap().writes
    }

    fn reasons(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().events.iter().map(|event| event.reason).collect()
    }
}

/// A prober that runs.
struct Running {
    endpoints: Endpoints,
    metrics: Arc<Metrics>,
    task: tokio::task::JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

/// Starts a prober with empty lists. With a name it takes part in the election.
fn start(api: &Api, name: Option<&str>, options: ProberOptions) -> Running {
    let endpoints = Endpoints::default();
    start_with(api, name, options, endpoints.clone(), endpoints)
}

/// Starts a prober of these endpoints.
fn start_with(
    api: &Api,
    name: Option<&str>,
    options: ProberOptions,
    endpoints: Endpoints,
    client: impl Probes,
) -> Running {
    let (watcher, mut watch) = mpsc::unbounded_channel();
    let (inputs, received) = mpsc::channel(64);
    let mut lists = vec![Input::Services(vec![])];
    {
        let mut stored = api.0.lock().unwrap();
        let slices = stored.objects.values().map(|slice| serde_json::from_value(slice.clone()).unwrap());
        lists.push(Input::EndpointSlices(slices.collect()));
        stored.watchers.push(watcher);
    }
    tokio::spawn(async move {
        for list in lists {
            inputs.send(list).await.unwrap();
        }
        while let Some(input) = watch.recv().await {
            if inputs.send(input).await.is_err() {
                return;
            }
        }
    });
    let lease = name.map(|name| (api.clone(), name.to_owned()));
    let prober = Prober::new(options, client, api.clone(), api.clone(), lease);
    let metrics = prober.metrics();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(prober.run(received, async {
        // A sender that is dropped stops, too.
        let _ = stopped.await;
    }));
    Running { endpoints, metrics, task, stop }
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_falls_and_rises_is_written_and_reported() {
    let api = Api::default();
    let it = start(&api, None, ProberOptions::default());
    seconds(1).await;
    api.send(&service(&[("", "tcp")]));
    it.endpoints.set("10.0.0.2:80", false);
    it.endpoints.0.lock().unwrap().takes = Duration::from_millis(100);
    api.put(slice("a", &["10.0.0.1", "10.0.0.2"]));
    sleep(Duration::from_millis(20)).await;
    assert_eq!(api.ready("a"), "1- 2-", "no answer yet");
    seconds(2).await;
    assert_eq!(api.ready("a"), "1+ 2-");
    it.endpoints.set("10.0.0.1:80", false);
    it.endpoints.set("10.0.0.2:80", true);
    // Three failures in a row are within 15 s, two passes within 10 s.
    seconds(16).await;
    assert_eq!(api.ready("a"), "1- 2+");
    let writes = api.writes();
    seconds(600).await;
    assert_eq!(api.writes(), writes, "nothing changes");
    let mut reasons = api.reasons();
    reasons.sort_unstable();
    assert_eq!(reasons, ["EndpointHealthy", "EndpointHealthy", "EndpointUnhealthy", "EndpointUnhealthy"]);
    assert_eq!((it.metrics.passing.get(), it.metrics.failing.get()), (1, 1));
    assert_eq!((it.metrics.became_healthy.get(), it.metrics.became_unhealthy.get()), (2, 1));
    let probes = it.metrics.passed.get() + it.metrics.failed[1].get();
    assert_eq!(probes, u64::try_from(it.endpoints.probes()).unwrap());
    let second = it
        .metrics
        .endpoints()
        .into_iter()
        .find(|endpoint| endpoint.address.to_string() == "10.0.0.2:80")
        .unwrap();
    assert!(second.is_healthy() && second.failures.get() > 0 && second.probes.get() > second.failures.get());
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_known_at_once_are_written_at_once() {
    let api = Api::default();
    let endpoints = Endpoints::default();
    let it = start_with(&api, None, ProberOptions::default(), endpoints.clone(), Near(endpoints));
    api.send(&service(&[("", "tcp"), ("-interval", "1h")]));
    api.put(slice("few", &["10.0.1.1", "10.0.1.2"]));
    seconds(2).await;
    assert_eq!(api.ready("few"), "1+ 2+", "nothing else wakes the prober for an hour");
    it.endpoints.set("10.0.0.2:80", false);
    // More than begin together.
    let addresses: Vec<String> = (1..=200).map(|last| format!("10.0.0.{last}")).collect();
    api.put(slice("many", &addresses.iter().map(String::as_str).collect::<Vec<_>>()));
    seconds(2).await;
    assert_eq!(it.endpoints.probes(), 202);
    assert!(api.ready("many").starts_with("1+ 2- 3+"));
    assert_eq!((it.metrics.passing.get(), it.metrics.failing.get()), (201, 1));
    seconds(3600).await;
    assert_eq!(it.endpoints.probes(), 404);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_probed_before_both_lists() {
    let (inputs, received) = mpsc::channel(64);
    let (api, endpoints) = (Api::default(), Endpoints::default());
    let prober = Prober::<_, _, _, NoLease>::new(
        ProberOptions::default(),
        endpoints.clone(),
        api.clone(),
        api.clone(),
        None,
    );
    let task = tokio::spawn(prober.run(received, std::future::pending()));
    let Input::Service(service) = service(&[("", "tcp")]) else { panic!() };
    inputs.send(Input::Services(vec![*service])).await.unwrap();
    let one = serde_json::from_value(slice("a", &["10.0.0.1"])).unwrap();
    inputs.send(Input::EndpointSlice(Box::new(one))).await.unwrap();
    seconds(60).await;
    assert_eq!(endpoints.probes(), 0);
    let one = serde_json::from_value(slice("a", &["10.0.0.1"])).unwrap();
    inputs.send(Input::EndpointSlices(vec![one])).await.unwrap();
    seconds(60).await;
    assert!(endpoints.probes() >= 11);
    drop(inputs);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn conflicts_and_failures_are_tried_again_with_the_newest_slice() {
    let api = Api::default();
    let it = start(&api, None, ProberOptions::default());
    api.send(&service(&[("", "tcp")]));
    let failed = || WriteError::Failed("503".to_owned());
    api.0.lock().unwrap().errors = vec![WriteError::Conflict, failed(), WriteError::Conflict, failed()];
    api.put(slice("a", &["10.0.0.1"]));
    seconds(10).await;
    assert_eq!(api.ready("a"), "1+");
    assert_eq!((it.metrics.conflicts.get(), it.metrics.write_failures.get()), (2, 2));
    // A person changes the slice while the prober writes it.
    it.endpoints.set("10.0.0.1:80", false);
    for addresses in [&["10.0.0.3", "10.0.0.1"][..], &["10.0.0.1"], &["10.0.0.1", "10.0.0.3"]] {
        api.put(slice("a", addresses));
        sleep(Duration::from_millis(1)).await;
    }
    seconds(20).await;
    assert_eq!(api.ready("a"), "1- 3+");
}

#[tokio::test(start_paused = true)]
async fn probes_under_way_are_bounded_and_late_ones_are_counted() {
    let api = Api::default();
    let it = start(&api, None, ProberOptions { most_probes: 4, any_address: false });
    it.endpoints.0.lock().unwrap().takes = Duration::from_secs(1);
    api.send(&service(&[("", "tcp")]));
    let addresses: Vec<String> = (1..=40).map(|last| format!("10.0.0.{last}")).collect();
    api.put(slice("a", &addresses.iter().map(String::as_str).collect::<Vec<_>>()));
    seconds(60).await;
    assert_eq!(it.endpoints.0.lock().unwrap().under_way.1, 4);
    assert!(it.metrics.late.get() > 0);
    assert_eq!(it.metrics.passing.get(), 40, "each has its turn");
}

#[tokio::test(start_paused = true)]
async fn one_event_for_each_change_but_not_a_flood() {
    let api = Api::default();
    let it = start(&api, None, ProberOptions::default());
    api.send(&service(&[("", "tcp")]));
    let addresses: Vec<String> = (1..=100).map(|last| format!("10.0.0.{last}")).collect();
    api.put(slice("a", &addresses.iter().map(String::as_str).collect::<Vec<_>>()));
    seconds(5).await;
    assert_eq!(it.metrics.became_healthy.get(), 100);
    assert_eq!(u64::try_from(api.reasons().len()).unwrap() + it.metrics.events_dropped.get(), 100);
    assert_eq!(api.reasons().len(), 25);
}

/// Returns which of the servers probe.
fn active(servers: &[Running]) -> Vec<usize> {
    let active = servers.iter().enumerate().filter(|(_, server)| server.metrics.is_active.get() == 1);
    active.map(|(index, _)| index).collect()
}

#[tokio::test(start_paused = true)]
async fn one_of_several_servers_probes_and_another_takes_over_within_10_s() {
    let api = Api::default();
    let mut servers: Vec<Running> =
        ["a", "b", "c"].iter().map(|name| start(&api, Some(name), ProberOptions::default())).collect();
    api.send(&service(&[("", "tcp"), ("-interval", "1s")]));
    api.put(slice("x", &["10.0.0.1", "10.0.0.2"]));
    for server in &servers {
        server.endpoints.set("10.0.0.2:80", false);
    }
    seconds(30).await;
    assert_eq!(api.ready("x"), "1+ 2-");
    let writes = api.writes();
    for _ in 0..2 {
        let [leader] = active(&servers)[..] else { panic!("{:?}", active(&servers)) };
        let counts: Vec<usize> = servers.iter().map(|server| server.endpoints.probes()).collect();
        // It dies: its task ends without releasing the Lease.
        let dead = servers.remove(leader);
        dead.task.abort();
        seconds(10).await;
        assert_eq!(active(&servers).len(), 1);
        let after: usize = servers.iter().map(|server| server.endpoints.probes()).sum();
        let before: usize =
            counts.iter().enumerate().filter(|(index, _)| *index != leader).map(|(_, count)| count).sum();
        assert!(after > before, "the new one probes");
        seconds(20).await;
    }
    assert_eq!(api.ready("x"), "1+ 2-");
    assert_eq!(api.writes(), writes, "a server that takes over changes nothing");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_releases_the_lease() {
    let api = Api::default();
    let first = start(&api, Some("a"), ProberOptions::default());
    seconds(5).await;
    let second = start(&api, Some("b"), ProberOptions::default());
    seconds(5).await;
    assert_eq!((first.metrics.is_active.get(), second.metrics.is_active.get()), (1, 0));
    first.stop.send(()).unwrap();
    first.task.await.unwrap();
    seconds(2).await;
    assert_eq!(second.metrics.is_active.get(), 1, "at once, and not when the Lease expires");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_loses_the_lease_stops_probing() {
    let api = Api::default();
    let it = start(&api, Some("a"), ProberOptions::default());
    api.send(&service(&[("", "tcp"), ("-interval", "1s")]));
    api.put(slice("x", &["10.0.0.1"]));
    seconds(5).await;
    assert_eq!(it.metrics.is_active.get(), 1);
    // Another server holds it.
    {
        let mut stored = api.0.lock().unwrap();
        let lease = stored.lease.as_mut().unwrap();
        lease["spec"]["holderIdentity"] = "b".into();
        lease["metadata"]["resourceVersion"] = "999".into();
    }
    seconds(4).await;
    assert_eq!((it.metrics.is_active.get(), it.metrics.passing.get()), (0, 0));
    let probes = it.endpoints.probes();
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(it.endpoints.probes(), probes);
    assert_eq!(api.ready("x"), "1+", "the conditions stay");
}
