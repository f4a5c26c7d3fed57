//! The node agent: wires the watch, the Catalog, the engine, health and metrics together.
//!
//! It is the binary `portolan-proxy` ([`CommandLine`]) and the subcommand `portolan proxy` ([`ProxyOptions`] and [`run`]).
//!
//! A run has these steps:
//!
//! 1. `options` reads and validates the whole configuration. `modes` chooses a mode if none is named, and `checks`
//!    checks the node. Nothing on the node is changed before all problems are reported.
//! 2. `node_settings` writes the kernel settings that differ, and remembers what they were.
//! 3. The watches, the health server and the metrics server start. `agent` applies watch events to the Catalog. Once
//!    Services, EndpointSlices, ServiceCIDRs and the Node are known, the data planes compare everything with the
//!    kernel.
//! 4. After every family's first commit, `leftovers` removes what kube-proxy left and the mode does not use, so no
//!    packet meets a gap.
//! 5. While the proxy runs, `reload` follows the configuration file, and `agent` follows the Node object and the
//!    node's addresses.
//! 6. `control` answers questions about all of this, on the control socket and below `/debug/portolan/` on the metrics
//!    port. The subcommands `status` and `explain` ask them (`asking`, `packets`). `doctor` is for `portolan doctor`, which
//!    needs no agent.
//! 7. SIGTERM or SIGINT ends the process. The rules stay in the kernel. In the userspace mode, a kernel mode takes
//!    over first, and the relay's connections have some time to end (`agent::relays`). In the nftables mode, the engine
//!    writes the elements of large sets to a file, so that the next start need not ask the kernel for each (`ending`).

mod agent;
mod asking;
mod blocking;
mod checks;
mod cleanup;
mod command_line;
mod control;
pub mod doctor;
mod ending;
mod events;
mod explain;
mod file;
mod finding;
mod leftovers;
mod modes;
mod node_settings;
mod options;
pub mod packets;
mod paths;
pub mod planned;
pub mod preflight;
mod printing;
pub mod privilege;
pub mod program;
mod readiness;
mod recording;
mod reload;
mod reports;
mod servers;
mod settings;
mod snapshot;
mod status;

use std::cell::RefCell;
use std::convert::Infallible;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use portolan_engine::drift::{DriftWatch, Own};
use portolan_model::Family;
use portolan_node::config::Logging;
use portolan_node::health::Health;
use portolan_node::metrics::{AgentPages, BuildInfo, Pages, PagesSettings, ProxyMetrics, SetVerbosity};
use portolan_sock::addresses::Addresses;
use portolan_userspace::RuleWatch;
use portolan_watch::events::Recorder;
use portolan_watch::{Client, ClientSettings, Peers, RequestDone, Timing, Watcher};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use agent::{Agent, SHUTDOWN_LIMIT, Surroundings};
pub use cleanup::{CleanupOptions, run as clean_up};
pub use command_line::CommandLine;
use control::routes::Entrance;
use control::{Control, socket};
use events::Notes;
use finding::Finding;
use modes::{Choice, Meters, Relays};
use node_settings::KernelSettings;
use options::Loaded;
pub use options::{Connection, ProxyOptions, is_kube_proxy, is_kubectl_plugin, normalise};
use portolan_web::BindError;
pub use printing::print;
use readiness::Progress;
use reload::Reload;
use servers::{Servers, Shown};
pub use snapshot::ask as ask_for_snapshot;
pub use status::{StatusOptions, run as show_status};

/// The results of the checks before the start.
struct Start {
    loaded: Loaded,
    host_name: String,
    node_name: String,
    families: Vec<Family>,
    findings: Vec<Finding>,
    choice: Choice,
    kernel_settings: Arc<KernelSettings>,
}

