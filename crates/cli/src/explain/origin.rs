//! Where what is wanted comes from: the running proxy, files, or an API server.

use std::env;
use std::path::PathBuf;

use portolan_proxy::Connection;
use portolan_watch::ClientSettings;

use super::ExplainOptions;

/// The four ways to ask, for an error.
pub(super) const WAYS: &str = "There are four ways to ask: on a node with a running proxy, as root (--control-socket FILE if it \
                               listens elsewhere); about objects in files (--manifests PATH); about a cluster (--kubeconfig FILE \
                               and --node NAME); about a snapshot of another node (--snapshot FILE)";

/// The kubeconfig file of kubectl, in the home folder.
const HOME_FILE: &str = ".kube/config";

/// Where what is wanted comes from.
#[derive(Debug)]
pub(super) enum Origin {
    /// The running proxy of this node.
    Agent,
    /// Files and folders.
    Manifests,
    /// An API server.
    ApiServer(Box<ClientSettings>),
}

impl Origin {
    /// Returns the origin that the command line asks for. If it is an API server, takes the flags of the connection from
    /// those of the proxy. With manifests these say what an agent has.
    ///
    /// # Errors
    /// The kernel is to be compared with nothing.
    pub(super) fn of(
        options: &ExplainOptions,
        proxy: &mut portolan_proxy::ProxyOptions,
    ) -> anyhow::Result<Self> {
        if !options.manifests.is_empty() {
            return Ok(Self::Manifests);
        }
        let connection = proxy.take_connection();
        let is_named = connection != Connection::default() || options.context.is_some();
        if options.is_plugin || is_named {
            return Ok(Self::ApiServer(Box::new(settings(connection, options.context.clone()))));
        }
        anyhow::ensure!(
            !options.kernel,
            "--kernel compares the kernel with objects: name them with --manifests or --kubeconfig, or leave it out to ask \
             the running proxy, which reads the kernel, too"
        );
        Ok(Self::Agent)
    }
}

fn settings(connection: Connection, context: Option<String>) -> ClientSettings {
    let Connection { kubeconfig, master } = connection;
    let mut files = match (kubeconfig, &master, &context) {
        (Some(file), ..) => vec![file],
        (None, Some(_), None) => Vec::new(),
        (None, ..) => files_of_kubectl(|name| env::var_os(name)),
    };
    let first = (!files.is_empty()).then(|| files.remove(0));
    ClientSettings {
        kubeconfig: first,
        more_kubeconfigs: files,
        master,
        context,
        qps: -1.0,
        ..ClientSettings::default()
    }
}

/// Returns the files that kubectl reads without `--kubeconfig`: those of `KUBECONFIG` that exist, or else the one in the home
/// folder, if it exists.
fn files_of_kubectl(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Vec<PathBuf> {
    let exists = |path: &PathBuf| path.exists();
    if let Some(files) = variable("KUBECONFIG").filter(|files| !files.is_empty()) {
        return env::split_paths(&files).filter(exists).collect();
    }
    let home = variable("HOME").map(|home| PathBuf::from(home).join(HOME_FILE));
    home.into_iter().filter(exists).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn the_files_are_those_of_kubectl() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path(".kube")).expect("a folder");
        for name in ["a", "b", HOME_FILE] {
            std::fs::write(path(name), "").expect("a file");
        }
        let found = |kubeconfig: Option<OsString>| {
            files_of_kubectl(|name| match name {
                "KUBECONFIG" => kubeconfig.clone(),
                _ => Some(folder.path().into()),
            })
        };
        let several = env::join_paths(["b", "none", "a"].map(path)).expect("paths");
        assert_eq!(found(Some(several)), [path("b"), path("a")]);
        assert!(found(Some(path("none").into())).is_empty(), "the home folder does not count");
        assert_eq!(found(Some(OsString::new())), [path(HOME_FILE)]);
        assert_eq!(found(None), [path(HOME_FILE)]);
        assert!(files_of_kubectl(|_| None).is_empty());
    }
}
