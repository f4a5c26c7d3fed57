//! Permission to create network namespaces: root has it, other users have it as root of their own user namespace.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// Environment variable that marks a process that is in its own user namespace.
pub(super) const MARK: &str = "PORTOLAN_DEMO_USER_NAMESPACE";
const UNSHARE: [&str; 4] = ["--user", "--map-root-user", "--net", "--"];

/// Returns once this process may create network namespaces. For a user other than root, it first executes itself
/// again in a user namespace, with the same process id.
pub(super) fn obtain() -> anyhow::Result<()> {
    if portolan_testkit::can_create_namespaces() {
        return Ok(());
    }
    if env::var_os(MARK).is_some() || !user_namespaces_work() {
        bail!(
            "this needs network namespaces, and the kernel gives them neither to this user nor in a user \
             namespace. Run it as root, or allow user namespaces (sysctl user.max_user_namespaces, \
             kernel.unprivileged_userns_clone or kernel.apparmor_restrict_unprivileged_userns)"
        );
    }
    let program = env::current_exe().context("cannot find the own program")?;
    let mut command = Command::new("unshare");
    command.args(UNSHARE).arg(program).args(env::args_os().skip(1)).env(MARK, "1");
    Err(command.exec()).context("cannot start unshare (package util-linux)")
}

fn user_namespaces_work() -> bool {
    let mut command = Command::new("unshare");
    command.args(UNSHARE).arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
