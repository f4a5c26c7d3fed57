//! The proxies that run in the network namespace of this thread.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::facts::{Containing, Distribution, Process, Program, Proxies};

/// Inode of the machine's first namespace of process IDs (`PROC_PID_INIT_INO` of the kernel).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// The names by which proxies are called.
const KUBE_PROXY: &str = "kube-proxy";
const PORTOLAN: &str = "portolan";
/// The node agent alone.
const PORTOLAN_PROXY: &str = "portolan-proxy";

/// Returns the proxies. A process whose network namespace cannot be read makes the list incomplete if it is a proxy.
pub(super) fn read() -> io::Result<Proxies> {
    let here = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    let own = std::process::id();
    let complete = std::fs::metadata("/proc/self/ns/pid")?.ino() == FIRST_PID_NAMESPACE;
    let mut proxies = Proxies { complete, ..Proxies::default() };
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let folder = entry.path();
        // A process may end while it is looked at.
        let Some(found) = found(pid, &folder).filter(|_| pid != own) else { continue };
        match std::fs::metadata(folder.join("ns/net")) {
            Ok(namespace) if namespace.ino() == here => match found {
                Found::Proxy(process) => proxies.processes.push(process),
                Found::Containing(process) => proxies.containing.push(process),
            },
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // The kernel refuses the look at a process that ends meanwhile.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !folder.exists() => {}
            Err(_) => proxies.complete = false,
        }
    }
    proxies.processes.sort_by_key(|process| process.pid);
    proxies.containing.sort_by_key(|process| process.pid);
    proxies.complete &= proxies.containing.is_empty();
    Ok(proxies)
}

/// What a process is.
enum Found {
    Proxy(Process),
    Containing(Containing),
}

/// Reads a process; `None` if it neither is a proxy nor contains one.
fn found(pid: u32, folder: &Path) -> Option<Found> {
    let line = std::fs::read(folder.join("cmdline")).ok()?;
    let arguments: Vec<String> =
        line.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned()).collect();
    if let Some(program) = distribution(&arguments) {
        return Some(Found::Containing(Containing { pid, program }));
    }
    // Only root can read it of other users' processes. A deleted file has a suffix after its name.
    let file = std::fs::read_link(folder.join("exe")).ok();
    let file = file.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    let program = program(&arguments, file.unwrap_or_default())?;
    Some(Found::Proxy(Process { pid, program, mode: mode(&arguments) }))
}

/// Returns the distribution whose program contains kube-proxy. `None` if the command line says that kube-proxy is off.
///
/// k3s replaces its command line by a title of two words, so that tokens do not show.
fn distribution(arguments: &[String]) -> Option<Distribution> {
    let mut words = arguments.iter().flat_map(|argument| argument.split_ascii_whitespace());
    match Path::new(words.next()?).file_name()?.to_str()? {
        "k3s" if ["server", "agent"].contains(&words.next()?) => {
            let is_off =
                words.any(|word| word == "--disable-kube-proxy" || word == "--disable-kube-proxy=true");
            (!is_off).then_some(Distribution::K3s)
        }
        "kubelite" => Some(Distribution::Kubelite),
        _ => None,
    }
}

/// Returns which proxy it is. Portolan may be called by the name kube-proxy; then the name of its file differs.
fn program(arguments: &[String], file: &str) -> Option<Program> {
    let (called, rest) = arguments.split_first()?;
    let ends =
        ["cleanup", "explain", "status", "--cleanup", "--dry-run", "--init-only", "--version", "--help"];
    if rest.iter().any(|argument| ends.contains(&argument.as_str())) {
        return None;
    }
    match Path::new(called).file_name()?.to_str()? {
        PORTOLAN_PROXY => Some(Program::Portolan),
        KUBE_PROXY
            if file.split(' ').next().is_some_and(|file| [PORTOLAN, PORTOLAN_PROXY].contains(&file)) =>
        {
            Some(Program::Portolan)
        }
        KUBE_PROXY => Some(Program::KubeProxy),
        PORTOLAN if rest.iter().any(|argument| argument == "proxy") => Some(Program::Portolan),
        // The API server and the node agent in one process.
        PORTOLAN if rest.first().is_some_and(|first| first == "up") => Some(Program::Portolan),
        _ => None,
    }
}

