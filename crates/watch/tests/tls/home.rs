//! A directory with a kubeconfig and its files.

use std::path::PathBuf;

use http_body_util::BodyExt as _;
use kube::client::Body;
use portolan_watch::{ClientSettings, connect};
use tokio::time;

use crate::certificates::{Authority, Leaf};
use crate::server::{DEADLINE, Server};

pub(crate) struct Home(tempfile::TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn write_leaf(&self, leaf: &Leaf) {
        self.write("client.crt", &leaf.certificate);
        self.write("client.key", &leaf.key);
    }

    /// Writes a kubeconfig for the server, with its authority in `ca.crt`, and returns settings that use it.
    pub(crate) fn settings(
        &self,
        server: &Server,
        authority: &Authority,
        user: &str,
        more: &str,
    ) -> ClientSettings {
        self.write("ca.crt", &authority.pem);
        let address = server.address;
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c,
              contexts: [{{name: c, context: {{cluster: k, user: u}}}}],
              users: [{{name: u, user: {{{user}}}}}],
              clusters: [{{name: k, cluster: {{server: 'https://{address}', certificate-authority: ca.crt{more}}}}}]}}"
        );
        self.write("kubeconfig", &text);
        ClientSettings { kubeconfig: Some(self.path("kubeconfig")), qps: -1.0, ..ClientSettings::default() }
    }

    pub(crate) async fn client(&self, server: &Server, authority: &Authority, user: &str) -> kube::Client {
        connect(&self.settings(server, authority, user, "")).await.unwrap()
    }
}

/// Sends a GET and returns the answer before its body is read.
pub(crate) async fn open(client: &kube::Client, path: &str) -> Result<http::Response<Body>, kube::Error> {
    let request = http::Request::get(path).body(Body::empty()).unwrap();
    time::timeout(DEADLINE, client.send(request)).await.expect("no answer")
}

/// Sends a GET, reads the whole answer and returns the status code.
pub(crate) async fn get(client: &kube::Client, path: &str) -> u16 {
    let answer = open(client, path).await.unwrap();
    let code = answer.status().as_u16();
    answer.into_body().collect().await.unwrap();
    code
}

/// Returns the error of a GET.
pub(crate) async fn failure(client: &kube::Client) -> String {
    let error = open(client, "/").await.expect_err("an answer came");
    let mut next: Option<&dyn std::error::Error> = Some(&error);
    let mut texts = Vec::new();
    while let Some(cause) = next {
        texts.push(cause.to_string());
        next = cause.source();
    }
    texts.join(": ")
}
