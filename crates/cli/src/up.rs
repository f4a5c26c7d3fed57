//! `portolan up`: the API server and the node agent in one process, for a host without anything else.
//!
//! In: Services of the command line (`services`), manifests, the addresses of the host (`host`). Out: both running, the Node of
//! the host, a kubeconfig, and a summary (`screen`), within a second. If the Services are stored later, it is printed again.
//!
//! The agent runs on the main thread as `portolan proxy` does, the server on a thread of its own (`server`). The agent reaches
//! the server over the socket on which the server listens, with a token that is only in memory. If one of them fails, the
//! process ends with its error, and the rules stay in the kernel.

mod dry_run;
mod hangup;
mod host;
mod kubeconfig;
mod screen;
mod server;
mod services;

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_logging as logging;
use portolan_model::Family;
use portolan_node::config::Logging;
use portolan_proxy as proxy;
use portolan_proxy::packets::Configured;
use portolan_proxy::privilege;
use portolan_serve::json::Value;
use portolan_serve::manifests::Given;
use portolan_serve::{Api, Kubeconfig, OwnNode, Pki, ProcessToken, Role};
use portolan_watch::LocalServer;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use self::screen::{Summary, Unstored};
use self::server::{Parts, Server, Started};
use self::services::Declared;
use crate::serve::{ServerOptions, listening, tls::pki_folder};

/// The kubeconfig in the data folder.
const KUBECONFIG: &str = "admin.conf";
/// The mode where none is given: it needs no programs, and every supported kernel has it.
const MODE: &str = "nftables";
/// What the source of the Services of a command line begins with. The name of the Node follows.
const SOURCE: &str = "the command line of ";
/// Longest wait before something is printed.
const PRINT_WITHIN: Duration = Duration::from_millis(800);
/// Longest wait for a connection to the own server, which listens already. Only an error that comes at once matters.
const CONNECT_WITHIN: Duration = Duration::from_millis(100);

/// A load balancer on this host: the API server and the node agent in one process.
///
/// Serves the Services of its arguments and of --manifests, and those that clients write into its API. Registers a Node for this
/// host and follows the addresses of the host. Prints where each Service is reached. The rules stay when it ends;
/// `portolan up --cleanup` removes them.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags are independent of each other")]
pub(crate) struct UpOptions {
    /// Services to serve. The same NAME may be given again for another port. A Service that is left out at the next start is
    /// removed.
    #[arg(value_name = "[NAMESPACE/]NAME=PORT[/PROTOCOL]:BACKEND,...", value_parser = services::parse)]
    services: Vec<Declared>,
    /// Show what a start would do, and change nothing.
    #[arg(long, conflicts_with = "cleanup")]
    dry_run: bool,
    /// Remove the rules from this host, and end. The data folder stays.
    #[arg(long)]
    cleanup: bool,
    /// Name of the Node of this host; the host name in lower case where none is given.
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// Addresses of the Node, one of each family. Where none is given: those of the default routes, or else of an interface. These
    /// are followed when they change.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',')]
    node_ip: Vec<IpAddr>,
    /// How Services are programmed: nftables, iptables, ipvs or userspace. Where neither this nor --config is given, nftables.
    #[arg(long, value_name = "MODE")]
    proxy_mode: Option<String>,
    /// Configuration file of the node agent (KubeProxyConfiguration).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// File to write a kubeconfig with all permissions to; admin.conf in the data folder where none is given. An existing file is
    /// replaced, unless it has other clusters.
    #[arg(long, value_name = "FILE")]
    write_kubeconfig: Option<PathBuf>,
    /// Leave the forwarding of packets as it is. Without this, it is turned on for the families of the cluster IPs: node ports
    /// need it.
    #[arg(long)]
    no_ip_forward: bool,
    /// Set endpoints aside for a while if TCP connections of this host to them fail, in all modes but userspace.
    #[arg(long)]
    passive_health_checks: bool,
    /// Socket on which `portolan status` and `portolan explain` ask this process; /run/portolan/proxy.sock where none is given,
    /// and none if it is empty.
    #[arg(long, value_name = "FILE")]
    control_socket: Option<String>,
    /// How much to log: 0 what operators need, 2 what happens, 4 what is decided.
    #[arg(short, long, default_value_t = 0)]
    v: u8,
    #[command(flatten)]
    server: ServerOptions,
}

impl UpOptions {
    /// Returns true if these options run until a signal arrives.
    pub(crate) const fn runs_until_signal(&self) -> bool {
        !self.dry_run && !self.cleanup
    }