/// Runs the node agent until a signal stops it, or does what the options ask for instead. The rules stay in the
/// kernel.
///
/// # Errors
/// The configuration is wrong, this node cannot run the proxy, or something that the proxy depends on has failed.
pub fn run(options: &ProxyOptions) -> anyhow::Result<()> {
    if options.act()? {
        return Ok(());
    }
    privilege::raise();
    if options.cleanup {
        portolan_logging::start(&Logging::default())?;
        let loaded = options.load().context(cleanup::WHY)?;
        return cleanup::run_as_flag(&loaded.configuration, options.only_ours);
    }
    ensure!(!options.only_ours, "--only-ours says what --cleanup removes: write both");
    run_agent(options, std::future::pending())
}

/// Runs the node agent until a signal stops it, or until `ended` returns the error of something else that the process
/// needs, such as an API server on another thread. The rules stay in the kernel.
///
/// # Errors
/// That error, and those of [`run`].
pub fn run_beside(options: &ProxyOptions, ended: impl Future<Output = anyhow::Error>) -> anyhow::Result<()> {
    privilege::raise();
    run_agent(options, ended)
}

fn run_agent(options: &ProxyOptions, ended: impl Future<Output = anyhow::Error>) -> anyhow::Result<()> {
    let mut loaded = options.load()?;
    portolan_logging::start(&loaded.configuration.logging)?;
    loaded.log();
    let mut families = settings::supported_families();
    let choice = modes::settle(&mut loaded.configuration, &families, options.preferences, None, || {
        modes::obstacles(&families)
    })?;
    modes::log(&choice);
    let configuration = &loaded.configuration;
    let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let node_name = configuration.node_name(&host_name)?;
    let mut findings = checks::before_the_start(configuration, &mut families, checks::mode);
    let forwards = options.forwards.as_slice();
    // Services of other families need none.
    findings.retain(|finding| forwards.is_empty() || !finding.is_of_forwarding());
    finding::log(&findings);
    finding::judge(&findings)?;
    let kernel_settings = Arc::new(KernelSettings::of_this_node());
    kernel_settings.turn_on_forwarding(forwards, &findings);
    kernel_settings.apply_conntrack(configuration, &findings);
    if options.init_only {
        let ips = settings::node_addresses(&[], configuration.bind_address);
        let node = settings::Node { ips: &ips, pod_cidrs: &[], addresses: &[] };
        modes::configured(configuration).initialise(configuration, &node, &kernel_settings);
        return Ok(());
    }
    node_settings::apply_oom_score(configuration);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let start = Start { loaded, host_name, node_name, families, findings, choice, kernel_settings };
    let agent = AgentSlot::default();
    let work = async {
        tokio::select! {
            outcome = follow(options, start, &agent) => outcome,
            error = ended => Err(error),
        }
    };
    let outcome = runtime.block_on(run_until_signal(&agent, work));
    // The engine's thread may be in a commit. Commits are atomic, and the kernel keeps what it has.
    runtime.shutdown_background();
    outcome
}

