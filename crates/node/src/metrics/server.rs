//! The metrics server: `/metrics`, `/healthz`, `/proxyMode`, `/configz`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::StatusCode;
use serde_json::json;

use super::ProxyMetrics;
use crate::config::{Configuration, Mode};
use crate::http::{self, Answer, PLAIN, Server};

const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the server shows. The configuration can be replaced while it runs.
pub struct Pages {
    metrics: Arc<ProxyMetrics>,
    shown: Mutex<Shown>,
}

struct Shown {
    mode: Mode,
    configz: String,
}

impl Pages {
    /// Pages of these metrics and this configuration.
    pub fn new(metrics: Arc<ProxyMetrics>, configuration: &Configuration) -> Self {
        Self { metrics, shown: Mutex::new(Shown::of(configuration)) }
    }

    /// Shows another configuration from now on.
    pub fn set_configuration(&self, configuration: &Configuration) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Shown::of(configuration);
    }

    fn answer(&self, path: &str, query: &str) -> Answer {
        let shown = || self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        match path {
            "/metrics" => http::answer(StatusCode::OK, TEXT_FORMAT, self.metrics.page()),
            "/healthz" if wants_verbose(query) => {
                http::answer(StatusCode::OK, PLAIN, "[+]ping ok\nhealthz check passed\n")
            }
            "/healthz" | "/healthz/ping" => http::answer(StatusCode::OK, PLAIN, "ok"),
            "/proxyMode" => http::answer(StatusCode::OK, PLAIN, shown().mode.name()),
            "/configz" => http::answer(StatusCode::OK, http::JSON, shown().configz.clone()),
            _ => http::not_found(),
        }
    }
}

impl Shown {
    /// Upstream shows the configuration with the platform's defaults filled in.
    fn of(configuration: &Configuration) -> Self {
        let mode = configuration.mode_or_default();
        let effective = Configuration {
            mode: Some(mode),
            node_port_addresses: configuration.node_port_addresses(),
            ..configuration.clone()
        };
        Self { mode, configz: json!({ "kubeproxy.config.k8s.io": effective.to_v1alpha1() }).to_string() }
    }
}

/// The metrics server.
pub fn server(address: SocketAddr, hard_fail: bool, pages: Arc<Pages>) -> Server {
    let handler = move |request: &hyper::Request<_>| {
        let uri = request.uri();
        pages.answer(uri.path(), uri.query().unwrap_or_default())
    };
    Server::new("metrics", "metricsBindAddress", address, hard_fail, Arc::new(handler))
}

fn wants_verbose(query: &str) -> bool {
    query.split('&').any(|part| part.split('=').next() == Some("verbose"))
}
