//! What the binaries of Kubernetes have in common: how they print their version, and the kubeconfig that they read.

use std::path::Path;
use std::process::Command;

/// Returns the version that a binary prints, such as `v1.33.2`, and its second number. The error says what is wrong with the
/// binary.
pub(crate) fn version(binary: &Path) -> Result<(String, u32), String> {
    let output = Command::new(binary).arg("--version").output();
    let output = output.map_err(|error| format!("cannot be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| format!("does not print a version of Kubernetes, but {:?}", text.trim()))
}

/// Parses a line such as `Kubernetes v1.33.2`.
fn parse(text: &str) -> Option<(String, u32)> {
    let version = text.trim().strip_prefix("Kubernetes ")?;
    let minor = version.strip_prefix("v1.")?.split('.').next()?;
    Some((version.to_owned(), minor.trim_end_matches('+').parse().ok()?))
}

/// Returns a kubeconfig file without credentials for the API server at a URL. It is JSON, which is YAML as well.
pub fn kubeconfig(server: &str) -> String {
    kubeconfig_of(&format!("\"server\": \"{server}\""), "")
}

/// Returns a kubeconfig file with a token. It trusts any certificate.
pub(crate) fn kubeconfig_with_token(server: &str, token: &str) -> String {
    let cluster = format!("\"server\": \"{server}\", \"insecure-skip-tls-verify\": true");
    kubeconfig_of(&cluster, &format!("\"token\": \"{token}\""))
}

/// `cluster` and `user` are fields of JSON.
fn kubeconfig_of(cluster: &str, user: &str) -> String {
    format!(
        "{{\"apiVersion\": \"v1\", \"kind\": \"Config\", \"current-context\": \"here\",\n\
         \"clusters\": [{{\"name\": \"here\", \"cluster\": {{{cluster}}}}}],\n\
         \"users\": [{{\"name\": \"here\", \"user\": {{{user}}}}}],\n\
         \"contexts\": [{{\"name\": \"here\", \"context\": {{\"cluster\": \"here\", \"user\": \"here\"}}}}]}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_second_word() {
        let of = |version: &str, minor| Some((version.to_owned(), minor));
        assert_eq!(parse("Kubernetes v1.33.2\n"), of("v1.33.2", 33));
        assert_eq!(parse("Kubernetes v1.36.0-rc.1+abc"), of("v1.36.0-rc.1+abc", 36));
        assert_eq!(parse("Portolan 0.1.0"), None);
        assert_eq!(parse("Kubernetes v0.0.0-master+$Format:%H$"), None);
    }
}
