//! A signal in the first moments of the program ends it with status 0, and not by the signal. Needs root, and fails
//! without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs::{self, OpenOptions};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use portolan_testkit::{Namespace, PortolanProcess, eventually};
use rustix::process::Signal;

use common::{BINARY, PATIENCE, configuration};

/// Starts the program in a namespace.
fn start(namespace: &Namespace, arguments: &[&str]) -> PortolanProcess {
    PortolanProcess::start(namespace, BINARY.as_ref(), arguments).unwrap()
}

/// Sends the signal and asserts status 0.
fn ends_with_0(mut process: PortolanProcess, signal: Signal, when: &str) {
    process.signal(signal);
    let status = process.wait_for_end(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{when}: {status}: {}", process.output());
}

/// Creates a pipe in place of a file, so that its reader blocks.
fn pipe(path: &Path) {
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
}

/// Waits until a process reads from a pipe.
fn is_read(path: &Path) {
    const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    // Without a reader, the kernel refuses to open it for writing (fifo(7)).
    let read =
        || OpenOptions::new().write(true).custom_flags(NONBLOCK).open(path).map(std::mem::forget).is_ok();
    assert!(eventually(PATIENCE, "a reader", read).is_ok(), "{}", path.display());
}

#[test]
fn a_signal_while_the_configuration_is_read_ends_with_0() {
    let (namespace, folder) = (Namespace::new("early").unwrap(), tempfile::tempdir().unwrap());
    for signal in [Signal::TERM, Signal::INT] {
        let file = folder.path().join(format!("{signal:?}.yaml"));
        pipe(&file);
        let process = start(&namespace, &["proxy", "--config", file.to_str().unwrap()]);
        is_read(&file);
        ends_with_0(process, signal, "--config");
    }
}

#[test]
fn a_signal_while_the_kubeconfig_is_read_ends_with_0() {
    let (namespace, folder) = (Namespace::new("early").unwrap(), tempfile::tempdir().unwrap());
    let (file, kubeconfig) = (folder.path().join("config.yaml"), folder.path().join("kubeconfig"));
    pipe(&kubeconfig);
    let line = format!("clientConnection: {{kubeconfig: {}}}\n", kubeconfig.display());
    fs::write(&file, configuration(&line)).unwrap();
    let process = start(&namespace, &["proxy", "--config", file.to_str().unwrap()]);
    is_read(&kubeconfig);
    ends_with_0(process, Signal::TERM, "kubeconfig");
}

/// An action that ends by itself has something to finish. If a signal ends it before, its status is not 0.
#[test]
fn an_action_that_is_ended_early_does_not_succeed() {
    let (namespace, folder) = (Namespace::new("early").unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("config.yaml");
    pipe(&file);
    for flag in ["--cleanup", "--init-only", "--write-config-to=/nonexistent/file"] {
        let mut process = start(&namespace, &["proxy", flag, "--config", file.to_str().unwrap()]);
        is_read(&file);
        process.signal(Signal::TERM);
        let status = process.wait_for_end(PATIENCE).unwrap();
        assert_eq!(status.code(), None, "{flag}: by the signal, not {status}");
    }
}

/// Returns true if the process blocks or catches SIGTERM (`proc_pid_status(5)`).
fn has_decided(process: &PortolanProcess) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
    let mask = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        u64::from_str_radix(line.trim(), 16).unwrap_or(0)
    };
    (mask("SigBlk:") | mask("SigCgt:")) & (1 << (Signal::TERM.as_raw() - 1)) != 0
}

#[test]
fn a_signal_at_any_point_of_a_start_ends_with_0() {
    let (namespace, folder) = (Namespace::new("early").unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("config.yaml");
    fs::write(&file, configuration("")).unwrap();
    let arguments = ["proxy", "--config", file.to_str().unwrap(), "--master", "http://127.0.0.1:1"];
    for point in 0..40 {
        let process = start(&namespace, &arguments);
        assert!(eventually(PATIENCE, "main", || has_decided(&process)).is_ok());
        // A busy loop, because these are points of a start and not a wait for an event.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_micros(300 * point) {
            std::hint::spin_loop();
        }
        ends_with_0(process, Signal::TERM, &format!("point {point}"));
    }
}

#[test]
fn a_signal_while_the_store_opens_ends_with_0() {
    let (namespace, folder) = (Namespace::new("early").unwrap(), tempfile::tempdir().unwrap());
    namespace.ip("link set lo up").unwrap();
    for (number, signal) in [Signal::TERM, Signal::INT].into_iter().cycle().take(6).enumerate() {
        let data = folder.path().join(number.to_string());
        let arguments = ["serve", "--listen", "127.0.0.1:6443", "--data-dir", data.to_str().unwrap()];
        let process = start(&namespace, &arguments);
        // The server listens before it opens its store.
        let listens = || namespace.run(|| TcpStream::connect("127.0.0.1:6443").is_ok()).unwrap();
        assert!(eventually(PATIENCE, "a listener", listens).is_ok(), "{}", process.output());
        ends_with_0(process, signal, &format!("serve, {signal:?}"));
    }
}