/// Runs `work` until it ends or SIGTERM or SIGINT arrives. The handlers are installed first: for the first process of
/// a container, the kernel discards signals without a handler.
///
/// If packets depend on this process, a kernel data plane takes over before it ends. A second signal ends it at once.
async fn run_until_signal(
    agent: &AgentSlot,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut work = std::pin::pin!(work);
    tokio::select! {
        outcome = &mut work => return outcome,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let Some(agent) = agent.borrow().clone() else { return Ok(()) };
    let left = agent.borrow_mut().start_shutdown();
    let left = async {
        match left {
            // The receiver fails if nothing is left to wait for.
            Some(left) => drop(left.await),
            None => ending::leave(&agent).await,
        }
    };
    tokio::select! {
        outcome = work => outcome,
        () = left => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        () = tokio::time::sleep(SHUTDOWN_LIMIT) => Ok(()),
    }
}

/// The agent. `None` until [`follow`] has created it.
type AgentSlot = RefCell<Option<Rc<RefCell<Agent>>>>;

async fn follow(options: &ProxyOptions, start: Start, slot: &AgentSlot) -> anyhow::Result<()> {
    let Start { loaded, host_name, node_name, families, findings, choice, kernel_settings } = start;
    let Loaded { configuration, file, .. } = &loaded;
    let metrics = ProxyMetrics::new(BuildInfo::of_version(&loaded.version)).with_process();
    let meters = Meters::default();
    let metrics = modes::with_measures(metrics, &meters);
    // The agent sets the timeout from its configuration.
    let health = Arc::new(Health::new(Duration::MAX));
    let of_watches = Arc::clone(&health);
    let metrics = metrics.with_watch_ages(move |resource| of_watches.watch_age(resource, Instant::now()));
    let metrics = Arc::new(metrics);
    metrics.mode(choice.mode.name(), choice.reason.name(), choice.wanted());
    let peers = Peers::default();
    let settings = client_settings(&loaded, &metrics, &peers);
    let client = portolan_watch::connect(&settings).await.context("API server")?;
    let progress = Progress::new(client.clone(), configuration.readiness.clone());
    let (recorder, poster) = Recorder::new(client.clone(), &host_name);
    let notes = Notes::new(recorder, &node_name);
    let done = Arc::<reports::Waiting>::default();
    let (control, questions) =
        Control::new(loaded.version.clone(), Arc::clone(&health), meters.relays.clone());
    let surroundings = Surroundings {
        node_name: node_name.clone(),
        relays: Relays::new(families.clone(), meters.relays.clone()),
        meters,
        families,
        findings,
        metrics: Arc::clone(&metrics),
        health: Arc::clone(&health),
        notes: notes.clone(),
        peers: peers.clone(),
        progress: progress.clone(),
        done: Arc::clone(&done),
        kernel_settings: Arc::clone(&kernel_settings),
        recorder: portolan_recorder::Recorder::new(recording::limit(configuration)),
    };
    let agent = Agent::new(configuration.clone(), surroundings);
    let agent = Rc::new(RefCell::new(agent));
    slot.replace(Some(Rc::clone(&agent)));
    portolan_sock::signals::handled_elsewhere();
    let (watchers, new_watchers) = mpsc::unbounded_channel();
    let of_pages = Arc::clone(&control);
    let agent_pages = move |request: &_| control::routes::reply(&of_pages, request, Entrance::Metrics);
    let pages_settings = pages_settings(&loaded, Box::new(agent_pages));
    let pages = Arc::new(Pages::new(Arc::clone(&metrics), pages_settings));
    let (mut servers, failures) =
        Servers::new(Shown { health, metrics: Arc::clone(&metrics), pages: Arc::clone(&pages) });
    servers.listen(configuration);
    let reload = Reload {
        options,
        node_name: &node_name,
        agent: Rc::clone(&agent),
        servers,
        pages,
        watchers,
        notes: notes.clone(),
        metrics: Arc::clone(&metrics),
        peers: peers.clone(),
        kernel_settings,
        progress: progress.clone(),
        choice,
    };
    tracing::info!(node = node_name, version = env!("CARGO_PKG_VERSION"), "starting");
    notes.starting();
    notes.mode_chosen(&reload.choice);
    tokio::select! {
        never = watching(&agent, watcher(client, &node_name, options, &settings), new_watchers) => match never {},
        error = reload.run(file.as_deref()) => Err(error),
        error = cannot_listen(failures, &notes) => Err(error.into()),
        error = waiting(&agent) => Err(error),
        error = finding_programs(&agent) => Err(error),
        error = drift(&agent) => Err(error),
        error = address_changes(&agent) => Err(error),
        error = rule_deletions(&agent) => Err(error),
        never = following_api_server(&agent, &peers) => match never {},
        never = readiness::follow(progress, &node_name, &notes, &metrics) => match never {},
        never = leftovers::removing(&agent, &notes, &metrics) => match never {},
        never = poster.run() => match never {},
        never = reporting(&agent, &done) => match never {},
        never = control::answering(&agent, questions) => match never {},
        never = following_failures(&agent) => match never {},
        never = socket::serve(control, &configuration.portolan) => match never {},
    }
}

/// Passes the engine's reports to the agent.
async fn reporting(agent: &Rc<RefCell<Agent>>, done: &reports::Waiting) -> Infallible {
    loop {
        for step in done.take().await {
            agent.borrow_mut().synced(&step);
        }
    }
}

/// Creates the watcher of the API server that the settings are of.
fn watcher(client: Client, node_name: &str, options: &ProxyOptions, settings: &ClientSettings) -> Watcher {
    let timing = Timing { empty_list_hold: options.empty_list_hold, ..Timing::default() };
    Watcher::new(client, node_name).with_timing(timing).in_protobuf(settings.prefers_protobuf())
}

/// Returns where the API server is and which credentials and limits the client uses.
fn client_settings(loaded: &Loaded, metrics: &Arc<ProxyMetrics>, peers: &Peers) -> ClientSettings {
    let metrics = Arc::clone(metrics);
    let count = move |done: &RequestDone| {
        metrics.request_finished(done.verb, &done.host, done.code, done.duration);
        metrics.request_delayed(done.verb, &done.host, done.throttled);
    };
    ClientSettings { on_request: Some(Arc::new(count)), peers: peers.clone(), ..configured_client(loaded) }
}

/// Returns what the configuration says of the client of the API server.
fn configured_client(loaded: &Loaded) -> ClientSettings {
    let connection = &loaded.configuration.client_connection;
    ClientSettings {
        local: loaded.local.clone(),
        kubeconfig: (!connection.kubeconfig.is_empty()).then(|| connection.kubeconfig.clone().into()),
        master: loaded.master.clone(),
        qps: connection.qps,
        burst: connection.burst,
        content_type: connection.content_type.clone(),
        accept_content_types: connection.accept_content_types.clone(),
        ..ClientSettings::default()
    }
}

/// Returns what the pages of the metrics server show.
fn pages_settings(loaded: &Loaded, agent_pages: AgentPages) -> PagesSettings<'_> {
    let log = portolan_logging::handle();
    PagesSettings {
        configuration: &loaded.configuration,
        flags: loaded.flags.clone(),
        agent_pages: Some(agent_pages),
        set_verbosity: log.map(|log| Box::new(move |verbosity| log.set_verbosity(verbosity)) as SetVerbosity),
        gates: loaded
            .gates
            .iter()
            .map(|(name, stage, on)| (name.to_owned(), stage.name().to_owned(), on))
            .collect(),
    }
}

