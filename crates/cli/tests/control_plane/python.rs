//! Kubernetes' client for Python, in the released version (`tests/python.txt`).

use std::process::Stdio;

use crate::site::{Backing, Site, tool};

const SCRIPT: &str = include_str!("client.py");

#[test]
fn kubernetes_client_for_python() {
    let Some(python) = tool("python-with-kubernetes") else { return };
    let site = Site::start(Backing::File, &[]).unwrap();
    let mut command = site.namespace.command(python);
    command.args(["-c", SCRIPT, &format!("http://{}", site.addresses()[0])]);
    // The configuration of the machine's user must not be used.
    command.env("HOME", site.folder()).env("KUBECONFIG", "/dev/null").env("no_proxy", "*");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("all is well"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