    /// Returns the options of the node agent.
    fn agent(&self) -> anyhow::Result<proxy::ProxyOptions> {
        let mut flags = vec![format!("--v={}", self.v)];
        let mode = self.proxy_mode.as_deref().or(self.config.is_none().then_some(MODE));
        flags.extend(mode.map(|mode| format!("--proxy-mode={mode}")));
        flags.extend(self.hostname_override.iter().map(|name| format!("--hostname-override={name}")));
        flags.extend(self.config.iter().map(|file| format!("--config={}", file.display())));
        flags.extend(self.control_socket.iter().map(|path| format!("--control-socket={path}")));
        let pods: Vec<String> = self.server.cluster_cidr.iter().map(ToString::to_string).collect();
        if self.config.is_none() {
            // Without ranges of pods, no client is known to be on the way of the backends' answers.
            let all = || "--masquerade-all".to_owned();
            flags.push(if pods.is_empty() { all() } else { format!("--cluster-cidr={}", pods.join(",")) });
            // A load balancer for this host serves the addresses of this host.
            flags.push("--address-guard=nodeAddresses=Warn".to_owned());
        }
        flags.extend(self.passive_health_checks.then(|| "--passive-health-checks".to_owned()));
        flags.extend(self.cleanup.then(|| "--cleanup".to_owned()));
        let forwards = if self.no_ip_forward { Vec::new() } else { self.families() };
        Ok(proxy::ProxyOptions::from_flags(flags)?.with_forwarding(forwards))
    }

    /// Returns the families of the cluster IPs.
    fn families(&self) -> Vec<Family> {
        self.server.service_cluster_ip_range.iter().map(|range| Family::of(range.addr())).collect()
    }

    fn kubeconfig(&self) -> PathBuf {
        self.write_kubeconfig.clone().unwrap_or_else(|| self.server.data_dir.join(KUBECONFIG))
    }
}

/// What a start is made from, when the options are checked.
struct Plan {
    options: UpOptions,
    agent: proxy::ProxyOptions,
    /// The objects of the Services of the command line.
    objects: Vec<Value>,
    /// The name of the Node.
    node: String,
}

impl Plan {
    fn new(options: UpOptions) -> anyhow::Result<Self> {
        let agent = options.agent()?;
        let configured = Configured::load(&agent)?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let node = configured.own_node_name(&host)?;
        let extras = services::Extras {
            are_checked: options.server.has_health_checks(),
            has_load_balancer_ips: options.server.has_load_balancer_ips(),
        };
        let objects = services::objects(&options.services, &options.families(), extras)?;
        if options.server.tls.has_other_certificate() {
            bail!(
                "--tls-cert-file: the agent trusts the server's own certificates only; leave it out, or run `portolan serve` \
                   and `portolan proxy`"
            );
        }
        for family in Family::BOTH {
            let count = options.node_ip.iter().filter(|ip| Family::of(**ip) == family).count();
            anyhow::ensure!(
                count <= 1,
                "--node-ip: {count} {family} addresses; write at most one of each family"
            );
        }
        if let Some(path) = options.write_kubeconfig.as_deref().filter(|_| options.server.tls.has_tls()) {
            kubeconfig::check_replaceable(path)?;
        }
        Ok(Self { options, agent, objects, node })
    }

    /// Returns the Services of the command line. They belong to this host: others may use a store in etcd.
    fn given(&self) -> Given {
        // The name of a host may change. In a store of its own, all command lines are those of this host.
        let is_alone = !self.options.server.has_shared_store();
        Given {
            source: format!("{SOURCE}{}", self.node),
            takes_over: is_alone.then(|| SOURCE.to_owned()),
            objects: self.objects.clone(),
        }
    }

    fn warn(&self) {
        for service in services::unchecked(&self.options.services) {
            if self.options.server.has_health_checks() {
                let mend = "declare it in a manifest, with the annotations for health checks";
                tracing::warn!(service, mend, "not every port is TCP, so its endpoints are not checked");
            }
        }
    }
}

/// Runs until SIGTERM, SIGINT or SIGHUP, or until the agent or the server fails.
pub(crate) fn run(options: UpOptions) -> anyhow::Result<ExitCode> {
    if options.cleanup {
        return proxy::run(&options.agent()?).map(|()| ExitCode::SUCCESS);
    }
    let plan = Plan::new(options)?;
    if plan.options.dry_run {
        return dry_run::run(&plan).map(|()| ExitCode::SUCCESS);
    }
    logging::start(&Logging { verbosity: plan.options.v.into(), ..Logging::default() })?;
    serve(plan).map(|()| ExitCode::SUCCESS)
}

