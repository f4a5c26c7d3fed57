//! `portolan proxy`: wires watch, Catalog, engine, health and metrics together.

mod agent;
mod options;
mod reports;
mod settings;

use std::cell::RefCell;
use std::convert::Infallible;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use portolan_backend::addresses::Addresses;
use portolan_backend::nft::DriftWatch;
use portolan_node::config::{Configuration, Mode};
use portolan_node::{health, metrics};
use portolan_watch::{ClientSettings, Watcher};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use agent::Agent;
pub(crate) use options::{Options, normalise};

/// Runs the node agent until it is told to stop. What is programmed stays in the kernel.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if options.cleanup || options.init_only {
        bail!("--cleanup and --init-only are not available in this version");
    }
    let loaded = options.load()?;
    crate::logging::start(&loaded.configuration.logging)?;
    loaded.log();
    let configuration = loaded.configuration;
    match configuration.mode {
        Some(Mode::Nftables) => {}
        None => tracing::info!(mode = "nftables", "no mode is configured: using nftables"),
        Some(other) => bail!("mode: {} is not available in this version: use nftables", other.name()),
    }
    let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let node_name = configuration.node_name(&host_name)?;
    let families = settings::supported_families();
    settings::probe(&families)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = ClientSettings {
        kubeconfig: Some(configuration.client_connection.kubeconfig.clone())
            .filter(|path| !path.is_empty())
            .map(Into::into),
        master: loaded.master,
        qps: configuration.client_connection.qps,
        burst: configuration.client_connection.burst,
        content_type: configuration.client_connection.content_type.clone(),
        accept_content_types: configuration.client_connection.accept_content_types.clone(),
        on_request: None,
    };
    let outcome = runtime.block_on(follow(configuration, node_name, families, client));
    // The engine's thread may be in a commit; it is atomic, and the kernel keeps what it has.
    runtime.shutdown_background();
    outcome
}

async fn follow(
    configuration: Configuration,
    node_name: String,
    families: Vec<portolan_model::Family>,
    client: ClientSettings,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let client = portolan_watch::connect(&client).await.context("API server")?;
    let (sender, mut done) = mpsc::unbounded_channel();
    let agent = Agent::new(configuration.clone(), node_name.clone(), families, sender);
    let (health, metrics) = (agent.health(), agent.metrics());
    let agent = Rc::new(RefCell::new(agent));
    let watcher = Watcher::new(client, &node_name);
    let watching = {
        let agent = Rc::clone(&agent);
        watcher.run(move |event| agent.borrow_mut().take(event))
    };
    let pages = metrics::PagesSettings {
        configuration: &configuration,
        flags: Vec::new(),
        set_verbosity: set_verbosity(),
        gates: Vec::new(),
    };
    let pages = std::sync::Arc::new(metrics::Pages::new(metrics.clone(), pages));
    let hard_fail = configuration.bind_address_hard_fail;
    let health_server =
        serve(configuration.healthz_bind_address.map(|at| health::server(at, hard_fail, health, metrics)));
    let metrics_server =
        serve(configuration.metrics_bind_address.map(|at| metrics::server(at, hard_fail, pages)));
    tracing::info!(node = node_name, version = env!("CARGO_PKG_VERSION"), "starting");
    tokio::select! {
        never = watching => match never {},
        error = health_server => Err(error.into()),
        error = metrics_server => Err(error.into()),
        error = waiting(&agent) => Err(error),
        error = drift(&agent) => Err(error),
        error = address_changes(&agent) => Err(error),
        () = async { while let Some(step) = done.recv().await { agent.borrow_mut().synced(step); } } => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// What `/debug/flags/v` does.
fn set_verbosity() -> Option<metrics::SetVerbosity> {
    let log = crate::logging::handle()?;
    Some(Box::new(move |verbosity| log.set_verbosity(verbosity)))
}

/// Runs a server, where one is configured.
async fn serve(server: Option<portolan_node::http::Server>) -> portolan_node::http::BindError {
    match server {
        Some(server) => server.run().await,
        None => std::future::pending().await,
    }
}

/// Lets the agent look at its deadlines.
async fn waiting(agent: &Rc<RefCell<Agent>>) -> anyhow::Error {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let outcome = agent.borrow_mut().check_deadlines();
        if let Err(error) = outcome {
            return error;
        }
    }
}

/// Tells the engine when somebody else changes our tables.
async fn drift(agent: &Rc<RefCell<Agent>>) -> anyhow::Error {
    let first_sync = agent.borrow_mut().first_sync();
    let Ok(ports) = first_sync.await else { return std::future::pending().await };
    let watch = match DriftWatch::open(ports) {
        Ok(watch) => watch,
        Err(error) => return anyhow::Error::new(error).context("cannot subscribe to nftables changes"),
    };
    let Err(error) = on_readable(watch, |watch| {
        let families = watch.drifted()?;
        for family in families {
            agent.borrow_mut().drifted(family);
        }
        Ok(())
    })
    .await;
    error
}

/// Tells the agent when addresses of this node come or go.
async fn address_changes(agent: &Rc<RefCell<Agent>>) -> anyhow::Error {
    let watch = match Addresses::open() {
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

/// Calls `read` whenever the descriptor has something to read.
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
