//! Opens the store of `portolan serve`: a file, etcd or memory.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use clap::Args;
use portolan_serve::{History, MemoryStore, Store};
use portolan_store::{Credentials, DurableStore, EtcdOptions, EtcdStore, EtcdTls, OpenError};

use super::backup::rescuable;

/// A file in the data folder, unless something else is asked for.
#[derive(Debug, Args)]
pub(super) struct StoreOptions {
    /// Keep objects in memory only: they end with the process.
    #[arg(long, conflicts_with = "etcd_servers")]
    in_memory: bool,
    /// Keep objects in etcd, which several servers may share, instead of a file.
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// What the keys in etcd begin with.
    #[arg(long, value_name = "PREFIX", default_value = "/portolan/v1", requires = "etcd_servers")]
    etcd_prefix: String,
    /// Authority of etcd's certificates.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    etcd_cafile: Option<PathBuf>,
    /// Certificate to show to etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Private key of --etcd-certfile.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// File with a user and a password for etcd, one a line.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    etcd_credentials_file: Option<PathBuf>,
}

impl StoreOptions {
    /// Returns true if other servers may use the same store.
    pub(super) fn is_shared(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Returns true if the objects end with the process.
    pub(super) const fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// Opens the store. The tasks of an etcd store run on the current runtime.
    pub(super) async fn open(&self, data_dir: &Path, history: History) -> anyhow::Result<Arc<dyn Store>> {
        if self.in_memory {
            return Ok(Arc::new(MemoryStore::new(history)));
        }
        if self.etcd_servers.is_empty() {
            return match DurableStore::open(data_dir, history) {
                Ok(store) => Ok(Arc::new(store)),
                Err(error @ OpenError::Corrupt { .. }) => {
                    Err(anyhow::anyhow!("--data-dir: {error}. {}", rescuable(data_dir)))
                }
                // The error's message contains its source.
                Err(error) => Err(anyhow::anyhow!("--data-dir: {error}")),
            };
        }
        let store = EtcdStore::connect(self.etcd()?, history).await;
        Ok(Arc::new(store.map_err(|error| anyhow::anyhow!("--etcd-servers: {error}"))?))
    }

    fn etcd(&self) -> anyhow::Result<EtcdOptions> {
        let tls = match &self.etcd_cafile {
            None if self.etcd_certfile.is_some() => {
                anyhow::bail!(
                    "--etcd-certfile: give --etcd-cafile, too: the authority of etcd's certificates"
                )
            }
            None => None,
            Some(file) => Some(EtcdTls {
                ca: read("--etcd-cafile", file)?,
                identity: match (&self.etcd_certfile, &self.etcd_keyfile) {
                    (Some(certificate), Some(key)) => {
                        Some((read("--etcd-certfile", certificate)?, read("--etcd-keyfile", key)?))
                    }
                    _ => None,
                },
                server_name: None,
            }),
        };
        let credentials = self.etcd_credentials_file.as_ref().map(|file| credentials(file)).transpose()?;
        Ok(EtcdOptions {
            endpoints: self.etcd_servers.clone(),
            prefix: self.etcd_prefix.clone(),
            tls,
            credentials,
            ..EtcdOptions::default()
        })
    }
}

fn credentials(file: &Path) -> anyhow::Result<Credentials> {
    let flag = "--etcd-credentials-file";
    let text = String::from_utf8(read(flag, file)?).with_context(|| format!("{flag} {}", file.display()))?;
    let mut lines = text.lines().map(str::to_owned);
    match (lines.next(), lines.next()) {
        (Some(name), Some(password)) if !name.is_empty() => Ok(Credentials { name, password }),
        _ => anyhow::bail!(
            "{flag} {}: write the user into the first line and the password into the second",
            file.display()
        ),
    }
}

fn read(flag: &str, file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("{flag}: cannot read {}", file.display()))
}
