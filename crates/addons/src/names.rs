//! The DNS server for names of Services, with the objects of the store.

mod feed;
mod forward;
mod listen;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_api::Api;
use portolan_dns::server::Bound;
use portolan_dns::{Limits, Server, Settings, Zone};
use portolan_web::metrics::{Collect, MetricKind, Page, Sources, labels_text};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use self::forward::{Forward, ForwardParseError};
use self::listen::Answering;
use crate::{AddonError, thread};

/// Name of the thread.
const THREAD: &str = "portolan-dns";

/// Settings of the DNS server.
#[derive(Debug, Clone)]
pub struct NamesConfig {
    /// Addresses to listen on, over UDP and TCP. With port 0 the kernel selects the port.
    pub listen: Vec<SocketAddr>,
    /// The cluster domain, such as `cluster.local`.
    pub domain: String,
    /// Servers that are asked about other names. `None`: such requests are refused.
    pub forward: Option<Forward>,
    /// True if the Service `kube-system/kube-dns` is maintained.
    pub service: bool,
}

/// Whether the DNS server answers with all names. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_in_sync: AtomicBool,
    /// True if the thread has ended or panicked.
    has_ended: AtomicBool,
}

impl Readiness {
    /// Returns an error that says why the server is not ready.
    pub fn check(&self) -> Result<(), String> {
        if self.0.has_ended.load(Relaxed) {
            return Err("the DNS server has ended".to_owned());
        }
        let is_in_sync = self.0.is_in_sync.load(Relaxed);
        is_in_sync.then_some(()).ok_or_else(|| "the names of Services are not known yet".to_owned())
    }
}

/// A DNS server whose settings are checked and whose sockets are bound, besides those of addresses that come later.
#[derive(Debug)]
pub(crate) struct Prepared {
    settings: Settings,
    /// The sockets are absent if this host does not have the address yet.
    sockets: Vec<(SocketAddr, Option<Bound>)>,
    answering: Answering,
    forward: Option<(Forward, forward::Servers)>,
    service: bool,
}

impl Prepared {
    pub(crate) fn new(config: &NamesConfig) -> Result<Self, AddonError> {
        let domain = || AddonError::Domain(config.domain.clone());
        let settings = Settings::new(&config.domain).ok_or_else(domain)?;
        let bind = |address: &SocketAddr| {
            if address.ip().is_unspecified() {
                return Err(AddonError::Unspecified(*address));
            }
            let bound = Bound::new(*address).and_then(|bound| Ok((bound.address()?, Some(bound))));
            match bound {
                // At boot it may come later, and a virtual address moves between hosts.
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable && address.port() != 0 => {
                    Ok((*address, None))
                }
                bound => bound.map_err(|source| AddonError::Listen { address: *address, source }),
            }
        };
        let sockets = config.listen.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let bound = sockets.iter().filter(|(_, bound)| bound.is_some()).map(|(address, _)| *address);
        let answering = Answering::new(bound.filter(|address| listen::is_local(*address)).collect());
        let read = |forward: &Forward| Ok::<_, AddonError>((forward.clone(), forward.read()?));
        let forward = config.forward.as_ref().map(read).transpose()?;
        Ok(Self { settings, sockets, answering, forward, service: config.service })
    }

    /// Returns the addresses that are to be endpoints of the Service.
    pub(crate) fn endpoints(&self) -> Vec<SocketAddr> {
        if self.service { self.addresses() } else { Vec::new() }
    }

    /// Returns the addresses at which the server answers, now and later.
    pub(crate) fn answering(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.answering.subscribe()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().map(|(address, _)| *address).collect()
    }

    pub(crate) fn start(
        self,
        api: &Arc<Api>,
        loaded: watch::Receiver<bool>,
        stopping: &watch::Receiver<bool>,
        tasks: &mut JoinSet<()>,
        metrics: &Sources,
    ) -> Result<Readiness, AddonError> {
        let addresses = self.addresses();
        let own = {
            let (addresses, service, api) =
                (addresses.clone(), self.settings.server.clone(), Arc::clone(api));
            move || forward::own_addresses(&addresses, &service, &api)
        };
        let known = own();
        let forwarder = self.forward.as_ref().and_then(|(_, servers)| servers.forwarder(&known));
        let later = self.forward.filter(|_| forwarder.is_none());
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // Serial numbers are compared in a circle of 2^32 (RFC 1982), so the high bits may be lost.
        let serial = u32::try_from(seconds & u64::from(u32::MAX)).unwrap_or_default();
        let zone = Arc::new(RwLock::new(Zone::new(self.settings, serial)));
        let server = Arc::new(Server::new(Arc::clone(&zone), forwarder, Limits::default()));
        let readiness = Readiness::default();
        let answering = self.answering;
        let source = Source {
            server: Arc::clone(&server),
            readiness: readiness.clone(),
            addresses,
            answering: answering.clone(),
        };
        let (api, ended) = (Arc::clone(api), Ended(readiness.clone()));
        let sockets = self.sockets;
        thread::spawn(THREAD, stopping, tasks, async move |stopping| {
            let mut listeners = JoinSet::new();
            for (address, bound) in sockets {
                listeners.spawn(listen::listen(Arc::clone(&server), address, bound, answering.clone()));
            }
            let forward = async {
                if let Some((forward, servers)) = later {
                    server.forward_to(forward.wait((servers, known), own).await);
                }
                std::future::pending::<()>().await;
            };
            let in_sync = &ended.0.0.is_in_sync;
            tokio::select! {
                () = thread::stopped(stopping) => {}
                () = feed::follow(&api, &zone, loaded, in_sync) => {}
                () = forward => {}
                Some(Err(error)) = listeners.join_next() => tracing::error!(%error, "the DNS server panicked"),
            }
        })?;
        metrics.register(Arc::new(source));
        Ok(readiness)
    }
}

/// Notes the end of the thread, also after a panic.
struct Ended(Readiness);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.0.has_ended.store(true, Relaxed);
    }
}

/// The metrics of the server.
struct Source {
    server: Arc<Server>,
    readiness: Readiness,
    /// All addresses of the server.
    addresses: Vec<SocketAddr>,
    answering: Answering,
}

impl Collect for Source {
    fn collect(&self, page: &mut Page) {
        self.server.metrics().collect(page);
        let help = "1 if all Services and EndpointSlices have been read.";
        let is_ready = f64::from(u8::from(self.readiness.check().is_ok()));
        page.single("portolan_dns_in_sync", MetricKind::Gauge, help, is_ready);
        let (name, help) = ("portolan_dns_answering", "1 if the server answers at the address.");
        page.family(name, MetricKind::Gauge, help);
        for address in &self.addresses {
            let labels = labels_text([("address", &address.to_string())]);
            page.sample(name, &labels, f64::from(u8::from(self.answering.contains(address))));
        }
    }
}
