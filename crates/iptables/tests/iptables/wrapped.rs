//! Scripts in place of the programs of iptables.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use portolan_iptables::{Programs, Variant};
use portolan_testkit::eventually;

use super::load::{LOCK, real_program};

/// Writes a program, and returns once it can be run. A file that is open for writing cannot be run, and a process that another
/// test starts meanwhile has it open, too, until it runs its own program.
pub(crate) fn write_program(path: &Path, script: &str) {
    fs::write(path, script).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    let runs = || Command::new(path).arg("--version").output().is_ok();
    eventually(Duration::from_secs(180), "a program can be run", runs).unwrap();
}

/// Returns programs in a folder that are those of a variant for IPv4, but for the one with this suffix: that one is a script of the
/// shell.
pub(crate) fn wrapped(folder: &Path, variant: Variant, suffix: &str, script: &str) -> Programs {
    let real = real_program(variant);
    for other in ["", "-save", "-restore"] {
        let passed_on = format!("exec {real}{other} \"$@\"");
        let script = if other == suffix { script } else { &passed_on };
        write_program(&folder.join(format!("iptables{other}")), &format!("#!/bin/sh\n{script}\n"));
    }
    Programs::named(folder.join("iptables").display().to_string()).unwrap().with_lock(LOCK)
}
