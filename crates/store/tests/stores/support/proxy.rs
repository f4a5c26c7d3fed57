//! A TCP proxy in front of etcd that can cut or stall its connections.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Open,
    /// Connections stay open and transfer nothing, even after [`Proxy::mend`].
    Stalled,
    Cut,
}

#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: watch::Sender<State>,
    task: AbortHandle,
}

impl Proxy {
    pub async fn start(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, state) = watch::channel(State::Open);
        let task = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut state = state.clone();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
                    let changed = async {
                        let state = state.wait_for(|state| *state != State::Open).await;
                        state.map_or(State::Cut, |state| *state)
                    };
                    let changed = tokio::select! {
                        state = changed => state,
                        _ = copy_bidirectional(&mut client, &mut server) => State::Cut,
                    };
                    if changed == State::Stalled {
                        let _ = state.wait_for(|state| *state == State::Cut).await;
                    }
                });
            }
        });
        Self { port, state: sender, task: task.abort_handle() }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Closes every connection, and new ones at once, until [`Proxy::mend`].
    pub fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    /// Keeps every connection, but transfers nothing.
    pub fn stall(&self) {
        self.state.send_replace(State::Stalled);
    }

    pub fn mend(&self) {
        self.state.send_replace(State::Open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
