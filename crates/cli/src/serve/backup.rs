//! `portolan serve --check`, `backup`, `restore` and `rescue`: work on the file of objects, without a server.

mod manifests;

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use portolan_store::{OpenError, offline};

use super::DATA_DIR;
use crate::check_ips::FINDINGS;

const CANNOT_PRINT: &str = "cannot write to standard output";

/// Options of `portolan serve backup`.
#[derive(Debug, Args)]
pub(super) struct Backup {
    /// File to write, which only its owner may read. It must not exist.
    file: PathBuf,
    /// Folder of the server's data.
    #[arg(long, default_value = DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Options of `portolan serve restore`.
#[derive(Debug, Args)]
pub(super) struct Restore {
    /// The backup.
    file: PathBuf,
    /// Folder for the server's data. It must have no objects.
    #[arg(long, default_value = DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Options of `portolan serve rescue`.
#[derive(Debug, Args)]
pub(super) struct Rescue {
    /// File to write: JSON, for --manifests or kubectl. Only its owner may read it. It must not exist.
    file: PathBuf,
    /// Folder of the server's data.
    #[arg(long, default_value = DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Checks the store in a data folder and prints what it has. The exit code is 0 if it is whole, [`FINDINGS`] if it is
/// damaged, and 1 if that could not be found out.
pub(super) fn check(data_dir: &Path) -> anyhow::Result<ExitCode> {
    match offline::check(data_dir) {
        Ok(summary) => {
            print(&summary, "whole")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(OpenError::Corrupt { path, reason }) => {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}: damaged: {reason}", path.display())
                .and_then(|()| writeln!(out, "{}", rescuable(data_dir)))
                .context(CANNOT_PRINT)?;
            Ok(ExitCode::from(FINDINGS))
        }
        Err(error) => Err(named(&error)),
    }
}

/// Returns what can be done about a damaged store, as a sentence.
pub(super) fn rescuable(data_dir: &Path) -> String {
    match offline::rescue(data_dir) {
        Ok(rescued) => {
            format!("{}: `portolan serve rescue` writes them as manifests", rescued.count())
        }
        Err(error) => format!("nothing of it can be read: {error}"),
    }
}

/// Writes a backup.
pub(super) fn backup(options: &Backup) -> anyhow::Result<()> {
    let summary = offline::backup(&options.data_dir, &options.file).map_err(|error| named(&error))?;
    print(&summary, "written")
}

/// Creates a store from a backup.
pub(super) fn restore(options: &Restore) -> anyhow::Result<()> {
    let summary = offline::restore(&options.file, &options.data_dir).map_err(|error| named(&error))?;
    print(&summary, "restored")
}

/// Writes what can be read of a store as manifests.
pub(super) fn rescue(options: &Rescue) -> anyhow::Result<()> {
    let rescued = offline::rescue(&options.data_dir).map_err(|error| named(&error))?;
    let (list, count) = manifests::list(&rescued.objects)?;
    let target = || format!("cannot write {}", options.file.display());
    let mut new = std::fs::OpenOptions::new();
    let mut file = new.write(true).create_new(true).mode(0o600).open(&options.file).with_context(target)?;
    file.write_all(list.as_bytes()).and_then(|()| file.sync_all()).with_context(target)?;
    let damage =
        rescued.damage.as_deref().map_or_else(|| "whole".to_owned(), |why| format!("damaged: {why}"));
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}: {damage}", rescued.path.display())
        .and_then(|()| writeln!(out, "{}", rescued.count()))
        .and_then(|()| {
            rescued
                .doubtful
                .iter()
                .try_for_each(|(resource, key)| writeln!(out, "doubtful: {} {key}", resource.info().kind))
        })
        .and_then(|()| writeln!(out, "{}: {count} manifests", options.file.display()))
        .context(CANNOT_PRINT)
}

fn print(summary: &offline::Summary, what: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let offline::Summary { path, bytes, revision, objects } = summary;
    writeln!(out, "{}: {what}, {bytes} bytes, last revision {revision}", path.display())
        .context(CANNOT_PRINT)?;
    objects.iter().try_for_each(|(resource, count)| {
        writeln!(out, "{:<14} {count}", resource.info().kind).context(CANNOT_PRINT)
    })
}

/// The error's message contains its source.
fn named(error: &OpenError) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}
