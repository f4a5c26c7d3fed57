//! Programs in front of those of the node, as scripts.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Creates a script for each program of iptables that the node has and whose name has one of these endings. `script` gets
/// the node's own program and returns the lines after the first.
pub(crate) fn in_front(folder: &Path, endings: &[&str], script: impl Fn(&Path) -> String) {
    let path = std::env::var("PATH").unwrap();
    for program in ["iptables", "ip6tables"] {
        for ending in endings {
            let name = format!("{program}{ending}");
            let files = path.split(':').map(|folder| PathBuf::from(folder).join(&name));
            let Some(own) = files.into_iter().find(|file| file.exists()) else { continue };
            let file = folder.join(&name);
            fs::write(&file, format!("#!/bin/sh\n{}", script(&own))).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        }
    }
}

/// Returns a `PATH` on which the programs of this folder are found first.
pub(crate) fn path(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}