/// Returns the value of `--proxy-mode`, which may follow as an argument of its own. `None` with a configuration file, which
/// replaces the flag.
fn mode(arguments: &[String]) -> Option<String> {
    let (mut mode, mut rest) = (None, arguments.iter());
    while let Some(argument) = rest.next() {
        if argument == "--config" || argument.starts_with("--config=") {
            return None;
        }
        if argument == "--proxy-mode" {
            mode = rest.next().cloned();
        } else if let Some(value) = argument.strip_prefix("--proxy-mode=") {
            mode = Some(value.to_owned());
        }
    }
    // `portolan up` has a default of its own.
    let is_up = arguments.iter().any(|argument| argument == "up");
    mode.filter(|mode| !mode.is_empty()).or_else(|| is_up.then(|| "nftables".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn programs_by_name_and_file() {
        let of = |line: &str, file: &str| program(&words(line), file);
        assert_eq!(of("/usr/local/bin/kube-proxy --v=2", "kube-proxy"), Some(Program::KubeProxy));
        assert_eq!(of("kube-proxy --config=x", "portolan"), Some(Program::Portolan));
        assert_eq!(of("kube-proxy --config=x", "portolan (deleted)"), Some(Program::Portolan));
        assert_eq!(of("/usr/bin/portolan proxy --v=2", ""), Some(Program::Portolan));
        assert_eq!(of("/usr/bin/portolan-proxy --v=2", ""), Some(Program::Portolan));
        assert_eq!(of("kube-proxy --config=x", "portolan-proxy"), Some(Program::Portolan));
        assert_eq!(of("portolan-proxy cleanup", "portolan-proxy"), None);
        assert_eq!(of("portolan-proxy status -o json", "portolan-proxy"), None);
        assert_eq!(of("portolan-proxy explain node 10.96.0.1:443", "portolan-proxy"), None);
        assert_eq!(of("portolan proxy --cleanup", "portolan"), None);
        assert_eq!(of("portolan up web=80:10.0.0.1:8080", "portolan"), Some(Program::Portolan));
        assert_eq!(of("portolan up --dry-run", "portolan"), None);
        assert_eq!(of("portolan demo up", "portolan"), None);
        assert_eq!(of("portolan serve", "portolan"), None);
        assert_eq!(of("portolan doctor", "portolan"), None);
        assert_eq!(of("vim kube-proxy", "vim"), None);
        assert_eq!(of("", ""), None);
    }

    #[test]
    fn programs_that_contain_kube_proxy() {
        let of = |arguments: &[&str]| {
            distribution(&arguments.iter().copied().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(of(&["/usr/local/bin/k3s server", "", ""]), Some(Distribution::K3s));
        assert_eq!(of(&["k3s", "agent", "--server", "https://10.0.0.1:6443"]), Some(Distribution::K3s));
        assert_eq!(of(&["k3s", "server", "--disable-kube-proxy"]), None);
        assert_eq!(of(&["k3s", "server", "--disable-kube-proxy=false"]), Some(Distribution::K3s));
        assert_eq!(of(&["k3s", "kubectl", "get", "pods"]), None);
        assert_eq!(
            of(&["/snap/microk8s/1/kubelite", "--start-control-plane=false"]),
            Some(Distribution::Kubelite)
        );
        assert_eq!(of(&["vim", "k3s"]), None);
        assert_eq!(of(&[""]), None);
    }

    #[test]
    fn modes_of_the_command_line() {
        assert_eq!(mode(&words("kube-proxy --proxy-mode=ipvs")).as_deref(), Some("ipvs"));
        assert_eq!(mode(&words("kube-proxy --proxy-mode nftables --v=2")).as_deref(), Some("nftables"));
        assert_eq!(mode(&words("kube-proxy --proxy-mode")), None);
        assert_eq!(mode(&words("kube-proxy --v=2")), None);
        assert_eq!(mode(&words("kube-proxy --proxy-mode=")), None);
        let twice = "kube-proxy --proxy-mode=ipvs --proxy-mode=iptables";
        assert_eq!(mode(&words(twice)).as_deref(), Some("iptables"));
        let after = "kube-proxy --config-sync-period=1m --proxy-mode=ipvs";
        assert_eq!(mode(&words(after)).as_deref(), Some("ipvs"));
        for file in ["--config=x --proxy-mode=nftables", "--proxy-mode=nftables --config x"] {
            assert_eq!(mode(&words(file)), None, "the file replaces the flag");
        }
    }

    #[test]
    fn the_processes_of_this_machine_can_be_read() {
        let proxies = read().expect("/proc");
        let own = std::process::id();
        assert!(proxies.processes.iter().all(|process| process.pid != own));
    }
}
