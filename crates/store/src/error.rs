//! Errors from opening a store.

use std::path::PathBuf;

use thiserror::Error;

/// Why a store cannot be opened. Existing data is unchanged.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The data folder, or a file in it, cannot be created, read or written.
    #[error("{}: {source}; the data folder must belong to the user that runs the server", .path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A sync of the file has failed, and the copy that replaces it cannot be written.
    #[error("{}: a sync has failed, so the file must be copied before the next write: {source}", .path.display())]
    Copy {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another process holds the lock of the data folder.
    #[error("{} is in use by another process; stop it, or give this one a data folder of its own", .0.display())]
    InUse(PathBuf),
    /// The file is damaged or was not written by a store. It is left as it is.
    #[error(
        "{} cannot be read as a store: {reason}. It was left as it is: move it away, and restore a backup or start \
         without objects",
        .path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A backup cannot be read or written.
    #[error("the backup {}: {source}", .path.display())]
    Backup {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// There is a store already.
    #[error("{} exists: nothing is restored over a store; move it away, or give another data folder", .0.display())]
    Exists(PathBuf),
    /// There is no store to read.
    #[error("there is no {}", .0.display())]
    Missing(PathBuf),
    /// The file changes whenever it is read.
    #[error("{} is written to all the time; try again, or stop the server for that long", .0.display())]
    Busy(PathBuf),
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
        /// The newest format that this version knows.
        known: u64,
    },
    /// An option for etcd is invalid.
    #[error("etcd {field}: {reason}")]
    Options {
        /// The option.
        field: &'static str,
        /// What is wrong and how to fix it.
        reason: String,
    },
    /// No etcd server returned what is needed to start.
    #[error("etcd at {endpoints}: {reason}")]
    Etcd {
        /// The endpoints.
        endpoints: String,
        /// The error of the last attempt.
        reason: String,
    },
}
