//! The API server of `portolan up`, on a thread of its own: a long list does not delay the agent, and the other way round.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::{io, thread};

use anyhow::anyhow;
use portolan_proxy::{privilege, program};
use portolan_serve::manifests::Given;
use portolan_serve::{Api, Config, OwnNode, ProcessToken, Transport};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

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
    async fn applied(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            error = end(&mut self.ended) => Err(error),
            applied = self.applied.wait_for(|applied| *applied) => match applied {
                Ok(_) => Ok(()),
                Err(_) => Err(end(&mut self.ended).await),
            },
        }
    }

    /// Waits like [`Server::applied`], at most until `due`. Returns whether the Services are stored.
    ///
    /// # Errors
    /// The server has ended.
    pub(super) async fn applied_by(&mut self, due: Instant) -> anyhow::Result<bool> {
        match timeout_at(due, self.applied()).await {
            Ok(applied) => applied.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Waits until the server ends by itself. Returns why. Calls `when_applied` when the Services are stored.
    pub(super) async fn ended(&mut self, when_applied: Option<impl FnOnce()>) -> anyhow::Error {
        if let Some(tell) = when_applied {
            match self.applied().await {
                Ok(()) => tell(),
                Err(error) => return error,
            }
        }
        end(&mut self.ended).await
    }

    /// Ends the server and waits for that.
    pub(super) fn stop(self) {
        let Self { stop, thread, mut ended, .. } = self;
        // It fails if the server has ended.
        let _ = stop.send(());
        let is_whole = thread.join().is_ok();
        match ended.try_recv() {
            Ok(error) => tracing::warn!("the API server ended with an error: {}", program::text(&error)),
            Err(_) if !is_whole => tracing::error!("the thread of the API server panicked"),
            Err(_) => {}
        }
    }
}

async fn end(ended: &mut oneshot::Receiver<anyhow::Error>) -> anyhow::Error {
    // A server that was not asked to end and sends no error has panicked.
    ended.await.unwrap_or_else(|_| anyhow!("the API server has ended")).context("API server")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// A server without a thread, and what its thread would tell.
    struct Told {
        server: Server,
        applied: watch::Sender<bool>,
        ended: oneshot::Sender<anyhow::Error>,
    }

    impl Told {
        fn new() -> Self {
            let ((stop, _), (_, started)) = (oneshot::channel(), oneshot::channel());
            let ((applied, is_applied), (ended, end)) = (watch::channel(false), oneshot::channel());
            let thread = thread::spawn(|| {});
            let server = Server { stop, thread, started, ended: end, applied: is_applied };
            Self { server, applied, ended }
        }
    }

    #[tokio::test]
    async fn services_that_are_stored_late_are_told_of_once() {
        let Told { mut server, applied, ended } = Told::new();
        assert!(!server.applied_by(Instant::now()).await.unwrap());
        let times = Cell::new(0);
        let mut ending = Box::pin(server.ended(Some(|| times.set(times.get() + 1))));
        for (is_applied, expected) in [(false, 0), (true, 1), (true, 1)] {
            applied.send_replace(is_applied);
            assert!(timeout(Duration::ZERO, &mut ending).await.is_err());
            assert_eq!(times.get(), expected);
        }
        ended.send(anyhow!("broken")).unwrap();
        assert_eq!(ending.await.root_cause().to_string(), "broken");
    }

    #[tokio::test]
    async fn services_that_are_stored_in_time_are_told_of_at_once() {
        let Told { mut server, applied, ended: _running } = Told::new();
        applied.send_replace(true);
        assert!(server.applied_by(Instant::now()).await.unwrap());
    }

    #[tokio::test]
    async fn a_refused_argument_ends_the_wait() {
        let Told { mut server, applied: _running, ended } = Told::new();
        ended.send(anyhow!("refused")).unwrap();
        let error = server.applied_by(Instant::now()).await.unwrap_err();
        assert_eq!(error.root_cause().to_string(), "refused");
    }
}
