//! Kernel settings under `/proc/sys`: read first, write only what differs.

use std::io;
use std::path::{Path, PathBuf};

/// Why a kernel setting could not be made right.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The setting could not be written.
    #[error("cannot set {} to {value}: {source}; set it on the node, or make /proc/sys writable", .path.display())]
    Write {
        /// The file of the setting.
        path: PathBuf,
        /// The value that it should have.
        value: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Sets `name` (such as `net/ipv4/ip_forward`) to `value`; true if it had to be written.
///
/// A setting that cannot be read counts as different, so that a missing one is reported by the write.
pub fn set(name: &str, value: &str) -> Result<bool, SysctlError> {
    set_file(&Path::new("/proc/sys").join(name), value)
}

fn set_file(path: &Path, value: &str) -> Result<bool, SysctlError> {
    if std::fs::read_to_string(path).is_ok_and(|now| now.trim() == value) {
        return Ok(false);
    }
    let written = std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    written.map(|()| true).map_err(|source| SysctlError::Write {
        path: path.into(),
        value: value.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_value_is_not_written_again() {
        let name = "kernel/ostype";
        let now = std::fs::read_to_string("/proc/sys/kernel/ostype").expect("every kernel has one");
        assert!(!set(name, now.trim()).expect("already right"));
    }

    #[test]
    fn a_missing_setting_is_named() {
        let error = set("net/no_such_setting", "1").expect_err("it does not exist").to_string();
        assert!(error.starts_with("cannot set /proc/sys/net/no_such_setting to 1: "), "{error}");
    }

    #[test]
    fn a_different_value_is_written_once() {
        let path = std::env::temp_dir().join(format!("portolan-sysctl-{}", std::process::id()));
        std::fs::write(&path, "0\n").expect("a scratch file");
        let results = [set_file(&path, "1"), set_file(&path, "1")].map(|result| result.expect("writable"));
        std::fs::remove_file(&path).expect("still there");
        assert_eq!(results, [true, false]);
    }
}
