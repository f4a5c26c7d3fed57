//! A node with an API server, on which kube-proxy and Portolan run in turns, with one configuration file as in a pod.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use portolan_testkit::{KubeProxy, Namespace, PortolanProcess, Protocol, eventually, kubeconfig};
use tempfile::TempDir;

use crate::common::load::busy_services;
use crate::common::{Cluster, PATIENCE, at, backends, configuration, page, reaches};

/// The built-in chains of iptables, as a firewall has them. A clean-up cannot know which program has added them.
const FIREWALL: &str = "*mangle\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
     :POSTROUTING ACCEPT [0:0]\nCOMMIT\n\
     *nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n\
     *filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n";

pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    program: KubeProxy,
    /// The folder of the configuration, laid out as kubelet lays out the volume of a `ConfigMap`.
    folder: TempDir,
    version: Cell<u32>,
}

impl Site {
    pub(crate) fn new(program: KubeProxy) -> Self {
        let cluster = Cluster::new();
        busy_services(&cluster);
        for restore in ["iptables-nft-restore", "ip6tables-nft-restore"] {
            cluster.world.node().namespace().output_with_input(restore, &[], FIREWALL).unwrap();
        }
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("kubeconfig.conf"), kubeconfig(&cluster.master())).unwrap();
        symlink("..data/config.conf", folder.path().join("config.conf")).unwrap();
        eprintln!("kube-proxy {}", program.version());
        Self { cluster, program, folder, version: Cell::new(0) }
    }

    pub(crate) fn node(&self) -> &Namespace {
        self.cluster.world.node().namespace()
    }

    /// Writes the configuration as kubelet does after a change of the `ConfigMap`: kube-proxy does not notice it.
    pub(crate) fn configure(&self, mode: &str) {
        let number = self.version.get();
        self.version.set(number + 1);
        let path = |name: &str| self.folder.path().join(name);
        let (old, new) = (format!("..{number}"), format!("..{}", number + 1));
        fs::create_dir(path(&new)).unwrap();
        fs::write(path(&new).join("config.conf"), self.configuration(mode)).unwrap();
        symlink(&new, path("..data_tmp")).unwrap();
        fs::rename(path("..data_tmp"), path("..data")).unwrap();
        if number > 0 {
            fs::remove_dir_all(path(&old)).unwrap();
        }
    }

    fn configuration(&self, mode: &str) -> String {
        let kubeconfig = self.folder.path().join("kubeconfig.conf");
        configuration(&format!(
            "mode: {mode}\nclientConnection: {{kubeconfig: {}}}\n{}",
            kubeconfig.display(),
            self.program.configuration()
        ))
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("config.conf")
    }

    /// Returns a command as it runs in the folder of the configuration.
    pub(crate) fn in_folder(&self, command: &str) -> String {
        format!("cd {} && {command}", self.folder.path().display())
    }

    /// Starts kube-proxy in a mode on a node without rules, and waits until its rules work.
    pub(crate) fn start_kube_proxy(&self, mode: &str) -> PortolanProcess {
        self.configure(mode);
        let mut process = self.run_kube_proxy();
        let (client, pods) = (self.cluster.world.client().namespace(), self.cluster.all_pods());
        // kube-proxy writes all rules of a family at once.
        for to in ["198.51.100.7:80", "[2001:db8:100::7]:80"].map(at) {
            let first = eventually(PATIENCE, "kube-proxy's rules", || {
                assert!(process.ended().is_none(), "kube-proxy ended: {}", process.output());
                !backends(client, Protocol::Tcp, to).is_empty()
            });
            assert!(first.is_ok(), "{to}: {}", process.output());
            reaches(client, Protocol::Udp, to, &pods);
        }
        process
    }

    /// Starts kube-proxy with the present configuration.
    pub(crate) fn run_kube_proxy(&self) -> PortolanProcess {
        let file = self.file();
        let arguments = ["--config", file.to_str().unwrap(), "--v=2"];
        PortolanProcess::start(self.node(), self.program.path(), &arguments).unwrap()
    }

    /// Starts Portolan with the present configuration.
    pub(crate) fn start_portolan(&self) -> PortolanProcess {
        self.cluster.run(&["proxy", "--config", self.file().to_str().unwrap()])
    }

    /// Returns the mode of the process that runs.
    pub(crate) fn mode(&self) -> String {
        page(&self.cluster, "/proxyMode")
    }
}
