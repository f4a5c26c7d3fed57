//! Connects to the store in etcd.

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use portolan_serve::{History, Store};
use portolan_store::{Credentials, EtcdOptions, EtcdStore, EtcdTls, Renewal, Secrets};

use super::EtcdFlags;

/// Connects to etcd. The tasks of the store run on the current runtime.
pub(super) async fn connect(flags: &EtcdFlags, history: History) -> anyhow::Result<Arc<dyn Store>> {
    let store = EtcdStore::connect(options(flags)?, history).await;
    Ok(Arc::new(store.map_err(|error| anyhow::anyhow!("--etcd-servers: {error}"))?))
}

fn options(flags: &EtcdFlags) -> anyhow::Result<EtcdOptions> {
    let (tls, credentials) = secrets(flags)?;
    let again = flags.clone();
    let has_files = tls.is_some() || credentials.is_some();
    let renewal =
        has_files.then(|| Renewal::new(move || secrets(&again).map_err(|error| format!("{error:#}"))));
    Ok(EtcdOptions {
        endpoints: flags.etcd_servers.clone(),
        prefix: flags.etcd_prefix.clone(),
        tls,
        credentials,
        renewal,
        compaction: Some(flags.etcd_compaction_interval).filter(|interval| !interval.is_zero()),
        ..EtcdOptions::default()
    })
}

/// Reads the files of the flags.
fn secrets(flags: &EtcdFlags) -> anyhow::Result<Secrets> {
    let tls = match &flags.etcd_cafile {
        None if flags.etcd_certfile.is_some() => {
            anyhow::bail!("--etcd-certfile: give --etcd-cafile, too: the authority of etcd's certificates")
        }
        None => None,
        Some(file) => Some(EtcdTls {
            ca: read("--etcd-cafile", file)?,
            identity: match (&flags.etcd_certfile, &flags.etcd_keyfile) {
                (Some(certificate), Some(key)) => {
                    Some((read("--etcd-certfile", certificate)?, read("--etcd-keyfile", key)?))
                }
                _ => None,
            },
            server_name: None,
        }),
    };
    let credentials = flags.etcd_credentials_file.as_ref().map(|file| credentials(file)).transpose()?;
    Ok((tls, credentials))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: EtcdFlags,
    }

    fn parsed(arguments: &[&str]) -> EtcdOptions {
        let line = ["x", "--etcd-servers=127.0.0.1:2379"].iter().chain(arguments);
        options(&<Line as clap::Parser>::try_parse_from(line).unwrap().flags).unwrap()
    }

    #[test]
    fn compaction_has_an_interval_and_can_be_left_to_etcd() {
        assert_eq!(parsed(&[]).compaction, EtcdOptions::default().compaction);
        assert_eq!(parsed(&["--etcd-compaction-interval=5m"]).compaction, Some(Duration::from_secs(300)));
        assert_eq!(parsed(&["--etcd-compaction-interval=0"]).compaction, None);
    }

    #[test]
    fn files_are_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "root\nsecret\n").unwrap();
        let options = parsed(&[&format!("--etcd-credentials-file={}", file.path().display())]);
        std::fs::write(&file, "root\nother\n").unwrap();
        assert_eq!(options.credentials.unwrap().password, "secret");
        let (_, again) = options.renewal.unwrap().read().unwrap();
        assert_eq!(again.unwrap().password, "other");
        assert!(parsed(&[]).renewal.is_none());
    }
}
