//! `/healthz`, `/livez` and `/readyz`, in upstream's format (apiserver, `server/healthz`).

use std::fmt::{self, Write as _};
use std::sync::{Arc, PoisonError, RwLock};

use http::StatusCode;

/// Checks a part of the server. The error says what does not work, for the log.
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The checks of `/readyz`. Clones share them.
#[derive(Clone, Default)]
pub struct Checks(Arc<RwLock<Vec<(&'static str, Check)>>>);

impl Checks {
    /// Adds a check to `/readyz`. It is called often and must not block.
    pub fn register(&self, name: &'static str, check: Check) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push((name, check));
    }

    /// Returns these checks and one more. Checks that are registered afterwards with `self` are not among them.
    pub(super) fn with(&self, name: &'static str, check: Check) -> Self {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let with = Self(Arc::new(RwLock::new(all)));
        with.register(name, check);
        with
    }

    /// Returns the answer to a path below one of the three; `None` if there is no such check.
    ///
    /// `folder` says whether the manifests folder has been read; `None` without a folder.
    pub(super) fn answer(
        &self,
        path: &str,
        query: &str,
        stopping: bool,
        folder: Option<bool>,
    ) -> Option<(StatusCode, String)> {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        let endpoint = segments.next()?;
        let wanted = segments.next();
        if !matches!(endpoint, "healthz" | "livez" | "readyz") || segments.next().is_some() {
            return None;
        }
        let mut results = vec![("ping", Ok(()))];
        // A restart does not help a server that is stopping or has lost its store. So these checks do not affect
        // `/livez` and `/healthz`.
        if endpoint == "readyz" {
            let checks = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
            results.extend(checks.iter().map(|(name, check)| (*name, check())));
            if let Some(is_read) = folder {
                let unread = || "the manifests folder has not been read yet".to_owned();
                results.push(("manifests", is_read.then_some(()).ok_or_else(unread)));
            }
            let open = if stopping { Err("the server stops".to_owned()) } else { Ok(()) };
            results.push(("shutdown", open));
        }
        if let Some(wanted) = wanted {
            results.retain(|(name, _)| *name == wanted);
            if results.is_empty() {
                return None;
            }
        }
        let parameters = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let excluded = |name: &str| parameters().any(|(key, value)| key == "exclude" && value == name);
        let verbose = parameters().any(|(key, _)| key == "verbose");
        let failed = results.iter().filter(|(name, result)| result.is_err() && !excluded(name)).count() > 0;
        let text =
            if failed || verbose { report(endpoint, &results, &excluded, failed) } else { "ok".to_owned() };
        Some((if failed { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }, text))
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Checks").finish_non_exhaustive()
    }
}

fn report(
    endpoint: &str,
    results: &[(&str, Result<(), String>)],
    excluded: &dyn Fn(&str) -> bool,
    failed: bool,
) -> String {
    let mut text = String::new();
    for (name, result) in results {
        // Reasons go to the log only, because these paths need no authentication.
        let line = match result {
            _ if excluded(name) => format!("[+]{name} excluded: ok\n"),
            Ok(()) => format!("[+]{name} ok\n"),
            Err(reason) => {
                tracing::info!(check = name, reason, "not ready");
                format!("[-]{name} failed: reason withheld\n")
            }
        };
        text.push_str(&line);
    }
    let _ = writeln!(text, "{endpoint} check {}", if failed { "failed" } else { "passed" });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(checks: &Checks, uri: &str, stopping: bool) -> Option<(u16, String)> {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        checks.answer(path, query, stopping, None).map(|(code, text)| (code.as_u16(), text))
    }

    fn said(code: u16, text: &str) -> (u16, String) {
        (code, text.to_owned())
    }

    #[test]
    fn a_server_that_runs() {
        let checks = Checks::default();
        for uri in ["/healthz", "/livez", "/readyz", "/readyz/ping", "/livez/ping", "/readyz/shutdown"] {
            assert_eq!(ask(&checks, uri, false), Some(said(200, "ok")), "{uri}");
        }
        let verbose = "[+]ping ok\n[+]shutdown ok\nreadyz check passed\n";
        assert_eq!(ask(&checks, "/readyz?verbose", false), Some(said(200, verbose)));
        assert_eq!(
            ask(&checks, "/livez?verbose=1", false),
            Some(said(200, "[+]ping ok\nlivez check passed\n"))
        );
        for uri in ["/readyz/other", "/livez/shutdown", "/readyz/ping/x", "/health"] {
            assert_eq!(ask(&checks, uri, false), None, "{uri}");
        }
    }

    #[test]
    fn a_server_whose_folder_is_not_read() {
        let ask = |path, is_read| Checks::default().answer(path, "verbose", false, Some(is_read)).unwrap();
        let (code, text) = ask("/readyz", false);
        assert_eq!((code.as_u16(), text.contains("[-]manifests")), (503, true), "{text}");
        let (code, text) = ask("/readyz", true);
        assert_eq!((code.as_u16(), text.contains("[+]manifests ok")), (200, true), "{text}");
        assert_eq!(ask("/livez", false).0.as_u16(), 200);
    }

    #[test]
    fn a_stopping_server_or_a_failed_check_is_not_ready() {
        let checks = Checks::default();
        let stops = "[+]ping ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n";
        assert_eq!(ask(&checks, "/readyz", true), Some(said(503, stops)));
        assert_eq!(ask(&checks, "/livez", true), Some(said(200, "ok")));
        checks.register("store", Arc::new(|| Err("gone".to_owned())));
        let lacks = "[+]ping ok\n[-]store failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n";
        assert_eq!(ask(&checks, "/readyz", false), Some(said(503, lacks)));
        assert_eq!(ask(&checks, "/readyz?exclude=store", false), Some(said(200, "ok")));
        assert_eq!(ask(&checks, "/readyz/store", false).unwrap().0, 503);
        let excluded = "[+]ping ok\n[+]store excluded: ok\n[+]shutdown ok\nreadyz check passed\n";
        assert_eq!(ask(&checks, "/readyz?verbose&exclude=store", false), Some(said(200, excluded)));
    }
}
