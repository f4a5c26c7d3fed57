//! The OpenAPI documents: created once from the field tables and served with `ETag`s, so that clients can cache them.
//! Only compressed bytes are kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use portolan_api::ApiError;
use portolan_schema::{
    json::{Value, json},
    openapi,
};

use super::{Tagged, infos, packed::Packed};
use crate::{Answer, accept::Accept, query::Query};

/// The only media type that kubectl before 1.27 accepts. Later versions fall back to it.
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The same media type in the answer. Go refuses a media type that contains `@`.
const V2_PROTOBUF_ANSWER: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const JSON: &str = "application/json";
/// How long a document with its hash in the URL may be cached: a year.
const IMMUTABLE: &str = "public, immutable, max-age=31536000";

static V2_AS_JSON: LazyLock<Packed> = LazyLock::new(|| Packed::new(openapi::v2().to_string().as_bytes()));
static V2_AS_PROTOBUF: LazyLock<Packed> =
    LazyLock::new(|| Packed::new(&openapi::to_protobuf(&openapi::v2())));

/// The documents by `apiVersion`.
static V3: LazyLock<BTreeMap<&str, Packed>> = LazyLock::new(|| {
    let versions: BTreeSet<&str> = infos().map(|info| info.api_version).collect();
    let packed = |version| Packed::new(openapi::v3(version).to_string().as_bytes());
    versions.into_iter().map(|version| (version, packed(version))).collect()
});

static V3_INDEX: LazyLock<Tagged> = LazyLock::new(|| {
    let paths: BTreeMap<String, Value> = V3
        .iter()
        .map(|(version, document)| {
            let path = openapi::path(version);
            let url = format!("/openapi/v3/{path}?hash={}", document.tag);
            (path, json!({"serverRelativeURL": url}))
        })
        .collect();
    Tagged::new(json!({"paths": paths}).to_string())
});

pub(super) fn v2(accept: &Accept<'_>, headers: &HeaderMap) -> Result<Answer, ApiError> {
    let as_json = accept.choose(|clause| {
        let as_json = clause.takes(JSON);
        let as_protobuf = clause.takes(V2_PROTOBUF) || clause.takes(V2_PROTOBUF_ANSWER);
        (as_json || as_protobuf).then_some(as_json)
    })?;
    Ok(if as_json {
        V2_AS_JSON.answer(JSON, headers)
    } else {
        V2_AS_PROTOBUF.answer(V2_PROTOBUF_ANSWER, headers)
    })
}

pub(super) fn v3_index(accept: &Accept<'_>, headers: &HeaderMap) -> Result<Answer, ApiError> {
    accept.choose(|clause| clause.takes(JSON).then_some(()))?;
    Ok(V3_INDEX.answer(JSON, headers))
}

pub(super) fn v3(
    version: &str,
    accept: &Accept<'_>,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Answer, ApiError> {
    accept.choose(|clause| clause.takes(JSON).then_some(()))?;
    let document = V3.get(version).ok_or(ApiError::UnknownPath)?;
    match query.get("hash").filter(|hash| !hash.is_empty()) {
        None => Ok(document.answer(JSON, headers)),
        Some(hash) if hash == document.tag => {
            let mut answer = document.answer(JSON, headers);
            answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(IMMUTABLE));
            Ok(answer)
        }
        // The client's index is from before an upgrade of the server.
        Some(_) => Ok(moved(&format!("/openapi/v3/{}?hash={}", openapi::path(version), document.tag))),
    }
}

fn moved(to: &str) -> Answer {
    let mut answer = Response::new(Empty::new().boxed_unsync());
    *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(to) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}
