//! `portolan serve`: turns the options into a configuration and runs the API server.

mod addons;
mod backup;
mod kubeconfig;
mod limits;
pub(crate) mod listening;
mod process;
mod proxy_access;
mod stores;
pub(crate) mod tls;

use std::net::IpAddr;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use self::proxy_access::ProxyAccess;
use crate::check_ips;
use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use ipnet::IpNet;
use portolan_node::config::parse_duration;
use portolan_serve::{
    Api, ApiConfig, Config, ControllersConfig, LoadBalancerRanges, NodePortRange, ServiceRanges,
};
use tokio::signal::unix::{SignalKind, signal};

/// Default folder of the data that outlives the server.
pub(crate) const DATA_DIR: &str = "/var/lib/portolan";
/// The error if the first objects cannot be written.
const CANNOT_BEGIN: &str = "cannot make what every cluster has";

/// Options of `portolan serve`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ServeOptions {
    #[command(subcommand)]
    action: Option<Action>,
    /// Look once for addresses and node ports that are not as they should be, mend what may be mended, print what was
    /// found, and end: with 0 if nothing is wrong any more, 2 if something is, 1 if it could not be found out.
    #[arg(long)]
    repair_once: bool,
    /// Check every page and object of the store in --data-dir, print how many objects of each kind it has and its last
    /// revision, and end: with 0 if it is whole, 2 if it is damaged, 1 if it could not be found out. A server may run.
    #[arg(long, conflicts_with_all = ["repair_once", "in_memory", "etcd_servers"])]
    check: bool,
    /// Write a kubeconfig for `portolan proxy` at every start, with the address of this server. A token that is in the file
    /// stays.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["repair_once", "check"])]
    write_proxy_kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    server: ServerOptions,
}

/// Options of the API server, for every subcommand that runs it.
#[derive(Debug, Args)]
pub(crate) struct ServerOptions {
    /// Address to listen on, with TLS.
    #[arg(long, default_value = "127.0.0.1:6443", value_name = "IP:PORT")]
    pub(crate) listen: SocketAddr,
    /// Folder for what has to outlive the process, such as the certificate authority in its folder pki.
    #[arg(long, default_value = DATA_DIR, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    #[command(flatten)]
    store: stores::StoreOptions,
    #[command(flatten)]
    pub(crate) tls: tls::TlsOptions,
    #[command(flatten)]
    limits: limits::LimitOptions,
    /// After SIGTERM, keep serving for this long while /readyz says 503, so that clients go elsewhere first.
    #[arg(long, default_value = "0s", value_name = "DURATION", value_parser = parse_duration)]
    shutdown_delay_duration: Duration,
    /// One or two CIDRs that cluster IPs are given from, the first being of the primary family.
    #[arg(long, default_value = "10.96.0.0/12", value_name = "CIDR[,CIDR]")]
    pub(crate) service_cluster_ip_range: ServiceRanges,
    /// Ports that node ports are given from.
    #[arg(long, default_value = "30000-32767", value_name = "FIRST-LAST")]
    service_node_port_range: NodePortRange,
    /// Ranges that pods have; no range of cluster IPs may overlap them.
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub(crate) cluster_cidr: Vec<IpNet>,
    /// CIDRs that Services of type LoadBalancer get their addresses from; without any, they get none. The network has to
    /// lead these addresses to the nodes.
    #[arg(long, value_name = "CIDR,...")]
    load_balancer_ip_range: Option<LoadBalancerRanges>,
    /// Address at which others reach this server, as the endpoint of the Service default/kubernetes; the address
    /// listened on, unless that is loopback or all.
    #[arg(long, value_name = "IP")]
    advertise_address: Option<IpAddr>,
    /// Folder of YAML or JSON manifests to keep the objects in sync with.
    #[arg(long, value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    /// `ignore` stores objects that no API server would: for testing clients.
    #[arg(long, value_enum, default_value_t = Validation::Strict)]
    validation: Validation,
    /// How long an Event is kept after it was last written to.
    #[arg(long, default_value = "1h", value_name = "DURATION", value_parser = parse_duration)]
    event_ttl: Duration,
    #[command(flatten)]
    addons: addons::AddonOptions,
}

/// What else can be done with the server's data.
#[derive(Debug, Subcommand)]
enum Action {
    /// Prints a kubeconfig with new credentials; the server need not run, and need not have run.
    Kubeconfig(kubeconfig::KubeconfigOptions),
    /// Writes a backup of the objects in the data folder into a file. The server may run. The certificates in the folder
    /// pki are not in it.
    Backup(backup::Backup),
    /// Makes the objects of a backup those of a data folder that has none. Their revisions are later than all before, so
    /// that clients list again.
    Restore(backup::Restore),
    /// Writes the objects that can still be read in a damaged data folder, as manifests.
    Rescue(backup::Rescue),
}

/// Whether objects are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Validation {
    /// As an API server does.
    Strict,
    /// Only well-formed JSON and metadata are asked for.
    Ignore,
}

impl ServeOptions {
    /// Returns true if these options run the server, and not an action that ends by itself.
    pub(crate) const fn runs_until_signal(&self) -> bool {
        self.action.is_none() && !self.repair_once && !self.check
    }
}

impl ServerOptions {
    /// Returns true if this server probes endpoints.
    pub(crate) const fn has_health_checks(&self) -> bool {
        self.addons.has_health_checks()
    }

    /// Returns true if other servers may use the same store.
    pub(crate) fn has_shared_store(&self) -> bool {
        self.store.is_shared()
    }

    /// Returns true if Services of type LoadBalancer get addresses.
    pub(crate) const fn has_load_balancer_ips(&self) -> bool {
        self.load_balancer_ip_range.is_some()
    }

