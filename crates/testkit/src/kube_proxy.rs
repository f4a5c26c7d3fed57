//! Upstream's kube-proxy, which tests and the benchmark run in the same world as Portolan.
//!
//! Owns: which binary is meant, its version, and the fields that its configuration needs in a network namespace. The path of
//! the binary goes in. It must not know which rules kube-proxy writes.

use std::path::{Path, PathBuf};

use crate::{TestkitError, kubernetes};

/// The environment variable with the path of the binary.
const VARIABLE: &str = "KUBE_PROXY";
/// The first minor version with the nftables mode (KEP-3866).
const FIRST_WITH_NFTABLES: u32 = 29;
/// The first minor version in which the nftables mode needs no feature gate.
const FIRST_WITHOUT_GATE: u32 = 33;

/// A binary of kube-proxy.
#[derive(Clone, Debug)]
pub struct KubeProxy {
    path: PathBuf,
    version: String,
    minor: u32,
}

impl KubeProxy {
    /// Returns the binary that the environment variable `KUBE_PROXY` names.
    pub fn from_environment() -> Result<Self, TestkitError> {
        let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
            let why = format!("is not named: {VARIABLE} is not set");
            return Err(TestkitError::KubeProxy { path: PathBuf::new(), why });
        };
        Self::new(Path::new(&path))
    }

    /// Runs the binary once to learn its version.
    pub fn new(path: &Path) -> Result<Self, TestkitError> {
        let fail = |why| TestkitError::KubeProxy { path: path.to_owned(), why };
        let (version, minor) = kubernetes::version(path).map_err(fail)?;
        Ok(Self { path: path.to_owned(), version, minor })
    }

    /// Returns the path of the binary.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its version, such as `v1.33.2`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns true if this version has the mode.
    pub fn has_mode(&self, mode: &str) -> bool {
        match mode {
            "nftables" => self.minor >= FIRST_WITH_NFTABLES,
            "userspace" => false,
            _ => true,
        }
    }

    /// Returns the lines of a `KubeProxyConfiguration` that this version needs in a network namespace. Portolan accepts them,
    /// too. They are the same for each mode, because feature gates cannot change while Portolan runs. The size of the
    /// connection table is that of the whole machine, so kube-proxy must not set it.
    pub fn configuration(&self) -> String {
        let has_gate = (FIRST_WITH_NFTABLES..FIRST_WITHOUT_GATE).contains(&self.minor);
        let gates = if has_gate { "featureGates: {NFTablesProxyMode: true}\n" } else { "" };
        format!("conntrack: {{maxPerCore: 0, min: 0}}\n{gates}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(minor: u32) -> KubeProxy {
        KubeProxy { path: PathBuf::new(), version: String::new(), minor }
    }

    #[test]
    fn the_nftables_mode_needs_a_gate_until_it_is_stable() {
        let has_gate = |minor| of(minor).configuration().contains("NFTablesProxyMode");
        assert!(has_gate(29) && has_gate(32) && !has_gate(28) && !has_gate(33));
        assert!(of(29).has_mode("nftables") && !of(28).has_mode("nftables") && of(28).has_mode("iptables"));
    }
}