fn serve(plan: Plan) -> anyhow::Result<()> {
    anyhow::ensure!(
        privilege::is_effective(),
        "this needs the capability CAP_NET_ADMIN: run it as root, or in namespaces of your own (`unshare -Urn`)"
    );
    plan.warn();
    let given = plan.given();
    let Plan { options, agent, node, objects } = plan;
    let access = Access {
        has_tls: options.server.tls.has_tls(),
        pki: pki_folder(&options.server.data_dir),
        token: ProcessToken::new(Role::Proxy).context("the kernel gives no random numbers")?,
        is_given: options.write_kubeconfig.is_some(),
        kubeconfig: options.kubeconfig(),
    };
    let manifests = options.server.manifests.clone();
    let addresses = match options.node_ip.as_slice() {
        [] => host::follow().context("cannot start a thread")?,
        given => watch::channel(given.to_vec()).1,
    };
    let parts = Parts {
        given,
        node: OwnNode { name: node.clone(), addresses, is_given: !options.node_ip.is_empty() },
        token: access.token.clone(),
    };
    let mut server = Server::start(options.server, parts).context("cannot start a thread")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let (Started { address, api }, due) = runtime.block_on(opened(&mut server))?;
    reach(address)?;
    let is_stored = runtime.block_on(server.applied_by(due))?;
    let url = listening::url(address, access.has_tls);
    let (local, kubeconfig) = access.set_up(&url)?;
    let kubeconfig = kubeconfig.map(|file| file.display().to_string());
    let manifests = manifests.map(|folder| folder.display().to_string());
    let report = Report { node, api, objects, manifests, url, kubeconfig, socket: options.control_socket };
    print(&report.text(is_stored));
    let print_again = (!is_stored).then_some(|| print(&report.text(true)));
    let ended = async {
        tokio::select! {
            error = server.ended(print_again) => error,
            never = hangup::terminates() => match never {},
        }
    };
    let outcome = proxy::run_beside(&agent.with_local_server(local), ended);
    server.stop();
    outcome
}

/// Waits until the store is open, and says so if that takes long. Returns when the summary is due, too.
async fn opened(server: &mut Server) -> anyhow::Result<(Started, Instant)> {
    let due = || Instant::now() + PRINT_WITHIN;
    let first = due();
    let mut opening = std::pin::pin!(server.started());
    if let Ok(started) = timeout_at(first, &mut opening).await {
        return Ok((started?, first));
    }
    print(screen::OPENING);
    Ok((opening.await?, due()))
}

/// What the summary is made from.
struct Report {
    /// The name of the Node.
    node: String,
    api: Arc<Api>,
    /// The objects of the Services of the command line.
    objects: Vec<Value>,
    /// The folder of manifests.
    manifests: Option<String>,
    url: String,
    kubeconfig: Option<String>,
    socket: Option<String>,
}

impl Report {
    /// Returns the text. `is_stored`: all Services of the command line and of the manifests are.
    fn text(&self, is_stored: bool) -> String {
        let manifests = self.manifests.as_deref().filter(|_| !is_stored);
        // The Services of the command line are stored before the folder is read.
        let waits_for_folder = manifests.is_some() && screen::are_stored(&self.api, &self.objects);
        let arguments = !is_stored && !self.objects.is_empty() && !waits_for_folder;
        let summary = Summary {
            node: &self.node,
            addresses: &screen::node_addresses(&self.api, &self.node),
            rows: &screen::rows(&self.api),
            unstored: Unstored { arguments, manifests },
            url: &self.url,
            kubeconfig: self.kubeconfig.as_deref(),
            socket: self.socket.as_deref(),
        };
        summary.text()
    }
}

/// How clients on this host get access to the server.
struct Access {
    has_tls: bool,
    /// The folder of the server's certificates.
    pki: PathBuf,
    /// The token of the agent.
    token: ProcessToken,
    /// The file for kubectl.
    kubeconfig: PathBuf,
    /// True if the command line names this file.
    is_given: bool,
}

impl Access {
    /// Writes the kubeconfig of kubectl. Returns the access of the agent, and the file if it was written. If the usual file cannot be
    /// written, such as on a full disk, Services work without it.
    fn set_up(&self, url: &str) -> anyhow::Result<(LocalServer, Option<&Path>)> {
        if !self.has_tls {
            return Ok((LocalServer::of_kubeconfig(Kubeconfig::without_credentials(url).text()), None));
        }
        let (pki, path) = (Pki::open(&self.pki).context("--data-dir")?, &self.kubeconfig);
        let admin = Kubeconfig::with_certificate(&pki, url, None, Role::Admin, Role::Admin.default_user())?;
        let written = admin.write(path);
        let is_written = written.is_ok();
        match written {
            Err(error) if !self.is_given => {
                tracing::error!(file = %path.display(), %error, "kubectl gets no new credentials: cannot write its file");
            }
            written => written.with_context(|| {
                format!("cannot write {}; name another file with --write-kubeconfig", path.display())
            })?,
        }
        let local = LocalServer::of_kubeconfig(Kubeconfig::of_process(&pki, url, &self.token)?.text());
        Ok((local, is_written.then_some(path.as_path())))
    }
}

/// Checks that this host reaches its own server. Otherwise the agent would wait without end.
fn reach(address: SocketAddr) -> anyhow::Result<()> {
    let here = listening::from_here(address);
    match TcpStream::connect_timeout(&here, CONNECT_WITHIN) {
        Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable => {
            bail!("this host does not reach its own API server at {here}: {error}; run `ip link set lo up`")
        }
        // The agent logs other errors, and tries again.
        _ => Ok(()),
    }
}

/// Prints to the standard output, which may be closed.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