    /// Returns what the optional parts do at a start, one line for each that is on.
    pub(crate) fn optional_parts(&self) -> Vec<String> {
        let ranges = self.load_balancer_ip_range.iter().map(|ranges| {
            let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
            format!("give Services of type LoadBalancer addresses of {}", ranges.join(", "))
        });
        ranges.chain(self.addons.described()).collect()
    }

    /// Returns the settings of the API.
    pub(crate) fn api(&self) -> ApiConfig {
        ApiConfig {
            service_ranges: self.service_cluster_ip_range.clone(),
            node_ports: self.service_node_port_range,
            pod_ranges: self.cluster_cidr.clone(),
            load_balancer_ranges: self.load_balancer_ip_range.clone().unwrap_or_default(),
            validate: self.validation == Validation::Strict,
            // Another server of the same store may have health checks.
            keeps_health_checks: self.addons.has_health_checks() || self.store.is_shared(),
            // After a restart, the endpoints of a store in memory are new, and would not be served until they are probed.
            health_checked: (self.addons.has_health_checks() && !self.store.is_in_memory())
                .then_some(portolan_serve::health_checked),
            ..ApiConfig::default()
        }
    }
}

/// What a subcommand adds to the server that it runs.
pub(crate) struct Additions<F> {
    /// Sets what no option sets.
    pub(crate) adjust: Box<dyn FnOnce(&mut Config) + Send>,
    /// Called with the address that the server listens on, when its store is open. Returns what ends the server.
    pub(crate) started: F,
}

/// Serves until SIGTERM or SIGINT, or does the requested action.
pub(crate) fn run(options: ServeOptions) -> anyhow::Result<ExitCode> {
    if let Some(action) = &options.action {
        match action {
            Action::Kubeconfig(options) => kubeconfig::run(options)?,
            Action::Backup(options) => backup::backup(options)?,
            Action::Restore(options) => backup::restore(options)?,
            Action::Rescue(options) => backup::rescue(options)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if options.check {
        return backup::check(&options.server.data_dir);
    }
    if options.repair_once {
        return portolan_serve::runtime()?.block_on(repair_once(options.server));
    }
    let access = options.write_proxy_kubeconfig.map(|path| ProxyAccess::new(path, &options.server));
    let started = |address: SocketAddr, _: &Arc<Api>| {
        access.map_or(Ok(()), |access| access.write(address))?;
        until_signal()
    };
    let additions = Additions { adjust: Box::new(|_| {}), started };
    run_server(options.server, additions).map(|()| ExitCode::SUCCESS)
}

/// Runs the server on this thread until `additions` end it.
pub(crate) fn run_server<E: Future<Output = ()>>(
    options: ServerOptions,
    additions: Additions<impl FnOnce(SocketAddr, &Arc<Api>) -> anyhow::Result<E>>,
) -> anyhow::Result<()> {
    let files = limits::raise_file_limit();
    portolan_serve::runtime()?.block_on(serve(options, files, additions))
}

async fn serve<E: Future<Output = ()>>(
    options: ServerOptions,
    files: usize,
    additions: Additions<impl FnOnce(SocketAddr, &Arc<Api>) -> anyhow::Result<E>>,
) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(options.listen)
        .await
        .with_context(|| listening::failure(options.listen))?;
    let address = listener.local_addr()?;
    let limits = options.limits.limits(files, options.shutdown_delay_duration);
    let transport =
        options.tls.transport(options.listen, &options.data_dir, &options.service_cluster_ip_range);
    let api = options.api();
    let (store, data_dir) = (options.store, options.data_dir);
    let mut config = Config {
        api,
        controllers: ControllersConfig {
            kubernetes_service: true,
            advertise_address: options.advertise_address,
            event_ttl: options.event_ttl,
            ..ControllersConfig::default()
        },
        listen: options.listen,
        addons: options.addons.config(files, store.is_shared()),
        transport,
        limits,
        manifests: options.manifests,
        release_memory: Some(portolan_sock::memory::trim),
        ..Config::default()
    };
    (additions.adjust)(&mut config);
    config.api.check().map_err(|error| anyhow::anyhow!("--{error}"))?;
    portolan_serve::check_address(&config, address)?;
    config.metrics.register(Arc::new(process::Process));
    let store = store.open(&data_dir, config.api.history).await?;
    let asked = Arc::clone(&store);
    config.checks.register("store", Arc::new(move || asked.writable()));
    let api = Arc::new(Api::open(store, &config.api).await.context(CANNOT_BEGIN)?);
    listening::note(&data_dir, address, &config.transport);
    let end = (additions.started)(address, &api)?;
    tracing::info!(%address, "serving the Kubernetes API");
    Ok(portolan_serve::serve_with(api, config, listener, end).await?)
}

/// Completes when SIGTERM or SIGINT arrives.
fn until_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    portolan_sock::signals::handled_elsewhere();
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

async fn repair_once(options: ServerOptions) -> anyhow::Result<ExitCode> {
    let config = ApiConfig {
        service_ranges: options.service_cluster_ip_range,
        node_ports: options.service_node_port_range,
        load_balancer_ranges: options.load_balancer_ip_range.unwrap_or_default(),
        ..ApiConfig::default()
    };
    let store = options.store.open(&options.data_dir, config.history).await?;
    let api = Api::open(store, &config).await.context(CANNOT_BEGIN)?;
    let (found, left) = portolan_serve::repair_once(&api).await?;
    check_ips::print(&found, check_ips::Output::Text)?;
    if !found.is_clean() {
        println!("after repair:");
        return check_ips::print(&left, check_ips::Output::Text);
    }
    Ok(ExitCode::SUCCESS)
}
