//! `kubernetes_build_info`, with the version of kube-proxy that this program follows, and `portolan_build_info`.

use portolan_web::metrics::{MetricKind, Page, labels_text};

use super::{Metric, Registry};

/// The labels of `kubernetes_build_info`, by which dashboards distinguish versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// The version of Kubernetes with a leading `v`. Stock alerts compare its first two numbers with those of the
    /// cluster's other components.
    pub git_version: String,
    /// The commit; empty if unknown.
    pub git_commit: String,
    /// `clean`, `dirty`, or empty if unknown.
    pub git_tree_state: String,
    /// The build date (RFC 3339); empty if unknown.
    pub build_date: String,
}

impl BuildInfo {
    /// Returns the labels with this version of Kubernetes (with a leading `v`) and no other value.
    pub fn of_version(git_version: impl Into<String>) -> Self {
        Self {
            git_version: git_version.into(),
            git_commit: String::new(),
            git_tree_state: String::new(),
            build_date: String::new(),
        }
    }

    pub(super) fn add_to(self, registry: &Registry) {
        registry.add(
            "kubernetes_build_info",
            "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git \
             tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on \
             which it is running.",
            self,
        );
        registry.add("portolan_build_info", "1, with the version of Portolan", OwnVersion);
    }
}

/// The version of this program itself.
struct OwnVersion;

impl Metric for OwnVersion {
    fn kind(&self) -> MetricKind {
        MetricKind::Gauge
    }

    fn collect(&self, name: &str, _: &str, page: &mut Page) {
        page.sample(name, &labels_text([("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    }
}

impl Metric for BuildInfo {
    fn kind(&self) -> MetricKind {
        MetricKind::Gauge
    }

    fn collect(&self, name: &str, _: &str, page: &mut Page) {
        let mut numbers = self.git_version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        // Dashboards expect Go's names of platforms.
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let platform = format!("{}/{architecture}", std::env::consts::OS);
        let labels = [
            ("build_date", self.build_date.as_str()),
            ("compiler", "rustc"),
            ("git_commit", &self.git_commit),
            ("git_tree_state", &self.git_tree_state),
            ("git_version", &self.git_version),
            ("go_version", ""),
            ("major", major),
            ("minor", minor),
            ("platform", &platform),
        ];
        page.sample(name, &labels_text(labels), 1.0);
    }
}
