//! What a start would find out about the files that it makes: the control socket, and the former values of kernel settings.
//! Makes none of them.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use portolan_node::config::Portolan;
use portolan_web::{UnixSocket, UnixSocketError};
use rustix::fs::Access;

use super::{CheckResult, Item, Part};
use crate::control::socket::group_of;

/// How many folders of a path may be missing.
#[derive(Debug, Clone, Copy)]
enum Missing {
    /// The folder itself.
    Last,
    /// Each of them.
    Any,
}

/// Checks that the control socket can be opened. Returns nothing if none is configured.
pub(super) fn control_socket(settings: &Portolan) -> Option<Item> {
    if settings.control_socket.is_empty() {
        return None;
    }
    let path = Path::new(&settings.control_socket);
    let Some((fault, mend)) = socket_fault(settings, path) else {
        let text = format!("the control socket {} can be opened", path.display());
        return Some(Item::new(Part::Ports, CheckResult::Ok, text));
    };
    let text = format!(
        "the control socket {} cannot be opened, so that `portolan status` and `portolan explain` cannot ask the agent: {fault}",
        path.display()
    );
    let item = Item::new(Part::Ports, CheckResult::Warning, text);
    Some(if mend.is_empty() { item } else { item.with_mend(mend) })
}

/// Returns why the control socket cannot be opened, and what to do. The mend is empty if the text has it.
fn socket_fault(settings: &Portolan, path: &Path) -> Option<(String, &'static str)> {
    if let Err(error) = group_of(settings) {
        return Some((error, ""));
    }
    if let Err(error) = can_be_written(path.parent().unwrap_or(path), Missing::Any) {
        let mend = "let the user of the agent write there, or set another path in portolan.controlSocket";
        return Some((error, mend));
    }
    let error = UnixSocket::is_stale(path).err()?;
    let mend = match error {
        UnixSocketError::InUse(_) => "stop that process, or set another path in portolan.controlSocket",
        UnixSocketError::NotASocket(_) => "",
        UnixSocketError::Failed { .. } => "set another path in portolan.controlSocket",
    };
    Some((error.to_string(), mend))
}

/// Returns a warning if no folder for the former values of kernel settings can be written. Without folders, none is wanted.
pub(super) fn former_values<'a>(folders: impl IntoIterator<Item = &'a Path>) -> Option<Item> {
    let mut faults = Vec::new();
    for folder in folders {
        match can_be_written(folder, Missing::Last) {
            Ok(()) => return None,
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() {
        return None;
    }
    let text = format!(
        "the former values of kernel settings cannot be remembered, so that a clean-up cannot put them back: {}",
        faults.join("; ")
    );
    let mend =
        "let the user of the agent write to one of these folders, or name another in PORTOLAN_STATE_DIRS";
    Some(Item::new(Part::Node, CheckResult::Warning, text).with_mend(mend))
}

/// Checks that a file can be made in a folder, which is made if it is missing. Changes nothing.
///
/// # Errors
/// The folder that is in the way, with the reason.
fn can_be_written(folder: &Path, missing: Missing) -> Result<(), String> {
    let looked_at = match missing {
        Missing::Last => 2,
        Missing::Any => usize::MAX,
    };
    let mut last = folder;
    for at in folder.ancestors().take(looked_at) {
        // The last ancestor of a relative path is empty.
        last = if at.as_os_str().is_empty() { Path::new(".") } else { at };
        let found = match fs::metadata(last) {
            // A name below a file is in no folder.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
            Err(error) => Err(error.to_string()),
            Ok(found) if !found.is_dir() => Err("it is not a folder".to_owned()),
            Ok(_) => rustix::fs::access(last, Access::WRITE_OK | Access::EXEC_OK)
                .map_err(|error| error.to_string()),
        };
        return found.map_err(|fault| format!("{}: {fault}", last.display()));
    }
    Err(format!("{}: it does not exist", last.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use rustix::net::{Shutdown, shutdown};

    use super::*;

    /// Returns a folder with a file in it.
    fn scratch() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("a file");
        (folder, file)
    }

    fn socket(path: &Path, group: &str) -> (CheckResult, String) {
        let item = control_socket(&Portolan {
            control_socket: path.to_str().expect("text").to_owned(),
            control_socket_group: group.to_owned(),
            ..Portolan::default()
        });
        let item = item.expect("a socket is configured");
        (item.outcome, item.text)
    }

    #[test]
    fn a_control_socket_that_cannot_be_opened_is_a_warning() {
        let (folder, file) = scratch();
        let at = |name: &str| folder.path().join(name);
        assert_eq!(socket(&at("a/b/proxy.sock"), "").0, CheckResult::Ok);
        assert_eq!(socket(&at("a/b/proxy.sock"), "root").0, CheckResult::Ok);
        let taken = UnixListener::bind(at("taken")).expect("a socket");
        for (path, group, fault) in [
            (at("proxy.sock"), "no-such-group", "portolan.controlSocketGroup: `no-such-group`"),
            (at("file/b/proxy.sock"), "", "/file: it is not a folder"),
            (file, "", "/file exists and is not a socket"),
            (at("taken"), "", "another process listens on "),
        ] {
            let (outcome, text) = socket(&path, group);
            assert_eq!(outcome, CheckResult::Warning, "{text}");
            assert!(text.contains(fault), "{text}");
        }
        // Dropping it is not enough: see `portolan_testkit::close`.
        shutdown(&taken, Shutdown::Both).expect("the end of the listener");
        assert_eq!(socket(&at("taken"), "").0, CheckResult::Ok, "a start replaces it");
        assert!(control_socket(&Portolan { control_socket: String::new(), ..Portolan::default() }).is_none());
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["file", "taken"], "nothing was made or removed");
    }

    #[test]
    fn former_values_need_one_folder() {
        let (folder, file) = scratch();
        let (below, new, deep) = (file.join("state"), folder.path().join("new"), folder.path().join("a/b/c"));
        assert_eq!(former_values([]), None, "none is wanted");
        assert_eq!(former_values([below.as_path(), &new]), None);
        assert!(!new.exists());
        let item = former_values([below.as_path(), &deep]).expect("a warning");
        assert_eq!(item.outcome, CheckResult::Warning);
        let missing = folder.path().join("a/b");
        let not_a_folder = format!("{}: it is not a folder", file.display());
        for fault in [not_a_folder, format!("{}: it does not exist", missing.display())] {
            assert!(item.text.contains(&fault), "{}", item.text);
        }
    }
}
