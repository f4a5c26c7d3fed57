//! A way to etcd that can be cut.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};

#[derive(Debug)]
pub struct Proxy {
    port: u16,
    cut: watch::Sender<bool>,
    task: AbortHandle,
}

impl Proxy {
    pub async fn start(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cut, state) = watch::channel(false);
        let task = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut state = state.clone();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
                    tokio::select! {
                        _ = state.wait_for(|cut| *cut) => {}
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                    }
                });
            }
        });
        Self { port, cut, task: task.abort_handle() }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ends every connection, and lets none through until [`Proxy::mend`].
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub fn mend(&self) {
        self.cut.send_replace(false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
