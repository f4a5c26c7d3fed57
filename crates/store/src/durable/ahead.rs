//! The file `ahead`: how far the revisions of the folder's store are ahead of the clock.
//!
//! A store that is restored while the clock is behind begins after the clock. The next store of the same folder must not
//! begin before its revisions, even if the clock has passed the beginning by then. `restore` therefore writes the last
//! revision that it assigned into this file.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

use super::disk::{inherit_owner, private_file};
use crate::OpenError;

const NAME: &str = "ahead";
const NEW_NAME: &str = "ahead.new";

/// A store begins this many revisions after another whose last revision is not known exactly. No store assigns as many
/// in the time by which it can be ahead of the clock.
pub(super) const BUMP: u64 = 1_000_000_000;

/// Returns the revision after which a new store of a folder begins: `revision`, or later if an earlier store of the folder
/// was ahead of the clock.
pub(super) fn after(dir: &Path, revision: u64) -> Result<u64, OpenError> {
    let path = dir.join(NAME);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let of_store: u64 = text.trim_end().parse().map_err(|_| OpenError::Corrupt {
                path,
                reason: "it does not contain a revision; `portolan serve restore` wrote one".into(),
            })?;
            Ok(revision.max(of_store.saturating_add(BUMP)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(revision),
        Err(source) => Err(OpenError::Io { path, source }),
    }
}

/// Writes the last revision of a store that is ahead of the clock, durably.
pub(super) fn note(dir: &Path, revision: u64) -> Result<(), OpenError> {
    let (new, path) = (dir.join(NEW_NAME), dir.join(NAME));
    let written = || {
        let mut file = private_file().create(true).truncate(true).open(&new)?;
        inherit_owner(&file, &new);
        writeln!(file, "{revision}")?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(dir)?.sync_all()
    };
    written().map_err(|source| OpenError::Io { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_begins_after_one_that_was_ahead_of_the_clock() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(after(dir.path(), 1_000).unwrap(), 1_000);
        note(dir.path(), 5_000).unwrap();
        note(dir.path(), 6_000).unwrap();
        assert_eq!(after(dir.path(), 1_000).unwrap(), 6_000 + BUMP);
        assert_eq!(after(dir.path(), 7_000).unwrap(), 6_000 + BUMP);
        assert_eq!(after(dir.path(), 9_000 + BUMP).unwrap(), 9_000 + BUMP);
        fs::write(dir.path().join(NAME), "").unwrap();
        assert!(matches!(after(dir.path(), 1_000), Err(OpenError::Corrupt { .. })));
    }
}
