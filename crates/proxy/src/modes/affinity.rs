//! Session affinity of the iptables mode: the log has the endpoints for which the kernel remembers no more clients.

use std::sync::{Arc, Mutex, PoisonError};

use portolan_doctor::{checks, gather};
use portolan_node::sysctl::Host;

/// The lists of clients that were full at the last look. Both families have the same: a network namespace has one set of
/// lists.
#[derive(Debug, Clone, Default)]
pub(crate) struct FullLists(Arc<Mutex<Vec<String>>>);

impl FullLists {
    /// Reads the lists and their limit (`ip_list_tot`), and logs a warning if other lists are full than at the last look.
    pub(super) fn look(&self, host: &Host) {
        if let Some(warning) = self.warning(host) {
            tracing::warn!("{warning}");
        }
    }

    fn warning(&self, host: &Host) -> Option<String> {
        let lists = gather::affinity(host)?;
        let mut former = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *former == lists.full {
            return None;
        }
        let finding = checks::full_lists(&lists);
        *former = lists.full;
        let (title, mend) = finding.map(|finding| (finding.title, finding.mend))?;
        Some(format!(
            "{title}: each new client takes the place of another, which may get another endpoint; {mend}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_full_list_is_a_warning_once() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let host = Host::below(folder.path());
        let write = |path: &str, text: &str| {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        };
        let lists = FullLists::default();
        assert_eq!(lists.warning(&host), None, "no module");
        write("sys/module/xt_recent/parameters/ip_list_tot", "2\n");
        write("proc/thread-self/net/xt_recent/KUBE-SEP-A", "a\n");
        assert_eq!(lists.warning(&host), None, "room for one");
        write("proc/thread-self/net/xt_recent/KUBE-SEP-A", "a\nb\n");
        let warning = lists.warning(&host).expect("a full list");
        assert!(
            warning.contains("KUBE-SEP-A has 2 clients") && warning.contains("ip_list_tot=20"),
            "{warning}"
        );
        assert_eq!(lists.warning(&host), None, "the same");
        write("proc/thread-self/net/xt_recent/KUBE-SEP-B", "a\nb\n");
        assert!(lists.warning(&host).is_some(), "another one");
        write("proc/thread-self/net/xt_recent/KUBE-SEP-B", "");
        write("proc/thread-self/net/xt_recent/KUBE-SEP-A", "");
        assert_eq!(lists.warning(&host), None, "none");
    }
}
