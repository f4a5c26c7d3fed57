//! `/flagz` and `/statusz`: the program's flags, and its start time.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderValue, WARNING};
use portolan_web::{self as web, Answer, PLAIN};
use serde_json::{Value, json};

use super::negotiate::{Form, Version, negotiate};
use crate::metrics::process;
use crate::time::rfc3339_seconds;

/// The name of the component that this program replaces.
const COMPONENT: &str = "kube-proxy";
/// The version of kube-proxy whose behaviour this program has.
const EMULATED: &str = "1.36";
const YAML: &str = "application/yaml";
const DISCLAIMER: &str =
    "Warning: this page is for people; its form can change at any time. Programs can ask for an object.";

/// Returns every flag with its value.
pub(super) fn flagz(request: &HeaderMap, flags: &[(String, String)]) -> Answer {
    let text = || {
        let mut page = format!("\n{COMPONENT} flagz\n{DISCLAIMER}\n\n");
        for (name, value) in flags {
            let _ = writeln!(page, "{name}={value}");
        }
        page
    };
    let fields = || {
        let flags: Value = flags.iter().map(|(name, value)| (name.clone(), Value::from(&**value))).collect();
        json!({ "flags": flags })
    };
    answer(request, "Flagz", text, fields)
}

/// Returns start time, version and paths.
pub(super) fn statusz(request: &HeaderMap, version: &str, flagz: bool) -> Answer {
    let started = process::started().unwrap_or_else(SystemTime::now);
    let up = started.elapsed().unwrap_or_default();
    let version = version.trim_start_matches('v');
    let start_time = rfc3339_seconds(started);
    let text = || {
        let up = clock(up);
        format!(
            "\n{COMPONENT} statusz\n{DISCLAIMER}\n\nStarted: {start_time}\nUp: {up}\nBinary version: {version}\n\
             Emulation version: {EMULATED}\n"
        )
    };
    let fields = || {
        let mut paths = vec!["/configz", "/healthz", "/metrics", "/proxyMode"];
        if flagz {
            paths.insert(1, "/flagz");
        }
        json!({
            "startTime": start_time,
            "uptimeSeconds": up.as_secs(),
            "binaryVersion": version,
            "emulationVersion": EMULATED,
            "paths": paths,
        })
    };
    answer(request, "Statusz", text, fields)
}

fn answer(
    request: &HeaderMap,
    kind: &str,
    text: impl FnOnce() -> String,
    fields: impl FnOnce() -> Value,
) -> Answer {
    match negotiate(request, kind) {
        Some(Form::Text) => web::answer(StatusCode::OK, PLAIN, text()),
        Some(Form::Object { version, yaml: as_yaml }) => {
            let object = object(kind, version, fields());
            let (content_type, body) =
                if as_yaml { (YAML, yaml(&object)) } else { (web::JSON, object.to_string()) };
            let mut answer = web::answer(StatusCode::OK, content_type, body);
            if version == Version::V1Alpha1 {
                let text = format!(
                    "299 - \"config.k8s.io/v1alpha1 {kind} is deprecated; use config.k8s.io/v1beta1 {kind}\""
                );
                answer.headers_mut().extend(HeaderValue::try_from(text).ok().map(|text| (WARNING, text)));
            }
            answer
        }
        None => web::answer(
            StatusCode::NOT_ACCEPTABLE,
            PLAIN,
            format!(
                "not acceptable; ask for text/plain, or for application/json or application/yaml with \
                 g=config.k8s.io;v=v1beta1;as={kind}\n"
            ),
        ),
    }
}

fn object(kind: &str, version: Version, fields: Value) -> Value {
    let mut object = json!({
        "kind": kind,
        "apiVersion": format!("config.k8s.io/{}", version.name()),
        "metadata": { "name": COMPONENT },
    });
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    object
}

fn clock(up: Duration) -> String {
    let seconds = up.as_secs();
    format!("{} hr {:02} min {:02} sec", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Formats as YAML, as the configuration is formatted.
fn yaml(object: &Value) -> String {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(object, options).unwrap_or_default()
}