/// Passes every watch event to the agent. A watcher from `new` replaces the current one. Its first lists are compared
/// with the known objects, so no change is lost in between.
async fn watching(
    agent: &Rc<RefCell<Agent>>,
    mut watcher: Watcher,
    mut new: UnboundedReceiver<Watcher>,
) -> Infallible {
    loop {
        let counts = watcher.counts();
        agent.borrow_mut().watched_by(Arc::clone(&counts));
        let watching = watcher.run(|event| agent.borrow_mut().take(event));
        let next = tokio::select! {
            never = watching => match never {},
            Some(next) = new.recv() => next,
        };
        watcher = next.after(&counts);
    }
}

/// Notifies the agent each time the addresses by which the client reaches the API server change. The agent keeps
/// Services from capturing these.
async fn following_api_server(agent: &Rc<RefCell<Agent>>, peers: &Peers) -> Infallible {
    let mut changes = peers.follow();
    loop {
        agent.borrow_mut().api_server_moved();
        changes.next().await;
    }
}

/// Lets the agent set endpoints aside while connections to them fail.
async fn following_failures(agent: &Rc<RefCell<Agent>>) -> Infallible {
    let mut failing = agent.borrow().failing_endpoints();
    // The agent has the sender as long as it lives.
    while failing.changed().await.is_ok() {
        let endpoints = failing.borrow_and_update().clone();
        agent.borrow_mut().set_aside(&endpoints);
    }
    std::future::pending().await
}

