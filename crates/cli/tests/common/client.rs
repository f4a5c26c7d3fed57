//! A client of the API server, as other programs have it.

use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use portolan_testkit::Namespace;

/// Runs a client with a kubeconfig on a node.
pub(crate) fn run<T: Send>(
    node: &Namespace,
    kubeconfig: &Path,
    work: impl AsyncFnOnce(Client) -> kube::Result<T> + Send,
) -> T {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig).unwrap();
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
            work(Client::try_from(config).unwrap()).await.unwrap()
        })
    };
    node.run(work).unwrap()
}
