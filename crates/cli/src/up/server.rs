//! The API server of `portolan up`, on a thread of its own: a long list does not delay the agent, and the other way round.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::{io, thread};

use anyhow::anyhow;
use portolan_proxy::privilege;
use portolan_serve::manifests::Given;
use portolan_serve::{Api, Config, OwnNode, ProcessToken, Transport};
use tokio::sync::{oneshot, watch};

use crate::serve::{self, Additions, ServerOptions};

/// What the server is given besides its options.
pub(super) struct Parts {
    pub(super) given: Given,
    pub(super) node: OwnNode,
    pub(super) token: ProcessToken,
}

/// A server whose store is open.
pub(super) struct Started {
    pub(super) address: SocketAddr,
    pub(super) api: Arc<Api>,
}

/// The thread.
pub(super) struct Server {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    started: oneshot::Receiver<Started>,
    ended: oneshot::Receiver<anyhow::Error>,
    applied: watch::Receiver<bool>,
}

impl Server {
    /// Starts the thread.
    pub(super) fn start(options: ServerOptions, parts: Parts) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell_started, started) = oneshot::channel();
        let (tell_ended, ended) = oneshot::channel();
        let (tell_applied, applied) = watch::channel(false);
        let adjust = Box::new(move |config: &mut Config| {
            let Parts { given, node, token } = parts;
            config.given = Some(given);
            config.controllers.own_node = Some(node);
            config.applied = Some(tell_applied);
            if let Transport::Tls(settings) = &mut config.transport {
                settings.of_process = Some(token);
            }
        });
        let started_at = move |address, api: &Arc<Api>| {
            // The receiver is gone if the process ends.
            let _ = tell_started.send(Started { address, api: Arc::clone(api) });
            Ok(async move {
                let _ = stopped.await;
            })
        };
        let thread = thread::Builder::new().name("portolan-server".to_owned()).spawn(move || {
            // The agent keeps the capability on its own threads.
            if let Err(error) = privilege::give_up() {
                tracing::warn!(%error, "the API server has CAP_NET_ADMIN, which it does not need");
            }
            let additions = Additions { adjust, started: started_at };
            if let Err(error) = serve::run_server(options, additions) {
                let _ = tell_ended.send(error);
            }
        })?;
        Ok(Self { stop, thread, started, ended, applied })
    }

    /// Waits until the store is open.
    ///
    /// # Errors
    /// The server has ended.
    pub(super) async fn started(&mut self) -> anyhow::Result<Started> {
        tokio::select! {
            biased;
            error = end(&mut self.ended) => Err(error),
            started = &mut self.started => match started {
                Ok(started) => Ok(started),
                // The server drops the sender before it sends its error.
                Err(_) => Err(end(&mut self.ended).await),
            },
        }
    }

    /// Waits until the Services of the command line and of the manifests are stored.
    ///
    /// # Errors
    /// The server has ended.
    pub(super) async fn applied(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            error = end(&mut self.ended) => Err(error),
            applied = self.applied.wait_for(|applied| *applied) => match applied {
                Ok(_) => Ok(()),
                Err(_) => Err(end(&mut self.ended).await),
            },
        }
    }

    /// Waits until the server ends by itself. Returns why.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        end(&mut self.ended).await
    }

    /// Ends the server and waits for that.
    pub(super) fn stop(self) {
        let Self { stop, thread, mut ended, .. } = self;
        // It fails if the server has ended.
        let _ = stop.send(());
        let is_whole = thread.join().is_ok();
        match ended.try_recv() {
            Ok(error) => tracing::warn!("the API server ended with an error: {error:#}"),
            Err(_) if !is_whole => tracing::error!("the thread of the API server panicked"),
            Err(_) => {}
        }
    }
}

async fn end(ended: &mut oneshot::Receiver<anyhow::Error>) -> anyhow::Error {
    // A server that was not asked to end and sends no error has panicked.
    ended.await.unwrap_or_else(|_| anyhow!("the API server has ended")).context("API server")
}