/// Waits until a server with `bindAddressHardFail` cannot listen, and returns its error after an Event is sent.
async fn cannot_listen(mut failures: UnboundedReceiver<BindError>, notes: &Notes) -> BindError {
    let Some(error) = failures.recv().await else { return std::future::pending().await };
    notes.cannot_listen(&error).await;
    error
}

/// Finds the programs of iptables each time the agent asks for them. Returns an error if a search has no result.
async fn finding_programs(agent: &Rc<RefCell<Agent>>) -> anyhow::Error {
    let searches = agent.borrow().program_searches();
    loop {
        searches.notified().await;
        let families = agent.borrow().families().to_vec();
        match blocking::run(move || modes::find_programs(&families)).await {
            Ok(found) => agent.borrow_mut().programs_found(found),
            Err(error) => return error,
        }
    }
}

/// Lets the agent check its deadlines every second. Returns the error that ends the proxy.
async fn waiting(agent: &Rc<RefCell<Agent>>) -> anyhow::Error {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let outcome = agent.borrow_mut().check_deadlines();
        if let Err(error) = outcome {
            return error;
        }
    }
}

/// Tells the engine when another program changes rules of which the kernel sends notifications.
async fn drift(agent: &Rc<RefCell<Agent>>) -> anyhow::Error {
    let mut watched = agent.borrow().own();
    loop {
        let own = watched.borrow_and_update().clone();
        let listening = async {
            if own.is_empty() {
                agent.borrow().watched();
                return std::future::pending().await;
            }
            listen_for_drift(agent, own).await
        };
        tokio::select! {
            error = listening => return error,
            changed = watched.changed() => if changed.is_err() { return std::future::pending().await },
        }
    }
}

async fn listen_for_drift(agent: &Rc<RefCell<Agent>>, own: Vec<Own>) -> anyhow::Error {
    let watch = match DriftWatch::open(own) {
        Ok(watch) => watch,
        Err(error) => return anyhow::Error::new(error).context("cannot subscribe to nftables changes"),
    };
    agent.borrow().watched();
    agent.borrow_mut().reported_until(watch.generation());
    let Err(error) = on_readable(watch, |watch| {
        let families = watch.drifted()?;
        for family in families {
            agent.borrow_mut().drifted(family);
        }
        agent.borrow_mut().reported_until(watch.generation());
        Ok(())
    })
    .await;
    error
}

/// Notifies the agent when addresses of this node are added or removed.
async fn address_changes(agent: &Rc<RefCell<Agent>>) -> anyhow::Error {
    let watch = match Addresses::open(portolan_ipvs::DEVICE) {
        Ok(watch) => watch,
        Err(error) => return anyhow::Error::new(error).context("cannot subscribe to address changes"),
    };
    let Err(error) = on_readable(watch, |watch| {
        if watch.changed()? {
            agent.borrow_mut().addresses_changed();
        }
        Ok(())
    })
    .await;
    error
}

/// Notifies the agent when a rule of the userspace mode's policy routing is deleted.
async fn rule_deletions(agent: &Rc<RefCell<Agent>>) -> anyhow::Error {
    let watch = match RuleWatch::open() {
        Ok(watch) => watch,
        Err(error) => {
            return anyhow::Error::new(error).context("cannot subscribe to changes of policy routing");
        }
    };
    let Err(error) = on_readable(watch, |watch| {
        for family in watch.deleted()? {
            agent.borrow_mut().routing_deleted(family);
        }
        Ok(())
    })
    .await;
    error
}

/// Calls `read` each time the descriptor is readable.
async fn on_readable<T: AsRawFd>(
    source: T,
    mut read: impl FnMut(&mut T) -> Result<(), portolan_sock::SocketError>,
) -> Result<Infallible, anyhow::Error> {
    #[expect(deprecated, reason = "its successor is unsafe; our sources own their descriptors for good")]
    let mut source = AsyncFd::new(source)?;
    loop {
        let mut ready = source.readable_mut().await?;
        read(ready.get_inner_mut())?;
        ready.clear_ready();
    }
}
