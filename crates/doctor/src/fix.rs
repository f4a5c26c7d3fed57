//! Executes the mends that are safe (`--fix`), each once, and says what was done.

use std::io::ErrorKind;

use portolan_node::sysctl::Host;
use serde::Serialize;

use crate::finding::{Finding, Fix, Setting, sysctl_name};

/// Removes what kube-proxy left in the network namespace of this thread: its tables and chains, and nothing that Portolan
/// uses in nftables mode. Returns what was removed, in words.
///
/// The caller supplies it, because it knows the rules of each mode.
pub type RemoveLeftovers<'a> = &'a dyn Fn() -> Result<String, String>;

/// The result of one fix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fixed {
    /// The fix.
    pub fix: Fix,
    /// The outcome.
    pub outcome: FixState,
    /// What was done, or why it failed.
    pub text: String,
}

/// How a fix ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FixState {
    /// It was executed.
    Done,
    /// It would be executed without `--dry-run`.
    WouldDo,
    /// It failed.
    Failed,
}

/// Executes the fixes of findings, or only lists them if `dry`. A fix that several findings share is executed once. A
/// failure does not stop the remaining ones.
pub fn execute(host: &Host, findings: &[Finding], remove: RemoveLeftovers<'_>, dry: bool) -> Vec<Fixed> {
    let mut fixes: Vec<&Fix> = Vec::new();
    for fix in findings.iter().filter_map(|finding| finding.fix.as_ref()) {
        if !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    let done = |fix: &Fix| {
        if dry {
            return Fixed { fix: fix.clone(), outcome: FixState::WouldDo, text: fix.to_string() };
        }
        match one(host, fix, remove) {
            Ok(text) => Fixed { fix: fix.clone(), outcome: FixState::Done, text },
            Err(text) => Fixed { fix: fix.clone(), outcome: FixState::Failed, text },
        }
    };
    fixes.into_iter().map(done).collect()
}

fn one(host: &Host, fix: &Fix, remove: RemoveLeftovers<'_>) -> Result<String, String> {
    match fix {
        Fix::Sysctl { first, setting } => {
            let mut before = String::new();
            // A failure ends it, because a later setting would do harm without the earlier ones.
            for Setting { path, value } in first.iter().chain([setting]) {
                let file = format!("/proc/sys/{path}");
                before = host.read(&file).unwrap_or_default();
                match host.write(&file, value) {
                    // The interface is gone.
                    Err(error) if error.kind() == ErrorKind::NotFound && *path != setting.path => {}
                    written => written.map_err(|error| format!("{fix}: {}: {error}", sysctl_name(path)))?,
                }
            }
            Ok(format!("{fix} (was {before:?}; write it to /etc/sysctl.d to keep it after a restart)"))
        }
        Fix::RemoveLeftovers => remove(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::finding::{Code, Severity};

    fn setting(value: &str) -> Finding {
        Finding::setting(Code::ForwardingOff, Severity::Error, "off", "net/ipv4/ip_forward", value)
    }

    fn leftovers() -> Finding {
        let finding = Finding::new(Code::LeftoversOfKubeProxy, Severity::Warning, "left", "");
        Finding { fix: Some(Fix::RemoveLeftovers), ..finding }
    }

    #[test]
    fn each_fix_is_executed_once_and_a_dry_run_executes_none() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let file = folder.path().join("proc/sys/net/ipv4/ip_forward");
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(&file, "0\n").expect("a file");
        let host = Host::below(folder.path());
        let removals = Cell::new(0);
        let remove = || {
            removals.set(removals.get() + 1);
            Ok("2 chains".to_owned())
        };
        let findings = [setting("1"), leftovers(), leftovers()];
        let dry = execute(&host, &findings, &remove, true);
        assert!(dry.iter().all(|fixed| fixed.outcome == FixState::WouldDo));
        assert_eq!((dry.len(), removals.get()), (2, 0));
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), "0\n");
        let done = execute(&host, &findings, &remove, false);
        assert!(done.iter().all(|fixed| fixed.outcome == FixState::Done), "{done:?}");
        assert_eq!((done.len(), removals.get()), (2, 1));
        assert!(std::fs::read_to_string(&file).expect("a file").starts_with('1'));
    }

    #[test]
    fn settings_are_written_in_order_and_none_after_a_failure() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let settings = ["a", "b"].map(|name| Setting::new(name, "2"));
        let [first, last] = settings.clone();
        let finding =
            Finding::settings(Code::ForwardingOff, Severity::Error, "off", vec![first], last.clone());
        assert_eq!(finding.mend, "sysctl -w a=2 && sysctl -w b=2");
        let file = |setting: &Setting| folder.path().join("proc/sys").join(&setting.path);
        let text = |setting| std::fs::read_to_string(file(setting)).expect("a file");
        std::fs::create_dir_all(folder.path().join("proc/sys")).expect("a folder");
        std::fs::write(file(&last), "1").expect("a file");
        let host = Host::below(folder.path());
        let fix = || execute(&host, std::slice::from_ref(&finding), &|| Ok(String::new()), false);
        // A folder cannot be written.
        std::fs::create_dir(file(&settings[0])).expect("a folder");
        assert_eq!((fix()[0].outcome, text(&last)), (FixState::Failed, "1".to_owned()));
        std::fs::remove_dir(file(&settings[0])).expect("a folder");
        // The interface is gone.
        assert_eq!((fix()[0].outcome, text(&last)), (FixState::Done, "2".to_owned()));
        std::fs::write(file(&settings[0]), "1").expect("a file");
        assert_eq!(fix()[0].outcome, FixState::Done);
        assert_eq!(settings.each_ref().map(text), ["2", "2"]);
    }

    #[test]
    fn a_failure_does_not_stop_the_others() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let host = Host::below(folder.path());
        let found = execute(&host, &[setting("1"), leftovers()], &|| Ok(String::new()), false);
        let outcomes: Vec<FixState> = found.iter().map(|fixed| fixed.outcome).collect();
        assert_eq!(outcomes, [FixState::Failed, FixState::Done]);
    }
}
