//! The lock of the older iptables. Each of its programs holds it while it writes.
//!
//! The programs wait for the lock themselves, but do not report how long. So the data plane waits for it before it
//! runs one.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The path of the lock file (`XT_LOCK_NAME`).
const PATH: &str = "/run/xtables.lock";
/// The environment variable that gives programs another path, from version 1.8.3 on.
pub(super) const PATH_VARIABLE: &str = "XTABLES_LOCKFILE";
/// The pause between two attempts: far less than a restore takes.
const PAUSE: Duration = Duration::from_millis(5);

/// How the wait for the lock ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) duration: Duration,
    /// True if no process held the lock at the end.
    pub(super) is_free: bool,
}

/// Waits until no process holds the lock, but no longer than `limit`. `given` is the path of the lock file; `None`
/// stands for the usual one. Does not keep the lock: the program that runs next takes it.
pub(super) fn wait(given: Option<&Path>, limit: Duration) -> Wait {
    let usual = || std::env::var_os(PATH_VARIABLE).map_or_else(|| PathBuf::from(PATH), PathBuf::from);
    let path = given.map_or_else(usual, Path::to_owned);
    // If the file cannot be opened, the program reports why.
    File::open(path).map_or(Wait { duration: Duration::ZERO, is_free: true }, |file| until_free(&file, limit))
}

fn until_free(file: &File, limit: Duration) -> Wait {
    let started = Instant::now();
    loop {
        // Any other error counts as free: the program reports it.
        let is_free = !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
        let duration = started.elapsed();
        if is_free || duration >= limit {
            return Wait { duration, is_free };
        }
        sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_lock_ends_at_the_limit() {
        let path = std::env::temp_dir().join(format!("portolan-lock-{}", std::process::id()));
        let holder = File::create(&path).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(until_free(&file, Duration::ZERO).is_free);
        file.unlock().unwrap();

        holder.lock().unwrap();
        let limit = Duration::from_millis(20);
        let wait = until_free(&file, limit);
        assert!(!wait.is_free && wait.duration >= limit, "{wait:?}");

        let wait = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| until_free(&file, Duration::from_secs(60)));
            holder.unlock().unwrap();
            waiting.join().unwrap()
        });
        assert!(wait.is_free);
    }
}
