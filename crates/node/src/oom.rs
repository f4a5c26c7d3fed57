//! The score of this process for the out-of-memory killer (`oomScoreAdj`).

use std::io;
use std::time::Duration;

use crate::sysctl::Host;

const SCORE: &str = "/proc/self/oom_score_adj";
/// The pause between kube-proxy's two attempts.
const RETRY: Duration = Duration::from_millis(100);

/// Sets the score, from -1000 to 1000. The kernel kills processes with a lower score later. Lowering it needs
/// `CAP_SYS_RESOURCE`.
///
/// # Errors
/// The kernel's error at the second attempt. Blocks for a tenth of a second before that attempt.
pub fn adjust(host: &Host, score: i32) -> io::Result<()> {
    let score = score.to_string();
    if host.read(SCORE).as_deref() == Some(&score) {
        return Ok(());
    }
    host.write(SCORE, &score).or_else(|_| {
        std::thread::sleep(RETRY);
        host.write(SCORE, &score)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_written_where_it_differs() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let host = Host::below(folder.path());
        assert_eq!(adjust(&host, 5).expect_err("no such file").kind(), io::ErrorKind::NotFound);
        std::fs::create_dir_all(folder.path().join("proc/self")).expect("a folder");
        std::fs::write(folder.path().join("proc/self/oom_score_adj"), "0\n").expect("a file");
        adjust(&host, -999).expect("writable");
        assert_eq!(host.read(SCORE).as_deref(), Some("-999"));
    }
}
