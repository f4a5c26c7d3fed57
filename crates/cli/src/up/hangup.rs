//! SIGHUP, which a terminal sends when it is closed. It ends the process as SIGTERM does, so that no control socket is left.

use std::convert::Infallible;
use std::fs;
use std::future::pending;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};

/// Sends SIGTERM to this process when SIGHUP arrives. Leaves a signal that is ignored alone: `nohup` asks for that.
pub(super) async fn terminates() -> Infallible {
    if is_ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default()) {
        return pending().await;
    }
    match signal(SignalKind::hangup()) {
        Ok(mut hangup) => {
            // Once: a second SIGTERM would end the process at once, and a closed terminal may send SIGHUP twice.
            if hangup.recv().await.is_some()
                && let Err(error) = kill_process(getpid(), Signal::TERM)
            {
                tracing::warn!(%error, "SIGHUP does not end the process; send SIGTERM");
            }
        }
        Err(error) => tracing::warn!(%error, "SIGHUP ends the process without an end of its work"),
    }
    pending().await
}

/// Returns true if the process whose status this is ignores SIGHUP (`proc_pid_status(5)`).
fn is_ignored(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_found() {
        let status =
            |mask: &str| format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n");
        assert!(is_ignored(&status("0000000000001001")));
        assert!(!is_ignored(&status("0000000000001000")) && !is_ignored(""));
    }
}
