//! The lock of the older iptables, which each of its programs holds while it writes.
//!
//! The programs wait for it by themselves, but nobody can see for how long: so it is waited for before one is run.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where it is (`XT_LOCK_NAME`).
const PATH: &str = "/run/xtables.lock";
/// By this, programs from version 1.8.3 on are told of another place.
pub(super) const PATH_VARIABLE: &str = "XTABLES_LOCKFILE";
/// Between two looks: far less than a restore takes.
const PAUSE: Duration = Duration::from_millis(5);

/// How the wait for the lock ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) duration: Duration,
    /// Nobody held the lock at the end.
    pub(super) is_free: bool,
}

/// Waits until nobody holds the lock, the usual one where none is given, but no longer than `limit`. It is not taken:
/// the program that is run next does.
pub(super) fn wait(given: Option<&Path>, limit: Duration) -> Wait {
    let usual = || std::env::var_os(PATH_VARIABLE).map_or_else(|| PathBuf::from(PATH), PathBuf::from);
    let path = given.map_or_else(usual, Path::to_owned);
    // Where it cannot be opened, the program says why.
    File::open(path).map_or(Wait { duration: Duration::ZERO, is_free: true }, |file| until_free(&file, limit))
}

fn until_free(file: &File, limit: Duration) -> Wait {
    let started = Instant::now();
    loop {
        // Whatever else is wrong with it is for the program to tell.
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
    fn a_lock_is_waited_for_and_given_up_at_the_limit() {
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
