//! Why a store cannot be opened.

use std::path::PathBuf;

use thiserror::Error;

/// Why a store cannot be opened. Nothing was changed.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The data folder, or a file in it, cannot be made, read or written.
    #[error("{}: {source}; the data folder must belong to the user that runs the server", .path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Another process has the data folder.
    #[error("{} is in use by another process; stop it, or give this one a data folder of its own", .0.display())]
    InUse(PathBuf),
    /// The file is damaged or is not a store's. It is left as it is.
    #[error(
        "{} cannot be read as a store: {reason}. It was left as it is: put a backup in its place, or move it away to \
         start without objects",
        .path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The state was written by a newer version.
    #[error(
        "{place} has format {found}, this version knows formats up to {known}; run the version that wrote it, or a \
         newer one"
    )]
    Newer {
        /// The file, or the prefix in etcd.
        place: String,
        /// The format that was found.
        found: u64,
        /// The newest format known here.
        known: u64,
    },
    /// The options for etcd make no sense.
    #[error("etcd {field}: {reason}")]
    Options {
        /// The option.
        field: &'static str,
        /// What is wrong and how to mend it.
        reason: String,
    },
    /// No etcd server gave what is needed to start.
    #[error("etcd at {endpoints}: {reason}")]
    Etcd {
        /// The servers.
        endpoints: String,
        /// What the last one said.
        reason: String,
    },
}
