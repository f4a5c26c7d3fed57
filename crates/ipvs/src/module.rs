//! Modules of schedulers that the kernel must not load by itself.
//!
//! The kernel loads a scheduler while it holds the lock of IPVS (`__ip_vs_mutex`). The modules of `lblc` and `lblcr`
//! register operations for each network namespace (`register_pernet_subsys`), which waits for namespaces that end. The end
//! of a namespace waits for the lock of IPVS. So if a namespace ends at that moment, as with each pod, neither goes on, and
//! the node can create and remove no namespace until it is restarted. Loaded before they are used, they do no harm.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use portolan_model::IpvsScheduler;

/// Folder of a module that is loaded.
const LOADED: &str = "/sys/module";
/// The functions of the kernel and of its modules, one in a line. Those of modules have the module's name in brackets.
const FUNCTIONS: &str = "/proc/kallsyms";

/// Returns true if the scheduler can be requested from the kernel: its module is loaded or built in, or the kernel may load
/// it. Loads the module with `modprobe` if the kernel may not.
pub(super) fn is_usable(scheduler: IpvsScheduler) -> bool {
    static LBLC_BUILT_IN: OnceLock<bool> = OnceLock::new();
    static LBLCR_BUILT_IN: OnceLock<bool> = OnceLock::new();
    let built_in = match scheduler {
        IpvsScheduler::Lblc => &LBLC_BUILT_IN,
        IpvsScheduler::Lblcr => &LBLCR_BUILT_IN,
        _ => return true,
    };
    let module = format!("ip_vs_{scheduler}");
    let is_loaded = || Path::new(LOADED).join(&module).exists();
    is_loaded() || *built_in.get_or_init(|| is_built_in(scheduler)) || (load(&module) && is_loaded())
}

/// Modules without parameters that are built into the kernel have no folder.
fn is_built_in(scheduler: IpvsScheduler) -> bool {
    let Ok(functions) = std::fs::read_to_string(FUNCTIONS) else { return false };
    let schedule = format!("ip_vs_{scheduler}_schedule");
    functions.lines().any(|line| line.split_whitespace().nth(2) == Some(&schedule) && !line.ends_with(']'))
}

/// Returns true if the program loads the module. It needs `CAP_SYS_MODULE` and the modules of the kernel.
fn load(module: &str) -> bool {
    let mut modprobe = Command::new("modprobe");
    modprobe.args(["--quiet", module]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    modprobe.status().is_ok_and(|status| status.success())
}
